"""What an error of the Docker API means, as one ordered table.

The engine's status codes alone say little: an exhausted address pool is a 404, an unknown user a 500, a rate
limited pull a 500 too. So each call, status and text is looked up here, first match wins, and everything else
in this package only ever sees a typed ``SandboxError``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import requests
import urllib3
from docker.errors import APIError
from docker.errors import DockerException
from docker.errors import InvalidVersion
from docker.errors import TLSParameterError

from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import ExecLost
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import HostDiskFull
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import NetworkSetupError
from pytest_infranoise.sandboxes.protocol import SandboxError


class Rule(NamedTuple):
    """One line of the table: which calls and statuses it is about, what the text says, what that means.

    Empty ``calls`` are all calls, empty ``statuses`` all statuses.
    """

    calls: frozenset[str]
    statuses: frozenset[int]
    pattern: re.Pattern[str]
    error: type[SandboxError]


def _rule(calls: str, statuses: str, pattern: str, error: type[SandboxError]) -> Rule:
    return Rule(
        frozenset(calls.split()),
        frozenset(int(status) for status in statuses.split()),
        re.compile(pattern, re.IGNORECASE | re.DOTALL),
        error,
    )


# The text of a container that could not even start for want of memory: the user's mistake when the ceiling is
# tiny, the machine's trouble otherwise, so the caller decides.
OUT_OF_MEMORY_AT_START = re.compile(
    r"container init was OOM-killed|can't get final child's PID from pipe|cannot start a container that has stopped"
)

_5XX = "500 501 502 503 504"
_ODD_PATH = (
    r"not a directory|too many (levels of symbolic )?links|file name too long|path too long|invalid argument"
)

RULES: tuple[Rule, ...] = (
    _rule("", "", r"no space left on device|ResourceExhausted|disk quota exceeded", HostDiskFull),
    _rule(
        "network create start",
        "",
        r"non-overlapping IPv4 address pool|address pools have been fully subnetted|could not find bridge"
        r"|failed to create endpoint|network \S+ not found|is ambiguous \(\d+ matches|has active endpoints"
        r"|network with name \S+ already exists|address already in use|failed to set ?up network",
        NetworkSetupError,
    ),
    _rule(
        "pull build",
        "",
        r"manifest (unknown|for .* not found)|pull access denied|repository (does not exist|\S+ not found)"
        r"|invalid reference format|invalid repository name|unauthorized|no basic auth"
        r"|no matching manifest",
        ConfigError,
    ),
    _rule(
        "pull build",
        "",
        r"toomanyrequests|429 Too Many|i/o timeout|TLS handshake timeout|no such host|connection (refused|reset)"
        r"|unexpected EOF|: 50[0-4] |server misbehaving|context deadline exceeded|Client\.Timeout exceeded",
        ImagePullError,
    ),
    _rule("pull", "", r"", ImagePullError),
    _rule("build", "", r"", ConfigError),
    # An id was found on this engine before: somebody has removed the image since.
    _rule("create", "404", r"No such image: sha256:", ImagePullError),
    _rule("create", "404", r"No such image", ConfigError),
    _rule("create", "409", r"container name .* is already in use", EnvStartError),
    _rule("create", "500", r"--storage-opt is supported only", ConfigError),
    _rule("image", "400", r"", ConfigError),
    _rule("create", "500", r"cannot mkdir: .* is not a directory", ConfigError),
    _rule("create", "400", r"", ConfigError),
    _rule("start", "400 500", OUT_OF_MEMORY_AT_START.pattern, EnvStartError),
    # The container runtime itself failed; the engine calls that a 400 when its words happen to name a file.
    _rule("start", "400 500", r"unable to retrieve OCI runtime error|\S+ did not terminate su", EnvStartError),
    _rule(
        "start",
        "400 500",
        r"executable file not found|stat .*: no such file or directory|exec: .*: permission denied"
        r"|exec format error|unable to find (user|group)|no matching entries in (passwd|group) file|chdir to cwd"
        r"|is not a directory|not a directory|error gathering device|could not select device driver"
        r"|sysctl .* is not|setting rlimit|cpu-shares is|cfs_quota_us: invalid argument",
        ConfigError,
    ),
    _rule("exec archive read inspect kill", "409", r"is not running|is paused|is restarting", ContainerLost),
    _rule("read", "404", r"Could not find the file", FileMissing),
    _rule("archive", "404", r"Could not find the file", ConfigError),
    # Made by whoever may write in the container, so never the engine's or the user's fault.
    _rule("read", _5XX, _ODD_PATH, FileMissing),
    _rule("archive", _5XX, rf"{_ODD_PATH}|Error processing tar file", SandboxError),
    _rule("", "404", r"No such container", ContainerLost),
    _rule("", "404", r"No such exec", ExecLost),
    _rule("", "401", r"", ConfigError),
    _rule("create start", _5XX, r"", EnvStartError),
    _rule("", _5XX, r"", EngineLost),
)

_GONE = (
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    DockerException,
    OSError,
)


def classify(call: str, status: int | None, text: str) -> SandboxError:
    """Return what an answer of the engine means.

    Args:
        call: what was asked: create, start, exec, inspect, archive (files in), read (files out), kill, remove,
            pull, build, image, network, info or list.
        status: the HTTP status; None when the text came inside a stream that began well.
        text: the engine's own words.
    """
    for rule in RULES:
        if rule.calls and call not in rule.calls:
            continue
        if rule.statuses and status not in rule.statuses:
            continue
        if rule.pattern.search(text):
            return rule.error(call, text, status)
    return SandboxError(call, text, status)


def from_exception(call: str, error: Exception) -> SandboxError:
    """Return the typed error for an exception of the SDK or of the libraries under it."""
    if isinstance(error, SandboxError):
        return error
    if isinstance(error, APIError):
        return classify(call, error.status_code, (error.explanation or str(error)).strip())
    if isinstance(error, InvalidVersion | TLSParameterError):
        return ConfigError(call, str(error))
    if isinstance(error, _GONE):
        return EngineLost(call, f"the engine does not answer ({type(error).__name__}: {error})")
    raise error


@contextmanager
def engine_call(call: str) -> Iterator[None]:
    """Turn whatever the SDK raises inside into the typed error that it means."""
    try:
        yield
    except _GONE as error:
        raise from_exception(call, error) from error
