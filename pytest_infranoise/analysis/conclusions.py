"""What all configs of one agent show together: trend, calibration, samples needed, tasks that move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_infranoise.analysis.deltas import all_tasks
from pytest_infranoise.analysis.deltas import columns
from pytest_infranoise.analysis.deltas import finite
from pytest_infranoise.chains import uncapped
from pytest_infranoise.design import Design
from pytest_infranoise.findings import Calibration
from pytest_infranoise.findings import CalibrationRow
from pytest_infranoise.findings import Mover
from pytest_infranoise.findings import Movers
from pytest_infranoise.findings import Planner
from pytest_infranoise.findings import Trend
from pytest_infranoise.findings import Trends
from pytest_infranoise.results import Cell
from pytest_infranoise.results import Comparison
from pytest_infranoise.results import ConfigResult
from pytest_infranoise.stats import movers as detectors
from pytest_infranoise.stats.calibration import calibrate
from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.deltas import GUARD_LIMIT
from pytest_infranoise.stats.planning import mde
from pytest_infranoise.stats.planning import mde_of_tasks
from pytest_infranoise.stats.planning import plan_k_tost
from pytest_infranoise.stats.planning import plan_tasks_tost
from pytest_infranoise.stats.rates import within_task_variance
from pytest_infranoise.stats.trend import isotonic
from pytest_infranoise.stats.trend import trend_exact_p
from pytest_infranoise.stats.trend import trend_slopes
from pytest_infranoise.stats.trend import trend_stratified

FDR = 0.10
WRONG_SIGN = 0.05
FIVE_POINTS = 0.05
_FEWEST_CONFIGS = 3
# A single task that was run less often cannot be told from chance among others (statistics.md 2g and 8.11).
FEWEST_SAMPLES = 5


def trends(chain: Sequence[ConfigResult], design: Design) -> Trends | None:
    """Return the trends over configs by rising ceiling; None with fewer than three."""
    if len(chain) < _FEWEST_CONFIGS:
        return None
    passes, infra, trials = _matrices(chain)
    weights = trials.sum(axis=0)
    means = [np.nan if result.infra_rate.value is None else result.infra_rate.value for result in chain]
    return Trends(
        configs=tuple(result.config for result in chain),
        score=_trend(passes, trials, design),
        infra_rate=_trend(infra, trials, design),
        infra_fit=tuple(isotonic(means, weights, increasing=False).tolist()),
    )


def _matrices(results: Sequence[ConfigResult]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return passes, infra-errors and trials, tasks x configs."""
    tasks = all_tasks(results)
    counts = [columns(tasks, result) for result in results]
    parts = ([c.passes for c in counts], [c.infra for c in counts], [c.trials for c in counts])
    passes, infra, trials = (np.array(part, dtype=np.float64).T for part in parts)
    return passes, infra, trials


def _trend(events: FloatArray, trials: FloatArray, design: Design) -> Trend:
    stratified = trend_stratified(events, trials)
    if design.target == "benchmark":
        # With few tasks that vary, the normal law of the total is not to be believed.
        exact = stratified.tasks < GUARD_LIMIT
        p = trend_exact_p(events, trials) if exact else stratified.p
        return Trend(p, stratified.z, stratified.z > 0, stratified.tasks)
    slope = trend_slopes(events, trials)
    return Trend(slope.p if slope.se > 0 else None, None, slope.est > 0, stratified.tasks)


def calibration(
    zero: ConfigResult, higher: Sequence[ConfigResult], rules: Mapping[str, Mapping[str, Any]], design: Design
) -> Calibration | None:
    """Return which of the configs ``higher`` than the baseline to use; None when there is none."""
    if not higher:
        return None
    results = (zero, *higher)
    passes, infra, trials = _matrices(results)
    eligible = [place for place, result in enumerate(results) if place and not uncapped(rules.get(result.config))]
    found = calibrate(
        passes,
        infra,
        trials,
        design.margin,
        alpha=design.alpha,
        min_cut=design.min_cut,
        eligible=eligible,
        target=design.target,
    )

    def name(place: int | None) -> str | None:
        return None if place is None else results[place].config

    return Calibration(
        status=found.status,
        pick=name(found.pick),
        candidate=name(found.candidate),
        rows=tuple(
            CalibrationRow(
                config=results[row.config].config,
                p_infra=row.p_infra,
                p_infra_holm=row.p_infra_holm,
                cut=finite(row.cut),
                gate=row.gate,
            )
            for row in found.rows
        ),
    )


