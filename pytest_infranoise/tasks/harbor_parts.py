"""The parts of a Harbor task that are more than one key: environment, verifier, solution, strategies."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_infranoise.model import Healthcheck
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Solution
from pytest_infranoise.model import Strategy
from pytest_infranoise.model import Upload
from pytest_infranoise.model import Verifier
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.files import directory_inside
from pytest_infranoise.tasks.files import file_inside
from pytest_infranoise.tasks.files import read_text
from pytest_infranoise.tasks.foreign import is_name
from pytest_infranoise.tasks.schema import MAX_SECONDS
from pytest_infranoise.tasks.schema import check_image
from pytest_infranoise.tasks.schema import check_name
from pytest_infranoise.tasks.schema import check_user
from pytest_infranoise.tasks.tables import Table

TESTS = "/tests"
SOLUTION = "/solution"
CTRF = "/logs/verifier/ctrf.json"
# Only where nothing but the verifier has business: what is there before it comes is removed.
_JUNIT = re.compile(r"--junit-?xml[= ][\"']?(/logs/verifier/[\w.-]+\.xml)\b")
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")

_PYTEST = re.compile(r"(?:^|[\s/&;|(])py\.?test(?=$|[\s;)])")
_INSTALLS = re.compile(r"^\s*#|\binstall\b|\buv add\b")
_HIDES = re.compile(r"[>|`]|\$\(|-qq|--quiet|no:terminal")
_ENDS = re.compile(r"\n|;|&&|\|\|")


def image_of(environment: Table, root: Path) -> tuple[str | None, Path | None, Path | None]:
    """Return image, build directory and what goes into the workdir.

    An image wins over a Dockerfile, as in Harbor; with no Dockerfile, ``environment/`` goes into the workdir.
    """
    image = environment.checked("docker_image", check_image)
    directory = root / "environment"
    has_dockerfile = (directory / "Dockerfile").exists()
    if "docker_image" in environment:
        if has_dockerfile or not directory.is_dir() or not any(directory.iterdir()):
            return image, None, None
        return image, None, _directory(environment, root, "environment")
    if not has_dockerfile:
        remedy = "put a Dockerfile into environment/, or name a docker_image"
        environment.note("docker_image", "there is neither an image nor environment/Dockerfile", remedy)
        return None, None, None
    return None, _directory(environment, root, "environment"), None


def _directory(table: Table, root: Path, name: str) -> Path | None:
    try:
        return directory_inside(root, name)
    except Problem as problem:
        table.note("", problem.problem, problem.remedy)
        return None


def healthcheck_of(table: Table) -> Healthcheck | None:
    """Return what must succeed before the agent may start."""
    if not table.data:
        return None
    command = table.text("command")
    if command is None:
        if "command" not in table:
            table.note("command", "is missing", "add it")
        return None
    known = Healthcheck("")
    seconds = {
        name: table.number(f"{name}_sec", 0, MAX_SECONDS, above=name == "timeout")
        for name in ("interval", "timeout", "start_period", "start_interval")
    }
    retries = table.whole("retries", 1, 10_000)
    given = {name: value for name, value in seconds.items() if value is not None}
    return Healthcheck(command, **given, retries=known.retries if retries is None else retries)


def verifier_of(top: Table, root: Path) -> Verifier | None:
    """Return how the task is verified; None when that is a mistake."""
    table = top.table("verifier")
    environment, user = table.environment("env"), user_of(table)
    try:
        tests = directory_inside(root, "tests")
        script = read_text(file_inside(root, "tests/test.sh"))
    except Problem as problem:
        top.note(
            "tests",
            problem.problem,
            "a Harbor task keeps its test.sh in tests/" if not (root / "tests").exists() else problem.remedy,
        )
        return None
    junit = _JUNIT.search(script)
    reports = {"ctrf": CTRF, **({"junit": junit[1]} if junit else {})}
    return Verifier(
        command=f"bash -c {TESTS}/test.sh",
        files=tests,
        user="" if user is None else user,
        target=TESTS,
        workdir="",
        environment=environment,
        executable=f"{TESTS}/test.sh",
        stale=(*REWARDS, *reports.values()),
        reads=Reads.REWARD_FILES,
        options={
            "files": list(REWARDS),
            **reports,
            "writes_ctrf": "--ctrf" in script and CTRF in script,
            "shows_pytest": _shows_pytest(script),
            "runs_pytest": "pytest" in script,
        },
    )


def _shows_pytest(script: str) -> bool:
    """Whether a test script calls pytest so that its last line reaches the script's own output."""
    commands = _ENDS.split(script.replace("\\\n", " ").replace("2>&1", ""))
    calls = [command for command in commands if _PYTEST.search(command) and not _INSTALLS.search(command)]
    return bool(calls) and not any(map(_HIDES.search, calls)) and "exec >" not in script


def solution_of(top: Table, root: Path) -> Solution | None:
    """Return how the oracle solves the task; None when it has no solution."""
    environment = top.table("solution").environment("env")
    if not (root / "solution" / "solve.sh").exists():
        return None
    try:
        file_inside(root, "solution/solve.sh")
        files = directory_inside(root, "solution")
    except Problem as problem:
        top.note("solution", problem.problem, problem.remedy)
        return None
    script = f"{SOLUTION}/solve.sh"
    # Harbor's oracle has this variable too; the task's own wins.
    environment = {"DEBIAN_FRONTEND": "noninteractive", **environment}
    return Solution(f"bash -c {script}", (Upload(files, SOLUTION),), environment, script)


def user_of(table: Table) -> str | None:
    """Return the user of a table; None is the image's."""
    value = table.data.get("user")
    if value is None:
        return None
    try:
        return check_user(value)
    except Problem as problem:
        table.note("user", problem.problem, problem.remedy)
        return None


def tags_of(top: Table) -> tuple[str, ...]:
    """Return what a task may be selected by; Harbor checks nothing in its metadata, so nothing is a mistake."""
    metadata = top.data.get("metadata")
    package = top.data.get("task")
    found: list[object] = []
    for table, keys in ((metadata, ("tags", "difficulty", "category")), (package, ("keywords",))):
        for key in keys:
            value = table.get(key) if isinstance(table, dict) else None
            found += value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(tag for tag in found if isinstance(tag, str) and is_name(tag)))


def strategies_of(top: Table, root: Path) -> tuple[Strategy, ...]:
    """Return what the agent ``scripted`` may do: ``[metadata.infranoise.strategies]``, which Harbor ignores."""
    metadata = top.data.get("metadata")
    if not isinstance(metadata, dict) or "infranoise" not in metadata:
        return ()
    table = top.table("metadata").table("infranoise").table("strategies")
    strategies = []
    for name in table.data:
        entry = table.table(name)
        odds, script = entry.number("odds", 0, 1, above=True), entry.text("script")
        try:
            check_name(name)
            if script is None or odds is None:
                raise Problem("script or odds is missing", 'write e.g. {script = "strategies/a.sh", odds = 0.5}')
            path = file_inside(root, script)
            if path.is_relative_to(root.resolve() / "environment"):
                raise Problem(f"{script!r} would be given to the agent", "keep it out of environment/")
            strategies.append(Strategy(name, path, odds))
        except Problem as problem:
            entry.note("", problem.problem, problem.remedy)
    total = sum(strategy.odds for strategy in strategies)
    if len(strategies) == len(table.data) and strategies and abs(total - 1) > 1e-6:
        table.note("", f"the odds add up to {total:.6g}", "change them to add up to 1")
    return tuple(strategies)
