from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trials.lab import BASE
from tests.trials.lab import Lab
from tests.trials.lab import containers_of


def _unavailable() -> str | None:
    if shutil.which("docker") is None:
        return "no docker command"
    done = subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, text=True, timeout=60)
    return f"no engine with the image {BASE}: {done.stderr.strip()}" if done.returncode else None


@pytest.fixture(scope="session")
def engine() -> None:
    reason = _unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def lab(engine: None, tmp_path: Path) -> Iterator[Lab]:
    from pytest_infranoise.sandboxes.docker import DockerBackend

    run = f"test-{os.getpid()}-{os.urandom(3).hex()}"
    backend = DockerBackend(run)
    lab = Lab(tmp_path, backend, run)
    yield lab
    left = containers_of(run)
    backend.remove_labelled({"infranoise.run": run})
    backend.close()
    assert not left