def planner(
    zero: ConfigResult, comparison: Comparison, one: ConfigResult, near: AbstractSet[str] | None, design: Design
) -> Planner | None:
    """Return what more data would show about ``comparison``; None when nothing is known of its variation.

    ``near`` are the tasks that a ceiling can have reached, None for all.
    """
    tasks = all_tasks((zero, one))
    base, other = columns(tasks, zero), columns(tasks, one)
    both = [place for place in range(len(tasks)) if base.trials[place] and other.trials[place]]
    variance = _variance(base.passes + other.passes, base.trials + other.trials)
    delta, se = comparison.score.value, comparison.score.se
    by_tasks = design.target == "population"
    if delta is None or (not comparison.score.guarded and (se if by_tasks else variance) is None):
        return None
    found = Planner(
        counts="tasks" if by_tasks else "samples",
        few=comparison.score.guarded,
        variance=None if by_tasks else variance,
        tasks=len(both),
        samples=2 * len(both) / sum(1 / base.trials[place] + 1 / other.trials[place] for place in both),
        detectable=None,
        config=one.config,
        delta=delta,
        for_margin=None,
        for_five=None,
        for_margin_if_zero=None,
        near_spec=None,
        for_margin_near=None,
        for_five_near=None,
    )
    if by_tasks:
        return found if found.few or se is None else _more_tasks(found, se * math.sqrt(len(both)), design)
    named = {tasks[place] for place in both}
    close = None if near is None else tuple(task for task in sorted(near) if task in named)
    if found.few:
        return replace(found, near_spec=close)
    near_base, near_other = columns(close or (), zero), columns(close or (), one)
    near_variance = _variance(near_base.passes + near_other.passes, near_base.trials + near_other.trials)
    return _more_samples(replace(found, near_spec=close), near_variance, design)


def _more_tasks(found: Planner, sd: float, design: Design) -> Planner:
    """Fill in how many tasks are needed; ``sd`` is that of the tasks' deltas."""

    def needed(margin: float, true: float) -> int | None:
        return plan_tasks_tost(margin, sd, true_delta=true, alpha=design.alpha)

    return replace(
        found,
        detectable=finite(mde_of_tasks(found.tasks, sd, alpha=design.alpha)),
        for_margin=needed(design.margin, found.delta),
        for_five=needed(FIVE_POINTS, found.delta),
        for_margin_if_zero=needed(design.margin, 0.0),
    )


def _more_samples(found: Planner, near_variance: float | None, design: Design) -> Planner:
    """Fill in how many samples are needed, of all tasks and of those near their spec."""
    variance = found.variance or math.nan

    def needed(margin: float, true: float) -> int | None:
        return plan_k_tost(margin, found.tasks, variance, true_delta=true, alpha=design.alpha)

    def needed_near(margin: float) -> int | None:
        if not found.near_spec or near_variance is None:
            return None
        run_tasks = len(found.near_spec)
        return plan_k_tost(
            margin, found.tasks, near_variance, true_delta=found.delta, alpha=design.alpha, run_tasks=run_tasks
        )

    return replace(
        found,
        detectable=finite(mde(found.tasks, found.samples, variance, alpha=design.alpha)),
        for_margin=needed(design.margin, found.delta),
        for_five=needed(FIVE_POINTS, found.delta),
        for_margin_if_zero=needed(design.margin, 0.0),
        for_margin_near=needed_near(design.margin),
        for_five_near=needed_near(FIVE_POINTS),
    )


def _variance(passes: Sequence[int], trials: Sequence[int]) -> float | None:
    value = within_task_variance(passes, trials)
    return value if value > 0 and not math.isnan(value) else None


def movers(zero: ConfigResult, top: ConfigResult, chain: Sequence[ConfigResult]) -> Movers | None:
    """Return the tasks that move from the baseline to ``top``; None without a common task.

    With a ``chain`` of three configs or more its trend is the detector, and what is told goes from one of its ends
    to the other: a direction from anywhere between would not be the one that was tested.
    """
    by_trend = len(chain) >= _FEWEST_CONFIGS
    path = list(chain) if by_trend else [zero, top]
    tasks = all_tasks(path)
    counts = [columns(tasks, result) for result in path]
    base, other = counts[0], counts[-1]
    pairs = {flip.task: flip for flip in detectors.flips(other.passes, other.trials, base.passes, base.trials, FDR)}
    if not pairs:
        return None
    adjusted = {place: flip.p_adj for place, flip in pairs.items()}
    rising = {place: flip.delta > 0 for place, flip in pairs.items()}
    if by_trend:
        table = np.array([c.passes for c in counts]).T, np.array([c.trials for c in counts]).T
        found = [flip for flip in detectors.trend_flips(*table, fdr=FDR) if flip.task in pairs]
        adjusted = {flip.task: flip.p_adj for flip in found}
        rising = {flip.task: flip.rising for flip in found}
    seen = {place for place in pairs if min(base.trials[place], other.trials[place]) >= FEWEST_SAMPLES}
    adjusted = {place: p if place in seen else math.nan for place, p in adjusted.items()}
    entries = [
        Mover(
            task=tasks[place],
            before=path[0].cells[tasks[place]],
            after=path[-1].cells[tasks[place]],
            cells=tuple(result.cells.get(tasks[place], Cell()) for result in path),
            rising=rising[place],
            delta=flip.delta,
            p_adjusted=finite(adjusted[place]),
            found=adjusted[place] <= FDR,
            shrunk=finite(flip.shrunk),
            wrong_sign=finite(flip.lfsr),
        )
        for place, flip in pairs.items()
    ]
    entries.sort(key=lambda mover: (-abs(mover.delta), mover.task))
    return Movers(
        baseline=path[0].config,
        top=path[-1].config,
        by_trend=by_trend,
        tasks=len(entries),
        testable=sum(mover.p_adjusted is not None for mover in entries),
        found=tuple(mover for mover in entries if mover.found),
        watch=tuple(
            mover
            for mover in entries
            if not mover.found and mover.wrong_sign is not None and mover.wrong_sign < WRONG_SIGN
        ),
    )
