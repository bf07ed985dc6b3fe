"""How mistakes in a task's files are told: each as one line with file, field, problem and remedy."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 2


class Problem(ValueError):
    """Something is wrong with a value or a file, before it is known which field of which task it came from."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy


class TaskError(Exception):
    """A task cannot be used as its author wrote it.

    Its text is one line for each mistake: ``tasks/a/task.yaml: resources.memory: 'x' is not an amount of memory;
    write e.g. 512M``. ``field`` is empty when the mistake concerns the file as a whole.
    """

    def __init__(self, file: Path, field: str, problem: str, remedy: str, *others: TaskError) -> None:
        super().__init__(file, field, problem, remedy, *others)
        self.file = file
        self.field = field
        self.problem = problem
        self.remedy = remedy
        self.others = others

    @classmethod
    def of(cls, mistakes: Sequence[TaskError]) -> TaskError:
        """Return one error that tells all of these, of which there is at least one."""
        first, *rest = (single for mistake in mistakes for single in (mistake, *mistake.others))
        return cls(first.file, first.field, first.problem, first.remedy, *rest)

    def __str__(self) -> str:
        return "\n".join(mistake._line() for mistake in (self, *self.others))

    def _line(self) -> str:
        where = f"{self.file}: {self.field}" if self.field else str(self.file)
        return printable(f"{where}: {self.problem}; {self.remedy}")


def show(value: object) -> str:
    """Return a value as a reader would recognise it, shortened, however deep or strange it is."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        return printable(_SHORT.repr(value))
    except ValueError:  # an integer of thousands of digits has no text
        return "a huge number"


def printable(text: str) -> str:
    """Return the text on one line, with everything escaped that a terminal cannot show as it is."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
