"""Docker as a backend: containers under exactly the limits that were asked for, or an error.

Only this package's Docker modules import the SDK, and nothing imports them before a trial needs an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from docker.types import LogConfig

from pytest_infranoise.sandboxes.api_errors import OUT_OF_MEMORY_AT_START
from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.container import DockerSandbox
from pytest_infranoise.sandboxes.container import remove_container
from pytest_infranoise.sandboxes.engine import Engine
from pytest_infranoise.sandboxes.events import EventStream
from pytest_infranoise.sandboxes.images import BuiltImage
from pytest_infranoise.sandboxes.images import Images
from pytest_infranoise.sandboxes.isolation import Isolation
from pytest_infranoise.sandboxes.isolation import release
from pytest_infranoise.sandboxes.isolation import sweep
from pytest_infranoise.sandboxes.limits import check_limits
from pytest_infranoise.sandboxes.limits import host_options
from pytest_infranoise.sandboxes.limits import limit_warnings
from pytest_infranoise.sandboxes.limits import unsupported_limits
from pytest_infranoise.sandboxes.networks import Network
from pytest_infranoise.sandboxes.networks import ensure_network
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import EnforcementError
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import NetworkSetupError
from pytest_infranoise.sandboxes.protocol import SandboxError
from pytest_infranoise.sandboxes.protocol import SandboxRequest
from pytest_infranoise.sandboxes.shell import HOLDER_ARGV
from pytest_infranoise.sandboxes.shell import SHELL

RUN_LABEL = "infranoise.run"
BACKEND_LABEL = "infranoise.backend"
# Which host (and ledger) and which boot of it a container or network is of.
WHOSE_LABELS = ("infranoise.host", "infranoise.boot")

_STREAM_SECONDS = 15.0
_AFTER_FAILURE_SECONDS = 10.0
_TIGHT = 16 * 1024**2  # bytes of memory below which a container may be too small to start at all
_LOG_LINES = 10


class DockerBackend:
    """Makes sandboxes on the engine that the environment names (``DOCKER_HOST``), for one run.

    One per process; several processes of one run share its network. Cheap to construct: the engine is
    connected to at first use. Lock files are kept in the directory for temporary files, nothing else is
    written on the host.

    Args:
        run: the run's id; containers and networks carry it as the label ``infranoise.run``.
        timeout: seconds that one call to the engine may take.
        host_ports: TCP ports of the engine's host that containers with a network may reach.
    """

    name = "docker"

    def __init__(self, run: str, timeout: float = 60.0, host_ports: Sequence[int] = ()) -> None:
        self.run = run
        self._host_ports = tuple(host_ports)
        self._engine = Engine(timeout)
        self._images = Images(self._engine)
        # Events of this process's containers only: with many workers, each would else get those of all.
        self._mark = uuid4().hex
        self._events = EventStream(self._engine, f"{BACKEND_LABEL}={self._mark}")
        self._info: EngineInfo | None = None
        self._swapless = False
        self._network: Network | None = None

    def info(self) -> EngineInfo:
        """Return what the engine is, and which limits it cannot enforce.

        Raises:
            EngineLost: none answers; the text says where it was looked for and what helps.
        """
        with engine_call("info"):
            found = self._engine.client.info()
        self._swapless = self._runs_here(found) and psutil.swap_memory().total == 0
        self._info = EngineInfo(
            id=found.get("ID") or "",
            version=found.get("ServerVersion") or "",
            cgroup_version=found.get("CgroupVersion") or "1",
            kernel=found.get("KernelVersion") or "",
            storage_driver=found.get("Driver") or "",
            host=found.get("Name") or "",
            cpus=float(found.get("NCPU") or 0),
            memory=int(found.get("MemTotal") or 0),
            unsupported=unsupported_limits(found, self._swapless),
            warnings=tuple(found.get("Warnings") or ()),
            containerd=_commit(found, "ContainerdCommit"),
            runc=_commit(found, "RuncCommit"),
            security=tuple(found.get("SecurityOptions") or ()),
            root=str(found.get("DockerRootDir") or "") if self._runs_here(found) else "",
            here=self._runs_here(found),
        )
        return self._info

    def _runs_here(self, info: Mapping[str, Any]) -> bool:
        """Whether the engine shares this machine's kernel (a desktop's engine runs in a machine of its own)."""
        return self._engine.on_unix_socket and info.get("KernelVersion") == os.uname().release

    def ready(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the engine to answer; whether it does."""
        return self._engine.ready(seconds)

    def image(
        self,
        task_image: str | None,
        build: Path | None,
        pull: str,
        *,
        seconds: float | None = None,
        working: Callable[[str], object] | None = None,
    ) -> str:
        """Return the id of an image, after pulling or building it where it is not there yet.

        Args:
            task_image: the image's name.
            build: instead, a directory with a Dockerfile.
            pull: "missing" or "never".
            seconds: how long a build may take; None for the default.
            working: told "pulling" or "building" when there is something to do that takes time.

        Raises:
            ConfigError: it cannot exist as asked for.
            ImagePullError: it could not be fetched now.
        """
        if build is not None:
            return self._images.built(build, seconds, working)
        if task_image is None:
            raise ConfigError("image", "neither an image nor a directory to build one from is given")
        return self._images.pulled(task_image, pull, working)

    def ensure_network(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the id of this run's network, made by whichever process comes first.

        Args:
            labels: those of a container that needs it. It gets the ones that tell whose it is, because it may be
                all that a dead run has left.
        """
        return self._ensure_network(labels).id

    def isolation(self, labels: Mapping[str, str] | None = None) -> Isolation:
        """Return what containers with a network are kept from; this run's network is made if need be.

        Args:
            labels: as for ``ensure_network``.

        Raises:
            NetworkSetupError: it cannot be made.
        """
        return self._ensure_network(labels).isolation

    def _ensure_network(self, labels: Mapping[str, str] | None) -> Network:
        if self._network is None:
            whose = {name: value for name, value in (labels or {}).items() if name in WHOSE_LABELS}
            name, label = f"infranoise-{self.run}", (RUN_LABEL, self.run)
            self._network = ensure_network(self._engine, name, label, whose, self._host_ports)
        return self._network

    def create(self, request: SandboxRequest) -> DockerSandbox:
        """Create and start a container; nothing is left behind when this raises.

        Raises:
            ConfigError: the image or the request is at fault.
            EnforcementError: the engine did not put the limits into force.
            SandboxError: the engine failed.
        """
        info = self._info or self.info()
        if info.unsupported:
            raise EnforcementError(f"this engine cannot enforce: {', '.join(info.unsupported)}")
        if not self._events.open(_STREAM_SECONDS):
            raise EngineLost("events", f"no stream of events from the engine in {_STREAM_SECONDS:.0f} s")
        labels = {**request.labels, RUN_LABEL: self.run, BACKEND_LABEL: self._mark}
        try:
            container = self._create(request, labels)
            sandbox = self._start(container, request, info)
            self._check(sandbox, request)
        except BaseException as error:
            # By name, because a call that failed or was interrupted may still have made it.
            if not isinstance(error, SandboxError) or self._engine.ready(_AFTER_FAILURE_SECONDS):
                self._discard(request.name, labels)
            raise
        return sandbox

    def _create(self, request: SandboxRequest, labels: Mapping[str, str]) -> str:
        try:
            return self._create_once(request, labels)
        except EnvStartError as error:
            # The left-over of a call that failed after it had made the container: ours by all its labels but
            # the mark, which a process started anew does not know.
            own = {name: value for name, value in labels.items() if name != BACKEND_LABEL}
            if error.status != 409 or not self._discard(request.name, own):
                raise
        return self._create_once(request, labels)

    def _create_once(self, request: SandboxRequest, labels: Mapping[str, str]) -> str:
        network = self.ensure_network(request.labels) if request.network else "none"
        with engine_call("create"):
            client = self._engine.client
            created = client.create_container(
                request.image,
                list(HOLDER_ARGV),
                name=request.name,
                labels=dict(labels),
                environment=dict(request.environment),
                user=request.user,
                working_dir=request.workdir,
                use_config_proxy=request.network,
                host_config=client.create_host_config(
                    **host_options(request.allocation),
                    network_mode=network,
                    init=False,
                    log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "1m", "max-file": "1"}),
                ),
            )
        ignored = limit_warnings(created.get("Warnings") or (), self._swapless)
        if ignored:
            raise EnforcementError(f"the engine does not enforce what was asked: {'; '.join(ignored)}")
        return str(created["Id"])

    def _start(self, container: str, request: SandboxRequest, info: EngineInfo) -> DockerSandbox:
        try:
            with engine_call("start"):
                self._engine.client.start(container)
            with engine_call("inspect"):
                inspected = self._engine.client.inspect_container(container)
            if not inspected["State"]["Running"]:
                raise EnvStartError("start", f"ended at once with exit code {inspected['State']['ExitCode']}")
            sandbox = DockerSandbox(self._engine, self._events, inspected, info.cgroup_version, info.root)
            sandbox.await_holder()
        except NetworkSetupError:
            self._network = None  # perhaps removed by somebody; the next container gets a new one
            raise
        except (ConfigError, EnvStartError) as error:
            raise self._explained(error, container, request) from error
        return sandbox

    def _explained(self, error: SandboxError, container: str, request: SandboxRequest) -> SandboxError:
        """Return the error of a start in the user's words, and as the user's mistake where it must be one."""
        ceiling = request.allocation.memory_ceiling
        tight = ceiling is not None and ceiling < _TIGHT
        told = f"a container of the image {request.image} does not start: {error.text}"
        if isinstance(error, ConfigError):
            if f'"{SHELL}"' in error.text:
                told += f" (an image needs {SHELL}, and an entry point that runs the command it is given)"
            return ConfigError("start", told, error.status)
        ending = self._end_of(container)
        if ending is None:
            return EnvStartError("start", f"{told}; it cannot be looked at any more", error.status)
        killed, log = ending
        if killed or OUT_OF_MEMORY_AT_START.search(error.text):
            told += f"; it ran out of memory under its ceiling of {ceiling} bytes"
            return (ConfigError if tight else EnvStartError)("start", told, error.status)
        if error.status is None:  # it did start, and then ended by itself
            told += f"; its entry point does not run the command it is given. It said: {log or 'nothing'}"
            return ConfigError("start", told)
        return EnvStartError("start", told, error.status)

    def _end_of(self, container: str) -> tuple[bool, str] | None:
        """Return whether a container was killed (for memory: nobody else had the time), and its last words.

        None when it is gone: who removes a container may have ended it too, so nothing follows from its end.
        """
        try:
            with engine_call("inspect"):
                state = self._engine.client.inspect_container(container)["State"]
                log = self._engine.client.logs(container, tail=_LOG_LINES)
        except SandboxError:
            return None
        killed = bool(state["OOMKilled"]) or state["ExitCode"] == 137
        return killed, log.decode(errors="replace").strip()

    def _check(self, sandbox: DockerSandbox, request: SandboxRequest) -> None:
        limits = sandbox.limits()
        found = check_limits(request.allocation, limits, swapless=self._swapless)
        if found:
            raise EnforcementError(
                f"limits read back ({limits.source}) are not those asked for: {'; '.join(found)}"
            )

    def _discard(self, name: str, labels: Mapping[str, str]) -> bool:
        """Remove a container by name if it carries all these labels; whether it is gone."""
        with suppress(SandboxError), engine_call("inspect"):
            inspected = self._engine.client.inspect_container(name)
            if labels.items() <= (inspected["Config"]["Labels"] or {}).items():
                return remove_container(self._engine, inspected["Id"])
        return False

    def labelled(self, label: str) -> dict[str, Mapping[str, str]]:
        """Return the labels of every container and network that has this label, by id.

        Args:
            label: a label's name, or ``name=value``.
        """
        with engine_call("list"):
            client = self._engine.client
            containers = client.containers(all=True, filters={"label": label})
            networks = client.networks(filters={"label": label})
        return {found["Id"]: found["Labels"] or {} for found in (*containers, *networks)}

    def remove_labelled(self, labels: Mapping[str, str]) -> int:
        """Remove every container and network that carries all these labels; how many there were.

        What cannot be removed (a network in use) is left, and found again by ``labelled``.
        """
        filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
        with engine_call("list"):
            containers = self._engine.client.containers(all=True, filters=filters)
        gone = [remove_container(self._engine, container["Id"]) for container in containers]
        with engine_call("list"):
            networks = self._engine.client.networks(filters=filters)
        gone += [self._remove_network(network["Id"]) for network in networks]
        if self._engine.on_unix_socket:
            # Of a network that somebody else removed, nobody else removes the rules.
            sweep()
        return len(gone)

    def _remove_network(self, network: str) -> bool:
        if self._network is not None and network == self._network.id:
            self._network = None
        try:
            with engine_call("network"):
                self._engine.client.remove_network(network)
        except SandboxError as error:
            if error.status != 404:
                return False
        if self._engine.on_unix_socket:
            release(network)
        return True

    def built_images(self) -> list[BuiltImage]:
        """Return the images that were built here for tasks."""
        return self._images.all_built()

    def remove_image(self, image: BuiltImage) -> bool:
        """Remove one of them; whether that is so: not when a container is made of it."""
        return self._images.remove(image)

    def disk_use(self) -> int | None:
        """Return the bytes that all images and containers of the engine take; None when it does not say."""
        try:
            with engine_call("disk"):
                found = self._engine.client.df()
        except SandboxError:
            return None
        containers = sum(int(container.get("SizeRw") or 0) for container in found.get("Containers") or ())
        return int(found.get("LayersSize") or 0) + containers

    def close(self) -> None:
        """Let go of connections and threads; containers and networks are not touched."""
        self._images.stop()
        self._events.close()
        self._engine.close()


def _commit(info: Mapping[str, Any], name: str) -> str:
    """Return a part of the engine as its ``info`` names it."""
    return str((info.get(name) or {}).get("ID") or "")
