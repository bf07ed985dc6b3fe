from __future__ import annotations

import csv
import math
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.config_grammar import parse_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.config_notes import Host
from pytest_infranoise.config_notes import config_notes
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Allocation
from pytest_infranoise.model import Flag
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Timeouts
from pytest_infranoise.model import TrialKey
from pytest_infranoise.model import Verifier
from pytest_infranoise.resource_configs import allocate
from pytest_infranoise.resource_configs import check_floor
from pytest_infranoise.resource_configs import make_trial
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.limits import check_limits
from pytest_infranoise.sandboxes.protocol import SandboxRequest
from tests.config_strategies import built_in
from tests.config_strategies import described
from tests.config_strategies import multiples
from tests.config_strategies import tried
from tests.suite import hold_memory
from tests.suite import make_task

MIB = 1024**2
GIB = 1024**3
SHARED = Path(__file__).parents[2] / "shared" / "data"


SMALL = Spec(1.0, 64 * MIB)
HOST = Host(2, 8 * GIB)


def task(spec: Spec = SMALL, name: str = "job") -> Task:
    file = Path("suite", name, "task.yaml")
    return Task(
        name=name,
        file=file,
        instruction="Do it.",
        image="infranoise/base:bookworm",
        build=None,
        spec=spec,
        verifier=Verifier("true", file.parent),
        content_hash="0",
        timeouts=Timeouts(setup=10, agent=100, verifier=20),
    )


def ends(allocation: Allocation) -> tuple[float, float | None, int, int | None]:
    a = allocation
    return a.cpus_floor, a.cpus_ceiling, a.memory_floor, a.memory_ceiling


# What becomes of it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1x", (2.0, 2.0, 64 * MIB, 64 * MIB)),
        ("3x", (2.0, 6.0, 64 * MIB, 192 * MIB)),
        ("uncapped", (2.0, None, 64 * MIB, None)),
        ("task", (2.0, 2.0, 64 * MIB, 64 * MIB)),
        ("n:memory=1x..5x", (2.0, 2.0, 64 * MIB, 320 * MIB)),
        ("n:memory=32M..1G,cpus=0.5..1x", (0.5, 2.0, 32 * MIB, GIB)),
        ("n:memory=0.5x..uncapped,cpus=0.25x..3", (0.5, 3.0, 32 * MIB, None)),
    ],
)
def test_floor_and_ceiling_are_set_apart(text: str, expected: tuple[float, float | None, int, int | None]) -> None:
    assert ends(allocate(task(Spec(2.0, 64 * MIB)), parse_config(text))) == expected


def test_the_config_task_uses_what_a_task_states() -> None:
    both = task(Spec(1.0, 64 * MIB, 2.0, 192 * MIB))
    only_memory = task(Spec(1.0, 64 * MIB, memory_ceiling=192 * MIB))

    assert ends(allocate(both, parse_config("task"))) == (1.0, 2.0, 64 * MIB, 192 * MIB)
    assert ends(allocate(only_memory, parse_config("task"))) == (1.0, 1.0, 64 * MIB, 192 * MIB)
    # Any other config starts from the floor, whatever ceiling the task states.
    assert ends(allocate(both, parse_config("1x"))) == (1.0, 1.0, 64 * MIB, 64 * MIB)
    assert ends(allocate(both, parse_config("n:memory=task"))) == (1.0, 1.0, 64 * MIB, 192 * MIB)


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (
            "n:memory=1x..512M",
            Spec(1.0, 2 * GIB),
            "resources.memory: task 'job' under config 'n' has a memory floor of 2 GiB, above its ceiling of 512 "
            "MiB (the config says memory=1x..512M); lower the floor or raise the ceiling",
        ),
        (
            "n:memory=1G..3x",
            Spec(1.0, 64 * MIB),
            "has a memory floor of 1 GiB, above its ceiling of 192 MiB (the config says memory=1G..3x)",
        ),
        ("n:cpus=2..1x", Spec(1.0, GIB), "resources.cpus: task 'job' under config 'n' has a CPU floor of 2, above"),
        ("n:memory=0.01x..0.05x", Spec(1.0, 100 * MIB), "has a memory ceiling of 5 MiB, below the 6 MiB that the"),
        (
            "n:memory=0.01x..1x",
            Spec(1.0, 100 * MIB),
            "has a memory floor of 1 MiB, below the 6 MiB that the engine",
        ),
        (
            "n:cpus=0.005..0.009",
            Spec(1.0, GIB),
            "has a CPU ceiling of 0.009, below the 0.01 that the engine accepts",
        ),
        ("n:cpus=0.001..1", Spec(1.0, GIB), "has a CPU floor of 0.001, below the 0.002 that the engine accepts"),
        ("9999999x", Spec(1.0, GIB), "write uncapped for none"),
    ],
)
def test_what_cannot_be_enforced_names_task_and_config(text: str, spec: Spec, message: str) -> None:
    with pytest.raises(ValueError, match=r"^suite/job/task\.yaml: resources\.") as raised:
        allocate(task(spec), parse_config(text))

    assert message in str(raised.value)


