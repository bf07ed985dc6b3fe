"""One SWE-bench instance -> one task, with every mistake in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError

from pytest_infranoise.model import Reads
from pytest_infranoise.model import Solution
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Upload
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks import swebench_scripts as scripts
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.explain import explain
from pytest_infranoise.tasks.foreign import spec_of
from pytest_infranoise.tasks.native import spec_from
from pytest_infranoise.tasks.patches import Touched
from pytest_infranoise.tasks.patches import touched
from pytest_infranoise.tasks.schema import Command
from pytest_infranoise.tasks.schema import Maybe
from pytest_infranoise.tasks.schema import Resources
from pytest_infranoise.tasks.schema import Seconds
from pytest_infranoise.tasks.schema import Workdir
from pytest_infranoise.tasks.schema import check_image
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.tables import Table

IMAGE_KEYS = ("image", "image_name", "docker_image")
COMMAND_KEYS = ("test_cmd", "test_command", "test_cmds")
OWN = "infranoise"

# SWE-bench's parsers, grouped by how they name tests -> ours, in ``trials.suite_output``.
LOG_PARSERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"
    ),
    **dict.fromkeys(("pytest_options", "pydicom", "requests", "pylint"), "pytest-options"),
    **dict.fromkeys(("pytest_v2", "astropy", "scikit", "sphinx", "seaborn"), "pytest-progress"),
    **dict.fromkeys(("django", "unittest"), "unittest"),
    "matplotlib": "matplotlib",
    "sympy": "sympy",
}

# Nothing shorter: a branch that the agent makes may be called like the beginning of a hash, and git takes it then.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class OwnTimeouts(BaseModel):
    """Seconds that each phase may take; the verifier's default is SWE-bench's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    setup: Seconds = 60
    agent: Seconds = 3600
    verifier: Seconds = 1800


class OwnTable(BaseModel):
    """What we need to know of an instance and SWE-bench does not say: the table ``infranoise`` of a line."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    resources: Maybe[Resources] = None
    timeouts: Annotated[OwnTimeouts, Field()] = OwnTimeouts()
    workdir: Workdir = "/testbed"
    setup: Maybe[Command] = None
    network: bool = True
    pull: Literal["missing", "never"] = "missing"


def make_task(file: Path, data: Mapping[str, Any], defaults: DefaultResources) -> Task:
    """Return the task in one instance.

    Raises:
        TaskError: it has mistakes; all that could be found are told, without the line they are in.
    """
    mistakes: list[TaskError] = []
    top = Table(file, data, mistakes)
    name = _required(top, "instance_id")
    if name is not None:
        name = top.checked("instance_id", check_name)
    instruction = _required(top, "problem_statement")
    image = _image(top)
    own = _own(top)
    spec = _spec(top, own, defaults)
    verifier = _verifier(top)
    _, solution = _patch(top, "patch", scripts.GOLD_PATCH)
    unsupported = _unsupported(top)
    if mistakes or not name or not instruction or not image or not own or not spec or not verifier or not solution:
        raise TaskError.of(mistakes)
    task = Task(
        name=name,
        file=file,
        instruction=instruction,
        image=image,
        build=None,
        spec=spec,
        verifier=verifier,
        content_hash=hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest(),
        pull=own.pull,
        timeouts=Timeouts(own.timeouts.setup, own.timeouts.agent, own.timeouts.verifier),
        network=own.network,
        workdir=own.workdir,
        setup=own.setup,
        solution=Solution(scripts.GOLD_COMMAND, (solution,)),
        unsupported=unsupported,
    )
    if own.resources is None:
        return task
    return replace(task, pids_ceiling=own.resources.pids, shm_ceiling=own.resources.shm)


def _required(top: Table, key: str) -> str | None:
    if key not in top:
        top.note(key, "is missing", "add it")
        return None
    text = top.text(key)
    if text is not None and not _encodable(text):
        top.note(key, "has half of a surrogate pair, which is no character", "correct it")
        return None
    return text


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _image(top: Table) -> str | None:
    found = {key: image for key in IMAGE_KEYS if key in top and (image := top.checked(key, check_image))}
    if not any(key in top for key in IMAGE_KEYS):
        top.note("image", "is missing", f"add it; {' or '.join(IMAGE_KEYS[1:])} is read as well")
    if len(set(found.values())) > 1:
        first, second, *_ = found
        top.note(second, f"is another image than {first}", "remove one of them")
    return next(iter(found.values()), None)


def _own(top: Table) -> OwnTable | None:
    value = top.data.get(OWN)
    try:
        return OwnTable.model_validate({} if value is None else value)
    except ValidationError as error:
        for field, problem, remedy in explain(error, OwnTable):
            top.note(f"{OWN}.{field}" if field else OWN, problem, remedy)
        return None


def _spec(top: Table, own: OwnTable | None, defaults: DefaultResources) -> Spec | None:
    if own is not None and own.resources is not None:
        return spec_from(own.resources)
    if own is None:
        return None
    missing = [
        option for option, value in (("cpus 1", defaults.cpus), ("memory 4G", defaults.memory)) if value is None
    ]
    if missing:
        options = " and ".join(f"--infranoise-default-{option}" for option in missing)
        top.note(f"{OWN}.resources", "is missing", f"give e.g. {options}, or add it: {{cpus: 1, memory: 4G}}")
        return None
    return spec_of(None, None, defaults)


def _verifier(top: Table) -> Verifier | None:
    known = len(top.mistakes)
    options = {
        "parser": LOG_PARSERS.get(_parser_name(top), "pytest"),
        "fail_to_pass": _tests(top, "FAIL_TO_PASS", least=1),
        "pass_to_pass": _tests(top, "PASS_TO_PASS", least=0),
    }
    commands = _commands(top)
    uploads: list[Upload] = []
    if "eval_script" in top:
        if commands:
            top.note("eval_script", f"is given together with {commands[0]}", "remove one of them")
        script = _eval_script(top)
    else:
        files, patch = _patch(top, "test_patch", scripts.TEST_PATCH, may_be_empty=True)
        uploads += [patch] if patch is not None else []
        script = scripts.command_script(commands[1:], files, _base_commit(top, files))
        if not any(key in top for key in COMMAND_KEYS):
            top.note("eval_script", "is missing", "add it, or test_cmd: the command that runs the tests")
    if script is None or len(top.mistakes) > known:
        return None
    uploads.insert(0, Upload(script.encode(), scripts.SCRIPT))
    return Verifier(scripts.RUN, None, uploads=tuple(uploads), workdir="/", reads=Reads.SWEBENCH, options=options)


def _commands(top: Table) -> Sequence[str]:
    """Return the key of the commands that run the tests, and the commands; nothing when there are none."""
    found = [key for key in COMMAND_KEYS if key in top]
    for key in found[1:]:
        top.note(key, f"is given together with {found[0]}", "remove one of them")
    if not found:
        return ()
    value = top.data[found[0]]
    commands = [value] if isinstance(value, str) else value
    if not isinstance(commands, list) or not commands or not all(_is_text(command) for command in commands):
        top.note(found[0], f"{show(value)} is neither a command nor a list of commands", "write e.g. pytest -rA")
        return ()
    return [found[0], *commands]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value and _encodable(value)


def _eval_script(top: Table) -> str | None:
    script = _required(top, "eval_script")
    if script is None:
        return None
    try:
        return scripts.marked_script(script)
    except Problem as problem:
        top.note("eval_script", problem.problem, problem.remedy)
        return None


def _base_commit(top: Table, files: Touched | None) -> str | None:
    """Return the commit that test files are taken from: never HEAD, which is the agent's."""
    if "base_commit" not in top:
        if files is not None and files.changed:
            problem = f"is missing, but test_patch changes {show(files.changed[0])}, which the agent may have done"
            top.note("base_commit", problem, "add the hash of the commit that the image has")
        return None
    commit = top.text("base_commit")
    if commit is not None and _COMMIT.fullmatch(commit) is None:
        top.note("base_commit", f"{show(commit)} is not a commit", "write its whole hash")
    return commit


