"""How well trials of mixed floors fill a budget: real containers, real sessions. Run by hand.

    python -m tests.benchmarks.packing [--workers 4 8 16] [--orders shuffled packed] [--seed 1]

Prints, for each order and number of workers, the highest sum of floors of containers that ran at the same time
(from the engine's own start and die events) and the makespan over a lower bound, once from the time for which
floors were held and once from the containers' own times. The bound is the largest of: all work (floor x time) over
the budget, the longest trial, all time over the workers, and for every k the time of those of which no more than k
fit at once over k. The shuffled runs come first: packed then knows how long trials take, as a user's second run
does. Absolute times mean nothing on a machine that others use; the ratios do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NamedTuple

import docker

from pytest_infranoise.journal import Run
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from tests.suite import make_task

MIB = 1024**2
TRIALS = 60
BUDGET = 1000 * MIB
TARGETS = {"shuffled": 1.15, "packed": 1.10}
# CPU is not what is packed here: floors so small that sixteen fit on two cores, and a ceiling out of the way.
CPUS = 0.1
CONFIG = "pack:memory=1x..1x,cpus=1x..2"


class Stay(NamedTuple):
    """When something took how much."""

    began: float
    ended: float
    memory: int


def make_suite(root: Path, seed: int) -> dict[str, int]:
    """Write the tasks and return the floor of each in bytes."""
    draw = random.Random(seed)
    floors = {f"t{number:02}": draw.randrange(64, 513, 16) * MIB for number in range(TRIALS)}
    for name, floor in floors.items():
        seconds = round(draw.uniform(3, 9), 2)
        solution = f"sleep {seconds}; echo done > answer.txt\n"
        make_task(root, name, resources={"cpus": CPUS, "memory": floor}, solution=solution)
    (root / "infranoise.toml").write_text("agent = 'oracle'\nsamples = 1\n", "utf-8")
    return floors


@contextlib.contextmanager
def watched() -> Iterator[list[dict[str, Any]]]:
    """Yield a list that start and die events of all trials' containers are appended to."""
    client = docker.from_env()
    filters = {"type": "container", "event": ["start", "die"], "label": ["infranoise.run"]}
    stream = client.events(decode=True, filters=filters)
    collected: list[dict[str, Any]] = []

    def read() -> None:
        with contextlib.suppress(Exception):  # closing the stream ends it in any of several ways
            for event in stream:
                collected.append(event)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield collected
    finally:
        stream.close()
        thread.join(10)
        client.close()


def of_containers(events: Sequence[Mapping[str, Any]], run: str, floors: Mapping[str, int]) -> list[Stay]:
    """Return when the containers of a run ran, by the engine's word."""
    began: dict[str, float] = {}
    stays = []
    for event in events:
        attributes = event["Actor"]["Attributes"]
        if attributes.get("infranoise.run") != run:
            continue
        if event["Action"] == "start":
            began[event["Actor"]["ID"]] = event["timeNano"] / 1e9
        else:
            floor = floors[attributes["infranoise.trial"].partition("::")[0]]
            stays.append(Stay(began.pop(event["Actor"]["ID"]), event["timeNano"] / 1e9, floor))
    assert not began, f"{len(began)} containers of {run} never stopped"
    return stays


def of_floors(run: Run, floors: Mapping[str, int]) -> list[Stay]:
    """Return when floors were held, by the records."""
    times = ((record.details["times"], floors[record.key.task]) for record in run.records)
    return [Stay(moments["admitted"], moments["removed"], floor) for moments, floor in times]


def peak(stays: Sequence[Stay]) -> int:
    """Return the highest sum of floors at any time."""
    return max(sum(other.memory for other in stays if other.began <= stay.began < other.ended) for stay in stays)


def ratio(stays: Sequence[Stay], workers: int) -> float:
    """Return the makespan over the lower bound."""
    makespan = max(stay.ended for stay in stays) - min(stay.began for stay in stays)
    seconds = [stay.ended - stay.began for stay in stays]
    bounds = [
        sum(second * stay.memory for second, stay in zip(seconds, stays, strict=True)) / BUDGET,
        max(seconds),
        sum(seconds) / workers,
    ]
    for few in range(1, 16):
        large = (second for second, stay in zip(seconds, stays, strict=True) if stay.memory > BUDGET / (few + 1))
        bounds.append(sum(large) / few)
    return makespan / max(bounds)


def session(place: Path, order: str, workers: int) -> Run:
    """Run all trials once."""
    options = [
        f"-n{workers}",
        f"--infranoise-order={order}",
        f"--infranoise-host-memory={BUDGET}",
        f"--resource-config={CONFIG}",
        f"--infranoise-run-dir={place / 'runs'}",
        "-q",
    ]
    environment = {**os.environ, "INFRANOISE_STATE_DIR": str(place / "state")}
    command = [sys.executable, "-m", "pytest", "suite", *options]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    run = read_run(find_run(place / "runs", None))
    if done.returncode or len(run.records) != TRIALS:
        raise SystemExit(f"{order}, {workers} workers: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return run


def main() -> int:
    """Measure, print, and return 0 when all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--orders", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    met = True
    with tempfile.TemporaryDirectory(prefix="infranoise-packing-") as directory:
        place = Path(directory)
        floors = make_suite(place / "suite", chosen.seed)
        (place / "pytest.ini").write_text(f"[pytest]\ninfranoise_seed = {chosen.seed}\n", "utf-8")
        print(f"{TRIALS} trials, floors of 64 to 512 MiB, budget {BUDGET // MIB} MiB; makespan over lower bound:")
        print(f"{'order':10} {'workers':>7} {'peak MiB':>9} {'floors held':>12} {'containers':>11} {'target':>7}")
        for order in chosen.orders:
            for workers in chosen.workers:
                with watched() as events:
                    run = session(place, order, workers)
                containers, held = of_containers(events, str(run.meta["run"]), floors), of_floors(run, floors)
                assert len(containers) == TRIALS
                found, top = ratio(held, workers), max(peak(containers), peak(held))
                print(
                    f"{order:10} {workers:7} {top / MIB:9.0f} {found:12.3f} {ratio(containers, workers):11.3f} "
                    f"{TARGETS[order]:7.2f}  floor and start: {run.meta['schedule']['correlation']['memory']:+.2f}",
                    flush=True,
                )
                met = met and found <= TARGETS[order] and top <= BUDGET
    print("all targets met" if met else "TARGETS MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
