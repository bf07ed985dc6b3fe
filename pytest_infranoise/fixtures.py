"""The fixtures in which trials run, and what the process that runs them holds on to."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.collect import SPEC
from pytest_infranoise.collect import TrialSpec
from pytest_infranoise.journal import artifacts_dir
from pytest_infranoise.journal import ending_file
from pytest_infranoise.journal import file_name
from pytest_infranoise.journal import shown
from pytest_infranoise.journal import stop_file
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.model import Trial
from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import LOGS
from pytest_infranoise.outcomes import MASKER
from pytest_infranoise.outcomes import RECORD
from pytest_infranoise.outcomes import ConfigErrorReport
from pytest_infranoise.outcomes import InfraError
from pytest_infranoise.outcomes import add_properties
from pytest_infranoise.past import NO_PAST
from pytest_infranoise.past import Past
from pytest_infranoise.trials.expiry import Expiry
from pytest_infranoise.trials.expiry import TrialExpired

if TYPE_CHECKING:
    from pytest_infranoise.agents.protocol import Agent
    from pytest_infranoise.host import Owner
    from pytest_infranoise.policies import Policies
    from pytest_infranoise.prepare import Prepared
    from pytest_infranoise.run_lock import RunLock
    from pytest_infranoise.sandboxes.protocol import Backend
    from pytest_infranoise.sandboxes.protocol import Sandbox
    from pytest_infranoise.trials.runner import TrialContext
    from pytest_infranoise.trials.watch import Look

PROCESS = pytest.StashKey["TrialProcess"]()
# How long an engine that went away may take to come back before the run is stopped.
_ENGINE_GRACE = 30.0
_ROOM_GRACE = 5.0  # the same for an engine's full disk to have room again
_LOOK_STOPPED = 0.5  # seconds between looks, while waiting for a retry, whether the run was stopped
_LOOK_SECONDS = 5.0  # whoever looks whether the run is alive holds its lock for a moment


@dataclass
class TrialProcess:
    """A process that runs trials: this session's part of the run directory, the ledger and the engine."""

    run: str
    run_dir: Path
    name: str  # "main", or the xdist worker's
    past: Past = NO_PAST  # what earlier sessions of the run did
    controller: str | None = None  # the process that removes what this one leaves when it dies
    expiry: Expiry = field(default_factory=Expiry, init=False)
    _backend: Backend | None = field(default=None, init=False)
    _owner: Owner | None = field(default=None, init=False)
    _stopped: str | None = field(default=None, init=False)
    _prepared: Prepared | None = field(default=None, init=False)
    _lock: RunLock | None = field(default=None, init=False)

    @property
    def prepared(self) -> Prepared:
        """What the controller found out before the first trial."""
        from pytest_infranoise.prepare import Prepared

        if self._prepared is None:
            self._prepared = Prepared.read(self.run_dir)
        return self._prepared

    @property
    def backend(self) -> Backend:
        """The engine, connected at the first trial."""
        from pytest_infranoise.sandboxes.docker import DockerBackend

        if self._backend is None:
            self._backend = DockerBackend(self.run, host_ports=self.prepared.host_ports)
        return self._backend

    def admit(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        """Reserve a trial's floor (or ceiling) on this engine for as long as the context lasts.

        Entering it raises TrialNotWanted when the run is stopped meanwhile.
        """
        from pytest_infranoise.trials.runner import TrialNotWanted

        def still() -> None:
            reason = self.stopped(trial.task)
            if reason is not None:
                raise TrialNotWanted(reason)

        prepared, config = self.prepared, trial.key.config
        return self._owner_here().reserve(trial.allocation, prepared.capacity, prepared.admit, config, still)

    def _owner_here(self) -> Owner:
        from pytest_infranoise.host import Ledger

        if self._owner is None:
            self._owner = Ledger(self.prepared.engine.id).register(self.run, self.name, self.controller)
        return self._owner

    def stopped(self, task: Task) -> str | None:
        """Return why no trial of this task may start any more; None when it may."""
        if self._stopped is not None:
            return self._stopped
        for mark in (stop_file(self.run_dir), ending_file(self.run_dir), self._quarantine(task)):
            with contextlib.suppress(FileNotFoundError):
                return mark.read_text("utf-8")
        return None

    def stop(self, reason: str) -> bool:
        """Let no trial start any more, in any process of the run; False when another one had done that already."""
        self._stopped = reason
        # Whoever was first knows why; a full disk may be the reason.
        with contextlib.suppress(OSError):
            try:
                with stop_file(self.run_dir).open("x", encoding="utf-8") as file:
                    file.write(reason)
            except FileExistsError:
                return False
        return True

    def ended(self, record: Record, *, retried: bool = False) -> None:
        """Take in how an attempt ended, and stop the run when more trials make no sense.

        Breakers count trials: a ``retried`` one that goes wrong again is not another one that went wrong.
        """
        from pytest_infranoise.breakers import note_end

        try:
            reason = None if retried else note_end(self.run_dir, record)
        except OSError as error:
            reason = f"the run directory {self.run_dir} cannot be written to: {error}"
        if record.cause == "daemon-lost" and not self.backend.ready(_ENGINE_GRACE):
            reason = f"the engine is gone and did not come back within {_ENGINE_GRACE:.0f} s"
        if record.cause == "host-disk-full" and not self._has_room(_ROOM_GRACE):
            reason = "the engine's disk is full; make room there (`docker system df` shows what takes it)"
        if reason is not None:
            self.stop(reason)

    def _has_room(self, seconds: float) -> bool:
        """Whether the engine's disk has room, at the latest after some seconds; False also when nobody can tell."""
        from pytest_infranoise.breakers import has_room

        engine, give_up = self.prepared.engine, time.monotonic() + seconds
        while (room := has_room(engine.root, here=engine.here)) is False and time.monotonic() < give_up:
            time.sleep(_ROOM_GRACE / 10)
        return bool(room)

    def guard(self, policies: Policies) -> Callable[[Sandbox], Look] | None:
        """Return this process's part in guarding the host's memory; None where that cannot be, or is not wanted."""
        from pytest_infranoise.guard import Guard

        engine = self.prepared.engine
        reserve = policies.reserve_of(engine.memory)
        return Guard(self._owner_here(), reserve).look if reserve and engine.here else None

    def quarantine(self, task: Task, reason: str) -> bool:
        """Let no further trial of a task start; False when that had been done already."""
        mark = self._quarantine(task)
        mark.parent.mkdir(exist_ok=True)
        try:
            with mark.open("x", encoding="utf-8") as file:
                file.write(reason)
        except FileExistsError:
            return False
        return True

    def _quarantine(self, task: Task) -> Path:
        return self.run_dir / "quarantine" / file_name(task.name)

    def take_part(self) -> None:
        """Show that a worker of the run is alive, before it can be given anything to do."""
        from pytest_infranoise.run_lock import worker_lock

        self._lock = worker_lock(self.run_dir)
        self._lock.acquire(_LOOK_SECONDS, shared=True)

    def close(self) -> None:
        """Let go of the engine, the ledger and the run."""
        if self._owner is not None:
            self._owner.close()
        if self._backend is not None:
            self._backend.close()
        # Last: whoever goes on with the run takes this for the end of all that was held.
        if self._lock is not None:
            self._lock.release()


@pytest.fixture(scope="session")
def infranoise_backend(request: pytest.FixtureRequest) -> Backend:
    """The engine that trials run on."""
    return request.config.stash[PROCESS].backend


@pytest.fixture
def infranoise_agent(request: pytest.FixtureRequest) -> Agent:
    """The agent of this trial."""
    from pytest_infranoise.agents.protocol import AgentContext
    from pytest_infranoise.agents.secrets import masker_for

    spec: TrialSpec = request.node.stash[SPEC]
    # Making it may raise and say what it was given.
    request.node.stash[MASKER] = masker_for(None, spec.agent, spec.task)
    context = AgentContext(spec.agent, spec.task, spec.key, request.config.stash[SETTINGS].seed)
    agent: Agent = request.config.hook.pytest_infranoise_make_agent(context=context)
    return agent


@pytest.fixture
def infranoise_trial(
    request: pytest.FixtureRequest, infranoise_backend: Backend, infranoise_agent: Agent
) -> Record:
    """The record of this trial, which is run here, in the setup phase."""
    from pytest_infranoise.agents.secrets import masker_for

    spec: TrialSpec = request.node.stash[SPEC]
    process = request.config.stash[PROCESS]
    request.node.stash[MASKER] = masker_for(infranoise_agent, spec.agent, spec.task)
    record: Record | None = request.node.stash.get(RECORD, None)
    # A plugin that runs failed tests again gets the same answer: another attempt would be another sample.
    if record is None:
        skip_if_stopped(process, spec.task)
        # Whatever may be ended while it lasts exposes itself.
        with process.expiry.shield():
            record = _run(request.node, process, spec, infranoise_backend, infranoise_agent)
    if record.verdict is Verdict.INFRA_ERROR:
        raise InfraError(record)
    return record


def _run(item: pytest.Item, process: TrialProcess, spec: TrialSpec, backend: Backend, agent: Agent) -> Record:
    from pytest_infranoise.resource_configs import make_trial
    from pytest_infranoise.trials.runner import run_trial

    trial = make_trial(spec.key, spec.task, spec.config, spec.agent)
    context = trial_context(item.config, process, backend)
    try:
        with mistakes_told(process, spec.task):
            record = run_trial(trial, agent, context, process.past.attempt(trial.key))
    except NotRun:
        skip_if_stopped(process, spec.task)
        raise
    # At once: whatever comes of what follows, the trial has its record.
    item.stash[RECORD] = record
    item.stash[LOGS] = shown(artifacts_dir(process.run_dir, record.key, record.attempt))
    add_properties(item, record)
    process.ended(record)
    with contextlib.suppress(ConfigErrorReport):  # of a retry, of which the run is told
        _retry(item.config, process, trial, context, record)
    return record


def _retry(
    config: pytest.Config, process: TrialProcess, trial: Trial, context: TrialContext, record: Record
) -> None:
    """Make further attempts at a trial whose outcome is unknown, as far as the user wants them."""
    from pytest_infranoise.retries import may_retry
    from pytest_infranoise.retries import pause_before
    from pytest_infranoise.trials.runner import run_trial

    settings = config.stash[SETTINGS]
    again = replace(context, image=lambda task: process.prepared.image_now(task, context.backend))
    first = record.attempt
    while may_retry(record, settings.policies.retries, made := record.attempt - first):
        may = False
        with contextlib.suppress(TrialExpired), process.expiry.expose():
            may = waited(process, trial.task, pause_before(record, made))
        if not may or process.expiry.expired:
            return
        agent = _agent_again(config, process, trial)
        if agent is None:
            return
        with mistakes_told(process, trial.task):
            record = run_trial(trial, agent, again, record.attempt + 1)
        process.ended(record, retried=True)


def _agent_again(config: pytest.Config, process: TrialProcess, trial: Trial) -> Agent | None:
    """Return the agent of another attempt; None when it cannot be made, or when time is over."""
    from pytest_infranoise.agents.protocol import AgentContext
    from pytest_infranoise.agents.secrets import masker_for

    asked = AgentContext(trial.agent, trial.task, trial.key, config.stash[SETTINGS].seed)
    agent: Agent | None = None
    try:
        with contextlib.suppress(TrialExpired), process.expiry.expose():
            agent = config.hook.pytest_infranoise_make_agent(context=asked)
    except pytest.exit.Exception:
        raise
    # A plugin's own code, which may also say what pytest understands; the trial has its record.
    except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:
        text = masker_for(None, trial.agent, trial.task).text(f"{type(error).__name__}: {error}")
        warnings.warn(f"{trial.key} is not tried again: its agent could not be made: {text}", stacklevel=1)
    return None if process.expiry.expired else agent


def waited(process: TrialProcess, task: Task, seconds: float) -> bool:
    """Wait before a trial of a task is tried again; whether it still may, which is asked all the while."""
    give_up = time.monotonic() + seconds
    while process.stopped(task) is None:
        left = give_up - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, _LOOK_STOPPED))
    return False


