"""What other plugins and conftest files can add to pytest-infranoise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_infranoise.agents.protocol import Agent
    from pytest_infranoise.agents.protocol import AgentContext
    from pytest_infranoise.model import Task


@pytest.hookspec(firstresult=True)
def pytest_infranoise_load_task(path: Path, config: pytest.Config) -> Task | None:
    """Load the task in the directory ``path``; None when it is not one of this loader's.

    Called in every process that collects, for every directory that pytest comes to, so the answer "not mine"
    must be quick. Whatever it raises becomes the collection error of this one task.
    """


@pytest.hookspec(firstresult=True)
def pytest_infranoise_make_agent(context: AgentContext) -> Agent | None:
    """Make the agent named ``context.choice.name`` for one trial; None when it is not one of this plugin's.

    Called in the process that runs the trial, and once per task while trials are planned, to find mistakes
    before anything starts: it must be quick and do no work. An agent whose class has ``on_host = False`` only
    runs commands in the sandbox; any other must be picklable, because it runs in a child process.

    Raises:
        ValueError: the agent cannot work on this task; the message is shown to the user.
    """
