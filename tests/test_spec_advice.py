from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.analysis import analyse
from pytest_infranoise.model import Cause
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Record
from pytest_infranoise.model import Verdict
from pytest_infranoise.peaks import usages
from pytest_infranoise.spec_advice import TaskAdvice
from pytest_infranoise.spec_advice import advise
from pytest_infranoise.spec_file import CannotWrite
from pytest_infranoise.spec_file import spec_document
from pytest_infranoise.spec_file import write_spec
from pytest_infranoise.units import parse_memory
from tests.builders import key
from tests.measured import MIB
from tests.measured import SPEC
from tests.measured import killed
from tests.measured import needing
from tests.measured import run_of_records
from tests.measured import trial
from tests.measured import world

ALL = ("1x", "2x", "3x", "uncapped")


def one(records: Sequence[Record], chosen: str | None = None, host_cpus: float | None = 8.0) -> TaskAdvice:
    (found,) = advise(usages(run_of_records(records)), chosen, host_cpus)
    return found


def under(configs: Sequence[str], *needs: float) -> list[Record]:
    return [needing(key("t", config, place), need) for config in configs for place, need in enumerate(needs)]


class TestMemoryCeiling:
    def test_the_smallest_that_killed_nothing(self) -> None:
        found = one(under(ALL, 0.5, 0.6, 1.4))
        assert found.memory_ceiling.value == 2 * SPEC
        assert found.memory_ceiling.reason == "none of 3 trials killed under it; largest need seen 179 MiB"

    def test_never_below_the_calibrated_config_s(self) -> None:
        assert one(under(ALL, 0.5, 0.6, 0.7)).memory_ceiling.value == SPEC
        assert one(under(ALL, 0.5, 0.6, 0.7), "3x").memory_ceiling.value == 3 * SPEC

    def test_a_need_seen_under_a_higher_ceiling_counts(self) -> None:
        records = [*under(("1x", "2x"), 0.5, 0.6, 0.7), *under(("3x",), 2.5, 0.6, 0.7)]
        assert one(records).memory_ceiling.value == 3 * SPEC

    def test_from_needs_where_only_uncapped_trials_lived(self) -> None:
        found = one(under(ALL, 4.0, 4.0, 5.0)).memory_ceiling
        assert found.value == 832 * MIB  # 5 x 128 x 1.25 in steps of 64
        assert found.reason.startswith("not run under this ceiling")

    @pytest.mark.parametrize(
        ("records", "reason"),
        [
            (under(("1x", "2x", "3x"), 4.0, 4.0, 5.0), "killed under every ceiling that was run, up to 384 MiB"),
            (under(("1x",), 0.5, 0.6), "fewer than 3 trials ended with a verdict"),
            (
                [replace(entry, details={}) for entry in under(("1x",), 0.5, 0.5, 0.5)],
                "no record states the memory",
            ),
            (
                [*under(("1x",), 2, 2, 2), *(trial(key("t", "uncapped", place), peak=3) for place in range(3))],
                "what they needed is not known: their peaks count page cache",
            ),
            (
                [*under(("1x",), 0.5, 0.6, 0.7), needing(key("t", "uncapped"), 3.0)],
                "fewer than 3 trials ended with a verdict",
            ),
        ],
    )
    def test_blank_with_a_reason(self, records: list[Record], reason: str) -> None:
        found = one(records).memory_ceiling
        assert found.value is None
        assert reason in found.reason

    def test_a_host_that_ran_out_says_nothing_about_the_task(self) -> None:
        fields: dict[str, Any] = {"cause": Cause.HOST_PRESSURE, "flags": (Flag.OOM_KILLS,)}
        pressed = trial(key("t", "uncapped", 9), Verdict.INFRA_ERROR, 2.0, **fields)
        found = one([*under(("1x", "uncapped"), 2.0, 2.0, 2.0), pressed]).memory_ceiling
        assert found.value is None
        assert "the host ran out of memory" in found.reason


