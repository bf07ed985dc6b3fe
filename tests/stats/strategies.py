"""Count tables that runs can produce: empty cells, single samples, all-or-none tasks included."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st


class Config(NamedTuple):
    """Passes, infra errors and trials per task of one config."""

    x: list[int]
    e: list[int]
    n: list[int]


@st.composite
def cells(draw: st.DrawFn, most: int = 8) -> tuple[int, int, int]:
    n = draw(st.sampled_from([0, 1, 2, 3, 3, 3, most]))
    x = draw(st.one_of(st.sampled_from([0, n]), st.integers(0, n)))
    return x, draw(st.integers(0, n - x)), n


@st.composite
def runs(draw: st.DrawFn, configs: int = 2, most_tasks: int = 14) -> tuple[Config, ...]:
    """Several configs of one run on the same tasks."""
    tasks = draw(st.integers(0, most_tasks))
    columns = []
    for _ in range(configs):
        drawn = [draw(cells()) for _ in range(tasks)]
        columns.append(Config([c[0] for c in drawn], [c[1] for c in drawn], [c[2] for c in drawn]))
    return tuple(columns)


@st.composite
def shuffled_runs(draw: st.DrawFn) -> tuple[tuple[Config, ...], tuple[Config, ...]]:
    """One run twice, the second time with its tasks in another order."""
    run = draw(runs())
    order = draw(st.permutations(range(len(run[0].n))))
    return run, tuple(Config(*([column[t] for t in order] for column in config)) for config in run)
