from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest
from docker import APIClient

from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.docker import RUN_LABEL
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.protocol import SandboxRequest

MIB = 1024**2
BASE_IMAGE = "infranoise/base:bookworm"
SMALL = Allocation(
    cpus_floor=0.5, cpus_ceiling=4.0, memory_floor=32 * MIB, memory_ceiling=64 * MIB, pids_ceiling=100
)

_numbers = itertools.count()


Build = Callable[[Path], str]


class MakeSandbox(Protocol):
    def __call__(self, request: SandboxRequest | None = None) -> DockerSandbox: ...


def request_for(allocation: Allocation = SMALL, image: str = BASE_IMAGE) -> SandboxRequest:
    return SandboxRequest(
        name=f"infranoise-test-{uuid4().hex[:12]}-{next(_numbers)}",
        image=image,
        allocation=allocation,
        labels={"infranoise.trial": "a trial"},
        network=False,
    )


def containers_of(backend: DockerBackend) -> list[str]:
    return list(backend.labelled(f"{RUN_LABEL}={backend.run}"))


@contextmanager
def a_backend() -> Iterator[DockerBackend]:
    backend = DockerBackend(f"test-{uuid4().hex[:12]}")
    try:
        yield backend
    finally:
        backend.remove_labelled({RUN_LABEL: backend.run})
        left = containers_of(backend)
        backend.close()
    assert not left


@pytest.fixture
def build(engine: APIClient) -> Iterator[Build]:
    """Builds images, and removes them when the containers are gone."""
    backend = DockerBackend("builds")
    built: list[str] = []

    def build(context: Path) -> str:
        # One of its own for each test: with several workers another test may be done with the same one.
        with (context / "Dockerfile").open("a") as file:
            file.write(f"# {uuid4().hex}\n")
        built.append(backend.image(None, context, "missing"))
        return built[-1]

    yield build
    for image in built:
        engine.remove_image(image, force=True)
    backend.close()


@pytest.fixture
def backend(build: Build) -> Iterator[DockerBackend]:
    with a_backend() as backend:
        yield backend


@pytest.fixture
def make_sandbox(backend: DockerBackend) -> MakeSandbox:
    def make(request: SandboxRequest | None = None) -> DockerSandbox:
        return backend.create(request or request_for())

    return make


@pytest.fixture
def sandbox(make_sandbox: MakeSandbox) -> DockerSandbox:
    """One of its own, for tests that change or break it."""
    return make_sandbox()


@pytest.fixture(scope="package")
def shared_sandbox() -> Iterator[DockerSandbox]:
    """One for all tests that leave it as it was."""
    with a_backend() as backend:
        yield backend.create(request_for())


@pytest.fixture
def engine() -> Iterator[APIClient]:
    """The SDK's own client, for what tests do behind the backend's back."""
    client = APIClient(timeout=30)
    yield client
    client.close()
