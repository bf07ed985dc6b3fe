"""Images by id: pulled or built once per machine, before any container needs them."""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_infranoise.sandboxes import buildkit
from pytest_infranoise.sandboxes import classic
from pytest_infranoise.sandboxes.api_errors import classify
from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.buildkit import BuildFailed
from pytest_infranoise.sandboxes.buildkit import Stopped
from pytest_infranoise.sandboxes.contexts import Context
from pytest_infranoise.sandboxes.contexts import read_context
from pytest_infranoise.sandboxes.dockerfiles import read_needs
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.engine import text_of
from pytest_infranoise.sandboxes.locks import locked
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import SandboxError

# What we built carries these labels and a name in this repository; nothing else is ever ours to remove.
CONTENT_LABEL = "infranoise.content"
BUILDER_LABEL = "infranoise.builder"
REPOSITORY = "infranoise/build"
PULL_SECONDS = 900.0
BUILD_SECONDS = 1800.0
_LOCK_MARGIN = 60.0
_REMOVE_SECONDS = 5.0
_LINES_SHOWN = 15  # of a build's output, when it fails
_TEXT_SHOWN = 900  # characters of all that: what evidence keeps of an error
_LINE_SHOWN = 200
# The words of a step that failed, which may say anything: no reason to look for an engine's errors in them.
_STEP_FAILED = re.compile(r"returned a non-zero code|executor failed running|did not complete successfully")


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that was built here, by its names in our repository; ``size`` in bytes, shared layers included."""

    id: str
    tags: tuple[str, ...]
    size: int


class Images:
    """The images of one engine. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stopped = threading.Event()
        self._choice = threading.Lock()
        self._command: str | None = None
        self._chosen = False
        self._failed: dict[str, ConfigError] = {}

    def stop(self) -> None:
        """End what is being pulled and built; nothing can be made any more."""
        self._stopped.set()

    def pulled(self, reference: str, pull: str, working: Callable[[str], object] | None = None) -> str:
        """Return the id of an image by name; fetch it where that is missing and allowed (``pull: missing``).

        Args:
            reference: the image's name.
            pull: "missing" or "never".
            working: told "pulling" when there is something to do that takes time.
        """
        found = self._find(reference)
        if found is not None:
            return str(found["Id"])
        if pull == "never":
            raise ConfigError(
                "image",
                f"the image {reference} is not on this engine, and `pull: never` forbids to fetch it; "
                f"make it there (for infranoise/base: bench_tasks/prepare), or set `pull: missing`",
            )
        if working is not None:
            working("pulling")
        with locked(f"pull-{hashlib.sha256(reference.encode()).hexdigest()[:16]}", PULL_SECONDS, self._stopped):
            found = self._find(reference) or self._pull(reference)
        return str(found["Id"])

    def built(
        self, root: Path, seconds: float | None = None, working: Callable[[str], object] | None = None
    ) -> str:
        """Return the id of the image that a directory with a Dockerfile describes, built once per content.

        Args:
            root: the directory.
            seconds: how long a build may take; None for the default.
            working: told "building" when there is something to do that takes time.
        """
        context = read_context(root)
        tag = f"{REPOSITORY}:{context.digest[:16]}"
        found = self._find(tag)
        if found is None:
            if working is not None:
                working("building")
            limit = BUILD_SECONDS if seconds is None else seconds
            with locked(f"build-{context.digest[:16]}", limit + _LOCK_MARGIN, self._stopped):
                found = self._find(tag) or self._build(context, tag, limit)
        return str(found["Id"])

    def all_built(self) -> list[BuiltImage]:
        """Return the images that were built here; those made of them carry the labels too, but no such name."""
        with engine_call("images"):
            found = self._engine.client.images(filters={"label": CONTENT_LABEL})
        built = []
        for image in found:
            tags = tuple(tag for tag in image.get("RepoTags") or () if tag.startswith(f"{REPOSITORY}:"))
            if tags:
                built.append(BuiltImage(image["Id"], tags, int(image.get("Size") or 0)))
        return built

    def remove(self, image: BuiltImage) -> bool:
        """Remove an image that was built here; whether that is so: not when a container is made of it."""
        for tag in image.tags:
            # As long as its build lock is held, somebody is about to use it.
            name = f"build-{tag.rpartition(':')[2]}"
            try:
                with locked(name, _REMOVE_SECONDS), engine_call("remove image"):
                    self._engine.client.remove_image(tag)
            except SandboxError as error:
                if error.status != 404:
                    return False
        return True

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
            bounded(fetch, PULL_SECONDS, self._stopped)
        except ConfigError as error:
            raise ConfigError("pull", f"the image {reference} cannot be had: {error.text}", error.status) from error
        except TimeoutError as error:
            raise ImagePullError("pull", f"the image {reference} did not come in {PULL_SECONDS:.0f} s") from error
        except Stopped as error:
            raise SandboxError("pull", f"the image {reference} is not wanted any more") from error
        found = self._find(reference)
        if found is None:
            raise ImagePullError("pull", f"the image {reference} is not there although its pull ended well")
        return found

    def _build(self, context: Context, tag: str, seconds: float) -> Mapping[str, Any]:
        if context.digest in self._failed:  # another directory with the same content
            raise self._failed[context.digest]
        try:
            self._run_build(context, tag, seconds)
        except BuildFailed as failed:
            error = _build_error(context, failed)
            if isinstance(error, ConfigError):
                self._failed[context.digest] = error
            raise error from failed
        except Stopped as error:
            raise SandboxError("build", f"the image of {context.root} is not wanted any more") from error
        found = self._find(tag)
        if found is None:
            raise SandboxError("build", f"{tag} is not there although its build ended well")
        return found

    def _run_build(self, context: Context, tag: str, seconds: float) -> None:
        needs = read_needs(context.dockerfile.read_bytes().decode(errors="replace"))
        command = self._buildkit()
        labels = {CONTENT_LABEL: context.digest, BUILDER_LABEL: "buildkit" if command else "classic"}
        if command is None:
            if needs.needs:
                raise ConfigError("build", _needs_buildkit(context, needs.needs[0].line, needs.needs[0].what))
            self._classic(context, tag, labels, seconds)
            return
        beyond = needs.beyond(self._version())
        if beyond is not None:
            raise ConfigError("build", _needs_newer(context, beyond.line, beyond.what, beyond.since))
        root = context.root.absolute()
        buildkit.build(command, self._engine.address, root, tag, labels, seconds, self._stopped)

    def _classic(self, context: Context, tag: str, labels: Mapping[str, str], seconds: float) -> None:
        lines: deque[str] = deque(maxlen=_LINES_SHOWN)
        with tempfile.TemporaryFile() as archive:
            context.pack(archive)
            archive.seek(0)
            work = classic.Build(self._engine, archive, tag, labels, lines)
            try:
                bounded(work.run, seconds, self._stopped)
            except ConfigError as error:
                raise BuildFailed(error.text, lines) from error
            except TimeoutError:
                work.cancel()
                raise BuildFailed(f"not done in {seconds:.0f} s", lines) from None
            except Stopped:
                work.cancel()
                raise

    def _buildkit(self) -> str | None:
        """Return the docker command to build with, looked for once; None: the classic builder has to do."""
        with self._choice:
            if not self._chosen:
                self._command = buildkit.find_command(self._engine.address)
                self._chosen = True
            return self._command

    def _version(self) -> tuple[int, ...]:
        with engine_call("info"):
            version = str(self._engine.client.version()["Version"])
        numbers = re.match(r"(\d+)\.(\d+)", version)
        return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _needs_buildkit(context: Context, line: int, what: str) -> str:
    return (
        f"{context.dockerfile}:{line}: {what} needs BuildKit, and no docker command in PATH can build with it on "
        "this engine (the classic builder, used instead, cannot do this); install docker's buildx plugin"
    )


