"""One network per run, in which containers reach the outside but not each other."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.locks import locked

_LOCK_SECONDS = 120.0


def ensure_network(engine: Engine, name: str, label: tuple[str, str], labels: Mapping[str, str]) -> str:
    """Return the id of the network that carries a label, made (with some more ``labels``) if there is none.

    Under a lock, because the engine lets two networks have one name and then refuses to use either.
    """
    key, value = label
    with locked(f"network-{name}", _LOCK_SECONDS), engine_call("network"):
        for network in engine.client.networks(filters={"label": f"{key}={value}"}):
            return str(network["Id"])
        created = engine.client.create_network(
            name,
            driver="bridge",
            options={"com.docker.network.bridge.enable_icc": "false"},
            labels={**labels, key: value},
        )
        return str(created["Id"])
