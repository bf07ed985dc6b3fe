"""The matrix of faults is opted in, because it takes minutes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_infranoise.model import Record
from tests.faults.expected import FAULTS
from tests.faults.outcomes import chains_left
from tests.faults.outcomes import judged_as
from tests.faults.outcomes import networks_of
from tests.faults.outcomes import own_children
from tests.faults.outcomes import stray_chains
from tests.faults.outcomes import what_is_left
from tests.faults.table import PROPERTY
from tests.trials.lab import Lab

OPT_IN = "INFRANOISE_FAULTS"
_SKIPPED = f"the matrix of faults was NOT run: set {OPT_IN}=1"

Judge = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(OPT_IN):
        return
    for item in items:
        if item.path.parent == Path(__file__).parent and "judge" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=_SKIPPED))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    from pytest_infranoise.sandboxes.docker import DockerBackend

    run = f"fault-{os.getpid()}-{os.urandom(3).hex()}"
    backend = DockerBackend(run)
    chains = stray_chains()
    yield Lab(tmp_path, backend, run)
    backend.remove_labelled({"infranoise.run": run})
    backend.close()
    assert networks_of(run) + chains_left(chains) == []


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Injects a fault, compares what became of the trial with the table, and looks for what was left behind."""

    def judge(fault: str, inject: Callable[[], Record | str], run: str | Callable[[], str]) -> None:
        expected = FAULTS[fault]
        children = own_children()
        got, containers = judged_as(inject)
        request.node.user_properties.append((PROPERTY, json.dumps([fault, str(got)])))
        # What is named only afterwards is a session of its own, which is over by then; a lab has yet to end, and
        # looks for networks and packet filter rules itself.
        over = not isinstance(run, str)
        run_id = run if isinstance(run, str) else run()
        left = what_is_left(run_id, containers, sweep="leaked" in got.flags, over=over)
        left += [f"child process {child}" for child in own_children() - children]
        assert left == []
        wrong = got.differs_from(expected)
        assert not wrong, f"{fault}: {wrong}: {got.summary}"

    return judge
