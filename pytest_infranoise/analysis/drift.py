"""Does the score drift while a run lasts? Rounds against each other, and the hours they ran in."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence

from scipy import special

from pytest_infranoise.analysis.deltas import finite
from pytest_infranoise.analysis.tallies import Tally
from pytest_infranoise.findings import Drift
from pytest_infranoise.stats.rates import within_task_variance
from pytest_infranoise.stats.slots import SlotComponents
from pytest_infranoise.stats.slots import overdispersion
from pytest_infranoise.stats.slots import slot_components

_HOUR = 3600.0
_DAY = 24 * _HOUR
# task -> sample -> (passed, started)
_Outcomes = Mapping[str, Mapping[int, tuple[bool, float]]]


def drift(tallies: Sequence[Tally]) -> Drift | None:
    """Return how the rounds differ; None with fewer than two rounds that some tasks have in every config.

    ``tallies`` are the configs' in order, the baseline's first and the one to compare it with last. Only tasks with
    a record in every round of every config count, so that rounds differ in nothing but time.
    """
    outcomes = [tally.outcomes for tally in tallies]
    rounds = sorted({sample for config in outcomes for samples in config.values() for sample in samples})
    tasks = sorted(_complete(outcomes, rounds))
    if len(rounds) < 2 or not tasks:
        return None
    scores = [[_mean([config[task][number][0] for task in tasks]) for number in rounds] for config in outcomes]
    variances = [_variance(config, tasks, rounds) for config in outcomes]
    slots, slot = _slots(outcomes, tasks, rounds, scores, variances)
    ratio, p = _dispersion(scores[0], scores[-1], (variances[0] + variances[-1]) / len(tasks), len(scores))
    return Drift(len(tasks), len(rounds), slots, slot, ratio, p)


def _complete(outcomes: Sequence[_Outcomes], rounds: Sequence[int]) -> set[str]:
    """Return the tasks that have a record in every round of every config."""
    full = set(rounds)
    found = [{task for task, samples in config.items() if samples.keys() >= full} for config in outcomes]
    return set.intersection(*found) if found else set()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _variance(config: _Outcomes, tasks: Sequence[str], rounds: Sequence[int]) -> float:
    passes = [sum(config[task][number][0] for number in rounds) for task in tasks]
    return within_task_variance(passes, [len(rounds)] * len(tasks))


def _dispersion(
    zero: Sequence[float], one: Sequence[float], expected: float, configs: int
) -> tuple[float | None, float | None]:
    if configs < 2 or not expected > 0:
        return None, None
    ratio = overdispersion([after - before for before, after in zip(zero, one, strict=True)], expected)
    df = len(zero) - 1.0
    return finite(ratio), finite(float(special.chdtrc(df, df * ratio)))


def _slots(
    outcomes: Sequence[_Outcomes],
    tasks: Sequence[str],
    rounds: Sequence[int],
    scores: Sequence[Sequence[float]],
    variances: Sequence[float],
) -> tuple[SlotComponents | None, str]:
    """Return the variation of all configs' mean score over hours (days where the run has more than two)."""
    starts = [
        statistics.median(config[task][number][1] for config in outcomes for task in tasks) for number in rounds
    ]
    if not all(start > 0 for start in starts):
        return None, "hour"
    days = max(starts) - min(starts) > 2 * _DAY
    by_slot: dict[int, list[int]] = defaultdict(list)
    for place, start in enumerate(starts):
        by_slot[math.floor(start / (_DAY if days else _HOUR))].append(place)
    means = [_mean([config[place] for config in scores]) for place in range(len(rounds))]
    one_round = sum(variances) / len(variances) ** 2 / len(tasks)
    components = slot_components(
        [_mean([means[place] for place in places]) for places in by_slot.values()],
        [one_round / len(places) for places in by_slot.values()],
    )
    return components, "day" if days else "hour"
