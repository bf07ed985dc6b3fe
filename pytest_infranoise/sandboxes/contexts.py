"""What a build gets to see of a directory: the files that ``.dockerignore`` leaves, their hash, their archive."""

from __future__ import annotations

import hashlib
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from docker.utils.build import exclude_paths

from pytest_infranoise.sandboxes.protocol import ConfigError

DOCKERFILE = "Dockerfile"


@dataclass(frozen=True, slots=True)
class Context:
    """A directory with a Dockerfile, as it was when it was looked at; ``names`` are relative to ``root``."""

    root: Path
    names: tuple[str, ...]
    digest: str

    @property
    def dockerfile(self) -> Path:
        """The file that says how to build."""
        return self.root / DOCKERFILE

    def pack(self, stream: IO[bytes]) -> None:
        """Write a tar archive of everything, owned by root.

        Raises:
            ConfigError: something cannot be read any more.
        """
        try:
            with tarfile.open(
                fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape"
            ) as archive:
                for name in self.names:
                    _add(archive, self.root / name, name)
        except OSError as error:
            raise _unreadable(self.root, error) from error


def read_context(root: Path) -> Context:
    """Return the build context in a directory.

    The hash is one of names, modes, links and contents of what the build sees: what ``.dockerignore`` (or
    ``Dockerfile.dockerignore``, which goes before it) leaves out neither travels nor changes the image.

    Raises:
        ConfigError: there is no Dockerfile, or something cannot be read.
    """
    if not (root / DOCKERFILE).is_file():
        raise ConfigError("build", f"{root} has no {DOCKERFILE}")
    total = hashlib.sha256()
    try:
        names = _names(root)
        for name in names:
            for part in (name.encode(errors="surrogateescape"), *_identity(root / name)):
                total.update(len(part).to_bytes(8, "big") + part)
    except OSError as error:
        raise _unreadable(root, error) from error
    return Context(root, names, total.hexdigest())


def content_hash(root: Path) -> str:
    """Return what tells one build context from any other; see ``read_context``."""
    return read_context(root).digest


def _names(root: Path) -> tuple[str, ...]:
    rules = [line.strip() for line in _ignore_file(root).splitlines()]
    try:
        # Both files always travel: the engine's side of the build reads them.
        names = exclude_paths(str(root), [rule for rule in rules if rule and not rule.startswith("#")])
    except (ValueError, RecursionError) as error:  # re.error is a ValueError
        raise ConfigError("build", f"{root}/.dockerignore: a pattern that is none: {error}") from error
    return tuple(sorted(names, key=lambda name: name.split("/")))


def _ignore_file(root: Path) -> str:
    for name in (f"{DOCKERFILE}.dockerignore", ".dockerignore"):
        path = root / name
        if path.is_file():
            return path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    return ""


def _identity(path: Path) -> tuple[bytes, bytes]:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        content = str(path.readlink()).encode(errors="surrogateescape")
    elif stat.S_ISREG(info.st_mode):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
    else:
        content = b""
    return oct(info.st_mode).encode(), content


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    if path.is_socket():  # which no archive can hold and no build can use
        return
    info = archive.gettarinfo(str(path), arcname=name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    if not info.isreg():
        archive.addfile(info)
        return
    with path.open("rb") as content:
        archive.addfile(info, content)


def _unreadable(root: Path, error: OSError) -> ConfigError:
    return ConfigError("build", f"cannot read {root}: {error}")
