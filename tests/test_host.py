from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_infranoise.host import Capacity
from pytest_infranoise.host import Ledger
from pytest_infranoise.host import LedgerError
from pytest_infranoise.host import RunAlive
from pytest_infranoise.host import capacity
from pytest_infranoise.host_limits import Limits
from pytest_infranoise.model import Allocation
from pytest_infranoise.sandboxes.protocol import EngineInfo
from pytest_infranoise.scheduler.budget import Need

MIB = 1024**2
LIMIT = Capacity(cpus=2, memory=1000 * MIB)

# Takes floors from the ledger again and again and writes down when it held them.
TAKER = """
import json, sys, time
from pathlib import Path
from pytest_infranoise.host import Capacity, Ledger
from pytest_infranoise.model import Allocation
state, name, rounds, memory = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
owner = Ledger("engine", state).register("run-" + name, "main")
for _ in range(rounds):
    with owner.reserve(Allocation(0.5, None, memory, None), Capacity(2, 1000 * 1024**2)):
        begin = time.monotonic()
        time.sleep(0.02)
        print(json.dumps([begin, time.monotonic(), memory]), flush=True)
"""


def allocation(memory: int, cpus: float = 0.5, ceiling: int | None = None) -> Allocation:
    return Allocation(cpus, None, memory * MIB, ceiling)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger("engine", tmp_path)


