"""What is read from the directories of an overlay that the kernel itself has written, without an engine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.sandboxes import changes
from pytest_infranoise.sandboxes.changes import overlay_changes
from pytest_infranoise.sandboxes.overlay import Layers
from pytest_infranoise.sandboxes.overlay import digest
from pytest_infranoise.sandboxes.protocol import Change

PLAIN = "redirect_dir=off,metacopy=off"
MARKED = "redirect_dir=on,metacopy=on"

Act = Callable[[Path], object]
Tree = dict[str, "bytes | str"]  # the content of each file
LINK, DIRECTORY = "link", "directory"


def mount(place: Path, options: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(place)], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        pytest.skip(f"no overlay can be mounted here: {done.stderr.strip()}")


class Overlay:
    """An image of several layers, each made by acting on those below it, and a container's own files on top."""

    def __init__(self, path: Path, layers: list[Act], options: str = PLAIN) -> None:
        self.lowers = [path / "0"]  # the uppermost first
        self.lowers[0].mkdir()
        self.path, self.options = path, options
        for layer in layers:
            with self._mounted(PLAIN) as (upper, merged):
                layer(merged)
            self.lowers.insert(0, upper)

    @contextmanager
    def _mounted(self, options: str) -> Iterator[tuple[Path, Path]]:
        base = self.path / str(len(self.lowers))
        upper, merged, work = base, base.with_suffix(".merged"), base.with_suffix(".work")
        for place in (upper, merged, work):
            place.mkdir(exist_ok=True)
        lower = ":".join(map(str, self.lowers))
        mount(merged, f"lowerdir={lower},upperdir={upper},workdir={work},{options}")
        try:
            yield upper, merged
        finally:
            subprocess.run(["umount", str(merged)], check=True, timeout=60)

    def after(self, act: Act) -> tuple[Tree, Tree, dict[str, Change] | None]:
        """Return what was there before and is there after, by path, and what is said to have changed."""
        with self._mounted(self.options) as (upper, merged):
            before = tree(merged)
            act(merged)
            after = tree(merged)
            layers = {"UpperDir": str(upper), "LowerDir": ":".join(map(str, self.lowers))}
            files = {path for there in (before, after) for path, content in there.items() if content != DIRECTORY}
            return before, after, overlay_changes(layers, files.__contains__)

    def changes(self, act: Act) -> dict[str, Change]:
        found = self.after(act)[2]
        assert found is not None
        return found


def tree(root: Path) -> Tree:
    found: Tree = {}
    for parent, directories, files in os.walk(root):
        for path in (Path(parent, name) for name in (*directories, *files)):
            kind = LINK if path.is_symlink() else DIRECTORY if path.is_dir() else None
            found["/" + str(path.relative_to(root))] = kind or path.read_bytes()
    return found


def has(**files: str) -> Act:
    """Return what makes files; in their names, two underscores are a slash."""

    def make(root: Path) -> None:
        for name, content in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return make


def runs(script: str) -> Act:
    return lambda root: subprocess.run(["sh", "-ec", script], cwd=root, check=True, timeout=60)


IMAGE = [
    has(
        usr__bin__cat="cat", usr__bin__perl="perl", usr__lib__x="x", opt__t__bin__node="node", opt__t__bin__tr="tr"
    ),
    has(usr__bin__git="git", opt__t__bin__tr="tr 2"),
    runs("rm usr/bin/git; rm -r usr/lib; mkdir usr/lib; echo y >usr/lib/y; ln -s usr/bin bin"),
]


@pytest.fixture
def image(tmp_path: Path) -> Overlay:
    return Overlay(tmp_path, IMAGE)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("rm -r opt", {"/opt/t/bin/node": "deleted", "/opt/t/bin/tr": "deleted"}),
        ("rm -r opt/t/bin", {"/opt/t/bin/node": "deleted", "/opt/t/bin/tr": "deleted"}),
        (
            "rm -r opt; mkdir -p opt/t/bin; printf mine >opt/t/bin/node",
            {"/opt/t/bin/node": "modified", "/opt/t/bin/tr": "deleted"},
        ),
        (
            "rm -r opt/t/bin; mkdir opt/t/bin; printf node >opt/t/bin/node",
            {"/opt/t/bin/node": "touched", "/opt/t/bin/tr": "deleted"},
        ),
        # A link on the way leads to files of this machine, which say nothing.
        ("rm -r opt; ln -s / opt", {"/opt": "modified", "/opt/t/bin/node": "deleted", "/opt/t/bin/tr": "deleted"}),
        (
            "rm -r opt/t; mkdir opt/t; ln -s ../../usr/bin opt/t/bin",
            {"/opt/t/bin": "modified", "/opt/t/bin/node": "deleted", "/opt/t/bin/tr": "deleted"},
        ),
        (
            "rm -r opt/t; printf mine >opt/t",
            {"/opt/t": "modified", "/opt/t/bin/node": "deleted", "/opt/t/bin/tr": "deleted"},
        ),
        # What a layer of the image had removed is not there to be removed, or changed.
        ("rm -r usr", {"/usr/bin/cat": "deleted", "/usr/bin/perl": "deleted", "/usr/lib/y": "deleted"}),
        ("printf x >usr/bin/git; printf x >usr/lib/x", {"/usr/bin/git": "added", "/usr/lib/x": "added"}),
        ("rm bin; mkdir bin; printf cat >bin/cat; printf x >bin/new", {"/bin/cat": "touched", "/bin/new": "added"}),
    ],
)
def test_directories_that_are_gone_or_made_anew(image: Overlay, script: str, expected: dict[str, Change]) -> None:
    changed = image.changes(runs(script))
    changed.pop("/bin", None)
    assert changed == expected


