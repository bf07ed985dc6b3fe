"""Native task files: a directory with a ``task.yaml`` that has the key ``infranoise``."""

from __future__ import annotations

import difflib
import math
import re
import stat
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pytest_infranoise.model import Spec
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.explain import explain
from pytest_infranoise.tasks.files import MAX_TEXT
from pytest_infranoise.tasks.files import content_hash
from pytest_infranoise.tasks.files import file_inside
from pytest_infranoise.tasks.files import read_text
from pytest_infranoise.tasks.schema import CpuRange
from pytest_infranoise.tasks.schema import MemoryRange
from pytest_infranoise.tasks.schema import Resources
from pytest_infranoise.tasks.schema import TaskFile
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.schema import check_version
from pytest_infranoise.tasks.strict_yaml import YamlProblem
from pytest_infranoise.tasks.strict_yaml import compose
from pytest_infranoise.tasks.strict_yaml import construct
from pytest_infranoise.tasks.strict_yaml import has_key
from pytest_infranoise.tasks.strict_yaml import repeated_keys

FILE = "task.yaml"
KEY = "infranoise"

# A line that only our own file would have, for files that cannot be read as YAML.
_OURS = re.compile(r"(?:\A|[\r\n])\{?[ \t]*[\"']?infranoise[\"']?[ \t]*:")

# The same key written wrongly: names that long are compared with it.
_VERSIONED = re.compile(rb"[\"']?(\w{7,13})[\"']?[ \t]*:[ \t]*1[ \t]*(?:#.*)?")

EXAMPLE: Mapping[str, Any] = {
    "infranoise": 1,
    "instruction": "Write the number 42 to answer.txt.",
    "image": "debian:bookworm-slim",
    "resources": {"cpus": 1, "memory": {"floor": "64M", "ceiling": "192M"}},
    "timeouts": {"agent": 300},
    "network": False,
    "verifier": {"files": "verifier", "command": "sh verify.sh"},
    "oracle": "solution.sh",
    "strategies": {
        "right": {"script": "strategies/right.sh", "odds": 0.75},
        "wrong": {"script": "strategies/wrong.sh", "odds": 0.25},
    },
    "tags": ["example"],
}


def load(path: Path) -> Task | None:
    """Return the task in a directory, or None when it holds no task file of ours.

    Raises:
        TaskError: the task file is ours and has mistakes; all that could be found are told.
    """
    file = path / FILE
    content = _read(file)
    if content is None:
        return None
    if KEY.encode() not in content.replace(b"\0", b""):
        _refuse_misspelt(file, content)
        return None
    try:
        node = compose(_decode(content))
    except YamlProblem as problem:
        if _OURS.search(_any_text(content)) is None:
            return None
        raise TaskError(file, problem.where, problem.problem, problem.remedy) from problem
    if node is None or not has_key(node, KEY):
        _refuse_misspelt(file, content)
        return None
    return _load(file, node)


def _refuse_misspelt(file: Path, content: bytes) -> None:
    """Refuse a file that says ``infranose: 1``: taken for somebody else's, its task would be lost unseen."""
    for line in content.splitlines():
        match = _VERSIONED.fullmatch(line)
        word = match[1].decode() if match else ""
        if difflib.SequenceMatcher(None, word.lower(), KEY).ratio() > 0.8:
            raise TaskError(file, word, "is an unknown key", f"did you mean {KEY}?")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a native task file."""
    schema: dict[str, Any] = _without_null(TaskFile.model_json_schema())
    either = [{"required": ["image"]}, {"required": ["build"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "oneOf": either,
        "examples": [dict(EXAMPLE)],
    }


def _without_null(schema: Any) -> Any:
    """Take out what pydantic says of keys that may be absent: that they may be null."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    cleaned = {key: _without_null(value) for key, value in schema.items() if (key, value) != ("default", None)}
    if len(cleaned.get("anyOf", ())) == 1:
        cleaned |= cleaned.pop("anyOf")[0]
    return cleaned


def _read(file: Path) -> bytes | None:
    try:
        # A named pipe would be waited for.
        if not stat.S_ISREG(file.stat().st_mode):
            return None
    except OSError:
        return None
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_TEXT + 1)
    except OSError as error:
        raise TaskError(file, "", f"cannot be read: {error.strerror}", "change its permissions") from error


def _decode(content: bytes) -> str:
    if len(content) > MAX_TEXT:
        raise YamlProblem("", "is larger than 1 MiB", "put long texts into files")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlProblem("", "is not UTF-8 text", "save it as UTF-8") from error


def _any_text(content: bytes) -> str:
    """Return what can be read of a file in whatever encoding, good enough to find our key."""
    return content.replace(b"\0", b"").lstrip(b"\xff\xfe\xef\xbb\xbf").decode("latin-1")


def _load(file: Path, node: yaml.Node) -> Task:
    root = file.parent
    mistakes = [TaskError(file, *repeated) for repeated in repeated_keys(node)]
    try:
        data = construct(node)
    except YamlProblem as problem:
        mistakes.append(TaskError(file, problem.where, problem.problem, problem.remedy))
        raise TaskError.of(mistakes) from problem
    try:
        check_version(data.get(KEY))
    except Problem as problem:
        # What another version makes of the other keys is unknown.
        raise TaskError(file, KEY, problem.problem, problem.remedy) from problem
    parsed: TaskFile | None = None
    try:
        parsed = TaskFile.model_validate(data, context={"root": root})
    except ValidationError as error:
        mistakes.extend(TaskError(file, *line) for line in explain(error))
    mistakes.extend(TaskError(file, *line) for line in _contradictions(root, data))
    if parsed is not None and not mistakes:
        mistakes.extend(TaskError(file, *line) for line in _leaks(root, parsed))
    if parsed is None or mistakes:
        raise TaskError.of(mistakes)
    return _task(file, parsed)