def taker(state: Path, name: str, rounds: int, memory: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TAKER, str(state), name, str(rounds), str(memory * MIB)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_never_hold_more_than_the_host_has(tmp_path: Path) -> None:
    takers = [taker(tmp_path, str(number), 8, memory) for number, memory in enumerate((400, 400, 300, 700))]
    held = [json.loads(line) for process in takers for line in process.communicate()[0].splitlines()]

    assert len(held) == 4 * 8
    for begin, _, _ in held:
        assert sum(memory for other, end, memory in held if other <= begin < end) <= LIMIT.memory


def test_floors_are_held_while_the_context_lasts(ledger: Ledger) -> None:
    first, second = ledger.register("run", "gw0"), ledger.register("run", "gw1")
    with first.reserve(allocation(600), LIMIT) as granted:
        assert granted["running_beside"] == 0
        waiting = threading.Thread(target=lambda: second.reserve(allocation(600), LIMIT).__enter__())
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join(20)
    assert not waiting.is_alive()
    first.close()
    second.close()


def test_only_one_is_the_first_of_a_run(ledger: Ledger) -> None:
    first = ledger.register_first("run", "controller")
    another = ledger.register_first("another", "controller")
    for process in ("controller", "controller-s2"):
        with pytest.raises(RunAlive):
            ledger.register_first("run", process)
    worker = ledger.register("run", "gw0")
    first.close()
    with pytest.raises(RunAlive):
        ledger.register_first("run", "controller-s2")

    # Whoever is about to end is waited for.
    ending = threading.Timer(0.3, worker.close)
    ending.start()
    second = ledger.register_first("run", "controller-s2", 60)

    ending.join()
    assert ledger.living_runs() == {"run", "another"}
    for owner in (second, another):
        owner.close()


def test_cpu_floors_may_fill_the_host_and_no_more(ledger: Ledger) -> None:
    owners = [ledger.register("run", f"gw{number}") for number in range(3)]
    with owners[0].reserve(allocation(1, cpus=1), LIMIT), owners[1].reserve(allocation(1, cpus=1), LIMIT) as second:
        assert second["cpus_reserved"] == 2
        assert owners[2]._try(allocation(1, cpus=0.1), LIMIT, time.time()) is None


def test_nobody_overtakes_one_who_waits(ledger: Ledger) -> None:
    holder, large, small = (ledger.register("run", name) for name in ("gw0", "gw1", "gw2"))
    with holder.reserve(allocation(600), LIMIT):
        assert large._try(allocation(900), LIMIT, asked=1.0) is None
        assert small._try(allocation(100), LIMIT, asked=2.0) is None
    assert large._try(allocation(900), LIMIT, asked=1.0) is not None
    assert small._try(allocation(100), LIMIT, asked=2.0) is not None


class NotWanted(Exception):
    pass


@pytest.mark.parametrize("fits", [True, False])
def test_one_who_is_not_wanted_any_more_holds_nothing_and_waits_no_longer(ledger: Ledger, fits: bool) -> None:
    holder, waiter, third = (ledger.register("run", name) for name in ("gw0", "gw1", "gw2"))

    def still() -> None:
        raise NotWanted

    with holder.reserve(allocation(100 if fits else 600), LIMIT):
        with pytest.raises(NotWanted), waiter.reserve(allocation(600), LIMIT, still=still):
            pytest.fail("was admitted")
        assert third._try(allocation(300), LIMIT, asked=time.time()) is not None


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = taker(tmp_path, "killed", 10**6, 900)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_killed_process_gives_its_floor_back(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    ledger = Ledger("engine", tmp_path)
    assert ledger.living_runs() == {"run-killed"}

    holder.send_signal(signal.SIGKILL)
    holder.wait()

    assert ledger.living_runs() == set()
    with ledger.register("run", "main").reserve(allocation(900), LIMIT) as granted:
        assert granted["running_beside"] == 0


def test_engines_have_ledgers_of_their_own(tmp_path: Path) -> None:
    first = Ledger("A:B", tmp_path).register("run", "main")
    other = Ledger("../C", tmp_path).register("run", "main")
    with first.reserve(allocation(900), LIMIT), other.reserve(allocation(900), LIMIT) as granted:
        assert granted["running_beside"] == 0
    assert {path.parent for path in tmp_path.rglob("ledger.lock")} == {tmp_path / "A-B", tmp_path / "---C"}


def test_overcommit_counts_ceilings_and_has_no_number_without_one(ledger: Ledger) -> None:
    first, second = ledger.register("run", "gw0"), ledger.register("run", "gw1")
    with (
        first.reserve(allocation(100, ceiling=700 * MIB), LIMIT) as alone,
        second.reserve(allocation(100, ceiling=800 * MIB), LIMIT) as both,
    ):
        assert alone["memory_overcommit"] == 0.7
        assert both["memory_overcommit"] == 1.5
    with first.reserve(allocation(100), LIMIT) as uncapped:
        assert uncapped["memory_overcommit"] is None


def test_memory_keeps_a_reserve_and_cpu_does_not() -> None:
    engine = EngineInfo("id", "1", "2", "6", "overlay2", "host", cpus=2, memory=1000, unsupported=())

    assert capacity(engine) == Capacity(2, 950)


def test_a_link_in_the_ledgers_place_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(victim)

    with pytest.raises(NotADirectoryError):
        Ledger("engine", tmp_path / "state")

    assert victim.stat().st_mode & 0o777 == 0o700


def test_a_ledger_has_one_place_for_all_who_share_it(tmp_path: Path) -> None:
    assert Ledger("engine", tmp_path / "a").place == Ledger("engine", tmp_path / "a").place
    assert Ledger("engine", tmp_path / "a").place != Ledger("engine", tmp_path / "b").place


def engine(cpus: float = 4, memory: int = 1000 * MIB) -> EngineInfo:
    return EngineInfo("id", "29.1", "2", "6.8", "overlay2", "host", cpus, memory, ())


@pytest.mark.parametrize(
    ("around", "given", "expected"),
    [
        (Limits(), {}, Capacity(4, 950 * MIB)),
        (Limits(1.5, 500 * MIB), {}, Capacity(1.5, 475 * MIB)),
        (Limits(64, 2**62), {}, Capacity(4, 950 * MIB)),
        (Limits(), {"cpus": 2.5, "memory": 1000 * MIB}, Capacity(2.5, 1000 * MIB)),
        # Whoever says so knows better than we what a limit around this process means.
        (Limits(1.5, 500 * MIB), {"memory": 800 * MIB}, Capacity(1.5, 800 * MIB)),
    ],
)
def test_capacity_is_what_engine_surroundings_and_user_leave(
    around: Limits, given: dict[str, float], expected: Capacity
) -> None:
    assert capacity(engine(), around, **given) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"cpus": 4.5}, {"memory": 1001 * MIB}])
