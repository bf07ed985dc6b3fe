"""What follows from signs of tampering: never a pass, and never more than they prove."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Upload
from pytest_infranoise.model import Verdict
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import Integrity
from pytest_infranoise.trials.sent import Sent
from pytest_infranoise.trials.verdict import judge
from tests.agents.sandbox import MemorySandbox
from tests.trials.test_any_evidence import _anything
from tests.trials.test_any_evidence import _changed
from tests.trials.test_any_evidence import _policies
from tests.trials.test_verdict import FAIL
from tests.trials.test_verdict import PASS

FORGED = Integrity(forged=("reward.txt was there again",))
DOUBTED = Integrity(doubts=("/usr/bin/bash was modified by hand",))
NOTED = Integrity(notes=("/usr/bin/bash was modified by a package manager",))


@pytest.mark.parametrize(
    ("evidence", "integrity", "outcome", "flags"),
    [
        (PASS, FORGED, FailReason.SANDBOX_BROKEN, (Flag.TAMPERED,)),
        (FAIL, FORGED, FailReason.SANDBOX_BROKEN, (Flag.TAMPERED,)),
        (PASS, DOUBTED, Cause.VERIFIER_ERROR, (Flag.TAMPERED,)),
        (FAIL, DOUBTED, FailReason.TESTS_FAILED, (Flag.TAMPERED,)),
        (PASS, NOTED, None, (Flag.TOOLS_CHANGED,)),
        (FAIL, NOTED, FailReason.TESTS_FAILED, (Flag.TOOLS_CHANGED,)),
        (PASS, Integrity(others=("server",), unseen=("files",)), None, ()),
    ],
)
def test_the_line(
    evidence: Evidence, integrity: Integrity, outcome: Cause | FailReason | None, flags: tuple[Flag, ...]
) -> None:
    decision = judge(replace(evidence, integrity=integrity), Policy())
    assert isinstance(decision, Decision)
    assert (decision.cause or decision.reason, decision.flags) == (outcome, flags)


_texts = st.lists(st.just("sign"), max_size=1).map(tuple)
_integrity = st.builds(Integrity, forged=_texts, doubts=_texts, notes=_texts)


@settings(max_examples=500, deadline=None)
@given(_anything() | _changed(), _integrity, _policies)
def test_no_sign_makes_a_pass_and_no_doubt_makes_a_fail(
    evidence: Evidence, integrity: Integrity, policy: Policy
) -> None:
    without, with_signs = judge(evidence, policy), judge(replace(evidence, integrity=integrity), policy)
    if not isinstance(without, Decision) or not isinstance(with_signs, Decision):
        assert type(without) is type(with_signs)
        return
    if with_signs.verdict is Verdict.PASS:
        assert without.verdict is Verdict.PASS
        assert not integrity.forged
        assert not integrity.doubts
    if with_signs.verdict is Verdict.FAIL and without.verdict is not Verdict.FAIL:
        assert integrity.forged
    if not integrity.forged and not integrity.doubts:
        assert (with_signs.verdict, with_signs.rule) == (without.verdict, without.rule)


def test_of_two_files_with_one_path_the_later_one_was_sent() -> None:
    sent = Sent([Upload(b"first", "/t/f"), Upload(b"second", "/t/f")])
    box = MemorySandbox()
    box.files["/t/f"] = b"second"
    assert sent.changed(box) == []
    box.files["/t/f"] = b"first"
    (changed,) = sent.changed(box)
    assert sent.name(changed) == "/t/f"


@pytest.mark.parametrize(
    ("left", "cut"), [(b"", True), (b"what", True), (b"what was sent", True), (b"evil", False)]
)
def test_what_a_full_disk_leaves_of_a_file(left: bytes, cut: bool) -> None:
    (file,) = Sent([Upload(b"what was sent", "/f")]).changed(MemorySandbox())
    assert file.begins_with(left) is cut
