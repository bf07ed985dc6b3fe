"""Everything that must be there, and be right, before the first container starts. Runs in the controller."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

from pytest_infranoise.checks import Demand
from pytest_infranoise.checks import floors_above
from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import boot_id
from pytest_infranoise.host import capacity
from pytest_infranoise.host_limits import limits_around
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.plan import Plan
from pytest_infranoise.plan import PlannedTask
from pytest_infranoise.progress import Progress
from pytest_infranoise.progress import as_completed
from pytest_infranoise.sandboxes.engine import engine_address
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.scheduler.budget import Admit
from pytest_infranoise.settings_schedule import DEFAULT_SCHEDULE
from pytest_infranoise.settings_schedule import ScheduleSettings
from pytest_infranoise.units import format_memory

if TYPE_CHECKING:
    from pytest_infranoise.sandboxes.docker import DockerBackend

RUN_LABEL = "infranoise.run"
HOST_LABEL = "infranoise.host"
BOOT_LABEL = "infranoise.boot"
_PARALLEL_IMAGES = 4
_NAMED = 3
_RATE_LIMITED = re.compile(r"toomanyrequests|429 Too Many|HAP429", re.IGNORECASE)
_SHOWN = 300  # characters of an error; all of it comes with the task's first trial


class PreparationError(Exception):
    """Nothing can be measured as asked; the message is fit to show to a user."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the processes that run trials need from the controller.

    ``images`` has the image id of every task that has one, ``image_errors`` why another has none.
    """

    engine: EngineInfo
    capacity: Capacity
    images: Mapping[str, str]
    image_errors: Mapping[str, Mapping[str, Any]]
    admit: Admit = "floor"  # what is reserved for a trial
    place: str = ""  # the ledger that holds the floors, as containers are labelled with it
    host_ports: tuple[int, ...] = ()  # what containers with a network may reach of the engine's host

    def write(self, run_dir: Path) -> None:
        """Put it where the workers look."""
        (run_dir / "prepared.json").write_text(json.dumps(asdict(self)), "ascii")

    @classmethod
    def read(cls, run_dir: Path) -> Prepared:
        """Read what the controller wrote."""
        data = json.loads((run_dir / "prepared.json").read_text("ascii"))
        engine: dict[str, Any] = {**data["engine"]}
        engine.update((key, tuple(engine[key])) for key in ("unsupported", "warnings"))
        return cls(
            engine=EngineInfo(**engine),
            capacity=Capacity(**data["capacity"]),
            images=data["images"],
            image_errors=data["image_errors"],
            admit=data["admit"],
            place=data["place"],
            host_ports=tuple(data["host_ports"]),
        )

    def image(self, task: Task) -> str:
        """Return the image id of a task.

        Raises:
            SandboxError: what went wrong when it was prepared.
        """
        if task.name in self.images:
            return self.images[task.name]
        error = self.image_errors[task.name]
        kinds = {kind.__name__: kind for kind in _subclasses(SandboxError)}
        raise kinds[error["kind"]](error["call"], error["text"], error["status"])

    def image_now(self, task: Task, backend: Backend) -> str:
        """Return the image id of a task, asking the engine once more for one that could not be had before.

        Raises:
            SandboxError: it still cannot.
        """
        if task.name in self.images:
            return self.images[task.name]
        return backend.image(task.image, task.build, task.pull, seconds=task.build_timeout)


def _subclasses(kind: type[SandboxError]) -> Iterable[type[SandboxError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


def engine_of(backend: Backend) -> EngineInfo:
    """Return what the engine is.

    Raises:
        PreparationError: there is none.
    """
    try:
        return backend.info()
    except SandboxError as error:
        raise PreparationError(f"no Docker Engine: {error.text}") from None


def prepare(
    plan: Plan, backend: Backend, say: Callable[[str], None], schedule: ScheduleSettings = DEFAULT_SCHEDULE
) -> Prepared:
    """Check the engine against the plan and get every image.

    Raises:
        PreparationError: no engine, an engine that cannot enforce limits, a floor above the host, more given to
            trials than the host has, or no task whose image can exist.
    """
    engine = engine_of(backend)
    if engine.unsupported:
        raise PreparationError(
            f"the engine ({engine.version}, cgroup v{engine.cgroup_version}) cannot enforce limits: "
            f"{'; '.join(engine.unsupported)}. Nothing measured on it would mean anything"
        )
    try:
        limit = capacity(
            engine, limits_around(engine_address()), cpus=schedule.host_cpus, memory=schedule.host_memory
        )
    except ValueError as error:
        raise PreparationError(str(error)) from None
    _check_floors(plan, limit)
    images, errors = _images(plan.tasks, backend, say)
    broken = {task: error for task, error in errors.items() if error["kind"] == ConfigError.__name__}
    if broken and len(broken) == len(plan.tasks):
        files = {task.name: task.file for task in plan.tasks}
        raise PreparationError(
            "\n".join(f"{files[task]}: image: {error['text']}" for task, error in broken.items())
        )
    return Prepared(engine, limit, images, errors, schedule.admit)


def _check_floors(plan: Plan, limit: Capacity) -> None:
    demands = (Demand(trial.key.task, trial.file, trial.key.config, trial.allocation) for trial in plan.trials)
    problems = floors_above(demands, limit.cpus, limit.memory)
    if problems:
        raise PreparationError("\n".join(problems))


class _Place(NamedTuple):
    """Where an image comes from."""

    image: str | None
    build: str | None
    pull: str

    @property
    def registry(self) -> str:
        """Where the image is pulled from."""
        first, slash, _ = (self.image or "").partition("/")
        return first if slash and (first == "localhost" or set(first) & {".", ":"}) else "docker.io"

    def get(
        self, backend: Backend, seconds: float | None, progress: Progress, name: str, busy: set[str]
    ) -> tuple[str, str]:
        """Return an image's id, and what had to be done for it: "pulling", "building" or nothing.

        Registries that limit their rate are added to ``busy``, and not asked again: each try would count as well.
        """
        did = [""]

        def working(what: str) -> None:
            if what == "pulling" and self.registry in busy:
                raise ImagePullError("pull", f"not tried: {self.registry} limits its rate (429); run again later")
            did.append(what)
            progress.begins(f"{what} {name}")

        try:
            build = Path(self.build) if self.build else None
            found = backend.image(self.image, build, self.pull, seconds=seconds, working=working)
        except ImagePullError as error:
            if _RATE_LIMITED.search(error.text):
                busy.add(self.registry)
            raise
        finally:
            progress.ends(f"{did[-1]} {name}")
        return found, did[-1]


def _images(
    tasks: Sequence[PlannedTask], backend: Backend, say: Callable[[str], None]
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Get every image once, several at a time; return ids and errors by task."""
    wanted: dict[_Place, list[PlannedTask]] = {}
    for task in tasks:
        wanted.setdefault(_Place(task.image, task.build, task.pull), []).append(task)
    images: dict[str, str] = {}
    errors: dict[str, dict[str, Any]] = {}
    work: Counter[str] = Counter()
    busy: set[str] = set()
    progress = Progress(say, "images", len(wanted))
    pool = ThreadPoolExecutor(_PARALLEL_IMAGES, "infranoise-images")
    try:
        futures = {
            pool.submit(
                place.get, backend, _seconds(sharing), progress, place.image or sharing[0].name, busy
            ): place
            for place, sharing in wanted.items()
        }
        for place, future in as_completed(futures, progress):
            names = [task.name for task in wanted[place]]
            try:
                image, did = future.result()
            except SandboxError as error:
                work["failed"] += 1
                errors.update(dict.fromkeys(names, _entry(error)))
                say(f"infranoise: no image for {_listed(names)}: {error.text.splitlines()[0][:_SHOWN]}")
            else:
                work[did] += 1
                images.update(dict.fromkeys(names, image))
    finally:
        # Whoever interrupts this closes the backend next, and that ends what is still at work.
        pool.shutdown(wait=False, cancel_futures=True)
    if work["building"] or work["pulling"]:
        say(_summary(work, progress.seconds))
    return images, errors


