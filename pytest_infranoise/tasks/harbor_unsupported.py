"""What Harbor can run and this harness cannot run the same way: the reasons to skip a task."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_infranoise.tasks.compose import service_names
from pytest_infranoise.tasks.errors import show


def unsupported(root: Path, data: Mapping[str, Any]) -> str | None:
    """Return why a task cannot be run faithfully, every reason there is; None when it can."""
    environment, verifier, agent = (_table(data, key) for key in ("environment", "verifier", "agent"))
    reasons = [
        *_environment(environment),
        *_verifier(verifier),
        *_network(environment, agent, verifier),
        *_files(root),
    ]
    if data.get("steps"):
        reasons.insert(0, "several steps ([[steps]])")
    return f"not supported: {'; '.join(reasons)}" if reasons else None


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _environment(environment: Mapping[str, Any]) -> Iterator[str]:
    if environment.get("gpus"):
        yield f"GPUs (environment.gpus = {show(environment['gpus'])})"
    elif environment.get("gpu_types"):
        yield "GPUs (environment.gpu_types)"
    if environment.get("tpu"):
        yield "TPUs (environment.tpu)"
    system = environment.get("os")
    if isinstance(system, str) and system.lower() != "linux":
        yield f"an operating system other than Linux (environment.os = {show(system)})"
    if environment.get("mcp_servers"):
        yield "MCP servers (environment.mcp_servers)"
    if environment.get("skills_dir"):
        yield "skills for the agent (environment.skills_dir)"


def _verifier(verifier: Mapping[str, Any]) -> Iterator[str]:
    if verifier.get("environment_mode") == "separate":
        yield 'a container of its own for the verifier (verifier.environment_mode = "separate")'
    elif verifier.get("environment"):
        yield "a container of its own for the verifier ([verifier.environment])"
    if verifier.get("collect"):
        yield "commands between agent and verifier ([[verifier.collect]])"


def _network(
    environment: Mapping[str, Any], agent: Mapping[str, Any], verifier: Mapping[str, Any]
) -> Iterator[str]:
    tables = {"environment": environment, "agent": agent, "verifier": verifier}
    for name, table in tables.items():
        if table.get("network_mode") == "allowlist" or table.get("allowed_hosts"):
            yield f"a list of allowed hosts ({name}.allowed_hosts)"
    always = environment.get("network_mode")
    if always is None:
        always = "no-network" if environment.get("allow_internet") is False else "public"
    for name in ("agent", "verifier"):
        mode = tables[name].get("network_mode")
        if mode not in (None, "allowlist", always):
            yield f"a network of the {name}'s own ({name}.network_mode = {show(mode)})"


def _files(root: Path) -> Iterator[str]:
    compose = root / "environment" / "docker-compose.yaml"
    if compose.exists():
        names = service_names(compose)
        if names is not None and set(names) <= {"main"}:
            yield "changes to the container in environment/docker-compose.yaml"
        else:
            services = "" if names is None else f": {', '.join(names)}"
            yield f"several services (environment/docker-compose.yaml{services})"
    if (root / "trajectory.json").exists():
        yield "a conversation to begin with (trajectory.json)"
    tests = root / "tests"
    if not (tests / "test.sh").exists() and (tests / "test.bat").exists():
        yield "tests for Windows (tests/test.bat)"
