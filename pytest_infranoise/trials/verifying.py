"""What happens in the verifier phase: its files are put in place, its command runs, its verdict is read."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path

from pytest_infranoise.model import Phase
from pytest_infranoise.model import Reads
from pytest_infranoise.model import Task
from pytest_infranoise.model import Upload
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.uploads import put
from pytest_infranoise.tasks.host_environment import resolve
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.course import PhaseRun
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.phases import PREPARE_SECONDS
from pytest_infranoise.trials.phases import ROOT
from pytest_infranoise.trials.phases import end_of
from pytest_infranoise.trials.readers import READERS
from pytest_infranoise.trials.readers import Reading

_NOWHERE = Path(os.devnull)
_READ_BACK = 4 * 1024**2  # bytes; larger files are hashed where they are

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
            **resolve(task.verifier.environment),
            "INFRANOISE_NONCE": self.nonce,
            "INFRANOISE_REWARD_FILE": self.file,
            "INFRANOISE_WORKDIR": task.workdir,
        }


def run_verifier(course: Course, task: Task) -> Mapping[str, bytes]:
    """Let the verifier decide; returns the files that its verdict was read from, by name."""
    ticket, seen = Ticket(), dict[str, bytes]()
    with course.phase(Phase.VERIFIER, PREPARE_SECONDS) as run:
        if not _place_verifier(course, run, task, ticket):
            return seen
        run.restart(task.timeouts.verifier)
        output, cut = _run_command(course, run, task, ticket)
        if not run.timed_out or task.verifier.reads is Reads.NONCE:
            sandbox, options = course.container(), task.verifier.options
            reading = Reading(sandbox, ticket.nonce, ticket.file, output, cut, options, seen)
            course.evidence = replace(course.evidence, artefact=READERS[task.verifier.reads](reading))
        else:
            # Nothing marks what a foreign verifier wrote before it was stopped as its last word.
            course.evidence = replace(course.evidence, artefact=Artefact(text="stopped before its end"))
        course.check_identity()
    return seen


def _place_verifier(course: Course, run: PhaseRun, task: Task, ticket: Ticket) -> bool:
    """Put the verifier where only what we sent can be, and a place for its verdict where nothing was before."""
    verifier = task.verifier
    emptied = "" if verifier.target in course.image_paths else verifier.target
    argv = ["sh", "-c", _MAKE_REWARD_DIR, "sh", emptied, ticket.directory, verifier.user or ""]
    if not _as_root(run, argv, "the place for the verdict cannot be made"):
        return False
    changed = []
    for upload in _uploads(task):
        put(run.box, upload)
        changed += _changed(run.box, upload)
    if changed:
        run.error = f"not what was sent: {', '.join(changed)[:500]}"
        return False
    if not verifier.executable and not verifier.stale:
        return True
    argv = ["sh", "-c", _CLEAR, "sh", verifier.executable or "", *verifier.stale]
    return _as_root(run, argv, "old verdicts cannot be removed")


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


def _run_command(course: Course, run: PhaseRun, task: Task, ticket: Ticket) -> tuple[bytes, bool]:
    """Run the verifier's command; returns its output, and whether that is only the end of it."""
    verifier = task.verifier
    workdir = verifier.target if verifier.workdir is None else verifier.workdir or task.workdir or None
    try:
        with run.box.part() as file:
            result = run.box.exec(
                ["sh", "-c", verifier.command],
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
        run.timed_out = True
        course.kill_processes(run, f"the verifier's {task.timeouts.verifier:g} s were over")
    return b"", True


def _changed(sandbox: Sandbox, upload: Upload) -> list[str]:
    if isinstance(upload.source, bytes):
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory, "content")
            copy.write_bytes(upload.source)
            return _changed(sandbox, Upload(copy, upload.target))
    if upload.source.is_dir():
        return changed_files(sandbox, upload.source, upload.target)
    return [] if _is_same(sandbox, upload.source, upload.target) else [upload.target]


def changed_files(sandbox: Sandbox, source: Path, target: str) -> list[str]:
    """Return those files under ``source`` whose copy under ``target`` in the sandbox is another one.

    Small files are read back through the engine, which needs nothing of the image and trusts none of its
    programs.
    """
    names = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    return [name for name in names if not _is_same(sandbox, source / name, f"{target}/{name}")]


def _is_same(sandbox: Sandbox, path: Path, target: str) -> bool:
    with path.open("rb") as file:
        sent = hashlib.file_digest(file, "sha256").hexdigest()
    return _hash(sandbox, target, path.stat().st_size) == sent


def _hash(sandbox: Sandbox, path: str, size: int) -> str | None:
    if size > _READ_BACK:
        printed = sandbox.exec(["sha256sum", "--", path], user=ROOT, log=_NOWHERE).output
        return printed.lstrip(b"\\")[:64].decode("ascii", "replace")
    try:
        return hashlib.sha256(sandbox.read(path, size + 1)).hexdigest()
    except FileMissing:
        return None
