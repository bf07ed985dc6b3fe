"""What follows from signs of tampering: never a pass, and never more than they prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.agents.secrets import Masker
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.model import Upload
from pytest_infranoise.model import Verdict
from pytest_infranoise.model import Verifier
from pytest_infranoise.sandboxes.protocol import DISGUISED
from pytest_infranoise.sandboxes.protocol import Change
from pytest_infranoise.sandboxes.protocol import FileStat
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.trials.decision import Decision
from pytest_infranoise.trials.decision import Policy
from pytest_infranoise.trials.evidence import Evidence
from pytest_infranoise.trials.evidence import Integrity
from pytest_infranoise.trials.integrity import Witness
from pytest_infranoise.trials.integrity import names
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


@pytest.mark.parametrize(
    ("text", "knows"),
    [
        ("tail -f /logs/verifier/reward.txt", True),
        ("sh -c 'echo 1>/logs/verifier/reward.txt'", True),
        ("server --at=/logs/verifier", True),
        ("sleep 9 [in /logs/verifier]", True),
        ("sleep 9 [holds /logs/verifier/reward.txt]", True),
        ("cat //logs/./verifier/reward.txt", True),
        ("cat /proc/1/root/logs/verifier/reward.txt", True),
        ("server /var/logs/verifier", False),
        ("server /var/logs/verifier-old", False),
        ("server /logs/verifier-old", False),
        ("server /logs/verifier.bak", False),
        ("server /logs/verifiers/x", False),
    ],
)
def test_a_place_is_known_by_whole_parts_of_a_path(text: str, knows: bool) -> None:
    assert names(text, "/logs/verifier") is knows


def test_a_place_that_is_the_beginning_of_a_name() -> None:
    assert names("cat /infranoise/reward-0123/reward.json", "/infranoise/reward-")
    assert names("grep x /infranoise/reward-*", "/infranoise/reward-")
    assert not names("server /infranoise/reward", "/infranoise/reward-")
    assert not names("server /app/infranoise/reward-1", "/infranoise/reward-")


class Crowded(MemorySandbox):
    """A container in which something runs, or everything fails, with a long text about it."""

    workdir = "/"
    search_path = ""

    def __init__(self, told: str, changed: list[str], *, fails: bool = False) -> None:
        super().__init__()
        self.told, self.changed, self.fails = told, changed, fails
        self.runs: dict[str, str] = {}

    def stat(self, path: str) -> None:
        return None

    def digest(self, path: str) -> None:
        return None

    def digest_at_hand(self, path: str, limit: int) -> None:
        return None

    def digests(self, path: str, limit: int) -> None:
        return None

    def changes(self, wanted: Callable[[str], object]) -> dict[str, Change]:
        if self.fails:
            raise SandboxError("changes", self.told)
        return {path: "modified" for path in self.changed if wanted(path)}

    def processes(self) -> dict[str, str]:
        return self.runs


TASK = Task("t", Path("/t"), "", None, None, Spec(1, 1), Verifier("true", None), "", workdir="/app")
SECRET = "sk-live-0123456789-abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("before", range(250, 301, 7))
@pytest.mark.parametrize("fails", [True, False])
def test_secrets_are_masked_before_anything_is_cut(before: int, fails: bool) -> None:
    told = f"/logs/verifier {'x' * before} {SECRET} more"
    box = Crowded(told, [], fails=fails)
    witness = Witness(box, Masker([SECRET]).text)
    witness.setup_is_over(TASK)
    box.runs = {"7:1": told}
    witness.verifier_comes(TASK, ["/logs/verifier"])
    texts = [*(witness.found.others or ()), *witness.found.doubts, *witness.found.unseen]
    assert texts
    assert not any("sk-" in text for text in texts)
    assert all(len(text) <= 300 for text in texts)


def at_work(box: Crowded, **left: str) -> Witness:
    """Return who has seen what an agent left running, and that the verifier started."""
    witness = Witness(box)
    witness.setup_is_over(TASK)
    box.runs = dict(left)
    come(witness)
    assert witness.verifier_starts([])
    return witness


def come(witness: Witness) -> None:
    """Have a witness see that the verifier comes."""
    witness.verifier_comes(TASK, ["/logs/verifier"])


@pytest.mark.parametrize(
    ("left", "later", "doubted"),
    [
        ({"7:1": "sh"}, {"7:1": "sh"}, False),
        ({"7:1": "sh"}, {"7:1": "server --port 80"}, False),
        ({"7:1": "sh"}, {"7:1": f"sleep {DISGUISED}"}, True),
        ({"7:1": "sh"}, {"7:1": "sh [holds /logs/verifier/reward.txt]"}, True),
        ({"7:1": "sh"}, {"8:1": f"sleep {DISGUISED}"}, True),
        ({"7:1": "sh"}, {"7:2": "tee /logs/verifier/out.txt"}, False),
        ({}, {"7:1": "tee /logs/verifier/out.txt"}, False),
    ],
)
def test_what_was_left_running_is_looked_at_again(
    left: dict[str, str], later: dict[str, str], doubted: bool
) -> None:
    """At the first look it may only just have begun; what runs beside it later may be the verifier's own."""
    box = Crowded("", [])
    witness = at_work(box, **left)
    assert witness.found.doubts == ()
    box.runs = later
    witness.verifier_is_over(list, [], "/end")
    assert bool(witness.found.doubts) is doubted


