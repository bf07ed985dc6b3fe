"""The preflight: before anything is measured, every task's oracle has to pass and doing nothing has not to.

It runs in the controller, several tasks at a time as far as their floors allow. Its trials are real ones with
records and logs of their own, in a directory apart, so that none of them enters a rate.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_infranoise.agents.protocol import Agent
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.fitness import NOP
from pytest_infranoise.fitness import ORACLE
from pytest_infranoise.fitness import Fitness
from pytest_infranoise.fitness import Outcome
from pytest_infranoise.fitness import judge
from pytest_infranoise.fitness import outcome_of
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import Owner
from pytest_infranoise.journal import Journal
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.model import Trial
from pytest_infranoise.model import TrialKey
from pytest_infranoise.prepare import PreparationError
from pytest_infranoise.prepare import Prepared
from pytest_infranoise.progress import POLL_SECONDS
from pytest_infranoise.progress import Progress
from pytest_infranoise.resource_configs import make_trial
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.runner import TrialConfigError
from pytest_infranoise.trials.runner import TrialContext
from pytest_infranoise.trials.runner import run_trial
from pytest_infranoise.units import plural

DIRECTORY = "preflight"
_MOST_LANES = 16
_ENGINE_GRACE = 30.0  # seconds that an engine which went away may take to come back
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What the controller knows that a preflight needs.

    Args:
        run: the run's id.
        run_dir: its directory.
        config: the baseline.
        seed: the run's seed.
        pass_threshold: the smallest reward that is a pass.
        prepared: engine, capacity and images.
        make_agent: makes an agent; raises ValueError when it cannot work on the task.
        backend: makes a connection to the engine; every lane has one of its own.
    """

    run: str
    run_dir: Path
    config: ResourceConfig
    seed: int
    pass_threshold: float
    prepared: Prepared
    make_agent: Callable[[AgentContext], Agent | None]
    backend: Callable[[], Backend]


class _Stopped(BaseException):
    """The preflight is over before its end; passes through everything that keeps a trial's errors."""


def check_tasks(tasks: Sequence[Task], setting: Setting, say: Callable[[str], None]) -> list[Fitness]:
    """Check tasks, and say how it goes; what has no image is left to its trials, which say so.

    Raises:
        PreparationError: the engine is gone, or does not enforce limits.
    """
    wanted = [task for task in tasks if task.name in setting.prepared.images]
    if not wanted:
        return []
    (setting.run_dir / DIRECTORY).mkdir(exist_ok=True)
    say(f"infranoise: preflight: oracle and nop of {plural(len(wanted), 'task')} under {setting.config.name}")
    progress = Progress(say, "preflight", len(wanted))
    found: list[Fitness] = []
    with _lanes(wanted, setting, progress) as results:
        while len(found) < len(wanted):
            result = _next(results)
            if isinstance(result, Fitness):
                found.append(result)
                progress.done()
                for text in (result.problem and f"quarantined: {result.problem}", *result.notes):
                    if text:
                        say(f"infranoise: preflight: {result.task}: {text.splitlines()[0]}")
            elif result is not None:
                raise result
            progress.tick()
    fit = sum(fitness.problem is None for fitness in found)
    say(f"infranoise: preflight: {fit} of {len(found)} tasks are fit, in {progress.seconds:.0f} s")
    order = {task.name: place for place, task in enumerate(wanted)}
    return sorted(found, key=lambda fitness: order[fitness.task])


def _next(results: queue.SimpleQueue[Fitness | BaseException]) -> Fitness | BaseException | None:
    try:
        return results.get(timeout=POLL_SECONDS)
    except queue.Empty:
        return None


