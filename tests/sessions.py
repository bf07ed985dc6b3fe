"""What tests that run whole sessions ask afterwards: for the records, and what is left on the engine."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from pytest_infranoise.journal import Run
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run

# A conftest with which a session does not wait long for an engine that is gone for good.
IMPATIENT = """
import pytest_infranoise.fixtures
import pytest_infranoise.sandboxes.container
import pytest_infranoise.trials.course
import pytest_infranoise.trials.runner

pytest_infranoise.fixtures._ENGINE_GRACE = 1.0
pytest_infranoise.sandboxes.container._ENGINE_PATIENCE = 1.0
pytest_infranoise.trials.course.READY_SECONDS = 1.0
pytest_infranoise.trials.runner.READY_SECONDS = 1.0
"""


def last_run(pytester: pytest.Pytester) -> Run:
    """Return the newest run of a test's sessions."""
    return read_run(find_run(pytester.path / ".infranoise" / "runs", None))


def check_nothing_left(directory: Path) -> None:
    """Check that no run below a directory left a container or a network."""
    client = docker.from_env()
    for run_dir in directory.glob(".infranoise/runs/*"):
        label: dict[str, str | list[str] | bool] = {"label": f"infranoise.run={run_dir.name}"}
        assert client.containers.list(all=True, filters=label, ignore_removed=True) == []
        assert client.networks.list(filters=label) == []
    client.close()
