"""The tables about one agent: rates and changes from the baseline, causes, tasks that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

from pytest_infranoise.analysis import smallest_flip_p
from pytest_infranoise.design import Design
from pytest_infranoise.model import Cause
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import almost_none
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import few_trials
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import level
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import looked_at
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import plus_minus
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_cell
from pytest_infranoise.reports.text import rate_text
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import together
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.results import AgentResult
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Delta
from pytest_infranoise.results import Flip
from pytest_infranoise.results import Rate
from pytest_infranoise.results import Spread
from pytest_infranoise.units import plural

MOST_FLIPS = 10
# Of more tasks than this, some differ by chance alone, and their list is no longer worth ten lines.
_MANY_TASKS = 20
_LONGEST_NAME = 20
_BASELINE = "(baseline)"
_NONE = "-"


# Rates and changes


def main_table(agent: AgentResult, design: Design, width: int) -> list[str]:
    """Return rates and changes side by side, or as two tables where that is too wide."""
    names = Column("config", [fit(result.config, _LONGEST_NAME) for result in agent.configs])
    trials = _trials(agent.configs)
    long, short = ([names, *trials, *_rate_columns(agent.configs, design, long=long)] for long in (True, False))
    changes = _change_columns(agent, design)
    if not changes:
        return table(long, width) or _forced(short, width)
    lines = table([*long, *changes], width) or table([*short, *changes], width)
    if lines is not None:
        return lines
    excluded = Column("excl. infra%", [_plain(result.excluded) for result in agent.configs], right=True)
    layouts = ([*long, excluded], [*short, excluded])
    first = next((lines for layout in layouts if (lines := table(layout, width))), None) or _forced(short, width)
    below = [place for place, result in enumerate(agent.configs) if agent.comparison(result.config)]
    cut = [Column(c.heading, [c.cells[place] for place in below], c.right) for c in (names, *changes)]
    return [*first, "", *_forced(cut, width)]


def _trials(results: Sequence[ConfigResult]) -> list[Column]:
    """Return the number of trials where it is not the same everywhere."""
    numbers = [_recorded(result) for result in results]
    return [Column("trials", numbers, right=True)] if len(set(numbers)) > 1 or results[0].missing else []


def _recorded(result: ConfigResult) -> str:
    return f"{result.recorded} of {result.planned}" if result.missing else f"{result.recorded}"


def _rate_columns(results: Sequence[ConfigResult], design: Design, *, long: bool) -> list[Column]:
    covers = level(design.conf)
    return [
        Column(f"pass% [{covers} CI]", bracketed(_rate_cell(result.score, long) for result in results)),
        Column(f"infra% [{covers} CI]", bracketed(_rate_cell(result.infra_rate, long) for result in results)),
    ]


def _rate_cell(rate: Rate, long: bool) -> tuple[str, str, str] | str:
    if rate.value is None:
        return "no trials"
    if almost_none(rate):
        return rate_text(rate) if long else rate_cell(rate)
    return percent(rate.value), percent(rate.interval.lo), percent(rate.interval.hi)


def _plain(rate: Rate) -> str:
    if rate.value is None:
        return "none left"
    return f"{rate.events} of {rate.trials}" if almost_none(rate) else percent(rate.value)


def _change_columns(agent: AgentResult, design: Design) -> list[Column]:
    """Return what changed from the baseline; nothing when there is nothing to compare it with."""
    rows = [agent.comparison(result.config) for result in agent.configs]
    if not any(row is not None and row.score.tasks for row in rows):
        return []
    several = len(agent.comparisons) > 1

    def numbers(heading: str, cell: Callable[[Comparison], str]) -> Column:
        return Column(heading, ["" if row is None else cell(row) for row in rows], right=True)

    deltas = [_BASELINE if row is None else _delta_cell(row.score) for row in rows]
    return [
        Column(f"d pass [{level(design.conf)} CI]", bracketed(deltas)),
        numbers("p", lambda row: p_text(row.score.p)),
        *([numbers("pHolm", lambda row: p_text(row.score.p_holm))] if several else ()),
        numbers("d infra", lambda row: _value(row.infra_rate)),
        numbers("pHolm" if several else "p", lambda row: p_text(_infra_p(row, several))),
        numbers("same*", _same),
    ]


def _delta_cell(delta: Delta) -> tuple[str, str, str] | str:
    if delta.value is None:
        return "no common task"
    return points(delta.value), points(delta.interval.lo), points(delta.interval.hi)


def _value(delta: Delta) -> str:
    return _NONE if delta.value is None else points(delta.value)


def _infra_p(comparison: Comparison, several: bool) -> float | None:
    return comparison.infra_rate.p_holm if several else comparison.infra_rate.p


def _same(comparison: Comparison) -> str:
    found = comparison.equivalence
    return _NONE if found is None else plus_minus(min(found.smallest, 1.0))


def _forced(columns: Sequence[Column], width: int) -> list[str]:
    """Return a table, or its rows as wrapped lines where the names are too long for one."""
    lines = table(columns, width)
    if lines is not None:
        return lines
    rows = zip(*(column.texts() for column in columns), strict=True)
    return [line for row in rows for line in wrap("  ".join(cell.strip() for cell in row if cell), width)]


def main_notes(agent: AgentResult, design: Design, *, legend: bool) -> Iterator[str]:
    """Yield what a reader of the main table has to know, what its columns mean only if asked for."""
    compared = [comparison for comparison in agent.comparisons if comparison.score.tasks]
    if agent.comparisons and not compared:
        yield f"no change from {agent.comparisons[0].baseline} to tell: no task has trials in both configs"
    if compared and legend:
        yield from _legend(compared[0].baseline, design, len(agent.comparisons))
    if any(comparison.score.guarded for comparison in compared):
        yield few_trials(any(comparison.score.size_unknown(design.alpha) for comparison in compared))
    unpaired = [
        f"{comparison.config} {comparison.score.tasks} of {comparison.score.tasks + comparison.score.dropped}"
        for comparison in compared
        if comparison.score.dropped
    ]
    if unpaired:
        yield f"tasks with trials in both configs, the only ones compared: {', '.join(unpaired)}"


def _legend(baseline: str, design: Design, comparisons: int) -> Iterator[str]:
    text = (
        f"d: change from {baseline} in points, paired by task. p: how often chance alone would do as much (pass: "
        "either way; infra: a fall where ceilings are raised, a rise where they are lowered). A large p means that "
        "no difference was shown, not that there is none."
    )
    yield text if comparisons == 1 else f"{text} pHolm: p allowing for {comparisons} comparisons."
    yield (
        f"* the smallest margin, in points, within which the pass rate has been shown equal to {baseline}'s (TOST, "
        f"alpha {design.alpha:g})"
    )


# Causes


def causes(agent: AgentResult, width: int) -> list[str]:
    """Return what ended or hampered trials, by config: a time limit or a lack of CPU is no lack of skill."""
    rows: dict[str, Sequence[object]] = {**dict(_cause_rows(agent.configs)), **dict(_usage_rows(agent.configs))}
    lines = _grid("trials with", rows, [result.config for result in agent.configs], width)
    if any(result.timeouts.fails for result in agent.configs):
        lines += wrap(
            "an agent timeout counts as a fail, yet shows a limit on time (or on CPU), not on skill", width
        )
    return lines


def _usage_rows(results: Sequence[ConfigResult]) -> Iterator[tuple[str, list[str]]]:
    rows = {
        "(agent's seconds, median)": [result.usage.agent_seconds for result in results],
        "(CPU periods throttled, median)": [result.usage.throttled for result in results],
        "(peak memory without page cache, largest)": [result.usage.anonymous for result in results],
    }
    shows: tuple[Callable[[Spread], str], ...] = (
        lambda spread: f"{spread.median:.0f}",
        lambda spread: f"{100 * spread.median:.0f}%",
        lambda spread: f"{spread.largest / 1024**2:.0f}M",
    )
    for (label, spreads), show in zip(rows.items(), shows, strict=True):
        if any(spreads):
            yield label, [_NONE if spread is None else show(spread) for spread in spreads]


def _cause_rows(results: Sequence[ConfigResult]) -> Iterator[tuple[str, list[int]]]:
    found = Counter[Cause]()
    for result in results:
        found.update(result.causes)
    if not found:
        yield "infra-error", [0 for _ in results]
    for cause, _ in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        yield f"infra-error: {cause}", [result.causes.get(cause, 0) for result in results]
    yield "agent timeout, a fail", [result.timeouts.fails for result in results]
    rare = {
        "agent timeout, a fail, and CPU-starved": [result.timeouts.starved for result in results],
        "agent timeout, yet passed": [result.timeouts.passes for result in results],
        "agent timeout, then infra-error": [result.timeouts.infra for result in results],
        "memory kill, yet passed": [result.survived_kills for result in results],
    }
    yield from ((label, counts) for label, counts in rare.items() if any(counts))
    yield "CPU-starved, any verdict", [result.starved for result in results]


def _grid(heading: str, rows: Mapping[str, Sequence[object]], columns: Sequence[str], width: int) -> list[str]:
    labels = Column(heading, [fit(label, 42) for label in rows])
    cells = [
        Column(fit(name, _LONGEST_NAME), [f"{cells[place]}" for cells in rows.values()], right=True)
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


# Tasks that differ


def flips(agent: AgentResult, design: Design, width: int) -> list[str]:
    """Return the tasks that did not pass as often under every config: places to look, when none is a finding."""
    found = agent.flips
    if not any(comparison.score.tasks for comparison in agent.comparisons):
        return []
    if not found:
        return wrap(
            f"tasks that flip: none; every task that ran under {agent.comparisons[0].baseline} and another config "
            "passed as often under both",
            width,
        )
    tasks = len({task for result in agent.configs for task in result.cells})
    if tasks > _MANY_TASKS and agent.movers is not None and agent.movers.found:
        return []
    most = MOST_FLIPS if tasks <= _MANY_TASKS else MOST_FLIPS // 2
    rows = {flip.task: [_flip_cell(flip, result.config) for result in agent.configs] for flip in found[:most]}
    lines = _grid("tasks that flip", rows, [result.config for result in agent.configs], width)
    return [*lines, *wrap(_flip_note(agent, len(found), most, tasks, design), width)]


def _flip_cell(flip: Flip, config: str) -> str:
    cell = flip.cells.get(config)
    if cell is None:
        return _NONE
    return f"{cell.passes}/{cell.recorded}" + (f" ({cell.infra})" if cell.infra else "")


def _flip_note(agent: AgentResult, found: int, most: int, tasks: int, design: Design) -> str:
    which = f"the {most} largest of " if found > most else ""
    samples = max(result.samples[1] for result in agent.configs)
    text = f"{which}{plural(found, 'flip')} in {plural(tasks, 'task')}; passes/trials, infra-errors in brackets."
    named = len(agent.movers.found) if agent.movers else 0
    if named >= found:
        return text
    what = "Those not named above are places to look" if named else "Places to look"
    return f"{text} {what}, not findings: {_why_no_finding(agent, samples, tasks, design.alpha)}."


def _why_no_finding(agent: AgentResult, samples: int, tasks: int, alpha: float) -> str:
    p = smallest_flip_p(samples)
    if p * tasks < alpha:
        if agent.movers is None:
            return f"no task ran under both {agent.comparisons[0].baseline} and {agent.top}"
        return f"none is found singly ({looked_at(agent.movers)}, {plural(tasks, 'task')})"
    text = f"with {plural(samples, 'sample')} even 0/{samples} against {samples}/{samples} has p = {p_text(p)}"
    return text if p >= alpha else f"{text}, and {tasks} tasks were looked at"


# Infra-errors in the score


def variants(agent: AgentResult, width: int) -> list[str]:
    """Return what the score is by each way of counting infra-errors; nothing where there are none."""
    results = [result for result in agent.configs if result.recorded]
    if not any(result.infra for result in results):
        return []
    parts = [together(f"{result.config} {_three(result)}") for result in results]
    lines = wrap(
        f"pass% with infra-errors as failures / excluded / bounds (whatever they hid): {'; '.join(parts)}", width
    )
    only = [
        f"{result.config} {len(result.only_infra)} ({listed(result.only_infra, 3)})"
        for result in results
        if result.only_infra
    ]
    if only:
        lines += wrap(f"tasks with nothing but infra-errors, so not in the second number: {'; '.join(only)}", width)
    return lines


def _three(result: ConfigResult) -> str:
    bounds = result.variants
    ends = f"{percent(bounds.bound_low)} to {percent(bounds.bound_high)}"
    return f"{_plain(result.score)} / {_plain(result.excluded)} / {ends}"
