"""Task directories in the formats of Harbor and Terminal-Bench 1, written from a few words."""

from __future__ import annotations

from pathlib import Path

IMAGE = "infranoise/base:bookworm"

HARBOR = f"""
version = "1.0"

[metadata]
author_name = "somebody"
difficulty = "easy"
category = "files"
tags = ["one", "two words"]

[verifier]
timeout_sec = 20.0

[agent]
timeout_sec = 20.0

[environment]
build_timeout_sec = 600.0
docker_image = "{IMAGE}"
cpus = 1
memory = "64M"
storage = "10G"
"""
GRADE = """#!/bin/bash
if [ "$(cat /app/answer 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE = "#!/bin/bash\nmkdir -p /app && . /solution/answer.sh\n"

TERMINAL_BENCH = """
instruction: |-
  Write done to the file /app/answer.
author_name: somebody
author_email: somebody@example.org
difficulty: easy
category: files
tags:
  - one
parser_name: pytest
max_agent_timeout_sec: 20.0
max_test_timeout_sec: 20.0
run_tests_in_same_shell: false
"""
COMPOSE = """
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
# There is no Python in the image: the script prints what pytest would.
RUN_TESTS = """#!/bin/bash
cd "$TEST_DIR" || exit 9
echo "=================== short test summary info ===================="
if [ "$(cat /app/answer 2>/dev/null)" = done ]; then
    echo "PASSED $TEST_DIR/test_outputs.py::test_answer"
    echo "PASSED $TEST_DIR/test_outputs.py::test_other"
    echo "====================== 2 passed in 0.05s ======================="
else
    echo "PASSED $TEST_DIR/test_outputs.py::test_other"
    echo "FAILED $TEST_DIR/test_outputs.py::test_answer - AssertionError: no answer"
    echo "================= 1 failed, 1 passed in 0.05s =================="
fi
"""


def write(root: Path, files: dict[str, str]) -> Path:
    """Write files below a directory."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def harbor_task(root: Path, toml: str = HARBOR, *, test: str = GRADE, instruction: str = "Write done.\n") -> Path:
    """Write a complete Harbor task."""
    files = {
        "task.toml": toml,
        "instruction.md": instruction,
        "tests/test.sh": test,
        "solution/solve.sh": SOLVE,
        "solution/answer.sh": "echo done > /app/answer\n",
    }
    return write(root, files)


def terminal_bench_task(
    root: Path, yaml: str = TERMINAL_BENCH, *, compose: str = COMPOSE, run_tests: str = RUN_TESTS
) -> Path:
    """Write a complete Terminal-Bench 1 task."""
    files = {
        "task.yaml": yaml,
        "docker-compose.yaml": compose,
        "Dockerfile": f"FROM {IMAGE}\nWORKDIR /app\n",
        "run-tests.sh": run_tests,
        "solution.sh": "#!/bin/bash\necho done > answer\n",
        "tests/test_outputs.py": "def test_answer(): ...\n",
    }
    return write(root, files)
