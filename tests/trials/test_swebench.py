from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.agents.builtin import make_builtin
from pytest_infranoise.agents.protocol import AgentContext
from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Record
from pytest_infranoise.model import Task
from pytest_infranoise.model import Verdict
from pytest_infranoise.tasks import swebench_scripts
from pytest_infranoise.tasks.patches import touched
from pytest_infranoise.tasks.swebench import load
from pytest_infranoise.trials import swebench
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.swebench import grade
from tests.tasks.instances import ABSENT
from tests.tasks.instances import EVAL_SCRIPT
from tests.tasks.instances import TEST_PATCH
from tests.tasks.instances import TESTS
from tests.tasks.instances import instance
from tests.tasks.instances import write_instances
from tests.trials.lab import Lab

NONCE = "c0ffee"
OPTIONS = {"parser": "pytest", "fail_to_pass": ["t::new"], "pass_to_pass": ["t::old", "t::other"]}
GOOD = "PASSED t::new\nPASSED t::old\nSKIPPED t::other\n"


def printed(suite: str, status: int | str = 0) -> str:
    end = f"the tests ended with exit status {status} ({NONCE})"
    return f"+ : '{swebench.START}'\n{suite}+ : '{swebench.END}'\n{end}\n+ rm leftover\n"


class TestGrade:
    @pytest.mark.parametrize(
        ("parser", "line"), [("pytest-progress", "build ERROR"), ("unittest", "ERROR: Could not connect")]
    )
    def test_errors_of_what_starts_the_tests_are_no_result(self, parser: str, line: str) -> None:
        artefact = grade(printed(f"{line}\n", 1), {**OPTIONS, "parser": parser}, NONCE)
        assert (artefact.status, artefact.reward) == (ArtefactStatus.MALFORMED, None)

    def test_everything_passed(self) -> None:
        artefact = grade(printed(GOOD), OPTIONS, NONCE)
        assert (artefact.status, artefact.reward, artefact.tests) == (ArtefactStatus.COMPLETE, 1.0, 3)
        assert artefact.text == "1 of 1 FAIL_TO_PASS and 2 of 2 PASS_TO_PASS passed"

    @pytest.mark.parametrize(
        ("suite", "status", "text"),
        [
            (GOOD.replace("PASSED t::new", "FAILED t::new - no"), 1, "0 of 1 * 2 of 2 *; not: t::new (failed)"),
            (GOOD.replace("PASSED t::old", "ERROR t::old"), 1, "1 of 1 * 1 of 2 *; not: t::old (error)"),
            # A skipped test was not broken, but nothing was solved by skipping it.
            (GOOD.replace("PASSED t::new", "SKIPPED t::new"), 0, "*; not: t::new (skipped)"),
            (
                "== 1 error in 0.10s ==\n",
                2,
                "0 of 1 * 0 of 2 *; not: t::new (no result), * (the tests ended with: 1 error)",
            ),
            (
                "ERROR t - SyntaxError\n== 1 error in 0.10s ==\n",
                2,
                "*; not: t::new (no result), t::old (no result), t::other (no result) (*1 error)",
            ),
            (
                "ERROR t::new - fixture\nSKIPPED t::old\n== 1 skipped, 1 error in 0.10s ==\n",
                1,
                "*; not: t::new (error), t::other (no result) (*1 skipped, 1 error)",
            ),
            ("PASSED t::old\nPASSED t::other\n", 0, "*; not: t::new (no result)"),
        ],
    )
    def test_not_everything_passed(self, suite: str, status: int, text: str) -> None:
        artefact = grade(printed(suite, status), OPTIONS, NONCE)
        assert (artefact.status, artefact.reward, artefact.tests) == (ArtefactStatus.COMPLETE, 0.0, 3)
        pytest.LineMatcher([artefact.text]).fnmatch_lines([text])

    @pytest.mark.parametrize(
        ("output", "status", "text"),
        [
            ("", ArtefactStatus.MISSING, "the tests' output has no start: "),
            ("error: patch failed", ArtefactStatus.MISSING, "the tests' output has no start: error: patch failed"),
            (f"{swebench.START}\n{GOOD}", ArtefactStatus.MISSING, "the tests' output has no end: *"),
            (printed("sh: pytest: not found\n", 127), ArtefactStatus.MALFORMED, "no test's result can be read: *"),
            # Not the tests' errors, but of what should have started them.
            *(
                (printed(f"{line}\n", 1), ArtefactStatus.MALFORMED, "no test's result can be read: *")
                for line in (
                    "pytest: command not found\nERROR conda.cli.main_run:execute(49): `conda run pytest` failed.",
                    "ERROR    tox:main.py:3 no such env",
                    "ERROR tests/test_x.py - killed before the last line",
                    "SKIPPED t::new\nSKIPPED t::old\n== 2 skipped in 0.10s ==",
                )
            ),
            (printed("no tests ran in 0.1s\n", 5), ArtefactStatus.MALFORMED, "no test's result can be read: *"),
            (printed("1 passed in 0.1s\n", 1), ArtefactStatus.MALFORMED, "no test's result can be read: *"),
            (printed("1 error in 0.1s\n").partition(swebench.END)[0], ArtefactStatus.MISSING, "* no end: *"),
            (printed(GOOD, 3), ArtefactStatus.MALFORMED, "no test failed, but their exit status is 3: *"),
            (printed(GOOD, ""), ArtefactStatus.MALFORMED, "no test failed, but their exit status is not known: *"),
            # Tests do not know the nonce, and cannot say how they ended.
            (
                printed(GOOD, 1).replace(NONCE, "other"),
                ArtefactStatus.MALFORMED,
                "no test failed, but their exit status is not known: *",
            ),
        ],
    )
    def test_what_is_no_verdict(self, output: str, status: ArtefactStatus, text: str) -> None:
        artefact = grade(output, OPTIONS, NONCE)
        assert (artefact.status, artefact.reward) == (status, None)
        pytest.LineMatcher([artefact.text]).fnmatch_lines([text])

    def test_an_end_marker_that_a_test_prints_ends_nothing(self) -> None:
        suite = f"PASSED t::new\n{swebench.END}\nFAILED t::old\nPASSED t::other\n"
        assert grade(printed(suite, 1), OPTIONS, NONCE).reward == 0.0

    def test_scripts_print_what_is_read(self) -> None:
        assert (swebench_scripts.START, swebench_scripts.END) == (swebench.START, swebench.END)


