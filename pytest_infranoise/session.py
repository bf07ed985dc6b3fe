"""Where pytest's session meets the controller and the processes that run trials.

Without xdist one process is both. With xdist the controller's process collects and runs nothing itself: workers
collect, write their plan into the run directory, and wait until the controller has looked at it.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise import outcomes
from pytest_infranoise.collect import MARKED
from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.collect import SPEC
from pytest_infranoise.collect import TASK_FILES
from pytest_infranoise.collect import is_trial
from pytest_infranoise.controller import Controller
from pytest_infranoise.fixtures import PROCESS
from pytest_infranoise.fixtures import TrialProcess
from pytest_infranoise.interrupts import Interrupts
from pytest_infranoise.model import Task
from pytest_infranoise.model import Verdict
from pytest_infranoise.past import NO_PAST
from pytest_infranoise.past import Past
from pytest_infranoise.past import past_file
from pytest_infranoise.settings import read_settings

if TYPE_CHECKING:
    from pytest_infranoise.resume import Resumed
    from pytest_infranoise.scheduler.xdist import TrialScheduling

PAST = pytest.StashKey[Past]()
HAS_TRIALS = pytest.StashKey[bool]()
_CONTROLLER = "infranoise-controller"
_INTERRUPTS = pytest.StashKey[Interrupts]()
_SHOWN_ERRORS = 30
_STOPPED = "keyboard-interrupt"  # what xdist says of a worker that was told to stop


def configure(config: pytest.Config) -> None:
    """Set up this process's part: a worker is told by the controller which run it is part of.

    Raises:
        pytest.UsageError: an option is wrong.
    """
    told = getattr(config, "workerinput", {}).get("infranoise")
    if told:
        _configure_worker(config, told)
        config.pluginmanager.register(WorkerPlugin(), "infranoise-worker")
        return
    resumed = _resume(config)
    try:
        config.stash[SETTINGS] = settings = read_settings(config)
        workers = config.getoption("numprocesses", None) or 0
        controller = Controller(settings, config.rootpath, workers, hook=config.hook, resumed=resumed)
    except BaseException:
        if resumed is not None:
            resumed.lock.release()
        raise
    config.stash[PAST] = controller.past
    config.stash[PROCESS] = TrialProcess(
        controller.run, controller.run_dir, controller.process_name("main"), controller.past
    )
    config.pluginmanager.register(ControllerPlugin(config, controller), _CONTROLLER)


def _configure_worker(config: pytest.Config, told: Mapping[str, Any]) -> None:
    for name, value in told["adopted"].items():
        setattr(config.option, name, value)
    run_dir = Path(told["run_dir"])
    past = Past.read(past_file(run_dir, told["session"])) if told["session"] > 1 else NO_PAST
    config.stash[SETTINGS] = read_settings(config, seed=told["seed"])
    config.stash[PAST] = past
    config.stash[PROCESS] = TrialProcess(told["run"], run_dir, told["name"], past, told["controller"])


def _resume(config: pytest.Config) -> Resumed | None:
    """Return the run that this session goes on with; None when it makes a new one."""
    if config.option.infranoise_resume is None:
        if config.option.infranoise_rerun_infra:
            raise pytest.UsageError("--infranoise-rerun-infra: say of which run: --infranoise-resume RUN (or last)")
        return None
    from pytest_infranoise.resume import resume

    return resume(config)


def unconfigure(config: pytest.Config) -> None:
    """Let go of engine, ledger, run and signal handler."""
    if PROCESS in config.stash:
        config.stash[PROCESS].close()
    controller: ControllerPlugin | None = config.pluginmanager.getplugin(_CONTROLLER)
    if controller is not None:
        controller.controller.let_go()
    if _INTERRUPTS in config.stash:
        config.stash[_INTERRUPTS].undo()


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the trials of other shards, and those that the resumed run has a record of."""
    shard, past = config.stash[SETTINGS].shard, config.stash[PAST]
    if shard is None and past is NO_PAST:
        return

    def is_mine(item: pytest.Item) -> bool:
        if not is_trial(item):
            return True
        spec = item.stash[SPEC]
        return (shard is None or shard.has(spec.key)) and past.wants(spec.key, spec.task.content_hash)

    left_out = [item for item in items if not is_mine(item)]
    if left_out:
        items[:] = [item for item in items if is_mine(item)]
        config.hook.pytest_deselected(items=left_out)


