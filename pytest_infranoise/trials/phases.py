"""What happens in setup, agent and verifier phase."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Protocol

from pytest_infranoise.agents.builtin import INSTRUCTION_FILE
from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Task
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials.artefact import MAX_BYTES
from pytest_infranoise.trials.artefact import parse_artefact
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.course import PhaseRun
from pytest_infranoise.trials.evidence import Artefact

ROOT = "0"  # a number needs no /etc/passwd
VERIFIER_DIR = "/infranoise/verifier"
STAGING_DIR = "/infranoise/files"
PREPARE_SECONDS = 60.0  # for the verifier's files to arrive, before its own time begins

_NOWHERE = Path(os.devnull)
_READ_BACK = 4 * 1024**2  # bytes; larger files are hashed where they are

# Prints the uid and gid of the image's user; status 3: the directory cannot be made by it.
_MAKE_WORKDIR = 'id -u; id -g; [ -d "$1" ] || mkdir -p -- "$1" 2>/dev/null || exit 3'
_MAKE_WORKDIR_AS_ROOT = 'mkdir -p -- "$1" && chown -- "$2" "$1"'
_PLACE_FILES = 'chown -R -- "$3" "$1" && cp -R -P -p -- "$1/." "$2" && rm -rf -- "$1"'
_MAKE_REWARD_DIR = """rm -rf -- "$1" /infranoise/reward-* && mkdir -p -- "$2" && chmod 700 -- "$2" || exit
[ -z "$3" ] || chown -- "$3" "$2"
"""


class PhaseAgent(Protocol):
    """An agent as the phases use it: the agent itself, or one that runs in a child process."""

    def setup(self, sandbox: DeadlineSandbox) -> None:
        """Install what the agent needs."""

    def run(self, instruction: str, sandbox: DeadlineSandbox) -> AgentResult:
        """Work on the task."""


@dataclass
class AgentReport:
    """What an agent said of itself, and the traceback when its own code raised."""

    result: AgentResult = field(default_factory=lambda: AgentResult(exit_code=None))
    traceback: str | None = None


def run_setup(course: Course, task: Task, agent: PhaseAgent, report: AgentReport) -> bool:
    """Make the container ready for the agent; whether that went well."""
    with course.phase(Phase.SETUP, task.timeouts.setup) as run:
        if _place_task(run, task):
            report.traceback = run.guarded(lambda: agent.setup(run.box))
        run.check_time()
    setup = course.evidence.setup
    wrong = setup.timed_out or setup.exit_code or setup.error or setup.trouble or setup.exec_lost
    return setup.ended and setup.exec_started and not wrong


def _place_task(run: PhaseRun, task: Task) -> bool:
    owner = _make_workdir(run, task.workdir)
    run.box.workdir = task.workdir
    if run.error is not None:
        return False
    if task.files is not None and not _place_files(run, task.files, task.workdir, owner):
        return False
    run.box.write(INSTRUCTION_FILE, task.instruction.encode())
    if task.setup is not None:
        run.take(run.box.exec(["sh", "-c", task.setup], user=ROOT))
    return not run.exit_code and run.box.lost is None


def _make_workdir(run: PhaseRun, workdir: str) -> str | None:
    """Make the workdir, writable for the image's user; returns that user when it is not root."""
    made = run.box.exec(["sh", "-c", _MAKE_WORKDIR, "sh", workdir], log=_NOWHERE)
    numbers = [word for word in made.output.decode("ascii", "replace").split() if word.isdecimal()][:2]
    owner = ":".join(numbers) if len(numbers) == 2 and numbers[0] != "0" else None
    if made.exit_code == 3:
        made = run.box.exec(["sh", "-c", _MAKE_WORKDIR_AS_ROOT, "sh", workdir, owner or "0:0"], user=ROOT)
    if made.exit_code:
        run.error = f"the working directory {workdir} cannot be made: {_text(made.output)}"
    return owner


def _place_files(run: PhaseRun, files: Path, workdir: str, owner: str | None) -> bool:
    if owner is None:
        run.box.upload(files, workdir)
        return True
    # The engine uploads as root, and an agent that is somebody else must be able to change its files.
    run.box.upload(files, STAGING_DIR)
    placed = run.box.exec(["sh", "-c", _PLACE_FILES, "sh", STAGING_DIR, workdir, owner], user=ROOT)
    if placed.exit_code:
        run.error = f"the task's files cannot be given to user {owner}: {_text(placed.output)}"
    return not placed.exit_code


