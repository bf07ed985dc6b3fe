"""Options, ini values and ``infranoise.toml`` -> one frozen ``Settings``, read once per process.

A value is taken from the command line, else from pytest's ini file, else from the nearest ``infranoise.toml``
(or ``[tool.infranoise]`` in a ``pyproject.toml``) above the paths given to pytest, else from the defaults.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import TypeVar

import pytest

from pytest_infranoise.config_grammar import DEFAULT_CONFIGS
from pytest_infranoise.config_grammar import UnknownConfig
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.design import Design
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.policies import DEFAULT_POLICIES
from pytest_infranoise.policies import Policies
from pytest_infranoise.settings_design import DESIGN
from pytest_infranoise.settings_design import add_design_options
from pytest_infranoise.settings_design import read_baseline
from pytest_infranoise.settings_design import read_design
from pytest_infranoise.settings_file import SettingsFile
from pytest_infranoise.settings_file import read_settings_file
from pytest_infranoise.settings_policies import add_policy_options
from pytest_infranoise.settings_policies import read_policies
from pytest_infranoise.settings_schedule import DEFAULT_SCHEDULE
from pytest_infranoise.settings_schedule import ScheduleSettings
from pytest_infranoise.settings_schedule import add_options as add_schedule_options
from pytest_infranoise.settings_schedule import read_schedule
from pytest_infranoise.settings_values import option_name
from pytest_infranoise.settings_values import scalar
from pytest_infranoise.settings_values import told
from pytest_infranoise.shards import Shard
from pytest_infranoise.shards import parse_shard
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.defaults import parse_cpus
from pytest_infranoise.tasks.defaults import parse_memory_range

T = TypeVar("T")

MOST_SAMPLES = 10_000  # each is a pytest item for every task and config
DEFAULT_RUNS_DIR = ".infranoise/runs"
_OUTCOME_OPTIONS = (
    ("lf", "--lf"),
    ("stepwise_skip", "--sw-skip"),  # these two set stepwise as well
    ("stepwise_reset", "--sw-reset"),
    ("stepwise", "--sw"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the user chose.

    ``agents`` is empty when nobody chose one. ``toml_errors`` are mistakes in ``infranoise.toml``, in what it
    should define, or in ini values: they concern nobody as long as no trial is selected. ``outcome_selection``
    names the option that picks tests by earlier outcomes, which makes every rate something else than an estimate.
    """

    configs: tuple[ResourceConfig, ...]
    samples: int
    agents: tuple[AgentChoice, ...]
    named_agents: tuple[str, ...]
    seed: int
    gates: tuple[str, ...]
    runs_dir: Path
    pass_threshold: float
    toml: Path | None
    toml_errors: tuple[str, ...]
    outcome_selection: str | None
    defaults: DefaultResources = NO_DEFAULTS
    preflight: bool = False
    design: Design = DESIGN
    baseline_name: str = ""
    shard: Shard | None = None
    schedule: ScheduleSettings = DEFAULT_SCHEDULE
    policies: Policies = DEFAULT_POLICIES

    @property
    def baseline(self) -> ResourceConfig:
        """The config that changes refer to."""
        return next((config for config in self.configs if config.name == self.baseline_name), self.configs[0])


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin."""
    group = parser.getgroup("infranoise", "infranoise: benchmark tasks under resource floors and ceilings")
    group.addoption(
        "--resource-config",
        action="append",
        metavar="CONFIGS",
        help="Resource configs to run every task under, as a comma list: Kx (floor 1x, ceiling K times the task's "
        "spec), uncapped, task (floor and ceiling that the task states) or a [configs.NAME] of infranoise.toml; or "
        "one of your own, e.g. ram:memory=1x..5x,cpus=1x..2,time=1.5x (resources left out are 1x..1x). Repeatable. "
        f"The first is the baseline, unless --infranoise-baseline names another. Default: "
        f"{','.join(DEFAULT_CONFIGS)}.",
    )
    group.addoption("--infranoise-samples", type=int, metavar="N", help="trials per task and config (default: 3)")
    group.addoption(
        "--infranoise-agent",
        action="append",
        metavar="AGENT",
        help="Agent to run: oracle, nop, scripted, command:TEXT, or one named in infranoise.toml. Repeatable.",
    )
    group.addoption(
        "--infranoise-seed",
        type=int,
        metavar="N",
        help="seed of the trial order and of the scripted agent (default: random, recorded)",
    )
    group.addoption(
        "--infranoise-gate",
        action="append",
        metavar="GATE",
        help="Condition that decides the exit status (20 when it does not hold), e.g. 'infra-rate[3x] <= 5%%', "
        "'lower(pass-rate[3x]) >= 40%%' or 'missing <= 0'. Repeatable.",
    )
    group.addoption(
        "--infranoise-run-dir",
        metavar="DIR",
        help=f"directory in which every run gets a directory of its own (default: {DEFAULT_RUNS_DIR})",
    )
    group.addoption(
        "--infranoise-pass-threshold",
        type=float,
        metavar="REWARD",
        help="smallest reward that is a pass (default: 1)",
    )
    group.addoption(
        "--infranoise-default-cpus",
        metavar="CPUS",
        help="CPUs of tasks that state none (Harbor, Terminal-Bench 1): 1, or a floor and a ceiling: 1..2",
    )
    group.addoption(
        "--infranoise-default-memory",
        metavar="MEMORY",
        help="memory of tasks that state none (Harbor, Terminal-Bench 1): 2G, or a floor and a ceiling: 2G..6G",
    )
    group.addoption(
        "--infranoise-preflight",
        action="store_true",
        default=None,
        help="Run oracle (must pass) and nop (must not) on every task under the baseline first, and quarantine the "
        "tasks that fail this: their trials are not run, and the exit status is 20.",
    )
    add_design_options(group, parser)
    add_policy_options(parser, group)
    group.addoption(
        "--infranoise-resume",
        metavar="RUN",
        help="Go on with a run (its id, its directory, or last) and run only what has no record. Seed, agents, "
        "configs, samples and gates are the run's; more samples, configs and agents can be added.",
    )
    group.addoption(
        "--infranoise-rerun-infra",
        action="store_true",
        help="With --infranoise-resume: run trials that ended as infra-errors again, too. Their first attempts are "
        "kept and remain the estimate.",
    )
    group.addoption(
        "--infranoise-shard",
        metavar="I/N",
        help="run only part I of N (from 1), for `infranoise merge` to put together again",
    )
    parser.addini("infranoise_resource_config", "resource configs (see --resource-config)", type="args", default=[])
    parser.addini("infranoise_samples", "trials per task and config", type="int", default=None)
    parser.addini("infranoise_agent", "agents (see --infranoise-agent)", type="linelist", default=[])
    parser.addini("infranoise_seed", "seed (see --infranoise-seed)", type="int", default=None)
    parser.addini("infranoise_gate", "gates (see --infranoise-gate)", type="linelist", default=[])
    parser.addini("infranoise_run_dir", "directory of all runs, relative to the rootdir", type="string", default="")
    parser.addini("infranoise_pass_threshold", "smallest reward that is a pass", type="float", default=None)
    parser.addini("infranoise_preflight", "check every task first (true or false)", type="string", default="")
    parser.addini("infranoise_default_cpus", "CPUs of tasks that state none", type="string", default="")
    parser.addini("infranoise_default_memory", "memory of tasks that state none", type="string", default="")
    add_schedule_options(group, parser)


def read_settings(config: pytest.Config, seed: int | None = None) -> Settings:
    """Read everything once; ``seed`` is the controller's, given to its workers.

    Raises:
        pytest.UsageError: an option or ini value is wrong.
    """
    paths = (Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args)
    try:
        return _settings(config, seed, read_settings_file(paths))
    except (OSError, TypeError, ValueError) as error:  # TypeError: pytest 9.0 about a TOML value of another type
        raise pytest.UsageError(f"infranoise: {error}") from None


def _settings(config: pytest.Config, seed: int | None, file: SettingsFile) -> Settings:
    option, toml = config.option, file.values
    named = toml.get("agents", {})
    typed, ini = option.resource_config or (), _words(config.getini("infranoise_resource_config"))
    configs, config_errors = _configs(typed, ini, file)
    ini_gates = config.getini("infranoise_gate")
    gates = option.infranoise_gate or ini_gates or toml.get("gates", ())
    agents, agent_errors = _chosen_agents(config, file)
    design, design_errors = read_design(config, file)
    baseline, baseline_errors = _baseline(config, file, configs, known=not config_errors)
    schedule, schedule_errors = read_schedule(config, toml)
    policies, policy_errors = read_policies(config, toml, file.path)
    settings = Settings(
        configs=configs,
        samples=scalar(config, "samples", int, toml.get("samples", 3)),
        agents=agents,
        named_agents=tuple(named),
        seed=scalar(config, "seed", int, toml.get("seed", secrets.randbelow(2**31) if seed is None else seed)),
        gates=tuple(gates),
        runs_dir=runs_dir_of(config),
        pass_threshold=scalar(config, "pass_threshold", float, toml.get("pass-threshold", 1.0)),
        toml=file.path,
        toml_errors=file.errors,
        outcome_selection=_outcome_selection(config),
        defaults=DefaultResources(
            _default(config, toml, "default_cpus", parse_cpus),
            _default(config, toml, "default_memory", parse_memory_range),
        ),
        preflight=_preflight(config, toml),
        design=design,
        baseline_name=baseline,
        shard=_shard(option.infranoise_shard),
        schedule=schedule,
        policies=policies,
    )
    settings, range_errors = _in_range(config, settings)
    design_errors += baseline_errors
    own_errors = (*config_errors, *agent_errors, *range_errors, *design_errors, *schedule_errors, *policy_errors)
    later = (*file.errors, *own_errors, *_same_ids(settings))
    gate_errors = _gate_errors(settings, [] if later else [resources.name for resources in settings.configs])
    if gate_errors and option.infranoise_gate:
        raise ValueError(gate_errors[0])
    where = "ini value infranoise_gate" if ini_gates else f"{file.path}: gates"
    return replace(settings, toml_errors=(*later, *(f"{where}: {error}" for error in gate_errors)))


def _in_range(config: pytest.Config, settings: Settings) -> tuple[Settings, list[str]]:
    """Return the settings with usable numbers, and what was wrong with those that were not typed."""
    samples, threshold = settings.samples, settings.pass_threshold
    errors = []
    if not 1 <= samples <= MOST_SAMPLES:
        errors.append(told(config, settings.toml, "samples", f"{samples} is not between 1 and {MOST_SAMPLES}"))
        settings = replace(settings, samples=1)
    if not 0 < threshold <= 1:
        errors.append(told(config, settings.toml, "pass_threshold", f"{threshold:g} is not above 0 and at most 1"))
        settings = replace(settings, pass_threshold=1.0)
    return settings, errors


def _chosen_agents(config: pytest.Config, file: SettingsFile) -> tuple[tuple[AgentChoice, ...], tuple[str, ...]]:
    """Return the agents; none, and what is wrong with them, when they were not typed."""
    typed, toml = config.option.infranoise_agent, file.values
    chosen = typed or config.getini("infranoise_agent") or _as_list(toml.get("agent", []))
    try:
        return _agents(chosen, toml.get("agents", {})), ()
    except ValueError as error:
        if typed:
            raise
        return (), (told(config, file.path, "agent", str(error)),)


def _configs(
    typed: Sequence[str], ini: Sequence[str], file: SettingsFile
) -> tuple[tuple[ResourceConfig, ...], tuple[str, ...]]:
    """Return the configs, and what is wrong with them as soon as a trial is collected.

    A name in pytest's ini file may be defined beside the tasks, in a file that does not apply to other tests.
    """
    try:
        values = typed or ini or file.values.get("resource-configs", DEFAULT_CONFIGS)
        return parse_configs(values, file.configs), ()
    except UnknownConfig as error:
        text = str(error)
        if typed and not file.errors:
            raise
        if typed:  # the name may well be defined in the file that could not be read
            raise ValueError("; ".join((text.partition(";")[0], *file.errors))) from None
        placeholder = parse_configs(DEFAULT_CONFIGS)
        return placeholder, () if file.errors else (f"ini value infranoise_resource_config: {text}",)
    except ValueError as error:
        if typed:
            raise
        return parse_configs(DEFAULT_CONFIGS), (f"ini value infranoise_resource_config: {error}",)


def _baseline(
    config: pytest.Config, file: SettingsFile, configs: Sequence[ResourceConfig], *, known: bool
) -> tuple[str, list[str]]:
    """Return the baseline's name; not ``known``: the configs stand for others, so it cannot be checked."""
    names = [resources.name for resources in configs]
    return read_baseline(config, file, names) if known else (names[0], [])