def collected(session: pytest.Session) -> None:
    """Plan what was collected; a worker writes its plan down for the controller.

    Raises:
        pytest.UsageError: the user's mistakes (without xdist).
    """
    if TASK_FILES not in session.stash and MARKED not in session.stash:
        return
    from pytest_infranoise import other_plugins
    from pytest_infranoise.plan import make_plan

    config = session.config
    plan = make_plan(session)
    against = other_plugins.problems(config, [item for item in session.items if is_trial(item)])
    plan = replace(plan, problems=(*plan.problems, *against))
    if plan.trials and not config.option.collectonly:
        _handle_signals(config)
        other_plugins.take_over(config)
    controller: ControllerPlugin | None = config.pluginmanager.getplugin(_CONTROLLER)
    if controller is not None:
        controller.controller.accept(plan, _loaded(session))
    else:
        process = config.stash[PROCESS]
        config.stash[HAS_TRIALS] = bool(plan.trials)
        plan.write(_plan_file(process.run_dir, process.name))
        process.take_part()
        if config.stash[SETTINGS].preflight:
            _tasks_file(process.run_dir, process.name).write_bytes(pickle.dumps(_loaded(session)))


def _plan_file(run_dir: Path, worker: str) -> Path:
    return run_dir / f"plan-{worker}.json"


def _tasks_file(run_dir: Path, worker: str) -> Path:
    return run_dir / f"plan-{worker}.tasks"


def _loaded(session: pytest.Session) -> list[Task]:
    """Return the tasks that were collected from files."""
    return [node.task for node in session.stash.get(TASK_FILES, []) if isinstance(node.task, Task)]


def _handle_signals(config: pytest.Config) -> None:
    if _INTERRUPTS not in config.stash:
        config.stash[_INTERRUPTS] = Interrupts(tell=not hasattr(config, "workerinput"))
        config.stash[_INTERRUPTS].install()


class WorkerPlugin:
    """The hooks of a process that is told what to run."""

    def __init__(self) -> None:
        self._tick: pytest.Item | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Get ready for the scheduler of trials, now that xdist has told its controller what was collected."""
        if session.config.stash.get(HAS_TRIALS, False):
            from pytest_infranoise.scheduler.xdist import Tick

            self._tick = Tick.from_parent(session, name="infranoise-tick")
            session.items.append(self._tick)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass over the item that is only there for this process to have something in hand."""
        return True if item is self._tick else None


