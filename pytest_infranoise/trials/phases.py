"""What happens in setup and agent phase."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Protocol

from pytest_infranoise.agents.builtin import INSTRUCTION_FILE
from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.host import AgentFailed
from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Healthcheck
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Task
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.phase_run import PhaseRun

ROOT = "0"  # a number needs no /etc/passwd
STAGING_DIR = "/infranoise/files"
PREPARE_SECONDS = 60.0  # for the verifier's files to arrive, before its own time begins

_NOWHERE = Path(os.devnull)
_END = 500  # characters of a command's output in a message

# Prints the uid and gid of the image's user; status 3: the directory cannot be made by it.
_MAKE_WORKDIR = 'id -u; id -g; [ -d "$1" ] || mkdir -p -- "$1" 2>/dev/null || exit 3'
_MAKE_WORKDIR_AS_ROOT = 'mkdir -p -- "$1" && chown -- "$2" "$1"'
_ASK_WORKDIR = "id -u; id -g; pwd"
# $1: a path. The others: directories that everybody may write to. Status 4: the image has the path.
_MAKE_DIRECTORIES = """path=$1; shift
[ -e "$path" ] || [ -L "$path" ] && found=4
for directory do mkdir -p -- "$directory" && chmod 777 -- "$directory" || exit 1; done
exit "${found:-0}"
"""
_IMAGE_HAS = 4
# $1: what the command line of a session's first process has; the session is killed, if it has not just ended.
# Nothing in here forks: the session may have taken all that the pids ceiling allows.
_KILL_SESSION = """mark=$1 first=
for entry in /proc/[0-9]*; do
    words=
    while read -r line; do words=$words$line; done <"$entry/cmdline"
    case ${entry#/proc/} in $$) continue ;; esac
    case $words$line in *"$mark"*) first=${entry#/proc/} ;; esac
done 2>/dev/null
round=0
while [ -n "$first" ] && [ $round -lt 1000 ]; do
    left= round=$((round + 1))
    for entry in /proc/[0-9]*; do
        read -r line <"$entry/stat" || continue
        set -- ${line##*) }
        case $1/$4 in [ZX]/*) ;; */$first) left="$left ${entry#/proc/}" ;; esac
    done
    [ -n "$left" ] || exit 0
    kill -9 $left
done 2>/dev/null
[ -z "$first" ]
"""
_PLACE_FILES = 'chown -R -- "$3" "$1" && cp -R -P -p -- "$1/." "$2" && rm -rf -- "$1"'


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
        if (
            _make_directories(course, run, task)
            and place_task(run, task)
            and _wait_until_healthy(run, task.healthcheck)
        ):
            report.traceback = run.guarded(lambda: agent.setup(run.box))
        run.check_time()
    return went_well(course.evidence.setup)


def went_well(setup: PhaseEvidence) -> bool:
    """Whether nothing is wrong with a setup phase that is over."""
    wrong = setup.timed_out or setup.cut_off or setup.exit_code or setup.error or setup.trouble or setup.exec_lost
    return setup.ended and setup.exec_started and not wrong


def place_task(run: PhaseRun, task: Task) -> bool:
    """Put what the task brings along into the container; whether that went well."""
    workdir, owner = _workdir(run, task)
    run.box.workdir = workdir
    if run.error is not None:
        return False
    if task.files is not None and not _place_files(run, task.files, workdir or "/", owner):
        return False
    run.box.write(INSTRUCTION_FILE, task.instruction.encode())
    if task.setup is not None:
        run.take(run.box.exec(["sh", "-c", task.setup], user=ROOT))
    return not run.exit_code and run.box.lost is None


def _workdir(run: PhaseRun, task: Task) -> tuple[str | None, str | None]:
    """Return where the task works, None for the image's own place, and who owns it when that is not root."""
    if task.workdir:
        return task.workdir, _make_workdir(run, task.workdir)
    if task.files is None:
        return None, None
    asked = run.box.exec(["sh", "-c", _ASK_WORKDIR], log=_NOWHERE)
    workdir = asked.output.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2]
    if asked.exit_code or not workdir.startswith("/"):
        run.error = f"the image's working directory cannot be found: {end_of(asked.output)}"
    return workdir, _owner(asked.output)


def _make_workdir(run: PhaseRun, workdir: str) -> str | None:
    """Make the workdir, writable for the image's user; returns that user when it is not root."""
    made = run.box.exec(["sh", "-c", _MAKE_WORKDIR, "sh", workdir], log=_NOWHERE)
    owner = _owner(made.output)
    if made.exit_code == 3:
        made = run.box.exec(["sh", "-c", _MAKE_WORKDIR_AS_ROOT, "sh", workdir, owner or "0:0"], user=ROOT)
    if made.exit_code:
        run.error = f"the working directory {workdir} cannot be made: {end_of(made.output)}"
    return owner


