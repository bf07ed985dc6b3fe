"""Which ceiling to use, in sentences: what is shown, what is not, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_infranoise.design import Design
from pytest_infranoise.findings import Calibration
from pytest_infranoise.findings import Planner
from pytest_infranoise.reports.text import interval_text
from pytest_infranoise.reports.text import level
from pytest_infranoise.reports.text import margin_text
from pytest_infranoise.reports.text import p_words
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import percent_up
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rounds_to_zero
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.units import plural

_LABEL = "  {:<11}"
_HANGING = " " * 13
# More samples than this per task and config are no plan but a way to say "never".
_MOST_SAMPLES = 1000
_MOST_TASKS = 100_000
FIVE_POINTS = 0.05


def calibration_lines(agent: AgentResult, analysis: Analysis, width: int) -> list[str]:
    """Return which ceiling to use: what is shown, what is not, and what would settle it."""
    found = agent.calibration
    if found is None:
        if agent.chain is None or analysis.baseline not in agent.chain or len(agent.chain) < 2:
            return []
        return wrap(
            f"CALIBRATION  none: no config has higher ceilings than the baseline {analysis.baseline}", width
        )
    if analysis.cut_short:
        return wrap("CALIBRATION  none: this run is not an estimate", width)
    zero = agent.result(analysis.baseline)
    comparison = agent.comparison(found.candidate)
    lines = wrap(f"CALIBRATION  {_status(found, comparison, analysis.design)}", width)
    one = agent.result(found.candidate)
    if zero is None or comparison is None or one is None:
        return [*lines, *_labelled("not shown", _no_reduction(agent, found, zero, analysis.design), width)]
    design = analysis.design
    lines += _labelled("shown", _reduction(found, zero, one), width)
    within = _within(comparison, design)
    if found.status == "calibrated":
        return [*lines, *_labelled("", within, width), *_labelled("", _coarse(found), width)]
    lines += _labelled("not shown", f"{within}. {_other_reading(comparison, found, design)}", width)
    if found.status == "score-moves" and _another_benchmark(comparison, design):
        # More samples would only show it better.
        return lines
    return [*lines, *_to_settle(agent.planner, design, width)]


def _status(found: Calibration, comparison: Comparison | None, design: Design) -> str:
    if found.status == "score-moves" and comparison is not None:
        if _another_benchmark(comparison, design):
            return f"the score moves: {found.candidate} has fewer infra-errors, and is not the same benchmark"
        by = f"by more than {margin_text(design.margin)} is not shown"
        return f"the score moves: {found.candidate} has fewer infra-errors; whether the score moves {by}"
    return {
        "calibrated": f"calibrated: {found.pick} instead of {comparison.baseline if comparison else '-'}",
        "inconclusive": f"inconclusive; best candidate {found.candidate}",
        "score-moves": f"the score moves under {found.candidate}",
        "no-infra-reduction": "no ceiling is known to cut infra-errors enough",
    }[found.status]


def _another_benchmark(comparison: Comparison, design: Design) -> bool:
    """Whether the score is shown to move by the margin or more."""
    interval = comparison.score.interval
    return interval.lo >= design.margin or interval.hi <= -design.margin


def _labelled(label: str, text: str, width: int) -> list[str]:
    if not text:
        return []
    return wrap(_LABEL.format(label).replace(" ", "\N{NO-BREAK SPACE}") + text, width, _HANGING)


def _reduction(found: Calibration, zero: ConfigResult, one: ConfigResult) -> str:
    """Say that infra-errors fell, which was tested, and by how much, which is an estimate."""
    row = next(row for row in found.rows if row.config == one.config)
    pairs = [(cell, one.cells.get(task, Cell())) for task, cell in zero.cells.items()]
    pairs = [pair for pair in pairs if all(cell.recorded for cell in pair)]
    before, after = (_infra([pair[place] for pair in pairs]) for place in (0, 1))
    cut = f"cut by about {cut_text(row.cut)}, {before} -> {after}"
    text = f"fewer infra-errors (Holm {p_words(row.p_infra_holm)}); {cut}"
    left_out = sum(bool(cell.recorded) for result in (zero, one) for cell in result.cells.values()) - 2 * len(pairs)
    return f"{text}, on the {plural(len(pairs), 'task')} that ran under both" if left_out else text


def _infra(cells: Sequence[Cell]) -> str:
    """Return the infra-error rate of tasks, all of them with records."""
    share = sum(cell.infra / cell.recorded for cell in cells) / len(cells)
    if rounds_to_zero(share):
        return f"{sum(cell.infra for cell in cells)} of {sum(cell.recorded for cell in cells)}"
    return f"{percent(share)}%"


def cut_text(cut: float | None) -> str:
    """Return the share of infra-errors that is gone, ``-`` where there were none to compare."""
    return "-" if cut is None else f"{100 * cut:.0f}%"


def _no_reduction(agent: AgentResult, found: Calibration, zero: ConfigResult | None, design: Design) -> str:
    if zero is not None and zero.infra == 0:
        rate = zero.infra_rate
        most = percent_up(rate.interval.hi)
        return f"anything to cut: {zero.config} had 0 infra-errors in {rate.trials} trials, at most {most}"
    rows = [row for row in found.rows if agent.result(row.config) is not None]
    parts = [
        f"{row.config} not comparable"
        if row.cut is None
        else f"{row.config} {cut_text(row.cut)} (Holm {p_words(row.p_infra_holm)})"
        for row in rows
    ]
    cut = f"{100 * design.min_cut:g}%"
    return f"that a ceiling cuts infra-errors by {cut} or more; the cuts seen: {', '.join(parts)}"


def _within(comparison: Comparison, design: Design) -> str:
    found = comparison.equivalence
    value = comparison.score.value
    if found is None or value is None:
        return ""
    covers = level(1 - 2 * design.alpha)
    return (
        f"pass rate within {margin_text(design.margin)} of {comparison.baseline}'s: d = {points(value)}, {covers} "
        f"CI {interval_text(found.interval)}"
    )


def _other_reading(comparison: Comparison, found: Calibration, design: Design) -> str:
    p, equivalence = comparison.score.p, comparison.equivalence
    if p is None or equivalence is None:
        return ""
    if found.status == "score-moves":
        much = "; by how much is not shown" if comparison.score.size_unknown(design.alpha) else ""
        return f"It moves: {p_words(p)}{much}."
    other = max(equivalence.interval, key=abs)
    means = "means that no difference was detected, not that there is none"
    return f"{p_words(p)} {means}: {points(other)} would also fit."


def _coarse(found: Calibration) -> str:
    """Say how the smaller ceilings did: the grid is coarse, and neighbours can rarely be told apart."""
    smaller = []
    for row in found.rows:
        if row.config == found.pick:
            break
        smaller.append(f"{row.config} cuts {cut_text(row.cut)} (Holm {p_words(row.p_infra_holm)})")
    return f"the grid is coarse: {', '.join(smaller)}" if smaller else ""


def _to_settle(planner: Planner | None, design: Design, width: int) -> list[str]:
    if planner is None:
        why = "the variance of single trials is not known: two samples per task or more"
        return _labelled("to settle", why, width)
    if planner.few:
        why = "more data; how much cannot be told from so few trials, or so few tasks that differ"
        return _labelled("to settle", why, width)
    if planner.counts == "tasks":
        return _labelled("to settle", _tasks_needed(planner, design), width)
    settled = f"{margin_text(design.margin)}: {_enough(planner.for_margin_if_zero)}"
    pairs = [(design.margin, planner.for_margin)]
    if not math.isclose(design.margin, FIVE_POINTS):
        pairs.append((FIVE_POINTS, planner.for_five))
    text = f"{_needed(pairs)}, if d stays {points(planner.delta)}; {settled}, if d is 0"
    lines = _labelled("to settle", text, width)
    if planner.near_spec:
        near = [(design.margin, planner.for_margin_near)]
        if not math.isclose(design.margin, FIVE_POINTS):
            near.append((FIVE_POINTS, planner.for_five_near))
        lines += _labelled(
            "",
            f"rerunning only the {plural(len(planner.near_spec), 'task')} that came near the spec: {_needed(near)}",
            width,
        )
    return lines


def _tasks_needed(planner: Planner, design: Design) -> str:
    def tasks(number: int | None) -> str:
        if number is None:
            return "never"
        return f"more than {_MOST_TASKS} tasks" if number > _MOST_TASKS else f"about {plural(number, 'task')}"

    parts = [f"{margin_text(design.margin)}: {tasks(planner.for_margin)}"]
    if not math.isclose(design.margin, FIVE_POINTS):
        parts.append(f"{margin_text(FIVE_POINTS)}: {tasks(planner.for_five)}")
    if_zero = f"{margin_text(design.margin)}: {tasks(planner.for_margin_if_zero)}, if d is 0"
    text = f"{'; '.join(parts)}, if d stays {points(planner.delta)}; {if_zero}"
    return f"{text}. More samples of the same {plural(planner.tasks, 'task')} hardly help."


def _needed(pairs: Sequence[tuple[float, int | None]]) -> str:
    return "; ".join(f"{margin_text(margin)}: {_enough(number)}" for margin, number in pairs)


def _enough(number: int | None) -> str:
    if number is None:
        return "never"
    if number > _MOST_SAMPLES:
        return f"more than {_MOST_SAMPLES} samples/task"
    return f"{plural(number, 'sample')}/task"
