"""What became of a fault, in the words of the table, and what it left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.trials.runner import TrialConfigError
from tests.faults.expected import CONFIG_ERROR
from tests.faults.expected import INTERRUPTED
from tests.faults.expected import Fault

_CHAIN = re.compile(r"^-N (INFRANOISE-[IF]-([0-9a-f]{12}))$", re.MULTILINE)
_NOISE = {Flag.STARVED.value}


@dataclass(frozen=True, slots=True)
class Got:
    """An outcome, the number of the rule that made it, and its flags."""

    outcome: str
    rule: int | None = None
    flags: frozenset[str] = frozenset()
    summary: str = ""

    @classmethod
    def of(cls, fault: Fault) -> Got:
        return cls(fault.outcome, fault.rule, frozenset(flag.value for flag in fault.flags))

    @classmethod
    def parse(cls, text: str) -> Got:
        outcome, _, rest = text.partition(" by rule ")
        rule, _, flags = rest.partition(" ")
        return cls(outcome, int(rule) if rule else None, frozenset(flags.strip("[]").split()))

    def __str__(self) -> str:
        rule = "" if self.rule is None else f" by rule {self.rule}"
        flags = f" [{' '.join(sorted(self.flags))}]" if self.flags else ""
        return f"{self.outcome}{rule}{flags}"

    def differs_from(self, fault: Fault) -> str:
        """Return what is not as it should be; empty when everything is."""
        expected = Got.of(fault)
        same = (
            self.outcome == expected.outcome
            and (expected.rule is None or self.rule == expected.rule)
            and self.flags - _NOISE == expected.flags - _NOISE
        )
        return "" if same else f"expected {expected}, got {self}"


def judged_as(inject: Callable[[], Record | str]) -> tuple[Got, list[str]]:
    """Inject a fault; returns what it became, and the containers that it is known to have had."""
    try:
        record = inject()
    except TrialConfigError as error:
        return Got(CONFIG_ERROR, summary=error.text), []
    except KeyboardInterrupt:
        return Got(INTERRUPTED), []
    if isinstance(record, str):
        return Got(record), []
    ending = record.cause or record.reason
    outcome = record.verdict.value + (f": {ending.value}" if ending else "")
    container = record.details.get("container")
    flags = frozenset(flag.value for flag in record.flags) - _NOISE
    return Got(outcome, int(record.rule.split()[0]), flags, record.summary), [container] if container else []


def own_children() -> set[int]:
    """Return the PIDs of this process's children, but for engines of the tests' own and Python's own watcher."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            if "resource_tracker" not in command and not command.startswith(("dockerd", "containerd", "unshare")):
                found.add(child.pid)
    return found


def what_is_left(run: str, containers: list[str], *, sweep: bool, over: bool = False) -> list[str]:
    """Return what a run left on the engine and the machine.

    ``sweep``: after the next run has looked for it. ``over``: the run has ended, and its network with it, which
    its trials share until then.
    """
    if sweep:
        from pytest_infranoise.sandboxes.docker import DockerBackend

        backend = DockerBackend(run)
        assert backend.ready(30)
        backend.remove_labelled({"infranoise.run": run})
        backend.close()
    label = f"label=infranoise.run={run}"
    left = [f"container {name}" for name in _listed("ps", "--all", "--quiet", "--filter", label)]
    left += [f"volume {name}" for name in _listed("volume", "ls", "--quiet", "--filter", label)]
    left += networks_of(run) if over else []
    give_up = time.monotonic() + 5  # a process that was killed is gone only when the kernel has time for it
    while (processes := _processes_of(containers)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return left + [f"process {pid}" for pid in processes]


def networks_of(run: str) -> list[str]:
    """Return the networks of a run on the engine."""
    found = _listed("network", "ls", "--quiet", "--no-trunc", "--filter", f"label=infranoise.run={run}")
    return [f"network {name}" for name in found]


def stray_chains() -> set[str]:
    """Return the packet filter chains of ours whose network is gone; none where we can set none up."""
    found = set()
    for tool in ("iptables", "ip6tables"):
        if os.geteuid() == 0 and shutil.which(tool) is not None:
            done = subprocess.run([tool, "-w", "10", "-S"], capture_output=True, text=True, timeout=60)
            for name, network in _CHAIN.findall(done.stdout):
                if not Path(f"/sys/class/net/br-{network}").exists():
                    found.add(f"{tool} chain {name}")
    return found


def chains_left(before: set[str]) -> list[str]:
    """Return which chains lost their network meanwhile and stay; those of a session that just ends do not."""
    give_up = time.monotonic() + 10
    while (left := stray_chains() - before) and time.monotonic() < give_up:
        time.sleep(0.05)
    return sorted(left)


def _listed(*argv: str) -> list[str]:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _processes_of(containers: list[str]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            cgroup = (entry / "cgroup").read_text()
            found += [pid] if any(container in cgroup for container in containers) else []
    return found
