"""Images by id: pulled or built once per machine, before any container needs them."""

from __future__ import annotations

import hashlib
import stat
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_infranoise.sandboxes.api_errors import classify
from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.engine import text_of
from pytest_infranoise.sandboxes.locks import locked
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import SandboxError

CONTENT_LABEL = "infranoise.content"
PULL_SECONDS = 900.0
BUILD_SECONDS = 1800.0
_LINES_SHOWN = 15  # of a build's output, when it fails


class Images:
    """The images of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pulled(self, reference: str, pull: str) -> str:
        """Return the id of an image by name; fetch it where that is missing and allowed (``pull: missing``)."""
        found = self._find(reference)
        if found is not None:
            return str(found["Id"])
        if pull == "never":
            raise ConfigError(
                "image",
                f"the image {reference} is not on this engine, and `pull: never` forbids to fetch it; "
                f"make it there (for infranoise/base: bench_tasks/prepare), or set `pull: missing`",
            )
        with locked(f"pull-{hashlib.sha256(reference.encode()).hexdigest()[:16]}", PULL_SECONDS):
            found = self._find(reference) or self._pull(reference)
        return str(found["Id"])

    def built(self, context: Path) -> str:
        """Return the id of the image that a directory with a Dockerfile describes, built once per content."""
        digest = content_hash(context)
        tag = f"infranoise/build:{digest[:16]}"
        found = self._find(tag)
        if found is None:
            with locked(f"build-{digest[:16]}", BUILD_SECONDS):
                found = self._find(tag) or self._build(context, tag, digest)
        return str(found["Id"])

    def _find(self, reference: str) -> Mapping[str, Any] | None:
        try:
            with self._engine.request("image", "GET", f"/images/{quote(reference, safe='/:@')}/json") as answer:
                found: Mapping[str, Any] = answer.json()
        except SandboxError as error:
            if error.status == 404:
                return None
            raise
        return found

    def _pull(self, reference: str) -> Mapping[str, Any]:
        def fetch() -> None:
            with engine_call("pull"):
                for line in self._engine.client.pull(reference, stream=True, decode=True):
                    error = text_of(line)
                    if error is not None:
                        raise classify("pull", None, error)

        try:
            bounded(fetch, PULL_SECONDS)
        except ConfigError as error:
            raise ConfigError("pull", f"the image {reference} cannot be had: {error.text}", error.status) from error
        except TimeoutError as error:
            raise ImagePullError("pull", f"the image {reference} did not come in {PULL_SECONDS:.0f} s") from error
        found = self._find(reference)
        if found is None:
            raise ImagePullError("pull", f"the image {reference} is not there although its pull ended well")
        return found

    def _build(self, context: Path, tag: str, digest: str) -> Mapping[str, Any]:
        lines: deque[str] = deque(maxlen=_LINES_SHOWN)

        def build() -> None:
            for line in self._progress(context, tag, digest):
                error = text_of(line)
                if error is not None:
                    raise classify("build", None, error)
                lines.extend(filter(None, str(line.get("stream", "")).splitlines()))

        try:
            bounded(build, BUILD_SECONDS)
        except ConfigError as error:
            raise ConfigError("build", _failure(context, error.text, lines), error.status) from error
        except TimeoutError as error:
            text = f"not done in {BUILD_SECONDS:.0f} s"
            raise ConfigError("build", _failure(context, text, lines)) from error
        found = self._find(tag)
        if found is None:
            raise SandboxError("build", f"{tag} is not there although its build ended well")
        return found

    def _progress(self, context: Path, tag: str, digest: str) -> Iterator[Mapping[str, Any]]:
        with engine_call("build"):
            yield from self._engine.client.build(
                path=str(context), tag=tag, labels={CONTENT_LABEL: digest}, rm=True, forcerm=True, decode=True
            )


def _failure(context: Path, text: str, lines: Iterable[str]) -> str:
    shown = "\n".join([f"the image of {context} cannot be built: {text}", *lines])
    if "buildkit" in shown.lower():
        shown += (
            "\n(this Dockerfile needs BuildKit; the engine's classic builder, which is used here, has none of it)"
        )
    return shown


def content_hash(context: Path) -> str:
    """Return a digest of all names, modes, links and contents below a directory.

    Raises:
        ConfigError: there is no Dockerfile, or something cannot be read.
    """
    if not (context / "Dockerfile").is_file():
        raise ConfigError("build", f"{context} has no Dockerfile")
    total = hashlib.sha256()
    try:
        for path in sorted(context.rglob("*"), key=lambda path: path.relative_to(context).parts):
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                content = str(path.readlink()).encode(errors="surrogateescape")
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").digest()
            else:
                content = b""
            name = str(path.relative_to(context)).encode(errors="surrogateescape")
            for part in (name, oct(info.st_mode).encode(), content):
                total.update(len(part).to_bytes(8, "big") + part)
    except OSError as error:
        raise ConfigError("build", f"cannot read {context}: {error}") from error
    return total.hexdigest()


def bounded(work: Callable[[], None], seconds: float) -> None:
    """Do work that may hang in a call of the SDK that has no timeout.

    Raises:
        TimeoutError: it was not done in time; its thread is left behind.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="infranoise-image", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if failures:
        raise failures[0]
