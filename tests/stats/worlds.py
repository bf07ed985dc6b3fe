"""Benchmarks of known truth, to draw runs from: the generator of statistics.md, section 3.

Every number that the article published is matched (infra errors 5.8, 2.1 and 0.5 % at 1x, 3x and uncapped, a
score that rises by about 2 and by 6 points); what lies between is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_infranoise.stats.counts import FloatArray
from pytest_infranoise.stats.counts import IntArray

CONFIGS = ("1x", "1.5x", "2x", "3x", "5x", "uncapped")
INFRA = (0.058, 0.045, 0.033, 0.021, 0.012, 0.005)
GAINS = (0.0, 0.006, 0.011, 0.0195, 0.038, 0.060)
# Of the harsher world, in which the second ceiling already unlocks what the first one hides.
EARLY_GAINS = (0.0, 0.006, 0.035, 0.040, 0.050, 0.060)
# Share of the trials that pass once nothing kills them any more.
RESCUED = 0.4
_ABILITY, _ICC = 0.55, 0.63
_SENSITIVE, _UNLOCKED = 18, 6


@dataclass(frozen=True, slots=True)
class World:
    """True pass and infra-error probabilities; shape of both: tasks x configs, the baseline first."""

    passes: FloatArray
    infra: FloatArray

    def draw(self, rng: np.random.Generator, samples: int) -> tuple[IntArray, IntArray]:
        """Return passes and infra errors of one run, tasks x configs."""
        infra = rng.binomial(samples, self.infra)
        clean = np.clip(self.passes / (1.0 - self.infra), 0.0, 1.0)
        return rng.binomial(samples - infra, clean), infra


def abilities(rng: np.random.Generator, tasks: int, icc: float = _ICC) -> FloatArray:
    """Draw the pass probabilities of tasks, most of which are nearly always or nearly never solved."""
    size = 1.0 / icc - 1.0
    drawn: FloatArray = rng.beta(_ABILITY * size, (1.0 - _ABILITY) * size, tasks)
    return drawn


def article(
    rng: np.random.Generator,
    tasks: int = 89,
    infra: tuple[float, ...] = INFRA,
    gains: tuple[float, ...] = GAINS,
    icc: float = _ICC,
) -> World:
    """Return a world whose mean infra rates and mean gains over the baseline are exactly the ones given.

    A fifth of the tasks hold every crash; of those a third hold what more memory unlocks.
    """
    sensitive = round(_SENSITIVE / 89 * tasks)
    unlocked = round(_UNLOCKED / 89 * tasks)
    weights = rng.uniform(0.4, 1.6, sensitive)
    weights *= sensitive / weights.sum()
    crashes = np.zeros((tasks, len(infra)))
    crashes[:sensitive] = np.outer(weights, infra) * tasks / sensitive
    ability = abilities(rng, tasks, icc)
    ability[:unlocked] *= 0.2
    passes = np.repeat((ability * (1.0 - crashes[:, 0]))[:, None], len(infra), axis=1)
    rescued = RESCUED * (crashes[:, :1] - crashes)
    passes += rescued
    passes[:unlocked] += (np.array(gains) - rescued.mean(axis=0)) * tasks / unlocked
    return World(np.clip(passes, 0.0, 1.0 - crashes), crashes)


def swe(rng: np.random.Generator) -> World:
    """Return 227 tasks with the article's +1.54 points from 1x to 5x; their infra rates and ICC are assumed."""
    # Crashes and rescues add variance within tasks: 0.78 of abilities leaves the assumed 0.75 of scores.
    return article(rng, 227, infra=(0.02, 0.005), gains=(0.0, 0.0154), icc=0.78)


def same(rng: np.random.Generator, tasks: int = 89) -> World:
    """Return two configs between which nothing changes for any task."""
    world = article(rng, tasks)
    first = [0, 0]
    return World(world.passes[:, first], world.infra[:, first])


def on_the_margin(rng: np.random.Generator, margin: float, tasks: int = 89) -> World:
    """Return a world in which every ceiling moves the score by just the margin, so that none may be picked."""
    return article(rng, tasks, gains=(0.0, *[margin] * (len(INFRA) - 1)))
