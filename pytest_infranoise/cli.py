"""The ``infranoise`` command. Imports what a subcommand needs only when it runs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from pytest_infranoise import __version__
from pytest_infranoise.commands.calibrate import calibrate_command
from pytest_infranoise.commands.common import UserError
from pytest_infranoise.commands.common import print_lines
from pytest_infranoise.commands.common import read_named_run
from pytest_infranoise.commands.common import terminal_width
from pytest_infranoise.commands.compare import compare_command
from pytest_infranoise.commands.plan import plan_command


@click.group()
@click.version_option(__version__, prog_name="infranoise")
def main() -> None:
    """Measure how much of a benchmark score is the machine.

    Trials are run by pytest: `pytest bench_tasks --resource-config 1x,3x,uncapped`.
    """


for command in (calibrate_command, compare_command, plan_command):
    main.add_command(command)


@main.command()
@click.argument("run", required=False)
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def report(run: str | None, run_dir: str | None) -> None:
    """Print the summary of RUN (an id or a path; default: the newest) again, from its records."""
    from pytest_infranoise.analysis import analyse
    from pytest_infranoise.gates import evaluate
    from pytest_infranoise.gates import parse_gate
    from pytest_infranoise.reports.terminal import render
    from pytest_infranoise.reports.terminal import render_gates

    analysis = analyse(read_named_run(run, run_dir))
    width = terminal_width()
    gates = [evaluate(parse_gate(text), analysis) for text in analysis.meta.get("gates", ())]
    print_lines((*render(analysis, width), *render_gates(gates, width)))


@main.command("lint")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--resource-config",
    "values",
    multiple=True,
    metavar="CONFIGS",
    help="Configs to plan under, as in pytest's option of that name; from infranoise.toml by default.",
)
@click.option("--cpus", type=float, help="CPUs of the host that it is to run on.")
@click.option("--memory", metavar="SIZE", help="Memory of that host, e.g. 64G.")
@click.option(
    "--default-cpus",
    "--infranoise-default-cpus",
    metavar="CPUS",
    help="Floor and ceiling of tasks that state none, e.g. 1..2.",
)
@click.option("--default-memory", "--infranoise-default-memory", metavar="SIZE", help="The same, e.g. 2G..6G.")
@click.pass_context
def lint_command(
    context: click.Context,
    paths: tuple[Path, ...],
    values: tuple[str, ...],
    cpus: float | None,
    memory: str | None,
    default_cpus: str | None,
    default_memory: str | None,
) -> None:
    """Say everything that is wrong with all tasks in PATH, which needs no engine and runs nothing.

    A PATH is a directory to search, a task's directory or file, or a JSON lines file of SWE-bench instances. Tasks
    of every format are loaded and planned as pytest would. The exit status is 1 when something is wrong; a task
    that is skipped is not.
    """
    from pytest_infranoise.lint import lint
    from pytest_infranoise.lint import read_choices

    try:
        choices = read_choices(paths, values, (cpus, memory), (default_cpus, default_memory))
    except ValueError as error:
        raise UserError(str(error)) from None
    findings = lint(paths, choices)
    for line in findings.lines():
        click.echo(line)
    context.exit(0 if findings.clean else 1)


@main.command()
def schema() -> None:
    """Print the JSON schema of native task files (task.yaml)."""
    from pytest_infranoise.tasks.native import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.command("list")
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def list_command(run_dir: str | None) -> None:
    """List all runs: how far each is, whether it is running, finished or killed, and the disk it takes."""
    from pytest_infranoise.listing import HEADER
    from pytest_infranoise.listing import listed_runs
    from pytest_infranoise.listing import table
    from pytest_infranoise.settings import DEFAULT_RUNS_DIR
    from pytest_infranoise.units import format_memory
    from pytest_infranoise.units import plural

    runs_dir = Path(run_dir or DEFAULT_RUNS_DIR)
    runs = list(listed_runs(runs_dir))
    for line in table([HEADER, *(run.cells() for run in runs)]) if runs else ():
        click.echo(line)
    click.echo(f"{plural(len(runs), 'run')} in {runs_dir}: {format_memory(sum(run.disk for run in runs))}")


@main.command("merge")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="DIR", help="The new run's directory.  [default: a new one in --run-dir]")
@click.option("--run-dir", metavar="DIR", help="Where runs are kept.  [default: .infranoise/runs]")
def merge_command(runs: tuple[str, ...], output: str | None, run_dir: str | None) -> None:
    """Make one new run of several RUNs (ids or paths): shards, or the same trials on several days.

    Runs whose configs, agents or rules are not the same under one name are refused.
    """
    from datetime import UTC
    from datetime import datetime

    from pytest_infranoise.journal import RunNotFound
    from pytest_infranoise.journal import find_run
    from pytest_infranoise.journal import new_run_id
    from pytest_infranoise.merge import MergeError
    from pytest_infranoise.merge import merge
    from pytest_infranoise.settings import DEFAULT_RUNS_DIR

    runs_dir, now = Path(run_dir or DEFAULT_RUNS_DIR), datetime.now(UTC)
    run_id = new_run_id(now)
    target = Path(output) if output else runs_dir / run_id
    try:
        paths = [find_run(runs_dir, name) for name in runs]
        meta = merge(paths, target, run_id, now.isoformat(timespec="seconds"))
    except (MergeError, RunNotFound) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error}") from None
    for note in meta["run_notes"]:
        click.echo(note)
    click.echo(f"infranoise report {target}")


@main.command("clean")
@click.option("--images", is_flag=True, help="Remove images too that were built for tasks and that no run needs.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--run",
    metavar="ID",
    help="Only what this run left, also one that was started elsewhere and is dead for certain.",
)
@click.pass_context
def clean_command(context: click.Context, images: bool, dry_run: bool, run: str | None) -> None:
    """Remove containers and networks that dead runs left on the engine; never a living run's, and no records.

    The exit status is 1 when something could not be removed.
    """
    from pytest_infranoise.clean import clean
    from pytest_infranoise.clean import clean_run
    from pytest_infranoise.host import Ledger
    from pytest_infranoise.sandboxes.docker import DockerBackend
    from pytest_infranoise.sandboxes.protocol import SandboxError

    if run is not None and images:
        raise UserError("--run removes what one run left, and no images; give --images by itself")
    with closing(DockerBackend("clean")) as backend:
        try:
            ledger = Ledger(backend.info().id)
            if run is None:
                whole = clean(backend, ledger, click.echo, images=images, dry_run=dry_run)
            else:
                whole = clean_run(backend, ledger, click.echo, run, dry_run=dry_run)
        except SandboxError as error:
            raise UserError(f"the engine does not answer: {error.text}") from None
        except OSError as error:
            raise UserError(f"the ledger of floors cannot be used (INFRANOISE_STATE_DIR): {error}") from None
    context.exit(0 if whole else 1)


@main.command()
@click.pass_context
def doctor(context: click.Context) -> None:
    """Check that trials can run here: engine, limits, image, disk. Changes nothing.

    The exit status is 1 when a check fails.
    """
    from pytest_infranoise.doctor import Status
    from pytest_infranoise.doctor import examine
    from pytest_infranoise.sandboxes.docker import DockerBackend
    from pytest_infranoise.sandboxes.engine import Engine

    failed = False
    with closing(DockerBackend("doctor")) as backend, closing(Engine()) as engine:
        for check in examine(backend, engine):
            click.echo(str(check))
            failed = failed or check.status is Status.FAIL
    context.exit(1 if failed else 0)
