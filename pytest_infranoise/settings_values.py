"""One value of an option, of its ini twin or of ``infranoise.toml``, and how a mistake in it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    import pytest


def option_name(name: str) -> str:
    """Return how an option is typed, e.g. ``--infranoise-pass-threshold``."""
    return f"--infranoise-{name.replace('_', '-')}"


def scalar(config: pytest.Config, name: str, kind: type[int | float], default: float) -> Any:
    """Return a number: as typed, else from the ini file, else ``default`` (which may be from ``infranoise.toml``).

    Raises:
        ValueError: the ini value is no number.
    """
    import pytest

    value = getattr(config.option, f"infranoise_{name}")
    if value is not None:
        return value
    try:
        given = config.getini(f"infranoise_{name}")
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise ValueError(f"ini value infranoise_{name} is not a number: {error}") from None
    return kind(default if given is None else given)


def told(config: pytest.Config, toml: Path | None, name: str, error: str) -> str:
    """Return a mistake with its place.

    Raises:
        ValueError: it was typed, so that it concerns this very pytest run.
    """
    if getattr(config.option, f"infranoise_{name}") is not None:
        raise ValueError(f"{option_name(name)}: {error}")
    given = config.getini(f"infranoise_{name}")
    place = f"{toml}: {name.replace('_', '-')}" if given in (None, [], "") else f"ini value infranoise_{name}"
    return f"{place}: {error}"