# What an image of SWE-bench has and the base image has not: the repository, and a program that applies patches.
PATCH_PROGRAM = r"""#!/usr/bin/perl
# Applies patches that fit exactly: patch [OPTIONS] -i FILE
my $from = (grep { $_ eq "-i" } @ARGV) ? $ARGV[-1] : "-";
open(my $patch, $from eq "-" ? "<&STDIN" : "<$from") or die "$from: $!\n";
my ($name, @old, @new, %files);
sub place {
    return unless defined $name && (@old || @new);
    my ($old, $new) = (join("", @old), join("", @new));
    my $at = index($files{$name}, $old);
    die "$name: a hunk does not fit\n" if $at < 0;
    substr($files{$name}, $at, length($old)) = $new;
    @old = @new = ();
}
while (<$patch>) {
    if (/^\+\+\+ b\/(.*)/) {
        $name = $1;
        open(my $in, "<", $name) or die "$name: $!\n";
        $files{$name} = join("", <$in>);
    }
    elsif (/^(diff|@@|---) ?/) { place(); $name = undef if $1 eq "diff" }
    elsif (/^ (.*)/s) { push @old, $1; push @new, $1 }
    elsif (/^-(.*)/s) { push @old, $1 }
    elsif (/^\+(.*)/s) { push @new, $1 }
}
place();
for (keys %files) { open(my $out, ">", $_) or die; print $out $files{$_} }
"""
SETUP = f"""\
mkdir tests
cat >add.sh <<'EOF'
# usage: add.sh A B
echo $(($1 - $2))
EOF
cat >tests/run.sh <<'EOF'
{TESTS}EOF
cat >/usr/local/bin/patch <<'EOF'
{PATCH_PROGRAM}EOF
chmod +x /usr/local/bin/patch
"""
OWN = {
    "resources": {"cpus": 1, "memory": "64M"},
    "timeouts": {"setup": 30, "agent": 30, "verifier": 30},
    "setup": SETUP,
    "network": False,
    "pull": "never",
}
SCRIPT = EVAL_SCRIPT % TEST_PATCH
BY_SCRIPT = {"test_cmd": ABSENT, "eval_script": SCRIPT}
STRICT = {**BY_SCRIPT, "eval_script": SCRIPT.replace("set -uxo", "set -euxo")}
EXITS = {**BY_SCRIPT, "eval_script": SCRIPT.replace("sh tests/run.sh\n", ". tests/run.sh\n")}
WAYS = pytest.mark.parametrize(
    "changes", [{}, BY_SCRIPT, STRICT, EXITS], ids=["test_cmd", "eval_script", "set -e", "exit"]
)
FIX = "sed -i 's/ - / + /' add.sh"


def loaded(lab: Lab, **changes: Any) -> Task:
    file = write_instances(lab.path / "instances.jsonl", instance(infranoise=OWN, **changes))
    (found,) = load(file)
    assert isinstance(found.task, Task), found.task
    return found.task


def oracle(lab: Lab, task: Task) -> Record:
    trial = replace(lab.trial(task), agent=AgentChoice("oracle", "oracle"))
    return lab.run_trial(trial, make_builtin(AgentContext(trial.agent, trial.task, trial.key, lab.seed)))


