"""Two runs, or two published scores: is their gap the agent, the sample, or the machine?

Runs are compared task by task, on the tasks whose content is the same in both, config by config. Scores come with
nothing but the number of tasks and samples, so their error follows from the variance that agent benchmarks show.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from pytest_infranoise.allowance import allowance
from pytest_infranoise.analysis import analyse
from pytest_infranoise.journal import Run
from pytest_infranoise.paired_gaps import PairedGap
from pytest_infranoise.paired_gaps import paired_gap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Cell
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.stats.gaps import ALLOWANCE
from pytest_infranoise.stats.gaps import Configs
from pytest_infranoise.stats.gaps import Gap
from pytest_infranoise.stats.gaps import gap_verdict
from pytest_infranoise.stats.gaps import published_se


class CannotCompare(Exception):
    """These two cannot be compared; the message is fit to show to a user."""


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """Two published scores as proportions; ``others`` is the smallest distinguishable gap by what is known."""

    score_a: float
    score_b: float
    tasks: int
    samples_a: int
    samples_b: int
    configs: Configs
    icc: float | None
    alpha: float
    gap: Gap
    others: Mapping[Configs, float]


def compare_scores(
    score_a: float,
    score_b: float,
    tasks: int,
    samples_a: int,
    samples_b: int | None = None,
    *,
    configs: Configs = "undocumented",
    icc: float | None = None,
    alpha: float = 0.05,
) -> ScoreComparison:
    """Judge the gap from ``score_a`` to ``score_b``, both proportions.

    ``icc``: share of the variance of single trials between tasks; None for what is usual at such scores.

    Raises:
        ValueError: see ``stats.gaps.published_se``.
    """
    k_b = samples_a if samples_b is None else samples_b
    se = published_se(score_b, score_a, tasks, k_b, samples_a, icc=icc, alpha=alpha)

    def judged(kind: Configs) -> Gap:
        return gap_verdict(score_b, score_a, tasks, k_b, samples_a, configs=kind, se=se, alpha=alpha)

    return ScoreComparison(
        score_a=score_a,
        score_b=score_b,
        tasks=tasks,
        samples_a=samples_a,
        samples_b=k_b,
        configs=configs,
        icc=icc,
        alpha=alpha,
        gap=judged(configs),
        others={kind: judged(kind).half for kind in ALLOWANCE},
    )


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs on their common tasks.

    ``changed`` are tasks of both runs whose content differs, or changed within a run; ``only_a`` and ``only_b``
    have records in one run alone. ``level`` is the confidence level of every single interval.
    ``cut_short`` has the sides (``A``, ``B``) that are not an estimate.
    """

    run_a: str
    run_b: str
    pairs: tuple[PairedGap, ...]
    common: int
    changed: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    alpha: float
    level: float
    notes: tuple[str, ...]
    cut_short: tuple[str, ...] = ()


def compare_runs(
    a: Run, b: Run, *, agent_a: str | None = None, agent_b: str | None = None, alpha: float = 0.05
) -> RunComparison:
    """Compare two runs, agent by agent and config by config.

    ``agent_a``, ``agent_b``: names of the agents to compare, where it is not each with itself.

    Raises:
        CannotCompare: they have no task, agent or config in common.
    """
    hashes_a, hashes_b = _hashes(a), _hashes(b)
    both = hashes_a.keys() & hashes_b.keys()
    common = sorted(task for task in both if hashes_a[task] == hashes_b[task] and len(hashes_a[task]) == 1)
    changed = tuple(sorted(both - set(common)))
    name_a, name_b = _name(a), _name(b)
    if not common:
        why = f"; {len(changed)} have the same name and another content" if changed else ""
        raise CannotCompare(f"runs {name_a} and {name_b} have no task in common{why}")
    found = {"A": analyse(a), "B": analyse(b)}
    matched = [
        (zero_agent, zero, one_agent, one)
        for zero_agent, one_agent in _agents(found["A"].agents, found["B"].agents, agent_a, agent_b)
        for zero, one in _configs(a, b, _with_records(zero_agent, common), _with_records(one_agent, common))
    ]
    # All verdicts are to hold together.
    level = 1.0 - alpha / max(len(matched), 1)
    pairs = tuple(
        pair
        for zero_agent, zero, one_agent, one in matched
        if (
            pair := paired_gap(
                common,
                (zero_agent.label, zero),
                (one_agent.label, one),
                allowance(a, b, zero.config, one.config),
                level,
            )
        )
    )
    if not pairs:
        raise CannotCompare(
            f"runs {name_a} and {name_b} have no config in common: {_config_names(a)} in one, {_config_names(b)} "
            "in the other; only runs of one config each are compared across configs"
        )
    return RunComparison(
        run_a=name_a,
        run_b=name_b,
        pairs=pairs,
        common=len(common),
        changed=changed,
        only_a=tuple(sorted(hashes_a.keys() - hashes_b.keys())),
        only_b=tuple(sorted(hashes_b.keys() - hashes_a.keys())),
        alpha=alpha,
        level=level,
        notes=tuple(_notes(a, b, pairs, found)),
        cut_short=tuple(side for side, analysis in found.items() if analysis.cut_short),
    )


