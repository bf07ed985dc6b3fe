"""Leaving nothing of a run on the engine, and saying what stays there all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_infranoise.prepare import RUN_LABEL
from pytest_infranoise.sandboxes.protocol import SandboxError

if TYPE_CHECKING:
    from pytest_infranoise.sandboxes.docker import DockerBackend


def remove(backend: DockerBackend, run: str, labels: Mapping[str, str] | None = None) -> str:
    """Remove a run's containers and networks, or those of them that carry more labels.

    Returns:
        What the summary has to say of it: nothing, unless something is left or the engine does not answer.
    """
    try:
        backend.remove_labelled({RUN_LABEL: run, **(labels or {})})
        left = 0 if labels else len(backend.labelled(f"{RUN_LABEL}={run}"))
    except SandboxError as error:
        return (
            f"could not clean up on the engine ({error.text}); what is left there carries the label "
            f"{RUN_LABEL}={run}, and the next run removes it"
        )
    if not left:
        return ""
    return (
        f"{left} of this run's containers and networks could not be removed; the next session on this host tries "
        "again, and so does `infranoise clean`"
    )
