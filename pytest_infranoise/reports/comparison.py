"""What ``infranoise compare`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_infranoise.comparing import RunComparison
from pytest_infranoise.comparing import ScoreComparison
from pytest_infranoise.paired_gaps import PairedGap
from pytest_infranoise.reports.layout import SMALLEST_WIDTH
from pytest_infranoise.reports.layout import tabulated
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import bracketed
from pytest_infranoise.reports.text import few_trials
from pytest_infranoise.reports.text import fit
from pytest_infranoise.reports.text import interval_text
from pytest_infranoise.reports.text import listed
from pytest_infranoise.reports.text import p_text
from pytest_infranoise.reports.text import p_words
from pytest_infranoise.reports.text import percent
from pytest_infranoise.reports.text import points
from pytest_infranoise.reports.text import rate_cell
from pytest_infranoise.reports.text import table
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.stats.gaps import ALLOWANCE
from pytest_infranoise.stats.gaps import Configs
from pytest_infranoise.stats.gaps import Gap
from pytest_infranoise.units import plural

_KNOWN: dict[Configs, str] = {
    "same": "documented and the same",
    "documented": "documented, not the same",
    "undocumented": "not documented",
    "uncapped": "one side may be uncapped",
}


def render_scores(found: ScoreComparison, width: int) -> list[str]:
    """Return the verdict on two published scores as lines of at most ``width`` columns (at least 60)."""
    width = max(width, SMALLEST_WIDTH)
    gap = found.gap
    samples = (
        f"{plural(found.samples_a, 'sample')} each"
        if found.samples_a == found.samples_b
        else f"{found.samples_a} and {found.samples_b} samples"
    )
    texts = [
        f"{percent(found.score_a)}% and {percent(found.score_b)}%: a gap of {points(gap.gap)}pp over "
        f"{plural(found.tasks, 'task')}, {samples}",
        f"verdict: {gap.verdict}",
        _explained(gap, f"configs {_KNOWN[found.configs]}", found.alpha),
        "",
    ]
    columns = [
        Column("what is known of the resource configs", [_KNOWN[kind] for kind in found.others]),
        Column("allowance", [f"{100 * ALLOWANCE[kind]:.1f}pp" for kind in found.others], right=True),
        Column(
            "smallest distinguishable gap", [f"{100 * half:.1f}pp" for half in found.others.values()], right=True
        ),
    ]
    share = "as usual at such scores, at most 60%" if found.icc is None else f"{100 * found.icc:g}%"
    assumed = (
        f"assumed: the same tasks, independent trials; share of a trial's variance between tasks: {share} (--icc; "
        "0 for different tasks). The allowance is the most that the resource config alone is taken to move "
        "a score; it shifts a gap, and no number of samples averages it out."
    )
    if 0 < max(found.score_a, found.score_b) <= 0.01:
        texts.insert(1, "scores are in percent: 0.5 is half a percent")
    lines = [line for text in texts for line in (wrap(text, width) if text else [""])]
    return [*lines, *tabulated(columns, width, (3, 2, 1)), *wrap(assumed, width)]


def render_runs(found: RunComparison, width: int) -> list[str]:
    """Return the comparison of two runs as lines of at most ``width`` columns (at least 60)."""
    width = max(width, SMALLEST_WIDTH)
    several = len({pair.a.agent for pair in found.pairs}) > 1
    lines = [line for text in _head(found) for line in wrap(text, width)]
    lines += ["", *_table(found, width, several), ""]
    for pair in found.pairs:
        lines += wrap(f"{_label(pair, several)}: {_verdict(pair, found)}", width)
    return [*lines, "", *(line for text in _notes(found) for line in wrap(text, width))]


def _verdict(pair: PairedGap, found: RunComparison) -> str:
    verdict: str = pair.gap.verdict
    if found.cut_short:
        which = f"{' and '.join(found.cut_short)} {'is' if len(found.cut_short) == 1 else 'are'} not an estimate"
        verdict = f"no verdict, {which}; by what was recorded {verdict}"
    if pair.size_unknown:
        infrastructure = f"{100 * pair.gap.bias:g}pp" if pair.gap.bias else "nothing"
        return (
            f"{verdict}. A change is shown (exact {p_words(pair.delta.p)}), its size is not: so few trials leave "
            f"{interval_text(pair.interval)}. Allowed to infrastructure: {infrastructure} ({pair.allowance})."
        )
    return f"{verdict}. {_explained(pair.gap, pair.allowance, 1 - found.level)}"


def _explained(gap: Gap, why: str, alpha: float) -> str:
    if gap.half_noise >= 1:
        return "Sampling alone explains any gap, with so few trials."
    text = f"Sampling alone explains up to {100 * gap.half_noise:.1f}pp ({100 * (1 - alpha):.4g}%)"
    if not gap.bias:
        return f"{text}; infrastructure adds nothing ({why}). Smallest distinguishable gap: {_smallest(gap)}."
    return (
        f"{text}, sampling and infrastructure together up to {100 * gap.half:.1f}pp ({100 * gap.bias:g}pp allowed: "
        f"{why}). Smallest distinguishable gap: {_smallest(gap)}."
    )


def _smallest(gap: Gap) -> str:
    return f"{100 * gap.half:.1f}pp" if gap.half < 1 else "none, with so few trials"


def _head(found: RunComparison) -> Iterator[str]:
    yield f"A: run {found.run_a}; B: run {found.run_b}; d = B - A in percentage points, paired by task"
    yield f"compared on the {plural(found.common, 'task')} with the same content in both"
    aside = [
        (found.changed, "changed between the runs"),
        (found.only_a, "only in A"),
        (found.only_b, "only in B"),
    ]
    for tasks, why in aside:
        if tasks:
            yield f"set aside: {plural(len(tasks), 'task')} {why}: {listed(tasks, 5)}"


def _label(pair: PairedGap, several: bool) -> str:
    config = pair.a.config if pair.a.config == pair.b.config else f"{pair.a.config} -> {pair.b.config}"
    agent = pair.a.agent if pair.a.agent == pair.b.agent else f"{pair.a.agent} -> {pair.b.agent}"
    return f"{agent}, {config}" if several or pair.a.agent != pair.b.agent else config


def _table(found: RunComparison, width: int, several: bool) -> list[str]:
    pairs = found.pairs
    deltas = [(points(pair.delta.est), points(pair.interval.lo), points(pair.interval.hi)) for pair in pairs]
    columns = [
        Column("compared", [fit(_label(pair, several), 30) for pair in pairs]),
        Column("tasks", [str(pair.tasks) for pair in pairs], right=True),
        Column("A pass%", [percent(pair.a.score) for pair in pairs], right=True),
        Column("B pass%", [percent(pair.b.score) for pair in pairs], right=True),
        Column(f"d pass [{100 * found.level:.4g}% CI]", bracketed(deltas)),
        Column("p", [p_text(pair.delta.p) for pair in pairs], right=True),
        Column("A infra%", [rate_cell(pair.a.infra_rate) for pair in pairs], right=True),
        Column("B infra%", [rate_cell(pair.b.infra_rate) for pair in pairs], right=True),
    ]
    return table(columns, width) or tabulated(columns[:6], width)


def _notes(found: RunComparison) -> Iterator[str]:
    if len(found.pairs) > 1:
        yield (
            f"{len(found.pairs)} comparisons, each at {100 * found.level:.4g}%, so that all verdicts hold together "
            f"at {100 * (1 - found.alpha):.4g}%; p is that of one comparison"
        )
    if any(pair.delta.guarded for pair in found.pairs):
        yield few_trials(any(pair.size_unknown for pair in found.pairs))
    yield (
        "these tasks, not others like them. Infra-errors count as failures. Within noise means that no "
        "difference was shown, not that there is none."
    )
    yield from found.notes
