"""What dead runs leave goes; what a living run holds, or nobody here can judge, stays. On an engine of its own."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result

from pytest_infranoise.clean import clean as clean_engine
from pytest_infranoise.cli import main
from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import Owner
from pytest_infranoise.host import boot_id
from pytest_infranoise.journal import Journal
from pytest_infranoise.journal import write_meta
from pytest_infranoise.model import Allocation
from pytest_infranoise.prepare import is_ours
from pytest_infranoise.prepare import isolation
from pytest_infranoise.prepare import sweep_dead_runs
from pytest_infranoise.run_lock import session_lock
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.protocol import SandboxRequest
from tests.builders import DEMO
from tests.builders import RUN
from tests.builders import key
from tests.builders import run_of
from tests.builders import write_run
from tests.suite import BASE_IMAGE
from tests.trials.second_engine import SecondEngine
from tests.trials.second_engine import second_engine
from tests.trials.second_engine import unavailable

pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def second() -> Iterator[SecondEngine]:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    with second_engine() as second:
        yield second


@pytest.fixture
def ledger(second: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("DOCKER_HOST", second.address)
    monkeypatch.setenv("INFRANOISE_STATE_DIR", str(tmp_path / "state"))
    with closing(DockerBackend("test")) as backend:
        yield Ledger(backend.info().id)
        for run in {labels["infranoise.run"] for labels in backend.labelled("infranoise.run").values()}:
            backend.remove_labelled({"infranoise.run": run})
        for image in backend.built_images():
            assert backend.remove_image(image)
    gc.collect()


def leave(run: str, place: str, boot: str | None = None) -> None:
    """Leave a container behind, as a process that was killed does."""
    labels = {"infranoise.host": place, "infranoise.boot": boot or boot_id()}
    with closing(DockerBackend(run)) as backend:
        image = backend.image(BASE_IMAGE, None, "never")
        allocation = Allocation(0.1, 0.5, 16 * 1024**2, 32 * 1024**2)
        backend.create(SandboxRequest(f"infranoise-{run}", image, allocation, labels=labels, network=False))


def left() -> set[str]:
    with closing(DockerBackend("test")) as backend:
        return {labels["infranoise.run"] for labels in backend.labelled("infranoise.run").values()}


def clean(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["clean", *arguments])


@pytest.mark.engine
def test_a_dead_run_s_leftovers_go_and_a_living_run_s_stay(ledger: Ledger) -> None:
    leave("dead", ledger.place)
    leave("earlier-boot", ledger.place.partition("#")[0] + "#other", boot="another boot")
    leave("living", ledger.place)
    leave("elsewhere", "another-host#1234")
    owner = ledger.register("living", "gw0")

    shown = clean("--dry-run")
    assert (shown.exit_code, left()) == (0, {"dead", "earlier-boot", "living", "elsewhere"})
    assert "would remove 1 container or network of run dead" in shown.stdout
    done = clean()
    assert (done.exit_code, left()) == (0, {"living", "elsewhere"})
    assert "removed 1 of 1 of run dead, which is not alive" in done.stdout
    assert "left alone: 1 of run living, which is alive" in done.stdout
    assert "left alone: run elsewhere was started elsewhere (another-host#1234)" in done.stdout
    assert "the engine's images and containers t" in done.stdout

    owner.close()
    clean()
    assert left() == {"elsewhere"}


def dies_as_owner(ledger: Ledger, run: str) -> None:
    """Have a process join the ledger and be killed."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pytest_infranoise.host import Ledger\n"
        "Ledger(sys.argv[1], Path(sys.argv[2])).register(sys.argv[3], 'controller').hold_images(['a'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, ledger.path.name, str(ledger.path.parent), run], check=False)
    assert (ledger.owners / f"{run}--controller.images").exists()


@pytest.mark.engine
@pytest.mark.parametrize("how", ["sweep", "clean"])
def test_runners_in_containers_are_told_by_the_ledger_they_share_and_not_by_their_names(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "2f1c9a")
    leave("dead", ledger.place)
    leave("living", ledger.place)
    leave("another-ledger", Ledger("engine", tmp_path / "other").place)
    dies_as_owner(ledger, "dead")
    monkeypatch.setattr(platform, "node", lambda: "77b0e4")
    mine = build(tmp_path / "one", "one")

    with closing(ledger.register("living", "gw0")), closing(DockerBackend("test")) as backend:
        if how == "sweep":
            sweep_dead_runs(backend, ledger, print)
        else:
            assert "left alone: 1 of run living, which is alive" in clean().stdout
        assert left() == {"living", "another-ledger"}
    clean()
    assert left() == {"another-ledger"}
    assert "all 1 kept" in clean("--images").stdout
    clean("--run", "another-ledger")
    clean("--images")
    assert mine not in images()


