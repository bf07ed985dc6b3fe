"""The order of trials where one process runs them one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from pytest_infranoise.model import Allocation
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Task
from pytest_infranoise.model import TrialKey
from pytest_infranoise.resource_configs import allocate
from pytest_infranoise.scheduler.budget import Capacity
from pytest_infranoise.scheduler.estimates import read_estimates
from pytest_infranoise.scheduler.plan import Policy
from pytest_infranoise.scheduler.plan import order_of
from pytest_infranoise.settings import Settings


def plain_order(
    trials: Sequence[tuple[TrialKey, Task, ResourceConfig]], settings: Settings, config: pytest.Config
) -> list[int]:
    """Return the order that trials would have if there were workers, as indices.

    Nobody has asked the engine yet, so sizes are compared with this machine.
    """
    chosen = settings.schedule
    here = Capacity(
        chosen.host_cpus or os.cpu_count() or 1,
        chosen.host_memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    policy = Policy(chosen.order, chosen.admit, settings.seed, here, read_estimates(config))
    planned = [(key, _allocation(task, resources)) for key, task, resources in trials]
    return [index for block in order_of(planned, policy) for index in block]


def _allocation(task: Task, resources: ResourceConfig) -> Allocation:
    try:
        return allocate(task, resources)
    except ValueError:  # told when the session is planned, and then nothing runs
        return Allocation(0, 0, 0, 0)
