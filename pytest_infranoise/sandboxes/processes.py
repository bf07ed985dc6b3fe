"""What this machine's ``/proc`` says of a container's processes, when the engine runs here."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pytest_infranoise.sandboxes.protocol import DISGUISED
from pytest_infranoise.sandboxes.shell import HOLDER_ARGV
from pytest_infranoise.sandboxes.shell import HOLDERS_SLEEP

_MAX_COMMAND = 256 * 1024  # bytes of a command line that are looked at; no word of one is longer than half of that
_MAX_COMMANDS = 16 * 1024**2  # of all together
_MAX_FILES = 256  # open files of one process that are looked at
# Which programs may call themselves sleep.
_SLEEPS = frozenset(
    f"{directory}/{name}"
    for directory in ("/bin", "/usr/bin", "/usr/local/bin")
    for name in ("sleep", "busybox", "coreutils", "toybox")
)
_EXITING = 0x4  # the kernel's PF_EXITING
_HOLDER = b"".join(word.encode() + b"\0" for word in HOLDER_ARGV)
_HOLDERS_SLEEP = b"".join(word.encode() + b"\0" for word in HOLDERS_SLEEP.split())


class Process(NamedTuple):
    """One process at one moment; ``start`` tells it from a later one with the same PID.

    Not ``alive`` are zombies and those that the kernel is about to end: when PID 1 of a container goes, it is
    marked so before the first of the others dies.
    """

    pid: int
    parent: int
    name: str
    start: int
    alive: bool
    threads: int
    session: int

    @property
    def runs(self) -> bool:
        """Whether anything of it can still run: a process whose first thread has ended may have others."""
        return self.alive or self.threads > 1


def look(pid: int) -> Process | None:
    """Return what is known of a process, None when there is none."""
    try:
        # Looked at many times a second, so no more layers than it takes.
        with open(f"/proc/{pid}/stat", "rb") as stream:  # noqa: PTH123
            text = stream.read().decode(errors="replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        alive = fields[0] not in "ZXx" and not int(fields[6]) & _EXITING
        return Process(pid, int(fields[1]), name, int(fields[19]), alive, int(fields[17]), int(fields[3]))
    except (OSError, ValueError, IndexError):
        return None


def namespace_pid(pid: int, init: int) -> int | None:
    """Return a process's PID as the container of ``init`` counts it; None for what is in a namespace within it."""
    numbers, depth = _namespace_pids(pid), len(_namespace_pids(init))
    return numbers[-1] if numbers and len(numbers) == depth else None


def _namespace_pids(pid: int) -> list[int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return []
    lines = (line for line in status.splitlines() if line.startswith("NSpid:"))
    return [int(number) for number in next(lines, "").split()[1:]]


def runs_holder(pid: int) -> bool:
    """Whether a process is the shell that keeps the container alive."""
    return _command_line(pid) == _HOLDER


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_holders_own(process: Process) -> bool:
    """Whether this is the holder's sleep, or about to become it.

    The orphans of others have PID 1 as parent too, and may call themselves what they like. But each command that
    the engine starts in a container is in a session of its own, and nothing can enter one that it was not born in.
    """
    if _command_line(process.pid) not in (_HOLDERS_SLEEP, _HOLDER) or not runs_holder(process.parent):
        return False
    holder = look(process.parent)
    return holder is not None and holder.session == process.session


Program = tuple[int, int]  # the device and the number of a program's file


def holders_program(pids: Iterable[int]) -> Program | None:
    """Return which program the holder's sleep is; None while that cannot be seen."""
    for pid in pids:
        process = look(pid)
        if process is not None and _command_line(pid) == _HOLDERS_SLEEP and _is_holders_own(process):
            return _program(pid)
    return None


def _program(pid: int) -> Program | None:
    try:
        found = Path(f"/proc/{pid}/exe").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_original(pid: int, program: Program | None) -> bool:
    """Whether a sleep of the holder's is the program that it was: what is called so may be replaced."""
    return program is None or _command_line(pid) == _HOLDER or _program(pid) == program


def others(
    pids: Iterable[int], spared: frozenset[int], program: Program | None = None, gone: set[int] | None = None
) -> dict[str, str]:
    """Return what runs among ``pids`` beside the holder's own, by a name that a later process cannot have.

    Each is described by its command line, its directory and the files it holds open, as far as this user may see.
    Those that do not run are put into ``gone``. Where nothing else is found and one of them is new, it may have
    left another behind when it ended, which only a list that is made after that has.
    """
    found = {}
    room = _MAX_COMMANDS
    own = False
    for pid in pids:
        process = look(pid)
        if pid in spared:
            continue
        if process is None or not process.runs:
            if gone is not None:
                gone.add(pid)
            continue
        if not own and _is_holders_own(process) and _is_original(pid, program):
            own = True  # it has one at a time
            continue
        text = (_describe(pid) if room > 0 else "") or process.name
        room -= len(text)
        found[f"{pid}:{process.start}"] = text
    return found


def _describe(pid: int) -> str:
    line = _command_line(pid)
    if len(line) > _MAX_COMMAND:
        # Whole words: the beginning of a secret could not be told from anything else.
        line = line[: line.rfind(b"\0", 0, _MAX_COMMAND) + 1]
    words = [line.replace(b"\0", b" ").decode("utf-8", "replace").strip()]
    if _is_disguised(pid, line):
        words.append(DISGUISED)
    with contextlib.suppress(OSError):
        words.append(f"[in {Path(f'/proc/{pid}/cwd').readlink()}]")
    with contextlib.suppress(OSError):
        for number, descriptor in enumerate(Path(f"/proc/{pid}/fd").iterdir()):
            if number >= _MAX_FILES:
                break
            with contextlib.suppress(OSError):
                target = str(descriptor.readlink())
                if target.startswith("/") and not target.startswith("/dev/"):
                    words.append(f"[holds {target}]")
    return " ".join(dict.fromkeys(word for word in words if word))


def _is_disguised(pid: int, line: bytes) -> bool:
    """Whether a process that is not the holder's has the command line of one, and is not what that says."""
    if line != _HOLDERS_SLEEP:
        return line == _HOLDER
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()) not in _SLEEPS
    except OSError:
        return False


def kill_others(
    pids: Iterable[int],
    spared: frozenset[int],
    container: str,
    program: Program | None = None,
    gone: set[int] | None = None,
) -> bool:
    """Send SIGKILL to those of ``pids`` that are not to be spared; whether there may be more of them.

    That is so when any of them still ran, or one that is not in ``gone`` had ended before it could be looked at:
    it is put in there, and may have left another behind, which only a list that is made after that has.

    The holder's sleep does not count. It is spared where it is still the ``program`` that it was, because making a
    new one takes memory, and killed else.

    Each is held by a descriptor before it is looked at, so that nothing else on this machine can be hit when
    the number is given to another process meanwhile.
    """
    gone = set() if gone is None else gone
    found, ended = False, set[int]()
    for pid in pids:
        if pid in spared:
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            ended.add(pid)
            continue
        try:
            process = look(pid)
            if process is None or not process.runs:
                ended.add(pid)
                continue
            own = _is_holders_own(process)
            if own and program is not None and _is_original(pid, program):
                continue
            if container in Path(f"/proc/{pid}/cgroup").read_text(errors="replace"):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                if own:
                    gone.add(pid)  # leaves nothing behind but what the holder starts instead
                found = found or not own
        except (ProcessLookupError, FileNotFoundError):
            ended.add(pid)
        finally:
            os.close(descriptor)
    found = found or not ended <= gone
    gone |= ended
    return found
