from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from docker import APIClient

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes import cgroups
from pytest_infranoise.sandboxes import docker as docker_backend
from pytest_infranoise.sandboxes import limits
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.limits import check_limits
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxRequest

from .conftest import BASE_IMAGE
from .conftest import MIB
from .conftest import SMALL
from .conftest import Build
from .conftest import MakeSandbox
from .conftest import containers_of
from .conftest import request_for

pytestmark = pytest.mark.engine

MORE_CPUS_THAN_HERE = float((psutil.cpu_count() or 1) * 3)


def test_it_fits_the_protocol(backend: DockerBackend, sandbox: DockerSandbox) -> None:
    as_backend: Backend = backend
    as_sandbox: Sandbox = sandbox

    assert as_backend.info().unsupported == ()
    assert as_backend.ready(0)
    assert as_sandbox.holder_is_init
    assert as_sandbox.identity() == as_sandbox.identity()
    assert as_sandbox.state().running


@pytest.mark.parametrize(
    "allocation",
    [
        Allocation(1.0, 1.0, 64 * MIB, 64 * MIB, pids_ceiling=50),
        Allocation(1.0, MORE_CPUS_THAN_HERE, 64 * MIB, 192 * MIB),
        Allocation(0.1, 0.333, 10_000_001, 100_000_001),
        Allocation(1.0, None, 64 * MIB, None),
        Allocation(1.0, 1.0, 64 * MIB, None),
    ],
    ids=["1x", "3x", "odd", "uncapped", "memory-uncapped"],
)
@pytest.mark.parametrize("where", ["on the host", "in the container"])
def test_the_kernel_has_the_limits(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch, allocation: Allocation, where: str
) -> None:
    if where == "in the container":
        monkeypatch.setattr(cgroups, "locate", lambda pid, container: None)

    found = make_sandbox(request_for(allocation)).limits()

    assert where in found.source
    assert check_limits(allocation, found) == []
    assert found.pids == allocation.pids_ceiling
    if allocation.cpus_ceiling is not None:
        assert found.cpus == pytest.approx(allocation.cpus_ceiling, abs=0.01)
    assert (found.memory is None) == (allocation.memory_ceiling is None)