def run_agent(course: Course, task: Task, agent: PhaseAgent, report: AgentReport) -> bool:
    """Let the agent work; whether a verifier can say anything afterwards.

    What the agent leaves running when it ends by itself goes on: tasks ask for servers. At its deadline
    everything is killed, because a detached child would work on while the verifier looks.
    """

    def work() -> None:
        report.result = agent.run(task.instruction, run.box)

    with course.phase(Phase.AGENT, task.timeouts.agent, task.workdir) as run:
        report.traceback = run.guarded(work)
        run.exit_code = report.result.exit_code
        if run.check_time() and not task.keep_processes:
            course.kill_processes(run, f"the agent's {task.timeouts.agent:g} s were over")
    course.evidence = replace(course.evidence, agent_cause=report.result.cause)
    phase = course.evidence.agent
    if phase.container_ended or phase.unkillable or course.evidence.engine_answers is False:
        return False
    # Without an exit status a lost command may still be running: nothing that is verified now is its end.
    lost = phase.trouble is not None or phase.exec_lost is not None or not phase.exec_started
    return not lost or phase.exit_code is not None


@dataclass(frozen=True, slots=True)
class Ticket:
    """What one run of a verifier is known by: where it must write its verdict, and what must be in it."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    place: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def directory(self) -> str:
        """The directory that is made for this verdict alone."""
        return f"/infranoise/reward-{self.place}"

    @property
    def file(self) -> str:
        """The verdict artefact's path."""
        return f"{self.directory}/reward.json"

    def environment(self, task: Task) -> Mapping[str, str]:
        """Return what the verifier is told."""
        return {
            "INFRANOISE_NONCE": self.nonce,
            "INFRANOISE_REWARD_FILE": self.file,
            "INFRANOISE_WORKDIR": task.workdir,
        }


def run_verifier(course: Course, task: Task) -> bytes | None:
    """Let the verifier decide; returns its artefact as it was written."""
    ticket = Ticket()
    content = None
    with course.phase(Phase.VERIFIER, PREPARE_SECONDS) as run:
        if not _place_verifier(run, task, ticket):
            return None
        run.restart(task.timeouts.verifier)
        _run_command(course, run, task, ticket)
        content = _read_artefact(course, ticket)
        course.check_identity()
    return content


def _place_verifier(run: PhaseRun, task: Task, ticket: Ticket) -> bool:
    """Put the verifier where only what we sent can be, and a place for its verdict where nothing was before."""
    argv = ["sh", "-c", _MAKE_REWARD_DIR, "sh", VERIFIER_DIR, ticket.directory, task.verifier.user or ""]
    made = run.box.exec(argv, user=ROOT, workdir="/")
    if made.exit_code:
        run.error = f"the place for the verdict cannot be made: {_text(made.output)}"
        return False
    run.box.upload(task.verifier.files, VERIFIER_DIR)
    changed = changed_files(run.box, task.verifier.files, VERIFIER_DIR)
    if changed:
        run.error = f"not what was sent: {', '.join(changed)[:500]}"
    return not changed


def _run_command(course: Course, run: PhaseRun, task: Task, ticket: Ticket) -> None:
    verifier = task.verifier
    try:
        run.take(
            run.box.exec(
                ["sh", "-c", verifier.command],
                user=verifier.user or ROOT,
                workdir=VERIFIER_DIR,
                environment=ticket.environment(task),
            )
        )
    except DeadlineExceeded:
        run.timed_out = True
        course.kill_processes(run, f"the verifier's {task.timeouts.verifier:g} s were over")


def _read_artefact(course: Course, ticket: Ticket) -> bytes | None:
    try:
        content = course.container().read(ticket.file, MAX_BYTES)
    except FileMissing as error:
        course.evidence = replace(course.evidence, artefact=Artefact(text=error.text))
        return None
    course.evidence = replace(course.evidence, artefact=parse_artefact(content, ticket.nonce))
    return content


def changed_files(sandbox: Sandbox, source: Path, target: str) -> list[str]:
    """Return those files under ``source`` whose copy under ``target`` in the sandbox is another one.

    Small files are read back through the engine, which needs nothing of the image and trusts none of its
    programs.
    """
    changed = []
    for path in sorted(path for path in source.rglob("*") if path.is_file() and not path.is_symlink()):
        name = path.relative_to(source).as_posix()
        with path.open("rb") as file:
            sent = hashlib.file_digest(file, "sha256").hexdigest()
        if _hash(sandbox, f"{target}/{name}", path.stat().st_size) != sent:
            changed.append(name)
    return changed


def _hash(sandbox: Sandbox, path: str, size: int) -> str | None:
    if size > _READ_BACK:
        printed = sandbox.exec(["sha256sum", "--", path], user=ROOT, log=_NOWHERE).output
        return printed.lstrip(b"\\")[:64].decode("ascii", "replace")
    try:
        return hashlib.sha256(sandbox.read(path, size + 1)).hexdigest()
    except FileMissing:
        return None


def _text(output: bytes) -> str:
    return output[-500:].decode("utf-8", "replace").strip() or "no reason given"


def agent_details(report: AgentReport) -> dict[str, Any]:
    """Return what the agent says of itself."""
    result = report.result
    details = {"exit_code": result.exit_code, "summary": result.summary, "details": dict(result.details)}
    return details if report.traceback is None else details | {"traceback": report.traceback}
