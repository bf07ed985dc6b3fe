"""The shell scripts that grade and solve a SWE-bench instance in its container.

They print what ``trials.swebench`` reads: the tests' output between two markers, and after it their exit status
behind this run's nonce, which the tests themselves are not told.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

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
_APPLY = (
    "command -v git >/dev/null && git -c safe.directory='*' apply --whitespace=nowarn {0} || "
    "patch --batch --fuzz=5 -p1 -i {0}"
)
GOLD_COMMAND = _APPLY.format(GOLD_PATCH)

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
    git -c safe.directory='*' rev-parse -q --verify {commit} >/dev/null || {{
        echo "the repository in $INFRANOISE_WORKDIR has no commit {name}"; exit 1; }}
{commands}fi
"""


def marked_script(eval_script: str) -> str:
    """Return SWE-bench's own script with the tests' exit status added behind its end marker."""
    lines = eval_script.splitlines()
    end = max(index for index, line in enumerate(lines) if END in line)
    lines[end:end] = ["infranoise_status=$?"]
    lines.insert(end + 2, _REPORT)
    return _BEGIN + "\n".join(lines) + "\n"


def command_script(commands: Sequence[str], test_files: Touched | None, base_commit: str) -> str:
    """Return a script that applies the test patch, if there is one, and runs the commands that run the tests."""
    parts = [_BEGIN, 'cd "$INFRANOISE_WORKDIR" || exit 1\n']
    if test_files is not None:
        parts += [_restore(test_files, base_commit), f"{{ {_APPLY.format(TEST_PATCH)}; }} || {{\n"]
        parts += ['    echo "the test patch does not apply"; exit 1; }\n']
    # In one subshell: what one command sets up, the next one needs.
    runs = "".join(f"{{ {command}\n}} || infranoise_status=$?\n" for command in commands)
    parts += [f"echo '{START}'\n(\ninfranoise_status=0\n{runs}exit $infranoise_status\n)\n"]
    parts += [f"infranoise_status=$?\necho\necho '{END}'\n{_REPORT}\nexit $infranoise_status\n"]
    return "".join(parts)


def _restore(files: Touched, base_commit: str) -> str:
    commands = ""
    if files.changed:
        paths = shlex.join(files.changed)
        commands += f"    git -c safe.directory='*' checkout -q {base_commit} -- {paths} || exit 1\n"
    if files.made:
        commands += f"    rm -f -- {shlex.join(files.made)}\n"
    commit = shlex.quote(f"{base_commit}^{{commit}}")
    return _RESTORE.format(commit=commit, name=base_commit, commands=commands)