@contextlib.contextmanager
def _lanes(
    tasks: Sequence[Task], setting: Setting, progress: Progress
) -> Iterator[queue.SimpleQueue[Fitness | BaseException]]:
    """Let tasks be checked by threads for as long as the context lasts; yields where results come in."""
    todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        todo.put(task)
    results: queue.SimpleQueue[Fitness | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    number = max(1, min(len(tasks), int(setting.prepared.capacity.cpus), _MOST_LANES))
    lanes = [_Lane(f"preflight-{place}", setting, progress, stopped) for place in range(number)]
    # Daemons: one may wait for a floor that another session holds, and nobody waits for it when all is over.
    threads = [threading.Thread(target=lane.work, args=(todo, results), daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        yield results
    except BaseException:
        stopped.set()
        _end(threads, setting)
        raise
    for thread in threads:
        thread.join()


def _end(threads: Sequence[threading.Thread], setting: Setting) -> None:
    """Take the containers from under the trials that still run, so that they end."""
    deadline = time.monotonic() + _STOP_SECONDS
    with closing(setting.backend()) as backend:
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            with contextlib.suppress(SandboxError):
                backend.remove_labelled({"infranoise.run": setting.run})
            for thread in threads:
                thread.join(POLL_SECONDS / len(threads))
        with contextlib.suppress(SandboxError):
            backend.remove_labelled({"infranoise.run": setting.run})


class _Lane:
    """One thread that checks tasks, with its own connection, journal and place in the ledger."""

    def __init__(self, name: str, setting: Setting, progress: Progress, stopped: threading.Event) -> None:
        self._name = name
        self._setting = setting
        self._progress = progress
        self._stopped = stopped

    def work(self, todo: queue.SimpleQueue[Task], results: queue.SimpleQueue[Fitness | BaseException]) -> None:
        """Check tasks until there are no more."""
        setting = self._setting
        try:
            with (
                closing(setting.backend()) as backend,
                # Here, because a lock belongs to the thread that took it.
                closing(Ledger(setting.prepared.engine.id).register(setting.run, self._name)) as owner,
            ):
                context = self._context(backend, owner)
                while not self._stopped.is_set():
                    results.put(self._check(todo.get_nowait(), context))
        except (queue.Empty, _Stopped):
            return
        except EnforcementError as error:
            results.put(PreparationError(f"preflight: the engine does not enforce limits: {error}"))
        except BaseException as error:
            results.put(error)

    def _context(self, backend: Backend, owner: Owner) -> TrialContext:
        setting = self._setting

        @contextlib.contextmanager
        def admit(trial: Trial) -> Iterator[Mapping[str, Any]]:
            with owner.reserve(trial.allocation, setting.prepared.capacity, setting.prepared.admit) as granted:
                if self._stopped.is_set():
                    raise _Stopped
                yield granted

        run_dir = setting.run_dir / DIRECTORY
        return TrialContext(
            run=setting.run,
            run_dir=run_dir,
            worker=self._name,
            host=setting.prepared.place,
            backend=backend,
            journal=Journal(run_dir, self._name),
            pass_threshold=setting.pass_threshold,
            image=setting.prepared.image,
            admit=admit,
        )

    def _check(self, task: Task, context: TrialContext) -> Fitness:
        config = self._setting.config
        oracle = uncapped = None
        notes: tuple[str, ...] = ()
        try:
            oracle = self._run(task, ORACLE, config, context)
        except ValueError as error:
            notes = (f"only nop was run: {error}",)
        if oracle is not None and oracle.killed and not oracle.passed:
            uncapped = self._run(task, ORACLE, _without_ceiling(config), context)
        return judge(task.name, oracle, uncapped, self._run(task, NOP, config, context), notes)

    def _run(self, task: Task, agent: str, config: ResourceConfig, context: TrialContext) -> Outcome:
        """Run a trial, a second time if the first tells nothing about the task.

        Raises:
            ValueError: the agent cannot work on this task.
        """
        key = TrialKey(agent, "", task.name, config.name, 0)
        trial = make_trial(key, task, config, AgentChoice(agent, kind=agent))
        label = f"{agent} of {task.name}"
        outcome = None
        self._agent(trial)
        self._progress.begins(label)
        try:
            for attempt in range(2):
                outcome = self._attempt(trial, context, attempt)
                if not outcome.inconclusive:
                    break
            return outcome or Outcome(agent, config.name, None, "not run")
        finally:
            self._progress.ends(label)

    def _agent(self, trial: Trial) -> Agent:
        context = AgentContext(trial.agent, trial.task, trial.key, self._setting.seed)
        agent = self._setting.make_agent(context)
        if agent is None:
            raise ValueError(f"no plugin makes the agent {trial.agent.name!r}")
        return agent

    def _attempt(self, trial: Trial, context: TrialContext, attempt: int) -> Outcome:
        if self._stopped.is_set():
            raise _Stopped
        try:
            record = run_trial(trial, self._agent(trial), context, attempt)
        except TrialConfigError as error:
            if error.stops_run:
                raise PreparationError(f"preflight: {error.text}") from None
            return Outcome(trial.key.agent, trial.key.config, None, error.text)
        if record.cause == "daemon-lost" and not context.backend.ready(_ENGINE_GRACE):
            raise PreparationError("preflight: the engine is gone and did not come back")
        return outcome_of(record)


def _without_ceiling(config: ResourceConfig) -> ResourceConfig:
    """Return the same config without a memory ceiling; CPU and time stay as they are."""
    memory = replace(config.memory, ceiling=None, own=False)
    return replace(config, name=f"{config.name}-memory-uncapped", memory=memory)
