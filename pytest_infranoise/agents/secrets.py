"""Keeps the values of variables that were passed to an agent out of everything that is written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MASK = "***"
_SHORTEST = 4  # characters; masking every "1" would hide more than it protects


class Masker:
    """Replaces secrets in texts, in bytes and anywhere in a JSON value.

    Masked are the values and the longer lines of values that have several (keys). What a process makes of a
    secret (its base64 form, its length) is not known here, so it is not masked.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {part for secret in secrets for part in (secret, secret.strip(), *_lines(secret))}
        # Longest first: a secret that holds another one must not be left in halves.
        self._secrets = sorted(
            (part for part in found if len(part) >= _SHORTEST), key=lambda part: (-len(part), part)
        )

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

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


def _lines(secret: str) -> list[str]:
    lines = [line.strip() for line in secret.splitlines()]
    return [line for line in lines if len(line) >= 2 * _SHORTEST]


def _without_cut(data: bytes, secret: bytes) -> bytes:
    for length in range(len(secret) - 1, _SHORTEST - 1, -1):
        if data.endswith(secret[:length]):
            return data[:-length] + MASK.encode()
    return data
