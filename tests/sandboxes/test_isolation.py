"""What a container with a network cannot reach, tried from inside.

Beside it a container of the engine's own network reaches all of it, so nothing here is blocked by chance.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from docker import APIClient

from pytest_infranoise.sandboxes import isolation
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.isolation import Isolation
from pytest_infranoise.sandboxes.protocol import Sandbox

from .conftest import BASE_IMAGE
from .conftest import request_for

METADATA = "169.254.169.254"
CLOSED = Isolation(other_trials=True, link_local=True, host_ports=True)
# Prints "yes" or "no" for each ADDRESS:PORT; a port with a u in front is tried by UDP.
TRY = r"""use IO::Socket::INET; use IO::Select;
for my $place (@ARGV) {
  my ($host, $kind, $port) = $place =~ /(.*):(u?)(\d+)/;
  my %to = (PeerAddr => $host, PeerPort => $port, Proto => $kind ? "udp" : "tcp");
  my $peer = IO::Socket::INET->new(%to, Timeout => 3);
  if ($peer && $kind) {
    print $peer "hello";
    $peer = undef unless IO::Select->new($peer)->can_read(3) && defined $peer->recv(my $answer, 10);
  }
  print $peer ? "yes\n" : "no\n";
}
"""
# Accepts TCP connections, or answers datagrams, at "ADDRESS PORT KIND" each.
SERVE = """import socket, sys, threading
def tcp(server):
    while True: server.accept()[0].close()
def udp(server):
    while True: server.sendto(b"hello", server.recvfrom(10)[1])
for place in sys.argv[1:]:
    address, port, kind = place.split()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, int(port)))
    if kind == "tcp": server.listen()
    threading.Thread(target=udp if kind == "udp" else tcp, args=(server,)).start()
print("ready", flush=True)
"""


def unavailable() -> str | None:
    if os.geteuid() != 0:
        return "closing anything takes root"
    missing = [name for name in ("iptables", "ip") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} here" if missing else None


pytestmark = [pytest.mark.engine, pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))]


def rules() -> list[str]:
    return subprocess.run(["iptables", "-S"], capture_output=True, text=True, check=True).stdout.splitlines()


def ours(network: str) -> list[str]:
    return [rule for rule in rules() if network[:12] in rule and "INFRANOISE" in rule]


@contextlib.contextmanager
def serving(*places: str, inside: str | None = None) -> Iterator[None]:
    """Answer on this machine, or in a network namespace of it."""
    command = ["ip", "netns", "exec", inside] if inside else []
    command += [sys.executable, "-c", SERVE, *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def box(backend: DockerBackend) -> DockerSandbox:
    return backend.create(replace(request_for(), network=True))


def reaches(sandbox: Sandbox, *places: str) -> list[str]:
    return sandbox.exec(["perl", "-e", TRY, *places]).output.decode().split()


def anybody_reaches(*places: str) -> list[str]:
    """Try from a container of the engine's default network, which is not ours to change."""
    command = ["docker", "run", "--rm", "--network", "bridge", BASE_IMAGE, "perl", "-e", TRY, *places]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def addresses() -> list[str]:
    """Return this machine's addresses, but for those of networks that others may be making or removing now."""
    printed = subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[1:4:2] for line in printed.splitlines()]
    return [address.partition("/")[0] for name, address in found if name != "lo" and not name.startswith("br-")]


def test_no_port_of_the_host_is_open_but_for_dns(
    backend: DockerBackend, box: DockerSandbox, engine: APIClient
) -> None:
    gateway = engine.inspect_network(backend.ensure_network())["IPAM"]["Config"][0]["Gateway"]
    port = free_port()
    with serving(f"0.0.0.0 {port} tcp", f"0.0.0.0 {port} udp", f"{gateway} 53 tcp", f"{gateway} 53 udp"):
        here = [gateway, *addresses()]
        tcp = [f"{address}:{port}" for address in here]
        udp = [f"{address}:u{port}" for address in here if address == gateway]

        assert reaches(box, *tcp, *udp) == ["no"] * (len(tcp) + len(udp))
        assert reaches(box, f"{gateway}:53", f"{gateway}:u53") == ["yes", "yes"]
        assert anybody_reaches(*tcp) == ["yes"] * len(tcp)
    assert backend.isolation() == CLOSED


def test_ports_of_the_host_that_are_allowed_are_open_and_no_others(engine: APIClient) -> None:
    """For whichever process of the run comes first, and also after another one has come."""
    allowed, other = free_port(), free_port()
    first, second = (
        DockerBackend(run, host_ports=(allowed,)) for run in [f"ports-{os.getpid()}-{uuid4().hex[:6]}"] * 2
    )
    try:
        box = first.create(replace(request_for(), network=True))
        gateway = engine.inspect_network(first.ensure_network())["IPAM"]["Config"][0]["Gateway"]
        with serving(f"0.0.0.0 {allowed} tcp", f"0.0.0.0 {allowed} udp", f"0.0.0.0 {other} tcp"):
            places = [f"{gateway}:{allowed}", f"{gateway}:{other}", f"{gateway}:u{allowed}"]
            assert reaches(box, *places) == ["yes", "no", "no"]
            assert second.isolation() == replace(CLOSED, allowed=(allowed,))
            assert reaches(box, *places) == ["yes", "no", "no"]
        assert first.isolation().to_json()["allowed_host_ports"] == [allowed]
    finally:
        first.remove_labelled({"infranoise.run": first.run})
        first.close()
        second.close()


