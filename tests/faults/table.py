"""The table of faults at the end of a session: fault, expected, got."""

from __future__ import annotations

import json
from typing import Any

from tests.faults.expected import FAULTS
from tests.faults.outcomes import Got

PROPERTY = "infranoise-fault"


def print_table(terminalreporter: Any) -> None:
    """Print the table; what was to be compared and was not is in it too."""
    seen = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == PROPERTY:
                    fault, got = json.loads(value)
                    seen[fault] = got
    if not seen:
        return
    terminalreporter.section("matrix of faults")
    width = max(map(len, FAULTS))
    wrong = 0
    for fault, expected in FAULTS.items():
        if fault in seen:
            differs = bool(Got.parse(seen[fault]).differs_from(expected))
            wrong += differs
            word = "NO" if differs else "ok"
            terminalreporter.write_line(f"{word:4}{fault:{width}}  {Got.of(expected)!s:56}  {seen[fault]}")
    missing = [fault for fault in FAULTS if fault not in seen]
    if missing:
        names = ", ".join(missing) if len(missing) < 20 else f"{len(missing)} faults"
        terminalreporter.write_line(f"without an outcome: {names}")
    terminalreporter.write_line(f"{len(seen) - wrong} of {len(FAULTS)} faults judged as they must be")
