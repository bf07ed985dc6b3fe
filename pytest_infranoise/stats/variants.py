"""One score, five ways to treat infra errors, and the bounds that need no assumption.

How infra errors are handled alone can move a delta by several points, so every report prints all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_infranoise.stats.counts import check_counts
from pytest_infranoise.stats.counts import counts
from pytest_infranoise.stats.counts import vector
from pytest_infranoise.stats.rates import mean_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreVariants:
    """Scores of one config as proportions; nan where no trial supports them.

    `as_failure`: infra errors count as failures (the headline). `excluded`: infra errors left out
    task by task; `excluded_tasks_dropped` tasks always crashed and are not in it. `pooled_excluded`:
    left out of the totals. `imputed_within_task`: crashed trials pass at their task's own rate, in
    always-crashing tasks at the pooled rate. Between `bound_low` and `bound_high` lies any score the
    crashed trials could have produced.
    """

    tasks: int
    as_failure: float
    excluded: float
    excluded_tasks_dropped: int
    pooled_excluded: float
    imputed_within_task: float
    bound_low: float
    bound_high: float


def score_variants(x: npt.ArrayLike, e: npt.ArrayLike, n: npt.ArrayLike) -> ScoreVariants:
    """Score of one config under each treatment of infra errors (target: these tasks).

    `x`, `e`, `n`: passes, infra errors and trials, shape (tasks,). Tasks without trials are dropped.
    "Retry until no error" estimates `excluded`, not the headline. Raises ValueError unless
    0 <= x, e and x + e <= n. Source: Manski 1990 for the bounds; statistics.md 2h.
    """
    passes, errors, trials = vector(x, "passes"), vector(e, "infra errors"), vector(n, "trials")
    check_counts(errors, trials)
    # Passes must fit beside the infra errors, not merely within the trials.
    check_counts(passes, trials - errors)
    data = counts(passes, trials - errors)
    pooled = float(data.x.sum() / data.n.sum()) if data.tasks else float("nan")
    valid = trials - errors
    own = np.divide(passes, valid, out=np.full(passes.shape, pooled), where=valid > 0)
    as_failure = mean_rate(passes, trials)
    return ScoreVariants(
        tasks=int(np.count_nonzero(trials > 0)),
        as_failure=as_failure,
        excluded=mean_rate(data.x, data.n),
        excluded_tasks_dropped=int(np.count_nonzero((trials > 0) & (valid <= 0))),
        pooled_excluded=pooled,
        imputed_within_task=_imputed(passes + errors * own, trials),
        bound_low=as_failure,
        bound_high=mean_rate(passes + errors, trials),
    )


def _imputed(passes: npt.NDArray[np.float64], trials: npt.NDArray[np.float64]) -> float:
    # Not mean_rate: the pooled rate is nan when every trial of the run crashed.
    return float(np.mean(passes[trials > 0] / trials[trials > 0])) if np.any(trials > 0) else float("nan")
