"""The tasks that come with the project: their files, their odds, and what their verifiers take for right."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from datetime import date
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from pytest_infranoise.tasks.native import json_schema
from tests.tasks.tasks import MIB
from tests.tasks.tasks import loaded

BENCH = Path(__file__).parents[2] / "bench_tasks"
NAMES = [
    "build-modules",
    "count-errors",
    "fit-regression",
    "median-orders",
    "plan-tour",
    "serve-rates",
    "settle-payment",
]
ANSWERS = {
    "build-modules": "app.map",
    "count-errors": "errors-per-day.csv",
    "fit-regression": "fit.txt",
    "median-orders": "medians.csv",
    "plan-tour": "tour.txt",
    "serve-rates": "port.txt",
    "settle-payment": "paid.txt",
}
SETTLED = "i01 i02 i03 i04 i08 i09 i12 i13 i14 i16 i17 i20 i24 i25 i26 i27 i29 i30 i34 i39"

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="the verifiers are written in perl")


def test_these_are_all() -> None:
    assert sorted(path.parent.name for path in BENCH.glob("*/task.yaml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_task(name: str) -> None:
    task = loaded(BENCH / name)
    assert task.name == name
    assert (task.image, task.pull, task.network) == ("infranoise/base:bookworm", "never", False)
    assert task.spec.memory == 64 * MIB
    assert (0.5 <= task.spec.cpus <= 1) or name == "plan-tour"
    assert task.unsupported is None
    assert len(task.strategies) >= 2
    assert math.isclose(sum(strategy.odds for strategy in task.strategies), 1)
    assert all(strategy.script.stem == strategy.name for strategy in task.strategies)
    assert task.oracle is not None


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_those_of_the_schema(name: str) -> None:
    schema = json_schema()
    data = yaml.safe_load((BENCH / name / "task.yaml").read_text())
    assert set(schema["required"]) <= set(data) <= set(schema["properties"])
    for key, kind in (("resources", "Resources"), ("timeouts", "TimeoutsEntry")):
        assert set(data[key]) <= set(schema["$defs"][kind]["properties"])


@pytest.mark.parametrize("name", NAMES)
def test_the_head_states_the_odds(name: str) -> None:
    head = (BENCH / name / "task.yaml").read_text().partition("infranoise:")[0]
    for strategy in loaded(BENCH / name).strategies:
        assert re.search(rf"^#   {strategy.name} +{strategy.odds:g} ", head, re.MULTILINE)


def test_the_settings_choose_the_scripted_agent() -> None:
    assert 'agent = "scripted"' in (BENCH / "infranoise.toml").read_text().splitlines()


def _uniform(seed: int) -> Callable[[], float]:
    def numbers() -> Iterator[float]:
        state = seed
        while True:
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            yield state / 0x80000000

    return numbers().__next__


def _expected(name: str) -> str:
    return (BENCH / name / "verifier" / "check.pl").read_text().partition("expected = (")[2].partition(");")[0]


def _count(name: str) -> int:
    """Return how many rows a task's generator writes."""
    [(first, last)] = re.findall(
        r"for .*\(([\d_]+) \.\. ([\d_]+)\)", (BENCH / name / "app/make-data.pl").read_text()
    )
    return int(last) - int(first) + 1


def test_expected_fit() -> None:
    uniform = _uniform(20240611)
    rows = []
    for _ in range(_count("fit-regression")):
        x1, x2, x3 = 10 * uniform(), 4 * uniform() - 2, 100 * uniform()
        noise = 4 * (uniform() + uniform() + uniform() - 1.5)
        values = (x1, x2, x3, 3.2 + 1.7 * x1 - 2.4 * x2 + 0.05 * x3 + noise)
        rows.append([float(f"{value:.4f}") for value in values])
    table = np.array(rows)
    y = table[:, 3]
    fit, residual, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(y)), table[:, :3]]), y, rcond=None)
    r_squared = 1 - residual[0] / ((y - y.mean()) ** 2).sum()
    expected = [float(value) for value in re.findall(r"=> (\S+),", _expected("fit-regression"))]
    assert expected == pytest.approx([*fit, r_squared], abs=1e-8)
    behind_the_data = np.array([3.2, 1.7, -2.4, 0.05])
    assert (abs(np.array(expected[:4]) - behind_the_data) > 1e-5).all()


