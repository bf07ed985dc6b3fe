"""Hundreds of short trials while workers are killed all the time and the whole session once: is anything lost?

Run by hand: ``python -m tests.benchmarks.soak``. Prints its figures, and ends with 1 when one is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import docker
import psutil
import pytest

from pytest_infranoise.host import Ledger
from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from tests.suite import make_task

CONFIGS = ("1x", "3x")
TASKS = 10
WARM = 25  # records after which a controller's memory has settled
MOST_GROWTH = 20.0  # MB


@dataclass
class Session:
    """A session as it goes: what was killed, and the memory of the process that the user started."""

    process: subprocess.Popen[bytes]
    killed: int = 0
    # MB, once a second, from the WARM'th record to the last: the summary after it loads numpy and scipy.
    memory: list[float] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """How much its memory grew, in MB."""
        return max(self.memory) - self.memory[0] if self.memory else 0.0


def main() -> int:
    """Run the soak and print what came out."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="infranoise-soak-") as text:
        root = Path(text)
        os.environ["INFRANOISE_STATE_DIR"] = str(root / "state")
        samples = -(-options.trials // (TASKS * len(CONFIGS)))
        _make_suite(root)
        began = time.monotonic()
        first = _start(root, options.workers, "--infranoise-samples", str(samples))
        trials = samples * TASKS * len(CONFIGS)
        _soak(root, first, options, end_at=int(trials * options.kill_controller_at))
        if first.process.poll() is None:
            first.process.kill()
        status = first.process.wait()
        print(f"controller killed (status {status}) at {_records(root)} records; resumed at once")
        second = _start(root, options.workers, "--infranoise-resume", "last")
        _soak(root, second, options, end_at=trials)
        second.process.wait()
        seconds = time.monotonic() - began
        problems = list(_judge(root, [first, second], trials, seconds))
        if problems:
            print("\n".join(f"NOT AS IT MUST BE: {problem}" for problem in problems))
            print((root / "output.txt").read_text("utf-8", "replace")[-4000:])
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kills of a worker")
    parser.add_argument(
        "--kill-controller-at", type=float, default=0.4, help="share of the trials recorded by then"
    )
    return parser.parse_args()


def _make_suite(root: Path) -> None:
    suite = root / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text(f"agent = 'oracle'\nresource-configs = {json.dumps(CONFIGS)}\n", "utf-8")
    for number in range(TASKS):
        # Half of them on the run's network, which has to go in the end as well.
        make_task(suite, f"task-{number}", resources={"cpus": 0.1, "memory": "32M"}, network=number % 2 == 0)


def _start(root: Path, workers: int, *arguments: str) -> Session:
    command = [sys.executable, "-m", "pytest", "suite", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    with (root / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [*command, "--max-worker-restart", "10000", *arguments],
            cwd=root,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Session(process)


def _soak(root: Path, session: Session, options: argparse.Namespace, end_at: int) -> None:
    """Watch a session and kill its workers, until it ends or so many trials have a record."""
    before, due, shown = _records(root), time.monotonic() + options.kill_every, 0.0
    while session.process.poll() is None:
        records = _records(root)
        if records >= end_at:
            return
        if records - before >= WARM:
            session.memory.append(psutil.Process(session.process.pid).memory_info().rss / 1e6)
        if time.monotonic() >= due and records > before:
            session.killed += _kill_a_worker(session.process.pid)
            due = time.monotonic() + options.kill_every
        if time.monotonic() >= shown:
            print(f"  {records} records, {session.killed} workers killed", flush=True)
            shown = time.monotonic() + 30
        time.sleep(1)


def _kill_a_worker(controller: int) -> bool:
    workers = [child for child in psutil.Process(controller).children() if "execnet" in " ".join(_cmdline(child))]
    if workers:
        os.kill(random.choice(workers).pid, signal.SIGKILL)
    return bool(workers)


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        line: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return line if "-c" not in line else [*line, "execnet"]  # how execnet starts its interpreters


def _finished(root: Path) -> Iterator[tuple[str, ...]]:
    """Yield trial and attempt of every finished line there is, as often as it is there."""
    for file in root.glob(".infranoise/runs/*/trials-*.jsonl"):
        for line in file.read_text("ascii", "replace").splitlines():
            if line.startswith('{"event": "finished"') and line.endswith("}"):
                entry = json.loads(line)
                yield tuple(str(entry[name]) for name in ("agent", "task", "config", "sample", "attempt"))


def _records(root: Path) -> int:
    return sum(1 for _ in _finished(root))


def _judge(root: Path, sessions: list[Session], trials: int, seconds: float) -> Iterator[str]:
    run = read_run(find_run(root / ".infranoise" / "runs", None))
    client = docker.from_env()
    containers = client.containers.list(all=True, filters={"label": f"infranoise.run={run.path.name}"})
    networks = client.networks.list(filters={"label": f"infranoise.run={run.path.name}"})
    alive = Ledger(client.info()["ID"]).living_runs()
    client.close()
    twice = [place for place, number in Counter(_finished(root)).items() if number > 1]
    verdicts = Counter(str(record.cause or record.verdict) for record in run.records)
    print(f"{trials} trials at {len(sessions)} sessions in {seconds:.0f} s: {trials / seconds:.2f} per second")
    print(f"planned {len(run.planned)} = recorded {len(run.records)} + missing {len(run.missing)}")
    print(f"verdicts: {dict(verdicts)}")
    print(f"workers killed: {[session.killed for session in sessions]}; controller killed once")
    print(f"attempts that began and never ended: {len(run.unfinished)}; torn journal lines: {run.damaged}")
    print(f"finished lines of one attempt twice: {len(twice)}; later attempts with a record: {len(run.retries)}")
    print(f"left: {len(containers)} containers, {len(networks)} networks, {len(alive)} owners of floors")
    print(f"controller's memory: {[f'{max(s.memory, default=0):.0f} MB, +{s.growth:.1f} MB' for s in sessions]}")
    print(f"exit status of the resumed session: {sessions[1].process.returncode}")
    if not len(run.planned) == len(run.records) == trials or run.missing:
        yield "not every trial has a record"
    if twice or run.retries:
        yield "something was recorded twice"
    if containers or networks or alive:
        yield "something is left"
    if verdicts.keys() - {"pass", "harness-crash"} or verdicts["harness-crash"] > sum(s.killed for s in sessions):
        yield "trials ended as something else than passes and the crashes that were made"
    if sessions[1].process.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        yield "the resumed session did not end as one does in which every trial has a record"
    if any(session.growth >= MOST_GROWTH for session in sessions):
        yield f"the controller grew by {MOST_GROWTH:.0f} MB or more"


if __name__ == "__main__":
    sys.exit(main())
