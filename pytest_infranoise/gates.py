"""Whether a gate holds for a run, and the line that says why.

Rates' gates compare estimates unless an end of the interval is asked for; what is about a difference is decided on
its interval, because there a few lucky trials are enough for any estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_infranoise.gate_grammar import CALIBRATED
from pytest_infranoise.gate_grammar import DELTA
from pytest_infranoise.gate_grammar import EQUIVALENT
from pytest_infranoise.gate_grammar import MISSING
from pytest_infranoise.gate_grammar import Gate
from pytest_infranoise.gate_grammar import parse_gate
from pytest_infranoise.reports.text import interval_text
from pytest_infranoise.reports.text import level
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import margin_text
from pytest_infranoise.reports.text import p_words
from pytest_infranoise.reports.text import percent_down
from pytest_infranoise.reports.text import percent_up
from pytest_infranoise.reports.text import plus_minus
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.units import plural

if TYPE_CHECKING:
    from pytest_infranoise.design import Design
    from pytest_infranoise.results import AgentResult
    from pytest_infranoise.results import Analysis
    from pytest_infranoise.results import Comparison
    from pytest_infranoise.results import ConfigResult
    from pytest_infranoise.results import Rate

__all__ = ["Gate", "GateResult", "evaluate", "parse_gate"]

# More configs than this would make a line that nobody reads.
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class GateResult:
    """Whether a gate holds, and one line that says why."""

    gate: Gate
    holds: bool
    line: str


def evaluate(gate: Gate, analysis: Analysis) -> GateResult:
    """Judge a gate on a run.

    A rate's gate compares the point estimate, or the interval's end for ``upper`` and ``lower``; every agent, and
    without CONFIG every config, must hold. A delta's gate compares the end that is harder to satisfy, so that all
    of the interval does, or the end that is asked for. Where nothing was recorded no gate but that on missing
    trials holds, and none holds in a run that is not an estimate.
    """
    if analysis.cut_short:
        return GateResult(gate, False, f"gate {gate} is refused: not an estimate: {analysis.cut_short}")
    judges = {
        MISSING: _judge_missing,
        DELTA: _judge_comparison,
        EQUIVALENT: _judge_comparison,
        CALIBRATED: _judge_calibration,
    }
    holds, why = judges.get(gate.quantity, _judge_rate)(gate, analysis)
    return GateResult(gate, holds, f"gate {gate} {'holds' if holds else 'does not hold'}: {why}")


def _judge_missing(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    results = [
        result for agent in analysis.agents for result in agent.configs if gate.config in (None, result.config)
    ]
    missing, planned = sum(result.missing for result in results), sum(result.planned for result in results)
    return bool(results) and gate.allows(missing), f"{missing} of {planned} planned trials missing"


def _judge_rate(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    places = list(_places(gate, analysis))
    failing = [place for place in places if not _holds(gate, place.rate)]
    shown = failing or places
    if not shown:
        return False, f"no trial was planned under {gate.config or 'any config'}"
    values = listed([_what(place) for place in shown], _MOST_SHOWN)
    return not failing, "; ".join([values, *_beyond_the_data(gate, shown, analysis.design)])


@dataclass(frozen=True, slots=True)
class _Place:
    """One agent's rate under one config, and what to call it."""

    label: str
    result: ConfigResult
    rate: Rate


def _places(gate: Gate, analysis: Analysis) -> Iterator[_Place]:
    several = len(analysis.agents) > 1
    for agent in analysis.agents:
        for result in agent.configs:
            if gate.config in (None, result.config):
                rate = result.infra_rate if gate.quantity == "infra-rate" else result.score
                yield _Place(_label(agent, result, several), result, rate)


def _label(agent: AgentResult, result: ConfigResult, several: bool) -> str:
    return f"{agent.label} {result.config}" if several else result.config


def _holds(gate: Gate, rate: Rate) -> bool:
    if rate.value is None:
        return False
    if gate.bound is None:
        return gate.allows(rate.value)
    return gate.allows(rate.interval.hi if gate.bound == "upper" else rate.interval.lo)


def _what(place: _Place) -> str:
    if place.rate.value is None:
        return f"{place.label} has no recorded trial"
    return f"{place.label} {rate_text(place.rate)}"


def _beyond_the_data(gate: Gate, places: Sequence[_Place], design: Design) -> Iterator[str]:
    """Say where so few trials could not show the threshold, whatever their outcome."""
    from pytest_infranoise.stats.rates import rate_ci

    if gate.bound is not None:
        return
    upward = gate.operator in (">", ">=")
    ends: dict[int, float] = {}
    for place in places:
        trials = [cell.recorded for cell in place.result.cells.values()]
        best = rate_ci(trials if upward else [0] * len(trials), trials, design.target, design.conf)
        ends[sum(trials)] = best.lo if upward else best.hi
    for trials_run, end in sorted(ends.items()):
        if trials_run and not gate.allows(end):
            few = plural(trials_run, "trial")
            yield f"{few} cannot show {gate.threshold_text}: {_best_case(gate, upward, end)}"


