from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from uuid import uuid4

import pytest
from docker import APIClient

from pytest_infranoise.sandboxes import images
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.protocol import ConfigError
from pytest_infranoise.sandboxes.protocol import ImagePullError

from .conftest import BASE_IMAGE

engine_test = pytest.mark.engine


@engine_test
def test_an_image_that_is_there_is_known_by_its_id(backend: DockerBackend, engine: APIClient) -> None:
    expected = engine.inspect_image(BASE_IMAGE)["Id"]  # type: ignore[no-untyped-call]

    assert backend.image(BASE_IMAGE, None, "missing") == expected
    assert backend.image(expected, None, "never") == expected


@engine_test
def test_a_missing_image_that_may_not_be_pulled(backend: DockerBackend) -> None:
    with pytest.raises(ConfigError, match=r"infranoise/nosuch:1 is not on this engine.*`pull: missing`"):
        backend.image("infranoise/nosuch:1", None, "never")
    with pytest.raises(ConfigError, match="neither"):
        backend.image(None, None, "never")


class Registry(BaseHTTPRequestHandler):
    """As much of a registry as a pull of one image asks for, and its ways to fail."""

    blobs: dict[str, bytes]
    manifest: bytes
    failure: tuple[int, str] | None = None
    silent = threading.Event()

    def do_GET(self) -> None:
        kind = self.path.split("/")[-2]
        if self.path == "/v2/":
            self._answer(200, b"{}", "application/json")
        elif kind == "manifests" and self.failure == (0, ""):
            self.silent.wait(30)
        elif kind == "manifests" and self.failure is not None:
            status, code = self.failure
            self._answer(
                status, json.dumps({"errors": [{"code": code, "message": code}]}).encode(), "application/json"
            )
        elif kind == "manifests":
            self._answer(200, self.manifest, "application/vnd.docker.distribution.manifest.v2+json")
        else:
            self._answer(200, self.blobs[self.path.rpartition("/")[2]], "application/octet-stream")

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def described(content: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": f"application/vnd.docker.{kind}", "size": len(content), "digest": digest(content)}


@contextmanager
def a_registry(failure: tuple[int, str] | None = None) -> Iterator[str]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo("mark")
        info.size = 32
        archive.addfile(info, io.BytesIO(uuid4().hex.encode()))
    layer = gzip.compress(stream.getvalue())
    rootfs = {"type": "layers", "diff_ids": [digest(stream.getvalue())]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": described(config, "container.image.v1+json"),
        "layers": [described(layer, "image.rootfs.diff.tar.gzip")],
    }
    silent = threading.Event()
    members = {
        "blobs": {digest(layer): layer, digest(config): config},
        "manifest": json.dumps(manifest).encode(),
        "failure": failure,
        "silent": silent,
    }
    handler = type("ThisRegistry", (Registry,), members)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        silent.set()
        server.shutdown()


@engine_test
def test_a_missing_image_is_pulled(backend: DockerBackend, engine: APIClient) -> None:
    with a_registry() as address:
        reference = f"{address}/some/image:tag"
        try:
            found = backend.image(reference, None, "missing")

            assert found == engine.inspect_image(reference)["Id"]  # type: ignore[no-untyped-call]
            assert backend.image(reference, None, "never") == found
        finally:
            engine.remove_image(reference, force=True)


@engine_test
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "MANIFEST_UNKNOWN", ConfigError),
        (404, "NAME_UNKNOWN", ConfigError),
        (401, "UNAUTHORIZED", ConfigError),
        (429, "TOOMANYREQUESTS", ImagePullError),
        (500, "UNKNOWN", ImagePullError),
        (503, "UNAVAILABLE", ImagePullError),
    ],
)
def test_how_a_pull_fails_decides(backend: DockerBackend, status: int, code: str, expected: type) -> None:
    with a_registry((status, code)) as address, pytest.raises((ConfigError, ImagePullError)) as caught:
        backend.image(f"{address}/some/image:tag", None, "missing")

    assert type(caught.value) is expected


@engine_test
def test_no_registry_there(backend: DockerBackend) -> None:
    with pytest.raises(ImagePullError):
        backend.image("127.0.0.1:1/some/image:tag", None, "missing")


@engine_test
@pytest.mark.parametrize("reference", ["Not A Reference", "UPPER/case", "x:y:z"])
def test_a_name_that_is_none(backend: DockerBackend, reference: str) -> None:
    with pytest.raises(ConfigError):
        backend.image(reference, None, "missing")


@engine_test
def test_a_registry_that_hangs(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PULL_SECONDS", 1.0)

    with a_registry((0, "")) as address, pytest.raises(ImagePullError, match="did not come in 1 s"):
        backend.image(f"{address}/some/image:tag", None, "missing")


def test_work_in_a_thread_fails_as_itself() -> None:
    def fail() -> None:
        raise ConfigError("pull", "no")

    def hang() -> None:
        threading.Event().wait(1)

    with pytest.raises(ConfigError):
        images.bounded(fail, 10)
    with pytest.raises(TimeoutError):
        images.bounded(hang, 0.05)
