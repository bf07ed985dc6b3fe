from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.exit_status import exit_status
from pytest_infranoise.gates import GateResult
from pytest_infranoise.gates import parse_gate
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import TrialKey
from pytest_infranoise.plan import Plan
from pytest_infranoise.plan import PlannedTask
from pytest_infranoise.plan import PlannedTrial
from pytest_infranoise.prepare import PreparationError
from pytest_infranoise.prepare import Prepared
from pytest_infranoise.prepare import prepare
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import SandboxError

HOLDS = GateResult(parse_gate("missing <= 0"), True, "holds")
FAILS = GateResult(parse_gate("missing <= 0"), False, "does not hold")


@pytest.mark.parametrize(
    ("expected", "status", "facts"),
    [
        *((status, status, {"others_failed": True, "missing": 3, "gates": [FAILS]}) for status in (2, 3, 4, 5)),
        (1, 1, {"others_failed": True, "missing": 3, "gates": [FAILS]}),
        (20, 1, {"missing": 1, "gates": [HOLDS]}),
        (20, 0, {"missing": 1}),
        (20, 0, {"gates": [HOLDS, FAILS]}),
        (20, 0, {"quarantined": 1, "gates": [HOLDS]}),
        (0, 1, {"gates": [HOLDS], "bad_trials": 5}),
        (0, 0, {}),
        (1, 1, {"bad_trials": 1}),
    ],
)
def test_the_first_line_of_the_table_that_applies(expected: int, status: int, facts: Mapping[str, Any]) -> None:
    nothing: dict[str, Any] = {
        "others_failed": False,
        "missing": 0,
        "gates": [],
        "bad_trials": 0,
    }

    assert exit_status(status, **{**nothing, **facts}) == expected


@dataclass
class Engine:
    """As much of a backend as preparation asks; only what it says is looked at, nothing runs."""

    unsupported: tuple[str, ...] = ()
    error: SandboxError | None = None
    missing: Mapping[str, SandboxError] | None = None

    def info(self) -> EngineInfo:
        if self.error:
            raise self.error
        return EngineInfo("id", "29.1", "2", "6.8", "overlay2", "host", 2, 8 * 1024**3, self.unsupported)

    def image(self, task_image: str | None, build: Path | None, pull: str, **options: Any) -> str:
        if self.missing and task_image and task_image in self.missing:
            raise self.missing[task_image]
        return f"sha256:{task_image}"


def plan(*tasks: str, memory: int = 1024**2) -> Plan:
    return Plan(
        trials=tuple(
            PlannedTrial(
                f"{task}::1x-0", TrialKey("nop", "", task, "1x", 0), task, Allocation(1, 1, memory, memory)
            )
            for task in tasks
        ),
        tasks=tuple(PlannedTask(task, f"{task}/task.yaml", f"image-{task}", None, "missing") for task in tasks),
        collected=tasks,
        skipped={},
        broken=0,
        problems=(),
    )


@pytest.mark.parametrize(
    ("engine", "planned", "message"),
    [
        (Engine(error=EngineLost("info", "nobody at /run/docker.sock")), plan("a"), "no Docker Engine: nobody at"),
        (
            Engine(unsupported=("memory limits",)),
            plan("a"),
            r"29\.1, cgroup v2\) cannot enforce limits: memory limits",
        ),
        (Engine(), plan("a", memory=8 * 1024**3), "'a' under config '1x' has a memory floor of 8 GiB, more than"),
        (
            Engine(missing={"image-a": ConfigError("pull", "no such image")}),
            plan("a"),
            "a/task.yaml: image: no such",
        ),
    ],
)
def test_nothing_starts_on_what_cannot_be_measured(engine: Any, planned: Plan, message: str) -> None:
    with pytest.raises(PreparationError, match=message):
        prepare(planned, engine, print)


def test_workers_get_images_and_the_errors_of_those_there_are_none_of(tmp_path: Path) -> None:
    errors = {"image-b": ConfigError("pull", "no such image"), "image-c": ImagePullError("pull", "refused", 500)}
    said: list[str] = []
    engine: Any = Engine(missing=errors)

    prepare(plan("a", "b", "c"), engine, said.append).write(tmp_path)
    prepared = Prepared.read(tmp_path)

    assert prepared.images == {"a": "sha256:image-a"}
    assert len(said) == 2
    assert prepared.image_errors["b"]["kind"] == "ConfigError"
    assert prepared.image_errors["c"]["kind"] == "ImagePullError"
    assert prepared.engine.cgroup_version == "2"


def test_a_plan_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = plan("a", "b")

    written.write(tmp_path / "plan-gw0.json")

    assert Plan.read(tmp_path / "plan-gw0.json") == written
