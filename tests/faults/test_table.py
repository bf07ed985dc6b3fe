"""The table itself: every fault in it is injected, and every outcome in it is one that there is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.isolation import release
from tests.faults.expected import FAULTS
from tests.faults.outcomes import Got
from tests.faults.outcomes import networks_of
from tests.faults.outcomes import stray_chains
from tests.faults.outcomes import what_is_left


def test_every_fault_of_the_table_is_injected_once() -> None:
    from tests.faults import injected

    assert sorted(injected.INJECTED) == sorted(FAULTS)


def test_every_fault_is_told_apart_from_every_other_outcome() -> None:
    for name, fault in FAULTS.items():
        got = Got.parse(str(Got.of(fault)))
        assert not got.differs_from(fault), name
        other = (
            Got.parse("infra-error: unknown by rule 14") if got.outcome != "anything but a pass" else Got("pass")
        )
        assert other.differs_from(fault), name


def test_names_can_be_typed() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in FAULTS)
    assert Path(__file__).parent.name == "faults"


@pytest.mark.engine
def test_what_a_run_leaves_is_found() -> None:
    """The look for left-overs sees a network, and chains whose network somebody else removed."""
    backend = DockerBackend(f"left-{os.getpid()}-{os.urandom(3).hex()}")
    network = ""
    try:
        before = stray_chains()
        isolation = backend.isolation()
        assert len(networks_of(backend.run)) == 1
        assert what_is_left(backend.run, [], sweep=False, over=True) == networks_of(backend.run)
        assert what_is_left(backend.run, [], sweep=False) == []
        assert stray_chains() <= before
        network = backend.ensure_network()
        subprocess.run(["docker", "network", "rm", network], check=True, capture_output=True)
        chains = {chain for chain in stray_chains() if network[:12] in chain}
        assert len(chains) == (2 if isolation.host_ports else 0)
    finally:
        if network:
            release(network)
        backend.remove_labelled({"infranoise.run": backend.run})
        backend.close()
    assert not [chain for chain in stray_chains() if network[:12] in chain]
    assert networks_of(backend.run) == []
