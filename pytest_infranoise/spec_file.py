"""The file of ``infranoise calibrate --write-spec``: recommended floors and ceilings with their evidence."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_infranoise import __version__
from pytest_infranoise.results import Analysis
from pytest_infranoise.spec_advice import RULES
from pytest_infranoise.spec_advice import Advice
from pytest_infranoise.spec_advice import TaskAdvice

SPEC_SCHEMA = 1
SUFFIXES = (".yaml", ".yml", ".json")
_UNITS = (("T", 1024**4), ("G", 1024**3), ("M", 1024**2), ("K", 1024))


class CannotWrite(Exception):
    """The file cannot be written; the message is fit to show to a user."""


def check_target(path: Path, *, force: bool) -> None:
    """Check whether a spec could be written to ``path``, before anything is computed or printed.

    Raises:
        CannotWrite: its suffix is none of ours, its directory is missing, or it exists and ``force`` is not given.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise CannotWrite(f"{path}: the suffix says the format; give one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise CannotWrite(f"{path}: no directory {path.parent}; make it first")
    if path.is_dir():
        raise CannotWrite(f"{path}: is a directory; give a file")
    if path.exists() and not force:
        raise CannotWrite(f"{path}: exists already; --force overwrites it")


def spec_document(analysis: Analysis, advice: Sequence[TaskAdvice], chosen: str | None) -> dict[str, Any]:
    """Return everything that is written, JSON-safe; ``chosen`` as in ``spec_advice.advise``."""
    return {
        "schema": SPEC_SCHEMA,
        "written_by": f"pytest-infranoise {__version__}",
        "run": analysis.run,
        "not_an_estimate": analysis.cut_short,
        "host_cpus": (analysis.meta.get("engine") or {}).get("cpus"),
        "configs": [dict(entry) for entry in analysis.meta.get("configs", ())],
        "calibration": [_calibration(analysis, place) for place in range(len(analysis.agents))],
        "ceilings_from": chosen,
        "rules": list(RULES),
        "tasks": {task.task: _task(task) for task in advice},
    }


def _calibration(analysis: Analysis, place: int) -> dict[str, Any]:
    agent = analysis.agents[place]
    found = agent.calibration
    return {
        "agent": agent.label,
        "status": found.status if found else None,
        "pick": found.pick if found else None,
        "candidate": found.candidate if found else None,
        "margin": analysis.design.margin,
        "alpha": analysis.design.alpha,
        "min_cut": analysis.design.min_cut,
    }


def _task(advice: TaskAdvice) -> dict[str, Any]:
    return {
        "task_hash": advice.task_hash,
        "resources": {
            "cpus": {"floor": advice.cpus_floor.value, "ceiling": advice.cpus_ceiling.value},
            "memory": {"floor": _size(advice.memory_floor), "ceiling": _size(advice.memory_ceiling)},
        },
        "reasons": {
            "cpus": {"floor": advice.cpus_floor.reason, "ceiling": advice.cpus_ceiling.reason},
            "memory": {"floor": advice.memory_floor.reason, "ceiling": advice.memory_ceiling.reason},
        },
        "spec": {"cpus": advice.cpus_spec, "memory": advice.memory_spec},
        "evidence": [asdict(entry) for entry in advice.evidence],
    }


def _size(advice: Advice) -> str | None:
    """Return an amount as task files write it."""
    if advice.value is None:
        return None
    size = int(advice.value)
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if size % factor == 0), ("B", 1))
    return f"{size // factor}{unit}"


def write_spec(path: Path, document: Mapping[str, Any], *, force: bool) -> None:
    """Write the document so that a reader sees all of it or nothing.

    Raises:
        CannotWrite: see ``check_target``; or the file system refuses.
    """
    check_target(path, force=force)
    text = _text(path, document)
    partial: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="ascii", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            partial = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o666 & ~_umask())
        if force:
            partial.replace(path)
        else:
            # A link, unlike a rename, fails when somebody made the file in the meantime.
            path.hardlink_to(partial)
    except FileExistsError:
        raise CannotWrite(f"{path}: exists already; --force overwrites it") from None
    except OSError as error:
        raise CannotWrite(f"{path}: {error.strerror or error}") from None
    finally:
        if partial is not None:
            with suppress(OSError):
                partial.unlink()


def _text(path: Path, document: Mapping[str, Any]) -> str:
    if path.suffix.lower() == ".json":
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, width=116)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
