"""All tasks of Terminal-Bench 2.0 by their published specifications, with instructions and tests of our own."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_infranoise.checks import demands
from pytest_infranoise.checks import duplicates
from pytest_infranoise.checks import floors_above
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.host import capacity_of
from pytest_infranoise.lint import Choices
from pytest_infranoise.lint import lint
from pytest_infranoise.lint import search
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Task

TABLE = Path(__file__).parents[2] / "shared" / "data" / "terminal_bench_2_tasks.csv"
GIB = 1024**3
HOST_CPUS, HOST_MEMORY = 16, 64 * GIB
MEMORY = {"2G": 2 * GIB, "4G": 4 * GIB, "8G": 8 * GIB, "8192": 8 * GIB}
CONFIGS = ("1x", "3x", "uncapped", "ram5:memory=1x..5x,cpus=1x..1x")


@dataclass(frozen=True)
class Row:
    """One published task, and what it is to get, written down without the code under test."""

    name: str
    cpus: int
    memory: int
    agent_seconds: float
    verifier_seconds: float
    image: str

    def allocations(self) -> Mapping[str, Allocation]:
        cpus, memory = self.cpus, self.memory
        return {
            "1x": Allocation(cpus, cpus, memory, memory),
            "3x": Allocation(cpus, 3 * cpus, memory, 3 * memory),
            "uncapped": Allocation(cpus, None, memory, None),
            "ram5": Allocation(cpus, cpus, memory, 5 * memory),
        }


def _write(root: Path, row: Mapping[str, str]) -> None:
    in_mb = "memory_mb" in row["extra_env"]
    memory = f"memory_mb = {row['memory']}" if in_mb else f'memory = "{row["memory"]}"'
    storage = f"storage_mb = {row['storage']}" if in_mb else f'storage = "{row["storage"]}"'
    task = root / row["task"]
    (task / "tests").mkdir(parents=True)
    (task / "solution").mkdir()
    (task / "instruction.md").write_text("Do something.\n")
    (task / "tests" / "test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    (task / "solution" / "solve.sh").write_text("true\n")
    (task / "task.toml").write_text(
        f"""version = "{row["version"]}"

[metadata]
author_name = "somebody"
author_email = "somebody@example.org"
difficulty = "{row["difficulty"]}"
category = "{row["category"]}"
tags = []
expert_time_estimate_min = {row["expert_min"] or 1.0}
junior_time_estimate_min = {row["junior_min"] or 1.0}

[verifier]
timeout_sec = {row["verifier_timeout"]}

[agent]
timeout_sec = {row["agent_timeout"]}

[environment]
build_timeout_sec = {row["build_timeout"]}
docker_image = "{row["docker_image"]}"
cpus = {row["cpus"]}
{memory}
{storage}
"""
    )


@pytest.fixture(scope="module")
def rows() -> list[Mapping[str, str]]:
    if not TABLE.is_file():
        pytest.skip(f"NOT TESTED: the specifications of Terminal-Bench 2.0 are not here ({TABLE.name} is missing)")
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def dataset(rows: list[Mapping[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("terminal-bench-2")
    for row in rows:
        _write(root, row)
    return root


@pytest.fixture(scope="module")
def tasks(dataset: Path) -> dict[str, Task]:
    found, remarks = search([dataset])
    broken = [str(item.task) for item in found if isinstance(item.task, Exception)]
    assert (broken, remarks) == ([], [])
    return {item.task.name: item.task for item in found if isinstance(item.task, Task)}


@pytest.fixture(scope="module")
def published(rows: list[Mapping[str, str]]) -> dict[str, Row]:
    return {
        row["task"]: Row(
            name=row["task"],
            cpus=int(row["cpus"]),
            memory=MEMORY[row["memory"]],
            agent_seconds=float(row["agent_timeout"]),
            verifier_seconds=float(row["verifier_timeout"]),
            image=row["docker_image"],
        )
        for row in rows
    }


def test_all_are_loaded_as_published(tasks: dict[str, Task], published: dict[str, Row]) -> None:
    assert len(published) == 89
    assert {
        name: (task.spec.cpus, task.spec.memory, task.timeouts.agent, task.timeouts.verifier, task.image)
        for name, task in tasks.items()
    } == {
        name: (row.cpus, row.memory, row.agent_seconds, row.verifier_seconds, row.image)
        for name, row in published.items()
    }
    assert {task.unsupported for task in tasks.values()} == {None}
    assert {task.storage for task in tasks.values()} == {10 * GIB}


def test_floors_and_ceilings_of_every_one(tasks: dict[str, Task], published: dict[str, Row]) -> None:
    planned, problems = demands(tasks.values(), parse_configs(CONFIGS))
    limit = capacity_of(HOST_CPUS, HOST_MEMORY)

    assert (problems, duplicates(tasks.values()), floors_above(planned, limit.cpus, limit.memory)) == ([], [], [])
    assert len(planned) == 89 * 4
    assert {(demand.task, demand.config): demand.allocation for demand in planned} == {
        (name, config): allocation
        for name, row in published.items()
        for config, allocation in row.allocations().items()
    }


def test_lint_says_the_same(dataset: Path) -> None:
    findings = lint([dataset], Choices(parse_configs(CONFIGS), HOST_CPUS, HOST_MEMORY))
    lines = list(findings.lines())
    assert findings.clean
    assert lines[-2:] == [
        "planned under 1x, 3x, uncapped, ram5 on 16 CPUs and 64 GiB: 0 problems",
        "89 tasks: 89 ready, 0 skipped, 0 broken",
    ]


def test_a_host_that_is_too_small_for_some(dataset: Path, published: dict[str, Row]) -> None:
    # 3.8 of 4 GiB can be given.
    findings = lint([dataset], Choices(parse_configs(CONFIGS), 2, 4 * GIB))
    told = {line.split("task '")[1].split("'")[0] for line in findings.problems}
    assert told == {name for name, row in published.items() if row.memory >= 4 * GIB or row.cpus > 2}
    assert 0 < len(told) < 89
    assert all("under configs '1x', '3x', 'uncapped', 'ram5' has a " in line for line in findings.problems)


def test_pytest_collects_every_trial(dataset: Path, pytester: pytest.Pytester, published: dict[str, Row]) -> None:
    options = list(itertools.chain.from_iterable(("--resource-config", config) for config in CONFIGS))
    result = pytester.runpytest(
        *("--co", "-q", "--infranoise-agent", "nop", "--infranoise-samples", "1", *options, str(dataset))
    )
    ids = [line for line in result.outlines if "::" in line]
    assert result.ret == 0
    assert [(Path(line).parts[-2], line.partition("::")[2]) for line in ids] == [
        (name, f"{config}-0") for name in sorted(published) for config in ("1x", "3x", "uncapped", "ram5")
    ]
