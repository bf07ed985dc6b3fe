"""What a container on a network of ours can reach of its host, closed by packet filter rules where possible.

The engine keeps containers of one network apart when it is asked to, but leaves them the host's own ports (through
the bridge's address) and link-local addresses, where clouds answer with credentials. As root on the engine's
machine two chains per network close both. Nothing but chains of our own, and the jumps to them, is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS = 30.0
_LOCK_SECONDS = "10"
_ID = 12  # digits of a network's id that the engine puts into the name of its bridge
_OURS = re.compile(r"INFRANOISE-[IF]-([0-9a-f]{12})")
_INTERFACES = Path("/sys/class/net")
_SYSCTL = Path("/proc/sys/net/bridge")
# Where clouds answer requests for credentials, beside everything link-local.
_LINK_LOCAL = {"iptables": ("169.254.0.0/16",), "ip6tables": ("fe80::/10", "fd00:ec2::254/128")}


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the containers of a network are kept from; None where the engine was asked and nobody could look.

    DNS (port 53) stays open everywhere: a host's own name server may be at any of these addresses. ``why`` says
    why something is not closed, ``allowed`` which TCP ports of the host are left open on purpose.
    """

    other_trials: bool | None
    link_local: bool
    host_ports: bool
    why: str = ""
    allowed: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it in words, for ``run.json``."""
        words = {True: "blocked", False: "reachable", None: "blocked by the engine, as asked of it"}
        return {
            "other_trials": words[self.other_trials],
            "link_local": words[self.link_local],
            "host_ports": words[self.host_ports],
            "open_in_any_case": "DNS (port 53)",
            "allowed_host_ports": list(self.allowed),
            "why": self.why or None,
        }


class _Refused(Exception):
    """The packet filter did not take a rule."""


def isolate(network: Mapping[str, Any], *, on_this_machine: bool, allowed: Sequence[int] = ()) -> Isolation:
    """Close what can be closed to the containers of a network; the same again changes nothing.

    Args:
        network: the engine's answer to an inspection.
        on_this_machine: whether the engine may run here.
        allowed: TCP ports of the host that stay open; the same in every process of a run.
    """
    identifier = str(network["Id"])[:_ID]
    bridge = _bridge(identifier)
    tools = ["iptables", "ip6tables"] if network.get("EnableIPv6") else ["iptables"]
    problem = _obstacle(bridge, tools, on_this_machine=on_this_machine)
    if problem is not None:
        return Isolation(None, link_local=False, host_ports=False, why=problem, allowed=tuple(allowed))
    try:
        for tool in tools:
            _sweep(tool)
            _close(tool, identifier, bridge, allowed)
    except (_Refused, OSError, subprocess.SubprocessError) as error:
        problem = f"packet filter rules were refused: {error}"
        return Isolation(None, link_local=False, host_ports=False, why=problem, allowed=tuple(allowed))
    unseen = [tool for tool in tools if not _sees_bridged_packets(tool)]
    why = f"this kernel passes packets between containers by {' and '.join(unseen)}" if unseen else ""
    return Isolation(other_trials=not unseen, link_local=True, host_ports=True, why=why, allowed=tuple(allowed))


def release(network: str) -> None:
    """Remove the rules of a network that is gone; there may be none."""
    identifier = network[:_ID]
    for tool in ("iptables", "ip6tables"):
        if os.geteuid() == 0 and shutil.which(tool) is not None:
            _remove(tool, identifier)


def sweep() -> None:
    """Remove our rules of networks that are no more: of a run that was killed, or that somebody else removed."""
    for tool in ("iptables", "ip6tables"):
        if os.geteuid() == 0 and shutil.which(tool) is not None:
            with contextlib.suppress(_Refused, OSError, subprocess.SubprocessError):
                _sweep(tool)


def _bridge(identifier: str) -> str:
    return f"br-{identifier}"


def _obstacle(bridge: str, tools: Sequence[str], *, on_this_machine: bool) -> str | None:
    if not on_this_machine:
        return "the engine is on another machine"
    if os.geteuid() != 0:
        return "closing them takes root"
    if not (_INTERFACES / bridge).exists():
        return "the engine has a network namespace of its own"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} on this machine" if missing else None


def _sees_bridged_packets(tool: str) -> bool:
    try:
        return (_SYSCTL / f"bridge-nf-call-{tool}").read_text("ascii").strip() == "1"
    except OSError:
        return False


def _close(tool: str, identifier: str, bridge: str, allowed: Sequence[int]) -> None:
    """Put both chains into force, all at once, and check that packets get there."""
    listed = _listed(tool)
    forward = "DOCKER-USER" if "-N DOCKER-USER" in listed else "FORWARD"
    to_host, onwards = f"INFRANOISE-I-{identifier}", f"INFRANOISE-F-{identifier}"
    jumps = [("INPUT", f"-i {bridge} -j {to_host}"), (forward, f"-i {bridge} -j {onwards}")]
    lines = ["*filter", f":{to_host} - [0:0]", f":{onwards} - [0:0]"]
    lines += [f"-A {to_host} {rule}" for rule in _to_host(tool, allowed)]
    lines += [f"-A {onwards} {rule}" for rule in _onwards(tool, bridge)]
    lines += [f"-I {chain} {rule}" for chain, rule in jumps if f"-A {chain} {rule}" not in listed]
    _run(f"{tool}-restore", "--noflush", text="\n".join([*lines, "COMMIT", ""]))
    for chain, rule in jumps:
        _run(tool, "-C", chain, *rule.split())


def _to_host(tool: str, allowed: Sequence[int]) -> Iterator[str]:
    # Answers to what the host itself began.
    yield "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    if tool == "ip6tables":
        yield "-p ipv6-icmp -j RETURN"  # neighbours are found by it
    yield from _DNS
    yield from (f"-p tcp -m tcp --dport {port} -j RETURN" for port in allowed)
    yield "-j REJECT"


def _onwards(tool: str, bridge: str) -> Iterator[str]:
    yield f"-o {bridge} -j DROP"
    yield from _DNS
    yield from (f"-d {address} -j REJECT" for address in _LINK_LOCAL[tool])


_DNS = ("-p udp -m udp --dport 53 -j RETURN", "-p tcp -m tcp --dport 53 -j RETURN")


def _sweep(tool: str) -> None:
    """Remove our rules of bridges that are no more: of a run that was killed, or whose network somebody removed."""
    found = {match[1] for line in _listed(tool) if (match := _OURS.fullmatch(line.removeprefix("-N ")))}
    for identifier in sorted(found):
        if not (_INTERFACES / _bridge(identifier)).exists():
            _remove(tool, identifier)


def _remove(tool: str, identifier: str) -> None:
    try:
        chains = [chain for kind in "IF" if f"-N {(chain := f'INFRANOISE-{kind}-{identifier}')}" in _listed(tool)]
        for line in _listed(tool) if chains else ():
            words = shlex.split(line)
            if words[0] == "-A" and words[-2] == "-j" and words[-1] in chains:
                _run(tool, "-D", *words[1:])
        for chain in chains:
            _run(tool, "-F", chain)
            _run(tool, "-X", chain)
    except (_Refused, OSError, subprocess.SubprocessError):
        return  # perhaps another process was faster; what is left concerns a bridge that is gone


def _listed(tool: str) -> list[str]:
    return _run(tool, "-S").splitlines()


def _run(tool: str, *arguments: str, text: str | None = None) -> str:
    command = [tool, "-w", _LOCK_SECONDS, *arguments]
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise _Refused(" ".join(done.stderr.split()) or f"{tool} ended with exit status {done.returncode}")
    return done.stdout