def _spec(cpus: float, memory: int, more: float | None) -> Spec:
    """Return a spec, with ceilings of its own so many times above where ``more`` is given."""
    return Spec(cpus, memory) if more is None else Spec(cpus, memory, cpus * more, int(memory * more))


specs = st.builds(
    _spec,
    st.integers(10, 64_000).map(lambda thousandths: thousandths / 1000),
    st.integers(6 * MIB, 256 * GIB),
    st.none() | st.floats(1, 8),
)


@given(specs, described | built_in)
@settings(deadline=None)
def test_no_allocation_has_its_floor_above_its_ceiling(spec: Spec, config: ResourceConfig) -> None:
    allocation, error = tried(lambda: allocate(task(spec), config))

    if allocation is None:
        assert "'job'" in error
        assert repr(config.name) in error
        return
    for floor, ceiling in (
        (allocation.cpus_floor, allocation.cpus_ceiling),
        (allocation.memory_floor, allocation.memory_ceiling),
    ):
        assert 0 < floor < math.inf
        assert ceiling is None or floor <= ceiling


@given(specs, multiples)
@settings(deadline=None)
def test_equal_ends_are_equal_for_every_task(spec: Spec, factor: float) -> None:
    rule = Rule(factor, factor)
    allocation, error = tried(lambda: allocate(task(spec), ResourceConfig("n", rule, rule)))

    assert "above its ceiling" not in error
    if allocation is None:
        return
    assert allocation.cpus_floor == allocation.cpus_ceiling
    assert allocation.memory_floor == allocation.memory_ceiling


def test_fractions_that_are_equal_on_paper_are_equal() -> None:
    config = parse_config("n:cpus=3x..0.3")

    assert ends(allocate(task(Spec(0.1, GIB)), config))[:2] == (0.3, 0.3)


def test_time_stretches_the_agents_phase_alone() -> None:
    config = parse_config("slow:time=1.5x")
    trial = make_trial(TrialKey("nop", "", "job", "slow", 0), task(), config, AgentChoice("nop", "nop"))

    assert trial.task.timeouts == Timeouts(setup=10, agent=150, verifier=20)
    assert trial.config is config
    unchanged = make_trial(trial.key, task(), parse_config("uncapped"), trial.agent)
    assert unchanged.task == task()


def _stated(memory: str) -> int:
    """Return bytes: one row of the table states MiB without a unit."""
    return int(memory.removesuffix("G")) * (GIB if memory.endswith("G") else MIB)