def _owner(output: bytes) -> str | None:
    numbers = [word for word in output.decode("ascii", "replace").split() if word.isdecimal()][:2]
    return ":".join(numbers) if len(numbers) == 2 and numbers[0] != "0" else None


def _make_directories(course: Course, run: PhaseRun, task: Task) -> bool:
    """Make the task's directories, and note whether the place of its verifier is the image's own."""
    if not task.directories:
        return True
    target = task.verifier.target
    made = run.box.exec(["sh", "-c", _MAKE_DIRECTORIES, "sh", target, *task.directories], user=ROOT, workdir="/")
    if made.exit_code == _IMAGE_HAS:
        course.image_paths = frozenset({target})
    elif made.exit_code:
        run.error = f"the task's directories cannot be made: {end_of(made.output)}"
    return run.error is None


def _check_once(run: PhaseRun, check: Healthcheck) -> ExecResult:
    """Run a healthcheck once; one that exceeds its time is killed, with all of its session."""
    mark = f"infranoise-healthcheck-{secrets.token_hex(8)}"
    # The outer shell has the mark in its command line to the end: the inner one may become another program.
    result = run.box.exec(["sh", "-c", 'bash -c "$1"; exit $?', mark, check.command], timeout=check.timeout)
    if result.timed_out:
        killed = run.box.exec(["sh", "-c", _KILL_SESSION, "sh", mark], user=ROOT, workdir="/", log=_NOWHERE)
        if killed.exit_code:
            run.error = f"a healthcheck that took more than {check.timeout:g} s could not be stopped"
    return result


def _wait_until_healthy(run: PhaseRun, check: Healthcheck | None) -> bool:
    """Run the healthcheck until it succeeds; not once more than the task allows it to fail."""
    failures, begun = 0, time.monotonic()
    while check is not None:
        early = time.monotonic() < begun + check.start_period
        result = _check_once(run, check)
        if run.error is not None:
            return False
        if result.exit_code == 0:
            break
        failures += not early
        if failures >= check.retries:
            run.error = f"the healthcheck failed {failures} times in a row: {end_of(result.output)}"
            return False
        time.sleep(min(check.start_interval if early else check.interval, run.box.remaining()))
    return True


def _place_files(run: PhaseRun, files: Path, workdir: str, owner: str | None) -> bool:
    if owner is None:
        run.box.upload(files, workdir)
        return True
    # The engine uploads as root, and an agent that is somebody else must be able to change its files.
    run.box.upload(files, STAGING_DIR)
    placed = run.box.exec(["sh", "-c", _PLACE_FILES, "sh", STAGING_DIR, workdir, owner], user=ROOT)
    if placed.exit_code:
        run.error = f"the task's files cannot be given to user {owner}: {end_of(placed.output)}"
    return not placed.exit_code


def run_agent(course: Course, task: Task, agent: PhaseAgent, report: AgentReport) -> bool:
    """Let the agent work; whether a verifier can say anything afterwards.

    What the agent leaves running when it ends by itself goes on: tasks ask for servers. At its deadline
    everything is killed, because a detached child would work on while the verifier looks.
    """

    def work() -> None:
        result: object = agent.run(task.instruction, run.box)
        if not isinstance(result, AgentResult):
            raise AgentFailed(f"the agent returned {type(result).__name__}, not an AgentResult")
        if result.cause is not None and not isinstance(result.cause, Cause):
            raise AgentFailed(f"the agent's result has {result.cause!r} as its cause, which is none")
        report.result = result

    with course.phase(Phase.AGENT, task.timeouts.agent, task.workdir or None) as run:
        run.box.user = task.agent_user
        report.traceback = run.guarded(work)
        run.exit_code = report.result.exit_code
        if run.check_time() and not task.keep_processes:
            course.kill_processes(run, f"the agent's {task.timeouts.agent:g} s were over")
    course.evidence = replace(course.evidence, agent_cause=report.result.cause)
    phase = course.evidence.agent
    if phase.cut_off or phase.container_ended or phase.unkillable or course.evidence.engine_answers is False:
        return False
    # Without an exit status a lost command may still be running: nothing that is verified now is its end.
    lost = phase.trouble is not None or phase.exec_lost is not None or not phase.exec_started
    return not lost or phase.exit_code is not None


def end_of(output: bytes) -> str:
    """Return the end of a command's output, for a message: whole words, so that no part of a secret is left."""
    text = output.decode("utf-8", "replace").strip()
    if len(text) > _END:
        text = text[-_END:].partition("\n")[2] or text[-_END:].partition(" ")[2] or "one very long line"
    return text or "no reason given"


def agent_details(report: AgentReport) -> dict[str, Any]:
    """Return what the agent says of itself."""
    result = report.result
    details = {"exit_code": result.exit_code, "summary": result.summary, "details": dict(result.details)}
    return details if report.traceback is None else details | {"traceback": report.traceback}
