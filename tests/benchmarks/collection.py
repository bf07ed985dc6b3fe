"""What many trials cost before the first container: collection, and the way of each item through xdist. By hand.

    python -m tests.benchmarks.collection [--items 10000] [--repeat 3] [--no-sessions]

Compares a suite of tasks with as many plain parametrised functions: CPU seconds and memory of `pytest
--collect-only`, in all and per item (what is left after taking away a session with one sample), and CPU seconds of
a whole session at -n 2 in which every item does nothing (the fixture that runs the trial is overridden, so the
session has no records and ends with status 20). Ratios, ours over plain, with the lowest and the highest of the
repetitions. The targets are those of collection: 1.3 in CPU, 1 in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.suite import make_task

TASKS = 100
CONFIGS = ("1x", "uncapped")
CPU_TARGET, MEMORY_TARGET = 1.3, 1.0

NO_TRIAL = """\
import pytest
from pytest_infranoise.model import Record, TrialKey, Verdict

NOTHING = Record(
    run="", key=TrialKey("", "", "", "", 0), attempt=0, task_hash="", verdict=Verdict.PASS, rule="", summary=""
)

@pytest.fixture
def infranoise_trial():
    return NOTHING
"""
PLAIN = """\
import pytest

@pytest.fixture
def nothing():
    return None

def pytest_generate_tests(metafunc):
    samples = metafunc.config.option.infranoise_samples or {samples}
    metafunc.parametrize("sample", range(samples))

@pytest.mark.parametrize("config", {configs})
@pytest.mark.parametrize("task", range({tasks}))
def test_nothing(nothing, task, config, sample):
    pass
"""


class Cost(NamedTuple):
    """CPU seconds, of workers too, and the memory of the largest process in MiB."""

    cpu: float
    memory: float


def cost(place: Path, *arguments: str) -> Cost:
    """Return what a pytest session costs."""
    # Compiled modules are kept, as they are wherever pytest is installed to be used.
    kept = {"INFRANOISE_STATE_DIR": str(place / "state"), "PYTHONDONTWRITEBYTECODE": ""}
    environment = {**os.environ, **kept}
    probe = (
        "import json, resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, done.returncode)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [sys.executable, "-c", probe, *command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    cpu, memory, status = done.stdout.split()
    if int(status) not in (0, 5, 20):
        raise SystemExit(f"pytest {' '.join(arguments)} in {place}: status {status}\n{done.stderr}")
    return Cost(float(cpu), float(memory))


def compare(ours: Path, plain: Path, repeat: int, *arguments: str) -> list[tuple[Cost, Cost]]:
    """Return the costs of ours and of plain, once per repetition, the two taking turns."""
    found = []
    cost(ours, "suite", "--collect-only", "-k", "nothing-of-that-name")
    for _ in range(repeat):
        one, other = cost(ours, "suite", *arguments), cost(plain, "test_plain.py", *arguments)
        print(
            f"  {' '.join(arguments):24} ours {one.cpu:6.2f} s {one.memory:5.0f} MiB   "
            f"plain {other.cpu:6.2f} s {other.memory:5.0f} MiB",
            flush=True,
        )
        found.append((one, other))
    return found


def ratios(costs: Sequence[tuple[Cost, Cost]]) -> tuple[list[float], list[float]]:
    """Return ours over plain, in CPU and in memory."""
    return [one.cpu / other.cpu for one, other in costs], [one.memory / other.memory for one, other in costs]


def rest(costs: Sequence[tuple[Cost, Cost]], less: Sequence[tuple[Cost, Cost]]) -> list[tuple[Cost, Cost]]:
    """Return what is left of costs after taking away the cheapest of what costs less."""
    least = [Cost(*(min(values) for values in zip(*side, strict=True))) for side in zip(*less, strict=True)]
    taken = ((one, other, *least) for one, other in costs)
    return [
        (Cost(one.cpu - a.cpu, one.memory - a.memory), Cost(other.cpu - b.cpu, other.memory - b.memory))
        for one, other, a, b in taken
    ]


def told(name: str, ratios: Sequence[float], target: float | None = None) -> bool:
    """Print the median and the spread of ratios; whether the target is met."""
    middle = statistics.median(ratios)
    text = f"{name:34} {middle:5.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]"
    print(text if target is None else f"{text}  target {target:.2f}")
    return target is None or middle <= target


def main() -> int:
    """Measure, print, and return 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-sessions", action="store_true", help="collection only")
    chosen = parser.parse_args()
    samples = max(1, chosen.items // (TASKS * len(CONFIGS)))
    with tempfile.TemporaryDirectory(prefix="infranoise-collection-") as directory:
        ours, plain = Path(directory, "ours"), Path(directory, "plain")
        for number in range(TASKS):
            make_task(ours / "suite", f"t{number:03}")
        configs = ", ".join(f"'{config}'" for config in CONFIGS)
        (ours / "suite" / "infranoise.toml").write_text(
            f"agent = 'oracle'\nsamples = {samples}\nresource-configs = [{configs}]\n", "utf-8"
        )
        (ours / "conftest.py").write_text(NO_TRIAL, "utf-8")
        plain.mkdir()
        text = PLAIN.format(samples=samples, configs=CONFIGS, tasks=TASKS)
        (plain / "test_plain.py").write_text(text, "utf-8")
        for place in (ours, plain):
            (place / "pytest.ini").write_text("[pytest]\n", "utf-8")
        print(f"{TASKS * len(CONFIGS) * samples} items, ours and plain parametrised functions:")
        collected = compare(ours, plain, chosen.repeat, "--collect-only")
        few = compare(ours, plain, chosen.repeat, "--collect-only", "--infranoise-samples=1")
        run = [] if chosen.no_sessions else compare(ours, plain, chosen.repeat, "-n2")
    print("\nours over plain, median and range:")
    cpu, memory = ratios(collected)
    met = told("collection, CPU", cpu, CPU_TARGET)
    met &= told("collection, memory", memory, MEMORY_TARGET)
    cpu, memory = ratios(rest(collected, few))
    told("collection, CPU per item", cpu)
    told("collection, memory per item", memory)
    if run:
        cpu, memory = ratios(run)
        told("session of empty items, CPU", cpu)
        told("session of empty items, memory", memory)
    print("all targets met" if met else "TARGETS MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