def _seconds(tasks: Sequence[PlannedTask]) -> float | None:
    """Return how long the build that tasks share may take: the longest that one of them says."""
    return max((task.build_timeout for task in tasks if task.build_timeout is not None), default=None)


def _entry(error: SandboxError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "call": error.call, "text": error.text, "status": error.status}


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names) if rest <= 0 else f"{', '.join(names[:_NAMED])} and {rest} more tasks"


def _summary(work: Mapping[str, int], seconds: float) -> str:
    words = {"building": "built", "pulling": "pulled", "": "there already", "failed": "not to be had"}
    parts = [f"{work[kind]} {word}" for kind, word in words.items() if work.get(kind)]
    return f"infranoise: images: {', '.join(parts)}, in {seconds:.0f} s"


def sweep_dead_runs(
    backend: Backend, ledger: Ledger, say: Callable[[str], None], *, resumed: str | None = None
) -> None:
    """Remove what runs that are no more left on the engine.

    Of the run that is ``resumed`` nothing lives yet but the session that resumes it.

    Only what sessions with this ledger started is touched, and what an earlier boot of this host left: others (on
    another host, or in another container that shares the engine) hold their locks where this one cannot see them.

    Raises:
        PreparationError: the engine does not answer.
    """
    place = ledger.place
    try:
        # Before any lock is looked at: a run that begins meanwhile is not in it, or is seen to live.
        found = backend.labelled(RUN_LABEL)
        for run in sorted({labels[RUN_LABEL] for labels in found.values() if is_ours(labels, place)}):
            number = remove_if_dead(backend, ledger, run, resumed=resumed)
            if number is not None:
                say(f"infranoise: removed {number} leftovers of run {run}, which is not alive any more")
    except SandboxError as error:
        raise PreparationError(f"the engine did not answer while leftovers were looked for: {error.text}") from None