def test_expected_medians() -> None:
    uniform = _uniform(19700101)
    regions = ["centre", "east", "north", "south", "west"]
    orders: dict[str, list[tuple[int, int]]] = {region: [] for region in regions}
    for order in range(1_000_001, 1_000_001 + _count("median-orders")):
        region = regions[int(5 * uniform())]
        uniform()
        orders[region].append((500 + int(20_000 / (0.02 + uniform())), order))
    medians = []
    for region, entries in orders.items():
        amount, order = sorted(entries)[(len(entries) - 1) // 2]
        medians.append(f"{region},{order},{amount}")
    assert re.findall(r"'(.*)'", _expected("median-orders")) == medians


def test_expected_errors() -> None:
    uniform = _uniform(271828182)
    lines = _count("count-errors")
    errors: Counter[int] = Counter()
    for line in range(1, lines + 1):
        uniform()
        day = (24 * 60 + int(line * 6 * 24 * 60 / lines)) // (24 * 60) + 1
        errors[day] += uniform() < 0.08
        uniform(), uniform(), uniform()
    counts = [f"2024-03-{day:02d},{count}" for day, count in sorted(errors.items()) if count]
    assert re.findall(r"'(.*)'", _expected("count-errors")) == counts


def test_expected_program() -> None:
    uniform = _uniform(16180339)
    sizes = [1 + int(400 * uniform()) for _ in range(55_000)]
    addresses = [4096, *(4096 + end for end in itertools.accumulate(sizes))]
    modules = []
    for module in range(1, 13):
        code = 0
        for _ in range(40):
            symbol = int(55_000 * uniform())
            code = (code * 31 + addresses[symbol] + -(-sizes[symbol] // 8) * 8) & 0x3FFFFFFF
        modules.append(f"m{module:02d},{code}")
    assert re.findall(r"'(.*)'", _expected("build-modules")) == modules


def test_expected_rates() -> None:
    uniform = _uniform(57721566)
    source = (BENCH / "serve-rates" / "app" / "make-data.pl").read_text()
    currencies = source.partition("qw(AUD")[2].partition(")")[0].split()
    days = [date(2004, 1, 1) + timedelta(day) for day in range(365 * 19)]
    rates = {
        f"{day} {currency}": f"{0.5 + 20 * uniform():.4f}"
        for day in days
        if day.year <= 2021 and (day.month, day.day) != (2, 29)
        for currency in ("AUD", *currencies)
    }
    questions = re.findall(r"'(\S+ \S+),(\S+)'", _expected("serve-rates"))
    assert len(questions) == 6
    assert [rate for _, rate in questions] == [rates.get(question, "unknown") for question, _ in questions]


def test_expected_tour() -> None:
    root = BENCH / "plan-tour"
    listed = (root / "app" / "towns.csv").read_text()
    assert (root / "verifier" / "towns.csv").read_text() == listed
    towns = [complex(*map(int, line.split(",")[1:])) for line in listed.splitlines()[1:]]
    away = np.abs(np.subtract.outer(towns, towns))
    trips = np.array(list(itertools.permutations(range(1, len(towns) - 1))))
    # The last town stands between every two of the others in turn, which makes all trips from the first town.
    rings = np.column_stack([np.zeros(len(trips), int), trips, np.zeros(len(trips), int)])
    steps = away[rings[:, :-1], rings[:, 1:]]
    between = away[rings[:, :-1], -1] + away[rings[:, 1:], -1] - steps
    lengths = np.sort((steps.sum(1)[:, None] + between).ravel())
    [(shortest,)] = [re.findall(r"shortest = (\S+);", (root / "verifier" / "check.pl").read_text())]
    assert lengths[0] == pytest.approx(float(shortest), abs=1e-3)
    assert lengths[1] == pytest.approx(lengths[0])  # the same trip, the other way round
    assert lengths[2] > lengths[0] + 0.2
    tour = [int(town[1:]) - 1 for town in TOUR.split()]
    assert sum(away[a, b] for a, b in zip(tour, [*tour[1:], tour[0]], strict=True)) == pytest.approx(lengths[0])


def test_plan_tour_times_out_where_it_should() -> None:
    task = loaded(BENCH / "plan-tour")
    [seconds] = re.findall(r"times\)\[1\] < ([\d.]+)\)", (BENCH / "plan-tour/strategies/restarts.sh").read_text())
    assert float(seconds) / task.spec.cpus > 1.1 * task.timeouts.agent
    assert float(seconds) / (3 * task.spec.cpus) < task.timeouts.agent / 2.5


def _sums(amounts: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sums = np.zeros(1, dtype=np.int64)
    for amount in amounts:
        sums = np.concatenate([sums, sums + amount])
    return sums


def test_lean_way_of_settle_payment() -> None:
    root = BENCH / "settle-payment"
    listed = (root / "app" / "invoices.csv").read_text()
    assert (root / "verifier" / "invoices.csv").read_text() == listed
    amounts = [int(line.split(",")[1]) for line in listed.splitlines()[1:]]
    payment = 460443637041
    for file in ("instruction.md", "solution.sh", "verifier/check.pl", *(f"strategies/{way}.sh" for way in WAYS)):
        assert str(payment) in (root / file).read_text()
    left, right = _sums(amounts[:20]), _sums(amounts[20:])
    kept = Counter(int(value) % 16 for value in left[np.isin(left, payment - right)])
    assert (len(kept), kept[LUCKY], kept[UNLUCKY]) == (5, 1, 0)
    assert f"$kept = {LUCKY};" in (root / "strategies" / "lean-lucky.sh").read_text()
    assert f"$kept = {UNLUCKY};" in (root / "strategies" / "lean-unlucky.sh").read_text()


TOUR = "t07 t05 t11 t04 t10 t03 t01 t08 t06 t02 t09"
WAYS = ("full-table", "lean-lucky", "lean-unlucky")
LUCKY, UNLUCKY = 5, 9


def _right_answer(name: str) -> str:
    if name == "settle-payment":
        return SETTLED.replace(" ", "\n") + "\n"
    if name == "plan-tour":
        return TOUR.replace(" ", "\n") + "\n"
    if name == "serve-rates":
        return "1\n"  # the form is right; who answers there is another matter
    if name == "fit-regression":
        return "".join(f"{key} {value}\n" for key, value in re.findall(r"(\w+) => (\S+),", _expected(name)))
    return "".join(f"{line}\n" for line in re.findall(r"'(.*)'", _expected(name)))


def _verify(name: str, workdir: Path, tmp_path: Path) -> tuple[float, int] | None:
    """Return reward and number of tests, or None when the verifier gave no verdict."""
    reward = tmp_path / "reward.json"
    environment = {
        **os.environ,
        "INFRANOISE_NONCE": "n0nce",
        "INFRANOISE_REWARD_FILE": str(reward),
        "INFRANOISE_WORKDIR": str(workdir),
    }
    files = tmp_path / "verifier"
    if not files.exists():
        shutil.copytree(BENCH / name / "verifier", files)
    subprocess.run(["sh", "verify.sh"], cwd=files, env=environment, capture_output=True, timeout=60)
    if not reward.exists():
        return None
    verdict = json.loads(reward.read_text())
    assert verdict["nonce"] == "n0nce"
    return verdict["reward"], verdict["tests"]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    return tmp_path / "app"


@needs_perl
@pytest.mark.parametrize("name", [name for name in NAMES if name != "serve-rates"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_right_answers_pass(name: str, end: str, workdir: Path, tmp_path: Path) -> None:
    (workdir / ANSWERS[name]).write_bytes(_right_answer(name).replace("\n", end).encode())
    verdict = _verify(name, workdir, tmp_path)
    assert verdict is not None
    assert verdict[0] == 1
    assert verdict[1] >= 3


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rates")
    subprocess.run(["perl", BENCH / "serve-rates/app/make-data.pl"], cwd=root, check=True, timeout=60)
    return root / "rates.csv"


@pytest.fixture
def serving(workdir: Path, rates: Path) -> Iterator[Callable[[str], None]]:
    """Run one of the strategies of serve-rates here, and end what it leaves running."""
    (workdir / "rates.csv").symlink_to(rates)

    def run(strategy: str) -> None:
        script = BENCH / "serve-rates" / "strategies" / f"{strategy}.sh"
        subprocess.run(["sh", script], cwd=workdir, check=True, timeout=60)

    yield run
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cmdline"] == ["perl", "server.pl"] and process.info["cwd"] == str(workdir):
            process.kill()


@needs_perl
@pytest.mark.parametrize(("strategy", "reward"), [("look-up", 1), ("preload", 1), ("tidy-up", 0)])
def test_servers(
    strategy: str, reward: float, serving: Callable[[str], None], workdir: Path, tmp_path: Path
) -> None:
    serving(strategy)

    assert _verify("serve-rates", workdir, tmp_path) == (reward, 6)


@needs_perl
@pytest.mark.parametrize("answer", ["", "wrong\n", "unknown\n", "1.0000\n" * 50, "x" * 100_000])
def test_servers_that_answer_wrongly(answer: str, workdir: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (workdir / "port.txt").write_text(f"{server.getsockname()[1]}\n")

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with contextlib.suppress(OSError), client:
                        client.sendall(answer.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        verdict = _verify("serve-rates", workdir, tmp_path)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert verdict is not None
    assert verdict[0] == 0


def _first_digit_changed(text: str) -> str:
    return re.sub(r"\d(?=\d*$)", lambda digit: str((int(digit[0]) + 1) % 10), text, count=1, flags=re.MULTILINE)


def _link(path: Path, right: str) -> None:
    path.with_name("real").write_text(right)
    path.symlink_to("real")


def _file_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


SPOILS: dict[str, Callable[[Path, str], object]] = {
    "missing": lambda path, right: None,
    "empty": lambda path, right: path.touch(),
    "binary": lambda path, right: path.write_bytes(bytes(range(256)) * 100),
    "huge": lambda path, right: os.truncate(path, path.write_text(right) + 2**40),
    "long lines": lambda path, right: path.write_text(right + " " * 60_000 + "x"),
    "digits": lambda path, right: path.write_text("1" * 60_000 + "x"),
    "directory": lambda path, right: path.mkdir(),
    "pipe": lambda path, right: os.mkfifo(path),
    "link": _link,
    "first line only": lambda path, right: path.write_text(right.split("\n")[0] + "\n"),
    "twice": lambda path, right: path.write_text(right * 2),
    "other digit": lambda path, right: path.write_text(_first_digit_changed(right)),
    "no directory": lambda path, right: path.parent.rmdir(),
    "file above": lambda path, right: _file_above(path),
}


@needs_perl
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=list(SPOILS))
def test_wrong_answers_fail(name: str, spoil: Callable[[Path, str], object], workdir: Path, tmp_path: Path) -> None:
    spoil(workdir / ANSWERS[name], _right_answer(name))
    verdict = _verify(name, workdir, tmp_path)
    assert verdict is not None
    assert verdict[0] == 0
    assert verdict[1] >= 3


@needs_perl
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", ["kill -9 $$", "exit 0", "exit 1", "echo 3", "nonsense"])
def test_a_check_that_broke_is_no_verdict(name: str, check: str, workdir: Path, tmp_path: Path) -> None:
    (workdir / ANSWERS[name]).write_text(_right_answer(name))
    shutil.copytree(BENCH / name / "verifier", tmp_path / "verifier")
    (tmp_path / "verifier" / "check.pl").write_text(f"exec 'sh', '-c', '{check}';")
    assert _verify(name, workdir, tmp_path) is None


@needs_perl
@pytest.mark.parametrize("name", NAMES)
def test_data_is_the_same_every_time(name: str, tmp_path: Path) -> None:
    if loaded(BENCH / name).setup is None:
        pytest.skip("the task ships its data")
    written = []
    for place in (tmp_path / "one", tmp_path / "two"):
        place.mkdir()
        subprocess.run(["perl", BENCH / name / "app" / "make-data.pl"], cwd=place, check=True, timeout=60)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        written.append([(path.relative_to(place), path.read_bytes()) for path in files])
    assert written[0]
    assert written[0] == written[1]