HERE, BEFORE = "this boot", "the boot before"


@pytest.mark.parametrize(
    ("host", "boot", "ours"),
    [
        ("here#token", HERE, True),
        ("here#token", BEFORE, True),
        ("here#token", None, True),
        ("runner#token", HERE, True),
        # A ledger on a network, or a kernel that does not say: its locks may be out of sight.
        ("runner#token", BEFORE, False),
        ("runner#token", None, False),
        ("runner#token", "", False),
        ("here#other", HERE, False),
        ("here#other", BEFORE, True),
        ("here#other", "", False),
        ("runner#other", HERE, False),
        ("runner#other", BEFORE, False),
        ("", None, False),
        ("#", HERE, False),
        ("here", HERE, False),
    ],
)
def test_what_is_ours(monkeypatch: pytest.MonkeyPatch, host: str, boot: str | None, ours: bool) -> None:
    monkeypatch.setattr("pytest_infranoise.prepare.boot_id", lambda: HERE)
    labels = {"infranoise.host": host, **({} if boot is None else {"infranoise.boot": boot})}

    assert is_ours(labels, "here#token") is ours


@pytest.mark.engine
def test_a_named_run_goes_wherever_it_was_started_unless_it_lives(ledger: Ledger) -> None:
    leave("gone-for-good", "another-host#1234")
    leave("untouched", "another-host#1234")
    leave("living", "another-host#1234")
    leave("dead", ledger.place)
    everything = left()

    shown = clean("--run", "gone-for-good", "--dry-run")
    assert (shown.exit_code, left()) == (0, everything)
    assert "would remove 1 container or network of run gone-for-good" in shown.stdout
    done = clean("--run", "gone-for-good")
    assert (done.exit_code, left()) == (0, everything - {"gone-for-good"})
    assert "run gone-for-good was started elsewhere (another-host#1234)" in done.stdout
    assert "removed 1 of 1 of run gone-for-good" in done.stdout

    with closing(ledger.register("living", "gw0")):
        refused = clean("--run", "living")
    assert (refused.exit_code, left()) == (1, everything - {"gone-for-good"})
    assert refused.stdout == "left alone: 1 of run living, which is alive\n"

    assert "elsewhere" not in clean("--run", "dead").stdout
    assert left() == {"untouched", "living"}
    assert clean("--run", "nosuch").stdout == "no container or network of run nosuch is left\n"
    assert clean("--run", "untouched", "--images").exit_code == 2
    assert left() == {"untouched", "living"}


@pytest.mark.engine
def test_a_network_may_be_all_that_a_dead_run_has_left(ledger: Ledger) -> None:
    with closing(DockerBackend("dead")) as backend:
        backend.ensure_network(
            {"infranoise.host": ledger.place, "infranoise.trial": "none of a network's business"}
        )
        (labels,) = backend.labelled("infranoise.run=dead").values()
    assert labels == {"infranoise.run": "dead", "infranoise.host": ledger.place}

    assert clean().exit_code == 0

    assert left() == set()


@pytest.mark.engine
def test_the_network_that_a_session_makes_first_says_whose_it_is(ledger: Ledger) -> None:
    plan: Any = SimpleNamespace(tasks=[SimpleNamespace(network=True)])
    with closing(DockerBackend("dead")) as backend:
        assert isolation(plan, backend, ledger.place)["network"] is True

    assert clean().exit_code == 0

    assert left() == set()


def another_ledger() -> Ledger:
    """The same one, as another session opens it."""
    with closing(DockerBackend("test")) as backend:
        return Ledger(backend.info().id)


def dead_network(ledger: Ledger, run: str) -> None:
    with closing(DockerBackend(run)) as backend:
        backend.ensure_network({"infranoise.host": ledger.place})