def _best_case(gate: Gate, upward: bool, end: float) -> str:
    did = "is an infra-error" if gate.quantity == "infra-rate" else "passes"
    return f"if each {did}, at least {percent_down(end)}" if upward else f"if none {did}, at most {percent_up(end)}"


# Differences


def _judge_comparison(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    """Judge a delta or an equivalence for every agent."""
    from pytest_infranoise.analysis import compare

    several = len(analysis.agents) > 1
    judged = []
    for agent in analysis.agents:
        comparison = compare(analysis, agent, gate.config or "", gate.other or "")
        judge = _delta_holds if gate.quantity == DELTA else _equivalence_holds
        holds, why = judge(gate, analysis, comparison)
        judged.append((holds, f"{agent.label}: {why}" if several else why))
    return _all_of(judged)


def _all_of(judged: Sequence[tuple[bool, str]]) -> tuple[bool, str]:
    """Return whether all hold, and what is said of those that do not, or of all."""
    if not judged:
        return False, "no trial was planned"
    failing = [why for holds, why in judged if not holds]
    return not failing, "; ".join(failing or [why for _, why in judged])


def _delta_holds(gate: Gate, analysis: Analysis, comparison: Comparison | None) -> tuple[bool, str]:
    if comparison is None or comparison.score.value is None:
        return False, _nothing_common(gate)
    delta, value = comparison.score, comparison.score.value
    upward = gate.operator in (">", ">=")
    bound = gate.bound or ("lower" if upward else "upper")
    end = delta.interval.lo if bound == "lower" else delta.interval.hi
    text = f"{points(value)}, {level(analysis.design.conf)} CI {interval_text(delta.interval)}"
    holds = gate.allows(end)
    if holds or gate.bound is not None:
        return holds, text
    # How far the estimate has to be from the threshold, with as much noise as there is.
    needed = float(gate.threshold) - (end - value)
    if abs(needed) > 1:
        return False, f"{text}; so few {_sampled(analysis)} cannot show it, whatever their outcome"
    side = "from" if upward else "up to"
    return False, f"{text}; with so many {_sampled(analysis)} it is shown {side} about {points(needed)}"


def _equivalence_holds(gate: Gate, analysis: Analysis, comparison: Comparison | None) -> tuple[bool, str]:
    found = comparison.equivalence if comparison is not None else None
    if comparison is None or found is None or comparison.score.value is None:
        return False, _nothing_common(gate)
    is_inside = f"is {'' if found.shown else 'not '}inside"
    text = (
        f"{points(comparison.score.value)}, {level(1 - 2 * analysis.design.alpha)} CI "
        f"{interval_text(found.interval)} {is_inside} {margin_text(found.margin)}; the "
        f"smallest margin shown is {plus_minus(min(found.smallest, 1.0))}"
    )
    least = (found.interval.hi - found.interval.lo) / 2
    if found.shown or least < found.margin:
        return found.shown, text
    return (
        False,
        f"{text}; so few {_sampled(analysis)} show none below about {plus_minus(min(least, 1.0))}, even with d = 0",
    )


def _sampled(analysis: Analysis) -> str:
    """Return what more of would narrow an interval."""
    return "tasks" if analysis.design.target == "population" else "trials"


def _nothing_common(gate: Gate) -> str:
    return f"no task has trials under both {gate.config} and {gate.other}"


# Calibration


def _judge_calibration(gate: Gate, analysis: Analysis) -> tuple[bool, str]:
    several = len(analysis.agents) > 1
    judged = [_calibration_holds(gate, analysis, agent) for agent in analysis.agents]
    return _all_of(
        [
            (holds, f"{agent.label}: {why}" if several else why)
            for agent, (holds, why) in zip(analysis.agents, judged, strict=True)
        ]
    )


def _calibration_holds(gate: Gate, analysis: Analysis, agent: AgentResult) -> tuple[bool, str]:
    found = agent.calibration
    if found is None:
        return False, f"nothing to calibrate: {agent.no_chain or 'no config with higher ceilings has trials'}"
    if found.pick is not None:
        return gate.config in (None, found.pick), f"calibrated: {found.pick}"
    if found.candidate is None:
        cut = f"{100 * analysis.design.min_cut:g}%"
        return False, f"no ceiling is known to cut infra-errors by {cut} or more"
    comparison = agent.comparison(found.candidate)
    if comparison is None or comparison.equivalence is None or comparison.score.value is None:
        return False, f"{found.status}: best candidate {found.candidate}"
    if found.status == "score-moves":
        delta, design = comparison.score, analysis.design
        moved = f"{points(comparison.score.value)}, {level(design.conf)} CI {interval_text(delta.interval)}"
        much = "; by how much is not shown" if delta.size_unknown(design.alpha) else ""
        return False, f"the score moves under {found.candidate}: {moved}, {p_words(delta.p)}{much}"
    within = f"shown the same within {plus_minus(min(comparison.equivalence.smallest, 1.0))}"
    margin = margin_text(analysis.design.margin)
    return False, f"{found.status}: best candidate {found.candidate}, {within}, not {margin}"