class TestRestoredTests:
    """The script that runs tests, run here by a shell, in a repository that has git."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        if shutil.which("git") is None:
            pytest.skip("no git command")
        root = tmp_path / "repository"
        (root / "tests").mkdir(parents=True)
        (root / "add.sh").write_text("echo $(($1 + $2))\n")
        (root / "tests" / "run.sh").write_text(TESTS)
        self.git(root, "init", "-q")
        self.git(root, "add", ".")
        self.git(root, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "base")
        return root

    def git(self, root: Path, *arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, repository: Path, patch: str, base_commit: str) -> str:
        script = swebench_scripts.command_script(["sh tests/run.sh"], touched(patch), base_commit)
        file = repository.parent / "test.patch"
        file.write_text(patch)
        environment = {**os.environ, "INFRANOISE_WORKDIR": str(repository), "INFRANOISE_NONCE": NONCE}
        text = script.replace(swebench_scripts.TEST_PATCH, str(file))
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, env=environment)
        return done.stdout

    def grade(self, repository: Path, patch: str = TEST_PATCH, base_commit: str = "HEAD") -> Artefact:
        options = {"parser": "pytest", "fail_to_pass": ["tests/run.sh::test_sum"], "pass_to_pass": []}
        return grade(self.run(repository, patch, base_commit), options, NONCE)

    def test_tests_that_the_agent_changed_are_the_benchmark_s_again(self, repository: Path) -> None:
        (repository / "tests" / "run.sh").write_text("echo PASSED tests/run.sh::test_sum\n")
        (repository / "add.sh").write_text("echo 0\n")
        assert self.grade(repository).reward == 0.0

    def test_also_when_it_committed_them(self, repository: Path) -> None:
        base = self.git(repository, "rev-parse", "HEAD")
        (repository / "tests" / "run.sh").write_text("echo PASSED tests/run.sh::test_sum\n")
        self.git(repository, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-a", "-m", "y")
        assert self.grade(repository, base_commit=base).reward == 1.0
        assert "check test_zero" in (repository / "tests" / "run.sh").read_text()

    def test_also_when_it_put_another_commit_in_the_place_of_the_base(self, repository: Path) -> None:
        base = self.git(repository, "rev-parse", "HEAD")
        (repository / "tests" / "run.sh").write_text("echo PASSED tests/run.sh::test_sum\n")
        self.git(repository, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-a", "-m", "y")
        self.git(repository, "replace", base, "HEAD")
        (repository / "add.sh").write_text("echo 0\n")
        assert self.grade(repository, base_commit=base).reward == 0.0

    def test_also_when_git_is_made_to_see_no_change(self, repository: Path) -> None:
        base, file = self.git(repository, "rev-parse", "HEAD"), repository / "tests" / "run.sh"
        before, size = file.stat(), file.stat().st_size
        self.git(repository, "config", "core.trustctime", "false")
        self.git(repository, "update-index", "--assume-unchanged", "tests/run.sh")
        file.write_text("echo PASSED tests/run.sh::test_sum\n".ljust(size))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        (repository / "add.sh").write_text("echo 0\n")
        assert self.grade(repository, base_commit=base).reward == 0.0

    @pytest.mark.parametrize("how", ["filter", "hook", "link", "directory"])
    def test_also_when_restoring_is_made_to_do_something_else(self, repository: Path, how: str) -> None:
        base, file = self.git(repository, "rev-parse", "HEAD"), repository / "tests" / "run.sh"
        forged = "echo PASSED tests/run.sh::test_sum"
        file.unlink()
        match how:
            case "filter":
                (repository / ".git" / "info" / "attributes").write_text("* filter=x\n")
                self.git(repository, "config", "filter.x.smudge", f"cat >/dev/null; echo {forged!r}")
            case "hook":
                hook = repository / ".git" / "hooks" / "post-checkout"
                hook.write_text(f"#!/bin/sh\necho {forged!r} > tests/run.sh\n")
                hook.chmod(0o755)
            case "link":
                file.symlink_to("/dev/null")
            case "directory":
                file.mkdir()
        (repository / "add.sh").write_text("echo 0\n")
        assert self.grade(repository, base_commit=base).reward == 0.0
        assert "check test_zero" in file.read_text()

    def test_a_file_that_may_be_run_still_may(self, repository: Path) -> None:
        file = repository / "tests" / "run.sh"
        file.chmod(0o755)
        self.git(repository, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-a", "-m", "y")
        base = self.git(repository, "rev-parse", "HEAD")
        file.chmod(0o600)
        assert self.grade(repository, base_commit=base).reward == 1.0
        assert file.stat().st_mode & 0o777 == 0o755

    def test_a_file_of_the_test_patch_that_the_agent_made_too(self, repository: Path) -> None:
        header = "diff --git a/tests/new b/tests/new\nnew file mode 100644\n--- /dev/null\n+++ b/tests/new\n"
        made = f"{header}@@ -0,0 +1 @@\n+x\n"
        (repository / "tests" / "new").write_text("the agent's\n")
        assert self.grade(repository, TEST_PATCH + made).reward == 1.0
        assert (repository / "tests" / "new").read_text() == "x\n"

    def test_a_base_commit_that_is_not_there_is_no_verdict(self, repository: Path) -> None:
        artefact = self.grade(repository, base_commit="0" * 40)
        assert artefact.status is ArtefactStatus.MISSING
        assert f"has no commit {'0' * 40}" in artefact.text

    def test_tests_are_told_neither_nonce_nor_place_of_a_verdict(self, repository: Path) -> None:
        (repository / "add.sh").write_text("env | grep INFRANOISE_ >&2; echo $(($1 + $2))\n")
        output = self.run(repository, TEST_PATCH, "HEAD")
        assert "INFRANOISE_WORKDIR" in output
        assert "INFRANOISE_NONCE" not in output
        assert output.count(NONCE) == 1


@pytest.mark.engine
class TestTrials:
    @WAYS
    def test_the_gold_patch_passes(self, lab: Lab, changes: dict[str, Any]) -> None:
        record = oracle(lab, loaded(lab, **changes))
        assert record.verdict is Verdict.PASS, record.summary
        assert record.details["artefact"]["tests"] == 2

    @WAYS
    def test_doing_nothing_fails(self, lab: Lab, changes: dict[str, Any]) -> None:
        record = lab.do("true", loaded(lab, **changes))
        assert (record.verdict, record.reason) == (Verdict.FAIL, FailReason.TESTS_FAILED)
        assert record.details["artefact"]["text"].endswith("; not: tests/run.sh::test_sum (failed)")

    def test_what_breaks_another_test_fails(self, lab: Lab) -> None:
        record = lab.do("echo 'echo 7' > add.sh", loaded(lab))
        assert (record.verdict, record.reason) == (Verdict.FAIL, FailReason.TESTS_FAILED)
        assert record.details["artefact"]["text"].endswith("; not: tests/run.sh::test_zero (failed)")

    @pytest.mark.parametrize(
        ("changes", "summary"),
        [
            ({"test_cmd": "no-such-runner tests"}, "no-such-runner"),
            ({"test_cmd": "sh tests/run.sh; exit 3"}, "exit status"),
            ({"test_cmd": "sh tests/run.sh; kill -9 $PPID"}, ""),
            ({"test_cmd": "if"}, ""),
            ({"test_cmd": "cd /nowhere && sh tests/run.sh"}, "no test's result can be read"),
        ],
    )
    def test_broken_tests_are_no_verdict(self, lab: Lab, changes: dict[str, Any], summary: str) -> None:
        file = write_instances(lab.path / "instances.jsonl", {**instance(infranoise=OWN), **changes})
        (found,) = load(file)
        assert isinstance(found.task, Task), found.task
        record = lab.do(FIX, found.task)
        assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.VERIFIER_ERROR), record.summary
        assert summary in json.dumps(record.details["artefact"]) + record.summary

    def test_a_test_patch_that_does_not_apply_is_no_verdict(self, lab: Lab) -> None:
        record = lab.do(f"{FIX}; echo true > tests/run.sh", loaded(lab))
        assert (record.verdict, record.cause) == (Verdict.INFRA_ERROR, Cause.VERIFIER_ERROR)
        assert record.summary.endswith("the test patch does not apply)")

    def test_neither_tests_nor_gold_patch_are_there_while_the_agent_works(self, lab: Lab) -> None:
        look = (
            "! grep -rl -e test_sum -e 'usage: add' /infranoise /tmp /testbed --include='*.patch' --include=run.sh"
        )
        record = lab.do(look, loaded(lab))
        assert record.reason is FailReason.TESTS_FAILED  # an agent that found one would have ended with 1

    @pytest.mark.parametrize(("agent", "outcomes"), [("oracle", {"passed": 2}), ("nop", {"failed": 2})])
    def test_through_pytest(self, pytester: pytest.Pytester, agent: str, outcomes: dict[str, int]) -> None:
        write_instances(
            pytester.path / "swe.jsonl",
            instance(infranoise=OWN),
            instance(infranoise=OWN, instance_id="acme__adder-2", **BY_SCRIPT),
        )
        result = pytester.runpytest_subprocess(
            *("swe.jsonl", "--infranoise-agent", agent, "--infranoise-samples", "1", "--resource-config", "3x")
        )
        result.assert_outcomes(**outcomes)