def test_shared_memory_has_its_ceiling(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(request_for(replace(SMALL, shm_ceiling=3 * MIB)))

    result = sandbox.exec(["sh", "-c", "df -k /dev/shm | tail -n 1"])

    assert result.output.split()[1] == b"3072"


def test_what_a_container_is_given(backend: DockerBackend, engine: APIClient) -> None:
    request = replace(
        request_for(), user="1000:1000", workdir="/made/for it", environment={"COLOUR": "blue = green"}
    )
    sandbox = backend.create(request)

    result = sandbox.exec(["sh", "-c", 'id -u; pwd; echo "$COLOUR"; ls /sys/class/net'])
    inspected = engine.inspect_container(sandbox.id)
    host = inspected["HostConfig"]

    assert result.output.decode().splitlines() == ["1000", "/made/for it", "blue = green", "lo"]
    assert inspected["Name"] == f"/{request.name}"
    assert inspected["Config"]["Labels"].items() >= {**request.labels, "infranoise.run": backend.run}.items()
    assert (host["Privileged"], host["AutoRemove"], host["Init"]) == (False, False, False)
    assert host["RestartPolicy"]["Name"] in ("", "no")
    assert host["OomScoreAdj"] > 0
    assert not host["CapAdd"]
    assert not host["SecurityOpt"]
    assert host["LogConfig"]["Config"]["max-size"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"user": "nosuch"}, "nosuch"),
        ({"workdir": "not/absolute"}, "not/absolute"),
        ({"workdir": "/etc/passwd"}, "/etc/passwd"),
        ({"image": "infranoise/nosuch:never"}, "infranoise/nosuch:never"),
        ({"name": "no name at all"}, "no name at all"),
        ({"allocation": replace(SMALL, memory_ceiling=5 * MIB, memory_floor=5 * MIB)}, "6MB"),
        ({"allocation": replace(SMALL, memory_floor=128 * MIB)}, "reservation"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_the_users_mistakes(backend: DockerBackend, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        backend.create(replace(request_for(), **change))

    assert containers_of(backend) == []


def test_an_image_that_has_gone_is_not_the_users_mistake(backend: DockerBackend) -> None:
    with pytest.raises(ImagePullError):
        backend.create(request_for(image=f"sha256:{'0' * 64}"))


@pytest.mark.parametrize(
    ("dockerfile", "text"),
    [
        ("FROM scratch\nCOPY nothing /nothing\n", "needs /bin/sh"),
        (f'FROM {BASE_IMAGE}\nENTRYPOINT ["/bin/nosuch"]\n', "nosuch"),
        (
            f'FROM {BASE_IMAGE}\nENTRYPOINT ["sh", "-c", "echo my last words; exit 3"]\n',
            "exit code 3.*my last words",
        ),
        (f"FROM {BASE_IMAGE}\nUSER nosuch\n", "nosuch"),
    ],
    ids=["no-shell", "no-entrypoint", "other-entrypoint", "no-user"],
)
def test_images_that_cannot_be_run(
    build: Build, backend: DockerBackend, tmp_path: Path, dockerfile: str, text: str
) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile)
    (tmp_path / "nothing").touch()
    image = build(tmp_path)

    with pytest.raises(ConfigError, match=f"(?s){text}"):
        backend.create(request_for(image=image))

    assert containers_of(backend) == []


ENTRY_SCRIPT = """#!/bin/sh
echo prepared >/prepared
sleep 0.3
{how} "$@"
"""


@pytest.mark.parametrize(("how", "is_init"), [("exec", True), ("", False)])
@pytest.mark.parametrize("where", ["host", "container"])
def test_the_entry_point_of_the_image_is_kept(
    build: Build,
    backend: DockerBackend,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
    is_init: bool,
    where: str,
) -> None:
    if where == "container":
        monkeypatch.setattr(cgroups, "locate", lambda pid, container: None)
    (tmp_path / "Dockerfile").write_text(f'FROM {BASE_IMAGE}\nCOPY entry /\nENTRYPOINT ["/entry"]\n')
    (tmp_path / "entry").write_text(ENTRY_SCRIPT.format(how=how))
    (tmp_path / "entry").chmod(0o755)

    sandbox = backend.create(request_for(image=build(tmp_path)))

    assert sandbox.holder_is_init is is_init
    assert sandbox.read("/prepared") == b"prepared\n"
    sandbox.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"])
    assert sandbox.kill_processes()
    assert sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).output.count(b"600") == 0
    assert sandbox.state().running


def test_nothing_inside_can_end_the_container(sandbox: DockerSandbox) -> None:
    before = sandbox.identity()
    signals = "TERM INT HUP QUIT KILL USR1 USR2 PIPE ALRM ABRT STOP TSTP CHLD SEGV"

    sandbox.exec(["sh", "-c", f"for name in {signals}; do kill -$name 1; done; kill -9 -1"])
    sandbox.exec(["sh", "-c", "kill -9 -1"])

    assert sandbox.exec(["echo", "alive"]).output == b"alive\n"
    assert sandbox.identity() == before


