"""SWE-bench instances of our own: a repository with one shell script, and tests that print what pytest prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ABSENT = object()

GOLD = """\
diff --git a/add.sh b/add.sh
--- a/add.sh
+++ b/add.sh
@@ -1,2 +1,2 @@
 # usage: add.sh A B
-echo $(($1 - $2))
+echo $(($1 + $2))
"""
TEST_PATCH = """\
diff --git a/tests/run.sh b/tests/run.sh
--- a/tests/run.sh
+++ b/tests/run.sh
@@ -10,2 +10,3 @@
 check test_zero 5 0 5
+check test_sum 5 2 7
 exit $failed
"""
TESTS = """\
failed=0
check() {
    if [ "$(sh add.sh "$2" "$3")" = "$4" ]; then
        echo "PASSED tests/run.sh::$1"
    else
        echo "FAILED tests/run.sh::$1 - not $4"
        failed=1
    fi
}
check test_zero 5 0 5
exit $failed
"""
EVAL_SCRIPT = """\
#!/bin/bash
set -uxo pipefail
cd /testbed
patch --batch -p1 -i - <<'EOF_1234'
%sEOF_1234
: '>>>>> Start Test Output'
sh tests/run.sh
: '>>>>> End Test Output'
rm -f leftover
"""

GOOD: Mapping[str, Any] = {
    "instance_id": "acme__adder-1",
    "repo": "acme/adder",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "image": "infranoise/base:bookworm",
    "problem_statement": "add.sh subtracts.\n",
    "patch": GOLD,
    "test_patch": TEST_PATCH,
    "test_cmd": "sh tests/run.sh",
    "FAIL_TO_PASS": '["tests/run.sh::test_sum"]',
    "PASS_TO_PASS": ["tests/run.sh::test_zero"],
    "version": "1.0",
    "environment_setup_commit": "0123456789abcdef",
    "hints_text": "",
    "infranoise": {"resources": {"cpus": 1, "memory": "64M"}},
}


def instance(**changes: Any) -> dict[str, Any]:
    """Return a right instance, with keys changed, added, or (``ABSENT``) taken out."""
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not ABSENT}


def write_instances(file: Path, *instances: Mapping[str, Any] | str) -> Path:
    """Write JSON lines; a text is written as it is."""
    lines = (line if isinstance(line, str) else json.dumps(line) for line in instances)
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return file
