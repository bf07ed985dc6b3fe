"""The life cycle of one trial: image, admission, container, three phases, verdict, removal, record."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextlib import ExitStack
from contextlib import suppress
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol
from typing import runtime_checkable

from pytest_infranoise.agents.host import HostedAgent
from pytest_infranoise.agents.host import check_picklable
from pytest_infranoise.agents.logs import PhaseLog
from pytest_infranoise.agents.protocol import Agent
from pytest_infranoise.agents.protocol import AgentConfigError
from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.agents.secrets import masker_for
from pytest_infranoise.host import boot_id
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import artifacts_dir
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Phase
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verdict
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import Sandbox
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxRequest
from pytest_infranoise.tasks.host_environment import resolve
from pytest_infranoise.trials.course import READY_SECONDS
from pytest_infranoise.trials.course import Course
from pytest_infranoise.trials.decision import ConfigMistake
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.details import make_details
from pytest_infranoise.trials.details import shortened_events
from pytest_infranoise.trials.evidence import REMOVE
from pytest_infranoise.trials.evidence import Intent
from pytest_infranoise.trials.expiry import Expiry
from pytest_infranoise.trials.expiry import TrialExpired
from pytest_infranoise.trials.integrity import Witness
from pytest_infranoise.trials.phases import AgentReport
from pytest_infranoise.trials.phases import PhaseAgent
from pytest_infranoise.trials.phases import agent_details
from pytest_infranoise.trials.phases import run_agent
from pytest_infranoise.trials.phases import run_setup
from pytest_infranoise.trials.verdict import judge
from pytest_infranoise.trials.verifying import run_verifier
from pytest_infranoise.trials.watch import Look

_MAX_SUMMARY = 500
_MAX_TRACEBACK = 2000


class TrialConfigError(Exception):
    """A mistake of the user's that showed only while running: there is no record, and can be none.

    ``stops_run`` where it is not the task's, so that no trial of the agent's can be any better.
    """

    def __init__(self, task: Task, text: str, *, stops_run: bool = False) -> None:
        super().__init__(text)
        self.task = task
        self.text = text
        self.stops_run = stops_run


class TrialNotWanted(Exception):
    """The run was stopped while the trial waited for its floor: it is missing, as if it had never begun."""


@dataclass(frozen=True, slots=True)
class TrialContext:
    """What a process that runs trials gives to each of them.

    Args:
        run: the run's id.
        run_dir: its directory.
        worker: the name of this process in the run.
        host: this machine's name, for the container's labels.
        backend: the engine.
        journal: this process's journal.
        pass_threshold: the smallest reward that is a pass.
        image: returns the id of a task's image, or raises the ``SandboxError`` that was met when it was prepared.
        admit: holds the trial's floor for as long as its container lives; yields facts for the record.
        oom_child: what a kernel kill of another process than the agent's main one means; see ``Policy``.
        oom_mode: whether the first kernel kill ends the trial; see ``Policy``.
        guard: gives what else may end a phase while it runs; None for nothing.
        expiry: tells whoever may end a trial from outside when not to.
    """

    run: str
    run_dir: Path
    worker: str
    host: str
    backend: Backend
    journal: Journal
    pass_threshold: float
    image: Callable[[Task], str]
    admit: Callable[[Trial], AbstractContextManager[Mapping[str, Any]]]
    oom_child: Literal["infra", "fail"] = "infra"
    oom_mode: Literal["single", "group"] = "single"
    guard: Callable[[Sandbox], Look] | None = None
    expiry: Expiry = field(default_factory=Expiry)

    @property
    def policy(self) -> Policy:
        """By what trials are judged."""
        return Policy(self.pass_threshold, self.oom_child, self.oom_mode)


def run_trial(trial: Trial, agent: Agent, context: TrialContext, attempt: int = 0) -> Record:
    """Run one attempt at a trial and write down how it ended.

    Whatever happens, the container is removed. A record is written for every end but these: the process is
    told to stop (the trial is missing then), or one of the errors below.

    Raises:
        TrialConfigError: the user's mistake.
        EnforcementError: the engine gave other limits than were asked for.
        TrialNotWanted: it was given up while it waited.
    """
    with context.expiry.shield():
        context.journal.started(trial.key, attempt)
        record = Attempt(trial, agent, context, attempt).run()
        context.journal.finished(record)
        return record


def container_name(trial: Trial, run: str, attempt: int) -> str:
    """Return a container's name: unique, and safe whatever the task is called."""
    digest = hashlib.sha256(json.dumps(trial.key.to_json()).encode()).hexdigest()
    return f"infranoise-{run}-{digest[:12]}-{attempt}"


