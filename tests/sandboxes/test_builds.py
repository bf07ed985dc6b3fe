from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from docker import APIClient
from docker.errors import ImageNotFound

from pytest_infranoise.sandboxes import buildkit
from pytest_infranoise.sandboxes.contexts import content_hash
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.engine import DEFAULT_ADDRESS
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import SandboxError

from .conftest import BASE_IMAGE

pytestmark = pytest.mark.engine

ADDRESS = os.environ.get("DOCKER_HOST", DEFAULT_ADDRESS)


def use(builder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next backend build with this builder."""
    if builder == "classic":
        monkeypatch.setenv("DOCKER_BUILDKIT", "0")
        return
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    if buildkit.find_command(ADDRESS) is None:
        pytest.skip("no docker command here builds with BuildKit")


@pytest.fixture(params=["buildkit", "classic"])
def builder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
def context(tmp_path: Path, engine: APIClient) -> Iterator[Path]:
    """A place for a Dockerfile; the image of it is removed in the end."""
    yield tmp_path
    if (tmp_path / "Dockerfile").exists():
        remove(engine, tmp_path)


def remove(engine: APIClient, context: Path) -> None:
    try:
        engine.remove_image(tag_of(context), force=True)
    except ImageNotFound:
        return


def tag_of(context: Path) -> str:
    return f"infranoise/build:{content_hash(context)[:16]}"


def dockerfile(directory: Path, *lines: str, base: str = BASE_IMAGE) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text("\n".join([f"FROM {base}", *lines, ""]))
    return directory


def at_work(mark: str) -> bool:
    return any(mark in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def await_work(mark: str, there: bool) -> None:
    give_up = time.monotonic() + 30
    while at_work(mark) != there:
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_built_once_per_content_and_labelled(
    builder: str, backend: DockerBackend, engine: APIClient, context: Path, tmp_path: Path
) -> None:
    mark = uuid4().hex
    dockerfile(context, "COPY mark /mark", "RUN test -x /mark && [ $(stat -c %u:%g /mark) = 0:0 ]")
    (context / "mark").write_text(mark)
    (context / "mark").chmod(0o700)
    twin = dockerfile(tmp_path / "twin", *(context / "Dockerfile").read_text().splitlines()[1:])
    (twin / "mark").write_text(mark)
    (twin / "mark").chmod(0o700)
    (context / ".dockerignore").write_text("twin\n")
    (twin / ".dockerignore").write_text("twin\n")
    assert content_hash(context) == content_hash(twin)
    told: list[str] = []

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda place: backend.image(None, place, "missing", working=told.append), [context, twin]
        )
    again = backend.image(None, context, "missing", working=told.append)

    assert first == second == again
    assert set(told) == {"building"}
    assert len(told) <= 2  # whoever came second may have had to wait for the first, but built nothing
    labels = engine.inspect_image(tag_of(context))["Config"]["Labels"]  # type: ignore[no-untyped-call]
    assert labels["infranoise.content"] == content_hash(context)
    assert labels["infranoise.builder"] == builder
    listed = engine.images(filters={"label": "infranoise.content"})
    assert first in [image["Id"] for image in listed]


@pytest.mark.usefixtures("builder")
def test_other_content_is_another_image(backend: DockerBackend, engine: APIClient, context: Path) -> None:
    dockerfile(context, f"RUN : {uuid4().hex}")
    first = backend.image(None, context, "missing")
    remove(engine, context)

    dockerfile(context, f"RUN : {uuid4().hex}")
    assert backend.image(None, context, "missing") != first


@pytest.mark.usefixtures("builder")
def test_two_sessions_at_once_build_once(context: Path) -> None:
    dockerfile(context, f"RUN : {uuid4().hex}; sleep 1; head -c 16 /dev/urandom > /drawn")
    code = (
        "import sys, pathlib; from pytest_infranoise.sandboxes.docker import DockerBackend as Backend\n"
        "print(Backend('test').image(None, pathlib.Path(sys.argv[1]), 'never'))"
    )
    argv = [sys.executable, "-c", code, str(context)]

    sessions = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (session.communicate(timeout=120)[0].strip() for session in sessions)

    assert first.startswith("sha256:")
    assert first == second


@pytest.mark.usefixtures("builder")
def test_a_base_image_that_is_only_here_is_not_pulled(
    backend: DockerBackend, engine: APIClient, context: Path
) -> None:
    # No registry is there to ask.
    local = f"127.0.0.1:1/infranoise/local-{uuid4().hex}"
    engine.tag(BASE_IMAGE, local, "only-here")
    try:
        dockerfile(context, "RUN true", base=f"{local}:only-here")

        assert backend.image(None, context, "missing").startswith("sha256:")
    finally:
        remove(engine, context)
        engine.remove_image(f"{local}:only-here")


@pytest.mark.usefixtures("builder")
def test_what_dockerignore_names_is_not_in_the_image(backend: DockerBackend, context: Path) -> None:
    mark = uuid4().hex
    dockerfile(context, "COPY . /all", f"RUN : {mark}; test -e /all/kept/a && ! test -e /all/secret")
    (context / "kept").mkdir()
    (context / "kept" / "a").touch()
    (context / "secret").write_text("one")
    (context / ".dockerignore").write_text("secret\n")

    first = backend.image(None, context, "missing")
    (context / "secret").write_text("two")

    assert backend.image(None, context, "missing") == first


@pytest.mark.usefixtures("builder")
@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["RUN echo said before; exit 7"], r"(?s)cannot be built: .*code: 7.*said before"),
        (["COPY nosuch /"], "nosuch"),
        (["NOSUCH instruction"], "(?i)cannot be built: .*unknown instruction: NOSUCH"),
        (["FROM 127.0.0.1:1/nosuch:never"], "127.0.0.1:1"),
    ],
    ids=["command", "copy", "syntax", "base"],
)
def test_builds_that_fail_show_why(
    backend: DockerBackend, engine: APIClient, context: Path, lines: list[str], text: str
) -> None:
    with pytest.raises((ConfigError, ImagePullError), match=text) as caught:
        backend.image(None, dockerfile(context, *lines), "missing")

    assert str(context) in caught.value.text
    with pytest.raises(ImageNotFound):
        engine.inspect_image(tag_of(context))  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("builder")
def test_no_base_image_to_be_had_now_is_not_the_users_mistake(backend: DockerBackend, context: Path) -> None:
    with pytest.raises(ImagePullError):
        backend.image(None, dockerfile(context, base="127.0.0.1:1/nosuch:never"), "missing")


@pytest.mark.usefixtures("builder")
def test_words_of_a_failed_command_are_no_evidence(backend: DockerBackend, context: Path) -> None:
    with pytest.raises(ConfigError, match="code: 7"):
        backend.image(None, dockerfile(context, "RUN echo 'connection refused'; exit 7"), "missing")


@pytest.mark.usefixtures("builder")
def test_a_long_output_keeps_its_end(backend: DockerBackend, context: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        backend.image(None, dockerfile(context, "RUN seq 100000 100999; echo the end; exit 7"), "missing")

    lines = caught.value.text.splitlines()
    assert len(caught.value.text) <= 1000
    assert "code: 7" in lines[0]
    assert any(line.endswith("the end") for line in lines)
    assert not any("100003" in line for line in lines)


@pytest.mark.usefixtures("builder")
def test_a_build_that_takes_too_long_is_ended(backend: DockerBackend, context: Path) -> None:
    mark = uuid4().hex
    with pytest.raises(ConfigError, match="not done in 3 s"):
        backend.image(None, dockerfile(context, f"RUN sleep 300; : {mark}"), "missing", seconds=3)

    await_work(mark, there=False)


@pytest.mark.usefixtures("builder")
def test_closing_the_backend_ends_its_builds(engine: APIClient, context: Path) -> None:
    mark = uuid4().hex
    dockerfile(context, f"RUN sleep 300; : {mark}")
    backend = DockerBackend("test")
    failed: list[SandboxError] = []

    def build() -> None:
        try:
            backend.image(None, context, "missing")
        except SandboxError as error:
            failed.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    try:
        await_work(f"sleep 300; : {mark}", there=True)
    finally:
        backend.close()
        thread.join(30)

    assert not thread.is_alive()
    assert "not wanted any more" in failed[0].text
    await_work(mark, there=False)


CACHE = "RUN --mount=type=cache,target=/x true"
HEREDOC = ("RUN <<EOF", "true", "EOF")


@pytest.mark.parametrize(
    ("lines", "what"),
    [((CACHE,), "RUN --mount"), (HEREDOC, "a here-document in RUN"), (("ARG TARGETARCH",), "ARG")],
)
def test_what_the_classic_builder_cannot_do_is_told_with_its_line(
    backend: DockerBackend, context: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], what: str
) -> None:
    use("classic", monkeypatch)
    with pytest.raises(ConfigError) as caught:
        backend.image(None, dockerfile(context, "RUN true", *lines), "missing")

    assert caught.value.text.startswith(f"{context}/Dockerfile:3: {what}")
    assert "needs BuildKit" in caught.value.text
    assert "install docker's buildx plugin" in caught.value.text


def test_buildkit_does_what_it_can(
    backend: DockerBackend, engine: APIClient, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("buildkit", monkeypatch)
    dockerfile(
        context, "ARG TARGETOS", f"RUN --mount=type=cache,target=/x [ $TARGETOS = linux ] && : {uuid4().hex}"
    )

    assert backend.image(None, context, "missing").startswith("sha256:")


def test_a_here_document_needs_a_newer_engine_or_a_front_end(
    backend: DockerBackend, engine: APIClient, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("buildkit", monkeypatch)
    dockerfile(context, *HEREDOC, f"# {uuid4().hex}")
    major = int(engine.version()["Version"].split(".")[0])

    if major >= 23:
        assert backend.image(None, context, "missing").startswith("sha256:")
        return
    with pytest.raises(ConfigError, match=r"Dockerfile:2: a here-document in RUN .*# syntax=docker/dockerfile:1"):
        backend.image(None, context, "missing")


def test_a_docker_command_that_only_promises_buildkit_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    real = buildkit.find_command(ADDRESS)
    (tmp_path / "docker").write_text("#!/bin/sh\necho 'the buildx component is missing or broken' >&2; exit 1\n")
    (tmp_path / "docker").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert buildkit.find_command(ADDRESS) == real
    monkeypatch.setenv("PATH", str(tmp_path))
    assert buildkit.find_command(ADDRESS) is None


def test_builds_go_to_the_engine_that_containers_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "somewhere-else")
    monkeypatch.setenv("BUILDX_BUILDER", "in-a-container")

    for address, host in (("http+unix:///a", "unix:///a"), ("/a", "unix:///a"), ("tcp://a:1", "tcp://a:1")):
        variables = buildkit.environment(address)
        assert variables["DOCKER_HOST"] == host
        assert variables["BUILDX_BUILDER"] == "default"
        assert "DOCKER_CONTEXT" not in variables
