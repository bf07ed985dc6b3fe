"""The native task file as pydantic models; each field checks itself, the files that it names included.

Validation needs the task's directory as ``context["root"]``. The models know single fields and what contradicts
itself within one of them; what several top-level keys say together is checked by the loader.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from pathlib import PurePosixPath
from typing import Annotated
from typing import Literal
from typing import TypeVar

from pydantic import AfterValidator
from pydantic import BaseModel
from pydantic import BeforeValidator
from pydantic import ConfigDict
from pydantic import Discriminator
from pydantic import Field
from pydantic import Tag
from pydantic import ValidationInfo
from pydantic import WithJsonSchema
from pydantic import model_validator

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.files import directory_inside
from pytest_infranoise.tasks.files import file_inside
from pytest_infranoise.units import format_memory
from pytest_infranoise.units import parse_memory

AMOUNT = "one amount"
RANGE = "floor and ceiling"

MIN_MEMORY = 6 * 1024**2  # Docker starts no container with less
MAX_MEMORY = 1024**5
MAX_ARGUMENT = 100_000  # the kernel takes no argument or variable of 128 KiB
MAX_SECONDS = 7 * 24 * 3600.0
DEFAULT_COMMAND = "sh verify.sh"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?)?")
_IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
    r"|sha256:[0-9a-f]{64}"
)


def check_name(name: str) -> str:
    """Return a name that is safe in ids, paths and labels.

    Raises:
        Problem: it is not.
    """
    if _NAME.fullmatch(name) is None:
        raise Problem(
            f"{show(name)} cannot be a name",
            "use up to 100 letters, digits, '.', '_' and '-', not '.' or '-' in front",
        )
    return name


def _check_text(text: str) -> str:
    if not text.strip():
        raise Problem("there is no text", "write it, or remove the key")
    if "\0" in text:
        raise Problem("the text has a NUL character", "remove it")
    return text


def _check_argument(text: str) -> str:
    if "\0" in text:
        raise Problem("the text has a NUL character", "remove it")
    if len(text.encode(errors="replace")) > MAX_ARGUMENT:
        raise Problem(f"the text is longer than {MAX_ARGUMENT} bytes", "put it into a file")
    return text


def check_variable(name: str) -> str:
    """Return the name of a variable.

    Raises:
        Problem: it is not.
    """
    if _VARIABLE.fullmatch(name) is None:
        raise Problem(
            f"{show(name)} cannot be the name of a variable", "use letters, digits and '_', no digit in front"
        )
    if name.startswith("INFRANOISE_"):
        raise Problem(f"{show(name)} is reserved", "choose a name that does not start with INFRANOISE_")
    return name


def check_image(image: str) -> str:
    """Return an image reference.

    Raises:
        Problem: it is not.
    """
    if len(image) > 500 or _IMAGE.fullmatch(image) is None:
        raise Problem(f"{show(image)} is not an image reference", "write e.g. debian:bookworm-slim")
    return image


def check_workdir(path: str) -> str:
    """Return a path in the container that a task may work in.

    Raises:
        Problem: it is not.
    """
    parts = PurePosixPath(path).parts
    if not path.isprintable() or not path.startswith("/") or ".." in parts or len(path) > 1000:
        raise Problem(f"{show(path)} is not an absolute path", "write e.g. /app")
    if parts[1:2] in (("infranoise",), ("proc",), ("sys",), ("dev",)):
        raise Problem(f"{show(path)} is not for tasks to work in", "write e.g. /app")
    return path


def check_user(value: object) -> str:
    """Return a user as text.

    Raises:
        Problem: it is not.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 else value
    if not isinstance(text, str) or _USER.fullmatch(text) is None:
        raise Problem(f"{show(value)} is not a user", "write e.g. nobody, 1000 or '1000:1000'")
    return text


def _memory(value: object) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(
                f"{show(value)} is not an amount of memory; write e.g. 512M, 1.5G or a number of bytes"
            )
        size = parse_memory(value)
    except OverflowError:
        size = MAX_MEMORY + 1
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        raise Problem(problem, remedy or "write e.g. 512M, 1.5G or a number of bytes") from error
    if not 0 < size <= MAX_MEMORY:
        raise Problem(f"{show(value)} is no sensible amount of memory", "write e.g. 512M")
    return size


