"""The connection to one Docker Engine: every call bounded in time, every failure typed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import IO
from typing import Any

import requests
from docker import APIClient
from docker.errors import DockerException
from docker.errors import create_api_error_from_http_exception
from docker.utils import kwargs_from_env

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.api_errors import from_exception
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import SandboxError

DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
_PING_SECONDS = 5.0


def engine_address() -> str:
    """Return where the engine is looked for, as the docker SDK looks for it."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS


class Engine:
    """One Docker Engine, found as the docker SDK finds it (``DOCKER_HOST`` and its companions).

    The SDK's own methods serve where they keep what matters and stay bounded; streams and archives go through
    ``request``, because the SDK reads those without a timeout. Safe to use from several threads.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self.address = engine_address()
        self._client: APIClient | None = None
        self._lock = threading.Lock()

    @property
    def client(self) -> APIClient:
        """The SDK's low-level client, connected at first use.

        Raises:
            EngineLost: no engine answers; the text says where it was looked for and what helps.
        """
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> APIClient:
        try:
            self._knock()
            return APIClient(**kwargs_from_env(), timeout=int(self.timeout))
        except (DockerException, OSError) as error:
            found = from_exception("connect", error)
            if not isinstance(found, EngineLost):
                raise found from error
            raise EngineLost("connect", self._remedy(error)) from error

    def _knock(self) -> None:
        """Raise OSError when nobody listens; the SDK would find out too, but leave a socket unclosed."""
        if not self.on_unix_socket:
            return
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(_PING_SECONDS)
            knock.connect("/" + self.address.rpartition("://")[2].lstrip("/"))

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, PermissionError) or "PermissionError" in str(error):
            help_text = "this user may not open the socket: join the group docker, or run as root"
        else:
            help_text = "start one, or set DOCKER_HOST to one that runs"
        return f"no Docker Engine answers at {self.address} ({error}); {help_text}"

    @property
    def on_unix_socket(self) -> bool:
        """Whether the engine is reached by a socket in this machine's file system."""
        return self.address.startswith(("unix://", "http+unix://", "/"))

    def ping(self) -> bool:
        """Whether the engine answers within a few seconds."""
        try:
            self._knock()
            with self.client.get(f"{self.client.base_url}/_ping", timeout=_PING_SECONDS) as response:
                return response.ok
        except (SandboxError, DockerException, OSError):
            return False

    def ready(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the engine to answer; whether it does."""
        deadline = time.monotonic() + seconds
        while not self.ping():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True

    def request(
        self,
        call: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        data: IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        endless: bool = False,
    ) -> requests.Response:
        """Return the open answer to one API call; the caller closes it.

        Args:
            call: the name under which errors are looked up.
            method: the HTTP method.
            path: the path after the API version, beginning with a slash.
            params: the query.
            json: a body to send as JSON.
            data: a body to send as it is.
            headers: what else goes with it.
            endless: the answer is a stream that may be silent for any time; whoever reads it must be able to
                shut it down.

        Raises:
            SandboxError: what the engine's refusal means.
        """
        client = self.client
        with engine_call(call):
            response = client.request(
                method,
                f"{client.base_url}/v{client.api_version}{path}",
                params=params,
                json=json,
                data=data,
                # What is read raw must not come compressed.
                headers={**(headers or {}), "Accept-Encoding": "identity"},
                stream=True,
                timeout=(self.timeout, None if endless else self.timeout),
            )
            try:
                response.raise_for_status()
            except requests.HTTPError as error:
                with response:
                    create_api_error_from_http_exception(error)
            return response

    def close(self) -> None:
        """Close the connections; the next call would open new ones."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def shut_down(response: requests.Response | None) -> None:
    """End a stream that another thread may be reading right now, without waiting for it."""
    if response is None:
        return
    try:
        response.raw.shutdown()
    except (AttributeError, OSError, RuntimeError, ValueError):
        # Ended by itself, or a transport that cannot: its daemon thread is then left to the end of the process.
        return


def text_of(answer: Mapping[str, Any]) -> str | None:
    """Return the error in one line of a progress stream, None when it is only progress."""
    if "error" not in answer and "errorDetail" not in answer:
        return None
    detail = answer.get("errorDetail") or {}
    return str(detail.get("message") or answer.get("error") or "unknown error")