@pytest.mark.parametrize("left", [{}, {"7:1": "sh"}])
@pytest.mark.parametrize(
    ("later", "doubted"),
    [
        ("server --port 80", False),
        ("tee /logs/verifier/out.txt", True),
        (f"sleep {DISGUISED}", True),
    ],
)
def test_what_has_begun_since_the_first_look_is_the_agents(left: dict[str, str], later: str, doubted: bool) -> None:
    """Nothing of the verifier runs before it starts; what setup left is nobody's doing."""
    box = Crowded("", [])
    box.runs = {"2:1": "daemon"}
    witness = Witness(box)
    witness.setup_is_over(TASK)
    box.runs |= left
    come(witness)
    assert witness.found.others == tuple(left.values())
    box.runs |= {"9:1": later}
    assert witness.verifier_starts([])
    assert witness.found.others == (*left.values(), later)
    assert bool(witness.found.doubts) is doubted
    box.runs = {"9:1": "tee /logs/verifier/more.txt"}
    witness.verifier_is_over(list, [], "/end")
    assert any("more.txt" in text for text in witness.found.doubts)


def test_files_that_are_changed_by_what_has_only_begun() -> None:
    """Whoever changed them may have come after the first look."""
    box = Crowded("", [])
    witness = Witness(box)
    witness.setup_is_over(TASK)
    come(witness)
    (file,) = Sent([Upload(b"what was sent", "/f")]).changed(box)
    box.files["/f"] = b"evil"
    box.runs = {"9:1": "server"}
    witness.not_as_sent([file], lambda file: file.path)
    assert witness.found.forged


def test_a_verifier_that_is_stopped_is_looked_at_before_everything_is_killed() -> None:
    box = Crowded("", [])
    witness = at_work(box, **{"7:1": "sh"})
    box.runs = {"7:1": "sh [holds /logs/verifier/reward.txt]"}
    witness.verifier_is_stopped()
    box.runs = {}
    witness.verifier_is_over(list, [], "/end")
    assert witness.found.doubts


def test_too_many_files_of_setup_are_told() -> None:
    few = Witness(Crowded("", [f"/opt/c/conda-meta/{number}.json" for number in range(400)] + ["/usr/bin/cat"]))
    few.setup_is_over(TASK)
    assert few.found.unseen == ()
    many = Witness(Crowded("", [f"/opt/{number}/setup.cfg" for number in range(400)] + ["/usr/bin/cat"]))
    many.setup_is_over(TASK)
    assert many.found.unseen == ("files changed by setup: only 300 of 401 are remembered",)


class Installed(Crowded):
    """A container in which setup installed things; digests are known where the engine's storage is read."""

    def __init__(self, changed: dict[str, Change], file: FileStat, digest: str | None) -> None:
        super().__init__("", [])
        self.said, self.file, self.at_hand = changed, file, digest

    def stat(self, path: str) -> FileStat | None:  # type: ignore[override]
        return self.file if path.rpartition("/")[2] != "bin" else replace(self.file, kind="directory")

    def digest_at_hand(self, path: str, limit: int) -> str | None:  # type: ignore[override]
        return self.at_hand if self.file.size <= limit else None

    def changes(self, wanted: Callable[[str], object]) -> dict[str, Change]:
        return {path: change for path, change in self.said.items() if wanted(path)}


TOOL = FileStat("file", 100, 7 * 10**9, 0o755)


@pytest.mark.parametrize(
    ("now", "digests", "doubted", "noted"),
    [
        (TOOL, ("a", "a"), False, False),
        (TOOL, (None, None), False, False),
        # What was remembered cannot be read now, or the other way round: what is left is size and time.
        (TOOL, ("a", None), False, False),
        (TOOL, (None, "a"), False, False),
        (TOOL, ("a", "b"), True, False),
        (replace(TOOL, mode=0o700), ("a", "a"), False, True),
        (replace(TOOL, mode=0o700), (None, None), False, True),
        (replace(TOOL, modified=8 * 10**9), ("a", "a"), False, True),
        (replace(TOOL, modified=8 * 10**9), (None, None), True, False),
        (replace(TOOL, size=101), ("a", "a"), True, False),
        (replace(TOOL, size=99), ("a", "b"), True, False),
        (replace(TOOL, kind="link", link="/tmp/x"), ("a", None), True, False),
    ],
)
def test_what_became_of_a_program_that_setup_installed(
    now: FileStat, digests: tuple[str | None, str | None], doubted: bool, noted: bool
) -> None:
    box = Installed({"/usr/local/bin/cat": "added"}, TOOL, digests[0])
    witness = Witness(box)
    witness.setup_is_over(TASK)
    box.file, box.at_hand = now, digests[1]
    witness.verifier_comes(TASK, [])
    assert (bool(witness.found.doubts), bool(witness.found.notes)) == (doubted, noted)


@pytest.mark.parametrize("said", [True, False])
def test_a_directory_that_setup_changed_and_the_agent_removed(said: bool) -> None:
    """Where the storage is read, its files are named and it is not."""
    box = Installed({"/usr/local/bin": "modified"}, TOOL, None)
    witness = Witness(box)
    witness.setup_is_over(TASK)
    box.said = {"/usr/bin/node": "added", **({"/usr/local/bin": "deleted"} if said else {})}
    witness.verifier_comes(TASK, [])
    assert bool(witness.found.doubts) is said
    assert witness.found.unseen == ()


def test_the_verifiers_own_path_is_the_one_that_counts() -> None:
    box = Installed({}, TOOL, None)
    box.search_path = "/opt/tools:/usr/bin"
    own = replace(TASK, verifier=replace(TASK.verifier, environment={"PATH": "/opt/mine:/usr/bin"}))
    for task, doubted in ((TASK, "/opt/tools/cat"), (own, "/opt/mine/cat")):
        box.said = {}
        witness = Witness(box)
        witness.setup_is_over(task)
        box.said = {"/opt/tools/cat": "added", "/opt/mine/cat": "added"}
        witness.verifier_comes(task, [])
        (doubt,) = witness.found.doubts
        assert doubt.startswith(doubted)
