from __future__ import annotations

from typing import Any

import pytest

from tests.others import NEEDLESS
from tests.others import OTHERS
from tests.others import without

try:
    from hypothesis import HealthCheck
    from hypothesis import settings
except ImportError:  # a plain `pytest --help` in a clone reads this file, too
    pass
else:
    # How long drawing an example takes says more about the machine's other work than about the code.
    settings.register_profile("any-load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any-load")


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The usual one, whose sessions load none of the other plugins that happen to be installed."""
    monkeypatch.setenv("PYTEST_ADDOPTS", without(*OTHERS, *NEEDLESS))
    return pytester


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the matrix of faults; here, because the process that prints may load no conftest below this one."""
    from tests.faults.table import print_table

    print_table(terminalreporter)
