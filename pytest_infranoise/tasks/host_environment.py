"""Variables that a task takes from this machine: found in its file, checked before a run, resolved in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

from pytest_infranoise.model import Environment
from pytest_infranoise.model import HostVariable
from pytest_infranoise.model import Task

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)


def from_template(value: str) -> str | HostVariable:
    """Return what stands for a value as Harbor writes it: ``${NAME}`` or ``${NAME:-default}`` as a whole."""
    match = _TEMPLATE.fullmatch(value)
    return HostVariable(match[1], match[2]) if match else value


def resolve(environment: Environment) -> dict[str, str]:
    """Return the values themselves.

    Raises:
        ValueError: a variable is not set on this machine; the message does not show any value.
    """
    values = {}
    for name, value in environment.items():
        found = os.environ.get(value.name, value.default) if isinstance(value, HostVariable) else value
        if found is None:
            raise ValueError(f"{name}: {_not_set(value)}")
        values[name] = found
    return values


def unset_variables(task: Task) -> Iterator[str]:
    """Yield one line for each variable that the task needs and this machine does not have.

    What only the task's own solution needs concerns only the agent that runs it.
    """
    places = {"environment": task.environment, "verifier environment": task.verifier.environment}
    for place, environment in places.items():
        yield from (f"{task.file}: {place}: {line}" for line in unset(environment))


def unset(environment: Environment) -> Iterator[str]:
    """Yield what to do about each variable of an environment that this machine does not have."""
    for name, value in environment.items():
        if isinstance(value, HostVariable) and value.default is None and value.name not in os.environ:
            yield f"{name}: {_not_set(value)}"


def host_variables(task: Task) -> tuple[str, ...]:
    """Return the names of this machine's variables that a run of the task takes, and must not write down."""
    places: list[Mapping[str, str | HostVariable]] = [task.environment, task.verifier.environment]
    if task.solution is not None:
        places.append(task.solution.environment)
    found = {value.name for place in places for value in place.values() if isinstance(value, HostVariable)}
    return tuple(sorted(found))


def _not_set(value: str | HostVariable) -> str:
    name = value.name if isinstance(value, HostVariable) else value
    return f"takes its value from ${{{name}}}, which is not set here; set {name}"
