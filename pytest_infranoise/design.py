"""What was decided before a run, and holds for every number that is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_infranoise.stats.counts import Target


@dataclass(frozen=True, slots=True)
class Design:
    """What was decided before the run, and holds for every number that is made from it.

    Args:
        margin: the score difference, as a proportion, below which two configs count as the same.
        alpha: significance level; intervals are at level 1 - alpha, those of equivalence at 1 - 2 alpha.
        min_cut: the share of the baseline's infra-errors that a ceiling must remove to be worth choosing.
        target: what intervals cover, ``benchmark`` (these tasks) or ``population`` (tasks like these).
    """

    margin: float = 0.03
    alpha: float = 0.05
    min_cut: float = 0.5
    target: Target = "benchmark"

    @property
    def conf(self) -> float:
        """The level of intervals."""
        return 1.0 - self.alpha
