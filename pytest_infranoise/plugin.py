"""The hooks of every process, and no logic; those of the controller alone are in ``session``.

Autoloaded in every pytest run on earth, so what is imported here loads nothing but the standard library and
pytest; everything heavier is imported once there are trials.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_infranoise import collect
from pytest_infranoise import hookspecs
from pytest_infranoise import marked
from pytest_infranoise import outcomes
from pytest_infranoise import session as sessions
from pytest_infranoise.collect import SETTINGS
from pytest_infranoise.fixtures import infranoise_agent  # noqa: F401  (a fixture is found where pytest looks)
from pytest_infranoise.fixtures import infranoise_backend  # noqa: F401
from pytest_infranoise.fixtures import infranoise_trial  # noqa: F401
from pytest_infranoise.marked import infranoise_sandbox  # noqa: F401
from pytest_infranoise.settings import add_options

if TYPE_CHECKING:
    from pytest_infranoise.agents.protocol import Agent
    from pytest_infranoise.agents.protocol import AgentContext
    from pytest_infranoise.model import Task


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that others can implement."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; the controller is made here, a worker is told by it who it is."""
    config.addinivalue_line(
        "markers",
        "infranoise(image, cpus, memory, ...): run this test, which takes infranoise_sandbox, in a container under "
        "every resource config; every trial has infranoise(task, config, sample, agent), set by us, to select by",
    )
    config.addinivalue_line("markers", "infranoise_tag(name): a tag of the trial's task; set by us")
    sessions.configure(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let go of everything."""
    sessions.unconfigure(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Say what ``-n auto`` means where there are tasks."""
    from pytest_infranoise.scheduler import workers

    return workers.auto_workers(config)


@pytest.hookimpl(trylast=True)
def pytest_infranoise_load_task(path: Path, config: pytest.Config) -> Task | None:
    """Load our own format, Harbor's and Terminal-Bench's."""
    if not ((path / "task.yaml").is_file() or (path / "task.toml").is_file()):
        return None
    from pytest_infranoise.tasks import loaders

    return loaders.load(path, config.stash[SETTINGS].defaults)


@pytest.hookimpl(trylast=True)
def pytest_infranoise_make_agent(context: AgentContext) -> Agent | None:
    """Make the built-in agents."""
    from pytest_infranoise.agents import builtin

    return builtin.make_builtin(context) if context.choice.kind in builtin.KINDS else None


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make trials of marked functions; last, so that config and sample stand at the end of ids."""
    if marked.concerns(metafunc):
        marked.parametrize(metafunc)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take over the directories of tasks."""
    return collect.collect_directory(path, parent)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take over files that hold tasks."""
    return collect.collect_file(file_path, parent) if file_path.suffix == ".jsonl" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select and shuffle trials; first of all, so that what selects and sorts by outcome has the last word."""
    sessions.select(config, items)
    if not config.option.collectonly:
        collect.shuffle(items, config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the trials; before xdist tells its controller that the collection is over, which reads the plan."""
    sessions.collected(session)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the record on the report."""
    report = yield
    if collect.is_trial(item):
        outcomes.annotate(item, call, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: Any) -> tuple[str, str, Any] | None:
    """Name infra-errors and config-errors as what they are."""
    return outcomes.report_status(report)
