"""Which agent a name stood for, in ``run.json``: enough to tell another one, nothing that may be a secret."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from pytest_infranoise.model import AgentChoice

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 4  # characters of a value that is looked for
_FIELDS = ("kind", "fingerprint")


def agent_entry(agent: AgentChoice) -> dict[str, Any]:
    """Return an agent's entry in ``run.json``.

    A command is kept so that the run can be resumed without typing it again, unless it may hold a secret: a shell
    has put the value of a variable in its place, or it sets one. Its fingerprint tells it from any other.
    """
    options = {name: agent.options[name] for name in sorted(agent.options)}
    entry: dict[str, Any] = {"name": agent.name, "model": agent.model or "", "kind": agent.kind}
    if options:
        entry["fingerprint"] = hashlib.sha256(json.dumps(options, default=str).encode()).hexdigest()[:16]
    command = agent.options.get("command")
    if isinstance(command, str) and not _may_hold_secret(command, agent.options.get("env") or ()):
        entry["command"] = command
    return entry


def _may_hold_secret(command: str, names: Any) -> bool:
    passed = {name for name in os.environ if name in names or _SECRET_NAME.search(name)}
    values = [value for name in passed if len(value := os.environ[name].strip()) >= _SHORTEST]
    return bool(_SECRET_NAME.search(command)) or any(value in command for value in values)


def same_agent(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two entries of one name are the same agent, as far as both say."""
    if (one.get("model") or "") != (other.get("model") or ""):
        return False
    # Older run.json files have the name and the model only.
    return "kind" not in one or "kind" not in other or all(one.get(name) == other.get(name) for name in _FIELDS)


def agent_words(entry: Mapping[str, Any]) -> str:
    """Return what an entry says of its agent, for a message."""
    words = [f"kind {entry.get('kind', 'unknown')}"]
    if entry.get("model"):
        words.append(f"model {entry['model']}")
    if entry.get("command"):
        words.append(f"command {entry['command']!r}")
    if entry.get("fingerprint"):
        words.append(f"options {entry['fingerprint'][:8]}")
    return ", ".join(words)
