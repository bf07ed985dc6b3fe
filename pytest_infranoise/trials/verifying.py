"""What happens in the verifier phase: its files are put in place, its command runs, its verdict is read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from pytest_infranoise.model import Phase
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Task
from pytest_infranoise.model import Upload
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.uploads import put
from pytest_infranoise.tasks.host_environment import resolve
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.integrity import Witness
from pytest_infranoise.trials.phase_run import PhaseRun
from pytest_infranoise.trials.phases import PREPARE_SECONDS
from pytest_infranoise.trials.phases import ROOT
from pytest_infranoise.trials.phases import end_of
from pytest_infranoise.trials.readers import READERS
from pytest_infranoise.trials.readers import Reading
from pytest_infranoise.trials.sent import Sent

REWARD_DIR = "/infranoise/reward"

# $1: a directory to remove, or nothing. $2: the verdict's directory. $3: who writes it, or nothing.
_MAKE_REWARD_DIR = """{ [ -z "$1" ] || rm -rf -- "$1"; } && rm -rf -- /infranoise/reward-* || exit
mkdir -p -- "$2" && chmod 700 -- "$2" || exit
[ -z "$3" ] || chown -- "$3" "$2"
"""
# $1: what is made executable, or nothing. The others: files that may not be there, in directories that must be.
_CLEAR = """[ -z "$1" ] || chmod a+x -- "$1" || exit
shift
for path do
    place=${path%/*}
    if [ -L "$place" ] || [ ! -d "$place" ]; then
        rm -rf -- "$place" && mkdir -p -- "$place" && chmod 777 -- "$place" || exit
    fi
    rm -rf -- "$path" || exit
done
"""
# $1: the verifier's command. $2: a file that tells when it had ended, by the clock of the files that it writes.
_RUN = """sh -c "$1"
status=$?
{ true >"$2"; } 2>/dev/null
exit "$status"
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What one run of a verifier is known by: where it must write its verdict, and what must be in it."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    place: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def directory(self) -> str:
        """The directory that is made for this verdict alone."""
        return f"{REWARD_DIR}-{self.place}"

    @property
    def file(self) -> str:
        """The verdict artefact's path."""
        return f"{self.directory}/reward.json"

    @property
    def end(self) -> str:
        """A file that is written when the verifier's command has ended."""
        return f"{self.directory}/end"

    def environment(self, task: Task) -> Mapping[str, str]:
        """Return what the verifier is told."""
        return {
            **resolve(task.verifier.environment),
            "INFRANOISE_NONCE": self.nonce,
            "INFRANOISE_REWARD_FILE": self.file,
            "INFRANOISE_WORKDIR": task.workdir,
        }


def run_verifier(course: Course, task: Task) -> Mapping[str, bytes]:
    """Let the verifier decide; returns the files that its verdict was read from, by name."""
    seen = dict[str, bytes]()
    witness = course.witness or Witness(course.container())
    try:
        _verify(course, task, witness, seen)
    finally:
        course.evidence = replace(course.evidence, integrity=witness.found)
    return seen


def _verify(course: Course, task: Task, witness: Witness, seen: dict[str, bytes]) -> None:
    ticket, sent = Ticket(), Sent(_uploads(task))
    with course.phase(Phase.VERIFIER, PREPARE_SECONDS) as run:
        if not _place_verifier(course, run, task, ticket, witness, sent):
            return
        run.restart(task.timeouts.verifier)
        output, cut = _run_command(course, run, task, ticket, witness)
        if run.cut is not None:
            return
        if not run.timed_out or task.verifier.reads is Reads.NONCE:
            sandbox, options = course.container(), task.verifier.options
            reading = Reading(sandbox, ticket.nonce, ticket.file, output, cut, options, seen)
            course.evidence = replace(course.evidence, artefact=READERS[task.verifier.reads](reading))
            run.settled = True
        else:
            # Nothing marks what a foreign verifier wrote before it was stopped as its last word.
            course.evidence = replace(course.evidence, artefact=Artefact(text="stopped before its end"))
        course.check_identity()
        witness.verdict_is_read(course.evidence.artefact)
        sandbox, verdicts = course.container(), [ticket.file, *task.verifier.stale]
        witness.verifier_is_over(lambda: map(sent.name, sent.changed(sandbox)), verdicts, ticket.end)


def _place_verifier(
    course: Course, run: PhaseRun, task: Task, ticket: Ticket, witness: Witness, sent: Sent
) -> bool:
    """Put the verifier where only what we sent can be, and a place for its verdict where nothing was before."""
    verifier = task.verifier
    witness.verifier_comes(task, [f"{REWARD_DIR}-", *(path.rpartition("/")[0] for path in verifier.stale)])
    emptied = "" if verifier.target in course.image_paths else verifier.target
    argv = ["sh", "-c", _MAKE_REWARD_DIR, "sh", emptied, ticket.directory, verifier.user or ""]
    if not _as_root(run, argv, "the place for the verdict cannot be made"):
        return False
    for upload in _uploads(task):
        put(run.box, upload)
    if verifier.executable or verifier.stale:
        argv = ["sh", "-c", _CLEAR, "sh", verifier.executable or "", *verifier.stale]
        if not _as_root(run, argv, "old verdicts cannot be removed"):
            return False
    changed = sent.changed(course.container())
    if changed:
        witness.not_as_sent(changed, sent.name)
        run.error = f"not what was sent: {', '.join(map(sent.name, changed))[:500]}"
        return False
    return witness.verifier_starts([ticket.file, ticket.end, *verifier.stale])


def _as_root(run: PhaseRun, argv: list[str], problem: str) -> bool:
    done = run.box.exec(argv, user=ROOT, workdir="/")
    if done.exit_code:
        run.error = f"{problem}: {end_of(done.output)}"
    return not done.exit_code


def _uploads(task: Task) -> Iterator[Upload]:
    verifier = task.verifier
    if verifier.files is not None:
        yield Upload(verifier.files, verifier.target)
    yield from verifier.uploads


def _run_command(course: Course, run: PhaseRun, task: Task, ticket: Ticket, witness: Witness) -> tuple[bytes, bool]:
    """Run the verifier's command; returns its output, and whether that is only the end of it.

    Where somebody else is there who might write what the verifier did not, its end leaves a mark. That takes a
    shell above it, which scripts can tell, so it is done only there.
    """
    verifier = task.verifier
    argv = ["sh", "-c", verifier.command]
    if witness.found.others:
        argv = ["sh", "-c", _RUN, "sh", verifier.command, ticket.end]
    workdir = verifier.target if verifier.workdir is None else verifier.workdir or task.workdir or None
    try:
        with run.box.part() as file:
            result = run.box.exec(
                argv,
                user=ROOT if verifier.user is None else verifier.user or None,
                workdir=workdir,
                environment=ticket.environment(task),
                log=file,
            )
            run.take(result)
            if not result.truncated or file is None:
                return result.output, result.truncated
            content = file.read_bytes()
            whole = content.endswith(result.output)
            return (content, False) if whole else (result.output, True)
    except DeadlineExceeded:
        if run.cut is not None:
            raise
        run.timed_out = True
        witness.verifier_is_stopped()
        course.kill_processes(run, f"the verifier's {task.timeouts.verifier:g} s were over")
    return b"", True