def _same_ids(settings: Settings) -> Iterator[str]:
    """Yield which trials of a task would have the same id, so that one of them would be lost."""
    seen: dict[str, str] = {}
    for agent in settings.agents:
        for config in settings.configs:
            pair = f"agent {agent.name!r} with config {config.name!r}"
            other = seen.setdefault(f"{agent.name}-{config.name}", pair)
            if other != pair:
                yield f"{other} and {pair} would have the same test ids; rename one of the configs"


def _default(config: pytest.Config, toml: Mapping[str, Any], name: str, parse: Callable[[str], T]) -> T | None:
    option, ini = getattr(config.option, f"infranoise_{name}"), config.getini(f"infranoise_{name}")
    text, where = (ini, f"ini value infranoise_{name}") if option is None else (option, option_name(name))
    key = name.replace("_", "-")
    if option is None and not ini and key in toml:
        return parse(str(toml[key]))
    try:
        return parse(text) if text or option is not None else None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _preflight(config: pytest.Config, toml: Mapping[str, Any]) -> bool:
    if config.option.infranoise_preflight is not None:
        return True
    text = config.getini("infranoise_preflight").strip().lower()
    if text in ("", "true", "false"):
        return text == "true" if text else bool(toml.get("preflight", False))
    raise ValueError(f"ini value infranoise_preflight: {text!r} is neither true nor false")


