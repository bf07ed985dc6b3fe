"""What ``infranoise calibrate`` prints: the decision, shadow ceilings beside it, and what was written."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from pytest_infranoise.design import Design
from pytest_infranoise.findings import Calibration
from pytest_infranoise.findings import CalibrationRow
from pytest_infranoise.reports.calibration import calibration_lines
from pytest_infranoise.reports.calibration import cut_text
from pytest_infranoise.reports.layout import SMALLEST_WIDTH
from pytest_infranoise.reports.layout import tabulated
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import interval_text
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_cell
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.shadows import ShadowTable
from pytest_infranoise.spec_advice import TaskAdvice
from pytest_infranoise.units import plural


def render_calibration(analysis: Analysis, shadows: Sequence[ShadowTable], width: int) -> list[str]:
    """Return the calibration of every agent as lines of at most ``width`` columns (at least 60)."""
    width = max(width, SMALLEST_WIDTH)
    lines = wrap(_title(analysis), width)
    if analysis.cut_short:
        lines += wrap(f"not an estimate: {analysis.cut_short}", width)
    by_agent = {shadow.agent: shadow for shadow in shadows}
    for agent in analysis.agents:
        if len(analysis.agents) > 1:
            lines += ["", f"--- agent {fit(agent.label, width - 14)} ---"]
        lines += ["", *_decision(agent, analysis, width)]
        if agent.label in by_agent:
            lines += ["", *_shadow(by_agent[agent.label], width, 100 * analysis.design.conf)]
    return lines


def _title(analysis: Analysis) -> str:
    design = analysis.design
    return (
        f"calibration of run {analysis.run}: the smallest ceiling above {analysis.baseline or 'the baseline'} that "
        f"cuts infra-errors by {100 * design.min_cut:g}% or more, and whether the score is the same within "
        f"+-{100 * design.margin:g}pp there (alpha {design.alpha:g}, "
        f"{'these tasks' if design.target == 'benchmark' else 'tasks like these'})"
    )


# The decision


def _decision(agent: AgentResult, analysis: Analysis, width: int) -> list[str]:
    lines = calibration_lines(agent, analysis, width)
    if not lines:
        why = agent.no_chain or "it needs a baseline and a config with a higher ceiling, both with records"
        return wrap(f"CALIBRATION  none: {why}", width)
    found = agent.calibration
    if found is None or analysis.cut_short:
        return lines
    hint = _next_step(agent, found, analysis)
    if hint:
        label = "           " if found.status == "score-moves" else "to settle  "
        lines += wrap(f"  {label}{hint}", width, " " * 13)
    return [*lines, "", *_gate(agent, found, analysis.design, width)]


def _next_step(agent: AgentResult, found: Calibration, analysis: Analysis) -> str:
    """Return what to run where more samples of the same configs settle nothing, or not that."""
    if found.status == "score-moves":
        return f"or try a ceiling between {analysis.baseline} and {found.candidate}"
    baseline = agent.result(analysis.baseline)
    if found.status != "no-infra-reduction" or baseline is None or not baseline.infra:
        return ""
    # Past the gate and yet no candidate: it has no ceiling that could be chosen.
    open_ended = [row.config for row in found.rows if row.gate]
    short = [row for row in found.rows if not row.gate]
    straddling = [row.config for row in short if row.cut is not None and row.cut >= analysis.design.min_cut]
    if straddling:
        return f"more samples: {listed(straddling, 3)} cut enough, which chance could have done too"
    if open_ended:
        below = short[-1].config if short else analysis.baseline
        return f"a ceiling above {below}: {open_ended[0]} cut enough, and that is no ceiling"
    return "a higher ceiling: none that was run cut enough"


def _gate(agent: AgentResult, found: Calibration, design: Design, width: int) -> list[str]:
    baseline = agent.comparisons[0].baseline if agent.comparisons else "-"
    rates = {result.config: rate_text(result.infra_rate) for result in agent.configs}
    rows = found.rows
    columns = [
        Column("ceiling", [fit(baseline, 20), *(fit(row.config, 20) for row in rows)]),
        Column("infra%", [rates.get(baseline, "-"), *(rates.get(row.config, "-") for row in rows)]),
        Column("cut", ["-", *(cut_text(row.cut) for row in rows)], right=True),
        Column("pHolm", ["-", *(p_text(row.p_infra_holm) for row in rows)], right=True),
        Column("fewer", ["-", *("shown" if row.p_infra_holm <= design.alpha else "not shown" for row in rows)]),
        Column(f"cut>={100 * design.min_cut:g}%", ["-", *(_enough(row, design) for row in rows)]),
    ]
    lines = tabulated(columns, width)
    if any(row.infra_rate.dropped for row in agent.comparisons):
        lines += wrap("cut and pHolm are of the tasks that ran under both configs, infra% is of all", width)
    return lines


def _enough(row: CalibrationRow, design: Design) -> str:
    """Say whether a cut is large enough, which nobody tests."""
    if row.cut is None:
        return "-"
    return "by estimate" if row.cut >= design.min_cut else "no"


# Shadow ceilings


def _shadow(found: ShadowTable, width: int, level: float) -> list[str]:
    source = f"{plural(found.trials, 'trial')} of {plural(found.tasks, 'task')} under {found.source}"
    if not found.forecasts:
        return wrap(f"SHADOW CEILINGS  none: {found.reason}", width)
    lines = wrap(
        f"SHADOW CEILINGS  a forecast from {source}, no verdict; pass% {percent(found.score)} there", width
    )
    rows = found.forecasts
    columns = [
        Column("ceiling", [fit(row.label, 20) for row in rows]),
        Column("killed%", [rate_cell(row.killed) for row in rows], right=True),
        Column("tasks", [str(row.tasks) for row in rows], right=True),
        Column(
            f"pass% [{level:.3g}% CI]",
            bracketed((percent(row.score), percent(row.interval.lo), percent(row.interval.hi)) for row in rows),
        ),
    ]
    checks = [row.check for row in rows]
    if any(checks):
        columns += [
            Column("really: killed%", [rate_cell(check.killed) if check else "-" for check in checks], right=True),
            Column("pass%", [percent(check.score) if check else "-" for check in checks], right=True),
            Column("check", [_check(check.off) if check else "not run" for check in checks]),
        ]
    lines += [f"  {line}" for line in tabulated(columns, width - 2, (3, 2, 1))]
    return [*lines, *(line for text in _shadow_notes(found) for line in wrap(text, width))]


def _check(off: bool) -> str:
    return "OFF" if off else "fits"


def _shadow_notes(found: ShadowTable) -> Iterator[str]:
    yield (
        "assumed: what a trial does before it meets a ceiling does not depend on the ceiling, and a kill costs the "
        "pass. Agents and allocators adapt, kills can be survived, and needs are samples of anonymous plus "
        "shared memory, so lower bounds. Use it to choose which ceilings to run."
    )
    checks = [(row.label, row.check) for row in found.forecasts if row.check is not None]
    off = [(label, check) for label, check in checks if check.off]
    for label, check in off:
        kills, passes = check.kills, check.passes
        yield (
            f"OFF at {label}: measured minus forecast, killed {points(kills.est)} {interval_text(kills.ci)}, pass "
            f"{points(passes.est)} {interval_text(passes.ci)}: do not trust the other rows either"
        )
    if checks and not off:
        yield "fits: no difference beyond noise was seen, which does not show that there is none"
    if found.unknown:
        yield f"{plural(found.unknown, 'trial')} of {found.source} without a sample of memory: left out"
    if found.killed:
        yield (
            f"{plural(found.killed, 'trial')} met the ceiling of {found.source} itself: counted as killed under "
            "every lower one"
        )


# Recommended specs


def _worth(analysis: Analysis, chosen: str | None, beyond: Sequence[str]) -> Iterator[str]:
    """Yield what was not shown about the ceilings that are recommended."""
    found = [(agent.label, agent.calibration) for agent in analysis.agents]
    if chosen is None or any(entry is None or entry.pick != chosen for _, entry in found):
        moved = [
            f"{entry.candidate} ({label})" if len(found) > 1 else f"{entry.candidate}"
            for label, entry in found
            if entry is not None and entry.status == "score-moves"
        ]
        picks = {label: entry.pick for label, entry in found if entry is not None and entry.pick}
        text = "not calibrated: these ceilings are what killed nothing; "
        if moved:
            yield f"{text}the score was shown to move under {listed(moved, 3)}"
        elif picks and chosen is not None:
            shown = listed([f"for {label} under {pick}" for label, pick in picks.items()], 3)
            yield f"{text}they are from {chosen}, and the score is shown to stay {shown} only"
        else:
            yield f"{text}that they leave the score where it was is not shown"
    if chosen is not None and beyond:
        yield (
            f"a ceiling above that of {chosen} for {plural(len(beyond), 'task')} ({listed(beyond, 3)}): no part of "
            "what was tested"
        )


def render_written(
    path: str,
    advice: Sequence[TaskAdvice],
    analysis: Analysis,
    chosen: str | None,
    beyond: Sequence[str],
    width: int,
) -> list[str]:
    """Return what was written where, what it is worth, and for which tasks something had to stay blank.

    ``chosen`` is the config that the ceilings start from, ``beyond`` the tasks whose ceilings had to be higher.
    """
    width = max(width, SMALLEST_WIDTH)
    complete = sum(task.complete for task in advice)
    lines = wrap(
        f"written: {path}, floors and ceilings of {plural(len(advice), 'task')}, {complete} complete", width
    )
    lines += [line for text in _worth(analysis, chosen, beyond) for line in wrap(text, width)]
    by_reason: dict[str, list[str]] = {}
    for task in advice:
        parts = {
            "memory floor": task.memory_floor,
            "memory ceiling": task.memory_ceiling,
            "CPU floor": task.cpus_floor,
            "CPU ceiling": task.cpus_ceiling,
        }
        for name, part in parts.items():
            if part.value is None:
                by_reason.setdefault(f"{name}: {part.reason}", []).append(task.task)
    for reason, tasks in by_reason.items():
        lines += wrap(f"blank for {listed(tasks, 3)}: {reason}", width)
    return lines