def _contradictions(root: Path, data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with keys together, or with the directory, as field, problem and remedy."""
    if not (root / FILE).resolve().is_relative_to(root.resolve()):
        yield "", "is a link that leads out of the task's directory", "copy the file there"
    if (root / "conftest.py").is_symlink() or (root / "conftest.py").exists():
        remedy = "move it into the verifier's directory"
        yield "", "a conftest.py beside it would be run by pytest on this machine", remedy
    if "image" in data and "build" in data:
        yield "image", "is given together with build", "remove one of them"
    elif "image" not in data and "build" not in data:
        yield "image", "is missing", "name an image, or with build a directory that holds a Dockerfile"
    if "name" not in data:
        yield from _bad_default_name(root)
    yield from _bad_instruction(root, data)
    yield from _bad_odds(data.get("strategies"))


def _bad_default_name(root: Path) -> Iterator[tuple[str, str, str]]:
    name = _default_name(root)
    try:
        check_name(name)
    except Problem:
        yield "name", f"the directory's name {show(name)} cannot be a task's name", "rename it, or give a name"


def _bad_instruction(root: Path, data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    file = root / "instruction.md"
    present = file.is_symlink() or file.exists()
    if "instruction" in data:
        if present:
            yield "instruction", "is given here and in instruction.md", "remove one of them"
    elif not present:
        yield "instruction", "is missing", "write it here, or in instruction.md beside this file"
    else:
        try:
            _instruction_file(root)
        except Problem as problem:
            yield "instruction", problem.problem, problem.remedy


def _bad_odds(strategies: object) -> Iterator[tuple[str, str, str]]:
    entries = list(strategies.values()) if isinstance(strategies, Mapping) else []
    odds = [entry.get("odds") for entry in entries if isinstance(entry, Mapping)]
    numbers = [value for value in odds if isinstance(value, float | int) and 0 < value <= 1]
    if entries and len(numbers) == len(entries) and not math.isclose(math.fsum(numbers), 1, abs_tol=1e-6):
        yield "strategies", f"the odds add up to {math.fsum(numbers):.6g}", "change them to add up to 1"


def _leaks(root: Path, parsed: TaskFile) -> Iterator[tuple[str, str, str]]:
    """Yield each directory that would show the agent what it must not see."""
    secrets = {"this file": (root / FILE).resolve(), "the verifier's files": parsed.verifier.files}
    if parsed.oracle is not None:
        secrets["the oracle"] = parsed.oracle
    for name, strategy in parsed.strategies.items():
        secrets[f"the strategy {name}"] = strategy.script
    for field, directory in (("files", parsed.files), ("build", parsed.build)):
        if directory is None:
            continue
        for what, path in secrets.items():
            if path.is_relative_to(directory) or directory.is_relative_to(path):
                remedy = "keep what the agent gets in a directory of its own"
                yield field, f"would give {what} to the agent", remedy
                break


def _task(file: Path, parsed: TaskFile) -> Task:
    root = file.parent
    strategies = [Strategy(name, entry.script, entry.odds) for name, entry in parsed.strategies.items()]
    times, verifier = parsed.timeouts, parsed.verifier
    return Task(
        name=parsed.name or _default_name(root),
        file=file,
        instruction=parsed.instruction or _instruction_file(root),
        image=parsed.image,
        build=parsed.build,
        spec=spec_from(parsed.resources),
        verifier=Verifier(verifier.command, verifier.files, verifier.user),
        content_hash=content_hash(root),
        pull=parsed.pull,
        timeouts=Timeouts(times.setup, times.agent, times.verifier),
        network=parsed.network,
        environment=dict(parsed.environment),
        user=parsed.user,
        workdir=parsed.workdir,
        files=parsed.files,
        setup=parsed.setup,
        oracle=parsed.oracle,
        strategies=tuple(strategies),
        tags=tuple(dict.fromkeys(parsed.tags)),
        keep_processes=parsed.keep_processes,
        pids_ceiling=parsed.resources.pids,
        shm_ceiling=parsed.resources.shm,
    )


def spec_from(resources: Resources) -> Spec:
    """Return the spec in a table of resources."""
    cpus, memory = resources.cpus, resources.memory
    cpu_range = cpus if isinstance(cpus, CpuRange) else None
    memory_range = memory if isinstance(memory, MemoryRange) else None
    return Spec(
        cpus=cpus.floor if isinstance(cpus, CpuRange) else cpus,
        memory=memory.floor if isinstance(memory, MemoryRange) else memory,
        cpus_ceiling=cpu_range.ceiling if cpu_range else None,
        memory_ceiling=memory_range.ceiling if memory_range else None,
    )


def _instruction_file(root: Path) -> str:
    text = read_text(file_inside(root, "instruction.md"))
    if not text.strip() or "\0" in text:
        raise Problem("instruction.md holds no plain text", "write what the agent is asked to do")
    return text


def _default_name(root: Path) -> str:
    return root.absolute().name if root.name not in ("", "..") else root.resolve().name
