"""What the processes of a container are allowed: read from the kernel where its files can be read, else stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# By the number of their bit, as in linux/capability.h.
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER"),
    *("SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE"),
    *("SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP"),
    *("MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF"),
    "CHECKPOINT_RESTORE",
)
_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}


def read_privileges(pid: int) -> dict[str, Any] | None:
    """Return what the kernel lets a process of this machine and all its children have; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    try:
        bounding = int(fields["CapBnd"], 16)
        return {
            "source": "the kernel",
            "capabilities": names_of(bounding),
            "seccomp": _SECCOMP.get(fields.get("Seccomp", "").strip(), "unknown"),
            "no_new_privileges": fields.get("NoNewPrivs", "").strip() == "1",
        }
    except (KeyError, ValueError):
        return None


def names_of(bits: int) -> list[str]:
    """Return the names of a set of capabilities, a number for those that are newer than this list."""
    numbers = [number for number in range(bits.bit_length()) if bits >> number & 1]
    return [CAPABILITIES[number] if number < len(CAPABILITIES) else str(number) for number in numbers]


def stated_privileges(host_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine says it was asked for; what its defaults are it does not say."""
    return {
        "source": "the engine",
        "privileged": bool(host_config.get("Privileged")),
        "added": list(host_config.get("CapAdd") or ()),
        "dropped": list(host_config.get("CapDrop") or ()),
        "options": list(host_config.get("SecurityOpt") or ()),
    }
