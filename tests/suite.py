"""Small task suites for tests, written to disk as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

BASE_IMAGE = "infranoise/base:bookworm"

# Passes when the agent wrote the word "done" into answer.txt.
VERIFY = """\
reward=0
[ "$(cat "$INFRANOISE_WORKDIR/answer.txt" 2>/dev/null)" = done ] && reward=1
printf '{"reward": %s, "nonce": "%s", "tests": 1}\\n' "$reward" "$INFRANOISE_NONCE" > "$INFRANOISE_REWARD_FILE"
"""
SOLVE = "echo done > answer.txt\n"


def hold_memory(mib: int) -> str:
    """Return a shell command that really touches so much memory, then lets go of it."""
    return f'perl -e \'$x = "x" x ({mib} * 1024 * 1024); print length($x), "\\n"\'\n'


def make_task(
    suite: Path,
    directory: str,
    /,
    *,
    solution: str = SOLVE,
    verify: str = VERIFY,
    strategies: Mapping[str, tuple[float, str]] | None = None,
    **fields: Any,
) -> Path:
    """Write a native task directory and return it; ``fields`` are keys of its task.yaml (None leaves one out)."""
    root = suite / directory
    (root / "verifier").mkdir(parents=True)
    (root / "verifier" / "verify.sh").write_text(verify, "utf-8")
    (root / "solution.sh").write_text(solution, "utf-8")
    data: dict[str, Any] = {
        "infranoise": 1,
        "instruction": "Write the word done into answer.txt.",
        "image": BASE_IMAGE,
        "pull": "never",
        "network": False,
        "resources": {"cpus": 0.5, "memory": "64M"},
        "timeouts": {"setup": 30, "agent": 30, "verifier": 30},
        "oracle": "solution.sh",
    }
    if strategies:
        (root / "strategies").mkdir()
        data["strategies"] = {}
        for strategy, (odds, script) in strategies.items():
            (root / "strategies" / f"{strategy}.sh").write_text(script, "utf-8")
            data["strategies"][strategy] = {"odds": odds, "script": f"strategies/{strategy}.sh"}
    data = {key: value for key, value in {**data, **fields}.items() if value is not None}
    (root / "task.yaml").write_text(yaml.safe_dump(data), "utf-8")
    return root