def _check_memory_spec(size: int) -> int:
    if size < MIN_MEMORY:
        raise Problem(f"{format_memory(size)} is less than a container can start with", "write at least 6M")
    return size


def _path(find: Callable[[Path, str], Path]) -> Callable[[object, ValidationInfo], Path]:
    def check(value: object, info: ValidationInfo) -> Path:
        if not isinstance(value, str):
            raise Problem(f"{show(value)} is not a path", "write it as text")
        return find((info.context or {})["root"], value)

    return check


def _build_directory(root: Path, name: str) -> Path:
    path = directory_inside(root, name)
    if not (path / "Dockerfile").is_file():
        raise Problem(f"{show(name)} holds no Dockerfile", "put one there")
    return path


def check_version(version: object) -> int:
    """Return the version of the format that a file says it has.

    Raises:
        Problem: there is no such version.
    """
    if type(version) is not int or version != 1:  # True is an int, too
        raise Problem(f"version {show(version)} of the format is unknown", "write 1, or update pytest-infranoise")
    return version


def _given(value: object) -> object:
    if value is None:
        raise Problem("the key is empty", "give it a value, or remove it")
    return value


def _kind(value: object) -> str:
    return RANGE if isinstance(value, dict | BaseModel) else AMOUNT


_PATH_SCHEMA = WithJsonSchema({"type": "string", "minLength": 1})
_MEMORY_SCHEMA = WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]})

T = TypeVar("T")
Maybe = Annotated[T | None, BeforeValidator(_given)]  # absent is fine, empty is a slip
Version = Annotated[int, BeforeValidator(check_version), WithJsonSchema({"const": 1})]
Name = Annotated[str, AfterValidator(check_name)]
Text = Annotated[str, AfterValidator(_check_text)]
Command = Annotated[str, AfterValidator(_check_text), AfterValidator(_check_argument)]
Variable = Annotated[str, AfterValidator(check_variable)]
Value = Annotated[str, AfterValidator(_check_argument)]
Image = Annotated[str, AfterValidator(check_image)]
Workdir = Annotated[str, AfterValidator(check_workdir)]
User = Annotated[
    str,
    BeforeValidator(check_user),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}),
]
Cpus = Annotated[float, Field(ge=0.01, le=4096)]
Memory = Annotated[int, BeforeValidator(_memory), _MEMORY_SCHEMA]
MemorySpec = Annotated[int, BeforeValidator(_memory), AfterValidator(_check_memory_spec), _MEMORY_SCHEMA]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Odds = Annotated[float, Field(gt=0, le=1)]
File = Annotated[Path, BeforeValidator(_path(file_inside)), _PATH_SCHEMA]
Directory = Annotated[Path, BeforeValidator(_path(directory_inside)), _PATH_SCHEMA]
BuildDirectory = Annotated[Path, BeforeValidator(_path(_build_directory)), _PATH_SCHEMA]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class CpuRange(_Model):
    """Cores: guaranteed and at most."""

    floor: Cpus = Field(description="Cores that the task is guaranteed.")
    ceiling: Cpus = Field(description="Cores above which the task is throttled.")

    @model_validator(mode="after")
    def _ordered(self) -> CpuRange:
        if self.floor > self.ceiling:
            raise Problem(f"the floor {self.floor:g} is above the ceiling {self.ceiling:g}", "raise the ceiling")
        return self


class MemoryRange(_Model):
    """Memory: guaranteed and at most."""

    floor: MemorySpec = Field(description="Memory that the task is guaranteed.")
    ceiling: MemorySpec = Field(description="Memory above which the kernel kills.")

    @model_validator(mode="after")
    def _ordered(self) -> MemoryRange:
        if self.floor > self.ceiling:
            floor, ceiling = format_memory(self.floor), format_memory(self.ceiling)
            raise Problem(f"the floor {floor} is above the ceiling {ceiling}", "raise the ceiling")
        return self


