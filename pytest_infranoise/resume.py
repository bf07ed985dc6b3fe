"""Going on with a run in its own directory: what it was begun with holds, and nothing that contradicts it.

A run's numbers mean something only if every trial under one config name had the same floors and ceilings, under
one agent's name the same agent, and was judged by the same rules, whenever and in whichever session it ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.agent_identity import agent_entry
from pytest_infranoise.agent_identity import agent_words
from pytest_infranoise.agent_identity import same_agent
from pytest_infranoise.breakers import recent_ends
from pytest_infranoise.config_grammar import built_in
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import parse_config
from pytest_infranoise.config_identity import config_words
from pytest_infranoise.config_identity import same_config
from pytest_infranoise.journal import RUN_SCHEMA
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import RunNotFound
from pytest_infranoise.journal import ending_file
from pytest_infranoise.journal import file_name
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import stop_file
from pytest_infranoise.past import Past
from pytest_infranoise.past import past_file
from pytest_infranoise.past import past_of
from pytest_infranoise.run_lock import RunLock
from pytest_infranoise.run_lock import take_over
from pytest_infranoise.settings import Settings
from pytest_infranoise.settings import runs_dir_of
from pytest_infranoise.settings_file import SettingsFile
from pytest_infranoise.settings_file import read_settings_file

LAST = "last"
# How long the workers of a session that was killed may take to notice, and to remove their containers.
WORKERS_SECONDS = 60.0
_SAME_MEMORY = 0.01  # the kernel's own part differs a little from boot to boot


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that this session goes on with, and holds the lock of.

    ``adopted`` are the options that the user left to the run.
    """

    path: Path
    run: Run
    session: int
    past: Past
    lock: RunLock
    adopted: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.run.meta.get("run", self.path.name))


def resume(config: pytest.Config) -> Resumed:
    """Find and take the run that is to be resumed, and let it fill in the options that were not typed.

    Raises:
        pytest.UsageError: there is no such run, somebody else is at work on it, or it cannot be resumed.
    """
    name = config.option.infranoise_resume
    try:
        path = find_run(runs_dir_of(config), None if name == LAST else name).resolve()
        lock = _lock(path)
    except (RunNotFound, ValueError) as error:
        raise pytest.UsageError(f"--infranoise-resume: {error}") from None
    try:
        run = read_run(path)
        _check_resumable(path, run.meta, config)
        paths = (Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args)
        adopted = adopted_options(config.option, run.meta, read_settings_file(paths))
        past = past_of(run, rerun_infra=config.option.infranoise_rerun_infra)
        session = len(run.meta.get("sessions") or [None]) + 1
        if not config.option.collectonly:
            past.write(past_file(path, session))
    except (RunNotFound, ValueError) as error:
        lock.release()
        raise pytest.UsageError(f"--infranoise-resume {name}: {error}") from None
    except OSError as error:
        lock.release()
        raise pytest.UsageError(f"--infranoise-resume: {path} cannot be written to: {error}") from None
    except BaseException:
        lock.release()
        raise
    adopt(config.option, adopted)
    return Resumed(path, _light(run), session, past, lock, adopted)


def _light(run: Run) -> Run:
    """Return a run without the evidence: it is held in memory for as long as the session goes on."""
    records, retries, set_aside = (
        tuple(replace(record, details={}) for record in part) for part in (run.records, run.retries, run.set_aside)
    )
    return replace(run, records=records, retries=retries, set_aside=set_aside)


def adopt(option: Any, adopted: Mapping[str, Any]) -> None:
    """Set options as the run has them."""
    for name, value in adopted.items():
        setattr(option, name, value)


def _lock(path: Path) -> RunLock:
    try:
        lock = take_over(path, WORKERS_SECONDS)
    except OSError as error:
        raise ValueError(f"{path} cannot be locked, so another session might be at work on it: {error}") from None
    if lock is None:
        raise ValueError(f"another session is at work on {path}; wait for its end, or end it")
    return lock


def _check_resumable(path: Path, meta: Mapping[str, Any], config: pytest.Config) -> None:
    if meta.get("schema") != RUN_SCHEMA:
        raise ValueError(f"{path}: its schema is {meta.get('schema')!r}, this version goes on with {RUN_SCHEMA}")
    if meta.get("parts"):
        raise ValueError(f"{path} was merged; resume the runs it was made of, and merge them again")
    for name, option in (("lf", "--lf"), ("stepwise", "--sw")):
        if getattr(config.option, name, False):
            raise ValueError(f"leave out {option}: what has no record is run, whatever the outcome of the rest was")