def test_nobody_can_give_more_than_the_host_has(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"--infranoise-host-(cpus|memory): .* is more than the "):
        capacity(engine(), **given)  # type: ignore[arg-type]


def test_ceilings_are_reserved_on_demand_and_without_one_the_whole_host(ledger: Ledger) -> None:
    capped, uncapped = ledger.register("run", "gw0"), ledger.register("run", "gw1")
    with capped.reserve(allocation(100, ceiling=300 * MIB), LIMIT, "ceiling", "3x") as granted:
        assert granted["memory_reserved"] == 300 * MIB
        assert granted["cpus_reserved"] == LIMIT.cpus
        assert granted["beside"] == {}
        assert uncapped._try(allocation(100), LIMIT, time.time(), "ceiling") is None
    with uncapped.reserve(allocation(100), LIMIT, "ceiling") as granted:
        assert granted["memory_reserved"] == LIMIT.memory


def test_a_trial_is_told_what_it_starts_beside(ledger: Ledger) -> None:
    owners = [ledger.register(f"run{number % 2}", f"gw{number}") for number in range(3)]
    with (
        owners[0].reserve(allocation(100), LIMIT, config="1x"),
        owners[1].reserve(allocation(100), LIMIT, config="uncapped"),
        owners[2].reserve(allocation(100), LIMIT, config="1x") as granted,
    ):
        assert granted["beside"] == {"1x": 1, "uncapped": 1}


def test_a_session_sees_what_others_hold_and_whether_it_waits_for_them(ledger: Ledger) -> None:
    mine, other, another = (ledger.register(*name) for name in (("a", "gw0"), ("b", "gw0"), ("c", "gw0")))
    with mine.reserve(allocation(300), LIMIT):
        assert ledger.outside("a") == (Need(), False)
    with other.reserve(allocation(600, cpus=0.25), LIMIT):
        assert ledger.outside("a") == (Need(0.25, 600 * MIB), False)
        assert another._try(allocation(500), LIMIT, asked=1.0) is None
        assert ledger.outside("a") == (Need(0.75, 1100 * MIB), False)
        assert mine._try(allocation(500), LIMIT, asked=2.0) is None
        assert ledger.outside("a") == (Need(0.75, 1100 * MIB), True)