class TestMemoryFloor:
    def test_the_spec_where_trials_work_with_it(self) -> None:
        found = one(under(ALL, 0.2, 0.3, 2.5)).memory_floor
        assert found.value == SPEC
        assert found.reason.startswith("the spec; 10 passing trials needed 38.4 MiB")

    def test_more_where_half_of_the_passes_needed_more(self) -> None:
        assert one(under(ALL, 1.5, 1.6, 0.3)).memory_floor.value == 192 * MIB

    @pytest.mark.parametrize(
        ("peak", "value", "reason"),
        [
            (0.7, SPEC, "stayed below it, page cache included"),
            (1.0, SPEC, "stayed below it, page cache included"),
            (2.0, None, "they stand at the ceiling, as page cache alone makes them"),
            (1.5, None, "the only peaks count page cache: what"),
            (None, None, "memory was not measured"),
        ],
    )
    def test_peaks_bound_a_need_and_are_none(self, peak: float | None, value: int | None, reason: str) -> None:
        found = one([trial(key("t", "2x", place), peak=peak) for place in range(3)]).memory_floor
        assert found.value == value
        assert reason in found.reason

    def test_killed_everywhere(self) -> None:
        found = one([killed(key("t", config, place)) for config in ("1x", "2x") for place in range(3)])
        assert found.memory_floor.value is None
        assert "without a kill" in found.memory_floor.reason

    def test_a_task_that_never_passes_still_has_one(self) -> None:
        records = [needing(key("t", "2x", place), 1.2, Verdict.FAIL) for place in range(3)]
        found = one(records).memory_floor
        assert found.value == 160 * MIB
        assert "3 trials with a verdict" in found.reason


class TestCpus:
    def test_the_smallest_that_nobody_was_short_under(self) -> None:
        found = one(under(ALL, 0.5, 0.5, 0.5))
        assert (found.cpus_floor.value, found.cpus_ceiling.value) == (1.0, 1.0)
        assert one(under(ALL, 0.5, 0.5, 0.5), "3x").cpus_ceiling.value == 3.0

    @pytest.mark.parametrize("flag", [Flag.STARVED, Flag.TIMED_OUT])
    def test_trouble_asks_for_more(self, flag: Flag) -> None:
        records = under(ALL, 0.5, 0.5, 0.5)
        records[0] = replace(records[0], flags=(flag,))
        assert one(records).cpus_ceiling.value == 2.0
        found = one(records, host_cpus=1.0).cpus_ceiling
        assert found.value is None
        assert "the host's 1 cores" in found.reason

    def test_blank_with_a_reason(self) -> None:
        starved = [replace(entry, flags=(Flag.STARVED,)) for entry in under(("1x", "2x"), 0.5, 0.5, 0.5)]
        assert "6 of 6 trials short of CPU" in one(starved).cpus_ceiling.reason
        assert (
            "only trials without a CPU ceiling"
            in one([*starved, *under(("uncapped",), 0.5, 0.5, 0.5)], host_cpus=None).cpus_ceiling.reason
        )
        assert "fewer than 3" in one(under(("1x",), 0.5)).cpus_ceiling.reason
        dark = one([replace(trial(key("t")), details={})])
        assert dark.cpus_floor.value is dark.cpus_ceiling.value is None


def test_what_reading_back_rounds_puts_no_floor_above_its_ceiling() -> None:
    odd = 100_000_001
    records = [trial(key("t", "1x", place), need=0.5, peak=0.6, spec=odd, cpus=1.0) for place in range(3)]
    for place, entry in enumerate(records):
        limits = {"memory": odd // 4096 * 4096, "cpus": 0.99}
        records[place] = replace(entry, details={**entry.details, "limits": limits})
    found = one(records)
    assert found.memory_floor.value == found.memory_ceiling.value == odd
    assert found.cpus_floor.value == found.cpus_ceiling.value == 1.0


def test_a_task_that_changed_has_no_recommendation() -> None:
    records = under(("1x",), 0.5, 0.5, 0.5)
    found = one([replace(records[0], task_hash="other"), *records[1:]])
    assert not found.complete
    assert "changed during the run (2 contents)" in found.memory_ceiling.reason


NEEDS = st.one_of(st.none(), st.floats(0.05, 6.0))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(ALL),
            st.sampled_from(list(Verdict)),
            NEEDS,
            NEEDS,
            st.sampled_from([(), (Flag.OOM_KILLS,), (Flag.STARVED,), (Flag.TIMED_OUT,)]),
        ),
        min_size=1,
        max_size=14,
    ),
    st.sampled_from([None, *ALL]),
)
def test_every_recommendation_is_one_that_can_be_used(rows: list[tuple[Any, ...]], chosen: str | None) -> None:
    records = [
        trial(key("t", config, place), verdict, need, peak=peak, flags=flags)
        for place, (config, verdict, need, peak, flags) in enumerate(rows)
    ]
    found = one(records, chosen)
    for part in (found.memory_floor, found.memory_ceiling, found.cpus_floor, found.cpus_ceiling):
        assert part.reason
    floor, ceiling = found.memory_floor.value, found.memory_ceiling.value
    if floor is not None:
        assert floor >= SPEC
    if floor is not None and ceiling is not None:
        assert floor <= ceiling
    kills = [entry.memory_ceiling for entry in found.evidence if entry.at_ceiling]
    assert ceiling is None or ceiling not in kills


