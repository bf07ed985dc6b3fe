from __future__ import annotations

import functools
import os

import pytest

pytest_plugins = ["pytester"]


@functools.cache
def missing_engine() -> str | None:
    """Return why tests that need a real engine cannot run here."""
    import docker
    import docker.errors

    try:
        docker.from_env(timeout=10).images.get("infranoise/base:bookworm")
    except docker.errors.ImageNotFound:
        return "no image infranoise/base:bookworm; run bench_tasks/prepare as root"
    except docker.errors.DockerException as error:
        return f"no Docker Engine answers; run bench_tasks/prepare as root ({error})"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("engine") is None:
        return
    reason = missing_engine()
    if reason is not None:
        # In CI a skipped matrix would look like a passed one.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
