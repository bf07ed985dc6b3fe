"""The arguments of ``@pytest.mark.infranoise(...)`` on a test function, checked as a task file is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Literal

from pydantic import Field
from pydantic import ValidationError

from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.explain import explain
from pytest_infranoise.tasks.files import content_hash
from pytest_infranoise.tasks.schema import BuildDirectory
from pytest_infranoise.tasks.schema import CpuRange
from pytest_infranoise.tasks.schema import Image
from pytest_infranoise.tasks.schema import Maybe
from pytest_infranoise.tasks.schema import MemoryRange
from pytest_infranoise.tasks.schema import Resources
from pytest_infranoise.tasks.schema import Seconds
from pytest_infranoise.tasks.schema import User
from pytest_infranoise.tasks.schema import Value
from pytest_infranoise.tasks.schema import Variable
from pytest_infranoise.tasks.schema import Workdir


class MarkArguments(Resources):
    """What a marked function may say of its container; ``cpus`` and ``memory`` are the spec."""

    image: Maybe[Image] = Field(default=None, description="Image to run in; either this or build.")
    build: Maybe[BuildDirectory] = Field(default=None, description="Directory with a Dockerfile, beside the test.")
    pull: Literal["missing", "never"] = Field(default="missing", description="When to pull the image.")
    timeout: Seconds = Field(default=600, description="Seconds for the function itself.")
    setup_timeout: Seconds = Field(default=60, description="Seconds for fixtures that use the container.")
    network: bool = Field(default=True, description="Whether the container has a network.")
    environment: dict[Variable, Value] = Field(default={}, description="Variables of the container.")
    user: Maybe[User] = Field(default=None, description="User who runs commands; the image's by default.")
    workdir: Workdir = Field(default="/app", description="Where commands run; made if missing.")


def load_mark(file: Path, function: str, arguments: Mapping[str, Any], instruction: str) -> Task:
    """Return the task that a marked function is.

    Args:
        file: the function's file; ``build`` is relative to its directory.
        function: what to call the function in messages, and the task.
        arguments: the mark's keyword arguments.
        instruction: what the function says of itself.

    Raises:
        TaskError: the arguments have mistakes; all of them are told.
    """
    parsed: MarkArguments | None = None
    mistakes = []
    try:
        parsed = MarkArguments.model_validate(dict(arguments), context={"root": file.parent})
    except ValidationError as error:
        mistakes += list(explain(error, MarkArguments))
    if "image" in arguments and "build" in arguments:
        mistakes.append(("image", "is given together with build", "remove one of them"))
    elif "image" not in arguments and "build" not in arguments:
        mistakes.append(("image", "is missing", "name one, or with build a directory that has a Dockerfile"))
    if parsed is None or mistakes:
        raise TaskError.of(
            [
                TaskError(file, f"{function}: infranoise: {field}", problem, remedy)
                for field, problem, remedy in mistakes
            ]
        )
    return _task(file, function, parsed, _hash(file, arguments, parsed.build), instruction)


def _task(file: Path, name: str, parsed: MarkArguments, digest: str, instruction: str) -> Task:
    cpus, memory = parsed.cpus, parsed.memory
    return Task(
        name=name,
        file=file,
        instruction=instruction,
        image=parsed.image,
        build=parsed.build,
        spec=Spec(
            cpus=cpus.floor if isinstance(cpus, CpuRange) else cpus,
            memory=memory.floor if isinstance(memory, MemoryRange) else memory,
            cpus_ceiling=cpus.ceiling if isinstance(cpus, CpuRange) else None,
            memory_ceiling=memory.ceiling if isinstance(memory, MemoryRange) else None,
        ),
        verifier=Verifier("", None),  # the function itself decides
        content_hash=digest,
        pull=parsed.pull,
        timeouts=Timeouts(setup=parsed.setup_timeout, agent=parsed.timeout),
        network=parsed.network,
        environment=dict(parsed.environment),
        user=parsed.user,
        workdir=parsed.workdir,
        pids_ceiling=parsed.pids,
        shm_ceiling=parsed.shm,
    )


def _hash(file: Path, arguments: Mapping[str, Any], build: Path | None) -> str:
    digest = hashlib.sha256(file.read_bytes())
    digest.update(json.dumps(arguments, sort_keys=True, default=str).encode())
    if build is not None:
        digest.update(content_hash(build).encode())
    return digest.hexdigest()
