"""An engine with a small disk and few addresses, both of which run out."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_infranoise.model import Record
from pytest_infranoise.sandboxes.docker import DockerBackend
from tests.faults.conftest import Judge
from tests.faults.injections import SOLVE
from tests.faults.injections import Injections
from tests.trials.lab import Lab
from tests.trials.lab import beside
from tests.trials.second_engine import SecondEngine
from tests.trials.second_engine import second_engine
from tests.trials.second_engine import unavailable

pytestmark = pytest.mark.engine
INJECT = Injections()
ENGINES: list[SecondEngine] = []


@pytest.fixture(scope="module")
def small() -> Iterator[SecondEngine]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with second_engine(["--default-address-pool", "base=10.98.0.0/24,size=24"], disk=160) as small:
        ENGINES.append(small)
        yield small


@pytest.fixture
def small_lab(small: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("DOCKER_HOST", small.address)
    backend = DockerBackend(f"fault-{tmp_path.name}")
    yield Lab(tmp_path, backend, backend.run)
    backend.remove_labelled({"infranoise.run": backend.run})
    backend.close()


@contextlib.contextmanager
def disk_that_can_be_filled() -> Iterator[Path]:
    filler = ENGINES[0].data_root / "filler"
    try:
        yield filler
    finally:
        filler.unlink(missing_ok=True)


def fill(filler: Path) -> None:
    done = subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True)
    assert b"No space left" in done.stderr


@INJECT("full-data-root-create")
def full_at_create(lab: Lab) -> Record:
    with disk_that_can_be_filled() as filler:
        fill(filler)
        return lab.do(SOLVE)


@INJECT("full-data-root-agent")
def full_under_the_agent(lab: Lab) -> Record:
    return lab.do("head -c 300M /dev/zero >/big; exit 0", memory=512)


@INJECT("full-data-root-verifier")
def full_when_the_tests_come(lab: Lab) -> Record:
    with disk_that_can_be_filled() as filler:
        task = lab.task(verify="sh -c ': hard-at-work; while head -c 64k /dev/zero >>/more; do sleep 0.1; done'")
        with beside(lab, lambda _: fill(filler)):
            return lab.do(SOLVE, task)


@INJECT("network-pool-exhausted")
def no_address_left(lab: Lab) -> Record:
    (small,) = ENGINES
    assert small.docker("network", "create", "taken").returncode == 0
    try:
        return lab.do(SOLVE, lab.task(network=True))
    finally:
        small.docker("network", "rm", "taken")


@pytest.mark.parametrize("fault", INJECT)
def test_small_engine(fault: str, small_lab: Lab, judge: Judge) -> None:
    judge(fault, lambda: INJECT[fault](small_lab), small_lab.run)