def clear_marks(path: Path, quarantined: Iterable[str]) -> None:
    """Forget why trials were not to start: whoever resumes has seen to that, or meets it again.

    Args:
        path: the run's directory.
        quarantined: tasks that stay in quarantine.
    """
    for mark in (stop_file(path), ending_file(path), recent_ends(path)):
        mark.unlink(missing_ok=True)
    kept = {file_name(task) for task in quarantined}
    for mark in (path / "quarantine").glob("*"):
        if mark.name not in kept:
            mark.unlink(missing_ok=True)


# What the run fills in


def adopted_options(option: Any, meta: Mapping[str, Any], file: SettingsFile) -> dict[str, Any]:
    """Return the options as they have to be for the run to go on: its own, and what the user adds to them.

    Raises:
        ValueError: the run does not say what it was begun with.
    """
    adopted: dict[str, Any] = {
        "resource_config": _configs(option.resource_config or (), meta, file),
        "infranoise_agent": _agents(option.infranoise_agent or (), meta, file) or None,
    }
    defaults, policy, schedule = (meta.get(key) or {} for key in ("defaults", "policy", "schedule"))
    asked_reserve = policy.get("memory_reserve_asked")
    for name, value in (
        ("infranoise_samples", meta.get("samples")),
        ("infranoise_seed", meta.get("seed")),
        ("infranoise_pass_threshold", meta.get("pass_threshold")),
        ("infranoise_gate", list(meta.get("gates") or ()) or None),
        ("infranoise_shard", meta.get("shard")),
        ("infranoise_baseline", meta.get("baseline")),
        *((f"infranoise_{name}", value) for name, value in _design(meta).items()),
        *((f"infranoise_{name}", policy.get(name)) for name in ("oom_child", "oom_mode", "retries")),
        ("infranoise_memory_reserve", str(policy.get("memory_reserve") or 0) if asked_reserve else None),
        ("infranoise_allow_host_port", _ports(meta)),
        ("infranoise_order", schedule.get("order")),
        ("infranoise_admit", schedule.get("admit")),
        ("infranoise_host_cpus", _given(schedule.get("host_cpus"))),
        ("infranoise_host_memory", _given(schedule.get("host_memory"))),
        ("infranoise_default_cpus", _range(defaults.get("cpus"))),
        ("infranoise_default_memory", _range(defaults.get("memory"))),
    ):
        if getattr(option, name) is None and value is not None:
            adopted[name] = value
    return adopted