def remove_if_dead(backend: Backend, ledger: Ledger, run: str, *, resumed: str | None = None) -> int | None:
    """Remove what a run left on the engine, and return how much that was; None when the run lives, and nothing was.

    Nobody can join the ledger meanwhile: a run that is resumed after it was found dead keeps what it makes then.

    Raises:
        SandboxError: the engine does not answer.
    """
    with ledger.closed():
        if run in ledger.living_runs() - {resumed}:
            return None
        return backend.remove_labelled({RUN_LABEL: run})


def is_ours(labels: Mapping[str, str], place: str) -> bool:
    """Whether a container or network was made by a session whose locks can be seen here, or by an earlier boot.

    The ledger's token alone tells who shares it: sessions in containers do, and each has a host name of its own.
    Locks are seen by all who share a kernel. A ledger on a network may be shared by several, so what another boot
    made counts as this host's past only where the host name is the same.
    """
    node, _, token = labels.get(HOST_LABEL, "").partition("#")
    here, _, mine = place.partition("#")
    boot = labels.get(BOOT_LABEL) or None
    if token == mine:
        return node == here or (boot is not None and boot == boot_id())
    return node == here and boot not in (None, boot_id())


def isolation(plan: Plan, backend: DockerBackend, place: str) -> dict[str, Any]:
    """Return what containers are kept from, for ``run.json``; makes the run's network where a task has one.

    The network says whose it is (``place`` is the ledger's): it may be all that is left of a run that was killed.
    """
    if not any(task.network for task in plan.tasks):
        return {"network": False}
    try:
        return {"network": True, **backend.isolation({HOST_LABEL: place, BOOT_LABEL: boot_id()}).to_json()}
    except SandboxError as error:  # told by every trial that needs the network
        return {"network": True, "why": f"no network could be made: {error.text}"}


def privileges(records: Iterable[Record]) -> list[Any]:
    """Return what the containers of these records were allowed, as read back: one entry, unless they differ."""
    found = (record.details["privileges"] for record in records if "privileges" in record.details)
    return list({json.dumps(entry, sort_keys=True): entry for entry in found}.values())


def enforcement(engine: EngineInfo, limit: Capacity, admit: Admit = "floor") -> str:
    """Return the one line that says how floors and ceilings were enforced."""
    reserved = "floors by admission" if admit == "floor" else "ceilings reserved by admission (uncapped: all of it)"
    return (
        f"Docker {engine.version}, cgroup v{engine.cgroup_version}: memory ceiling = hard limit with no swap, "
        f"CPU ceiling = quota; {reserved} within {limit.cpus:g} CPUs and {format_memory(limit.memory)}; "
        "limits of every container read back from the kernel"
    )


def provenance(root: Path) -> dict[str, Any]:
    """Return what tells later which code and machine the numbers come from."""
    packages = ("pytest-infranoise", "pytest", "pytest-xdist", "docker", "scipy", "numpy")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "git": _git_commit(root),
        "host": {"name": platform.node(), "boot": boot_id(), "platform": platform.platform()},
    }


def _git_commit(root: Path) -> str | None:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
