"""A verifier that stated a number has spoken, also where that is no verdict: such a trial is never tried again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_infranoise.model import Cause
from pytest_infranoise.model import Verdict
from pytest_infranoise.retries import may_retry
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.trials.artefact import parse_artefact
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import PhaseEvidence
from pytest_infranoise.trials.pytest_summary import read as read_summary
from pytest_infranoise.trials.readers import Reading
from pytest_infranoise.trials.reward_files import read
from pytest_infranoise.trials.verdict import judge
from tests.builders import key
from tests.builders import record


class _Files:
    """The files of a container."""

    def __init__(self, **files: bytes) -> None:
        self._files = {f"/logs/{name.replace('_', '.')}": content for name, content in files.items()}

    def read(self, path: str, _limit: int) -> bytes:
        if path not in self._files:
            raise FileMissing("read", path)
        return self._files[path]


def of_files(ctrf: dict[str, Any] | None = None, **files: bytes) -> Artefact:
    if ctrf is not None:
        files["ctrf_json"] = json.dumps({"results": {"summary": ctrf}}).encode()
    sandbox: Any = _Files(**files)
    options = {"files": ["/logs/reward.json", "/logs/reward.txt"], "ctrf": "/logs/ctrf.json", "writes_ctrf": True}
    return read(Reading(sandbox, "", "", options=options))


NO_TESTS = {"tests": 0, "passed": 0, "failed": 0, "skipped": 0, "pending": 0, "other": 0}


@pytest.mark.parametrize(
    ("artefact", "stated"),
    [
        (of_files(reward_txt=b"0"), 0),  # pytest would have left a report
        (of_files(NO_TESTS, reward_txt=b"0"), 0),
        (of_files(NO_TESTS, reward_txt=b"1"), 1),
        (of_files(reward_json=b"{", reward_txt=b"0"), 0),
        (of_files(reward_json=b"{", reward_txt=b"1"), 1),
        (parse_artefact(b'{"reward": 0, "nonce": "n", "tests": 0}', "n"), 0),
        (parse_artefact(b'{"reward": 1, "nonce": "n", "tests": 0}', "n"), 1),
        (parse_artefact(b'{"reward": 0, "nonce": "n", "tests": -1}', "n"), 0),
        (parse_artefact(b'{"reward": -1, "nonce": "n"}', "n"), -1),
        (of_files(), None),
        (of_files(reward_txt=b"?"), None),
        (of_files(reward_txt=b"nan"), None),
        (parse_artefact(b"{", "n"), None),
        (parse_artefact(b'{"reward": NaN, "nonce": "n"}', "n"), None),
        (parse_artefact(b'{"reward": "1", "nonce": "n"}', "n"), None),
        # Whoever does not know the nonce is not this verifier.
        (parse_artefact(b'{"reward": 0, "nonce": "m"}', "n"), None),
    ],
)
def test_what_is_no_verdict_keeps_its_number(artefact: Artefact, stated: float | None) -> None:
    assert artefact.reward is None
    assert artefact.stated == stated
    decision = judge(Evidence(verifier=PhaseEvidence(None, entered=True, ended=True), artefact=artefact), Policy())
    assert isinstance(decision, Decision)
    assert decision.cause is Cause.VERIFIER_ERROR
    details = {"artefact": {"stated": artefact.stated}}
    told = record(key(), Verdict.INFRA_ERROR, cause=decision.cause, details=details)
    assert may_retry(told, 9, 0) is (stated is None)


@pytest.mark.parametrize("reward", [0, 1])
def test_a_verdict_keeps_none_beside_it(reward: int) -> None:
    artefact = of_files({**NO_TESTS, "tests": 1, "passed": 1}, reward_txt=str(reward).encode())
    assert (artefact.reward, artefact.stated) == (reward, None)


def test_a_pass_that_is_none_because_its_output_was_cut_off_is_stated() -> None:
    """A fail counts there, so the pass must not be what is tried again."""
    sandbox: Any = None
    output = b"===== short test summary info =====\nPASSED t.py::a\n1 passed in 0.1s\n"
    artefact = read_summary(Reading(sandbox, "", "", output, cut=True))
    assert (artefact.reward, artefact.stated) == (None, 1)
