"""Sessions whose agents say their secrets in every way there is: nothing that is kept or printed has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_infranoise.journal import find_run
from pytest_infranoise.journal import read_run
from tests.suite import make_task

pytestmark = pytest.mark.engine

TOKEN = "tr0ub4dor&<3>\"q's$\\n"  # what XML, JSON, Python and shells each write in another way
KEY = "-----BEGIN KEY-----\nabcd1234efgh5678\nij kl\n-----END KEY-----"
PIN = "42"
# No whole secret, and no part of one that is worth having.
PARTS = (TOKEN, TOKEN[:10], TOKEN[-10:], "abcd1234efgh", "1234efgh5678", "BEGIN KEY")

TELL = r"""echo "echoed $TOKEN"; echo "echoed $TOKEN" >&2; printf '%s\n' "$KEY" "token $TOKEN" "$KEY" >&2
perl -e '$| = 1; for (split //, "slowly $ENV{TOKEN} $ENV{KEY}") { print; select undef, undef, undef, 0.02 }'
perl -e 'print "x" x 70000, $ENV{TOKEN}, "y" x 150, $ENV{TOKEN}, "\n"'
touch -- "$TOKEN" "$TOKEN.txt"; ls
cp -- "$TOKEN" /nowhere/ || perl -e 'print STDERR "cannot open $ENV{TOKEN}: ", "z" x 185, $ENV{TOKEN}, "\n"'
echo done > answer.txt
exit 3
"""
# The verifier is told nothing, and sees what the agent left.
VERIFY = r"""cd "$INFRANOISE_WORKDIR"; ls; reward=$(grep -c nothing answer.txt)
printf '{"reward": %s, "nonce": "%s", "tests": 1}\n' "$reward" "$INFRANOISE_NONCE" > "$INFRANOISE_REWARD_FILE"
ls -1 | tail -n 1
"""
AGENT = """\
import os
import sys

from pytest_infranoise.agents.protocol import AgentResult
from pytest_infranoise.model import Cause

class Talkative:
    def __init__(self, task):
        self.name = task.name

    @property
    def secrets(self):
        return [os.environ["TOKEN"], os.environ["KEY"]]

    def setup(self, sandbox):
        token, key = self.secrets
        print(token, key, file=sys.stderr)
        print(token, key)
        if self.name == "setup":
            sandbox.exec(["sh", "-c", "echo $0; exit 1", key])
            raise ValueError(key, token)

    def run(self, instruction, sandbox):
        token, key = self.secrets
        sandbox.write(f"/app/{token}", key.encode())
        if self.name == "raises":
            raise RuntimeError(f"token {token} refused, and {key!r} and " + key)
        if self.name == "exits":
            sys.exit(token)
        if self.name == "upload":
            sandbox.read(f"/nowhere/{token}")
        details = {token: [key], "deep": {"er": token * 300}}
        return AgentResult(None, Cause.MODEL_API, f"{token} {key}", details)