def _design(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was decided before the run, as it is typed."""
    design = dict(meta.get("design") or {})
    # In points there; rounded, so that 0.03 comes out as 3 and not as a neighbour of it.
    return {name: round(100 * value, 7) if name == "margin" else value for name, value in design.items()}


def _ports(meta: Mapping[str, Any]) -> str | None:
    policy, isolation = meta.get("policy") or {}, meta.get("isolation") or {}
    allowed = policy.get("allow_host_port", isolation.get("allowed_host_ports")) or ()
    return ",".join(map(str, allowed)) or None


def _given(number: float | None) -> str | None:
    return None if number is None else f"{number!r}"


def _range(ends: Sequence[float] | None) -> str | None:
    return None if ends is None else _text(ends)


def _text(ends: Sequence[float]) -> str:
    return "..".join(f"{end!r}" for end in ends)


def _configs(typed: Sequence[str], meta: Mapping[str, Any], file: SettingsFile) -> list[str]:
    given = {}
    for value in typed:
        for text in [value] if ":" in value else value.split(","):
            given[parse_config(text, file.configs).name] = text
    texts = []
    for entry in meta.get("configs", ()):
        name = entry["name"]
        known = name in file.configs or built_in(name) is not None
        texts.append(given.pop(name, name if known else entry["option"]))
    return [*texts, *given.values()]


def _agents(typed: Sequence[str], meta: Mapping[str, Any], file: SettingsFile) -> list[str]:
    named = file.values.get("agents", {})
    given = {text.partition(":")[0] if text.strip() not in named else text.strip(): text for text in typed}
    texts = []
    for entry in meta.get("agents", ()):
        if entry.get("kind") == "marked-function":
            continue
        name = entry["name"]
        text = name
        if name == "command" and name not in named and name not in given:
            if not entry.get("command"):
                raise ValueError(
                    "the command of agent 'command' is not in run.json, because it may hold a secret; give it "
                    "again: --infranoise-agent 'command:TEXT'"
                )
            text = f"command:{entry['command']}"
        texts.append(given.pop(name, text))
    return [*texts, *given.values()]


# What must not contradict it


def contradictions(settings: Settings, meta: Mapping[str, Any]) -> list[str]:
    """Return in what the settings are not those that the run was begun with, a line each, with both values."""
    return [*_config_contradictions(settings, meta), *_other_contradictions(settings, meta)]


def _config_contradictions(settings: Settings, meta: Mapping[str, Any]) -> Iterator[str]:
    now = {config.name: describe_config(config) for config in settings.configs}
    for entry in meta.get("configs", ()):
        mine = now.get(entry["name"])
        if mine is not None and not same_config(entry, mine):
            yield (
                f"resource config {entry['name']!r} is {config_words(mine)} and was {config_words(entry)} when the "
                "run began; give the new one another name"
            )


def _other_contradictions(settings: Settings, meta: Mapping[str, Any]) -> Iterator[str]:
    agents = {agent.name: agent_entry(agent) for agent in settings.agents}
    for entry in meta.get("agents", ()):
        mine = agents.get(entry["name"])
        if mine is not None and not same_agent(entry, mine):
            yield (
                f"agent {entry['name']!r} is {agent_words(mine)} and was {agent_words(entry)} when the run began; "
                "give the new one a name of its own"
            )
    samples = int(meta.get("samples") or 0)
    if settings.samples < samples:
        yield f"--infranoise-samples is {settings.samples} and was {samples}; samples can only be added"
    design, fixed = _design({"design": asdict(settings.design)}), _design(meta)
    for name in fixed:
        if design.get(name) != fixed[name]:
            option = f"--infranoise-{name.replace('_', '-')}"
            yield f"{option} is {design.get(name)} and was {fixed[name]} when the run began"
    shard, before = settings.shard and str(settings.shard), meta.get("shard")
    defaults: Mapping[str, Any] = meta.get("defaults") or {}
    policies = settings.policies
    policy: Mapping[str, Any] = {"oom_child": policies.oom_child, "oom_mode": policies.oom_mode}
    policy_before = {**policy, **(meta.get("policy") or {})}
    schedule, chosen = meta.get("schedule") or {}, settings.schedule
    for option, value, old in (
        *((f"--infranoise-{name.replace('_', '-')}", policy[name], policy_before[name]) for name in policy),
        ("--infranoise-seed", settings.seed, meta.get("seed", settings.seed)),
        ("--infranoise-pass-threshold", settings.pass_threshold, meta.get("pass_threshold", 1.0)),
        ("--infranoise-baseline", settings.baseline.name, meta.get("baseline") or settings.baseline.name),
        ("--infranoise-shard", shard, before if "shard" in meta else shard),
        ("--infranoise-order", chosen.order, schedule.get("order", chosen.order)),
        ("--infranoise-admit", chosen.admit, schedule.get("admit", chosen.admit)),
        ("--infranoise-default-cpus", _plain(settings.defaults.cpus), _plain(defaults.get("cpus"))),
        ("--infranoise-default-memory", _plain(settings.defaults.memory), _plain(defaults.get("memory"))),
    ):
        if value != old and not (option.startswith("--infranoise-default") and old is None):
            yield f"{option} is {_word(value)} and was {_word(old)} when the run began"


def _plain(ends: Sequence[float] | None) -> list[float] | None:
    return None if ends is None else list(ends)


def _word(value: Any) -> str:
    return "not given" if value is None else _text(value) if isinstance(value, list) else f"{value}"


def engine_contradictions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in what an engine does not give the same floors and ceilings as the one that the run began on."""
    found = [
        f"{words} is {now.get(name)} and was {before.get(name)}"
        for name, words in (("cgroup_version", "the engine's cgroup version"), ("cpus", "its number of CPUs"))
        if name in before and before[name] != now.get(name)
    ]
    memory = before.get("memory")
    if memory and abs(int(now.get("memory", 0)) - memory) > _SAME_MEMORY * memory:
        found.append(f"its memory is {now.get('memory')} bytes and was {memory}")
    return found