def test_all_terminal_bench_2_tasks_get_the_floors_and_ceilings_of_their_specs() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no real specifications at {SHARED}")
    with (SHARED / "terminal_bench_2_tasks.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 89
    configs = parse_configs(["1x,3x,uncapped", "ram5:memory=1x..5x"])

    for row in rows:
        cpus, memory = float(row["cpus"]), _stated(row["memory"])
        allocations = [allocate(task(Spec(cpus, memory), row["task"]), config) for config in configs]
        assert [ends(allocation) for allocation in allocations] == [
            (cpus, cpus, memory, memory),
            (cpus, 3 * cpus, memory, 3 * memory),
            (cpus, None, memory, None),
            (cpus, cpus, memory, 5 * memory),
        ]
        assert not any(check_floor("it", allocation, 16, 64 * GIB) for allocation in allocations)


# What a reader has to be told


def notes(values: list[str], specs: dict[str, Spec], host: Host = HOST) -> list[str]:
    configs = parse_configs(values)
    planned = [
        (name, config.name, allocate(task(spec, name), config))
        for name, spec in specs.items()
        for config in configs
    ]
    return config_notes(configs, planned, host)


def test_nothing_is_said_where_every_ceiling_limits() -> None:
    assert notes(["1x,1.5x,uncapped"], {"a": Spec(1.0, GIB), "b": Spec(0.5, GIB)}) == []
    assert notes(["task"], {"a": Spec(1.0, GIB, 1.5, 2 * GIB)}) == []
    assert config_notes(parse_configs(["1x", "3x"]), [], Host(2, GIB)) == []


def test_a_cpu_ceiling_above_the_host_is_named() -> None:
    assert notes(["1x,3x,uncapped"], {"a": Spec(1.0, GIB), "b": Spec(0.5, GIB)}) == [
        "CPU ceilings at or above the host's 2 CPUs throttle nothing: 3x for 1 of 2 tasks"
    ]


def test_configs_that_do_not_differ_in_cpu_on_this_host_are_named() -> None:
    assert notes(["1x,3x,uncapped"], {"a": Spec(2.0, GIB), "b": Spec(0.5, GIB)}) == [
        "CPU ceilings at or above the host's 2 CPUs throttle nothing: 1x for 1 of 2 tasks, 3x for 1 of 2 tasks; "
        "the configs do not differ in CPU on this host for 1 of 2 tasks"
    ]


def test_a_memory_ceiling_above_the_host_is_named() -> None:
    assert notes(["1x,1.5x"], {"a": Spec(1.0, 6 * GIB), "b": Spec(1.0, GIB)}) == [
        "memory ceilings at or above the host's 8 GiB, which runs out first: 1.5x for 1 of 2 tasks"
    ]


def test_tasks_that_state_no_ceiling_of_their_own_are_counted() -> None:
    specs = {"a": Spec(1.0, GIB, memory_ceiling=2 * GIB), "b": Spec(1.0, GIB), "c": Spec(1.0, GIB)}
    assert notes(["task,1.5x"], specs) == [
        "task: no ceiling above the spec is stated for CPU by 3 of 3 tasks and for memory by 2 of 3 tasks; there "
        "the spec is floor and ceiling, as under 1x"
    ]


def test_configs_that_are_the_same_here_are_named() -> None:
    same = "1x and again are the same for every task here: a difference of theirs is chance"
    assert notes(["1x", "again:cpus=1x"], {"a": Spec(1.0, GIB)}) == [same]
    assert notes(["1x", "again:cpus=1x,time=2x"], {"a": Spec(1.0, GIB)}) == []
    # Above the host's CPUs it is all one.
    found = notes(["n:cpus=3x", "m:cpus=uncapped"], {"a": Spec(1.0, GIB)})
    assert found[-1] == "n and m are the same for every task here: a difference of theirs is chance"


# On a real engine


@pytest.mark.engine
@pytest.mark.parametrize(
    "text",
    [
        "1x",
        "3x",
        "uncapped",
        "task",
        "ram:memory=1x..5x",
        "cpu:cpus=0.1x..uncapped",
        "amounts:memory=8M..100M,cpus=0.25..0.333",
        f"big:cpus=1x..{(psutil.cpu_count() or 1) * 3}",
    ],
)
def test_the_kernel_has_every_configs_limits(text: str) -> None:
    allocation = allocate(task(Spec(0.5, 64 * MIB, 1.5, 96 * MIB)), parse_config(text))
    backend = DockerBackend(f"test-{uuid4().hex[:12]}")
    try:
        box = backend.create(
            SandboxRequest(
                f"infranoise-test-{uuid4().hex[:12]}", "infranoise/base:bookworm", allocation, {}, network=False
            )
        )
        try:
            found = box.limits()
        finally:
            box.remove()
    finally:
        backend.remove_labelled({"infranoise.run": backend.run})
        backend.close()

    assert check_limits(allocation, found) == []
    assert found.memory == allocation.memory_ceiling
    assert found.memory_floor == allocation.memory_floor
    if allocation.cpus_ceiling is None:
        assert found.cpus is None
    else:
        assert found.cpus == pytest.approx(allocation.cpus_ceiling, abs=0.01)


@pytest.mark.engine
def test_a_run_has_every_config_it_was_asked_for(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = pytester.path / "suite"
    resources = {"cpus": 0.5, "memory": {"floor": "64M", "ceiling": "300M"}}
    # Needs more memory than the spec, and all the time that a deadline gives it.
    work = hold_memory(75) + "[ $? = 0 ] && echo done > answer.txt; sleep 60\n"
    make_task(suite, "job", solution=work, resources=resources, timeouts={"agent": 4})
    (suite / "infranoise.toml").write_text(
        "agent = 'oracle'\nsamples = 1\n[configs.slow]\nextends = 'task'\ntime = '1.5x'\n", "utf-8"
    )
    monkeypatch.setenv("COLUMNS", "300")
    options = ["--resource-config", "1x,task,slow", "--resource-config", "ram:memory=1x..5x,cpus=1x..1x"]

    result = pytester.runpytest_subprocess("suite", *options, "-n2")

    result.stdout.fnmatch_lines(
        [
            "floor: *: 1x = spec, task = the task's own, slow = *, ram = spec CPU and 5 x spec memory; agent "
            "timeout: slow = 1.5 x the task's",
            "task, slow: no ceiling above the spec is stated for CPU by 1 of 1 task; *",
        ]
    )
    run = read_run(find_run(pytester.path / ".infranoise" / "runs", None))
    assert [entry["name"] for entry in run.meta["configs"]] == ["1x", "task", "slow", "ram"]
    assert run.meta["configs"][2] == {
        "name": "slow",
        "cpus": {"floor": 1.0, "ceiling": "task"},
        "memory": {"floor": 1.0, "ceiling": "task"},
        "time": 1.5,
        "option": "slow:memory=task,cpus=task,time=1.5x",
    }
    records = {record.key.config: record for record in run.records}
    assert {name: record.cause or record.verdict for name, record in records.items()} == {
        "1x": "resource-kill",
        "task": "pass",
        "slow": "pass",
        "ram": "pass",
    }
    ceilings = {name: record.details["allocation"]["memory_ceiling"] for name, record in records.items()}
    assert ceilings == {"1x": 64 * MIB, "task": 300 * MIB, "slow": 300 * MIB, "ram": 320 * MIB}
    # What is compared is the clock of one phase under two deadlines, 2 s apart, each of them run into.
    assert all(Flag.TIMED_OUT in records[name].flags for name in ("task", "slow", "ram"))
    times = {name: record.details["phases"]["agent"]["seconds"] for name, record in records.items() if name != "1x"}
    assert times["slow"] > times["task"] + 1