class TestFile:
    def document(self, **meta: Any) -> tuple[dict[str, Any], tuple[TaskAdvice, ...]]:
        run = run_of_records(world(12, 4), **meta)
        advice = advise(usages(run), "3x", 8.0)
        return spec_document(analyse(run), advice, "3x"), advice

    @pytest.mark.parametrize("name", ["spec.yaml", "spec.yml", "spec.json", "spec.JSON"])
    def test_says_the_same_in_every_format(self, tmp_path: Path, name: str) -> None:
        document, advice = self.document()
        write_spec(tmp_path / name, document, force=False)
        text = (tmp_path / name).read_text("ascii")
        back = json.loads(text) if name.lower().endswith("json") else yaml.safe_load(text)
        assert back == document
        assert list(back["tasks"]) == [task.task for task in advice]
        assert os.listdir(tmp_path) == [name]  # noqa: PTH208

    def test_amounts_are_what_task_files_take(self) -> None:
        document, advice = self.document()
        for task in advice:
            memory = document["tasks"][task.task]["resources"]["memory"]
            for end, part in (("floor", task.memory_floor), ("ceiling", task.memory_ceiling)):
                assert (None if memory[end] is None else parse_memory(memory[end])) == part.value

    def test_names_run_evidence_and_reasons(self) -> None:
        document, _ = self.document(cut_short="-x stopped it")
        assert document["run"]
        assert document["not_an_estimate"] == "-x stopped it"
        assert document["calibration"][0]["agent"] == "scripted"
        hungry = document["tasks"]["task-00"]
        assert {entry["config"] for entry in hungry["evidence"]} == {"1x", "3x", "uncapped"}
        assert hungry["evidence"][0]["trials"] == 4
        assert hungry["reasons"]["memory"]["ceiling"]

    def test_an_existing_file_is_kept_unless_forced(self, tmp_path: Path) -> None:
        target = tmp_path / "spec.yaml"
        target.write_text("mine")
        with pytest.raises(CannotWrite, match="exists already; --force overwrites it"):
            write_spec(target, {"schema": 1}, force=False)
        assert target.read_text() == "mine"
        write_spec(target, {"schema": 1}, force=True)
        assert target.read_text() == "schema: 1\n"
        assert stat.S_IMODE(target.stat().st_mode) & 0o400

    def test_a_file_made_in_the_meantime_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = tmp_path / "spec.yaml"
        monkeypatch.setattr(
            "pytest_infranoise.spec_file.check_target", lambda path, force: target.write_text("theirs")
        )
        with pytest.raises(CannotWrite, match="exists already"):
            write_spec(target, {"schema": 1}, force=False)
        assert target.read_text() == "theirs"
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            ("spec.txt", "the suffix says the format"),
            ("none/spec.yaml", "no directory"),
            ("dir.yaml", "is a directory"),
        ],
    )
    def test_what_cannot_be_written_to(self, tmp_path: Path, name: str, complaint: str) -> None:
        (tmp_path / "dir.yaml").mkdir()
        with pytest.raises(CannotWrite, match=complaint):
            write_spec(tmp_path / name, {}, force=True)