def test_what_an_image_has_below_a_link(image: Overlay) -> None:
    layers = Layers(map(str, image.lowers))
    assert layers.find("/bin/cat") == str(image.lowers[-2] / "usr/bin/cat")
    assert layers.find("/bin/git") is None
    assert layers.directories("/usr") == {"bin", "lib"}
    assert sorted(layers.below("/usr")) == [
        ("/usr/bin", True),
        ("/usr/bin/cat", False),
        ("/usr/bin/perl", False),
        ("/usr/lib", True),
        ("/usr/lib/y", False),
    ]


def test_links_of_an_image_lead_out_of_nothing(tmp_path: Path) -> None:
    links = (
        "ln -s / root; ln -s /../../../../etc up; ln -s loop1 loop2; ln -s loop2 loop1; mkdir etc; echo >etc/own"
    )
    image = Overlay(tmp_path, [runs(links)])
    layers = Layers(map(str, image.lowers))
    assert layers.find("/up/own") == layers.find("/root/etc/own") == str(image.lowers[0] / "etc/own")
    assert layers.find("/up/passwd") is None
    assert layers.find("/loop1/x") is None


@pytest.mark.parametrize("options", [PLAIN, MARKED])
def test_another_mode_is_no_other_content(tmp_path: Path, options: str) -> None:
    """With ``metacopy``, a file whose mode was changed has no content of its own."""
    image = Overlay(tmp_path, IMAGE, options)
    changed = image.changes(runs("chmod -R 700 usr; ln usr/bin/perl usr/bin/perl5; printf x >>usr/bin/cat"))
    assert changed == {
        "/usr/bin/cat": "modified",
        "/usr/bin/perl": "touched",
        "/usr/bin/perl5": "added",
        "/usr/lib/y": "touched",
    }


@pytest.mark.parametrize("options", [PLAIN, MARKED])
def test_another_file_of_the_image_in_its_place(tmp_path: Path, options: str) -> None:
    """With ``metacopy``, that one has no content of its own either."""
    image = Overlay(tmp_path, IMAGE, options)
    changed = image.changes(runs("mv usr/bin/perl usr/bin/cat"))
    assert changed == {"/usr/bin/cat": "modified", "/usr/bin/perl": "deleted"}
    swapped = image.changes(runs("mv opt/t opt/u; mv usr opt/t"))
    assert {"/opt/t/bin/node", "/opt/t/bin/tr", "/usr/lib/y"} <= {
        path for path, change in swapped.items() if change == "deleted"
    }


def test_marks_that_a_container_can_set_itself(image: Overlay) -> None:
    def act(root: Path) -> None:
        (root / "usr/bin/cat").write_text("cut")
        os.setxattr(root / "usr/bin/cat", "user.overlay.metacopy", b"")

    assert image.changes(act) == {"/usr/bin/cat": "modified"}


def test_more_than_is_looked_at(image: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MOST_FILES", 5)
    assert image.after(runs("rm -r usr opt"))[2] is None


_names = st.sampled_from("abc")
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_steps = st.one_of(
    st.tuples(st.just("write"), _paths, st.sampled_from(["1", "2"])),
    st.tuples(st.just("remove"), _paths, st.none()),
    st.tuples(st.just("move"), _paths, _paths),
    st.tuples(st.just("chmod"), _paths, st.none()),
)
Step = tuple[str, str, str | None]


def take(steps: list[Step]) -> Act:
    """Return what takes all steps that can be taken."""

    def act(root: Path) -> None:
        for what, name, other in steps:
            path = root / name
            try:
                if what == "write":
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(str(other))
                elif what == "chmod":
                    path.chmod(0o700)
                elif what == "move":
                    shutil.move(path, root / str(other))
                else:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            except (OSError, shutil.Error):
                continue

    return act


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(_steps, max_size=6), min_size=1, max_size=3), st.lists(_steps, max_size=8))
def test_any_image_and_any_agent(layers: list[list[Step]], agent: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as place:
        before, after, found = Overlay(Path(place), [take(layer) for layer in layers]).after(take(agent))
    assert found is not None
    expected = dict[str, Change]()
    for path in before.keys() | after.keys():
        was, became = before.get(path), after.get(path)
        if was != became and {was, became} != {None, DIRECTORY}:
            expected[path] = "added" if was is None else "deleted" if became is None else "modified"
    assert {path: change for path, change in found.items() if change != "touched"} == expected


def test_digests_of_files_of_its_own(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "bin").mkdir(parents=True)
    (upper / "bin/tool").write_bytes(b"tool")
    (upper / "link").symlink_to("bin")
    (upper / "bin/link").symlink_to("tool")
    os.mkfifo(upper / "bin/pipe")
    assert digest(str(upper), "/bin/tool", 4) == hashlib.sha256(b"tool").hexdigest()
    assert digest(str(upper), "/bin/tool", 3) is None
    for path in ("/link/tool", "/bin/link", "/bin/pipe", "/bin", "/none", "/bin/tool/x"):
        assert digest(str(upper), path, 100) is None
