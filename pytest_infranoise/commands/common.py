"""What several subcommands share."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import click

if TYPE_CHECKING:
    from pytest_infranoise.journal import Run


class UserError(click.ClickException):
    """A mistake of the user's: one line on stderr and exit status 2."""

    exit_code = 2


class OneLineCommand(click.Command):
    """A command whose mistakes in options and arguments are told like every other one."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the arguments.

        Raises:
            UserError: they are wrong.
        """
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            raise UserError(error.format_message()) from None


def read_named_run(name: str | None, run_dir: str | None) -> Run:
    """Return the run that ``name`` (an id or a path, None for the newest) means.

    Raises:
        UserError: there is none, or not one that this version reads.
    """
    from pytest_infranoise.journal import RUN_SCHEMA
    from pytest_infranoise.journal import RunNotFound
    from pytest_infranoise.journal import find_run
    from pytest_infranoise.journal import read_run
    from pytest_infranoise.settings import DEFAULT_RUNS_DIR

    try:
        path = find_run(Path(run_dir or DEFAULT_RUNS_DIR), name)
        run = read_run(path)
    except RunNotFound as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"{error.filename or name}: {error.strerror or error}") from None
    if run.meta.get("schema") != RUN_SCHEMA:
        raise UserError(f"{path}: its schema is {run.meta.get('schema')!r}, this version reads {RUN_SCHEMA}")
    return run


def terminal_width() -> int:
    """Return the columns to print in."""
    return shutil.get_terminal_size(fallback=(100, 24)).columns


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout."""
    for line in lines:
        click.echo(line)


def check_between(name: str, value: float | None, low: float, high: float, *, closed: bool = False) -> None:
    """Check a number of the user's.

    Raises:
        UserError: it is not between ``low`` and ``high`` (``closed``: or equal to one of them), or no number.
    """
    if value is None or (low <= value <= high if closed else low < value < high):
        return
    kind = "from" if closed else "between"
    raise UserError(f"{name}: give a number {kind} {low:g} {'to' if closed else 'and'} {high:g}, not {value:g}")
