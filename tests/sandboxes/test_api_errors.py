from __future__ import annotations

import docker.errors
import pytest
import requests

from pytest_infranoise.sandboxes.api_errors import classify
from pytest_infranoise.sandboxes.api_errors import engine_call
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ContainerLost
from pytest_infranoise.sandboxes.protocol import EngineLost
from pytest_infranoise.sandboxes.protocol import EnvStartError
from pytest_infranoise.sandboxes.protocol import ExecLost
from pytest_infranoise.sandboxes.protocol import FileMissing
from pytest_infranoise.sandboxes.protocol import HostDiskFull
from pytest_infranoise.sandboxes.protocol import ImagePullError
from pytest_infranoise.sandboxes.protocol import NetworkSetupError
from pytest_infranoise.sandboxes.protocol import SandboxError

ID = "8f1c" * 16


@pytest.mark.parametrize(
    ("call", "status", "text", "expected"),
    [
        ("create", 500, "mkdir /var/lib/docker/overlay2/x-init: no space left on device", HostDiskFull),
        (
            "archive",
            500,
            "Error processing tar file(exit status 1): write /x: no space left on device",
            HostDiskFull,
        ),
        ("pull", None, "write /var/lib/docker/tmp/GetImageBlob1: no space left on device", HostDiskFull),
        (
            "network",
            404,
            "could not find an available, non-overlapping IPv4 address pool among the defaults to assign",
            NetworkSetupError,
        ),
        ("network", 400, "all predefined address pools have been fully subnetted", NetworkSetupError),
        ("start", 404, f"network {ID} not found", NetworkSetupError),
        (
            "start",
            400,
            "failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open "
            "/run/log: no such file or directory): runc did not terminate successfully: exit status 1: unknown",
            EnvStartError,
        ),
        ("create", 400, "network n is ambiguous (2 matches found on name)", NetworkSetupError),
        ("network", 403, "error while removing network: network n id 1 has active endpoints", NetworkSetupError),
        ("network", 409, "network with name n already exists", NetworkSetupError),
        ("pull", 404, "manifest for debian:nosuch not found: manifest unknown: manifest unknown", ConfigError),
        (
            "pull",
            404,
            "pull access denied for nosuch, repository does not exist or may require 'docker login'",
            ConfigError,
        ),
        ("pull", 400, "invalid reference format", ConfigError),
        ("pull", 500, "toomanyrequests: You have reached your pull rate limit", ImagePullError),
        (
            "pull",
            500,
            'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host',
            ImagePullError,
        ),
        (
            "pull",
            500,
            'Get "https://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
            ImagePullError,
        ),
        ("pull", 500, "something never heard of", ImagePullError),
        ("build", None, "The command '/bin/sh -c false' returned a non-zero code: 1", ConfigError),
        ("build", None, 'Get "https://registry-1.docker.io/v2/": net/http: TLS handshake timeout', ImagePullError),
        ("build", 500, "Cannot locate specified Dockerfile: Dockerfile", ConfigError),
        ("create", 404, f"No such image: sha256:{ID}", ImagePullError),
        ("create", 404, "No such image: nosuch:latest", ConfigError),
        ("create", 409, f'Conflict. The container name "/n" is already in use by container "{ID}"', EnvStartError),
        ("create", 400, "Minimum memory limit allowed is 6MB", ConfigError),
        (
            "create",
            500,
            "--storage-opt is supported only for overlay over xfs with 'pquota' mount option",
            ConfigError,
        ),
        ("create", 500, "layer does not exist", EnvStartError),
        ("start", 400, 'exec: "nosuch": executable file not found in $PATH: unknown', ConfigError),
        ("start", 400, 'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', ConfigError),
        ("start", 400, 'exec: "/etc/passwd": permission denied: unknown', ConfigError),
        ("start", 500, "unable to find user nosuch: no matching entries in passwd file", ConfigError),
        ("start", 500, 'error mounting "cgroup" to rootfs: permission denied', EnvStartError),
        ("start", 500, "container init was OOM-killed (memory limit too low?)", EnvStartError),
        ("start", 500, "containerd: container did not start before the specified timeout", EnvStartError),
        ("exec", 409, f"Container {ID} is not running", ContainerLost),
        ("archive", 409, f"Container {ID} is paused, unpause the container before exec", ContainerLost),
        ("exec", 404, f"No such container: {ID}", ContainerLost),
        ("inspect", 404, f"No such container: {ID}", ContainerLost),
        ("exec", 404, f"No such exec instance: {ID}", ExecLost),
        ("read", 404, f"Could not find the file /reward.json in container {ID}", FileMissing),
        ("read", 500, "lstat /var/lib/docker/overlay2/1/merged/etc/passwd/x: not a directory", FileMissing),
        ("archive", 404, f"Could not find the file /app in container {ID}", ConfigError),
        ("archive", 500, "Error processing tar file(exit status 1): operation not permitted", SandboxError),
        ("archive", 500, "anything else", EngineLost),
        ("archive", 404, f"No such container: {ID}", ContainerLost),
        ("inspect", 500, "anything", EngineLost),
        ("exec", 503, "anything", EngineLost),
        ("archive", 400, "cannot overwrite directory with non-directory", SandboxError),
    ],
)
def test_text_of_the_engine_is_looked_up(call: str, status: int | None, text: str, expected: type) -> None:
    error = classify(call, status, text)

    assert type(error) is expected
    assert (error.call, error.status, error.text) == (call, status, text)


@pytest.mark.parametrize(
    "raised",
    [
        requests.exceptions.ReadTimeout("timed out"),
        requests.exceptions.ConnectionError("aborted"),
        requests.exceptions.ChunkedEncodingError("ended"),
        docker.errors.DockerException("Error while fetching server API version"),
        ConnectionRefusedError("refused"),
    ],
)
def test_no_answer_at_all_is_a_lost_engine(raised: Exception) -> None:
    with pytest.raises(EngineLost, match="exec: the engine does not answer") as caught, engine_call("exec"):
        raise raised

    assert caught.value.__cause__ is raised


def test_answers_are_told_from_silence_although_their_exceptions_are_related() -> None:
    response = requests.Response()
    response.status_code = 409
    raised = docker.errors.APIError("409", response=response, explanation="Container 1 is not running")

    with pytest.raises(ContainerLost, match="exec: Container 1 is not running"), engine_call("exec"):
        raise raised


def test_errors_that_are_no_engine_errors_pass() -> None:
    with pytest.raises(KeyError), engine_call("exec"):
        raise KeyError("a bug")
    with pytest.raises(FileMissing), engine_call("exec"):
        raise FileMissing("archive", "typed already")
