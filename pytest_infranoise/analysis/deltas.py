"""Rates and deltas of one agent's configs: counts per task -> values with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any
from typing import NamedTuple

from pytest_infranoise.chains import infra_alternative
from pytest_infranoise.design import Design
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.results import Delta
from pytest_infranoise.results import Rate
from pytest_infranoise.stats import deltas as estimators
from pytest_infranoise.stats.decomposition import accounting
from pytest_infranoise.stats.decomposition import decompose
from pytest_infranoise.stats.equivalence import Equivalence
from pytest_infranoise.stats.equivalence import tost
from pytest_infranoise.stats.exact import cmh_exact_p
from pytest_infranoise.stats.exact import exact_p
from pytest_infranoise.stats.multiplicity import holm
from pytest_infranoise.stats.rates import UNKNOWN_RATE
from pytest_infranoise.stats.rates import Interval
from pytest_infranoise.stats.rates import rate_interval

_ZERO = Interval(0.0, 0.0)


class Columns(NamedTuple):
    """Counts of one config, an entry per task: passes, infra-errors, genuine failures, trials."""

    passes: list[int]
    infra: list[int]
    fails: list[int]
    trials: list[int]


def columns(tasks: Iterable[str], result: ConfigResult) -> Columns:
    """Return the counts of ``tasks`` under a config, zeros where it lacks one."""
    cells = [result.cells.get(task, Cell()) for task in tasks]
    return Columns(
        [cell.passes for cell in cells],
        [cell.infra for cell in cells],
        [cell.fails for cell in cells],
        [cell.recorded for cell in cells],
    )


def all_tasks(results: Iterable[ConfigResult]) -> list[str]:
    """Return the tasks that any config has."""
    return list(dict.fromkeys(task for result in results for task in result.cells))


# Rates


def rate(events: Sequence[int], trials: Sequence[int], design: Design) -> Rate:
    """Return a macro average with its interval."""
    tasks = sum(number > 0 for number in trials)
    if not tasks:
        return Rate(0, 0, 0, None, UNKNOWN_RATE, "no trials")
    interval, method = rate_interval(events, trials, design.target, design.conf)
    return Rate(
        events=sum(events),
        trials=sum(trials),
        tasks=tasks,
        value=_macro_average(events, trials),
        interval=interval,
        method=method,
    )


def _macro_average(events: Sequence[int], trials: Sequence[int]) -> float:
    """Return the mean of the tasks' rates, rounded once, so that 2 of 5 meets a gate of exactly 40 %."""
    by_size: Counter[int] = Counter()
    for count, number in zip(events, trials, strict=True):
        by_size[number] += count
    total = sum((Fraction(count, number) for number, count in by_size.items() if number), Fraction(0))
    return float(total / sum(number > 0 for number in trials))


# Deltas


def comparisons(
    zero: ConfigResult, others: Sequence[ConfigResult], rules: Mapping[str, Mapping[str, Any]], design: Design
) -> tuple[Comparison, ...]:
    """Compare every config with the baseline ``zero``; ``rules`` are the configs' entries in run.json by name."""
    tasks = all_tasks((zero, *others))
    base = columns(tasks, zero)
    found = [_compare(zero.config, base, other.config, columns(tasks, other), rules, design) for other in others]
    return tuple(
        replace(comparison, score=score, infra_rate=infra_rate, fail_rate=fail_rate)
        for comparison, score, infra_rate, fail_rate in zip(
            found,
            with_holm([comparison.score for comparison in found]),
            with_holm([comparison.infra_rate for comparison in found]),
            with_holm([comparison.fail_rate for comparison in found]),
            strict=True,
        )
    )


def _compare(
    baseline: str, zero: Columns, config: str, one: Columns, rules: Mapping[str, Mapping[str, Any]], design: Design
) -> Comparison:
    side = infra_alternative(rules.get(baseline), rules.get(config))
    score = _estimate(one.passes, one.trials, zero.passes, zero.trials, design)
    infra_rate = _delta(_estimate(one.infra, one.trials, zero.infra, zero.trials, design))
    if infra_rate.value is not None:
        p = exact_p(one.infra, one.trials, zero.infra, zero.trials, side, design.target)
        infra_rate = replace(infra_rate, p=p)
    counts = (one.passes, one.infra, one.trials, zero.passes, zero.infra, zero.trials)
    return Comparison(
        config=config,
        baseline=baseline,
        score=_delta(score),
        infra_rate=infra_rate,
        fail_rate=_delta(_estimate(one.fails, one.trials, zero.fails, zero.trials, design)),
        equivalence=_equivalence(score, design) if score.tasks else None,
        accounting=accounting(*counts) if score.tasks else None,
        decomposition=decompose(*counts, conf=design.conf) if score.tasks else None,
    )


def _estimate(
    x1: Sequence[int], n1: Sequence[int], x0: Sequence[int], n0: Sequence[int], design: Design
) -> estimators.Delta:
    return estimators.delta_paired(x1, n1, x0, n0, design.conf, design.target)


def _delta(delta: estimators.Delta) -> Delta:
    if not delta.tasks:
        return Delta(None, estimators.UNKNOWN_DELTA, None, None, 0, delta.dropped, "no common task")
    return Delta(
        value=delta.est,
        interval=_guarded(delta, delta.ci, 1 - delta.conf),
        p=delta.p,
        p_holm=None,
        tasks=delta.tasks,
        dropped=delta.dropped,
        method=delta.method,
        guarded=delta.guarded,
        discordant=delta.discordant,
        se=finite(delta.se),
        df=finite(delta.df),
        p_exact=delta.p_exact,
    )


def _guarded(delta: estimators.Delta, interval: Interval, alpha: float) -> Interval:
    # With so few trials the exact p is the better judge, and an interval without 0 would deny it.
    return interval.hull(_ZERO) if delta.guarded and delta.p > alpha else interval


def _equivalence(delta: estimators.Delta, design: Design) -> Equivalence:
    found = tost(delta, design.margin, design.alpha)
    return replace(found, interval=_guarded(delta, found.interval, 2 * design.alpha))


def with_holm(deltas: Sequence[Delta]) -> list[Delta]:
    """Return the deltas of one family with their adjusted p; those without a p do not count."""
    adjusted = holm([math.nan if delta.p is None else delta.p for delta in deltas])
    return [
        delta if delta.p is None else replace(delta, p_holm=float(p))
        for delta, p in zip(deltas, adjusted, strict=True)
    ]


def finite(value: float) -> float | None:
    """Return a number, None for one that is not known."""
    return value if math.isfinite(value) else None


def smallest_flip_p(samples: int) -> float:
    """Return the exact two-sided p of one task going from 0 to all of ``samples`` passes: as strong as it gets."""
    return cmh_exact_p([samples], [samples], [0], [samples])