@pytest.fixture
def metadata() -> Iterator[str]:
    """A place with the address at which clouds give away credentials, reached through this machine."""
    mark = uuid4().hex[:6]
    place, near, far = f"md{mark}", f"mda{mark}", f"mdb{mark}"

    def ip(*argv: str) -> None:
        subprocess.run(["ip", *argv], check=True, capture_output=True)

    ip("netns", "add", place)
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", place)
        ip("link", "set", near, "up")
        ip("-n", place, "address", "add", f"{METADATA}/32", "dev", far)
        ip("-n", place, "link", "set", far, "up")
        ip("-n", place, "route", "add", "default", "dev", far)
        ip("route", "add", f"{METADATA}/32", "dev", near)
        yield place
    finally:
        subprocess.run(["ip", "link", "delete", near], capture_output=True)
        ip("netns", "delete", place)


def test_link_local_addresses_are_closed_but_for_dns(box: DockerSandbox, metadata: str) -> None:
    with serving(f"{METADATA} 80 tcp", f"{METADATA} 53 udp", f"{METADATA} 53 tcp", inside=metadata):
        places = [f"{METADATA}:80", f"{METADATA}:53", f"{METADATA}:u53"]

        assert anybody_reaches(*places) == ["yes", "yes", "yes"]
        assert reaches(box, *places) == ["no", "yes", "yes"]


def test_no_trial_reaches_another(backend: DockerBackend, box: DockerSandbox, engine: APIClient) -> None:
    """And two containers of a network on which nobody forbids it do, with the same programs."""
    listen = "use IO::Socket::INET; $s = IO::Socket::INET->new(Listen => 1, LocalPort => 8080); 1 while $s->accept"

    def address(container: str) -> str:
        networks = engine.inspect_container(container)["NetworkSettings"]["Networks"]
        return str(next(iter(networks.values()))["IPAddress"])

    def until_open(place: str, ask: Sandbox) -> None:
        give_up = time.monotonic() + 30
        while reaches(ask, place) != ["yes"]:
            assert time.monotonic() < give_up

    other = backend.create(replace(request_for(), network=True))
    other.exec(["sh", "-c", 'perl -e "$0" >/dev/null 2>&1 &', listen])
    until_open("127.0.0.1:8080", other)
    command = ["docker", "run", "--rm", "--detach", "--network", "bridge", BASE_IMAGE, "perl", "-e", listen]
    server = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    try:
        give_up = time.monotonic() + 30
        while anybody_reaches(f"{address(server)}:8080") != ["yes"]:
            assert time.monotonic() < give_up
        assert reaches(box, f"{address(other.id)}:8080", f"{address(server)}:8080") == ["no", "no"]
    finally:
        subprocess.run(["docker", "rm", "-f", server], check=True, capture_output=True)


def test_names_are_found_as_on_any_network(box: DockerSandbox, engine: APIClient) -> None:
    """The container's name server is the engine's, which asks the host's on the container's behalf."""
    name = f"plain-{uuid4().hex[:8]}"
    network = engine.create_network(name, driver="bridge")["Id"]
    try:
        command = ["docker", "run", "--rm", "--network", name, BASE_IMAGE, "getent", "hosts", "example.org"]
        elsewhere = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        engine.remove_network(network)

    here = box.exec(["getent", "hosts", "example.org"])

    assert here.exit_code == elsewhere.returncode
    assert here.output.decode() == elsewhere.stdout


def test_rules_come_once_and_go_with_the_network_and_no_others_are_touched(backend: DockerBackend) -> None:
    others = [rule for rule in rules() if "INFRANOISE" not in rule and "br-" not in rule]
    network = backend.ensure_network()
    before = ours(network)
    assert len(before) == 2 + 2 + 4 + 4  # chains, jumps, and what is in each

    workers = [DockerBackend(backend.run) for _ in range(4)]
    threads = [threading.Thread(target=worker.ensure_network) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        assert worker.isolation() == CLOSED
        worker.close()
    assert sorted(ours(network)) == sorted(before)

    backend.remove_labelled({"infranoise.run": backend.run})
    assert ours(network) == []
    assert [rule for rule in rules() if "INFRANOISE" not in rule and "br-" not in rule] == others


def test_rules_whose_network_somebody_else_removed_go_with_the_next_one(
    backend: DockerBackend, engine: APIClient
) -> None:
    lost = DockerBackend(f"test-{uuid4().hex[:12]}")
    network = lost.ensure_network()
    lost.close()
    engine.remove_network(network)
    assert ours(network)

    backend.ensure_network()

    assert ours(network) == []


@pytest.mark.parametrize("reason", ["root", "iptables", "elsewhere", "refused"])
def test_what_cannot_be_closed_is_called_reachable(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    elif reason == "iptables":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif reason == "elsewhere":
        monkeypatch.setattr(type(backend._engine), "on_unix_socket", False)
    else:
        monkeypatch.setattr(isolation, "_LINK_LOCAL", {"iptables": ("no-address",)})

    found = backend.isolation()

    assert (found.other_trials, found.link_local, found.host_ports) == (None, False, False)
    assert found.why
    assert found.to_json()["host_ports"] == "reachable"
    assert ours(backend.ensure_network()) == []
