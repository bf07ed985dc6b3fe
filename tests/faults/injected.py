"""Every fault that is injected, by its name in the table."""

from __future__ import annotations

from tests.faults import test_agents
from tests.faults import test_engine
from tests.faults import test_harness
from tests.faults import test_limits
from tests.faults import test_memory
from tests.faults import test_outside
from tests.faults import test_small_engine
from tests.faults import test_start
from tests.faults import test_tampering
from tests.faults import test_time
from tests.faults import test_verifier

INJECTED = [
    *test_agents.INJECT,
    *test_engine.INJECT,
    *test_engine.BLINK,
    *test_harness.INJECT,
    *test_limits.INJECT,
    *test_memory.INJECT,
    *test_outside.INJECT,
    *test_small_engine.INJECT,
    *test_start.INJECT,
    *test_tampering.INJECT,
    *test_time.INJECT,
    *test_verifier.INJECT,
]
