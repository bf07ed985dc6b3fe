"""The summary printed at the end of a session, and by ``infranoise report``.

Pure: an ``Analysis`` and a width give lines of plain ASCII, none of them longer than the width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.reports.calibration import calibration_lines
from pytest_infranoise.reports.conclusions import decomposition_lines
from pytest_infranoise.reports.conclusions import drift_lines
from pytest_infranoise.reports.conclusions import movers_lines
from pytest_infranoise.reports.conclusions import ranking_lines
from pytest_infranoise.reports.conclusions import trend_lines
from pytest_infranoise.reports.notes import run_notes
from pytest_infranoise.reports.tables import causes
from pytest_infranoise.reports.tables import flips
from pytest_infranoise.reports.tables import main_notes
from pytest_infranoise.reports.tables import main_table
from pytest_infranoise.reports.tables import variants
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import level
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import margin_text
from pytest_infranoise.reports.text import together
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Analysis
from pytest_infranoise.units import plural

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_infranoise.gates import GateResult

# A run in which more than this share of trials ended for an unknown cause should not be published.
MOST_UNKNOWN = 0.01
_SMALLEST_WIDTH = 60


def render(analysis: Analysis, width: int) -> list[str]:
    """Return the summary as lines of at most ``width`` columns (at least 60)."""
    width = max(width, _SMALLEST_WIDTH)
    lines = _head(analysis, width)
    several = len(analysis.agents) > 1
    for place, agent in enumerate(analysis.agents):
        if several:
            lines += ["", f"--- agent {fit(agent.label, width - 14)} ---"]
        # What the columns mean is the same for every agent, so it is said once.
        parts = _agent(agent, analysis, width, legend=place == 0)
        lines += [line for part in parts if part for line in ("", *part)]
    ranking = ranking_lines(analysis, width)
    return [*lines, *(["", *ranking] if ranking else []), "", *_foot(analysis, width)]


def _agent(agent: AgentResult, analysis: Analysis, width: int, *, legend: bool) -> Iterator[list[str]]:
    """Yield each part about one agent."""
    if not any(result.recorded for result in agent.configs):
        yield ["no trial has a record"]
        return
    design = analysis.design
    notes = main_notes(agent, design, legend=legend)
    yield [
        *main_table(agent, design, width),
        *(line for note in notes for line in wrap(note, width)),
        *trend_lines(agent, width),
    ]
    yield calibration_lines(agent, analysis, width)
    yield [
        *decomposition_lines(agent, width),
        *variants(agent, width),
        *movers_lines(agent, width),
        *drift_lines(agent, design, width),
    ]
    yield causes(agent, width)
    yield flips(agent, design, width)


def render_gates(results: Sequence[GateResult], width: int) -> list[str]:
    """Return what became of each gate as lines of at most ``width`` columns (at least 60)."""
    return [line for result in results for line in wrap(result.line, max(width, _SMALLEST_WIDTH))]


# What was run


def _head(analysis: Analysis, width: int) -> list[str]:
    lines = wrap(_what_was_run(analysis), width)
    if analysis.cut_short:
        lines += wrap(f"not an estimate: {analysis.cut_short}", width)
    if analysis.meta.get("configs"):
        lines += wrap(_limits(analysis.meta["configs"]), width)
    for note in (*run_notes(analysis.meta), *analysis.meta.get("config_notes", ())):
        lines += wrap(note, width)
    if analysis.recorded:
        lines += wrap(_what_numbers_cover(analysis), width)
    return lines


def _what_numbers_cover(analysis: Analysis) -> str:
    design = analysis.design
    covers = {
        "benchmark": "describe these tasks, not others like them",
        "population": "describe tasks like these (target population), so they are wider than for these tasks alone",
    }[design.target]
    stated = "margin" in (analysis.meta.get("design") or {})
    chosen = "fixed before the run" if stated else "the default: the run states none"
    return (
        f"{level(design.conf)} intervals {covers} ({_methods(analysis)}). Infra-errors count as failures. Margin "
        f"{margin_text(design.margin)}, {chosen}."
    )


def _what_was_run(analysis: Analysis) -> str:
    meta = analysis.meta
    if not analysis.planned:
        return "no trial was planned"
    tasks = {task for agent in analysis.agents for result in agent.configs for task in result.cells}
    samples, agents = int(meta.get("samples", 0)), len(analysis.agents)
    sizes = [(len(tasks), "task"), (len(analysis.configs), "config"), (samples, "sample")]
    if agents > 1:
        sizes.append((agents, "agent"))
    trials = plural(analysis.planned, "trial")
    if math.prod(number for number, _ in sizes) == analysis.planned:
        parts = [f"{' x '.join(plural(number, noun) for number, noun in sizes)} = {trials}"]
    else:
        parts = [f"{trials} of {', '.join(plural(number, noun) for number, noun in sizes)}"]
    parts.append(f"agent{'' if agents == 1 else 's'} {listed([agent.label for agent in analysis.agents], 4)}")
    if meta.get("seed") is not None:
        parts.append(f"seed {meta['seed']}")
    if analysis.pass_threshold != 1:
        parts.append(f"a pass is a reward of at least {analysis.pass_threshold:g}")
    return "; ".join(parts)


def _limits(configs: Sequence[Mapping[str, Any]]) -> str:
    """Say in one sentence what the configs are; ``configs`` as in run.json."""
    if all(entry[resource]["floor"] == 1 for entry in configs for resource in ("cpus", "memory")):
        ceilings = ", ".join(together(f"{entry['name']} = {_both(entry, _ceiling)}") for entry in configs)
        text = f"floor: every trial is guaranteed its task's spec; ceiling, the hard limit: {ceilings}"
    else:
        ranges = ", ".join(together(f"{entry['name']} = {_both(entry, _range)}") for entry in configs)
        text = f"floor (guaranteed) to ceiling (hard limit): {ranges}"
    times = [together(f"{entry['name']} = {entry['time']:g} x the task's") for entry in configs if _timed(entry)]
    return f"{text}; agent timeout: {', '.join(times)}" if times else text


def _timed(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("time", 1) != 1)


def _both(entry: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str]) -> str:
    cpus, memory = text(entry["cpus"]), text(entry["memory"])
    return cpus if cpus == memory else f"{cpus} CPU and {memory} memory"


def _ceiling(rule: Mapping[str, Any]) -> str:
    if rule["ceiling"] == "task":
        return "the task's own"
    return "none" if rule["ceiling"] is None else _end(rule["ceiling"])


def _range(rule: Mapping[str, Any]) -> str:
    return f"{_end(rule['floor'])} to {_ceiling(rule)}"


def _end(end: float | str) -> str:
    """Return a multiple of the spec in words; an amount is a text already."""
    if isinstance(end, str):
        return end
    return "spec" if end == 1 else f"{end:g} x spec"


def _methods(analysis: Analysis) -> str:
    rates = (
        rate for agent in analysis.agents for result in agent.configs for rate in (result.score, result.infra_rate)
    )
    return ", ".join(sorted({rate.method for rate in rates if rate.tasks}, reverse=True))


# What a reader needs to judge it


def _foot(analysis: Analysis, width: int) -> Iterator[str]:
    yield from wrap(_accounts(analysis), width)
    for note in _notes(analysis):
        yield from wrap(note, width)
    yield from wrap(_tasks(analysis), width)
    if analysis.meta.get("preflight"):
        yield from wrap(_preflight(analysis.meta["preflight"], analysis.path), width)
    if analysis.meta.get("enforcement"):
        yield from wrap(f"limits: {analysis.meta['enforcement']}", width)
    yield from wrap(f"records: {analysis.path}", width)


def _accounts(analysis: Analysis) -> str:
    text = f"planned {analysis.planned} = recorded {analysis.recorded} + missing {analysis.missing}"
    if analysis.missing:
        by_config = Counter[str]()
        for agent in analysis.agents:
            by_config.update({result.config: result.missing for result in agent.configs})
        text += f" ({', '.join(f'{config} {number}' for config, number in by_config.items() if number)})"
        text += "; rates are over recorded trials only"
    return text


def _notes(analysis: Analysis) -> Iterator[str]:
    if analysis.unfinished:
        yield f"{plural(analysis.unfinished, 'attempt')} began and never ended"
    if analysis.damaged:
        yield f"{plural(analysis.damaged, 'journal line')} could not be read"
    yield from analysis.meta.get("run_notes", ())
    if analysis.unplanned:
        yield f"{plural(analysis.unplanned, 'record')} of trials that were not planned: counted nowhere"
    if analysis.retries:
        passed = f"retries: {analysis.retries_passed} of {plural(analysis.retries, 'later attempt')} passed"
        yield f"{passed}; rates are of first attempts"
    results = [result for agent in analysis.agents for result in agent.configs]
    unknown = sum(result.causes.get(Cause.UNKNOWN, 0) for result in results)
    if unknown > MOST_UNKNOWN * analysis.recorded:
        yield f"{plural(unknown, 'trial')} ended for an unknown cause: too many to publish these numbers"
    tampered = sum(result.flags.get(Flag.TAMPERED, 0) for result in results)
    if tampered:
        yield f"{plural(tampered, 'trial')} with signs of tampering with the verdict: none is a pass"
    changed = sum(result.flags.get(Flag.TOOLS_CHANGED, 0) for result in results)
    if changed:
        yield f"{plural(changed, 'trial')} changed programs that the verifier relies on, in ways that may be honest"
    leaked = sum(result.flags.get(Flag.LEAKED, 0) for result in results)
    if leaked:
        yield f"{plural(leaked, 'trial')} left a container behind that could not be removed"
    if (analysis.meta.get("schedule") or {}).get("remark"):
        yield f"order: {analysis.meta['schedule']['remark']}"


def _tasks(analysis: Analysis) -> str:
    tasks = analysis.tasks
    parts = [f"{len(tasks.measured)} of {plural(tasks.collected, 'task')} measured"]
    by_reason: dict[str, list[str]] = {}
    for task, reason in tasks.skipped.items():
        by_reason.setdefault(reason, []).append(task)
    parts += [f"skipped: {listed(names, 3)}: {reason}" for reason, names in by_reason.items()]
    if tasks.not_run:
        parts.append(f"without a record: {listed(tasks.not_run, 3)}")
    if tasks.broken:
        parts.append(f"{tasks.broken} could not be collected")
    return "; ".join(parts)


def _preflight(found: Mapping[str, Any], path: Path) -> str:
    """Say what the preflight found; ``found`` as in run.json."""
    quarantined, checked, unchecked = (found[key] for key in ("quarantined", "tasks", "unchecked"))
    fit = f"{len(checked) - len(quarantined)} of {plural(len(checked), 'task')} fit"
    parts = [f"preflight under {found['config']}: {fit}"]
    if quarantined:
        parts.append(
            f"{plural(len(quarantined), 'task')} quarantined, which fails the run (deselect what you know to be "
            f"unfit); logs: {path / 'preflight'}"
        )
    noted = [name for name, fitness in checked.items() if fitness["notes"]]
    if noted:
        parts.append(f"with less than oracle and nop: {listed(noted, 3)}")
    if unchecked:
        parts.append(f"not checked: {listed(unchecked, 3)}")
    return "; ".join(parts)
