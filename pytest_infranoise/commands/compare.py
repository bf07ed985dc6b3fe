"""``infranoise compare``: two runs, or two published scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from pytest_infranoise.commands.common import OneLineCommand
from pytest_infranoise.commands.common import UserError
from pytest_infranoise.commands.common import check_between
from pytest_infranoise.commands.common import print_lines
from pytest_infranoise.commands.common import read_named_run
from pytest_infranoise.commands.common import terminal_width

MOST = 1_000_000  # tasks or samples: larger numbers are mistakes
KNOWN = ("same", "documented", "undocumented", "uncapped")


@click.command("compare", cls=OneLineCommand)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--tasks", type=click.IntRange(1, MOST), help="Scores: tasks behind both.")
@click.option("--samples", type=click.IntRange(1, MOST), help="Scores: samples per task of A.")
@click.option("--samples-b", type=click.IntRange(1, MOST), help="Scores: samples per task of B.  [default: as A]")
@click.option("--configs", type=click.Choice(KNOWN), help="Scores: what is known of the two resource configs.")
@click.option(
    "--configs-documented/--no-configs-documented",
    "is_documented",
    default=None,
    help="Scores: short for --configs documented or undocumented.  [default: no]",
)
@click.option(
    "--icc",
    type=float,
    help="Scores: share of the variance between tasks; 0 if unknown.  [default: as usual, at most 0.6]",
)
@click.option("--agent-a", metavar="NAME", help="Runs: the agent of A to compare.")
@click.option("--agent-b", metavar="NAME", help="Runs: the agent of B to compare.")
@click.option("--alpha", type=float, default=0.05, show_default=True)
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def compare_command(
    a: str,
    b: str,
    tasks: int | None,
    samples: int | None,
    samples_b: int | None,
    configs: str | None,
    is_documented: bool | None,
    icc: float | None,
    agent_a: str | None,
    agent_b: str | None,
    alpha: float,
    run_dir: str | None,
) -> None:
    """Say whether the gap between A and B is noise, possibly the machine, or more.

    A and B are two runs (ids or paths), compared task by task where the task is the same in both, or two published
    scores in percent with --tasks and --samples, e.g. compare 44.1 46.0 --tasks 89 --samples 5.
    """
    check_between("--alpha", alpha, 0, 0.5)
    scores = _score(a), _score(b)
    for_scores = {
        "--tasks": tasks,
        "--samples": samples,
        "--samples-b": samples_b,
        "--configs": configs,
        "--configs-documented": is_documented,
        "--icc": icc,
    }
    for_runs = {"--agent-a": agent_a, "--agent-b": agent_b, "--run-dir": run_dir}
    if scores == (None, None):
        _refuse(for_scores, "is for two scores, and these are runs")
        _compare_runs(a, b, agent_a, agent_b, alpha, run_dir)
    elif scores[0] is None or scores[1] is None:
        score, run = (a, b) if scores[1] is None else (b, a)
        raise UserError(f"{score} is a score and {run} is not: give two runs or two scores")
    else:
        _refuse(for_runs, "is for two runs, and these are scores")
        _compare_scores(
            (scores[0], scores[1]), tasks, (samples, samples_b), _known(configs, is_documented), icc, alpha
        )


def _score(text: str) -> float | None:
    """Return a score in percent; None for what is the name of a run."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        return None
    try:
        is_run = (Path(text) / "run.json").is_file()
    except OSError:  # no name that a file could have
        is_run = False
    return None if is_run else value


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name} {why}")


def _known(configs: str | None, is_documented: bool | None) -> str:
    stated = None if is_documented is None else ("documented" if is_documented else "undocumented")
    if configs is not None and stated is not None:
        raise UserError("--configs and --configs-documented say the same thing: give one of them")
    return configs or stated or "undocumented"


def _compare_scores(
    scores: tuple[float, float],
    tasks: int | None,
    samples: tuple[int | None, int | None],
    configs: str,
    icc: float | None,
    alpha: float,
) -> None:
    from pytest_infranoise.comparing import compare_scores
    from pytest_infranoise.reports.comparison import render_scores

    for score in scores:
        check_between("scores are in percent", score, 0, 100, closed=True)
    if icc is not None and not 0 <= icc < 1:
        raise UserError(f"--icc: give a number from 0 to below 1, not {icc:g}")
    if tasks is None:
        raise UserError("--tasks: two scores need the number of tasks behind them")
    if samples[0] is None:
        raise UserError("--samples: two scores need the number of samples per task behind them")
    found = compare_scores(
        scores[0] / 100,
        scores[1] / 100,
        tasks,
        samples[0],
        samples[1],
        configs=configs,  # type: ignore[arg-type]  # one of KNOWN
        icc=icc,
        alpha=alpha,
    )
    print_lines(render_scores(found, terminal_width()))


def _compare_runs(
    a: str, b: str, agent_a: str | None, agent_b: str | None, alpha: float, run_dir: str | None
) -> None:
    from pytest_infranoise.comparing import CannotCompare
    from pytest_infranoise.comparing import compare_runs
    from pytest_infranoise.reports.comparison import render_runs

    runs = read_named_run(a, run_dir), read_named_run(b, run_dir)
    try:
        found = compare_runs(*runs, agent_a=agent_a, agent_b=agent_b, alpha=alpha)
    except CannotCompare as error:
        raise UserError(str(error)) from None
    print_lines(render_runs(found, terminal_width()))
