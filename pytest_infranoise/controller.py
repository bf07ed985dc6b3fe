"""The session's controller: what was planned, what was recorded, and what the exit status says about it.

It lives in the process that the user started: the only one without xdist, the controller with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import replace
from datetime import UTC
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise.exit_status import exit_status
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import Run
from pytest_infranoise.journal import ending_file
from pytest_infranoise.journal import new_run_id
from pytest_infranoise.journal import read_journal
from pytest_infranoise.journal import read_run
from pytest_infranoise.journal import shown
from pytest_infranoise.journal import stop_file
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict
from pytest_infranoise.outcomes import attached
from pytest_infranoise.outcomes import has_no_verdict
from pytest_infranoise.past import NO_PAST
from pytest_infranoise.policies import published
from pytest_infranoise.scheduler.budget import NOTHING
from pytest_infranoise.settings import Settings

if TYPE_CHECKING:
    from pytest_infranoise.host import Ledger
    from pytest_infranoise.host import Owner
    from pytest_infranoise.model import Task
    from pytest_infranoise.plan import Plan
    from pytest_infranoise.plan import PlannedTrial
    from pytest_infranoise.prepare import Prepared
    from pytest_infranoise.resume import Resumed
    from pytest_infranoise.sandboxes.docker import DockerBackend
    from pytest_infranoise.scheduler.budget import Capacity
    from pytest_infranoise.scheduler.budget import Need

WORKER_LABEL = "infranoise.worker"
# How long the ledger may take to show that those are gone of whom the run's own locks say so.
_ALONE_SECONDS = 2.0


class Controller:
    """One session, from the plan to the exit status.

    ``accept`` and ``begin`` are called once everything is collected, ``finish`` when nothing runs any more. A
    session in which no task was collected never gets a plan, and then nothing here does anything.
    """

    def __init__(
        self, settings: Settings, root: Path, workers: int, hook: Any = None, resumed: Resumed | None = None
    ) -> None:
        if resumed is not None:
            from pytest_infranoise.resume import contradictions

            problems = [*settings.toml_errors, *contradictions(settings, resumed.run.meta)]
            if problems:
                raise pytest.UsageError("\n".join(f"--infranoise-resume: {problem}" for problem in problems))
        self.settings = settings
        self.run = resumed.id if resumed else new_run_id(datetime.now(UTC))
        self.run_dir = resumed.path if resumed else settings.runs_dir / self.run
        self.session = resumed.session if resumed else 1
        self.past = resumed.past if resumed else NO_PAST
        self.adopted: Mapping[str, Any] = resumed.adopted if resumed else {}
        self._resumed = resumed
        self._lock = resumed.lock if resumed else None
        self._asked = False
        self.others_failed = False
        self._failures = 0
        self._leftovers = ""
        self.lines: list[str] = []
        self._root = root
        self._workers = workers
        self._hook = hook
        self._tasks: Sequence[Task] = ()
        self._plan: Plan | None = None
        self._trials: dict[str, PlannedTrial] = {}
        self._meta: dict[str, Any] = {}
        self._backend: DockerBackend | None = None
        self._owner: Owner | None = None
        self._ledger: Ledger | None = None
        self._records: tuple[Record, ...] = ()
        # Trials by node id that are to be run, once the run has begun, and what their floors are shared out of.
        self.runnable: dict[str, PlannedTrial] = {}
        self.capacity: Capacity | None = None
        self._render: Callable[[int], list[str]] = lambda width: []

    def accept(self, plan: Plan, tasks: Sequence[Task] = ()) -> None:
        """Take a plan and the tasks in it; under xdist the first worker's, which all others have too.

        Raises:
            pytest.UsageError: it has mistakes of the user's.
        """
        if plan.problems:
            self._drop_empty_run_dir()
            raise pytest.UsageError("\n".join(plan.problems))
        if self._plan is None:
            self._plan, self._tasks = plan, tasks
        self._trials = {trial.nodeid: trial for trial in self._plan.trials}

    def process_name(self, worker: str) -> str:
        """Return what a process is called in the run: no other session's has the same name."""
        return worker if self.session == 1 else f"{worker}-s{self.session}"

    @property
    def begun(self) -> bool:
        """Whether the run has begun."""
        return self._backend is not None

    def begin(self, say: Callable[[str], None]) -> None:
        """Check everything and get everything ready, so that the first trial can start.

        Raises:
            pytest.UsageError: the user has to change something first.
        """
        self._asked = True
        if self._plan is not None and self._plan.trials and self._backend is None:
            self._open(self._plan, say)

    def _open(self, plan: Plan, say: Callable[[str], None]) -> None:
        from pytest_infranoise import prepare
        from pytest_infranoise.config_notes import Host
        from pytest_infranoise.config_notes import config_notes
        from pytest_infranoise.host import Ledger
        from pytest_infranoise.host import RunAlive
        from pytest_infranoise.run_meta import plan_meta
        from pytest_infranoise.sandboxes.docker import DockerBackend
        from pytest_infranoise.units import plural

        self._make_run_dir()
        self._backend = DockerBackend(self.run, host_ports=self.settings.policies.allow_host_port)
        try:
            self._hold_run()
            # First, so that `infranoise clean` sees a living run before it has any image.
            self._ledger = ledger = Ledger(prepare.engine_of(self._backend).id)
            self._owner = ledger.register_first(self.run, self.process_name("controller"), _ALONE_SECONDS)
            prepared = prepare.prepare(plan, self._backend, say, self.settings.schedule)
            self._owner.hold_images(prepared.images.values())
            self._check_engine(prepared)
            prepare.sweep_dead_runs(self._backend, ledger, say, resumed=self.run if self._resumed else None)
            prepared = replace(prepared, place=ledger.place, host_ports=self.settings.policies.allow_host_port)
            prepared.write(self.run_dir)
            isolation = prepare.isolation(plan, self._backend, ledger.place)
        except prepare.PreparationError as error:
            raise pytest.UsageError(str(error)) from None
        except RunAlive:
            raise pytest.UsageError(
                f"--infranoise-resume: another session is at work on run {self.run}, in another directory than "
                f"{self.run_dir}: one of the two is a copy; wait for its end, or end it"
            ) from None
        except OSError as error:
            raise pytest.UsageError(
                f"cannot keep the run's files: {error}; make room, or give --infranoise-run-dir (for the ledger of "
                "floors: the variable INFRANOISE_STATE_DIR) a place that can be written to"
            ) from None
        self._clear_marks()
        preflight = self._preflight(plan, prepared, say) if self.settings.preflight else None
        plan = self._without(plan, preflight["quarantined"] if preflight is not None else self._still_quarantined())
        self.capacity = prepared.capacity
        self.runnable = {trial.nodeid: trial for trial in plan.trials}
        line = prepare.enforcement(prepared.engine, prepared.capacity, prepared.admit)
        self._meta = {
            **plan_meta(self.run, plan, self.settings, self._workers),
            "engine": asdict(prepared.engine),
            "capacity": asdict(prepared.capacity),
            "enforcement": line,
            "isolation": isolation,
            "policy": published(
                self.settings.policies,
                self.settings.policies.reserve_of(prepared.engine.memory) if prepared.engine.here else None,
            ),
            "config_notes": [
                *config_notes(
                    self.settings.configs,
                    [(trial.key.task, trial.key.config, trial.allocation) for trial in plan.trials],
                    Host(prepared.engine.cpus, prepared.engine.memory),
                ),
                *plan.notes,
            ],
            "images": dict(prepared.images),
            "preflight": preflight,
            **prepare.provenance(self._root),
        }
        self._meta = self._with_sessions(self._meta, plan)
        write_meta(self.run_dir, self._meta)
        tasks = len({trial.key.task for trial in plan.trials})
        goes_on = f", session {self.session}" if self._resumed else ""
        say(f"infranoise: {plural(len(plan.trials), 'trial')} of {plural(tasks, 'task')}, run {self.run}{goes_on}")
        for note in self._meta["run_notes"][1:]:  # the first only counts sessions
            say(f"infranoise: {note}")

    def _with_sessions(self, meta: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
        """Return what ``run.json`` is to say, with what earlier sessions did."""
        from pytest_infranoise import sessions

        hashes = {task.name: task.content_hash for task in plan.tasks}
        again = sum(self.past.reruns(trial.key, hashes.get(trial.key.task, "")) for trial in plan.trials)
        mine = sessions.entry(meta, trials=len(plan.trials), again=again)
        named = [task.name for task in plan.tasks if task.image is not None]
        return sessions.continued(self._resumed.run if self._resumed else None, meta, mine, named)

    def _hold_run(self) -> None:
        """Show that this run is alive.

        Raises:
            OSError: there can be no lock in its directory.
        """
        from pytest_infranoise.run_lock import session_lock

        if self._lock is None:
            self._lock = session_lock(self.run_dir)
            self._lock.acquire()

    def _check_engine(self, prepared: Prepared) -> None:
        from pytest_infranoise.prepare import PreparationError
        from pytest_infranoise.resume import engine_contradictions

        if self._resumed is None:
            return
        found = engine_contradictions(self._resumed.run.meta.get("engine") or {}, asdict(prepared.engine))
        if found:
            raise PreparationError(
                f"--infranoise-resume: {'; '.join(found)} when the run began: its trials would not be alike. "
                "Start a run of its own here, and see `infranoise merge`"
            )

    def _preflight(self, plan: Plan, prepared: Prepared, say: Callable[[str], None]) -> dict[str, Any]:
        """Check the tasks, and let no trial of those start that are not fit; returns it all for ``run.json``."""
        from pytest_infranoise import preflight
        from pytest_infranoise.fixtures import TrialProcess
        from pytest_infranoise.prepare import PreparationError
        from pytest_infranoise.sandboxes.docker import DockerBackend

        config = self.settings.baseline
        setting = preflight.Setting(
            run=self.run,
            run_dir=self.run_dir,
            config=config,
            seed=self.settings.seed,
            pass_threshold=self.settings.pass_threshold,
            prepared=prepared,
            make_agent=lambda context: self._hook.pytest_infranoise_make_agent(context=context),
            backend=lambda: DockerBackend(self.run, host_ports=prepared.host_ports),
        )
        selected = {task.name for task in plan.tasks}
        tasks = {task.name: task for task in self._tasks if task.name in selected}
        try:
            found = preflight.check_tasks(list(tasks.values()), setting, say)
        except PreparationError as error:
            raise pytest.UsageError(str(error)) from None
        quarantined = {fitness.task: fitness.problem for fitness in found if fitness.problem is not None}
        process = TrialProcess(self.run, self.run_dir, "controller")
        for name, problem in quarantined.items():
            process.quarantine(tasks[name], f"quarantined by preflight: {problem}")
        return {
            "config": config.name,
            "quarantined": quarantined,
            "unchecked": sorted(selected - {fitness.task for fitness in found}),
            "tasks": {fitness.task: fitness.to_json() for fitness in found},
        }

    def _still_quarantined(self) -> Mapping[str, str]:
        """Return what an earlier session's preflight found unfit, where this one makes none."""
        meta = self._resumed.run.meta if self._resumed else {}
        return {} if self.settings.preflight else (meta.get("preflight") or {}).get("quarantined", {})

    def _clear_marks(self) -> None:
        from pytest_infranoise.resume import clear_marks

        if self._resumed is not None:
            clear_marks(self.run_dir, self._still_quarantined())

    def _without(self, plan: Plan, quarantined: Mapping[str, str]) -> Plan:
        """Return the plan without the trials of some tasks, which are told as skipped for a reason instead."""
        reasons = {name: f"quarantined by preflight: {problem}" for name, problem in quarantined.items()}
        trials = tuple(trial for trial in plan.trials if trial.key.task not in quarantined)
        return replace(plan, trials=trials, skipped={**plan.skipped, **reasons})

    def _make_run_dir(self) -> None:
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(
                f"--infranoise-run-dir: cannot make {self.run_dir} ({error.strerror}); give a directory that "
                "can be written to"
            ) from None

    def outside(self) -> tuple[Need, bool]:
        """Return what other sessions hold or wait for, and whether a trial of this one waits for them."""
        if self._ledger is None:
            return NOTHING, False
        return self._ledger.outside(self.run)

    def end_waiting(self, reason: str) -> None:
        """Have trials give up that wait for their floor, for however long; what runs goes on to its end."""
        with contextlib.suppress(OSError):  # then they wait
            ending_file(self.run_dir).write_text(reason, "utf-8")

    @property
    def records(self) -> tuple[Record, ...]:
        """The run's records, once it is over."""
        return self._records

    def saw_report(self, report: Any) -> None:
        """Notice failures that have nothing to do with us: they decide the exit status first."""
        if not report.failed:
            return
        self._failures += 1
        ours = attached(report) is not None or has_no_verdict(report)
        if not (ours and report.nodeid in self._trials):
            self.others_failed = True

    def saw_failures(self, number: int) -> None:
        """Notice failures that came without a report, as a coverage threshold's does."""
        if number > self._failures:
            self.others_failed = True

    def worker_died(self, worker: str) -> None:
        """Remove what a dead worker left on the engine, and only then let others have its floor."""
        try:
            self._remove({WORKER_LABEL: worker})
        finally:
            # Also when its container could not be removed: trials of this run may need the floor to go on.
            if self._ledger is not None:
                with contextlib.suppress(OSError):
                    self._ledger.drop(self.run, worker)

    def _remove(self, labels: Mapping[str, str] | None = None) -> None:
        """Remove the run's containers and networks; an engine that is gone stops nothing, and is told."""
        from pytest_infranoise.removal import remove

        if self._backend is not None:
            self._leftovers = remove(self._backend, self.run, labels)

    def has(self, nodeid: str) -> bool:
        """Whether an item is a trial of this session."""
        return nodeid in self._trials

    def trial_crashed(self, nodeid: str, worker: str, *, stopped: bool = False) -> Record | None:
        """Return the record of the trial that a dead worker had; None when it was none of ours.

        When the worker did not die but was ``stopped``, a trial that it had not finished is missing, as in any
        session that is interrupted.

        The worker may have finished it and died before anybody heard; then its journal has the record, and that
        one counts.
        """
        trial = self._trials.get(nodeid)
        if trial is None:
            return None
        finished, started = read_journal(self.run_dir, worker)
        for record in finished:
            if record.key == trial.key:
                return record
        if stopped:
            return None
        began = any(entry.key == trial.key for entry in started)
        record = Record(
            run=self.run,
            key=trial.key,
            attempt=self.past.attempt(trial.key),
            task_hash=self._task_hash(trial.key.task),
            verdict=Verdict.INFRA_ERROR,
            cause=Cause.HARNESS_CRASH,
            rule="0 worker died",
            summary=f"worker {worker} died " + ("while it ran the trial" if began else "before the trial began"),
            worker="controller",
            started=datetime.now(UTC).timestamp(),
        )
        Journal(self.run_dir, "controller").finished(record)
        return record

    def _task_hash(self, name: str) -> str:
        tasks = self._plan.tasks if self._plan is not None else ()
        return next((task.content_hash for task in tasks if task.name == name), "")

    def finish(self, status: int, stopped_early: str | None) -> int:
        """Leave nothing on the engine, sum up, and return the exit status."""
        if self._backend is None:
            if self._resumed is not None and self._plan is not None and self._asked:
                return self._finish_idle(status, read_run(self.run_dir))
            self._drop_empty_run_dir()
            return status
        if not self._meta:  # preparation failed or was broken off: there is no run to speak of
            if self._owner is not None:  # else what is there is another session's
                self._remove()
            self._close()
            self._drop_empty_run_dir()
            self._render = lambda width: [self._leftovers] if self._leftovers else []
            return status
        self._remove()
        self._close()
        self._meta["finished"] = now = datetime.now(UTC).isoformat(timespec="seconds")
        self._meta["sessions"][-1]["finished"] = now
        run = self._with_privileges(read_run(shown(self.run_dir)))
        before = self._meta["cut_short"] if run.missing else self._meta["outcome_selection"]
        self._meta["cut_short"] = self._stopped() or stopped_early or before
        self._records = run.records
        from pytest_infranoise.scheduler.start_times import start_facts

        self._meta["schedule"] = {**self._meta["schedule"], **start_facts(run.records)}
        try:
            write_meta(self.run_dir, self._meta)
        except OSError as error:
            self._leftovers = f"{self._leftovers} run.json could not be completed: {error}".strip()
        return self._sum_up(status, run)

    def _stopped(self) -> str | None:
        """Return why the run was stopped from within, in words for the summary."""
        with contextlib.suppress(OSError):
            return f"the run was stopped: {stop_file(self.run_dir).read_text('utf-8')}"
        return None

    def _with_privileges(self, run: Run) -> Run:
        """Add to ``run.json`` what the containers were allowed, which only they can tell."""
        from pytest_infranoise.prepare import privileges

        self._meta["isolation"]["privileges"] = privileges(run.records)
        return replace(run, meta=self._meta)

    def _finish_idle(self, status: int, run: Run) -> int:
        """Sum up a run in which there was nothing left to run."""
        self._drop_empty_run_dir()
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            status = pytest.ExitCode.OK
        if not run.missing and not run.meta.get("finished"):  # killed after its last trial
            now = datetime.now(UTC).isoformat(timespec="seconds")
            run = replace(run, meta={**run.meta, "finished": now, "cut_short": run.meta.get("outcome_selection")})
            write_meta(self.run_dir, run.meta)
        return self._sum_up(status, replace(run, path=shown(self.run_dir)))

    def _sum_up(self, status: int, run: Run) -> int:
        from pytest_infranoise.analysis import analyse
        from pytest_infranoise.gates import evaluate
        from pytest_infranoise.gates import parse_gate
        from pytest_infranoise.reports.terminal import render
        from pytest_infranoise.reports.terminal import render_gates

        analysis = analyse(run)
        gates = tuple(evaluate(parse_gate(text), analysis) for text in self.settings.gates)
        notes = [self._leftovers] if self._leftovers else []
        self._render = lambda width: [*render(analysis, width), *notes, *render_gates(gates, width)]
        return exit_status(
            status,
            others_failed=self.others_failed,
            missing=len(run.missing),
            quarantined=len((run.meta.get("preflight") or {}).get("quarantined", ())),
            gates=gates,
            bad_trials=sum(record.verdict is not Verdict.PASS for record in run.records),
        )

    def summary(self, width: int) -> list[str]:
        """Return the lines to print at the end; none when there was nothing to measure."""
        return self._render(width)

    def _drop_empty_run_dir(self) -> None:
        for file in self.run_dir.glob("plan-*"):
            file.unlink()
        if self._resumed is None:
            self.let_go()
            for file in (*self.run_dir.glob("*.lock"), *self.run_dir.glob("prepared.json")):
                file.unlink()
        with contextlib.suppress(OSError):
            self.run_dir.rmdir()

    def let_go(self) -> None:
        """Let others go on with the run."""
        if self._lock is not None:
            self._lock.release()

    def _close(self) -> None:
        if self._owner is not None:
            self._owner.close()
        if self._backend is not None:
            self._backend.close()
