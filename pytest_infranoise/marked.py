"""Test functions with ``@pytest.mark.infranoise(image=..., cpus=..., memory=...)``: benchmarks written in Python.

Each runs as a matrix of resource configs and samples, by parametrising the fixture ``infranoise_sandbox``. What
other fixtures do with the container is the trial's setup phase; the function itself is its agent and its verifier.
A failed assertion is a fail unless there is evidence of an infrastructure cause, and any other exception is no
verdict. The hooks below are registered by the first function that is marked, so that others never call them.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise.collect import MARKED
from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.collect import SPEC
from pytest_infranoise.collect import TrialSpec
from pytest_infranoise.collect import describe
from pytest_infranoise.fixtures import PROCESS
from pytest_infranoise.fixtures import NotRun
from pytest_infranoise.fixtures import mistakes_told
from pytest_infranoise.fixtures import skip_if_stopped
from pytest_infranoise.fixtures import trial_context
from pytest_infranoise.journal import artifacts_dir
from pytest_infranoise.journal import shown
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Record
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import MASKER
from pytest_infranoise.outcomes import RECORD
from pytest_infranoise.outcomes import InfraError
from pytest_infranoise.outcomes import add_properties

if TYPE_CHECKING:
    from pytest_infranoise.sandboxes.protocol import Backend
    from pytest_infranoise.sandboxes.protocol import Sandbox
    from pytest_infranoise.trials.function import FunctionTrial
    from pytest_infranoise.trials.function import Outcome

MARK = "infranoise"
FIXTURE = "infranoise_sandbox"
AGENT = AgentChoice("python", kind="marked-function")

_HOOKS = "infranoise-marked"
_TRIAL = pytest.StashKey["FunctionTrial"]()
# What says nothing about how the trial ended; the trial is missing then, which is told at the end.
_NO_END = (KeyboardInterrupt, pytest.exit.Exception, pytest.skip.Exception)


@dataclass(frozen=True, slots=True)
class _Point:
    """What the fixture of one item is parametrised with."""

    task: Task
    config: ResourceConfig
    sample: int

    @property
    def id(self) -> str:
        return f"{self.config.name}-{self.sample}"


def concerns(metafunc: pytest.Metafunc) -> bool:
    """Whether a function is marked, or takes the fixture that needs a mark."""
    return FIXTURE in metafunc.fixturenames or metafunc.definition.get_closest_marker(MARK) is not None


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make an item for each config and sample.

    Raises:
        CollectError: the mark has mistakes.
    """
    from pytest_infranoise.tasks.errors import TaskError

    definition = metafunc.definition
    try:
        task = _load(metafunc)
    except TaskError as error:
        definition.session.stash.setdefault(MARKED, {})[definition.nodeid] = error
        raise pytest.Collector.CollectError(str(error)) from None
    if not metafunc.config.pluginmanager.hasplugin(_HOOKS):
        metafunc.config.pluginmanager.register(MarkedHooks(), _HOOKS)
    settings = metafunc.config.stash[SETTINGS]
    points = [_Point(task, config, sample) for config in settings.configs for sample in range(settings.samples)]
    metafunc.parametrize(FIXTURE, points, indirect=True, ids=[point.id for point in points])


def _load(metafunc: pytest.Metafunc) -> Task:
    from pytest_infranoise.tasks.errors import TaskError
    from pytest_infranoise.tasks.marks import load_mark

    definition = metafunc.definition
    file, name = definition.path, definition.nodeid.partition("::")[2]
    marks = list(definition.iter_markers(MARK))
    example = f"@pytest.mark.{MARK}(image='debian:bookworm-slim', cpus=1, memory='512M')"
    if not marks:
        raise TaskError(file, name, f"takes {FIXTURE} without a mark that says of what", f"add {example}")
    if FIXTURE not in metafunc.fixturenames:
        raise TaskError(
            file, name, f"is marked with {MARK} and does not take {FIXTURE}", f"add the argument {FIXTURE}"
        )
    if any(mark.args for mark in marks):
        raise TaskError(file, name, f"{MARK} takes no positional arguments", f"write {example}")
    instruction = inspect.getdoc(metafunc.function) or ""
    # The nearest mark wins, argument by argument: those of module and class are defaults.
    arguments: Mapping[str, Any] = {key: value for mark in reversed(marks) for key, value in mark.kwargs.items()}
    return load_mark(file, name, arguments, instruction)


