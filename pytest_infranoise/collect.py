"""Task directories as pytest collectors, and trials as items.

A task directory is a ``pytest.File``: pytest then neither descends into it nor imports a conftest from it, so
tests that are meant for the container never run on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy
import pytest

from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Record
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import failure_text
from pytest_infranoise.settings import Settings

SETTINGS = pytest.StashKey[Settings]()
SPEC = pytest.StashKey["TrialSpec"]()
TASK_FILES = pytest.StashKey["list[TaskFile | Instance]"]()
# Of marked test functions: the task of each by its name, or what was wrong with it.
MARKED = pytest.StashKey["dict[str, Task | Exception]"]()


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """What one item stands for."""

    key: TrialKey
    task: Task
    config: ResourceConfig
    agent: AgentChoice


class TrialFailed(Exception):
    """The agent failed the task."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"{record.reason}: {record.summary}")
        self.record = record


class TaskDirectory(pytest.File):
    """A task's directory; nothing in it but its task file is pytest's business."""

    task: Task | Exception

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the conftest files around; pytest knows those only of directories that it enters itself."""
        return self.session.gethookproxy(self.path.parent)

    def collect(self) -> Iterator[TaskFile]:
        """Yield the one task file."""
        file = getattr(self.task, "file", self.path / "task.yaml")
        # A mistake may be in another of the task's files.
        file = file if file.name in ("task.yaml", "task.toml") else self._task_file()
        yield TaskFile.from_parent(self, path=file, task=self.task)

    def _task_file(self) -> Path:
        other = self.path / "task.toml"
        return other if other.is_file() and not (self.path / "task.yaml").is_file() else self.path / "task.yaml"


class TaskFile(pytest.File):
    """A task; its items are its trials."""

    def __init__(self, *, task: Task | Exception, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the conftest files around the task's directory."""
        return super().ihook if self.parent is None else self.parent.ihook

    def collect(self) -> Iterator[TrialItem]:
        """Yield one item for each agent, config and sample.

        Raises:
            CollectError: the task file has mistakes.
        """
        yield from _collect_task(self)


class InstancesFile(pytest.File):
    """A JSON lines file of SWE-bench instances: a task in each line."""

    def collect(self) -> Iterator[Instance]:
        """Yield the task of each line.

        Raises:
            CollectError: the file cannot be read.
        """
        from pytest_infranoise.tasks import swebench
        from pytest_infranoise.tasks.errors import TaskError

        try:
            for line in swebench.load(self.path, self.config.stash[SETTINGS].defaults):
                yield Instance.from_parent(self, name=line.label, task=line.task)
        except TaskError as error:
            raise self.CollectError(str(error)) from None


