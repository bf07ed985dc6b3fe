"""How often intervals cover, tests are wrong, and the calibration rule picks what it should not.

Runs are drawn from worlds of known truth (``tests.stats.worlds``) and judged by the functions that judge real ones.
Beside each measured share stands its simulation error (one standard error), and what a simulation by other programs
found for the same question (statistics.md, section 4), where it asked it:

    python -m tests.benchmarks.coverage
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import click
import numpy as np

from pytest_infranoise.stats.calibration import calibrate
from pytest_infranoise.stats.deltas import delta_paired
from pytest_infranoise.stats.deltas import delta_t
from pytest_infranoise.stats.exact import cmh_exact_p
from pytest_infranoise.stats.exact import signflip
from pytest_infranoise.stats.exact import two_prop_z_p
from pytest_infranoise.stats.rates import naive_wilson
from pytest_infranoise.stats.rates import rate_ci
from pytest_infranoise.stats.trend import trend_stratified
from tests.stats.worlds import CONFIGS
from tests.stats.worlds import EARLY_GAINS
from tests.stats.worlds import World
from tests.stats.worlds import article
from tests.stats.worlds import on_the_margin
from tests.stats.worlds import same
from tests.stats.worlds import swe

Shares = dict[str, float]
Once = Callable[[np.random.Generator], Shares]

_TARGET = CONFIGS.index("3x")
_TOP = CONFIGS.index("uncapped")
# Not stated for the figures of statistics.md; their digits look like this many.
_REFERENCE_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of many drawn runs: ``once`` draws one and says what was so, 0 or 1, or a value to average.

    ``expected`` are the shares of statistics.md; ``weight`` divides the number of runs for what is slow.
    """

    title: str
    once: Once
    expected: Shares
    weight: int = 1


# Intervals of one rate


def rate_covers(rng: np.random.Generator, tasks: int, samples: int, config: int, infra: bool) -> Shares:
    """Say whether the intervals of one rate hold the truth of these tasks."""
    world = article(rng, tasks)
    passes, errors = world.draw(rng, samples)
    events = (errors if infra else passes)[:, config]
    truth = float((world.infra if infra else world.passes)[:, config].mean())
    trials = [samples] * tasks
    ours, naive = rate_ci(events, trials), naive_wilson(events, trials)
    return {
        "ours": ours.lo <= truth <= ours.hi,
        "naive Wilson": naive.lo <= truth <= naive.hi,
        "half-width, pp": 50 * (ours.hi - ours.lo),
    }


def population_covers(rng: np.random.Generator, tasks: int, samples: int) -> Shares:
    """Say whether the intervals of a score hold the mean of the tasks that these were drawn from."""
    truth = _POPULATION_SCORE
    passes, _ = article(rng, tasks).draw(rng, samples)
    trials = [samples] * tasks
    ours, benchmark = rate_ci(passes[:, 0], trials, "population"), rate_ci(passes[:, 0], trials)
    return {"population": ours.lo <= truth <= ours.hi, "benchmark": benchmark.lo <= truth <= benchmark.hi}


def _population_score(tasks: int = 2_000_000) -> float:
    return float(article(np.random.default_rng(0), tasks).passes[:, 0].mean())


_POPULATION_SCORE = _population_score()


# Deltas


def delta_tests(
    rng: np.random.Generator, make: Callable[[np.random.Generator], World], samples: int, config: int, infra: bool
) -> Shares:
    """Say which tests call a delta to the baseline different from 0, and whether its interval holds the truth."""
    world = make(rng)
    passes, errors = world.draw(rng, samples)
    drawn, truths = (errors, world.infra) if infra else (passes, world.passes)
    one, zero = drawn[:, config], drawn[:, 0]
    trials = [samples] * len(one)
    delta = delta_paired(one, trials, zero, trials)
    truth = float((truths[:, config] - truths[:, 0]).mean())
    total = samples * len(one)
    exact = cmh_exact_p(one, trials, zero, trials, "less") if infra else delta.p_exact
    return {
        "ours": (exact if infra else delta.p) < 0.05,
        "covers": delta.lo <= truth <= delta.hi,
        "exact": exact < 0.05,
        "naive z": two_prop_z_p(int(one.sum()), total, int(zero.sum()), total) < 0.05,
        "paired t": delta_t(one, trials, zero, trials).p < 0.05,
        "sign-flip": signflip((one - zero) / samples) < 0.05,
    }


def trend_found(rng: np.random.Generator, samples: int) -> Shares:
    """Say whether a trend of the score over all ceilings is found."""
    passes, _ = article(rng).draw(rng, samples)
    return {"stratified": trend_stratified(passes, np.full(passes.shape, samples)).p < 0.05}


