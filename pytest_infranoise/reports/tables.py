"""The tables about one agent: rates, changes from the baseline, causes, tasks that flip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from pytest_infranoise.analysis import smallest_flip_p
from pytest_infranoise.model import Cause
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import almost_none
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import percent_up
from pytest_infranoise.reports.text import plural
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Delta
from pytest_infranoise.results import Flip
from pytest_infranoise.results import Rate

MOST_FLIPS = 10
SIGNIFICANT = 0.05
_RATES_LEGEND = (
    "pass%: infra-errors count as not passed. excl. infra%: pass% with infra-errors left out, fair only if they "
    "strike good and bad attempts alike."
)


def agent_tables(agent: AgentResult, width: int, *, legend: bool) -> Iterator[list[str]]:
    """Yield each table as lines of at most ``width`` columns, with what its columns mean if asked for."""
    if not any(result.recorded for result in agent.configs):
        yield ["no trial has a record"]
        return
    yield [
        *_rates(agent.configs, width),
        *(wrap(_RATES_LEGEND, width) if legend else ()),
        *_only_infra(agent, width),
    ]
    if agent.comparisons:
        yield _deltas(agent, width, legend=legend)
    yield _causes(agent, width)
    yield _flips(agent, width)


# Rates


def _three(result: ConfigResult) -> tuple[Rate, Rate, Rate]:
    return result.score, result.excluded, result.infra_rate


def _rates(results: Sequence[ConfigResult], width: int) -> list[str]:
    names = Column("config", [fit(result.config, 20) for result in results])
    trials = Column("trials", [_recorded(result) for result in results], right=True)
    counts = Column("pass/fail/infra", [f"{r.passes}/{r.fails}/{r.infra}" for r in results])
    layouts = (
        [names, trials, counts, *_rate_columns(results, long=True)],
        [names, trials, *_rate_columns(results, long=True)],
        [names, trials, *_rate_columns(results, long=False)],
    )
    lines = next((lines for layout in layouts if (lines := table(layout, width))), None)
    return lines or [line for result in results for line in wrap(_rates_in_words(result), width)]


def _rate_columns(results: Sequence[ConfigResult], long: bool) -> list[Column]:
    headings = ("pass% [95% interval]" if long else "pass% [95% CI]", "excl. infra%", "infra%")
    columns = zip(*(_three(result) for result in results), strict=True)
    return [
        Column(heading, bracketed(_rate_cell(rate, long) for rate in column))
        for heading, column in zip(headings, columns, strict=True)
    ]


def _rate_cell(rate: Rate, long: bool) -> tuple[str, str, str] | str:
    if rate.value is None:
        return "none left"
    if almost_none(rate):
        return rate_text(rate) if long else f"{rate.events}/{rate.trials}, <={percent_up(rate.interval.hi)}"
    return percent(rate.value), percent(rate.interval.lo), percent(rate.interval.hi)


def _recorded(result: ConfigResult) -> str:
    return f"{result.recorded} of {result.planned}" if result.missing else f"{result.recorded}"


def _rates_in_words(result: ConfigResult) -> str:
    score, excluded, infra = map(rate_text, _three(result))
    return f"{result.config}: trials {_recorded(result)}; pass {score}; excl. infra {excluded}; infra {infra}"


def _only_infra(agent: AgentResult, width: int) -> list[str]:
    parts = [
        f"{result.config} {len(result.only_infra)} ({listed(result.only_infra, 3)})"
        for result in agent.configs
        if result.only_infra
    ]
    if not parts:
        return []
    return wrap(f"tasks that had only infra-errors, and so are not in excl. infra%: {'; '.join(parts)}", width)


# Deltas


def _deltas(agent: AgentResult, width: int, *, legend: bool) -> list[str]:
    comparisons = agent.comparisons
    baseline = comparisons[0].baseline
    if not any(comparison.score.tasks for comparison in comparisons):
        return wrap(f"no change from {baseline} to tell: no task has trials in both configs", width)
    title = f"change from {baseline} in percentage points, paired by task (overlap above says little):"
    names = Column("config", [fit(comparison.config, 20) for comparison in comparisons])
    score = _delta_columns("pass", [comparison.score for comparison in comparisons])
    infra = _delta_columns("infra", [comparison.infra_rate for comparison in comparisons])
    return [
        *wrap(title, width),
        *(
            table([names, *score, *infra], width)
            or [*_forced([names, *score], width), *_forced([names, *infra], width)]
        ),
        *(wrap(_deltas_legend(len(comparisons)), width) if legend else ()),
        *(line for note in _delta_notes(agent) for line in wrap(note, width)),
    ]


def _forced(columns: Sequence[Column], width: int) -> list[str]:
    lines = table(columns, width)
    if lines is not None:
        return lines
    rows = zip(*(column.texts() for column in columns), strict=True)
    return [line for row in rows for line in wrap("  ".join(cell.strip() for cell in row), width)]


def _delta_columns(outcome: str, deltas: Sequence[Delta]) -> list[Column]:
    columns = [
        Column(f"d {outcome} [95% CI]", bracketed(_delta_cell(delta) for delta in deltas)),
        Column("p", [p_text(delta.p) for delta in deltas], right=True),
    ]
    if len(deltas) > 1:
        columns.append(Column("pHolm", [p_text(delta.p_holm) for delta in deltas], right=True))
    return columns


def _delta_cell(delta: Delta) -> tuple[str, str, str] | str:
    if delta.value is None:
        return "no common task"
    return points(delta.value), points(delta.interval.lo), points(delta.interval.hi)


def _deltas_legend(comparisons: int) -> str:
    text = (
        "p: how often chance alone would do as much (pass: either way; infra: a fall where ceilings are raised, a "
        "rise where they are lowered). A large p means that no difference was shown, not that there is none."
    )
    return text if comparisons == 1 else f"{text} pHolm: p allowing for {comparisons} comparisons."


def _delta_notes(agent: AgentResult) -> Iterator[str]:
    comparisons = agent.comparisons
    if any(comparison.score.method.endswith("+guard") for comparison in comparisons):
        yield "few trials: intervals are widened and p is exact"
    unpaired = [
        f"{comparison.config} {comparison.score.tasks} of {comparison.score.tasks + comparison.score.dropped}"
        for comparison in comparisons
        if comparison.score.dropped
    ]
    if unpaired:
        yield f"tasks with trials in both configs, the only ones compared: {', '.join(unpaired)}"


# Causes


def _causes(agent: AgentResult, width: int) -> list[str]:
    configs = [result.config for result in agent.configs]
    return _grid("trials with", dict(_cause_rows(agent.configs)), configs, width)


def _cause_rows(results: Sequence[ConfigResult]) -> Iterator[tuple[str, list[int]]]:
    causes = Counter[Cause]()
    for result in results:
        causes.update(result.causes)
    if not causes:
        yield "infra-error", [0 for _ in results]
    for cause, _ in sorted(causes.items(), key=lambda item: (-item[1], item[0])):
        yield f"infra-error: {cause}", [result.causes.get(cause, 0) for result in results]
    yield "agent timeout, a fail", [result.timeouts.fails for result in results]
    rare = {
        "agent timeout, yet passed": [result.timeouts.passes for result in results],
        "agent timeout, then infra-error": [result.timeouts.infra for result in results],
        "memory kill, yet passed": [result.survived_kills for result in results],
    }
    yield from ((label, counts) for label, counts in rare.items() if any(counts))
    yield "CPU-starved, any verdict", [result.starved for result in results]


def _grid(heading: str, rows: Mapping[str, Sequence[object]], columns: Sequence[str], width: int) -> list[str]:
    labels = Column(heading, [fit(label, 40) for label in rows])
    cells = [
        Column(fit(name, 20), [f"{cells[place]}" for cells in rows.values()], right=True)
        for place, name in enumerate(columns)
    ]
    lines = table([labels, *cells], width)
    if lines is not None:
        return lines
    words = (
        f"{label}: {', '.join(f'{name} {cell}' for name, cell in zip(columns, cells, strict=True))}"
        for label, cells in rows.items()
    )
    return [f"{heading}:", *(line for text in words for line in wrap(f"  {text}", width, "    "))]


# Flips


def _flips(agent: AgentResult, width: int) -> list[str]:
    flips = agent.flips
    if not any(comparison.score.tasks for comparison in agent.comparisons):
        return []
    if not flips:
        return wrap("tasks that flip: none; every task passed as often under every config", width)
    tasks = len({task for result in agent.configs for task in result.cells})
    rows = {flip.task: [_flip_cell(flip, result.config) for result in agent.configs] for flip in flips[:MOST_FLIPS]}
    lines = _grid("tasks that flip", rows, [result.config for result in agent.configs], width)
    return [*lines, *wrap(_flip_note(agent, flips, tasks), width)]


def _flip_cell(flip: Flip, config: str) -> str:
    cell = flip.cells.get(config)
    if cell is None:
        return "-"
    return f"{cell.passes}/{cell.recorded}" + (f" ({cell.infra})" if cell.infra else "")


def _flip_note(agent: AgentResult, flips: Sequence[Flip], tasks: int) -> str:
    which = f"the {MOST_FLIPS} largest of " if len(flips) > MOST_FLIPS else ""
    samples = max(result.samples[1] for result in agent.configs)
    return (
        f"{which}{plural(len(flips), 'flip')} in {plural(tasks, 'task')}; passes/trials, infra-errors in brackets. "
        f"Places to look, not findings: {_why_no_finding(samples, tasks)}."
    )


def _why_no_finding(samples: int, tasks: int) -> str:
    p = smallest_flip_p(samples)
    if p * tasks < SIGNIFICANT:
        return f"single tasks are not tested here, and of {tasks} some differ by chance"
    text = f"with {plural(samples, 'sample')} even 0/{samples} against {samples}/{samples} has p = {p_text(p)}"
    return text if p >= SIGNIFICANT else f"{text}, and {tasks} tasks were looked at"
