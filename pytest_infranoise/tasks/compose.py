"""What a docker-compose file with one service says, as far as one container can be started from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from pytest_infranoise.model import HostVariable
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import show
from pytest_infranoise.tasks.files import read_text
from pytest_infranoise.tasks.host_environment import from_template
from pytest_infranoise.tasks.strict_yaml import YamlProblem
from pytest_infranoise.tasks.strict_yaml import compose
from pytest_infranoise.tasks.strict_yaml import construct
from pytest_infranoise.units import parse_memory

# Without effect on what runs in the container, or what this harness does in its own way.
_IGNORED = frozenset({"container_name", "stdin_open", "tty", "restart", "ports", "expose", "hostname", "init"})
_READ = frozenset(
    {"build", "image", "command", "environment", "volumes", "working_dir", "user", "cpus", "mem_limit", "deploy",
     "shm_size", "platform"}
)  # fmt: skip
_WAITING = (
    ["sh", "-c", "sleep infinity"],
    ["sh", "-c", "sleep", "infinity"],  # the same, split at blanks
    ["bash", "-c", "sleep infinity"],
    ["sleep", "infinity"],
    ["tail", "-f", "/dev/null"],
)
_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True)
class Service:
    """One service: what is known of it, and why it cannot be run faithfully."""

    build: str | None = None
    image: str | None = None
    environment: dict[str, str | HostVariable] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory: int | None = None  # bytes
    shm: int | None = None  # bytes
    reasons: list[str] = field(default_factory=list)


def read_compose(file: Path) -> Mapping[str, Any]:
    """Return a compose file's content.

    Raises:
        Problem: it is no YAML mapping with a mapping ``services``.
    """
    node = compose(read_text(file))
    if node is None:
        raise YamlProblem("", "is empty", "write it, or fetch the file again")
    data = construct(node)
    services = data.get("services")
    if not isinstance(services, dict) or not services:
        raise Problem("has no services", "write services: with the one service in it")
    for name, service in services.items():
        if not isinstance(service, dict):
            raise Problem(f"service {show(name)} is not a mapping", "write KEY: VALUE lines")
    return data


def service_names(file: Path) -> list[str] | None:
    """Return the names of the services in a file; None when it cannot be read."""
    try:
        return [str(name) for name in read_compose(file)["services"]]
    except Problem:
        return None


def read_service(data: Mapping[str, Any], name: str, variables: Mapping[str, str]) -> Service:
    """Return the service of this name, the file's only one; ``variables`` are those that the harness sets.

    Raises:
        Problem: a value is of a wrong kind.
    """
    entry = data["services"][name]
    service = Service()
    service.reasons += [f"{key} in docker-compose.yaml" for key in _foreign_top(data)]
    known = _IGNORED | _READ
    service.reasons += [f"services.{name}.{key}" for key in entry if key not in known]
    _read_build(service, name, entry)
    _read_command(service, name, entry.get("command"))
    _read_environment(service, name, entry.get("environment"), variables)
    _read_limits(service, entry)
    for volume in _list(entry.get("volumes"), "volumes"):
        if not str(volume).startswith("${T_BENCH_TASK_"):
            service.reasons.append(f"volume {show(volume)}")
    if entry.get("platform") not in (None, "linux/amd64"):
        service.reasons.append(f"platform {show(entry['platform'])}")
    service.workdir = _text(entry, "working_dir")
    service.user = None if entry.get("user") is None else str(entry["user"])
    return service


def _foreign_top(data: Mapping[str, Any]) -> Iterator[str]:
    return (str(key) for key, value in data.items() if key not in ("services", "version", "name") and value)


def _read_build(service: Service, name: str, entry: Mapping[str, Any]) -> None:
    build = entry.get("build")
    if build is None:
        service.image = _text(entry, "image")
        return
    if isinstance(build, str):
        service.build = build
        return
    if not isinstance(build, dict):
        raise Problem(f"build {show(build)} is neither text nor a mapping", "write build: .")
    service.build = _text(build, "context") or "."
    service.reasons += [
        f"services.{name}.build.{key}" for key in build if key not in ("context", "dockerfile", "tags")
    ]
    if build.get("dockerfile") not in (None, "Dockerfile", "./Dockerfile"):
        service.reasons.append(f"a Dockerfile of another name ({show(build['dockerfile'])})")


def _read_command(service: Service, name: str, command: Any) -> None:
    if command is None:
        return
    words = command.split() if isinstance(command, str) else command
    if words not in _WAITING:
        service.reasons.append(f"a command of the container's own (services.{name}.command)")


def _read_environment(service: Service, name: str, given: Any, variables: Mapping[str, str]) -> None:
    pairs: list[tuple[str, Any]]
    if isinstance(given, dict):
        pairs = [(str(key), value) for key, value in given.items()]
    else:
        pairs = [_pair(str(item)) for item in _list(given, "environment")]
    for key, value in pairs:
        if value is None:
            service.environment[key] = HostVariable(key)
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        text = _TEMPLATE.sub(lambda match: variables.get(match[1], match[0]), text)
        template = from_template(text)
        if isinstance(template, str) and "$" in template.replace("$$", ""):
            service.reasons.append(f"a template in services.{name}.environment.{key}")
            continue
        service.environment[key] = template.replace("$$", "$") if isinstance(template, str) else template


def _pair(item: str) -> tuple[str, str | None]:
    key, separator, value = item.partition("=")
    return key, value if separator else None


def _read_limits(service: Service, entry: Mapping[str, Any]) -> None:
    deploy = entry.get("deploy") or {}
    resources = (deploy.get("resources") or {}) if isinstance(deploy, dict) else None
    limits = (resources.get("limits") or {}) if isinstance(resources, dict) else None
    if not isinstance(limits, dict):
        raise Problem(f"deploy {show(deploy)} is not as compose files have it", "write deploy.resources.limits")
    if set(deploy) - {"resources"} or set(resources or {}) - {"limits", "reservations"}:
        service.reasons.append("deploy in docker-compose.yaml")
    cpus = entry.get("cpus", limits.get("cpus"))
    memory, shm = entry.get("mem_limit", limits.get("memory")), entry.get("shm_size")
    try:
        service.cpus = None if cpus is None else float(cpus)
        service.memory = None if memory is None else parse_memory(memory)
        service.shm = None if shm is None else parse_memory(shm)
    except (ValueError, TypeError) as error:
        raise Problem(f"a limit cannot be read: {error}", "write e.g. cpus: 1 and mem_limit: 512M") from error


def _text(entry: Mapping[str, Any], key: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise Problem(f"{key} {show(value)} is not text", "put it in quotes")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Problem(f"{key} {show(value)} is not a list", "write e.g. [one, two]")
    return value