# Becomes a user, joins the ledger, says what it got, and holds that until its input ends.
USER = """
import json, os, sys, tempfile, time
from pathlib import Path
from pytest_infranoise.host import Capacity, Ledger
from pytest_infranoise.model import Allocation

def join(state, user):
    ledger = Ledger("engine", state)
    owner = ledger.register(f"run-{user}", "main")
    owner.hold_images([f"image-{user}"])
    asked, limit = Allocation(0.5, None, 900 * 1024**2, None), Capacity(2, 1000 * 1024**2)
    granted = owner._try(asked, limit, time.time()) is not None
    held, unknown = ledger.held_images()
    told = {"granted": granted, "token": ledger.place.partition("#")[2], "runs": sorted(ledger.living_runs())}
    return owner, {**told, "images": sorted(held), "unknown": sorted(unknown)}

with tempfile.TemporaryDirectory() as trial:
    join(Path(trial, "state"), 0)  # imports what the user may not be able to read
state, user, umask = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3], 8)
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.umask(umask)
owner, told = join(state, user)
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
@pytest.mark.parametrize("umasks", [("077", "022"), ("022", "077"), ("077", "077")])
def test_users_of_one_host_see_what_each_other_holds_whatever_their_umask(umasks: tuple[str, str]) -> None:
    processes = []
    # Not below pytest's own directory, which is root's alone.
    with tempfile.TemporaryDirectory(prefix="infranoise-users-") as shared:
        Path(shared).chmod(0o777)
        state = Path(shared, "state")
        told = []
        try:
            for user, umask in zip((65533, 65534), umasks, strict=True):
                command = [sys.executable, "-c", USER, str(state), str(user), umask]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                processes.append(process)
                assert process.stdout is not None
                told.append(json.loads(process.stdout.readline()))
        finally:
            for process in processes:
                process.communicate("")
        first, second = told
        assert (first["granted"], second["granted"]) == (True, False)
        assert first["token"] == second["token"] != ""
        assert second["runs"] == ["run-65533", "run-65534"]
        assert (second["images"], second["unknown"]) == (["image-65533", "image-65534"], [])
        # Both have ended without a word, and a third forgets them.
        assert Ledger("engine", state).living_runs() == set()
        assert list(Ledger("engine", state).owners.iterdir()) == []


TORN = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b'{"cpus": 1}',
    b'{"asked": 1, "cpus": 1, "memory": "much", "granted": 1}',
]


@pytest.mark.parametrize("content", TORN)
def test_what_cannot_be_read_of_a_living_owner_never_counts_as_nothing(ledger: Ledger, content: bytes) -> None:
    other, mine = ledger.register("other", "gw0"), ledger.register("mine", "gw0")
    torn = ledger.owners / "other--gw0.json"
    torn.write_bytes(content)

    with pytest.raises(LedgerError, match=r"other--gw0\.json cannot be read .* run other, .* end that run"):
        mine._try(allocation(100), LIMIT, asked=1.0)
    assert not (ledger.owners / "mine--gw0.json").exists()
    assert ledger.living_runs() == {"mine", "other"}
    assert ledger.outside("mine") == (Need(), False)

    other.close()
    torn.write_bytes(content)  # whose owner is no more
    assert mine._try(allocation(900), LIMIT, asked=1.0) is not None


@pytest.mark.parametrize("content", TORN)
def test_the_guard_is_told_of_what_it_cannot_read(ledger: Ledger, content: bytes) -> None:
    other, mine = ledger.register("other", "gw0"), ledger.register("mine", "gw0")
    seen: list[Mapping[str, Any]] = []

    def amend(granted: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(granted)
        return {"usage": 1}

    with mine.reserve(allocation(100), LIMIT):
        (ledger.owners / "other--gw0.json").write_bytes(content)
        mine.amend(amend)
        entry = json.loads((ledger.owners / "mine--gw0.json").read_text("ascii"))
    other.close()
    assert entry["usage"] == 1
    (found,) = seen
    assert found.keys() == {"other--gw0", "mine--gw0"}
    assert found["other--gw0"] == {"memory": 0}


def test_an_own_entry_that_is_torn_is_written_anew(ledger: Ledger) -> None:
    mine = ledger.register("mine", "gw0")
    (ledger.owners / "mine--gw0.json").write_bytes(b"")

    assert mine._try(allocation(100), LIMIT, asked=1.0) is not None


def test_a_token_that_was_lost_is_made_anew(ledger: Ledger) -> None:
    (ledger.path / "id").write_bytes(b"")

    assert ledger.place.partition("#")[2]
    assert ledger.place == ledger.place


# Holds a floor on a disk that has no room for what it adds.
FULL = """
import resource, sys, time
from pathlib import Path
from pytest_infranoise.host import Capacity, Ledger
from pytest_infranoise.model import Allocation
owner = Ledger("engine", Path(sys.argv[1])).register("run", "main")
with owner.reserve(Allocation(0.5, None, 900 * 1024**2, None), Capacity(2, 1000 * 1024**2)):
    file = Path(sys.argv[1], "engine", "owners", "run--main.json")
    before = file.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 5, resource.RLIM_INFINITY))
    try:
        owner.amend(lambda granted: {"usage": 1})
    except OSError:
        print("told", file.read_bytes() == before)