@runtime_checkable
class _Privileged(Protocol):
    """A sandbox that can tell what its processes are allowed."""

    def privileges(self) -> Mapping[str, Any]:
        """Return it, JSON-safe."""


class Attempt:
    """One attempt as it goes."""

    def __init__(self, trial: Trial, agent: Agent, context: TrialContext, number: int) -> None:
        self._trial = trial
        self._agent = agent
        self._context = context
        self._number = number
        self._masker = Masker()
        self._course = Course(
            context.backend.ready,
            self._log,
            trial.allocation.memory_ceiling,
            self._intended,
            mask=self._masked,
            oom_group=context.oom_mode == "group",
            guard=context.guard,
        )
        self._report = AgentReport()
        self._times = {"queued": time.time()}
        self._facts: dict[str, Any] = {}
        self._leaked = False

    def run(self) -> Record:
        """Live the attempt and judge it."""
        clock = time.monotonic()
        problem = check_picklable(self._agent) if self._on_host else None
        if problem is not None:
            raise TrialConfigError(self._trial.task, problem)
        try:
            with self._context.expiry.expose():
                self._live()
        except (EnforcementError, TrialConfigError, TrialNotWanted):
            raise
        except AgentConfigError as error:
            name = self._trial.key.agent
            text = self._masker.text(f"the agent {name!r} cannot work: {error}")
            raise TrialConfigError(self._trial.task, text, stops_run=True) from None
        except (Exception, TrialExpired) as error:
            self._note_crash(error)
        return self._record(time.monotonic() - clock)

    def _masked(self, text: str) -> str:
        return self._masker.text(text)

    def _note_crash(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        if isinstance(error, TrialExpired):
            text += f"{error}\n"  # what happened, without the name of a class
        self._course.evidence = replace(self._course.evidence, crash=text)

    @property
    def _on_host(self) -> bool:
        return bool(getattr(self._agent, "on_host", True))

    def _intended(self, intent: Intent) -> None:
        # A full disk here must not keep a container from being removed.
        with suppress(OSError):
            self._context.journal.intended(self._trial.key, self._number, asdict(intent))

    def _log(self, phase: Phase) -> PhaseLog:
        return self._make_log(phase.value)

    def _make_log(self, name: str) -> PhaseLog:
        return PhaseLog(self._artifacts / f"{name}.log", self._masker)

    def _live(self) -> None:
        with ExitStack() as stack:
            if not self._open(stack):
                return
            try:
                self._run_phases(stack)
            except Exception:
                self._course.look()
                raise

    def _open(self, stack: ExitStack) -> bool:
        """Start the container, to be removed when the stack is closed; whether there is one."""
        self._masker = masker_for(self._agent, self._trial.agent, self._trial.task)
        self._artifacts = artifacts_dir(self._context.run_dir, self._trial.key, self._number)
        with self._course.start():
            self._begin(stack)
        if self._course.evidence.start.trouble is None:
            return True
        self._sweep()
        return False

    def _begin(self, stack: ExitStack) -> None:
        """Image, admission, container; what is held is let go of in the opposite order."""
        image = self._context.image(self._trial.task)
        self._facts["image"] = image
        self._facts["admission"] = self._admitted(stack)
        self._times["admitted"] = time.time()
        sandbox = self._context.backend.create(self._request(image))
        stack.callback(self._remove, sandbox)
        self._times["created"] = time.time()
        self._facts["container"] = sandbox.id
        self._course.attach(sandbox)
        self._facts["limits"] = sandbox.limits()
        if isinstance(sandbox, _Privileged):
            self._facts["privileges"] = sandbox.privileges()

    def _admitted(self, stack: ExitStack) -> Mapping[str, Any]:
        try:
            # How long others keep a floor is no matter of this trial's: large floors would time out most.
            with self._context.expiry.waiting():
                return stack.enter_context(self._context.admit(self._trial))
        except OSError as error:
            # Without the ledger no floor can be promised, this trial's as little as any other's.
            text = f"the ledger of floors (INFRANOISE_STATE_DIR) cannot be used: {error}"
            raise TrialConfigError(self._trial.task, text, stops_run=True) from None

    def _request(self, image: str) -> SandboxRequest:
        task = self._trial.task
        try:
            environment = resolve(task.environment)
        except ValueError as error:
            raise ConfigError("environment", str(error)) from error
        return SandboxRequest(
            name=container_name(self._trial, self._context.run, self._number),
            image=image,
            allocation=self._trial.allocation,
            labels=self._labels(),
            environment=environment,
            network=task.network,
            user=task.user,
        )

    def _labels(self) -> dict[str, str]:
        return {
            "infranoise.run": self._context.run,
            "infranoise.worker": self._context.worker,
            "infranoise.trial": str(self._trial.key),
            "infranoise.attempt": str(self._number),
            "infranoise.host": self._context.host,
            "infranoise.boot": boot_id(),
        }

    def _run_phases(self, stack: ExitStack) -> None:
        task, course = self._trial.task, self._course
        agent = self._phase_agent(stack)
        if not run_setup(course, task, agent, self._report):
            return
        course.witness = Witness(course.container(), self._masked)
        course.witness.setup_is_over(task)
        verifiable = run_agent(course, task, agent, self._report)
        if isinstance(agent, HostedAgent):
            agent.close()
        if not verifiable:
            return
        for name, content in run_verifier(course, task).items():
            (self._artifacts / name).write_bytes(self._masker.data(content))

    def _phase_agent(self, stack: ExitStack) -> PhaseAgent:
        if not self._on_host:
            return self._agent
        file = stack.enter_context(self._make_log("agent-host").part())
        hosted = HostedAgent(self._agent, file)
        stack.callback(hosted.close)
        return hosted

    def _remove(self, sandbox: Sandbox) -> None:
        """Remove the container; failing is noted and never a verdict."""
        self._course.intend(REMOVE, "the trial is over")
        try:
            gone = self._course.evidence.engine_answers is not False and self._try_to_remove(sandbox)
            self._leaked = not (gone or self._try_again(sandbox))
        except BaseException:
            # Told to stop in the middle: once more, because nobody else will before the next run.
            self._try_to_remove(sandbox)
            raise
        self._times["removed"] = time.time()

    def _try_again(self, sandbox: Sandbox) -> bool:
        return self._context.backend.ready(READY_SECONDS) and self._try_to_remove(sandbox)

    def _try_to_remove(self, sandbox: Sandbox) -> bool:
        try:
            return sandbox.remove()
        except SandboxError:
            return False

    def _sweep(self) -> None:
        """Remove what a create call may have left whose answer was lost."""
        if not self._course.evidence.start.engine_lost:
            return
        mine = {name: self._labels()[f"infranoise.{name}"] for name in ("run", "trial", "attempt")}
        try:
            self._context.backend.remove_labelled({f"infranoise.{name}": value for name, value in mine.items()})
        except SandboxError:
            self._leaked = True

    def _record(self, seconds: float) -> Record:
        try:
            decision = judge(self._course.evidence, self._context.policy)
            if isinstance(decision, ConfigMistake):
                raise TrialConfigError(self._trial.task, self._masker.text(decision.text))
            return self._make_record(decision, seconds, self._details(decision))
        except TrialConfigError:
            raise
        except Exception:
            # A record must be written whatever happens, also when what goes wrong is the writing.
            text = self._masker.text(traceback.format_exc())[-_MAX_TRACEBACK:]
            crash = Decision(Verdict.INFRA_ERROR, "0 void", "the runner failed while judging", Cause.HARNESS_CRASH)
            return self._make_record(crash, seconds, {"crash": text})

    def _make_record(self, decision: Decision, seconds: float, details: Mapping[str, Any]) -> Record:
        leaked = (Flag.LEAKED,) if self._leaked else ()
        return Record(
            run=self._context.run,
            key=self._trial.key,
            attempt=self._number,
            task_hash=self._trial.task.content_hash,
            verdict=decision.verdict,
            rule=decision.rule,
            summary=self._masker.text(decision.summary)[:_MAX_SUMMARY],
            cause=decision.cause,
            reason=decision.reason,
            flags=(*decision.flags, *leaked),
            reward=self._course.evidence.artefact.reward,
            worker=self._context.worker,
            started=self._times["queued"],
            seconds=round(seconds, 3),
            peak_memory=self._peak(),
            details=details,
        )

    def _peak(self) -> int | None:
        return max((phase.peak for phase in self._course.evidence.phases if phase.peak is not None), default=None)

    def _details(self, decision: Decision) -> dict[str, Any]:
        try:
            return make_details(self._parts(decision), self._masker)
        except Exception:
            # What an agent says of itself may be nothing that JSON holds; the decision does not rest on it.
            return {"details_lost": self._masker.text(traceback.format_exc())[-_MAX_TRACEBACK:]}

    def _parts(self, decision: Decision) -> dict[str, Any]:
        evidence = self._course.evidence.to_json()
        evidence["state"] = shortened_events(evidence["state"])
        evidence["artefact"]["text"] = self._masker.cut_text(evidence["artefact"]["text"])
        return {
            **evidence,
            "allocation": self._trial.allocation,
            "agent": agent_details(self._report),
            "times": self._times,
            "contradictions": decision.contradictions,
            **self._facts,
        }
