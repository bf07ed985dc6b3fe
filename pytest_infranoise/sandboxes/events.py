"""The engine's live events about our containers.

Live, because the engine replays only its last 256 events, and a container that was killed leaves few other
traces. One stream serves all containers of one backend; it is opened before the first is created.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import requests
import urllib3

from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.engine import shut_down
from pytest_infranoise.sandboxes.protocol import EngineEvent
from pytest_infranoise.sandboxes.protocol import SandboxError

# Not the exec events: they hold whole command lines.
_ACTIONS = ["create", "start", "oom", "kill", "die", "stop", "destroy", "pause", "unpause", "restart", "rename"]
_ATTRIBUTES = ("exitCode", "signal")  # not the labels, which are the same in every event
_KEPT_DESTROYED = 256  # containers whose events are kept after their end
_FIRST_PAUSE = 0.1  # seconds between attempts to connect again, doubled up to the longest
_LONGEST_PAUSE = 5.0


class EventStream:
    """A thread that keeps the events of all containers with one label, and when the stream was down.

    It connects again by itself when the engine goes away, and asks for what it missed as far as the engine
    still knows it; the gap stays on record all the same.
    """

    def __init__(self, engine: Engine, label: str) -> None:
        self._engine = engine
        self._filters = {"type": ["container"], "label": [label], "event": _ACTIONS}
        self._events: defaultdict[str, list[EngineEvent]] = defaultdict(list)
        self._destroyed: deque[str] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._connected = False
        self._last_drop: float | None = None  # monotonic
        self._since = f"{time.time():.9f}"
        self._response: requests.Response | None = None
        self._thread: threading.Thread | None = None

    def open(self, seconds: float) -> bool:
        """Start the stream if need be and wait up to ``seconds`` until events come in; whether they do."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="infranoise-events", daemon=True)
                self._thread.start()
            return self._changed.wait_for(lambda: self._connected, seconds)

    def of(self, container: str) -> tuple[EngineEvent, ...]:
        """Return the events of one container so far, in their order."""
        with self._changed:
            return tuple(self._events.get(container, ()))

    def wait_for(self, container: str, action: str, seconds: float) -> bool:
        """Wait up to ``seconds`` for an event that must be on its way; whether it came."""

        def came() -> bool:
            return any(event.action == action for event in self._events.get(container, ()))

        with self._changed:
            return self._changed.wait_for(came, seconds)

    def gap_since(self, moment: float) -> bool:
        """Whether events may have been missed after ``moment`` (of the monotonic clock)."""
        with self._changed:
            return not self._connected or (self._last_drop is not None and self._last_drop >= moment)

    def close(self) -> None:
        """End the stream and its thread."""
        self._closed.set()
        with self._changed:
            thread, response = self._thread, self._response
        shut_down(response)
        if thread is not None:
            thread.join(timeout=2)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            with suppress(SandboxError, OSError, requests.RequestException, urllib3.exceptions.HTTPError):
                for line in self._lines():
                    pause = _FIRST_PAUSE
                    self._keep(line)
            self._dropped()
            self._closed.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _lines(self) -> Iterator[bytes]:
        query = {"filters": json.dumps(self._filters), "since": self._since}
        with self._engine.request("events", "GET", "/events", params=query, endless=True) as response:
            with self._changed:
                self._response = response
                self._connected = True
                self._changed.notify_all()
            if not self._closed.is_set():
                yield from response.iter_lines(chunk_size=None)

    def _dropped(self) -> None:
        with self._changed:
            if self._connected:
                self._last_drop = time.monotonic()
            self._connected = False
            self._response = None
            self._changed.notify_all()

    def _keep(self, line: bytes) -> None:
        try:
            data = json.loads(line)
            container, attributes = data["Actor"]["ID"], data["Actor"]["Attributes"]
            action, nanoseconds = data["Action"], int(data["timeNano"])
            kept = {name: attributes[name] for name in _ATTRIBUTES if name in attributes}
        except (ValueError, KeyError, TypeError):
            return
        event = EngineEvent(nanoseconds / 1e9, action, kept)
        with self._changed:
            self._since = f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"
            if event not in self._events[container]:  # sent again after a gap
                self._events[container].append(event)
                self._drop_old(container, action)
            self._changed.notify_all()

    def _drop_old(self, container: str, action: str) -> None:
        if action != "destroy":
            return
        self._destroyed.append(container)
        if len(self._destroyed) > _KEPT_DESTROYED:
            self._events.pop(self._destroyed.popleft(), None)