def pytest_infranoise_make_agent(context):
    return Talkative(context.task) if context.choice.kind == "talkative" else None
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
def test_no_secret_is_kept_or_printed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    for name, value in (("TOKEN", TOKEN), ("KEY", KEY), ("PIN", PIN)):
        monkeypatch.setenv(name, value)
    suite = pytester.path / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text(
        "agent = ['teller', 'talkative']\nresource-configs = ['1x']\nsamples = 1\n"
        f"[agents.teller]\nkind = 'command'\ncommand = {json.dumps(TELL)}\nenv = ['TOKEN', 'KEY', 'PIN']\n"
        "[agents.talkative]\nkind = 'talkative'\n",
        "utf-8",
    )
    pytester.makeconftest(AGENT)
    for task in ("setup", "raises", "exits", "upload", "says"):
        make_task(suite, task, verify=VERIFY)

    options = ["-vv", "-rA", "-l", "--tb=long", "--junitxml=junit.xml", "--infranoise-retries", "1"]
    result = pytester.runpytest_subprocess("suite", *options, *workers)

    run = read_run(find_run(pytester.path / ".infranoise" / "runs", None))
    ends = {f"{one.key.agent}-{one.key.task}": one.cause or one.reason for one in run.records}
    assert ends == {
        **{f"teller-{task}": "agent-crash" for task in ("setup", "raises", "exits", "upload", "says")},
        "talkative-setup": "setup-failed",
        "talkative-raises": "harness-crash",
        "talkative-exits": "harness-crash",
        "talkative-upload": "harness-crash",
        "talkative-says": "model-api",
    }
    printed = result.stdout.str() + result.stderr.str()
    kept = {path: path.read_text("utf-8", "surrogateescape") for path in pytester.path.rglob("*") if path.is_file()}
    told = {path for path, text in kept.items() if any(form in text for part in PARTS for form in forms(part))}
    assert told == set()
    assert not [part for part in PARTS for form in forms(part) if form in printed]
    assert not [path for path in pytester.path.rglob("*") if any(part in path.name for part in PARTS)]
    # What was said is there all the same.
    logs = {path.name for path in kept if path.suffix == ".log"}
    assert {"agent.log", "verifier.log", "agent-host.log"} <= logs
    agent_log = next(text for path, text in kept.items() if path.name == "agent.log" and "slowly" in text)
    assert "\ntoken ***\n" in agent_log
    assert "echoed ***" in agent_log
    assert "slowly *** ***" in agent_log
    # A value that is too short to be masked is named, once.
    assert printed.count("the value of PIN can stand in logs and records") == 1
    assert "the value of PIN can stand in logs and records: under 4 characters nothing is masked" in " ".join(
        run.meta["config_notes"]
    )


def forms(part: str) -> set[str]:
    escaped = part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {part, json.dumps(part)[1:-1], repr(part)[1:-1], escaped, escaped.replace('"', "&quot;")}


def test_where_a_secret_is_told_is_found(tmp_path: Path) -> None:
    """The search above finds what it is meant to find."""
    for form in forms(TOKEN):
        assert any(other in f"x{form}y" for part in PARTS for other in forms(part))


LEAKY = """\
import os

made = []

class Leaky:
    def __init__(self, kind):
        made.append(kind)
        # The first one is made while the session is planned.
        if kind != "late" or len(made) > 1:
            raise (ValueError if kind == "refuses" else RuntimeError)("bad key " + os.environ["TOKEN"])

    def setup(self, sandbox):
        pass

    def run(self, instruction, sandbox):
        pass

def pytest_infranoise_make_agent(context):
    return Leaky(context.choice.kind) if context.choice.kind in ("refuses", "raises", "late") else None
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["plain", "n2"])
@pytest.mark.parametrize("kind", ["refuses", "raises", "late"])
def test_an_agent_that_cannot_be_made_tells_no_secret(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str], kind: str
) -> None:
    """Neither while the session is planned nor when its trial comes."""
    monkeypatch.setenv("TOKEN", TOKEN)
    suite = pytester.path / "suite"
    suite.mkdir()
    (suite / "infranoise.toml").write_text(
        "agent = 'leaky'\nresource-configs = ['1x']\nsamples = 1\n"
        f"[agents.leaky]\nkind = '{kind}'\nenv = ['TOKEN']\n",
        "utf-8",
    )
    pytester.makeconftest(LEAKY)
    make_task(suite, "job")

    result = pytester.runpytest_subprocess("suite", "-rA", "-l", "--tb=long", "--junitxml=junit.xml", *workers)

    printed = result.stdout.str() + result.stderr.str()
    assert "bad key ***" in printed
    kept = {path: path.read_text("utf-8", "surrogateescape") for path in pytester.path.rglob("*") if path.is_file()}
    told = [path for path, text in kept.items() if any(form in text for form in forms(TOKEN))]
    assert told == []
    assert not [form for form in forms(TOKEN) if form in printed]
    if kind == "late":
        assert "bad key ***" in kept[pytester.path / "junit.xml"]