class ControllerPlugin:
    """The hooks of the process that the user started."""

    def __init__(self, config: pytest.Config, controller: Controller) -> None:
        self.config = config
        self.controller = controller
        self.scheduler: TrialScheduling | None = None
        # Workers that got a signal of their own, which xdist takes for crashed.
        self._stopped: set[str] = set()

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self) -> Generator[None, Any, Any]:
        """Take the place of whatever scheduler there is, as soon as it turns out that there are trials."""
        usual = yield
        from pytest_infranoise.scheduler.xdist import LateScheduling

        return LateScheduling(usual, self._scheduler)

    def _scheduler(self, usual: Any) -> Any:
        controller, schedule = self.controller, self.controller.settings.schedule
        if not controller.begun or controller.capacity is None:
            return usual
        from xdist.workermanage import parse_tx_spec_config

        from pytest_infranoise import live
        from pytest_infranoise.scheduler.estimates import read_estimates
        from pytest_infranoise.scheduler.plan import Policy
        from pytest_infranoise.scheduler.plan import make_line
        from pytest_infranoise.scheduler.xdist import Outside
        from pytest_infranoise.scheduler.xdist import TrialScheduling

        option = self.config.option
        policy = Policy(
            schedule.order,
            schedule.admit,
            controller.settings.seed,
            controller.capacity,
            read_estimates(self.config),
            as_collected=bool(getattr(option, "failedfirst", False) or getattr(option, "newfirst", False)),
        )
        trials = {nodeid: (trial.key, trial.allocation) for nodeid, trial in controller.runnable.items()}
        if option.dist != "load":
            self._say(f"infranoise: trials are scheduled by their floors; --dist {option.dist} is not used")
        self.scheduler = TrialScheduling(
            self.config,
            len(parse_tx_spec_config(self.config)),
            lambda ids: make_line(ids, trials, policy),
            lambda: Outside(*controller.outside()),
        )
        view = live.register(self.config, controller.runnable, schedule.heartbeat, self.scheduler.wake)
        if view is not None:
            self.scheduler.pulse = view.pulse
        self.scheduler.ends = controller.end_waiting
        return self.scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which run it is part of."""
        node.workerinput["infranoise"] = {
            "run": self.controller.run,
            "run_dir": str(self.controller.run_dir),
            "seed": self.controller.settings.seed,
            "name": self.controller.process_name(node.gateway.id),
            "controller": self.controller.process_name("controller"),
            "session": self.controller.session,
            "adopted": dict(self.controller.adopted),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """Look at a worker's plan before any worker gets something to do; the first one begins the run.

        Raises:
            pytest.UsageError: the user's mistakes.
            Session.Interrupted: something could not be collected: as without xdist, nothing runs then.
        """
        name = self.controller.process_name(node.gateway.id)
        file = _plan_file(self.controller.run_dir, name)
        if not file.exists():
            return
        from pytest_infranoise.plan import Plan

        plan = Plan.read(file)
        file.unlink()
        tasks = self._tasks_of(name)
        if self.controller.begun:  # a replacement for a worker that died
            return
        self.controller.accept(plan, tasks)
        if plan.trials and self.config.option.dist == "each":
            raise pytest.UsageError("--dist each would run every trial once per worker; leave it out, or give -n")
        session: Any = self.config.pluginmanager.getplugin("session")
        errors = session.testsfailed
        if errors and not self.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{errors} error{'s' if errors != 1 else ''} during collection")
        _handle_signals(self.config)
        self.controller.begin(self._say)

    def _tasks_of(self, worker: str) -> list[Task]:
        """Return the tasks that a worker has collected, where they are needed here: for a preflight."""
        file = _tasks_file(self.controller.run_dir, worker)
        if not file.exists():
            return []
        tasks: list[Task] = pickle.loads(file.read_bytes())
        file.unlink()
        return tasks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Begin the run when this process collected and runs the trials itself.

        Raises:
            pytest.UsageError: the user has to change something first.
        """
        broken = session.testsfailed and not self.config.option.continue_on_collection_errors
        if not broken and not self.config.option.collectonly:
            self.controller.begin(self._say)
            if self.controller.begun:
                from pytest_infranoise import live

                live.register(
                    self.config, self.controller.runnable, self.controller.settings.schedule.heartbeat, None
                )

    def _say(self, line: str) -> None:
        reporter: Any = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.config.option.verbose >= 0:
            reporter.ensure_newline()
            reporter.write_line(line)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notice what the exit status depends on."""
        self.controller.saw_report(report)

    def pytest_runtest_logfinish(self) -> None:
        """Let no worker wait for a floor any more when the session ends at a failure.

        xdist counts a report only after everybody has heard of it, and this is the next that comes from a worker.
        """
        reason = getattr(self.config.pluginmanager.getplugin("dsession"), "shouldstop", None)
        if reason and self.controller.begun:
            self.controller.end_waiting(str(reason))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notice what the exit status depends on."""
        self.controller.saw_report(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Clean up after a worker that died."""
        if error == _STOPPED:
            self._stopped.add(node.gateway.id)
        if error:
            self.controller.worker_died(self.controller.process_name(node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Find or write the record of the trial that died with its worker, and report that instead."""
        worker = self.controller.process_name(report.node.gateway.id)
        stopped = report.node.gateway.id in self._stopped
        record = self.controller.trial_crashed(crashitem, worker, stopped=stopped)
        if record is None:
            if stopped and self.controller.has(crashitem):
                outcomes.interrupt(report, f"worker {worker} was told to stop, so this trial has no record")
            return
        outcomes.attach(report, record)
        report.when = "setup" if record.verdict is Verdict.INFRA_ERROR else "call"
        report.longrepr = outcomes.printable(f"{record.cause or record.reason}: {record.summary}")
        report.user_properties = list(outcomes.properties(record).items())
        if record.verdict is Verdict.PASS:
            report.outcome, report.longrepr = "passed", None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sum up once xdist's workers are gone, and set the exit status."""
        self.controller.saw_failures(session.testsfailed)
        session.exitstatus = self.controller.finish(int(session.exitstatus), self._stopped_early(session))
        if self.controller.records:
            from pytest_infranoise.scheduler.estimates import keep_seconds

            keep_seconds(self.config, self.controller.records)

    def _stopped_early(self, session: pytest.Session) -> str | None:
        if self._stopped:
            return f"a signal to stop reached {', '.join(sorted(self._stopped))}"
        xdist: Any = self.config.pluginmanager.getplugin("dsession")
        reason = session.shouldfail or session.shouldstop or getattr(xdist, "shouldstop", None)
        if reason:
            return str(reason)
        if self.scheduler is not None and self.scheduler.drained:
            return self.scheduler.drained
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            return "the session was interrupted"
        if self.scheduler is not None and self.scheduler.waiting:
            return "workers died, and no others were started in their place"
        return None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print infra-errors and the summary."""
        width = self.config.get_terminal_writer().fullwidth
        lines = self.controller.summary(width)
        if not lines:
            return
        errors = terminalreporter.getreports(outcomes.CATEGORY)
        if errors:
            terminalreporter.write_sep("=", "INFRA-ERRORS")
            for report in errors[:_SHOWN_ERRORS]:
                terminalreporter.write_line(f"{report.nodeid}  {report.longrepr}")
            if len(errors) > _SHOWN_ERRORS:
                terminalreporter.write_line(f"... and {len(errors) - _SHOWN_ERRORS} more, all in the run's records")
        terminalreporter.write_sep("=", "infranoise")
        for line in lines:
            terminalreporter.write_line(line)
