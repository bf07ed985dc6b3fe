"""``infranoise calibrate``: which ceiling, from a run that was made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_infranoise.commands.common import OneLineCommand
from pytest_infranoise.commands.common import UserError
from pytest_infranoise.commands.common import print_lines
from pytest_infranoise.commands.common import read_named_run
from pytest_infranoise.commands.common import terminal_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_infranoise.peaks import TrialUsage
    from pytest_infranoise.results import Analysis


@click.command("calibrate", cls=OneLineCommand)
@click.argument("run", required=False)
@click.option(
    "--write-spec",
    "target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a recommended floor and ceiling per task, as YAML or JSON by the suffix.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def calibrate_command(run: str | None, target: Path | None, force: bool, run_dir: str | None) -> None:
    """Say which ceiling RUN (an id or a path; default: the newest) supports, and what would settle it.

    Beside it stands what lower memory ceilings would have done to the trials of the highest one: a planning aid.
    """
    from pytest_infranoise.analysis import analyse
    from pytest_infranoise.peaks import usages
    from pytest_infranoise.reports.calibrating import render_calibration
    from pytest_infranoise.shadows import shadow_tables
    from pytest_infranoise.spec_file import CannotWrite
    from pytest_infranoise.spec_file import check_target

    if force and target is None:
        raise UserError("--force: only with --write-spec FILE")
    try:
        if target is not None:
            check_target(target, force=force)
    except CannotWrite as error:
        raise UserError(f"--write-spec: {error}") from None
    found = read_named_run(run, run_dir)
    analysis, trials = analyse(found), usages(found)
    if not trials:
        raise UserError(f"{found.path}: no trial of this run has a record")
    rules = {entry["name"]: entry for entry in analysis.meta.get("configs", ())}
    shadows = shadow_tables(trials, rules, analysis.design.target, analysis.design.conf)
    print_lines(render_calibration(analysis, shadows, terminal_width()))
    if target is not None:
        _write(target, analysis, trials, force)


def _write(target: Path, analysis: Analysis, trials: Sequence[TrialUsage], force: bool) -> None:
    from pytest_infranoise.reports.calibrating import render_written
    from pytest_infranoise.spec_advice import above
    from pytest_infranoise.spec_advice import advise
    from pytest_infranoise.spec_file import CannotWrite
    from pytest_infranoise.spec_file import spec_document
    from pytest_infranoise.spec_file import write_spec

    chosen = None if analysis.cut_short else _chosen(analysis)
    advice = advise(trials, chosen, (analysis.meta.get("engine") or {}).get("cpus"))
    try:
        write_spec(target, spec_document(analysis, advice, chosen), force=force)
    except CannotWrite as error:
        raise UserError(f"--write-spec: {error}") from None
    beyond = above(advice, trials, chosen)
    print_lines(["", *render_written(str(target), advice, analysis, chosen, beyond, terminal_width())])


def _chosen(analysis: Analysis) -> str | None:
    """Return the config that calibration leads to: of several agents the one with the highest ceiling.

    A ceiling under which the score is known to move leads nowhere.
    """
    found = [agent.calibration for agent in analysis.agents if agent.calibration is not None]
    chosen = {entry.candidate for entry in found if entry.status in ("calibrated", "inconclusive")}
    order = [config for agent in analysis.agents for config in agent.chain or ()]
    return max((config for config in chosen if config is not None), key=order.index, default=None)
