from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.files import content_hash


def _tree(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "a").write_text("1")
    (root / "sub" / "b").write_text("2")
    (root / "link").symlink_to("a")
    return root


def _replace(path: Path) -> Path:
    path.unlink()
    return path


def _note(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("content", lambda root: (root / "a").write_text("2")),
    ("name", lambda root: (root / "a").rename(root / "c")),
    ("place", lambda root: (root / "sub" / "b").rename(root / "b")),
    ("executable", lambda root: (root / "a").chmod(0o755)),
    ("target", lambda root: _replace(root / "link").symlink_to("sub/b")),
    ("link to file", lambda root: _replace(root / "link").write_text("a")),
    ("more", lambda root: _note(root, "more")),
    ("hidden", lambda root: _note(root, ".dockerignore")),
    ("moved between files", lambda root: (root / "a").write_text("12") and (root / "sub" / "b").write_text("")),
]

NO_CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("nothing", lambda root: None),
    ("times", lambda root: os.utime(root / "a", (1, 1))),
    ("other permissions", lambda root: (root / "a").chmod(0o600)),
    ("cache", lambda root: _note(root, "sub/__pycache__/b.pyc")),
    ("git", lambda root: _note(root, ".git/HEAD")),
    ("git of a worktree", lambda root: _note(root, ".git")),
    ("our own runs", lambda root: _note(root, ".infranoise/runs/1/run.json")),
    ("empty directory", lambda root: (root / "empty").mkdir()),
]


@pytest.mark.parametrize("change", [case[1] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_hash_changes(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = _tree(tmp_path / "t")
    before = content_hash(root)
    change(root)
    assert content_hash(root) != before


@pytest.mark.parametrize("change", [case[1] for case in NO_CHANGES], ids=[case[0] for case in NO_CHANGES])
def test_hash_stays(tmp_path: Path, change: Callable[[Path], object]) -> None:
    before = content_hash(_tree(tmp_path / "one"))
    root = _tree(tmp_path / "other")
    change(root)
    assert content_hash(root) == before


def test_hash_is_the_same_on_every_machine(tmp_path: Path) -> None:
    root = _tree(tmp_path / "t")
    assert content_hash(root) == "acb15994ea29610118b6a2657c22680304a8ba9f00e1cd5f4e966eb5d02e5b43"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    root = _tree(tmp_path / "t")
    before = content_hash(root)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\n")).write_text("x")
    assert content_hash(root) != before


def test_what_cannot_be_hashed(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="absent: cannot be read: "):
        content_hash(tmp_path / "absent")
    os.mkfifo(tmp_path / "p\n")
    with pytest.raises(TaskError, match=r": 'p\\n' is a named pipe; remove it$"):
        content_hash(tmp_path)
