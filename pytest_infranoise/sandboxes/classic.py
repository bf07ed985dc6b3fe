"""Builds with the engine's own classic builder, through its API: what is there when BuildKit is not."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from collections.abc import Mapping
from typing import IO
from typing import Any

import requests
from docker import auth
from docker.utils import config
from docker.utils.proxy import ProxyConfig

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.buildkit import BuildFailed
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.engine import shut_down
from pytest_infranoise.sandboxes.engine import text_of


class Build:
    """One build.

    Args:
        engine: where to build.
        archive: the build context, a tar archive.
        tag: the image's name.
        labels: the image's labels.
        lines: gets the builder's output.
    """

    def __init__(
        self, engine: Engine, archive: IO[bytes], tag: str, labels: Mapping[str, str], lines: deque[str]
    ) -> None:
        self._engine = engine
        self._archive = archive
        self._parameters = {
            "t": tag,
            "rm": "1",
            "forcerm": "1",
            "version": "1",
            "labels": json.dumps(dict(labels)),
            "buildargs": json.dumps(_proxies()),
        }
        self._lines = lines
        self._response: requests.Response | None = None

    def run(self) -> None:
        """Build, however long it takes.

        Raises:
            BuildFailed: the build failed.
            SandboxError: the engine failed.
        """
        with engine_call("build"):  # credential helpers are programs that may fail too
            headers = {"Content-Type": "application/x-tar", **_credentials()}
        self._response = self._engine.request(
            "build", "POST", "/build", params=self._parameters, data=self._archive, endless=True, headers=headers
        )
        with self._response:
            for answer in self._answers(self._response):
                error = text_of(answer)
                if error is not None:
                    raise BuildFailed(error, self._lines)
                self._lines.extend(filter(None, str(answer.get("stream", "")).splitlines()))

    def _answers(self, response: requests.Response) -> Iterator[Mapping[str, Any]]:
        with engine_call("build"):
            for line in response.iter_lines():
                if line.strip():
                    yield json.loads(line)

    def cancel(self) -> None:
        """Hang up: the engine ends a build that nobody listens to."""
        shut_down(self._response)


def _proxies() -> dict[str, str]:
    """Return the build arguments that a docker command would add by itself: the proxies in its settings."""
    settings: Any = config.load_general_config().get("proxies") or {}
    default: Any = settings.get("default") or {}
    found: Any = ProxyConfig.from_dict(default).get_environment()
    return {name: str(value) for name, value in found.items()}


def _credentials() -> dict[str, str]:
    """Return the header with the user's logins, for base images that need one."""
    logins: Any = auth.load_config()
    found = logins.get_all_credentials()
    if auth.INDEX_NAME in found:
        found.setdefault(auth.INDEX_URL, found[auth.INDEX_NAME])
    return {"X-Registry-Config": auth.encode_header(found).decode("ascii")} if found else {}