def _shard(text: str | None) -> Shard | None:
    try:
        return None if text is None else parse_shard(text)
    except ValueError as error:
        raise ValueError(f"--infranoise-shard: {error}") from None


def _words(values: Sequence[str]) -> list[str]:
    """Return ini words as they would be typed: ``1x, 3x`` comes as two words, the first with a comma."""
    return [word for value in values if (word := value.strip(","))]


def _as_list(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def runs_dir_of(config: pytest.Config) -> Path:
    """Return the directory of all runs.

    Raises:
        ValueError: it is none that can be written to.
    """
    given = config.option.infranoise_run_dir
    if given:
        return _usable(Path(config.invocation_params.dir, given))
    return Path(config.rootpath, config.getini("infranoise_run_dir") or DEFAULT_RUNS_DIR)


def _usable(path: Path) -> Path:
    """Return a directory that can be made or written to; found out here, because a worker could tell nobody."""
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(
            f"--infranoise-run-dir: {nearest} is no directory that can be written to; give another one"
        )
    return path


def _outcome_selection(config: pytest.Config) -> str | None:
    for name, option in _OUTCOME_OPTIONS:
        if getattr(config.option, name, False):
            return option
    return None


def _gate_errors(settings: Settings, configs: Sequence[str]) -> list[str]:
    if not settings.gates:
        return []
    from pytest_infranoise.chains import calibration_problem
    from pytest_infranoise.gate_grammar import CALIBRATED
    from pytest_infranoise.gate_grammar import parse_gate

    if settings.outcome_selection:
        return [
            f"gates are refused with {settings.outcome_selection}: tests picked by earlier outcomes give no "
            "estimate; leave out one of the two"
        ]
    try:
        for text in settings.gates:
            gate = parse_gate(text)
            if not configs:
                continue
            gate.check_configs(configs)
            if gate.quantity == CALIBRATED:
                rules = {resources.name: describe_config(resources) for resources in settings.configs}
                problem = calibration_problem(configs, rules, settings.baseline.name, gate.config)
                if problem:
                    return [f"gate {str(gate)!r} can never hold: {problem}"]
    except ValueError as error:
        return [str(error)]
    return []


def _agents(names: Sequence[str], named: Mapping[str, Mapping[str, Any]]) -> tuple[AgentChoice, ...]:
    choices: dict[str, AgentChoice] = {}
    for name in names:
        choice = _agent(name.strip(), named)
        if choice.name in choices:
            raise ValueError(
                f"agent {choice.name!r} is given twice; several command agents need names of their own in "
                'infranoise.toml ([agents.NAME], kind = "command", command = "...")'
            )
        choices[choice.name] = choice
    return tuple(choices.values())


def _agent(name: str, named: Mapping[str, Mapping[str, Any]]) -> AgentChoice:
    if name in named:
        table = named[name]
        options = {key: table[key] for key in ("command", "env") if key in table}
        return AgentChoice(name, kind=table.get("kind", name), model=table.get("model"), options=options)
    kind, separator, text = name.partition(":")
    if kind == "command":
        if not separator or not text.strip():
            raise ValueError("agent 'command' needs its text: --infranoise-agent 'command:TEXT'")
        return AgentChoice(kind, kind=kind, options={"command": text})
    return AgentChoice(name, kind=name)


def agents_help(settings: Settings) -> str:
    """Return the known agents, for error messages."""
    known = ["oracle", "nop", "scripted", "command:TEXT", *settings.named_agents]
    return f"known agents: {', '.join(known)}, and those that plugins add (pytest_infranoise_make_agent)"