@pytest.mark.engine
@pytest.mark.parametrize("how", ["sweep", "clean"])
def test_a_run_that_is_resumed_while_others_are_removed_keeps_what_it_has(ledger: Ledger, how: str) -> None:
    for run in ("dead-1", "dead-2"):
        dead_network(ledger, run)
    owners: list[Owner] = []

    def say(line: str) -> None:
        if "dead-1" in line:
            owners.append(another_ledger().register("dead-2", "controller"))

    with closing(DockerBackend("test")) as backend:
        if how == "sweep":
            sweep_dead_runs(backend, ledger, say)
        else:
            clean_engine(backend, ledger, say, images=False, dry_run=False)

    assert left() == {"dead-2"}
    (owner,) = owners
    owner.close()


class Slow(DockerBackend):
    """A backend whose removals take as long as something else that happens meanwhile."""

    def __init__(self, run: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(run)
        self._meanwhile = meanwhile

    def remove_labelled(self, labels: Mapping[str, str]) -> int:
        self._meanwhile()
        return super().remove_labelled(labels)


@pytest.mark.engine
@pytest.mark.parametrize("resumed", ["dead", "another"])
def test_while_leftovers_are_removed_trials_start_and_runs_begin_afterwards(ledger: Ledger, resumed: str) -> None:
    """A removal may take long, and all of the host would wait; yet it must take nothing of a run that goes on."""
    dead_network(ledger, "dead")
    admitted, joined, made, over = (threading.Event() for _ in range(4))

    def admit() -> None:
        with living.reserve(Allocation(0.1, None, 1024**2, None), Capacity(2, 1024**3)):
            admitted.set()

    def begin() -> None:
        with closing(another_ledger().register(resumed, "controller")):
            joined.set()
            dead_network(ledger, resumed)
            made.set()
            over.wait(60)

    trial, session = (threading.Thread(target=target, daemon=True) for target in (admit, begin))

    def meanwhile() -> None:
        trial.start()
        assert admitted.wait(60)
        session.start()
        assert not joined.wait(0.5)

    with closing(another_ledger().register("living", "gw0")) as living:
        with closing(Slow("test", meanwhile)) as slow:
            sweep_dead_runs(slow, ledger, print)
        assert made.wait(60)
        with closing(DockerBackend("test")) as backend:
            sweep_dead_runs(backend, ledger, print)
        assert left() == {resumed}
        over.set()
        session.join(60)


class Late(DockerBackend):
    """A backend before whose answer another session begins."""

    def __init__(self, run: str, begin: Callable[[], None]) -> None:
        super().__init__(run)
        self._begin = begin

    def labelled(self, label: str) -> dict[str, Mapping[str, str]]:
        self._begin()
        return super().labelled(label)


@pytest.mark.engine
def test_a_run_that_begins_while_leftovers_are_looked_for_keeps_what_it_has(ledger: Ledger) -> None:
    owners: list[Owner] = []

    def begin() -> None:
        owners.append(another_ledger().register("begun", "controller"))
        dead_network(ledger, "begun")

    with closing(Late("test", begin)) as backend:
        sweep_dead_runs(backend, ledger, print)

    assert left() == {"begun"}
    (owner,) = owners
    owner.close()


def build(directory: Path, content: str) -> str:
    directory.mkdir()
    (directory / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nLABEL content={content}\n", "utf-8")
    with closing(DockerBackend("test")) as backend:
        return backend.image(None, directory, "missing")


def images() -> set[str]:
    with closing(DockerBackend("test")) as backend:
        return {image.id for image in backend.built_images()}


@pytest.mark.engine
def test_images_that_were_built_go_unless_a_living_run_needs_them(
    ledger: Ledger, second: SecondEngine, tmp_path: Path
) -> None:
    mine, held = build(tmp_path / "one", "one"), build(tmp_path / "two", "two")
    # Made of ours, with its labels, and given a name by somebody: not ours.
    assert second.docker("tag", mine, "somebody/else:1").returncode == 0
    owner = ledger.register("living", "controller")

    # It has not said yet which images it needs.
    assert clean("--images").exit_code == 0
    assert images() == {mine, held}

    owner.hold_images([held])
    done = clean("--images")
    assert images() == {held}
    assert "images: removed 1 that were built for tasks" in done.stdout
    assert second.docker("image", "inspect", "somebody/else:1", BASE_IMAGE).returncode == 0

    owner.close()
    assert clean("--images", "--dry-run").exit_code == 0
    assert images() == {held}
    clean("--images")
    assert images() == set()
    second.docker("rmi", "somebody/else:1")


@pytest.mark.engine
def test_images_stay_while_runs_from_elsewhere_are_on_the_engine(ledger: Ledger, tmp_path: Path) -> None:
    mine = build(tmp_path / "one", "one")
    leave("elsewhere", "another-host#1234")

    assert "all 1 kept, because runs from elsewhere may need them" in clean("--images").stdout
    assert images() == {mine}


@pytest.mark.engine
def test_an_image_in_use_stays(ledger: Ledger, second: SecondEngine, tmp_path: Path) -> None:
    mine = build(tmp_path / "one", "one")
    assert second.docker("create", "--name", "user", "--network", "none", mine, "true").returncode == 0

    assert "1 kept, which a living run or a container may need" in clean("--images").stdout
    assert images() == {mine}
    second.docker("rm", "user")


def test_no_engine_is_one_clear_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from pytest_infranoise.cli import main; main()", "clean"],
        env={"DOCKER_HOST": f"unix://{tmp_path}/docker.sock"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: the engine does not answer: ")


class TestHeldImages:
    def test_of_living_runs_only(self, tmp_path: Path) -> None:
        ledger = Ledger("engine", tmp_path)
        owners: dict[str, Owner] = {run: ledger.register(run, "controller") for run in ("one", "two")}
        owners["one"].hold_images(["a", "b", "a"])

        assert ledger.held_images() == ({"a", "b"}, {"two"})
        assert ledger.living_runs() == {"one", "two"}

        owners["one"].close()
        owners["two"].close()
        assert ledger.held_images() == (set(), set())
        assert list(ledger.owners.iterdir()) == []

    def test_a_worker_needs_nothing_of_its_own(self, tmp_path: Path) -> None:
        ledger = Ledger("engine", tmp_path)
        owners = [ledger.register("one", name) for name in ("controller", "gw0")]
        owners[0].hold_images(["a"])

        assert ledger.held_images() == ({"a"}, set())
        for owner in owners:
            owner.close()

    def test_a_killed_owner_s_are_forgotten(self, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from pytest_infranoise.host import Ledger\n"
            "Ledger('engine', Path(sys.argv[1])).register('one', 'controller').hold_images(['a'])\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        ledger = Ledger("engine", tmp_path)

        assert list(ledger.owners.glob("*.images"))
        assert ledger.held_images() == (set(), set())
        assert list(ledger.owners.iterdir()) == []


class TestList:
    def test_every_run_with_its_state(self, tmp_path: Path) -> None:
        write_run(run_of(DEMO, created="2026-01-31T23:59:59+00:00"), tmp_path)
        partly = {"a/m": {"1x": {"t": (1, 0, 0, 2)}}}
        write_run(run_of(partly, run="20260201-000000-killed", finished=None, shard="1/2"), tmp_path)
        write_run(run_of(partly, run="20260201-010000-stopped", samples=5), tmp_path)
        running = write_run(run_of(partly, run="20260202-000000-runs", finished=None), tmp_path)
        write_meta(tmp_path / "20260203-000000-future", {"planned": []})
        (tmp_path / "20260203-000000-future" / "run.json").write_text('{"schema": 99}')
        (tmp_path / "20260204-000000-broken").mkdir()
        (tmp_path / "20260204-000000-broken" / "run.json").write_text("{")
        Journal(running, "main").started(key("t"), 0)
        lock = session_lock(running)
        assert lock.acquire()

        done = CliRunner().invoke(main, ["list", "--run-dir", str(tmp_path)])

        lock.release()
        assert done.exit_code == 0, done.output
        lines = {line.split()[0]: " ".join(line.split()) for line in done.stdout.splitlines()[1:-1]}
        assert lines[RUN].startswith(f"{RUN} 2026-01-31 23:59 4 x 3 x 3 36 0 scripted finished ")
        assert "1 x 1 x 3 shard 1/2 1 2 a (m) killed" in lines["20260201-000000-killed"]
        assert "1 x 1 x 5 1 2 a (m) stopped" in lines["20260201-010000-stopped"]
        assert "1 x 1 x 3 1 2 a (m) running" in lines["20260202-000000-runs"]
        assert "schema 99" in lines["20260203-000000-future"]
        assert "unreadable" in lines["20260204-000000-broken"]
        assert done.stdout.splitlines()[-1].startswith(f"6 runs in {tmp_path}: ")

    def test_no_run_yet(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(main, ["list", "--run-dir", str(tmp_path / "nowhere")])

        assert (done.exit_code, done.stdout) == (0, f"0 runs in {tmp_path / 'nowhere'}: 0 B\n")
