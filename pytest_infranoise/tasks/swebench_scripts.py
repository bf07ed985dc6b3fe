"""The shell scripts that grade and solve a SWE-bench instance in its container.

They print what ``trials.swebench`` reads: the tests' output between two markers, and after it their exit status
behind this run's nonce, which the tests themselves are not told.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.patches import Touched

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"

VERIFIER_DIR = "/infranoise/verifier"
SCRIPT = f"{VERIFIER_DIR}/run.sh"
TEST_PATCH = f"{VERIFIER_DIR}/test.patch"
GOLD_PATCH = "/infranoise/agent/gold.patch"

# SWE-bench's own scripts are written for bash; a command of somebody's may be too.
RUN = f'exec "$(command -v bash || command -v sh)" {SCRIPT}'

# `patch` takes what `git apply` finds too inexact, as SWE-bench does with the patches of models.
_APPLY = "command -v git >/dev/null && {1} apply --whitespace=nowarn {0} || patch --batch --fuzz=5 -p1 -i {0}"
GOLD_COMMAND = _APPLY.format(GOLD_PATCH, "git -c safe.directory='*'")
# As outside of any repository: one that the agent had may filter what is written into its files.
_ALONE = "GIT_DIR=/dev/null GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git"

_BEGIN = """\
exec 2>&1
infranoise_nonce=$INFRANOISE_NONCE
unset INFRANOISE_NONCE INFRANOISE_REWARD_FILE
"""
_REPORT = 'echo "the tests ended with exit status $infranoise_status ($infranoise_nonce)"'

# Where the agent may have changed the tests, they are the benchmark's again. Without git nothing can be restored,
# and a test that was changed makes the patch fail.
_RESTORE = """\
if command -v git >/dev/null; then
    {git} rev-parse -q --verify {commit}'^{{commit}}' >/dev/null || {{
        echo "the repository in $INFRANOISE_WORKDIR has no commit {commit}"; exit 1; }}
    # A checkout does what the repository is configured to: filters, hooks, nothing for files that look unchanged.
    restore() {{
        mode=$({git} ls-tree {commit} -- "$1") mode=${{mode%% *}}
        rm -rf -- "$1" && mkdir -p -- "$(dirname -- "$1")" || return 1
        case $mode in
            120000) ln -s -- "$({git} cat-file blob "{commit}:./$1")" "$1" ;;
            100*) {git} cat-file blob "{commit}:./$1" >"$1" && chmod "${{mode#100}}" "$1" ;;
            *) echo "commit {commit} has no file $1"; return 1 ;;
        esac
    }}
    for path in {paths}; do restore "$path" || exit 1; done
fi
"""
# A replaced object would be another commit under the same hash.
_GIT = "git --no-replace-objects -c safe.directory='*'"

# SWE-bench's tests run in a subshell of the script's own options, so that neither `set -e` nor an `exit` skips the
# end marker.
_SUITE_BEGINS = """\
infranoise_options=$-
set +e
(
case $infranoise_options in *e*) set -e ;; esac"""
_SUITE_ENDS = """\
)
infranoise_status=$?"""


def marked_script(eval_script: str) -> str:
    """Return SWE-bench's own script with its end marker reached always, and the tests' exit status behind it.

    Raises:
        Problem: the markers are not both there, in lines of their own.
    """
    lines = eval_script.splitlines()
    for marker in (START, END):
        if marker not in eval_script:
            raise Problem(f"does not print the marker {show(marker)}", "take the dataset's own, or test_cmd")
    end = max(index for index, line in enumerate(lines) if END in line)
    # A patch in the script may have the markers too, before those that count.
    start = max((index for index, line in enumerate(lines[:end]) if START in line), default=None)
    if start is None or START in lines[end]:
        remedy = "print each in a line of its own, around the command that runs the tests"
        raise Problem("does not print the start marker in a line before the end marker", remedy)
    suite = [_SUITE_BEGINS, *lines[start + 1 : end], _SUITE_ENDS]
    return _BEGIN + "\n".join([*lines[: start + 1], *suite, lines[end], _REPORT, *lines[end + 1 :]]) + "\n"


def command_script(commands: Sequence[str], test_files: Touched | None, base_commit: str | None) -> str:
    """Return a script that applies the test patch, if there is one, and runs the commands that run the tests.

    Without a ``base_commit`` nothing that the patch changes is restored before.
    """
    parts = [_BEGIN, 'cd "$INFRANOISE_WORKDIR" || exit 1\n']
    if test_files is not None:
        parts += [_restore(test_files, base_commit), f"{{ {_APPLY.format(TEST_PATCH, _ALONE)}; }} || {{\n"]
        parts += ['    echo "the test patch does not apply"; exit 1; }\n']
    # In one subshell: what one command sets up, the next one needs.
    runs = "".join(f"{{ {command}\n}} || infranoise_status=$?\n" for command in commands)
    parts += [f"echo '{START}'\n(\ninfranoise_status=0\n{runs}exit $infranoise_status\n)\n"]
    parts += [f"infranoise_status=$?\necho\necho '{END}'\n{_REPORT}\nexit $infranoise_status\n"]
    return "".join(parts)


def _restore(files: Touched, base_commit: str | None) -> str:
    commands = ""
    if files.changed and base_commit is not None:
        commands = _RESTORE.format(git=_GIT, commit=base_commit, paths=shlex.join(files.changed))
    if files.made:
        commands += f"command -v git >/dev/null && rm -f -- {shlex.join(files.made)}\n"
    return commands