class Resources(_Model):
    """The spec: what the 1x resource config gives."""

    cpus: Annotated[
        Annotated[Cpus, Tag(AMOUNT)] | Annotated[CpuRange, Tag(RANGE)],
        Discriminator(_kind),
        Field(description="Cores, e.g. 1, or a floor and a ceiling."),
    ]
    memory: Annotated[
        Annotated[MemorySpec, Tag(AMOUNT)] | Annotated[MemoryRange, Tag(RANGE)],
        Discriminator(_kind),
        Field(description="Memory, e.g. 512M (units of 1024), or a floor and a ceiling; 6M at least."),
    ]
    pids: int = Field(default=4096, ge=8, le=4_194_304, description="Processes and threads at most.")
    shm: Memory = Field(default=64 * 1024**2, description="Size of /dev/shm, e.g. 64M.")


class TimeoutsEntry(_Model):
    """Seconds that each phase may take."""

    setup: Seconds = Field(default=60, description="Seconds for upload and setup.")
    agent: Seconds = Field(default=600, description="Seconds for the agent.")
    verifier: Seconds = Field(default=120, description="Seconds for the verifier.")


class VerifierEntry(_Model):
    """What decides whether the task is solved; it comes into the container when the agent phase is over."""

    files: Directory = Field(
        default="verifier", validate_default=True, description="Directory of what the verifier needs."
    )
    command: Command = Field(default=DEFAULT_COMMAND, description="Shell command, run where the files were put.")
    user: Maybe[User] = Field(default=None, description="User who runs it; the image's by default.")

    @model_validator(mode="after")
    def _has_script(self) -> VerifierEntry:
        if self.command == DEFAULT_COMMAND:
            try:
                file_inside(self.files, "verify.sh")
            except Problem as problem:
                raise Problem(f"in {show(self.files.name)}: {problem.problem}", problem.remedy) from problem
        return self


class StrategyEntry(_Model):
    """One way in which the scripted agent may try the task."""

    script: File = Field(description="Shell script, run in the working directory.")
    odds: Odds = Field(description="Probability that a trial draws it; all odds add up to 1.")


class TaskFile(_Model):
    """A native task file."""

    infranoise: Version = Field(description="Version of this format; marks the file as ours.")
    name: Maybe[Name] = Field(default=None, description="Unique name; the directory's by default.")
    instruction: Maybe[Text] = Field(
        default=None, description="What the agent is asked to do; without it, instruction.md is read."
    )
    image: Maybe[Image] = Field(default=None, description="Image to run in; either this or build.")
    build: Maybe[BuildDirectory] = Field(default=None, description="Directory with a Dockerfile to build.")
    pull: Literal["missing", "never"] = Field(default="missing", description="When to pull the image.")
    resources: Resources
    timeouts: TimeoutsEntry = Field(default=TimeoutsEntry(), description="Seconds that each phase may take.")
    network: bool = Field(default=True, description="Whether the container has a network.")
    environment: dict[Variable, Value] = Field(default={}, description="Variables for the agent and setup.")
    user: Maybe[User] = Field(default=None, description="User who runs the agent; the image's by default.")
    workdir: Workdir = Field(default="/app", description="Where the agent works; made if missing.")
    files: Maybe[Directory] = Field(default=None, description="Directory uploaded to workdir in setup.")
    setup: Maybe[Command] = Field(default=None, description="Shell command run in setup, as root, in workdir.")
    verifier: VerifierEntry = Field(
        default={}, validate_default=True, description="What decides whether the task is solved."
    )
    oracle: Maybe[File] = Field(default=None, description="Shell script that solves the task.")
    strategies: dict[Name, StrategyEntry] = Field(
        default={}, min_length=1, description="Ways in which the agent `scripted` may try the task."
    )
    tags: list[Name] = Field(default=[], description="Words to select tasks by.")
    keep_processes: bool = Field(
        default=False, description="Whether what an agent left running at its timeout lives on."
    )