# Calibration


def picks(
    rng: np.random.Generator, make: Callable[[np.random.Generator], World], samples: int, margin: float
) -> Shares:
    """Say what gate-then-TOST picks, and what "infra p < .05 and score p > .05" would have picked."""
    world = make(rng)
    passes, errors = world.draw(rng, samples)
    truths = (world.passes - world.passes[:, :1]).mean(axis=0)
    pick = calibrate(passes, errors, samples, margin).pick
    total = samples * len(passes)
    naive = next(
        (
            config
            for config in range(1, len(CONFIGS))
            if _naive_p(errors, config, total) < 0.05 and _naive_p(passes, config, total) > 0.05
        ),
        None,
    )
    return {
        "3x": pick == _TARGET,
        "wrong pick": pick is not None and bool(abs(truths[pick]) >= margin - 1e-9),
        "none": pick is None,
        "p > .05 rule, wrong pick": naive is not None and bool(abs(truths[naive]) >= margin - 1e-9),
    }


def _naive_p(events: np.ndarray[tuple[int, ...], np.dtype[np.int64]], config: int, total: int) -> float:
    return two_prop_z_p(int(events[:, config].sum()), total, int(events[:, 0].sum()), total)


def questions() -> Iterator[Question]:
    """Yield everything that is asked."""
    for tasks, samples, naive, ours in (
        (89, 1, 0.998, 0.998),
        (89, 3, 0.998, 0.947),
        (89, 5, 0.998, 0.953),
        (89, 10, 0.999, 0.954),
        (227, 10, 1.0, 0.948),
    ):
        once = partial(rate_covers, tasks=tasks, samples=samples, config=0, infra=False)
        yield Question(
            f"95% interval of a score covers, {tasks} x {samples}", once, {"ours": ours, "naive Wilson": naive}
        )
    for config, samples, naive, ours in ((0, 5, 0.983, 0.952), (_TOP, 1, 0.932, 0.932), (_TOP, 5, 0.976, 0.976)):
        once = partial(rate_covers, tasks=89, samples=samples, config=config, infra=True)
        title = f"95% interval of the infra-error rate at {CONFIGS[config]} covers, 89 x {samples}"
        yield Question(title, once, {"ours": ours, "naive Wilson": naive})
    for samples, ours, benchmark in ((3, 0.949, 0.586), (10, 0.953, 0.367)):
        yield Question(
            f"95% interval of a score covers tasks like these, 89 x {samples}",
            partial(population_covers, tasks=89, samples=samples),
            {"population": ours, "benchmark": benchmark},
        )
    yield from _delta_questions()
    for samples, stratified in ((1, 0.28), (3, 0.70), (5, 0.89), (10, 0.99)):
        yield Question(
            f"power: trend of the score, 89 x {samples}",
            partial(trend_found, samples=samples),
            {"stratified": stratified},
        )
    yield from _calibration_questions()


def _delta_questions() -> Iterator[Question]:
    nothing: dict[int, tuple[float, float, float, float, float]] = {
        1: (0.044, 0.025, 0.002, 0.044, 0.025),
        3: (0.049, 0.036, 0.002, 0.048, 0.038),
        5: (0.047, 0.039, 0.001, 0.050, 0.038),
        10: (0.057, 0.051, 0.003, 0.056, 0.049),
    }
    names = ("ours", "exact", "naive z", "paired t", "sign-flip")
    for samples, shares in nothing.items():
        once = partial(delta_tests, make=same, samples=samples, config=1, infra=False)
        expected = {**dict(zip(names, shares, strict=True)), "covers": 1 - shares[0]}
        yield Question(f"type-I error: no task changes, 89 x {samples}", once, expected)
    once = partial(delta_tests, make=partial(same, tasks=227), samples=10, config=1, infra=False)
    yield Question("type-I error: no task changes, 227 x 10", once, {"ours": 0.05, "covers": 0.95})
    power: dict[tuple[str, int], tuple[float, float, float, float, float]] = {
        ("uncapped", 3): (0.58, 0.51, 0.20, 0.44, 0.39),
        ("uncapped", 5): (0.80, 0.75, 0.39, 0.60, 0.56),
        ("uncapped", 10): (0.98, 0.97, 0.81, 0.81, 0.79),
        ("3x", 5): (0.15, 0.13, 0.01, 0.13, 0.11),
        ("3x", 10): (0.26, 0.23, 0.04, 0.21, 0.19),
    }
    for (config, samples), shares in power.items():
        once = partial(delta_tests, make=article, samples=samples, config=CONFIGS.index(config), infra=False)
        expected = {**dict(zip(names, shares, strict=True)), "covers": 0.95}
        yield Question(f"power: score of {config} against 1x, 89 x {samples}", once, expected)
    once = partial(delta_tests, make=swe, samples=10, config=1, infra=False)
    expected = {**dict(zip(names, (0.54, 0.51, 0.05, 0.44, 0.42), strict=True)), "covers": 0.95}
    yield Question("power: score of 5x against 1x (+1.54 pp), 227 x 10", once, expected)
    for samples, exact, naive in ((3, 0.61, 0.62), (5, 0.87, 0.86), (10, 0.99, 0.99)):
        once = partial(delta_tests, make=article, samples=samples, config=_TARGET, infra=True)
        yield Question(
            f"power: infra errors of 3x against 1x, 89 x {samples}", once, {"exact": exact, "naive z": naive}
        )


