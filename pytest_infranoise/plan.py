"""What a session is going to run, and what is wrong with it before anything starts.

Under xdist only workers collect, and an error raised in a worker reaches nobody; so the process that collects
writes the plan down, and the controller reads it and speaks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise import marked
from pytest_infranoise.checks import duplicates
from pytest_infranoise.collect import MARKED
from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.collect import TASK_FILES
from pytest_infranoise.collect import TrialSpec
from pytest_infranoise.collect import is_trial
from pytest_infranoise.collect import trial_specs
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.resource_configs import allocate
from pytest_infranoise.settings import Settings
from pytest_infranoise.settings import agents_help
from pytest_infranoise.settings_file import find_toml


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One trial, as far as the controller needs to know it."""

    nodeid: str
    key: TrialKey
    file: str
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task, as far as its image has to be there before the first trial."""

    name: str
    file: str
    image: str | None
    build: str | None
    pull: str
    build_timeout: float | None = None  # seconds
    network: bool = True
    content_hash: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All trials of a session and their tasks.

    ``problems`` are the user's mistakes, one line each: with any, nothing may start. ``broken`` counts task
    files that could not be loaded. ``collected`` names every task that was found, deselected ones included.
    ``notes`` is what a reader of the numbers has to know of the tasks.
    """

    trials: tuple[PlannedTrial, ...]
    tasks: tuple[PlannedTask, ...]
    collected: tuple[str, ...]
    skipped: Mapping[str, str]
    broken: int
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether the session has anything to do with us."""
        return bool(self.trials or self.collected or self.broken or self.problems)

    def write(self, path: Path) -> None:
        """Write the plan as JSON, all at once."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)), "ascii")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what ``write`` wrote."""
        data = json.loads(path.read_text("ascii"))
        return cls(
            trials=tuple(_trial(entry) for entry in data["trials"]),
            tasks=tuple(PlannedTask(**entry) for entry in data["tasks"]),
            collected=tuple(data["collected"]),
            skipped=data["skipped"],
            broken=data["broken"],
            problems=tuple(data["problems"]),
            notes=tuple(data["notes"]),
        )


def _trial(entry: Mapping[str, Any]) -> PlannedTrial:
    return PlannedTrial(
        entry["nodeid"], TrialKey.from_json(entry["key"]), entry["file"], Allocation(**entry["allocation"])
    )


def make_plan(session: pytest.Session) -> Plan:
    """Return the plan of what was collected and selected."""
    settings = session.config.stash[SETTINGS]
    files = session.stash.get(TASK_FILES, [])
    found = [*(file.task for file in files), *session.stash.get(MARKED, {}).values()]
    loaded = [task for task in found if isinstance(task, Task)]
    specs = trial_specs(session.items)
    agent_missing = bool(files) and not settings.agents and not _others_selected(session)
    problems = []
    if specs or agent_missing:
        problems += [*settings.toml_errors, *_repeated(session.items), *duplicates(loaded)]
        problems += _settings_problems(settings, loaded, agent_missing=agent_missing)
    trials = []
    allocations: dict[tuple[str, str], Allocation | None] = {}
    for nodeid, spec in specs.items():
        if spec.task.unsupported is not None:
            continue
        # Once for all samples and agents: there may be thousands.
        place = (spec.task.name, spec.config.name)
        if place not in allocations:
            try:
                allocations[place] = allocate(spec.task, spec.config)
            except ValueError as error:
                problems.append(str(error))
                allocations[place] = None
        allocation = allocations[place]
        if allocation is not None:
            trials.append(PlannedTrial(nodeid, spec.key, str(spec.task.file), allocation))
    problems += _unset_variables(list(specs.values()))
    agents_needed = [spec for spec in specs.values() if spec.agent is not marked.AGENT]
    problems += _agent_problems(session.config, settings, agents_needed)
    return Plan(
        trials=tuple(trials),
        tasks=_tasks(list(specs.values())),
        collected=tuple(sorted({task.name for task in loaded})),
        skipped={task.name: task.unsupported for task in loaded if task.unsupported},
        broken=len(found) - len(loaded),
        problems=tuple(dict.fromkeys(problems)),
        notes=(*_storage_notes(list(specs.values())), *_short_secrets(list(specs.values()))),
    )


def _others_selected(session: pytest.Session) -> bool:
    """Whether the user picked tests of which some are none of ours.

    Without an agent there are no trials to pick from, so nobody knows whether any was meant.
    """
    option = session.config.option
    return bool(option.keyword or option.markexpr) and not all(is_trial(item) for item in session.items)


