from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.sandboxes.contexts import content_hash
from pytest_infranoise.sandboxes.contexts import read_context
from pytest_infranoise.sandboxes.protocol import ConfigError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    return tmp_path


def packed(root: Path) -> tarfile.TarFile:
    stream = io.BytesIO()
    read_context(root).pack(stream)
    stream.seek(0)
    return tarfile.open(fileobj=stream)


def test_every_change_changes_the_hash(context: Path) -> None:
    seen = [content_hash(context)]
    (context / "file").write_text("1")
    seen.append(content_hash(context))
    (context / "file").write_text("2")
    seen.append(content_hash(context))
    (context / "file").chmod(0o755)
    seen.append(content_hash(context))
    (context / "file").rename(context / "other")
    seen.append(content_hash(context))
    (context / "directory").mkdir()
    seen.append(content_hash(context))
    (context / "link").symlink_to("other")
    seen.append(content_hash(context))
    (context / os.fsdecode(b"odd-\xff")).touch()
    seen.append(content_hash(context))

    assert len(set(seen)) == len(seen)
    assert content_hash(context) == seen[-1]


def test_no_dockerfile(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Dockerfile"):
        content_hash(tmp_path)
    with pytest.raises(ConfigError, match="no Dockerfile"):
        content_hash(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("secret\n", ["kept/a.txt", "kept/b.log", "kept"]),
        ("# kept\n\n  kept/*.log  \n", ["kept", "kept/a.txt", "secret"]),
        ("**\n!kept/a.txt\n", ["kept/a.txt"]),
        ("*\n!kept\n**/*.log\n", ["kept", "kept/a.txt"]),
        ("Dockerfile\n.dockerignore\n", ["kept", "kept/a.txt", "kept/b.log", "secret"]),
        ("\ufeffsecret", ["kept", "kept/a.txt", "kept/b.log"]),
    ],
)
def test_what_dockerignore_leaves_travels_and_nothing_else(context: Path, patterns: str, kept: list[str]) -> None:
    (context / "kept").mkdir()
    for name in ("kept/a.txt", "kept/b.log", "secret"):
        (context / name).write_text(name)
    (context / ".dockerignore").write_text(patterns, "utf-8")

    with packed(context) as archive:
        assert sorted(archive.getnames()) == sorted([*kept, "Dockerfile", ".dockerignore"])


def test_the_dockerfiles_own_ignore_file_goes_first(context: Path) -> None:
    (context / ".dockerignore").write_text("one\n")
    (context / "Dockerfile.dockerignore").write_text("two\n")
    (context / "one").touch()
    (context / "two").touch()

    with packed(context) as archive:
        assert "one" in archive.getnames()
        assert "two" not in archive.getnames()


def test_an_archive_has_modes_links_and_times_and_belongs_to_root(context: Path) -> None:
    (context / "run").write_text("#!/bin/sh\n")
    (context / "run").chmod(0o750)
    os.utime(context / "run", (1_600_000_000, 1_600_000_000))
    (context / "link").symlink_to("run")
    (context / os.fsdecode(b"odd-\xff")).write_bytes(b"x")

    with packed(context) as archive:
        run, link = archive.getmember("run"), archive.getmember("link")
        assert (run.mode, run.mtime, run.uid, run.gname) == (0o750, 1_600_000_000, 0, "")
        assert (link.type, link.linkname) == (tarfile.SYMTYPE, "run")
        assert os.fsdecode(b"odd-\xff") in archive.getnames()


NAMES = st.sampled_from(["a", "b", "c.txt", "d.log", "sub/a", "sub/c.txt", "sub/deep/d.log"])
PATTERNS = st.sampled_from(["a", "sub", "*.txt", "**/*.log", "sub/*", "!a", "!sub/a", "!**/d.log", "/b", "b/", "."])


@given(files=st.sets(NAMES), patterns=st.lists(PATTERNS, max_size=4), changed=NAMES)
@settings(max_examples=60)
def test_the_hash_changes_exactly_with_what_travels(files: set[str], patterns: list[str], changed: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "Dockerfile").write_text("FROM scratch\n")
        (root / ".dockerignore").write_text("\n".join(patterns))
        for name in files | {changed}:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("before")
        before = read_context(root)
        (root / changed).write_text("after")

        assert (content_hash(root) != before.digest) == (changed in before.names)
