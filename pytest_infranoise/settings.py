"""Options, ini values and ``infranoise.toml`` -> one frozen ``Settings``, read once per process.

A value is taken from the command line, else from pytest's ini file, else from the nearest ``infranoise.toml``
(or ``[tool.infranoise]`` in a ``pyproject.toml``) above the paths given to pytest, else from the defaults.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.resource_configs import DEFAULT_CONFIGS
from pytest_infranoise.resource_configs import parse_configs
from pytest_infranoise.settings_file import SettingsFile
from pytest_infranoise.settings_file import read_settings_file

DEFAULT_RUNS_DIR = ".infranoise/runs"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the user chose.

    ``agents`` is empty when nobody chose one. ``toml_errors`` are mistakes in ``infranoise.toml``: they concern
    nobody as long as no trial is collected. ``outcome_selection`` names the option that picks tests by earlier
    outcomes, which makes every rate something else than an estimate.
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


def add_options(parser: pytest.Parser) -> None:
    """Declare every option with its ini twin."""
    group = parser.getgroup("infranoise", "infranoise: benchmark tasks under resource floors and ceilings")
    group.addoption(
        "--resource-config",
        action="append",
        metavar="CONFIGS",
        help="Resource configs to run every task under, as a comma list: Kx (floor 1x, ceiling K times the task's "
        f"spec) or uncapped. The first is the baseline. Default: {','.join(DEFAULT_CONFIGS)}.",
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
    parser.addini("infranoise_resource_config", "resource configs (see --resource-config)", type="args", default=[])
    parser.addini("infranoise_samples", "trials per task and config", type="string", default="")
    parser.addini("infranoise_agent", "agents (see --infranoise-agent)", type="linelist", default=[])
    parser.addini("infranoise_seed", "seed (see --infranoise-seed)", type="string", default="")
    parser.addini("infranoise_gate", "gates (see --infranoise-gate)", type="linelist", default=[])
    parser.addini("infranoise_run_dir", "directory of all runs, relative to the rootdir", type="string", default="")
    parser.addini("infranoise_pass_threshold", "smallest reward that is a pass", type="string", default="")


def read_settings(config: pytest.Config, seed: int | None = None) -> Settings:
    """Read everything once; ``seed`` is the controller's, given to its workers.

    Raises:
        pytest.UsageError: an option or ini value is wrong.
    """
    paths = (Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args)
    try:
        return _settings(config, seed, read_settings_file(paths))
    except ValueError as error:
        raise pytest.UsageError(f"infranoise: {error}") from None


def _settings(config: pytest.Config, seed: int | None, file: SettingsFile) -> Settings:
    option, toml = config.option, file.values
    named = toml.get("agents", {})
    configs = option.resource_config or config.getini("infranoise_resource_config")
    agents = option.infranoise_agent or config.getini("infranoise_agent")
    gates = option.infranoise_gate or config.getini("infranoise_gate")
    settings = Settings(
        configs=parse_configs(configs or toml.get("resource-configs", DEFAULT_CONFIGS)),
        samples=_scalar(config, "samples", int, toml.get("samples", 3)),
        agents=_agents(agents or _as_list(toml.get("agent", [])), named),
        named_agents=tuple(named),
        seed=_scalar(config, "seed", int, toml.get("seed", secrets.randbelow(2**31) if seed is None else seed)),
        gates=tuple(gates or toml.get("gates", ())),
        runs_dir=_runs_dir(config),
        pass_threshold=_scalar(config, "pass_threshold", float, toml.get("pass-threshold", 1.0)),
        toml=file.path,
        toml_errors=file.errors,
        outcome_selection=_outcome_selection(config),
    )
    if settings.samples < 1:
        raise ValueError(f"--infranoise-samples: {settings.samples} is too few; give 1 or more")
    if not 0 < settings.pass_threshold <= 1:
        raise ValueError(f"--infranoise-pass-threshold: {settings.pass_threshold:g} is not above 0 and at most 1")
    gate_errors = _gate_errors(settings)
    if gate_errors and gates:
        raise ValueError(gate_errors[0])
    return replace(settings, toml_errors=(*file.errors, *(f"{file.path}: gates: {error}" for error in gate_errors)))


def _scalar(config: pytest.Config, name: str, kind: type[int | float], default: float) -> Any:
    value = getattr(config.option, f"infranoise_{name}")
    if value is not None:
        return value
    text = config.getini(f"infranoise_{name}")
    try:
        return default if text == "" else kind(text)
    except ValueError:
        raise ValueError(f"ini value infranoise_{name}: {text!r} is not a number") from None


def _as_list(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _runs_dir(config: pytest.Config) -> Path:
    given = config.option.infranoise_run_dir
    if given:
        return Path(config.invocation_params.dir, given)
    return Path(config.rootpath, config.getini("infranoise_run_dir") or DEFAULT_RUNS_DIR)


def _outcome_selection(config: pytest.Config) -> str | None:
    for name, option in (("lf", "--lf"), ("stepwise", "--sw")):
        if getattr(config.option, name, False):
            return option
    return None


def _gate_errors(settings: Settings) -> list[str]:
    if not settings.gates:
        return []
    from pytest_infranoise.gates import parse_gate

    if settings.outcome_selection:
        return [
            f"gates are refused with {settings.outcome_selection}: tests picked by earlier outcomes give no "
            "estimate; leave out one of the two"
        ]
    try:
        for text in settings.gates:
            parse_gate(text).check_configs([config.name for config in settings.configs])
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
