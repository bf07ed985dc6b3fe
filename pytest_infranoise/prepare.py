"""Everything that must be there, and be right, before the first container starts. Runs in the controller."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import boot_id
from pytest_infranoise.host import capacity
from pytest_infranoise.model import Task
from pytest_infranoise.plan import Plan
from pytest_infranoise.plan import PlannedTask
from pytest_infranoise.resource_configs import check_floor
from pytest_infranoise.sandboxes.protocol import Backend
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.units import format_memory

RUN_LABEL = "infranoise.run"
HOST_LABEL = "infranoise.host"
_PARALLEL_IMAGES = 4


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

    def write(self, run_dir: Path) -> None:
        """Put it where the workers look."""
        (run_dir / "prepared.json").write_text(json.dumps(asdict(self)), "ascii")

    @classmethod
    def read(cls, run_dir: Path) -> Prepared:
        """Read what the controller wrote."""
        data = json.loads((run_dir / "prepared.json").read_text("ascii"))
        engine: dict[str, Any] = {**data["engine"]}
        engine.update((key, tuple(engine[key])) for key in ("unsupported", "warnings"))
        return cls(EngineInfo(**engine), Capacity(**data["capacity"]), data["images"], data["image_errors"])

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


def _subclasses(kind: type[SandboxError]) -> Iterable[type[SandboxError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _subclasses(child)


def prepare(plan: Plan, backend: Backend, say: Callable[[str], None]) -> Prepared:
    """Check the engine against the plan and get every image.

    Raises:
        PreparationError: no engine, an engine that cannot enforce limits, a floor above the host, or no task
            whose image can exist.
    """
    try:
        engine = backend.info()
    except SandboxError as error:
        raise PreparationError(f"no Docker Engine: {error.text}") from None
    if engine.unsupported:
        raise PreparationError(
            f"the engine ({engine.version}, cgroup v{engine.cgroup_version}) cannot enforce limits: "
            f"{'; '.join(engine.unsupported)}. Nothing measured on it would mean anything"
        )
    limit = capacity(engine)
    _check_floors(plan, limit)
    images, errors = _images(plan.tasks, backend, say)
    broken = {task: error for task, error in errors.items() if error["kind"] == ConfigError.__name__}
    if broken and len(broken) == len(plan.tasks):
        files = {task.name: task.file for task in plan.tasks}
        raise PreparationError(
            "\n".join(f"{files[task]}: image: {error['text']}" for task, error in broken.items())
        )
    return Prepared(engine, limit, images, errors)


def _check_floors(plan: Plan, limit: Capacity) -> None:
    problems: dict[str, None] = {}
    for trial in plan.trials:
        problem = check_floor(
            f"{trial.file}: task {trial.key.task!r} under config {trial.key.config!r}",
            trial.allocation,
            limit.cpus,
            limit.memory,
        )
        if problem is not None:
            problems[problem] = None
    if problems:
        raise PreparationError("\n".join(problems))


def _images(
    tasks: Sequence[PlannedTask], backend: Backend, say: Callable[[str], None]
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    wanted: dict[tuple[str | None, str | None, str], list[str]] = {}
    for task in tasks:
        wanted.setdefault((task.image, task.build, task.pull), []).append(task.name)
    images: dict[str, str] = {}
    errors: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(_PARALLEL_IMAGES) as pool:
        results = {
            place: pool.submit(backend.image, image, Path(build) if build else None, pull)
            for place in wanted
            for image, build, pull in [place]
        }
        for place, result in results.items():
            try:
                images.update(dict.fromkeys(wanted[place], result.result()))
            except SandboxError as error:
                entry = {
                    "kind": type(error).__name__,
                    "call": error.call,
                    "text": error.text,
                    "status": error.status,
                }
                errors.update({name: entry for name in wanted[place]})
                say(f"infranoise: no image for {', '.join(wanted[place])}: {error.text}")
    return images, errors


def sweep_dead_runs(backend: Backend, ledger: Ledger, host: str, say: Callable[[str], None]) -> None:
    """Remove what runs that are no more left on the engine.

    Only what this host started is touched: another host's runs (or another container's, on a shared engine)
    hold their locks where this one cannot see them.
    """
    living = ledger.living_runs()
    left = {
        labels[RUN_LABEL] for labels in backend.labelled(RUN_LABEL).values() if labels.get(HOST_LABEL) == host
    } - living
    for run in sorted(left):
        number = backend.remove_labelled({RUN_LABEL: run})
        say(f"infranoise: removed {number} leftovers of run {run}, which is not alive any more")


def enforcement(engine: EngineInfo, limit: Capacity) -> str:
    """Return the one line that says how floors and ceilings were enforced."""
    return (
        f"Docker {engine.version}, cgroup v{engine.cgroup_version}: memory ceiling = hard limit with no swap, "
        f"CPU ceiling = quota; floors by admission within {limit.cpus:g} CPUs and {format_memory(limit.memory)}; "
        "limits read back from the kernel for every trial"
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
