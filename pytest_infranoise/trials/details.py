"""The part of a record that holds the evidence: JSON-safe, without secrets, and small."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pytest_infranoise.agents.secrets import Masker

MAX_BYTES = 60 * 1024  # of all details; a record's other fields are short
_MAX_TEXT = 4000
_MAX_PART = 12 * 1024  # of what an agent or the admission says of itself
_MAX_EVENTS = 60


def make_details(parts: Mapping[str, Any], masker: Masker) -> dict[str, Any]:
    """Return details that fit into a record; what had to be left out is named under ``left_out``."""
    details: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in parts.items():
        # Our own keys hold no secret, and readers rely on them whatever somebody's secret is.
        safe = _shortened(masker.json(_plain(value), keys=name == "agent"))
        if name in ("agent", "admission") and _size(safe) > _MAX_PART:
            left_out.append(name)
        else:
            details[name] = safe
    for name in sorted(details, key=lambda name: _size(details[name]), reverse=True):
        if _size(details) <= MAX_BYTES:
            break
        del details[name]
        left_out.append(name)
    return details | ({"left_out": left_out} if left_out else {})


def shortened_events(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's state with no more events than anybody reads: the first and the last."""
    events = list(state["events"])
    if len(events) > _MAX_EVENTS:
        half = _MAX_EVENTS // 2
        return {**state, "events": [*events[:half], *events[-half:]], "events_in_all": len(events)}
    return {**state, "events": events}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON does not know becomes text."""
    text = json.dumps(value, default=_as_plain, skipkeys=True)
    return json.loads(text, parse_constant=str)


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[: _MAX_TEXT // 2]} [...] {value[-_MAX_TEXT // 2 :]}"
    if isinstance(value, dict):
        return {key[:200]: _shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part) for part in value]
    return value


def _size(value: Any) -> int:
    return len(json.dumps(value))