@pytest.fixture
def infranoise_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The container of a test that is marked with infranoise(image=..., cpus=..., memory=...)."""
    from pytest_infranoise.agents.secrets import masker_for
    from pytest_infranoise.resource_configs import make_trial
    from pytest_infranoise.trials.function import FunctionTrial

    item, config = request.node, request.config
    if not isinstance(getattr(request, "param", None), _Point):
        pytest.fail(f"{FIXTURE} has to be an argument of a test with @pytest.mark.{MARK}", pytrace=False)
    spec, process = item.stash[SPEC], config.stash[PROCESS]
    skip_if_stopped(process, spec.task)
    item.stash[MASKER] = masker_for(None, spec.agent, spec.task)
    backend: Backend = request.getfixturevalue("infranoise_backend")
    trial = FunctionTrial(
        make_trial(spec.key, spec.task, spec.config, spec.agent),
        trial_context(config, process, backend),
        process.past.attempt(spec.key),
    )
    with contextlib.closing(trial):
        try:
            with mistakes_told(process, spec.task):
                record = trial.begin()
        except NotRun:
            skip_if_stopped(process, spec.task)
            raise
        _conclude(item, trial, record)
        item.stash[_TRIAL] = trial
        yield trial.sandbox
    if trial.leaked:
        warnings.warn(f"the container of {spec.key} could not be removed yet", stacklevel=1)


class MarkedHooks:
    """What marked functions need of pytest beside the fixture."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Say of each item which trial it is; before anything is selected by that."""
        for item in items:
            point = getattr(item, "callspec", None) and item.callspec.params.get(FIXTURE)  # type: ignore[attr-defined]
            if isinstance(point, _Point):
                _describe(item, point)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Judge a trial for which something could not be made ready."""
        try:
            yield
        except _NO_END:
            raise
        except BaseException as error:
            trial = item.stash.get(_TRIAL, None)
            if trial is not None:
                _conclude(item, trial, trial.work(error))
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Judge a trial by how its function ended."""
        trial = item.stash.get(_TRIAL, None)
        if trial is None:
            return (yield)
        from pytest_infranoise.trials.function import Outcome

        with mistakes_told(item.config.stash[PROCESS], item.stash[SPEC].task):
            record = trial.work()
        _conclude(item, trial, record)
        try:
            yield
        except _NO_END:
            raise
        except BaseException as error:
            _conclude(item, trial, trial.finish(_outcome(error)))
            raise
        _conclude(item, trial, trial.finish(Outcome(1.0)))
        return None


def _describe(item: pytest.Item, point: _Point) -> None:
    # The user's own parameters make tasks of their own; ours are the end of the id.
    place = item.parent.nodeid if item.parent is not None else ""
    name = f"{place}::{item.name}".removesuffix(f"{point.id}]").removesuffix("-")
    name = name.removesuffix("[") if name.endswith("[") else f"{name}]"
    task = replace(point.task, name=name, unsupported=_skip_reason(item))
    item.session.stash.setdefault(MARKED, {})[name] = task
    key = TrialKey(AGENT.name, "", name, point.config.name, point.sample)
    describe(item, TrialSpec(key, task, point.config, AGENT))


def _skip_reason(item: pytest.Item) -> str | None:
    """Return why pytest is going to skip an item: such a trial is not planned."""
    if item.get_closest_marker("skip") is None and item.get_closest_marker("skipif") is None:
        return None
    from _pytest.skipping import evaluate_skip_marks  # private, but only pytest knows what a condition means

    try:
        skipped = evaluate_skip_marks(item)
    except pytest.fail.Exception:  # a condition that is no condition: pytest tells when it runs the item
        return None
    return skipped.reason if skipped is not None else None


def _outcome(error: BaseException) -> Outcome:
    from pytest_infranoise.trials.function import Outcome

    failed = isinstance(error, AssertionError | pytest.fail.Exception)
    return Outcome(0.0 if failed else None, error)


def _conclude(item: pytest.Item, trial: FunctionTrial, record: Record | None) -> None:
    """Take in the record of a trial that is over.

    Raises:
        InfraError: it is an infra-error.
    """
    if record is None:
        return
    process = item.config.stash[PROCESS]
    item.stash[RECORD] = record
    add_properties(item, record)
    process.ended(record)
    if record.verdict is not Verdict.INFRA_ERROR:
        return
    error = InfraError(record)
    if trial.traceback is not None:
        file = artifacts_dir(process.run_dir, record.key, record.attempt) / "traceback.txt"
        file.write_text(trial.traceback, "utf-8", "backslashreplace")
        error.args = (f"{error} (traceback: {shown(file)})",)
    raise error
