"""Terminal-Bench 1 tasks: a directory with a ``task.yaml`` of its own kind, used unchanged.

The container is the one service ``client`` of ``docker-compose.yaml``; the verdict is read from what
``run-tests.sh`` prints, test by test; as in Terminal-Bench, root runs it, whoever the agent was. These files
state no resources, so floor and ceiling are the user's defaults unless the compose file has limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pytest_infranoise.model import Reads
from pytest_infranoise.model import Solution
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import Upload
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks.compose import Service
from pytest_infranoise.tasks.compose import read_compose
from pytest_infranoise.tasks.compose import read_service
from pytest_infranoise.tasks.defaults import MAX_CPUS
from pytest_infranoise.tasks.defaults import NO_DEFAULTS
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.files import content_hash
from pytest_infranoise.tasks.files import directory_inside
from pytest_infranoise.tasks.files import file_inside
from pytest_infranoise.tasks.files import read_text
from pytest_infranoise.tasks.foreign import check_directory
from pytest_infranoise.tasks.foreign import is_name
from pytest_infranoise.tasks.foreign import read_file
from pytest_infranoise.tasks.foreign import spec_of
from pytest_infranoise.tasks.foreign import task_name
from pytest_infranoise.tasks.schema import MAX_MEMORY
from pytest_infranoise.tasks.schema import MAX_SECONDS
from pytest_infranoise.tasks.schema import MIN_MEMORY
from pytest_infranoise.tasks.schema import check_image
from pytest_infranoise.tasks.schema import check_user
from pytest_infranoise.tasks.schema import check_variable
from pytest_infranoise.tasks.schema import check_workdir
from pytest_infranoise.tasks.strict_yaml import YamlProblem
from pytest_infranoise.tasks.strict_yaml import compose
from pytest_infranoise.tasks.strict_yaml import construct
from pytest_infranoise.tasks.strict_yaml import has_key
from pytest_infranoise.tasks.strict_yaml import repeated_keys
from pytest_infranoise.tasks.tables import Table
from pytest_infranoise.tasks.tables import find_placeholder
from pytest_infranoise.tasks.tables import placeholders
from pytest_infranoise.tasks.tables import template_error

FILE = "task.yaml"
COMPOSE = "docker-compose.yaml"
SCRIPT = "run-tests.sh"
SERVICE = "client"
TESTS = "/tests"

AGENT_SECONDS = 360.0  # where the file says nothing, as in Terminal-Bench
TEST_SECONDS = 60.0
SETUP_SECONDS = 360.0

# Terminal-Bench types its commands into tmux, which begins an interactive login shell: profiles, and what they make
# of PATH, are part of what its tests see. The shell is found as tmux finds it, and TERM is what tmux sets.
_TERMINAL = """\
shell=${SHELL-} user=$(id -un)
[ -x "$shell" ] || while IFS=: read -r name _ _ _ _ _ shell && [ "$name" != "$user" ]; do :; done </etc/passwd
[ -x "$shell" ] || shell=/bin/sh
export SHELL="$shell" TERM=screen
"""

_KEYS = (
    "parser_name",
    "max_agent_timeout_sec",
    "max_test_timeout_sec",
    "run_tests_in_same_shell",
    "disable_asciinema",
    "author_email",
    "descriptions",
)
# What Terminal-Bench sets for compose files; the directories on its own host are none of the container's.
_VARIABLES = {
    "T_BENCH_TEST_DIR": TESTS,
    "T_BENCH_CONTAINER_LOGS_PATH": "/logs",
    "T_BENCH_CONTAINER_AGENT_LOGS_PATH": "/agent-logs",
}


def load(path: Path, defaults: DefaultResources = NO_DEFAULTS) -> Task | None:
    """Return the task in a directory, or None when it holds no ``task.yaml`` of Terminal-Bench's.

    Args:
        path: the directory; the task is called like it.
        defaults: floor and ceiling, for tasks that state none.

    Raises:
        TaskError: the task has mistakes; all that could be found are told.
    """
    file = path / FILE
    content = read_file(file)
    if content is None:
        return None
    has_script = (path / SCRIPT).exists()
    try:
        node = compose(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, YamlProblem) as error:
        if not has_script:
            return None
        raise _syntax_error(file, content, error) from error
    if node is None or has_key(node, "infranoise") or not (has_script or any(has_key(node, key) for key in _KEYS)):
        return None
    mistakes = [TaskError(file, *repeated) for repeated in repeated_keys(node)]
    return _load(file, _construct(file, content, node, mistakes), mistakes, defaults)


def _syntax_error(file: Path, content: bytes, error: UnicodeDecodeError | YamlProblem) -> TaskError:
    found = find_placeholder(content.decode("utf-8", "replace"))
    if found is not None:
        return template_error(file, f"line {found[0]}", found[1])
    if isinstance(error, UnicodeDecodeError):
        return TaskError(file, "", "is not UTF-8 text", "save it as UTF-8")
    return TaskError(file, error.where, error.problem, error.remedy)


def _construct(file: Path, content: bytes, node: yaml.Node, mistakes: list[TaskError]) -> dict[str, Any]:
    try:
        return construct(node)
    except YamlProblem as problem:
        if find_placeholder(content.decode("utf-8-sig")) is not None:
            raise _syntax_error(file, content, problem) from problem
        mistakes.append(TaskError(file, problem.where, problem.problem, problem.remedy))
        raise TaskError.of(mistakes) from problem


def _load(file: Path, data: Mapping[str, Any], mistakes: list[TaskError], defaults: DefaultResources) -> Task:
    mistakes.extend(template_error(file, *found) for found in placeholders(data))
    if mistakes:
        raise TaskError.of(mistakes)
    root, top = file.parent, Table(file, data, mistakes)
    services, service = _service(top, root)
    reasons = [*_unsupported(top, services), *(service.reasons if service else ())]
    task = _skipped(top, reasons) if reasons else _task(top, service, defaults)
    if task is None or mistakes:
        raise TaskError.of(mistakes)
    return task


def _service(top: Table, root: Path) -> tuple[list[str], Service | None]:
    file = root / COMPOSE
    try:
        data = read_compose(file_inside(root, COMPOSE))
        names = [str(name) for name in data["services"]]
        if len(names) > 1:
            return names, None
        if names != [SERVICE]:
            raise Problem(f"the one service is {show(names[0])}", f"call it {SERVICE}")
        return names, read_service(data, SERVICE, _VARIABLES)
    except Problem as problem:
        where = problem.where if isinstance(problem, YamlProblem) else ""
        top.mistakes.append(TaskError(file, where, problem.problem, problem.remedy))
        return [], None


def _unsupported(top: Table, services: list[str]) -> list[str]:
    reasons = []
    if len(services) > 1:
        reasons.append(f"several services ({', '.join(services)})")
    if top.truth("run_tests_in_same_shell"):
        reasons.append("tests in the agent's own shell (run_tests_in_same_shell)")
    parser = top.text("parser_name") or "pytest"
    if parser != "pytest":
        reasons.append(f"parser_name = {show(parser)}")
    if "descriptions" in top and "instruction" not in top:
        reasons.append("instructions at several levels (descriptions)")
    return reasons


def _skipped(top: Table, reasons: list[str]) -> Task | None:
    name = task_name(top, "")
    if name is None:
        return None
    return Task(
        name=name,
        file=top.file,
        instruction="",
        image=None,
        build=None,
        spec=Spec(1, 1024**3),
        verifier=Verifier("", None, reads=Reads.PYTEST_SUMMARY),
        content_hash=content_hash(top.file.parent),
        unsupported=f"not supported: {'; '.join(reasons)}",
    )


def _task(top: Table, service: Service | None, defaults: DefaultResources) -> Task | None:
    root = top.file.parent
    check_directory(top, root)
    name, instruction = task_name(top, ""), top.text("instruction")
    if instruction is None and "instruction" not in top:
        top.note("instruction", "is missing", "write what the agent is asked to do")
    timeouts = _timeouts(top)
    verifier, solution = _verifier(top, root), _solution(top, root)
    if service is None:
        return None
    build = _check_service(top, root, service)
    _check_resources(top, service, defaults)
    if top.mistakes or name is None or instruction is None or verifier is None:
        return None
    return Task(
        name=name,
        file=top.file,
        instruction=instruction,
        image=service.image,
        build=build,
        spec=spec_of(service.cpus, service.memory, defaults),
        verifier=verifier,
        content_hash=content_hash(root),
        timeouts=timeouts,
        environment=service.environment,
        user=service.user,
        workdir=service.workdir or "",
        solution=solution,
        directories=("/logs", "/agent-logs"),
        tags=_tags(top),
        shm_ceiling=service.shm or 64 * 1024**2,
    )


def _timeouts(top: Table) -> Timeouts:
    agent = top.number("max_agent_timeout_sec", 0, MAX_SECONDS, above=True)
    tests = top.number("max_test_timeout_sec", 0, MAX_SECONDS, above=True)
    return Timeouts(SETUP_SECONDS, agent or AGENT_SECONDS, tests or TEST_SECONDS)


def _check_service(top: Table, root: Path, service: Service) -> Path | None:
    """Return the build directory; what is wrong with the compose file is noted."""
    file = root / COMPOSE

    def note(field: str, problem: Problem) -> None:
        place = f"services.{SERVICE}.{field}".rstrip(".")
        top.mistakes.append(TaskError(file, place, problem.problem, problem.remedy))

    try:
        for name in service.environment:
            check_variable(name)
    except Problem as problem:
        note("environment", problem)
    try:
        if service.workdir is not None:
            check_workdir(service.workdir)
        if service.user is not None:
            check_user(service.user)
        if service.build is None:
            if service.image is None:
                raise Problem("there is neither image nor build", "write build: .")
            check_image(service.image)
            return None
        return _build_directory(root, service.build)
    except Problem as problem:
        note("", problem)
        return None


def _build_directory(root: Path, name: str) -> Path:
    if name.strip() in (".", "./"):
        file_inside(root, "Dockerfile")
        return root.resolve()
    directory = directory_inside(root, name)
    file_inside(root, f"{name}/Dockerfile")
    return directory


def _check_resources(top: Table, service: Service, defaults: DefaultResources) -> None:
    if service.cpus is None and defaults.cpus is None:
        remedy = "give --infranoise-default-cpus, e.g. 1 or 1..2"
        top.note("", "neither it nor docker-compose.yaml states CPUs", remedy)
    if service.memory is None and defaults.memory is None:
        remedy = "give --infranoise-default-memory, e.g. 2G or 2G..6G"
        top.note("", "neither it nor docker-compose.yaml states memory", remedy)
    sound = (service.cpus is None or 0.01 <= service.cpus <= MAX_CPUS) and (
        service.memory is None or MIN_MEMORY <= service.memory <= MAX_MEMORY
    )
    if not sound:
        problem = f"cpus {show(service.cpus)} and memory {show(service.memory)} are no sensible limits"
        file = top.file.parent / COMPOSE
        top.mistakes.append(TaskError(file, f"services.{SERVICE}", problem, "write e.g. cpus: 1, mem_limit: 512M"))


def _verifier(top: Table, root: Path) -> Verifier | None:
    tests = root / "tests"
    try:
        script = file_inside(root, SCRIPT)
        uses_tests = "TEST_DIR" in (text := read_text(script)) or TESTS in text
        files = directory_inside(root, "tests") if tests.exists() or uses_tests else None
    except Problem as problem:
        top.mistakes.append(TaskError(root, "", problem.problem, problem.remedy))
        return None
    target = f"{TESTS}/{SCRIPT}"
    return Verifier(
        command=_typed(f"bash {target}"),
        files=files,
        target=TESTS,
        uploads=(Upload(script, target),),
        workdir="",
        reads=Reads.PYTEST_SUMMARY,
    )


def _typed(command: str) -> str:
    """Return a command as it is run when it is typed into Terminal-Bench's terminal."""
    return f"{_TERMINAL}exec \"$shell\" -l -i -c '{command}'"


def _solution(top: Table, root: Path) -> Solution | None:
    """Return how the oracle solves it; a ``solution.yaml`` types keys into a terminal, which is not done here."""
    if not (root / "solution.sh").exists():
        return None
    try:
        script = file_inside(root, "solution.sh")
    except Problem as problem:
        top.mistakes.append(TaskError(root, "", problem.problem, problem.remedy))
        return None
    return Solution(_typed("bash /oracle/solution.sh"), (Upload(script, "/oracle/solution.sh"),))


def _tags(top: Table) -> tuple[str, ...]:
    words = [top.data.get("difficulty"), top.data.get("category")]
    tags = top.data.get("tags")
    words += tags if isinstance(tags, list) else []
    return tuple(dict.fromkeys(word for word in words if isinstance(word, str) and is_name(word)))
