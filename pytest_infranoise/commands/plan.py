"""``infranoise plan``: how many samples a question needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pytest_infranoise.commands.common import OneLineCommand
from pytest_infranoise.commands.common import UserError
from pytest_infranoise.commands.common import check_between
from pytest_infranoise.commands.common import print_lines
from pytest_infranoise.commands.common import read_named_run
from pytest_infranoise.commands.common import terminal_width

if TYPE_CHECKING:
    from pytest_infranoise.journal import Run
    from pytest_infranoise.planner import NearSpec
    from pytest_infranoise.planner import Variance

DEFAULT_MARGIN = 3.0
DEFAULT_CONFIGS = 2
MOST = 1_000_000  # tasks, samples or configs: larger numbers are mistakes


@click.command("plan", cls=OneLineCommand)
@click.option("--tasks", type=click.IntRange(1, MOST), help="Tasks of the benchmark.  [default: those of --from]")
@click.option("--margin", type=float, metavar="PP", help="Show two scores equal within so many pp.  [default: 3]")
@click.option("--delta", type=float, metavar="PP", help="Detect a difference of so many pp.")
@click.option(
    "--samples", "given", type=click.IntRange(1, MOST), multiple=True, help="What can so many samples show?"
)
@click.option(
    "--configs", type=click.IntRange(2, MOST), help="Configs, baseline included.  [default: 2, or --from's]"
)
@click.option(
    "--near-spec", type=click.IntRange(1, MOST), metavar="N", help="Tasks near their spec, the only ones rerun."
)
@click.option(
    "--from", "run_name", metavar="RUN", help="Take variance, tasks and those near their spec from a run."
)
@click.option("--power", type=float, default=0.8, show_default=True)
@click.option("--alpha", type=float, default=0.05, show_default=True)
@click.option("--icc", type=float, help="Share of the variance that lies between tasks.  [default: 0.6]")
@click.option("--score", type=float, metavar="PERCENT", help="Score to expect.  [default: 60]")
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def plan_command(
    tasks: int | None,
    margin: float | None,
    delta: float | None,
    given: tuple[int, ...],
    configs: int | None,
    near_spec: int | None,
    run_name: str | None,
    power: float,
    alpha: float,
    icc: float | None,
    score: float | None,
    run_dir: str | None,
) -> None:
    """Say how many samples per task are needed to show a score unchanged, or to detect a change.

    With an earlier run (--from RUN) its own variance is used, and the tasks that came near their spec are counted.
    """
    from pytest_infranoise.planner import SHOWN_SAMPLES
    from pytest_infranoise.planner import Question
    from pytest_infranoise.planner import make_plan
    from pytest_infranoise.reports.planning import render_plan

    check_between("--margin", margin, 0, 100)
    check_between("--delta", delta, 0, 100)
    check_between("--power", power, 0, 1)
    check_between("--alpha", alpha, 0, 0.5)
    check_between("--score", score, 0, 100)
    if icc is not None and not 0 <= icc < 1:
        raise UserError(f"--icc: give a number from 0 to below 1, not {icc:g}")
    if margin is None and delta is None:
        margin = DEFAULT_MARGIN
    run = read_named_run(run_name, run_dir) if run_name is not None else None
    in_run = len({key.task for key in run.planned}) if run is not None else None
    size = tasks if tasks is not None else in_run
    if not size:
        raise UserError("--tasks: give the number of tasks, or an earlier run with tasks in --from")
    if near_spec is not None and near_spec > size:
        raise UserError(f"--near-spec: {near_spec} is more than the {size} tasks there are")
    variance = _variance(run, icc, score)
    question = Question(
        tasks=size,
        configs=configs
        or (max(2, len({key.config for key in run.planned})) if run is not None else DEFAULT_CONFIGS),
        margin=None if margin is None else margin / 100,
        delta=None if delta is None else delta / 100,
        alpha=alpha,
        power=power,
        target=(run.meta.get("design") or {}).get("target", "benchmark") if run is not None else "benchmark",
    )
    near = _near_spec(near_spec, run if size == in_run else None, variance)
    plan = make_plan(question, variance, near, tuple(sorted(set(given))) or SHOWN_SAMPLES)
    print_lines(render_plan(plan, terminal_width()))


def _variance(run: Run | None, icc: float | None, score: float | None) -> Variance:
    from dataclasses import replace

    from pytest_infranoise.planner import USUAL_SCORE
    from pytest_infranoise.planner import assumed_variance
    from pytest_infranoise.planner import measured_variance
    from pytest_infranoise.stats.gaps import USUAL_ICC

    assumed = assumed_variance(USUAL_ICC if icc is None else icc, USUAL_SCORE if score is None else score / 100)
    if run is None:
        return assumed
    # Somebody who states a variance means it, whatever the run shows.
    if icc is not None or score is not None:
        return assumed
    measured = measured_variance(run)
    why = "; the run has no task whose outcomes varied between two samples of a config"
    return measured or replace(assumed, source=assumed.source + why)


def _near_spec(number: int | None, run: Run | None, variance: Variance) -> NearSpec | None:
    from pytest_infranoise.planner import NearSpec
    from pytest_infranoise.planner import near_spec_of

    if number is not None:
        return NearSpec(number, 0, "as given", variance)
    return None if run is None else near_spec_of(run, variance)