"""


def test_a_full_disk_takes_nothing_from_what_is_there(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stdout == "told True\n"
    assert Ledger("engine", tmp_path).living_runs() == set()
    assert list((tmp_path / "engine" / "owners").iterdir()) == []


# Joins the ledger as a worker, asks for a floor, and is killed.
KILLED = """
import os, signal, sys, time
from pathlib import Path
from pytest_infranoise.host import Capacity, Ledger
from pytest_infranoise.model import Allocation
owner = Ledger("engine", Path(sys.argv[1])).register("run", "gw0", "controller")
owner._try(Allocation(0.5, None, int(sys.argv[2]) * 1024**2, None), Capacity(2, 1000 * 1024**2), time.time())
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_worker(ledger: Ledger, memory: int) -> None:
    command = [sys.executable, "-c", KILLED, str(ledger.path.parent), str(memory)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (ledger.owners / "run--gw0.json").exists()


class TestDeadWorker:
    """Its container runs on until the controller has noticed."""

    @pytest.mark.parametrize("how", ["dropped", "controller gone", "time over", "clock set back"])
    def test_keeps_its_floor_until_its_controller_gives_it_back_or_for_some_time(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        controller, other, third = (
            ledger.register(*name) for name in (("run", "controller"), ("other", "main"), ("third", "main"))
        )
        killed_worker(ledger, 900)

        with third.reserve(allocation(50), LIMIT) as beside:
            assert beside["running_beside"] == 1
        for _ in range(2):
            assert other._try(allocation(200), LIMIT, asked=1.0) is None
            assert ledger.outside("third") == (Need(1.0, 1100 * MIB), False)
        assert ledger.living_runs() == {"run", "other", "third"}

        if how == "dropped":
            ledger.drop("run", "gw0")
        elif how == "controller gone":
            controller.close()
        else:
            late = 61 if how == "time over" else -3600
            monkeypatch.setattr("pytest_infranoise.host.time", SimpleNamespace(time=lambda: time.time() + late))
        assert other._try(allocation(200), LIMIT, asked=1.0) is not None
        for owner in (controller, other, third):
            owner.close()
        assert list(ledger.owners.iterdir()) == []

    def test_keeps_no_place_among_those_who_wait(self, ledger: Ledger) -> None:
        controller, first, other = (
            ledger.register(*name) for name in (("run", "controller"), ("first", "main"), ("other", "main"))
        )
        with first.reserve(allocation(900), LIMIT):
            killed_worker(ledger, 500)
            assert other._try(allocation(100), LIMIT, asked=time.time()) is not None
        controller.close()

    @pytest.mark.parametrize("controller", ["controller-s2", "gw1", "main"])
    def test_holds_nothing_for_another_than_its_own_controller(self, ledger: Ledger, controller: str) -> None:
        """Another session of the same run does not look for it."""
        living, other = ledger.register("run", controller), ledger.register("other", "main")
        killed_worker(ledger, 900)

        assert other._try(allocation(200), LIMIT, asked=1.0) is not None
        living.close()

    def test_is_not_the_guard_s_to_end(self, ledger: Ledger) -> None:
        controller, mine = ledger.register("run", "controller"), ledger.register("mine", "main")
        killed_worker(ledger, 500)
        seen: list[set[str]] = []

        def amend(granted: Mapping[str, Any]) -> Mapping[str, Any]:
            seen.append(set(granted))
            return {}

        with mine.reserve(allocation(100), LIMIT):
            mine.amend(amend)
        assert seen == [{"mine--main"}]
        controller.close()

    def test_has_a_follower_that_begins_with_nothing(self, ledger: Ledger) -> None:
        controller = ledger.register("run", "controller")
        killed_worker(ledger, 900)
        follower = ledger.register("run", "gw0", "controller")

        assert ledger.outside("other") == (Need(), False)
        assert follower._try(allocation(900), LIMIT, asked=1.0) is not None
        controller.close()
