"""An engine of the tests' own, which they may kill: in a network of its own, or it would take down the other's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

from tests.trials.lab import BASE


class SecondEngine:
    """A ``dockerd`` under ``path``, with further command line ``options``."""

    def __init__(self, path: Path, options: Sequence[str] = ()) -> None:
        self.address = f"unix://{path}/docker.sock"
        self.data_root = path / "data"
        self._path = path
        self._name = f"infranoise-{uuid.uuid4().hex}"  # a path may have characters that containerd refuses
        self._options = options
        self._containerd_pid = path / "exec/containerd/containerd.pid"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for pidfile in (self._path / "docker.pid", self._containerd_pid):
            # A zombie with the number in an old file would be taken for an engine that runs.
            pidfile.unlink(missing_ok=True)
        argv = ["unshare", "-n", "dockerd", "--host", self.address, "--data-root", str(self.data_root)]
        argv += ["--exec-root", f"{self._path}/exec", "--pidfile", f"{self._path}/docker.pid"]
        argv += ["--bridge=none", "--iptables=false", "--ip-forward=false", "--log-level=error"]
        argv += ["--containerd-namespace", self._name, "--containerd-plugins-namespace", f"{self._name}-plugins"]
        argv += self._options
        with (self._path / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        give_up = time.monotonic() + 60
        while self.docker("version").returncode:
            assert self._process.poll() is None, (self._path / "log").read_text()
            assert time.monotonic() < give_up, (self._path / "log").read_text()
            time.sleep(0.2)

    def docker(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", "--host", self.address, *argv], capture_output=True, timeout=120)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(60)

    def load_base_image(self) -> None:
        save = ["docker", "save", BASE]
        with subprocess.Popen(save, stdout=subprocess.PIPE) as source:
            subprocess.run(
                ["docker", "--host", self.address, "load"], stdin=source.stdout, check=True, capture_output=True
            )

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGTERM)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int(self._containerd_pid.read_text()), signal.SIGTERM)
        self._unmount()

    def _unmount(self) -> None:
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if Path(mount).is_relative_to(self._path)), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=True)


@contextlib.contextmanager
def second_engine(options: Sequence[str] = (), disk: int | None = None) -> Iterator[SecondEngine]:
    """Start an engine; ``disk`` is the size of its data root in MiB where it is to have a small one of its own."""
    # Not below pytest's own directory, which pytest cleans up at moments of its choice.
    path = Path(tempfile.mkdtemp(prefix="infranoise-engine-"))
    engine = SecondEngine(path, options)
    try:
        if disk is not None:
            engine.data_root.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={disk}m", "tmpfs", str(engine.data_root)]
            subprocess.run(mount, check=True)
        engine.start()
        engine.load_base_image()
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(path)


def unavailable() -> str | None:
    """Return why there can be no second engine here."""
    if os.geteuid() != 0:
        return "a second engine needs root"
    missing = [name for name in ("dockerd", "unshare") if shutil.which(name) is None]
    return f"a second engine needs {' and '.join(missing)}" if missing else None