class Instance(pytest.Collector):
    """One task of several in a file; its items are its trials."""

    def __init__(self, *, task: Task | Exception, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task = task

    def collect(self) -> Iterator[TrialItem]:
        """Yield one item for each agent, config and sample.

        Raises:
            CollectError: the line has mistakes.
        """
        yield from _collect_task(self)


def _collect_task(node: TaskFile | Instance) -> Iterator[TrialItem]:
    node.session.stash.setdefault(TASK_FILES, []).append(node)
    if isinstance(node.task, Exception):
        raise node.CollectError(str(node.task))
    yield from _items(node, node.task, node.config.stash[SETTINGS])


def _items(node: TaskFile | Instance, task: Task, settings: Settings) -> Iterator[TrialItem]:
    shared: Any = None
    for agent in settings.agents:
        for config in settings.configs:
            for sample in range(settings.samples):
                key = TrialKey(agent.name, agent.model or "", task.name, config.name, sample)
                name = f"{config.name}-{sample}"
                item: TrialItem = TrialItem.from_parent(
                    node,
                    name=name if len(settings.agents) == 1 else f"{agent.name}-{name}",
                    callobj=check_verdict,
                    fixtureinfo=shared,
                )
                # One for all: resolving fixtures anew for every trial doubles the time of collection.
                shared = item._fixtureinfo
                describe(item, TrialSpec(key, task, config, agent))
                yield item


class TrialItem(pytest.Function):
    """One trial. It runs in the setup phase, in a fixture; the call phase only looks at the verdict."""

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the conftest files around its task's directory."""
        return super().ihook if self.parent is None else self.parent.ihook

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return what reports call this item."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return a trial's own words; a traceback only for what is a bug."""
        if isinstance(excinfo.value, TrialFailed):
            return failure_text(self, excinfo.value.record)
        return super().repr_failure(excinfo)


@functools.cache
def _trial_mark() -> pytest.MarkDecorator:
    """Return the mark of all trials; looking it up anew for each is a fifth of what an item costs."""
    return pytest.mark.infranoise


def describe(item: pytest.Item, spec: TrialSpec) -> None:
    """Attach what an item stands for, and make it selectable by it."""
    item.stash[SPEC] = spec
    key = spec.key
    mark = _trial_mark().with_args(task=key.task, config=key.config, sample=key.sample, agent=key.agent)
    item.add_marker(mark)
    for tag in spec.task.tags:
        item.add_marker(pytest.mark.infranoise_tag(name=tag))
        item.extra_keyword_matches.add(tag)
    if spec.task.unsupported:
        item.add_marker(pytest.mark.skip(reason=spec.task.unsupported))
    if item.config.pluginmanager.hasplugin("rerunfailures"):
        # A rerun would turn a failed trial into a passed one; in front of any mark of the function's own.
        item.add_marker(pytest.mark.flaky(reruns=0), append=False)


def check_verdict(infranoise_trial: Record) -> None:
    """Let the item pass when its trial did.

    Raises:
        TrialFailed: the agent failed the task.
    """
    if infranoise_trial.verdict is not Verdict.PASS:
        raise TrialFailed(infranoise_trial)


def is_trial(item: pytest.Item) -> bool:
    """Whether an item is one of ours."""
    return SPEC in item.stash


def trial_specs(items: Sequence[pytest.Item]) -> dict[str, TrialSpec]:
    """Return the trials among the items by node id, in order."""
    return {item.nodeid: item.stash[SPEC] for item in items if is_trial(item)}


def shuffle(items: list[pytest.Item], config: pytest.Config) -> None:
    """Put the trials among the items in the order to run them in; other items keep their places."""
    places = [index for index, item in enumerate(items) if is_trial(item)]
    trials = [items[index] for index in places]
    order = _order([trial.stash[SPEC] for trial in trials], config) if trials else []
    for place, chosen in zip(places, order, strict=True):
        items[place] = trials[chosen]


def _order(specs: Sequence[TrialSpec], config: pytest.Config) -> list[int]:
    """Return the order of trials; a worker's is only what sorting by outcome starts from."""
    from pytest_infranoise.scheduler.order import shuffled

    settings = config.stash[SETTINGS]
    if settings.schedule.order == "shuffled" or hasattr(config, "workerinput"):
        return shuffled([spec.key for spec in specs], settings.seed)
    from pytest_infranoise.scheduler.plain import plain_order

    return plain_order([(spec.key, spec.task, spec.config) for spec in specs], settings, config)


def collect_directory(path: Path, parent: pytest.Collector) -> TaskDirectory | None:
    """Return the collector of a task directory; None for any other directory."""
    try:
        task = parent.config.hook.pytest_infranoise_load_task(path=path, config=parent.config)
    except Exception as error:
        task = error
    if task is None:
        return None
    directory: TaskDirectory = TaskDirectory.from_parent(parent, path=path)
    directory.task = task
    return directory


def collect_file(path: Path, parent: pytest.Collector) -> InstancesFile | None:
    """Return the collector of a file of SWE-bench instances; None for any other file.

    Such a file may well be the test data of somebody who never heard of us: it must be given by name, or lie
    beside an ``infranoise.toml``.
    """
    if not (parent.session.isinitpath(path) or (path.parent / "infranoise.toml").is_file()):
        return None
    from pytest_infranoise.tasks import swebench

    return InstancesFile.from_parent(parent, path=path) if swebench.is_instances(path) else None
