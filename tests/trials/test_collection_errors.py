"""Tests that cannot be imported, in every format: the agent's fail where pytest proves that it ran, or no verdict.

What pytest prints is printed by the pytest of today.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Record
from tests.tasks.foreign import terminal_bench_task
from tests.trials.lab import SAY
from tests.trials.lab import Lab
from tests.trials.test_foreign import REWARD
from tests.trials.test_foreign import harbor
from tests.trials.test_foreign import loaded
from tests.trials.test_runner import fail
from tests.trials.test_runner import infra
from tests.trials.test_runner import outcome
from tests.trials.test_swebench import loaded as instance

pytestmark = pytest.mark.engine

MISSING_MODULE = {"test_it.py": "import what_the_agent_should_have_written\ndef test_it(): pass\n"}
NOTHING_RAN = {
    "no tests": {"test_it.py": ""},
    "all skipped": {"test_it.py": "import pytest\npytest.skip('no', allow_module_level=True)\n"},
    "conftest": {**MISSING_MODULE, "conftest.py": "import nothing_like_that\n"},
    "usage": {"pytest.ini": "[pytest]\naddopts = --no-such-option\n"},
    "internal error": {
        "test_it.py": "def test_it(): pass\n",
        "conftest.py": "def pytest_collection_modifyitems(): raise OSError('disk')\n",
    },
}


def by_native(lab: Lab, run: str, status: int) -> Record:
    said = SAY.replace('"%s"}', '"%s", "tests": 0}')
    return lab.do("exit 0", lab.task(verify=f"{run}\nreward=0\n{said}"))


def by_harbor(lab: Lab, run: str, status: int) -> Record:
    report = "/logs/verifier/ctrf.json"
    tests = f'# pytest --ctrf {report}\n{run}\necho \'{{"results": {{"summary": {{"tests": 0}}}}}}\' > {report}\n'
    return lab.do("exit 0", harbor(lab, f"{tests}echo 0 > {REWARD}.txt"))


def by_terminal_bench(lab: Lab, run: str, status: int) -> Record:
    return lab.do("exit 0", loaded(terminal_bench_task(lab.path / "bench", run_tests=f"#!/bin/bash\n{run}\n")))


def by_swebench(lab: Lab, run: str, status: int) -> Record:
    return lab.do("exit 0", instance(lab, test_cmd=f"{run}\nexit {status}"))


FORMATS = pytest.mark.parametrize("do", [by_native, by_harbor, by_terminal_bench, by_swebench])


def pytest_says(root: Path, files: dict[str, str], *options: str) -> tuple[str, int]:
    """Return a command that prints what pytest prints, and pytest's exit status."""
    root.mkdir()
    (root / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (root / name).write_text(text)
    argv = [sys.executable, "-m", "pytest", "-p", "no:infranoise", "-p", "no:cacheprovider", *options, "."]
    done = subprocess.run(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return f"cat <<'END OF OUTPUT'\n{done.stdout}\nEND OF OUTPUT", done.returncode


@FORMATS
def test_errors_at_collection_are_the_agent_s_fail(
    lab: Lab, tmp_path: Path, do: Callable[[Lab, str, int], Record]
) -> None:
    run, status = pytest_says(tmp_path / "suite", MISSING_MODULE, "-rA")
    assert status == pytest.ExitCode.INTERRUPTED
    record = do(lab, run, status)
    assert outcome(record) == fail(FailReason.TESTS_FAILED), record.summary


@pytest.mark.parametrize("do", [by_native, by_harbor, by_swebench])
def test_pytest_s_last_line_is_enough(lab: Lab, tmp_path: Path, do: Callable[[Lab, str, int], Record]) -> None:
    run, status = pytest_says(tmp_path / "suite", MISSING_MODULE, "--no-summary", "-q")
    assert "short test summary" not in run
    record = do(lab, run, status)
    assert outcome(record) == fail(FailReason.TESTS_FAILED), record.summary
    assert "ended with: 1 error" in record.details["artefact"]["text"]
    assert record.details["artefact"]["source"].endswith("last line")  # weak evidence, and marked so


@FORMATS
@pytest.mark.parametrize("files", NOTHING_RAN.values(), ids=list(NOTHING_RAN))
def test_what_no_test_tool_proves_is_no_verdict(
    lab: Lab, tmp_path: Path, do: Callable[[Lab, str, int], Record], files: dict[str, str]
) -> None:
    run, status = pytest_says(tmp_path / "suite", files, "-rA")
    assert status != pytest.ExitCode.INTERRUPTED
    record = do(lab, run, status)
    assert outcome(record) == infra(Cause.VERIFIER_ERROR), record.summary
    assert record.reward is None


@FORMATS
def test_a_bootstrap_that_failed_is_no_verdict(lab: Lab, do: Callable[[Lab, str, int], Record]) -> None:
    record = do(lab, 'echo "error: could not download the runner: 1 error"', 1)
    assert outcome(record) == infra(Cause.VERIFIER_ERROR), record.summary