def trial_context(config: pytest.Config, process: TrialProcess, backend: Backend) -> TrialContext:
    """Return what this process gives to each of its trials."""
    from pytest_infranoise.journal import Journal
    from pytest_infranoise.trials.runner import TrialContext

    settings = config.stash[SETTINGS]
    return TrialContext(
        run=process.run,
        run_dir=process.run_dir,
        worker=process.name,
        host=process.prepared.place,
        backend=backend,
        journal=Journal(process.run_dir, process.name),
        pass_threshold=settings.pass_threshold,
        image=process.prepared.image,
        admit=process.admit,
        oom_child=settings.policies.oom_child,
        oom_mode=settings.policies.oom_mode,
        guard=process.guard(settings.policies),
        expiry=process.expiry,
    )


class NotRun(ConfigErrorReport):
    """Why a trial cannot run was told by another one."""


def skip_if_stopped(process: TrialProcess, task: Task) -> None:
    """Skip the rest of a test when no trial of its task may start any more."""
    reason = process.stopped(task)
    if reason is not None:
        pytest.skip(f"not run: {reason}")


@contextlib.contextmanager
def mistakes_told(process: TrialProcess, task: Task) -> Iterator[None]:
    """Report what is no trial's result.

    A mistake stops the task, or the run where it is not the task's; an engine without limits stops the run.
    """
    from pytest_infranoise.sandboxes.protocol import EnforcementError
    from pytest_infranoise.trials.runner import TrialConfigError
    from pytest_infranoise.trials.runner import TrialNotWanted

    try:
        yield
    except TrialNotWanted as error:
        raise NotRun(f"{task.file}: {error}") from None
    except TrialConfigError as error:
        if error.stops_run:
            first = process.stop(str(error))
        else:
            first = process.quarantine(task, f"CONFIG-ERROR in task {task.name!r}: {error}")
        report = ConfigErrorReport if first else NotRun
        raise report(f"run stopped: {error}" if error.stops_run else f"{task.file}: {error}") from None
    except OSError as error:
        process.stop(f"the run directory {process.run_dir} cannot be written to: {error}")
        raise ConfigErrorReport(f"run stopped: {process.run_dir} cannot be written to: {error}") from None
    except EnforcementError as error:
        process.stop(f"the engine does not enforce the limits it was given: {error}")
        raise ConfigErrorReport(f"run stopped: the engine does not enforce limits: {error}") from None
