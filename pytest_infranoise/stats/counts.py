"""Validated count arrays: the one door through which counts enter the estimators.

Lives apart so that every module rejects the same nonsense in the same words, and so that "a task
without trials is dropped" is decided in one place.
"""

from __future__ import annotations

from typing import Literal
from typing import NamedTuple
from typing import get_args

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Target = Literal["benchmark", "population"]
Alternative = Literal["two-sided", "greater", "less"]


class Counts(NamedTuple):
    """Events and trials per task, only tasks that have trials.

    `x`: events (passes, or infra errors), `n`: trials, both of shape (tasks,). May be fractional.
    """

    x: FloatArray
    n: FloatArray

    @property
    def tasks(self) -> int:
        """Number of tasks with at least one trial."""
        return self.n.size

    @property
    def rates(self) -> FloatArray:
        """Event rate of each task, shape (tasks,)."""
        return self.x / self.n


class Pair(NamedTuple):
    """The same tasks under two configs; `dropped` counts tasks that lack trials in either one."""

    one: Counts
    zero: Counts
    dropped: int

    @property
    def tasks(self) -> int:
        """Number of tasks with trials in both configs."""
        return self.one.tasks

    @property
    def differences(self) -> FloatArray:
        """Rate in config one minus rate in config zero, per task."""
        return self.one.rates - self.zero.rates

    @property
    def discordant(self) -> int:
        """Number of tasks whose two rates differ."""
        # Cross-multiplied so that 1/3 and 2/6 compare equal.
        return int(np.count_nonzero(self.one.x * self.zero.n != self.zero.x * self.one.n))


def vector(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return `values` as a finite 1-d float array; ValueError otherwise."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one entry per task, got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite")
    return array


def check_counts(x: FloatArray, n: FloatArray) -> None:
    """Raise ValueError unless shapes agree and 0 <= x <= n everywhere."""
    if x.shape != n.shape:
        raise ValueError(f"events and trials differ in shape: {x.shape} and {n.shape}")
    if np.any(x < 0) or np.any(x > n):
        raise ValueError("counts must satisfy 0 <= events <= trials")


def counts(x: npt.ArrayLike, n: npt.ArrayLike) -> Counts:
    """Return validated counts per task without the tasks that have no trials.

    Raises ValueError for wrong shapes, non-finite values, or events outside [0, trials].
    """
    xs, ns = vector(x, "events"), vector(n, "trials")
    check_counts(xs, ns)
    return Counts(xs[ns > 0], ns[ns > 0])


def pair(
    x1: npt.ArrayLike,
    n1: npt.ArrayLike,
    x0: npt.ArrayLike,
    n0: npt.ArrayLike,
) -> Pair:
    """Return two configs' counts on the tasks both of them ran.

    Raises ValueError like `counts`, and when the two configs list different numbers of tasks.
    """
    a, m1, b, m0 = vector(x1, "x1"), vector(n1, "n1"), vector(x0, "x0"), vector(n0, "n0")
    check_counts(a, m1)
    check_counts(b, m0)
    if a.shape != b.shape:
        raise ValueError(f"configs list different tasks: {a.size} and {b.size}")
    both = (m1 > 0) & (m0 > 0)
    return Pair(
        Counts(a[both], m1[both]),
        Counts(b[both], m0[both]),
        int(both.size - np.count_nonzero(both)),
    )


def table(x: npt.ArrayLike, n: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return validated tasks x configs matrices of events and trials; cells may have no trials.

    A scalar `n` means that many trials in every cell. Raises ValueError like `counts`.
    """
    xs = np.asarray(x, dtype=np.float64)
    ns = np.asarray(n, dtype=np.float64)
    if xs.size == 0:
        xs = xs.reshape(xs.shape if xs.ndim == 2 else (0, 0))
    if ns.ndim == 0:
        ns = np.full(xs.shape, float(ns))
    if ns.size == 0:
        ns = ns.reshape(xs.shape)
    if xs.ndim != 2:
        raise ValueError(f"expected a tasks x configs matrix, got shape {xs.shape}")
    if not (np.all(np.isfinite(xs)) and np.all(np.isfinite(ns))):
        raise ValueError("counts must be finite")
    check_counts(xs, ns)
    return xs, ns


def whole(values: FloatArray, name: str) -> IntArray:
    """Return counts as integers; ValueError when one of them is fractional."""
    rounded = np.rint(values)
    if np.any(rounded != values):
        raise ValueError(f"{name} must be whole numbers for an exact test")
    return rounded.astype(np.int64)


def check_conf(conf: float) -> float:
    """Return `conf` if it is a confidence level strictly between 0 and 1; ValueError otherwise."""
    if not 0.0 < conf < 1.0:
        raise ValueError(f"confidence level must lie between 0 and 1, got {conf}")
    return conf


def check_target(target: str) -> None:
    """Raise ValueError unless `target` is `benchmark` or `population`."""
    if target not in get_args(Target):
        raise ValueError(f"target must be one of {get_args(Target)}, got {target!r}")


def check_alternative(alternative: str) -> None:
    """Raise ValueError unless `alternative` is `two-sided`, `greater` or `less`."""
    if alternative not in get_args(Alternative):
        raise ValueError(f"alternative must be one of {get_args(Alternative)}, got {alternative!r}")
