"""One phase of an attempt while it runs: what is done in the sandbox, and what that showed."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace

from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.host import AgentFailed
from pytest_infranoise.agents.protocol import AgentConfigError
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import Counters
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import LoggedKill
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.evidence import CommandFact
from pytest_infranoise.trials.evidence import CutOff
from pytest_infranoise.trials.evidence import Intent
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.evidence import Trouble
from pytest_infranoise.trials.expiry import TrialExpired

_MAX_LINE = 200
_MAX_COMMANDS = 10  # of a phase's first commands, and of its last, that are kept


def unmasked(text: str) -> str:
    """Return a text as it is: there are no secrets to take out of it."""
    return text


class PhaseRun:
    """One phase while it runs: its view of the sandbox, and what it showed so far."""

    def __init__(
        self, evidence: PhaseEvidence, box: DeadlineSandbox, mask: Callable[[str], str] = unmasked
    ) -> None:
        self.box = box
        self._mask = mask
        self.exit_code: int | None = None
        self.last_line = ""
        self.error: str | None = None
        self.trouble: SandboxError | None = None
        self.counters: Counters | None = None  # as they were before a kill of ours
        self.logged_kills: tuple[LoggedKill, ...] | None = None  # the same of the kernel's log
        self.unkillable = False
        self.timed_out = False
        self.settled = False  # whether what it was for is known already
        self.cut: CutOff | None = None
        self.cut_intent: Intent | None = None
        self._evidence = evidence
        self._clock = time.monotonic()
        self._commands: list[CommandFact] = []
        self._commands_in_all = 0
        box.saw = self._saw

    def _saw(self, argv: Sequence[str], began: float, result: ExecResult) -> None:
        fact = CommandFact(
            argv=hashlib.sha256("\0".join(argv).encode(errors="surrogateescape")).hexdigest()[:16],
            began=began,
            seconds=round(result.seconds, 3),
            exit_code=result.exit_code,
            pid=result.pid,
            started=result.started,
            timed_out=result.timed_out,
            output_bytes=result.output_bytes,
            truncated=result.truncated,
            lost=self._mask(result.lost)[:_MAX_LINE] if result.lost else None,
        )
        self._commands_in_all += 1
        if len(self._commands) == 2 * _MAX_COMMANDS:
            del self._commands[_MAX_COMMANDS]
        self._commands.append(fact)

    def take(self, result: ExecResult) -> None:
        """Note how the phase's command ended."""
        self.exit_code = result.exit_code
        output = result.output
        if result.truncated and result.output_bytes > len(output):
            # The part that is left begins anywhere, perhaps within a secret, which nobody could know by its rest.
            output = output.partition(b"\n")[2] if b"\n" in output.rstrip() else b"one very long line"
        lines = self._mask(output.decode("utf-8", "replace")).split("\n")
        self.last_line = next((line.strip()[:_MAX_LINE] for line in reversed(lines) if line.strip()), "")

    def note(self, error: SandboxError) -> None:
        """Note a failed call; the first one stands."""
        self.trouble = self.trouble or error

    def guarded(self, call: Callable[[], None]) -> str | None:
        """Run the agent's own code; its traceback is returned and its last line noted when it raises.

        Engine failures and the deadline are not its own, and pass through, as do what stops the run and being
        told to stop.
        """
        try:
            call()
        except DeadlineExceeded:
            self.box.expired = True
        except (FileMissing, ConfigError) as error:
            return self._own_error(error)
        except (SandboxError, AgentConfigError, KeyboardInterrupt, TrialExpired):
            raise
        except BaseException as error:  # also SystemExit, and what test frameworks raise: only it ends by that
            return self._own_error(error)
        return None

    def _own_error(self, error: BaseException) -> str:
        text = str(error) if isinstance(error, AgentFailed) else f"{type(error).__name__}: {error}"
        self.error = next((line for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
        return "".join(traceback.format_exception(error))

    def check_time(self) -> bool:
        """Note whether the deadline has passed, which is asked when the phase's work is over."""
        if self.cut is None:
            self.timed_out = self.timed_out or self.box.expired or not self.box.remaining()
        return self.timed_out

    def restart(self, seconds: float) -> None:
        """Give the phase its time from now on."""
        self.box.restart(seconds)
        self._evidence = replace(self._evidence, limit=seconds)

    def evidence(self) -> PhaseEvidence:
        """Return what the phase showed so far."""
        trouble = self.trouble or self.box.trouble
        seconds = time.monotonic() - self._clock
        told = None if trouble is None else Trouble.of(trouble, self._mask)
        return replace(
            self._evidence,
            seconds=round(seconds, 3),
            clock_step=round(time.time() - self._evidence.began - seconds, 3),
            commands=tuple(self._commands),
            commands_in_all=self._commands_in_all,
            exit_code=self.exit_code,
            exec_started=not self.box.unstarted,
            exec_lost=self.box.lost,
            timed_out=self.cut is None and (self.timed_out or self.box.expired),
            cut_off=self.cut,
            unkillable=self.unkillable,
            error=self.error,
            last_line=self.last_line,
            trouble=told,
        )