def _needs_newer(context: Context, line: int, what: str, since: tuple[int, int]) -> str:
    return (
        f"{context.dockerfile}:{line}: {what} is more than this engine's BuildKit knows by itself; make "
        f"`# syntax=docker/dockerfile:1` the first line, or use Docker Engine {since[0]} or later"
    )


def _build_error(context: Context, failed: BuildFailed) -> SandboxError:
    kind: type[SandboxError] = ConfigError
    if not _STEP_FAILED.search(failed.text):
        kind = type(classify("build", None, failed.text))
    head = f"the image of {context.root} cannot be built: {failed.text}"[:_TEXT_SHOWN]
    if "docker/dockerfile" in failed.text and kind is not ConfigError:
        head += " (the line `# syntax=` makes BuildKit fetch the program that reads the Dockerfile)"
    return kind("build", "\n".join([head, *_last_lines(failed.lines, _TEXT_SHOWN - len(head))]))


def _last_lines(lines: Iterable[str], room: int) -> list[str]:
    """Return the last of the lines that fit into so many characters."""
    shown: deque[str] = deque()
    for line in reversed([line[:_LINE_SHOWN] for line in lines][-_LINES_SHOWN:]):
        room -= len(line) + 1
        if room < 0:
            break
        shown.appendleft(line)
    return list(shown)


def bounded(work: Callable[[], None], seconds: float, stopped: threading.Event | None = None) -> None:
    """Do work that may hang in a call of the SDK that has no timeout.

    Raises:
        TimeoutError: it was not done in time; its thread is left behind.
        Stopped: ``stopped`` was set; its thread is left behind.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="infranoise-image", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive():
        if stopped is not None and stopped.is_set():
            raise Stopped
        if time.monotonic() >= deadline:
            raise TimeoutError
        thread.join(min(0.2, max(0.0, deadline - time.monotonic())))
    if failures:
        raise failures[0]
