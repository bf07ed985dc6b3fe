"""What ``infranoise calibrate`` prints: the decision, shadow ceilings beside it, and what was written."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from pytest_infranoise.findings import Calibration
from pytest_infranoise.findings import Planner
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import plural
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.results import Comparison
from pytest_infranoise.shadows import ShadowTable
from pytest_infranoise.spec_advice import TaskAdvice
from pytest_infranoise.stats.rates import Interval

SMALLEST_WIDTH = 60
_MEANING = {
    "calibrated": "use {candidate}: it cuts infra-errors and leaves the score where it was",
    "inconclusive": "{candidate} cuts infra-errors; whether it leaves the score where it was is not shown",
    "score-moves": "{candidate} cuts infra-errors, and the score moves with it: not a calibrated ceiling",
    "no-infra-reduction": "no ceiling that was run is shown to cut infra-errors enough",
}


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
    found = agent.calibration
    if found is None:
        why = agent.no_chain or "it needs a baseline and a config with a higher ceiling, both with records"
        return wrap(f"CALIBRATION  none: {why}", width)
    meaning = _MEANING[found.status].format(candidate=found.candidate)
    lines = [*wrap(f"CALIBRATION  {found.status}: {meaning}", width), *_gate(agent, found, width)]
    comparison = agent.comparison(found.candidate)
    if comparison is not None:
        lines += [
            line for text in _score(comparison, found, analysis) for line in wrap(f"  {text}", width, " " * 13)
        ]
    for place, text in enumerate(_settle(agent, found, analysis)):
        lines += wrap(f"  {'to settle' if not place else '         '}  {text}", width, " " * 13)
    return lines


def _gate(agent: AgentResult, found: Calibration, width: int) -> list[str]:
    baseline = agent.comparisons[0].baseline if agent.comparisons else "-"
    rates = {result.config: rate_text(result.infra_rate) for result in agent.configs}
    rows = found.rows
    columns = [
        Column("ceiling", [fit(baseline, 20), *(fit(row.config, 20) for row in rows)]),
        Column("infra%", [rates.get(baseline, "-"), *(rates.get(row.config, "-") for row in rows)]),
        Column("cut", ["-", *(_cut(row.cut) for row in rows)], right=True),
        Column("pHolm", ["-", *(p_text(row.p_infra_holm) for row in rows)], right=True),
        Column("enough", ["-", *("yes" if row.gate else "not shown" for row in rows)]),
    ]
    lines = table(columns, width - 2) or [
        f"{row.config}: {rates.get(row.config, '-')}, cut {_cut(row.cut)}, pHolm {p_text(row.p_infra_holm)}"
        for row in rows
    ]
    return [f"  {line}" for line in lines]


def _cut(cut: float | None) -> str:
    return "-" if cut is None else f"{100 * cut:.0f}%"


def _score(comparison: Comparison, found: Calibration, analysis: Analysis) -> Iterator[str]:
    baseline, config, equivalence = comparison.baseline, comparison.config, comparison.equivalence
    row = next(row for row in found.rows if row.config == config)
    yield (
        f"shown      infra-errors of {config} below those of {baseline} by {_cut(row.cut)} "
        f"(pHolm {p_text(row.p_infra_holm)})"
    )
    if equivalence is None or comparison.score.value is None:
        yield "not shown  anything about the score: no task has trials in both configs"
        return
    margin = f"+-{100 * analysis.design.margin:g}pp"
    level = f"{100 * (1 - 2 * analysis.design.alpha):g}% CI"
    shown = f"d = {points(comparison.score.value)}, {level} {_brackets(equivalence.interval)}"
    if equivalence.shown:
        yield f"shown      pass rate within {margin} of {baseline}: {shown}"
        return
    smallest = f"{100 * equivalence.smallest:.1f}pp"
    yield f"not shown  pass rate within {margin} of {baseline}: {shown}. Same within +-{smallest}."
    p = comparison.score.p
    if found.status == "score-moves":
        yield f"shown      that the score moves: {_p_is(p)}"
    else:
        yield (
            f"           {_p_is(p)} means that no difference was detected, not that there is none: "
            f"{smallest} would also fit."
        )


def _brackets(interval: Interval) -> str:
    return f"[{points(interval.lo)}, {points(interval.hi)}]"


def _p_is(p: float | None) -> str:
    text = p_text(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def _settle(agent: AgentResult, found: Calibration, analysis: Analysis) -> Iterator[str]:
    if found.status == "calibrated":
        return
    if found.status == "score-moves":
        yield f"no number of samples will; try a ceiling between {analysis.baseline} and {found.candidate}"
        return
    if found.status == "no-infra-reduction":
        yield from _settle_gate(agent, found, analysis)
        return
    planner = agent.planner
    if planner is None:
        yield "cannot be told: no task has two samples with different outcomes; run more samples"
        return
    margin = 100 * analysis.design.margin
    d = f"if d is {points(planner.delta)}"
    yield f"+-{margin:g}pp: {_samples(planner.for_margin, d)}; +-5pp: {_samples(planner.for_five, d)}"
    yield f"+-{margin:g}pp: {_samples(planner.for_margin_if_zero, 'if d is 0')}; now {planner.samples:.3g}"
    yield from _near(planner, margin)


def _near(planner: Planner, margin: float) -> Iterator[str]:
    if planner.near_spec is None:
        yield "which tasks came near their spec is not known: memory was not measured for all"
    elif planner.near_spec:
        near = plural(len(planner.near_spec), "task")
        yield f"only the {near} near their spec: +-{margin:g}pp {_samples(planner.for_margin_near, '')}"


def _samples(number: int | None, condition: str) -> str:
    text = "no number of samples" if number is None else plural(number, "sample") + " per task"
    return f"{text} {condition}".rstrip()


def _settle_gate(agent: AgentResult, found: Calibration, analysis: Analysis) -> Iterator[str]:
    baseline = next((result for result in agent.configs if result.config == analysis.baseline), None)
    if baseline is not None and not baseline.infra:
        yield f"nothing to cut: {baseline.config} had no infra-error ({rate_text(baseline.infra_rate)})"
        return
    # Past the gate and yet no candidate: it has no ceiling that could be chosen.
    open_ended = [row.config for row in found.rows if row.gate]
    short = [row for row in found.rows if not row.gate]
    straddling = [row.config for row in short if row.cut is not None and row.cut >= analysis.design.min_cut]
    if straddling:
        yield f"more samples: {listed(straddling, 3)} cut them enough, which chance could have done too"
    elif open_ended:
        below = short[-1].config if short else analysis.baseline
        yield f"a ceiling above {below}: {open_ended[0]} cut them enough, and that is no ceiling"
    else:
        yield "a higher ceiling: none that was run cut them enough"


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
        Column("killed%", [percent(row.killed) for row in rows], right=True),
        Column("tasks", [str(row.tasks) for row in rows], right=True),
        Column(
            f"pass% [{level:.3g}% CI]",
            bracketed((percent(row.score), percent(row.interval.lo), percent(row.interval.hi)) for row in rows),
        ),
    ]
    checks = [row.check for row in rows]
    if any(checks):
        columns += [
            Column("really: killed%", [percent(check.killed) if check else "-" for check in checks], right=True),
            Column("pass%", [percent(check.score) if check else "-" for check in checks], right=True),
            Column("check", [_check(check.off) if check else "not run" for check in checks]),
        ]
    body = table(columns, width - 2, (3, 2, 1)) or [
        "  ".join(cells) for cells in zip(*(column.texts() for column in columns), strict=True)
    ]
    lines += [f"  {line}" for line in body]
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
            f"OFF at {label}: measured minus forecast, killed {points(kills.est)} {_brackets(kills.ci)}, pass "
            f"{points(passes.est)} {_brackets(passes.ci)}: do not trust the other rows either"
        )
    if checks and not off:
        yield "fits: forecast and measurement differ by sampling noise at most, which proves nothing"
    if found.unknown:
        yield f"{plural(found.unknown, 'trial')} of {found.source} without a sample of memory: left out"
    if found.killed:
        yield (
            f"{plural(found.killed, 'trial')} met the ceiling of {found.source} itself: counted as killed under "
            "every lower one"
        )


# Recommended specs


def render_written(path: str, advice: Sequence[TaskAdvice], calibrated: bool, width: int) -> list[str]:
    """Return what was written where, and for which tasks something had to stay blank."""
    width = max(width, SMALLEST_WIDTH)
    complete = sum(task.complete for task in advice)
    lines = wrap(
        f"written: {path}, floors and ceilings of {plural(len(advice), 'task')}, {complete} complete", width
    )
    if not calibrated:
        lines += wrap(
            "not calibrated: these ceilings are what killed nothing; that they leave the score where it was is not "
            "shown",
            width,
        )
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