def test_orphans_are_reaped(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(request_for(replace(SMALL, pids_ceiling=20)))

    for _ in range(10):
        sandbox.exec(["sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.01 &); done"])

    assert sandbox.exec(["sh", "-c", "true | true; echo $?"]).output == b"0\n"
    assert sandbox.counters().pids_denied == 0


def test_a_left_over_of_ours_makes_way(backend: DockerBackend) -> None:
    request = request_for()
    first = backend.create(request)

    second = backend.create(request)

    assert first.state().running is None
    assert containers_of(backend) == [second.id]


def test_a_container_of_others_does_not(backend: DockerBackend, engine: APIClient) -> None:
    request = request_for()
    foreign = engine.create_container(BASE_IMAGE, "true", name=request.name)["Id"]
    try:
        with pytest.raises(EnvStartError, match="already in use"):
            backend.create(request)

        assert engine.inspect_container(foreign)["Id"] == foreign
    finally:
        engine.remove_container(foreign)


def test_an_interrupt_leaves_nothing_behind(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(docker_backend, "check_limits", interrupt)

    with pytest.raises(KeyboardInterrupt):
        backend.create(request_for())

    assert containers_of(backend) == []


def test_other_limits_than_asked_for_are_an_error(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    given = limits.host_options
    monkeypatch.setattr(docker_backend, "host_options", lambda asked: given(replace(asked, pids_ceiling=77)))

    with pytest.raises(EnforcementError, match="pids ceiling: asked 100, is 77"):
        backend.create(request_for())

    assert containers_of(backend) == []


@pytest.mark.parametrize("told_by", ["info", "create"])
def test_an_engine_that_says_it_cannot(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    if told_by == "info":
        monkeypatch.setattr(docker_backend, "unsupported_limits", lambda info, swapless: ("memory limit",))
    else:
        monkeypatch.setattr(docker_backend, "limit_warnings", lambda warnings, swapless: ["memory limit discarded"])

    with pytest.raises(EnforcementError, match="memory limit"):
        backend.create(request_for())

    assert containers_of(backend) == []


def test_no_engine_is_told_with_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    backend = DockerBackend("nowhere")

    assert not backend.ready(0)
    with pytest.raises(EngineLost, match=r"no Docker Engine answers at unix:.*nothing\.sock.*DOCKER_HOST"):
        backend.info()
    with pytest.raises(EngineLost):
        backend.create(request_for())
    backend.close()


def test_labelled_finds_and_removes_what_a_dead_run_left(backend: DockerBackend) -> None:
    sandbox = backend.create(replace(request_for(), network=True))
    network = backend.ensure_network()

    found = backend.labelled("infranoise.run")

    assert found[sandbox.id]["infranoise.trial"] == "a trial"
    assert found[network]["infranoise.run"] == backend.run
    assert backend.remove_labelled({"infranoise.run": backend.run, "infranoise.trial": "another"}) == 0
    assert backend.remove_labelled({"infranoise.run": backend.run}) == 2
    assert not {sandbox.id, network} & backend.labelled("infranoise.run").keys()


def test_one_network_for_all_processes_of_a_run(backend: DockerBackend) -> None:
    other = DockerBackend(backend.run)
    try:
        assert backend.ensure_network() == other.ensure_network()
        assert len(backend.labelled(f"infranoise.run={backend.run}")) == 1
    finally:
        other.close()


LISTEN = """use IO::Socket::INET;
my $server = IO::Socket::INET->new(Listen => 1, LocalPort => 8080, ReuseAddr => 1) or die;
while (my $peer = $server->accept) { print $peer "hello\\n"; close $peer }
"""
CONNECT = """use IO::Socket::INET;
my $peer = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 8080, Timeout => 1);
print $peer ? <$peer> : "unreachable\\n";
"""


def test_neighbours_cannot_reach_each_other(backend: DockerBackend, engine: APIClient) -> None:
    server = backend.create(replace(request_for(), network=True))
    client = backend.create(replace(request_for(), network=True))
    networks = engine.inspect_container(server.id)["NetworkSettings"]["Networks"]
    address = next(iter(networks.values()))["IPAddress"]
    server.exec(["sh", "-c", 'perl -e "$0" >/dev/null 2>&1 &', LISTEN])
    wait = "for i in 1 2 3 4 5 6 7 8 9; do grep -q 1F90 /proc/net/tcp && exit 0; sleep 0.2; done; exit 1"
    assert server.exec(["sh", "-c", wait]).exit_code == 0

    assert server.exec(["perl", "-e", CONNECT, address]).output == b"hello\n"
    assert client.exec(["perl", "-e", CONNECT, address]).output == b"unreachable\n"


def test_removing_is_final_and_repeatable(sandbox: DockerSandbox) -> None:
    assert sandbox.remove()
    assert sandbox.remove()
    assert sandbox.state().running is None


def test_requests_cannot_claim_another_run(backend: DockerBackend) -> None:
    labels = {"infranoise.run": f"other-{uuid4().hex}"}
    request: SandboxRequest = replace(request_for(), labels=labels)

    sandbox = backend.create(request)

    assert sandbox.id in containers_of(backend)


def test_the_lock_directory_is_private(backend: DockerBackend) -> None:
    from pytest_infranoise.sandboxes.locks import lock_directory

    backend.ensure_network()

    assert lock_directory().stat().st_mode & 0o777 == 0o700
    assert lock_directory().stat().st_uid == os.getuid()


def test_the_end_of_a_container_that_is_gone_is_no_mistake_of_the_users(backend: DockerBackend) -> None:
    """It may have been removed by whoever ended it, and then its image is not at fault."""
    ended = EnvStartError("start", "the container ended at once with exit code 137")

    told = backend._explained(ended, "0" * 64, request_for())

    assert type(told) is EnvStartError
    assert "cannot be looked at any more" in told.text
