"""Other people's pytest plugins: installed to be tested with trials, and out of the way elsewhere."""

from __future__ import annotations

from importlib.metadata import entry_points

OTHERS = (
    "timeout",
    "rerunfailures",
    "randomly",
    "html",
    "html_fixtures",
    "metadata",
    "pytest_cov",
    "pytest_reportlog",
)
# Of no use in short sessions, and a tenth of what one costs each: to load, or to collect garbage at the end.
NEEDLESS = ("hypothesispytest", "unraisableexception")


def installed(plugin: str) -> bool:
    """Whether a plugin would be loaded into every session."""
    return any(point.name == plugin for point in entry_points(group="pytest11"))


def without(*plugins: str) -> str:
    """Return options that keep plugins away."""
    return " ".join(f"-p no:{plugin}" for plugin in plugins)
