"""What this machine's kernel says in its log of processes that it killed for memory.

It says what no counter of cgroup v1 does: whose limit had been met. It is no count: the kernel leaves such lines
out when it kills more than ten processes within five seconds.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator

from pytest_infranoise.sandboxes.protocol import LoggedKill

DEVICE = "/dev/kmsg"
_ROOM = 8192  # bytes; no record is longer
_MOST = 50  # kills of one container that are kept of one look
# Processes choose their names: what comes before one is matched from the left, what follows it from the right.
_KILL = re.compile(
    r"oom-kill:constraint=\w+,nodemask=.*?,cpuset=.*?,mems_allowed=[^a-z]*?,"
    r"(?:global_oom|oom_memcg=(?P<limit>.*?)),task_memcg=(?P<place>.*?),task=(?P<process>.*),pid=\d+,uid=\d+"
)
_HEAD = re.compile(r"(\d+),\d+,\d+,[^;]*;")
_FACILITY = 8  # priorities below this are the kernel's own; no process can write one


class KernelLog:
    """The kernel's log from the moment on in which this was made.

    Raises:
        OSError: this process may not read it, or there is none.
    """

    def __init__(self, device: str = DEVICE) -> None:
        self._file = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Nobody closes it for a container that never came to be, or that the engine did not let go of.
        self._close = weakref.finalize(self, os.close, self._file)
        os.lseek(self._file, 0, os.SEEK_END)

    def kills(self, container: str) -> tuple[LoggedKill, ...]:
        """Return what was killed in a container since the last call, the first fifty."""
        found = (parse_kill(record, container) for record in self._records())
        return tuple(kill for kill in found if kill is not None)[:_MOST]

    def _records(self) -> Iterator[str]:
        while True:
            try:
                record = os.read(self._file, _ROOM)  # one at a time, however much room there is
            except BrokenPipeError:
                continue  # some were overwritten before they were read; those that are left come next
            except OSError:
                return
            if not record:
                return
            yield record.decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the log."""
        self._file = -1
        self._close()


def parse_kill(record: str, container: str) -> LoggedKill | None:
    """Return the kill in a container that a record of the kernel's log tells of; None when it tells of none."""
    head = _HEAD.match(record)
    if head is None or int(head[1]) >= _FACILITY:
        return None
    match = _KILL.fullmatch(record[head.end() :].partition("\n")[0])
    if match is None or container not in match["place"]:
        return None
    if match["limit"] is None:
        return LoggedKill("host", match["process"])
    # A limit below the container's own can only be one that was set in there.
    return LoggedKill("own" if container in match["limit"] else "parent", match["process"])
