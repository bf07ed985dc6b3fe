"""A trial whose work and whose verdict are one Python function's, taken from step to step by whoever calls it.

The same container, phases, evidence and rules as for a task, with another division of labour. What the function
needs is made ready in the setup phase, it works in the agent phase, and how it ended is the artefact that the
verifier phase takes in. So a failed assertion is a fail only where no rule finds an infrastructure cause first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from typing import cast

from pytest_infranoise.agents.builtin import NopAgent
from pytest_infranoise.agents.deadline import DeadlineSandbox
from pytest_infranoise.agents.host import AgentFailed
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Record
from pytest_infranoise.model import Trial
from pytest_infranoise.sandboxes.protocol import DeadlineExceeded
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import ExecResult
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.trials.evidence import KILLED
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.expiry import TrialExpired
from pytest_infranoise.trials.phase_run import PhaseRun
from pytest_infranoise.trials.phases import PREPARE_SECONDS
from pytest_infranoise.trials.phases import place_task
from pytest_infranoise.trials.phases import went_well
from pytest_infranoise.trials.runner import Attempt
from pytest_infranoise.trials.runner import TrialConfigError
from pytest_infranoise.trials.runner import TrialContext
from pytest_infranoise.trials.runner import TrialNotWanted

_MAX_LINE = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step of the caller's ended.

    ``reward`` is what it says of the thing under test, None when it says nothing; ``error`` is what it raised.
    """

    reward: float | None = None
    error: BaseException | None = None


class CurrentSandbox:
    """The sandbox of the phase that the trial is in, so that the caller can hold on to one object."""

    def __init__(self) -> None:
        self.box: DeadlineSandbox | None = None
        self.killed = False  # whether a command ended as one that got a SIGKILL

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        user: str | None = None,
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> ExecResult:
        """Run a command to its end, or until ``timeout`` seconds or the phase's time are over."""
        result = self._now().exec(
            argv, timeout=timeout, user=user, workdir=workdir, environment=environment, log=log
        )
        self.killed = self.killed or result.exit_code == KILLED
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def _now(self) -> DeadlineSandbox:
        if self.box is None:
            raise RuntimeError("the trial has no container")
        return self.box


class FunctionTrial(Attempt):
    """One attempt at a trial, in four steps: ``begin``, ``work``, ``finish``, ``close``.

    The first three return the record as soon as there is one, and write it down; the steps after it are left
    out, but for ``close``, which removes the container. A trial that is closed before there is a record is
    missing.
    """

    def __init__(self, trial: Trial, context: TrialContext, attempt: int = 0) -> None:
        super().__init__(trial, NopAgent(), context, attempt)
        self.record: Record | None = None
        self._current = CurrentSandbox()
        self._life = self._steps()

    @property
    def sandbox(self) -> Sandbox:
        """The container, with the time of the phase that the trial is in."""
        return cast("Sandbox", self._current)

    @property
    def traceback(self) -> str | None:
        """The traceback of an error that says nothing of the thing under test."""
        return self._report.traceback

    @property
    def leaked(self) -> bool:
        """Whether the container could not be removed."""
        return self._leaked

    def begin(self) -> Record | None:
        """Start the container and the setup phase, which goes on until ``work``.

        Raises:
            TrialConfigError: the user's mistake.
            EnforcementError: the engine gave other limits than were asked for.
            TrialNotWanted: it was given up while it waited.
        """
        with self._context.expiry.shield():
            self._context.journal.started(self._trial.key, self._number)
        next(self._life)
        return self.record

    def work(self, error: BaseException | None = None) -> Record | None:
        """End the setup phase, in which ``error`` was raised, and let the function begin.

        Raises:
            TrialConfigError: the user's mistake.
        """
        self._life.send(Outcome(error=error))
        return self.record

    def finish(self, outcome: Outcome) -> Record:
        """Judge the trial by how the function ended and by everything that was seen meanwhile."""
        self._life.send(outcome)
        if self.record is None:
            raise RuntimeError("the trial has not come to its end")
        return self.record

    def close(self) -> None:
        """Remove the container."""
        with self._context.expiry.shield():
            self._life.close()

    def _steps(self) -> Generator[None, Outcome]:
        clock = time.monotonic()
        with ExitStack() as stack:
            try:
                if self._open(stack):
                    yield from self._phases()
            except (EnforcementError, TrialConfigError, TrialNotWanted):
                raise
            except (Exception, TrialExpired) as error:
                self._note_crash(error)
                with contextlib.suppress(Exception):
                    self._course.look()
            with self._context.expiry.shield():
                self.record = self._record(time.monotonic() - clock)
                self._context.journal.finished(self.record)
            if self._course.sandbox is not None:
                seconds, log = self._trial.task.timeouts.setup, self._make_log("teardown")
                self._current.box = DeadlineSandbox(
                    self._course.sandbox, seconds, log, self._trial.task.workdir or None
                )
            yield

    def _phases(self) -> Generator[None, Outcome]:
        task, course = self._trial.task, self._course
        with course.phase(Phase.SETUP, task.timeouts.setup) as run:
            if place_task(run, task):
                self._current.box = run.box
                outcome = yield
                _raise_if_expired(outcome)
                if outcome.error is not None:
                    self._report.traceback = _own_error(run, outcome.error)
            run.check_time()
        if not went_well(course.evidence.setup):
            return
        self._current.killed = False
        with course.phase(Phase.AGENT, task.timeouts.agent, task.workdir or None) as run:
            self._current.box = run.box
            outcome = yield
            _raise_if_expired(outcome)
            run.check_time()
            # Told to the rules because a SIGKILL that nobody can explain is no fail.
            run.exit_code = KILLED if self._current.killed else None
        agent = course.evidence.agent
        if agent.cut_off is None and not agent.container_ended and course.evidence.engine_answers is not False:
            self._take_verdict(outcome)

    def _take_verdict(self, outcome: Outcome) -> None:
        course, reward, error = self._course, outcome.reward, outcome.error
        if reward is None and isinstance(error, DeadlineExceeded) and course.evidence.agent.timed_out:
            reward = 0.0  # its own time was over, as an agent's may be
        with course.phase(Phase.VERIFIER, PREPARE_SECONDS) as run:
            if error is not None:
                run.last_line = _first_line(error)
            if reward is None:
                error = error or RuntimeError("nothing is known of its end")
                self._report.traceback = _own_error(run, error)
                run.error = f"the test ended without a verdict: {run.error}"
            else:
                artefact = Artefact(ArtefactStatus.COMPLETE, reward, tests=1)
                course.evidence = replace(course.evidence, artefact=artefact)
            course.check_identity()


def _raise_if_expired(outcome: Outcome) -> None:
    if isinstance(outcome.error, TrialExpired):
        raise outcome.error


def _own_error(run: PhaseRun, error: BaseException) -> str | None:
    """Note an error of the caller's code; engine failures and the deadline, which are not its own, are raised."""
    traceback = error.__traceback__
    try:
        return run.guarded(partial(_raise, error if isinstance(error, Exception) else AgentFailed(str(error))))
    finally:
        error.__traceback__ = traceback  # without our own frames, which raising it again has added
        if run.error is not None:
            run.error = _first_line(error)  # an assertion's message; its details come after it


def _first_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    return text[:_MAX_LINE]


def _raise(error: Exception) -> None:
    raise error
