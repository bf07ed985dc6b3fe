"""Puts what a task brings along into a sandbox."""

from __future__ import annotations

from pytest_infranoise.model import Upload
from pytest_infranoise.sandboxes.protocol import Sandbox


def put(sandbox: Sandbox, upload: Upload) -> None:
    """Put a file, a directory's content or bytes where they belong, owned by root."""
    if isinstance(upload.source, bytes):
        sandbox.write(upload.target, upload.source, upload.mode)
    else:
        sandbox.upload(upload.source, upload.target)
