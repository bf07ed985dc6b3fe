"""One network per run, in which containers reach the outside but not each other."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.isolation import Isolation
from pytest_infranoise.sandboxes.isolation import isolate
from pytest_infranoise.sandboxes.locks import locked

_LOCK_SECONDS = 120.0


class Network(NamedTuple):
    """A network of the engine's, and what its containers are kept from."""

    id: str
    isolation: Isolation


def ensure_network(
    engine: Engine, name: str, label: tuple[str, str], labels: Mapping[str, str], allowed: Sequence[int] = ()
) -> Network:
    """Return the network that carries a label, made (with some more ``labels``) and isolated if there is none.

    TCP ports of the host that are ``allowed`` stay open.

    Under a lock, because the engine lets two networks have one name and then refuses to use either.
    """
    key, value = label
    with locked(f"network-{name}", _LOCK_SECONDS), engine_call("network"):
        found = [network["Id"] for network in engine.client.networks(filters={"label": f"{key}={value}"})]
        if not found:
            created = engine.client.create_network(
                name,
                driver="bridge",
                options={"com.docker.network.bridge.enable_icc": "false"},
                labels={**labels, key: value},
            )
            found = [created["Id"]]
        inspected = engine.client.inspect_network(found[0])
        here = engine.on_unix_socket
        return Network(str(found[0]), isolate(inspected, on_this_machine=here, allowed=allowed))