def _patch(
    top: Table, key: str, target: str, *, may_be_empty: bool = False
) -> tuple[Touched | None, Upload | None]:
    if may_be_empty and top.data.get(key) == "":
        return None, None
    patch = _required(top, key)
    if patch is None:
        return None, None
    try:
        files = touched(patch)
    except Problem as problem:
        top.note(key, problem.problem, problem.remedy)
        return None, None
    # git takes no patch whose last line does not end.
    return files, Upload((patch if patch.endswith("\n") else f"{patch}\n").encode(), target)


def _tests(top: Table, key: str, *, least: int) -> list[str]:
    value = top.data.get(key)
    if value is None:
        top.note(key, "is missing", "add it")
        return []
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, list) or not all(isinstance(test, str) and test.strip() for test in value):
        top.note(key, f"{show(value)} is no list of tests", 'write e.g. ["test_x.py::test_y"]')
        return []
    if len(value) < least:
        top.note(key, "names no test, so nothing would be graded", "name one, or remove the line")
    return list(dict.fromkeys(value))


def _parser_name(top: Table) -> str:
    return (top.text("log_parser") or "pytest").removeprefix("parse_log_")


def _unsupported(top: Table) -> str | None:
    """Return why an instance cannot be graded as SWE-bench does."""
    kind = top.text("eval_type") or "pass_and_fail"
    assets = top.data.get("image_assets")
    if _parser_name(top) not in LOG_PARSERS:
        return f"log_parser {show(top.data['log_parser'])}: the results of these tests cannot be read"
    if kind == "fail_only":
        return "eval_type fail_only: a test without any result would count as passed"
    if kind != "pass_and_fail":
        return f"eval_type {show(kind)} is not known"
    if assets and assets not in ("{}", "null") and _any_assets(assets):
        return "image_assets: the tests need files that must be fetched while grading"
    return None


def _any_assets(assets: object) -> bool:
    try:
        parsed = json.loads(assets) if isinstance(assets, str) else assets
    except (ValueError, RecursionError):
        return True
    return any(parsed.values()) if isinstance(parsed, dict) else bool(parsed)