def _name(run: Run) -> str:
    return str(run.meta.get("run", run.path.name))


def _config_names(run: Run) -> str:
    return ", ".join(dict.fromkeys(key.config for key in run.planned)) or "none"


def _hashes(run: Run) -> dict[str, set[str]]:
    hashes: dict[str, set[str]] = {}
    planned = set(run.planned)
    for record in run.records:
        if record.key in planned:
            hashes.setdefault(record.key.task, set()).add(record.task_hash)
    return hashes


def _agents(
    a: Sequence[AgentResult], b: Sequence[AgentResult], agent_a: str | None, agent_b: str | None
) -> list[tuple[AgentResult, AgentResult]]:
    """Return which agents to compare: those of the same name, or the only one of each run, or those asked for."""
    chosen_a, chosen_b = _chosen(a, agent_a, "--agent-a"), _chosen(b, agent_b, "--agent-b")
    same = [(zero, one) for zero, one in product(chosen_a, chosen_b) if zero.label == one.label]
    if (agent_a or agent_b) or not same:
        if len(chosen_a) == len(chosen_b) == 1:
            return [(chosen_a[0], chosen_b[0])]
        raise CannotCompare(
            f"which agents? A has {_labels(chosen_a)}, B has {_labels(chosen_b)}; name one of each with --agent-a "
            "and --agent-b"
        )
    return same


def _chosen(agents: Sequence[AgentResult], name: str | None, option: str) -> Sequence[AgentResult]:
    if name is None:
        return agents
    chosen = [agent for agent in agents if name in (agent.agent, agent.label)]
    if not chosen:
        raise CannotCompare(f"{option}: no agent {name!r} in that run; it has {_labels(agents)}")
    return chosen


def _labels(agents: Sequence[AgentResult]) -> str:
    return ", ".join(agent.label for agent in agents) or "none"


def _with_records(agent: AgentResult, tasks: Sequence[str]) -> list[ConfigResult]:
    return [result for result in agent.configs if any(result.cells.get(task, Cell()).recorded for task in tasks)]


def _configs(
    a: Run, b: Run, zero: Sequence[ConfigResult], one: Sequence[ConfigResult]
) -> Iterator[tuple[ConfigResult, ConfigResult]]:
    """Yield the configs to compare: those of the same name, else the only one of each run."""
    by_name = {result.config: result for result in one}
    same = [(result, by_name[result.config]) for result in zero if result.config in by_name]
    if not same and len(zero) == len(one) == 1:
        same = [(zero[0], one[0])]
    yield from same


def _notes(a: Run, b: Run, pairs: Sequence[PairedGap], found: Mapping[str, Analysis]) -> Iterator[str]:
    if a.path.resolve() != b.path.resolve():
        yield (
            "the runs were made at different times: drift between them (hosts, providers, networks) is in no "
            "interval; only trials interleaved in one run rule it out"
        )
    elif any((pair.a.agent, pair.a.config) == (pair.b.agent, pair.b.config) for pair in pairs):
        yield "A and B are the same trials: their noise is not in a comparison with themselves"
    for side, analysis in found.items():
        if analysis.cut_short:
            yield f"{side} is not an estimate: {analysis.cut_short}"
        if analysis.missing:
            yield f"{side}: {analysis.missing} of {analysis.planned} planned trials have no record: in no rate"
    thresholds = [float(run.meta.get("pass_threshold", 1.0)) for run in (a, b)]
    if thresholds[0] != thresholds[1]:
        yield f"a pass is a reward of at least {thresholds[0]:g} in A and {thresholds[1]:g} in B"
    if a.meta.get("policy") != b.meta.get("policy"):
        yield "the runs judged trials by different policies"
