"""Keeps the values of variables that were passed to an agent out of everything that is written down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from pytest_infranoise.model import AgentChoice
from pytest_infranoise.model import Task
from pytest_infranoise.tasks.host_environment import host_variables

MASK = "***"
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_ESCAPE = re.compile(r"\\([abfnrtv\\])")  # what a plain shell's echo makes something else of
SHORTEST = 4  # characters; masking every "1" would hide more than it protects


class Masker:
    """Replaces secrets in texts, in bytes and anywhere in a JSON value.

    Masked are the values, the longer lines of values that have several (keys), and the forms that values take by
    themselves: on one line, and as JSON, tracebacks and shells write them. What a process makes of a secret (its
    base64 form, its length) is not known here, so it is not masked.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {form for secret in secrets for form in _forms(str(secret))}
        # Longest first: a secret that holds another one must not be left in halves.
        self._secrets = sorted(
            (form for form in found if len(form) >= SHORTEST), key=lambda form: (-len(form), form)
        )

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def cut_text(self, text: str) -> str:
        """Return a text that was cut off at its end without the secrets and without the beginning of one there."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def data(self, data: bytes) -> bytes:
        """Return bytes without the secrets, and without the beginning of one that was cut off at the end.

        The end is also what stands before a last line in square brackets, in which logs say what they left out.
        """
        encoded = [secret.encode("utf-8", "surrogateescape") for secret in self._secrets]
        for secret in encoded:
            data = data.replace(secret, MASK.encode())
        head, bracket, note = data.rpartition(b"\n[")
        for secret in encoded:
            head = _without_cut(head, secret)
            note = _without_cut(note, secret)
        return head + bracket + note

    def json(self, value: Any, *, keys: bool = True) -> Any:
        """Return a JSON value without the secrets; ``keys`` says whether they may be in its keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)) if keys else key: self.json(part, keys=keys) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(part, keys=keys) for part in value]
        return value


def masker_for(agent: object, choice: AgentChoice, task: Task) -> Masker:
    """Return what keeps out everything that an agent and a task were given from this machine's environment.

    An ``agent`` of None is one that is not made yet, or cannot be: its constructor may say secrets as well.
    """
    variables = {*_passed(choice), *host_variables(task)}
    values = [os.environ[name] for name in sorted(variables) if name in os.environ]
    return Masker((*getattr(agent, "secrets", ()), *values))


def unmaskable(choice: AgentChoice, task: Task) -> Iterator[str]:
    """Yield the names of variables whose values are too short to be masked."""
    for name in sorted({*_passed(choice), *host_variables(task)}):
        if 0 < len(os.environ.get(name, "").strip()) < SHORTEST:
            yield name


def _passed(choice: AgentChoice) -> tuple[str, ...]:
    given = choice.options.get("env", ())
    # What kinds of other plugins take for ``env`` is their own business.
    names = [given] if isinstance(given, str) else given if isinstance(given, list | tuple | dict) else ()
    return tuple(name for name in names if isinstance(name, str))


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as it looks on one line, in tracebacks, in JSON, in a shell (quoted, echoed)."""
    lines = [line.strip() for line in secret.splitlines()]
    for form in (secret, secret.strip(), *(line for line in lines if len(line) >= 2 * SHORTEST)):
        yield form
        yield " ".join(form.split())
        yield repr(form)[1:-1]
        yield form.replace("'", "'\\''")
        yield _ESCAPE.sub(lambda match: _ESCAPED[match[1]], form).strip()
        for ascii_only in (True, False):
            yield json.dumps(form, ensure_ascii=ascii_only)[1:-1]


def _without_cut(data: bytes, secret: bytes) -> bytes:
    for length in range(len(secret) - 1, SHORTEST - 1, -1):
        if data.endswith(secret[:length]):
            return data[:-length] + MASK.encode()
    return data