def _repeated(items: Sequence[pytest.Item]) -> list[str]:
    """Return a line about the first trial that would run twice under one id."""
    seen = set()
    for item in items:
        if is_trial(item):
            if item.nodeid in seen:
                return [f"trial {item.nodeid} is selected twice; leave out --keep-duplicates"]
            seen.add(item.nodeid)
    return []


def _unset_variables(specs: Sequence[TrialSpec]) -> list[str]:
    from pytest_infranoise.tasks.host_environment import unset_variables

    tasks = {spec.task.name: spec.task for spec in specs if spec.task.unsupported is None}
    return [line for task in tasks.values() for line in unset_variables(task)]


def _storage_notes(specs: Sequence[TrialSpec]) -> tuple[str, ...]:
    limited = {spec.task.name for spec in specs if spec.task.storage is not None and spec.task.unsupported is None}
    if not limited:
        return ()
    return (f"storage limits of {len(limited)} {'task' if len(limited) == 1 else 'tasks'} are not enforced",)


def _short_secrets(specs: Sequence[TrialSpec]) -> tuple[str, ...]:
    from pytest_infranoise.agents.secrets import SHORTEST
    from pytest_infranoise.agents.secrets import unmaskable

    pairs = {(spec.agent.name, spec.task.name): spec for spec in specs if spec.task.unsupported is None}
    names = sorted({name for spec in pairs.values() for name in unmaskable(spec.agent, spec.task)})
    if not names:
        return ()
    values = f"the {'value' if len(names) == 1 else 'values'} of {', '.join(names)}"
    return (f"{values} can stand in logs and records: under {SHORTEST} characters nothing is masked",)


def _tasks(specs: Sequence[TrialSpec]) -> tuple[PlannedTask, ...]:
    tasks = {spec.task.name: spec.task for spec in specs if spec.task.unsupported is None}
    return tuple(
        PlannedTask(
            name=task.name,
            file=str(task.file),
            image=task.image,
            build=str(task.build) if task.build else None,
            pull=task.pull,
            build_timeout=task.build_timeout,
            network=task.network,
            content_hash=task.content_hash,
        )
        for task in tasks.values()
    )


def _settings_problems(settings: Settings, tasks: Sequence[Task], *, agent_missing: bool) -> list[str]:
    if settings.toml_errors:
        return []
    problems = []
    for task in tasks:
        nearest = find_toml(task.root.resolve())
        if nearest is not None and nearest != settings.toml:
            problems.append(
                f"{nearest}: applies to task {task.name!r} but not to the paths given to pytest; "
                f"give {nearest.parent} as the path instead"
            )
    if agent_missing and not problems:
        problems.append(
            f"no agent chosen; give --infranoise-agent, or `agent` in infranoise.toml; {agents_help(settings)}"
        )
    return problems


def _agent_problems(config: pytest.Config, settings: Settings, specs: Sequence[TrialSpec]) -> list[str]:
    from pytest_infranoise.agents.protocol import AgentContext
    from pytest_infranoise.agents.secrets import masker_for

    first = {(spec.agent.name, spec.task.name): spec for spec in reversed(specs) if spec.task.unsupported is None}
    problems = []
    for spec in reversed(first.values()):
        context = AgentContext(spec.agent, spec.task, spec.key, settings.seed)
        try:
            agent = config.hook.pytest_infranoise_make_agent(context=context)
        except ValueError as error:
            named = str(spec.task.file) in str(error) or repr(spec.agent.name) in str(error)
            told = masker_for(None, spec.agent, spec.task).text(str(error))
            problems.append(told if named else f"{spec.task.file}: agent {spec.agent.name!r}: {told}")
            continue
        except Exception as error:
            told = masker_for(None, spec.agent, spec.task).text(f"{type(error).__name__}: {error}")
            problems.append(f"agent {spec.agent.name!r}: making it failed: {told}")
            continue
        if agent is None:
            problems.append(_unknown_agent(settings, spec.agent))
        elif not all(callable(getattr(agent, name, None)) for name in ("setup", "run")):
            problems.append(
                f"agent {spec.agent.name!r}: pytest_infranoise_make_agent returned {type(agent).__name__!r}, which "
                "has no setup(sandbox) and run(instruction, sandbox)"
            )
    return problems


def _unknown_agent(settings: Settings, agent: AgentChoice) -> str:
    if agent.name in settings.named_agents:
        return (
            f"{settings.toml}: agents.{agent.name}.kind: {agent.kind!r} is no kind of agent; "
            "write command, oracle, nop or scripted, or install the plugin that makes it"
        )
    return f"unknown agent {agent.name!r}; {agents_help(settings)}"
