"""Builds with BuildKit, through a docker command line that can really do it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PROBE = b"FROM scratch\nLABEL infranoise.probe=1\n"
_PROBE_SECONDS = 30.0
_GRACE = 5.0  # seconds that a command gets to end by itself
_POLL = 0.1
_LINES = 60
_NOISE = re.compile(
    r"#\d+ (sha256:|DONE|CACHED|transferring|\.\.\.|\[internal\])|-{3,}| > |View build details:|\s*$"
)
_FAILED = re.compile(r"ERROR: |error: |failed to |executor failed ")


class BuildFailed(Exception):
    """A build ended badly: the builder's own words, and the last lines of what was printed before."""

    def __init__(self, text: str, lines: Iterable[str]) -> None:
        super().__init__(text)
        self.text = text
        self.lines = tuple(lines)


class Stopped(Exception):
    """The build was ended because nobody wants its result any more."""


def find_command(address: str) -> str | None:
    """Return the first docker command in PATH that builds with BuildKit on the engine at ``address``.

    Each one is asked to build an image of nothing: many a docker command has no BuildKit, or only the promise of
    a plugin that is not there. A user who set ``DOCKER_BUILDKIT=0`` wants none.
    """
    if os.environ.get("DOCKER_BUILDKIT") == "0":
        return None
    return next((command for command in _commands() if _works(command, address)), None)


def _commands() -> Iterable[str]:
    seen: set[Path] = set()
    for directory in os.get_exec_path():
        command = Path(directory, "docker")
        if os.access(command, os.X_OK) and command.is_file() and command.resolve() not in seen:
            seen.add(command.resolve())
            yield str(command)


def _works(command: str, address: str) -> bool:
    argv = [command, "build", "--quiet", "--output", "type=cacheonly", "-"]
    try:
        done = subprocess.run(
            argv, input=_PROBE, capture_output=True, env=environment(address), timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def environment(address: str) -> dict[str, str]:
    """Return the variables under which a docker command builds with BuildKit, on this engine and no other.

    The SDK knows neither contexts nor builders: what it talks to is the engine at ``address``, so that is where
    the image has to be made, by the builder that keeps its images in the engine and finds local ones there.
    """
    variables = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"}
    host = address.removeprefix("http+") if address.startswith("http+unix://") else address
    return {
        **variables,
        "DOCKER_HOST": f"unix://{host}" if host.startswith("/") else host,
        "DOCKER_BUILDKIT": "1",
        "BUILDX_BUILDER": "default",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        "BUILDKIT_PROGRESS": "plain",
        "BUILDKIT_COLORS": "",
        "NO_COLOR": "1",
    }


def build(
    command: str,
    address: str,
    context: Path,
    tag: str,
    labels: Mapping[str, str],
    seconds: float,
    stopped: threading.Event,
) -> None:
    """Build the image of a directory with a Dockerfile.

    Raises:
        BuildFailed: the build failed, or was not done in time and has been ended.
        Stopped: ``stopped`` was set; it has been ended.
    """
    argv = [command, "build", "--tag", tag, "--file", str(context / "Dockerfile")]
    for name, value in labels.items():
        argv += ["--label", f"{name}={value}"]
    lines: deque[str] = deque(maxlen=_LINES)
    process = _start([*argv, str(context)], environment(address))
    with process:
        reader = threading.Thread(target=_read, args=(process, lines), name="infranoise-build", daemon=True)
        reader.start()
        try:
            status = _await(process, time.monotonic() + seconds, stopped)
        except TimeoutError:
            raise BuildFailed(f"not done in {seconds:.0f} s", _telling(lines)) from None
        finally:
            _end(process)
            reader.join(_GRACE)
    if status != 0:
        raise BuildFailed(*_told(_telling(lines), status))


def _start(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        # A session of its own, so that all of it can be ended: the command, and the plugin that it starts.
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        raise BuildFailed(f"{argv[0]} does not start: {error}", ()) from error


def _read(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
    with suppress(ValueError, OSError):
        for line in process.stdout or ():
            lines.append(line.decode(errors="replace").rstrip())


def _await(process: subprocess.Popen[bytes], deadline: float, stopped: threading.Event) -> int:
    while True:
        try:
            return process.wait(_POLL)
        except subprocess.TimeoutExpired:
            if stopped.is_set():
                raise Stopped from None
            if time.monotonic() >= deadline:
                raise TimeoutError from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs: an interrupted command tells the engine to stop, which then does."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return


def _telling(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in tuple(lines) if not _NOISE.match(line))


def _told(lines: Sequence[str], status: int) -> tuple[str, Sequence[str]]:
    """Return the error in one line, and what was printed before it."""
    place = next((place for place in reversed(range(len(lines))) if _FAILED.match(lines[place])), None)
    if place is None:
        return f"exit status {status}", lines
    return lines[place].removeprefix("ERROR: "), lines[:place]