def _calibration_questions() -> Iterator[Question]:
    worlds: dict[str, Callable[[np.random.Generator], World]] = {
        "article's world": article,
        "early-unlock world": partial(article, gains=EARLY_GAINS),
    }
    expected: dict[tuple[str, int, int], tuple[float | None, float, float | None, float | None]] = {
        ("article's world", 3, 5): (0.00, 0.00, 1.0, 0.13),
        ("article's world", 3, 10): (0.09, 0.00, 0.85, 0.01),
        ("article's world", 3, 20): (0.22, 0.00, 0.70, 0.00),
        ("article's world", 5, 5): (0.17, 0.00, 0.64, None),
        ("article's world", 5, 10): (0.43, 0.00, 0.32, None),
        ("early-unlock world", 3, 5): (None, 0.003, None, 0.83),
        ("early-unlock world", 3, 10): (None, 0.003, None, 0.64),
    }
    names = ("3x", "wrong pick", "none", "p > .05 rule, wrong pick")
    for (name, points, samples), shares in expected.items():
        told = {key: share for key, share in zip(names, shares, strict=True) if share is not None}
        once = partial(picks, make=worlds[name], samples=samples, margin=points / 100)
        yield Question(f"calibration, {name}, margin {points} pp, 89 x {samples}", once, told, weight=5)
    for samples in (5, 10, 20):
        once = partial(picks, make=partial(on_the_margin, margin=0.05), samples=samples, margin=0.05)
        title = f"calibration, every ceiling exactly on the margin (worst case), 5 pp, 89 x {samples}"
        yield Question(title, once, {"wrong pick": 0.043}, weight=5)


# Asking


def ask(question: Question, runs: int, seed: int) -> tuple[Shares, Shares]:
    """Return the mean of everything that ``runs`` draws say, and its simulation error."""
    rng = np.random.default_rng(seed)
    told = [question.once(rng) for _ in range(runs)]
    values = {name: np.array([one[name] for one in told], dtype=float) for name in told[0]}
    means = {name: float(value.mean()) for name, value in values.items()}
    return means, {name: float(value.std(ddof=1)) / math.sqrt(runs) for name, value in values.items()}


def lines(question: Question, means: Shares, errors: Shares) -> Iterator[str]:
    """Yield what was found, one line for each share."""
    yield question.title
    for name, mean in means.items():
        text = f"  {name:<26}{mean:8.3f} +- {errors[name]:.3f}"
        expected = question.expected.get(name)
        if expected is not None:
            # A share that never differed still has the error that one more run could show.
            spread = max(expected * (1 - expected), 1 / _REFERENCE_RUNS) / _REFERENCE_RUNS
            apart = abs(mean - expected) / math.sqrt(errors[name] ** 2 + spread)
            text += f"   statistics.md {expected:.3f}{'' if apart < 3 else f', {mean - expected:+.3f}'}"
        yield text


@click.command()
@click.option(
    "--runs", default=2000, show_default=True, help="Runs drawn for each question; a fifth where it is slow."
)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--only", default="", help="Only the questions with this text in their title.")
def main(runs: int, seed: int, processes: int, only: str) -> None:
    """Print coverage, type-I error, power and wrong picks beside what statistics.md states."""
    asked = [question for question in questions() if only in question.title]
    began = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        answers = [
            pool.submit(ask, question, max(2, runs // question.weight), seed + place)
            for place, question in enumerate(asked)
        ]
        for question, answer in zip(asked, answers, strict=True):
            for line in lines(question, *answer.result()):
                click.echo(line)
    click.echo(f"{runs} runs each, seed {seed}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
