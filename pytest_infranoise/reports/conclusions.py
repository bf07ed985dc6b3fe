"""What the configs show together, in sentences: trend, calibration, where a change comes from, tasks that move.

A sentence that the data cannot carry is left out, or says what they could not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import pairwise

from pytest_infranoise.design import Design
from pytest_infranoise.findings import Interaction
from pytest_infranoise.findings import Mover
from pytest_infranoise.findings import Planner
from pytest_infranoise.findings import Trend
from pytest_infranoise.reports.text import interval_text
from pytest_infranoise.reports.text import level
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import looked_at
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import p_words
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import Delta
from pytest_infranoise.units import plural

# Above it, trials are not independent.
MOST_DISPERSION = 1.5
_MOST_MOVERS = 6


# Trend


def trend_lines(agent: AgentResult, width: int) -> list[str]:
    """Return the trend over all ceilings, and what a comparison could have detected."""
    parts = []
    if agent.trends is not None:
        over = " < ".join(agent.trends.configs)
        told = [_trend("pass", agent.trends.score), _trend("infra", agent.trends.infra_rate)]
        parts.append(f"trend over {over}: {', '.join(told)}")
    elif agent.chain is None:
        parts.append(f"no trend and no calibration, the configs are no chain of rising ceilings: {agent.no_chain}")
    planner = agent.planner
    if planner is not None and planner.detectable is not None:
        least = f"{100 * planner.detectable:.1f}" if planner.detectable < 1 else "none"
        parts.append(f"smallest d that {_detecting(planner)} detect: {least} (80% power)")
    elif any(comparison.score.tasks for comparison in agent.comparisons):
        seen_twice = any(result.within_task_variance is not None for result in agent.configs)
        why = "no task varies" if seen_twice else "one sample per task"
        if planner is not None and planner.few:
            why = "few trials, or few tasks that differ"
        parts.append(f"the smallest d that would be detected cannot be told: {why}")
    return [line for part in parts for line in wrap(part, width)]


def _trend(outcome: str, trend: Trend) -> str:
    if trend.p is None:
        return f"{outcome} not tested"
    if p_text(trend.p) == "1.000":
        return f"no trend of {outcome} shown ({p_words(trend.p)})"
    return f"{outcome} {'rises' if trend.rising else 'falls'} {p_words(trend.p)}"


def _detecting(planner: Planner) -> str:
    if planner.counts == "tasks":
        return f"{plural(planner.tasks, 'task')} like these"
    return f"{plural(planner.tasks, 'task')} x {_rounded(planner.samples)} samples"


def _rounded(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


# Where a change comes from


def decomposition_lines(agent: AgentResult, width: int) -> list[str]:
    """Return where the change under the largest ceiling comes from."""
    comparison = agent.comparison(agent.top)
    zero = agent.result(comparison.baseline) if comparison else None
    one = agent.result(comparison.config) if comparison else None
    if comparison is None or zero is None or one is None or comparison.accounting is None:
        return []
    if not (zero.infra or one.infra):
        return []
    parts = comparison.accounting
    text = (
        f"{comparison.config} against {comparison.baseline}: pass {points(parts.dS)}, infra-errors "
        f"{points(parts.dE)}, genuine failures {points(parts.dF)} ({p_words(comparison.fail_rate.p)})"
    )
    return [*wrap(text, width), *_split(comparison, width)]


def _split(comparison: Comparison, width: int) -> list[str]:
    found, parts = comparison.decomposition, comparison.accounting
    if found is None or parts is None or comparison.score.guarded or not parts.dE < 0:
        # With few trials, or without a fall of infra-errors, the two parts are guesswork.
        return []
    passed = found.rescued_pass_rate
    removed = f"a removed crash would pass about {100 * passed:.0f}% of the time" if math.isfinite(passed) else ""
    if found.borrowed:
        removed += f"; {plural(found.borrowed, 'task')} crashed always and borrow{'s' * (found.borrowed == 1)} it"
    # Whatever the crashed trials would have done, genuine failures that are gone for sure were solved.
    sure = max(0.0, -comparison.fail_rate.interval.hi)
    least = f"{f'at least {100 * sure:.1f}' if sure else 'none shown'} with no assumption about the crashed trials"
    rows = (
        ("crashes removed", found.infra, found.infra_ci, removed),
        ("newly solved", found.capability, found.capability_ci, least),
    )
    return [
        line
        for name, value, interval, note in rows
        for line in wrap(
            f"  {name:<15} {points(value):>5} {interval_text(interval):<14}  {note}".replace(
                "  ", "\N{NO-BREAK SPACE}" * 2
            ),
            width,
            "    ",
        )
    ]


# Tasks that move


def movers_lines(agent: AgentResult, width: int) -> list[str]:
    """Return the tasks that move beyond chance; nothing where none could have been found."""
    found = agent.movers
    if found is None or not found.testable:
        return []
    named = listed([_mover(mover) for mover in found.found], _MOST_MOVERS) or f"none of {found.tasks}"
    return wrap(f"tasks that move ({looked_at(found)}, false discovery rate 10%): {named}", width)


def _mover(mover: Mover) -> str:
    # Where the ends do not show the direction that was found, the configs between them do.
    ends_tell = mover.delta > 0 if mover.rising else mover.delta < 0
    cells = (mover.before, mover.after) if ends_tell else tuple(cell for cell in mover.cells if cell.recorded)
    name = f"{'+' if mover.rising else '-'}{mover.task}"
    if len({cell.recorded for cell in cells}) == 1:
        return f"{name} {'->'.join(str(cell.passes) for cell in cells)} of {cells[0].recorded}"
    return f"{name} {'->'.join(f'{cell.passes}/{cell.recorded}' for cell in cells)}"


# Drift


def drift_lines(agent: AgentResult, design: Design, width: int) -> Iterator[str]:
    """Yield what a drift of the machine did to the numbers; whether it was looked for at all is always said."""
    found = agent.drift
    if found is None:
        return
    ratio, p = found.overdispersion, found.overdispersion_p
    if ratio is not None and p is not None and ratio > MOST_DISPERSION and p < design.alpha:
        yield from wrap(
            f"changes vary {ratio:.1f} times as much from round to round as independent trials would "
            f"({p_words(p)}): trials disturb each other, and intervals are too narrow",
            width,
        )
    slots = found.slots
    if slots is None:
        return
    if not slots.measured:
        text = f"all rounds began within one {found.slot}: how scores vary from day to day was not measured"
        yield from wrap(text, width)
        return
    text = f"drift of the score over {slots.slots} {found.slot}s: SD {100 * math.sqrt(slots.sigma2):.1f}"
    if math.isfinite(slots.p):
        text += f" ({p_words(slots.p)})"
    yield from wrap(
        text if slots.trusted else f"{text}; with fewer than five {found.slot}s not to be relied on", width
    )


# Several agents


def ranking_lines(analysis: Analysis, width: int) -> list[str]:
    """Return whether the ranking of the agents depends on the config."""
    found = analysis.interactions
    if not found:
        return []
    ranks = {config: _ranking(analysis, config) for config in analysis.configs}
    known = {config: rank for config, rank in ranks.items() if rank}
    same = len(set(known.values())) == 1
    if same and len(known) > 1:
        text = f"the same under every config: {next(iter(known.values()))}"
    else:
        text = f"by config: {'; '.join(f'{config}: {rank}' for config, rank in known.items())}"
    lines = wrap(f"ranking of the agents (by estimate, not tested), {text}", width)
    return [*lines, *wrap(_interaction_text(found, analysis.design), width)]


def _ranking(analysis: Analysis, config: str) -> str:
    scores = []
    for agent in analysis.agents:
        result = agent.result(config)
        if result is not None and result.score.value is not None:
            scores.append((result.score.value, agent.label))
    if len(scores) < 2:
        return ""
    ordered = sorted(scores, key=lambda entry: -entry[0])
    text = ordered[0][1]
    for (before, _), (after, label) in pairwise(ordered):
        text += f" {'=' if before == after else '>'} {label}"
    return text


def _interaction_text(found: Sequence[Interaction], design: Design) -> str:
    strongest = min(found, key=lambda entry: (_p(entry.delta), -abs(entry.delta.value or 0.0)))
    delta = strongest.delta
    p_holm = _p(delta)
    answer = "depends on the config" if p_holm <= design.alpha else "is not shown to depend on the config"
    which = "" if len(found) == 1 else f", the clearest of {len(found)}"
    few = "; few trials: interval widened" if delta.guarded else ""
    value = 0.0 if delta.value is None else delta.value
    return (
        f"the difference between agents {answer}: {strongest.one} minus {strongest.zero} is "
        f"{points(strongest.before or 0.0)} under {strongest.baseline} and {points(strongest.after or 0.0)} under "
        f"{strongest.config}, {points(value)} {level(design.conf)} CI {interval_text(delta.interval)}, Holm "
        f"{p_words(p_holm)}{which}{few}"
    )


def _p(delta: Delta) -> float:
    return 1.0 if delta.p_holm is None else delta.p_holm
