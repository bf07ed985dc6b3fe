from __future__ import annotations

import string
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.analysis import analyse
from pytest_infranoise.gates import Gate
from pytest_infranoise.gates import evaluate
from pytest_infranoise.gates import parse_gate
from tests.builders import DEMO
from tests.builders import Counts
from tests.builders import run_of

TWO_AGENTS: Counts = {
    "good": {"1x": {"t": (9, 1)}, "3x": {"t": (10, 0)}},
    "bad": {"1x": {"t": (1, 8, 1)}, "3x": {"t": (2, 8)}},
}


def judge(text: str, counts: Counts = DEMO, cut_short: str | None = None) -> tuple[bool, str]:
    result = evaluate(parse_gate(text), analyse(run_of(counts, cut_short=cut_short)))
    assert "\n" not in result.line
    return result.holds, result.line


class TestGrammar:
    @pytest.mark.parametrize(
        ("text", "gate"),
        [
            ("infra-rate[3x] <= 2%", Gate("infra-rate", "3x", None, "<=", Decimal("0.02"))),
            ("infra-rate[3x]<=0.02", Gate("infra-rate", "3x", None, "<=", Decimal("0.02"))),
            ("  pass-rate  >  .5 ", Gate("pass-rate", None, None, ">", Decimal("0.5"))),
            ("pass-rate >= 100%", Gate("pass-rate", None, None, ">=", Decimal(1))),
            ("infra-rate <= 0", Gate("infra-rate", None, None, "<=", Decimal(0))),
            ("infra-rate < 2.5 %", Gate("infra-rate", None, None, "<", Decimal("0.025"))),
            ("upper(infra-rate[3x]) <= 5%", Gate("infra-rate", "3x", "upper", "<=", Decimal("0.05"))),
            ("lower ( pass-rate [ 3x ] ) >= 40%", Gate("pass-rate", "3x", "lower", ">=", Decimal("0.4"))),
            ("missing <= 0", Gate("missing", None, None, "<=", Decimal(0))),
            ("missing[uncapped] < 3", Gate("missing", "uncapped", None, "<", Decimal(3))),
            ("delta(3x,1x) >= -3pp", Gate("delta", "3x", None, ">=", Decimal("-0.03"), "1x")),
            (" delta ( 3x , 1x )<=+.5 pp", Gate("delta", "3x", None, "<=", Decimal("0.005"), "1x")),
            ("upper(delta(3x,1x)) > 0pp", Gate("delta", "3x", "upper", ">", Decimal(0), "1x")),
            ("equivalent(3x,1x)", Gate("equivalent", "3x", None, "", Decimal(0), "1x")),
            (" equivalent ( 3x , 1x ) ", Gate("equivalent", "3x", None, "", Decimal(0), "1x")),
            ("calibrated", Gate("calibrated", None, None, "", Decimal(0))),
            ("calibrated[3x]", Gate("calibrated", "3x", None, "", Decimal(0))),
        ],
    )
    def test_understood(self, text: str, gate: Gate) -> None:
        assert parse_gate(text) == gate

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "no comparison"),
            ("infra-rate[3x] 5%", "no comparison"),
            ("infra-rate <= 2% and pass-rate >= 3%", "more than one comparison"),
            ("infra-rate = 2%", "unknown operator '='"),
            ("infra-rate == 2%", "unknown operator '=='"),
            ("infra-rate => 2%", "unknown operator '=>'"),
            ("infra <= 2%", "unknown quantity 'infra', did you mean 'infra-rate'?"),
            ("<= 2%", "unknown quantity ''"),
            ("Infra-Rate <= 2%", "unknown quantity 'Infra-Rate', did you mean 'infra-rate'?"),
            ("infra-rate[3x <= 2%", "'infra-rate[3x' is no QUANTITY[CONFIG]"),
            ("infra-rate[] <= 2%", "no config between the brackets"),
            ("infra-rate[1x][3x] <= 2%", "'infra-rate[1x][3x]' is no QUANTITY[CONFIG]"),
            ("mean(infra-rate) <= 2%", "unknown function 'mean'"),
            ("upper(lower(infra-rate)) <= 2%", "'lower(infra-rate)' is no QUANTITY[CONFIG]"),
            ("upper(infra-rate)[3x] <= 2%", "is no QUANTITY[CONFIG]"),
            ("upper(missing) <= 2", "missing is a count and has no interval"),
            ("infra-rate <=", "no threshold"),
            ("infra-rate <= few", "'few' is not a threshold"),
            ("infra-rate <= -2%", "'-2%' is not a threshold"),
            ("infra-rate <= 2e-2", "'2e-2' is not a threshold"),
            ("infra-rate <= \u0662%", "'\u0662%' is not a threshold"),
            ("infra-rate <= 2", "2 can be read in two ways; for 2 of 100 write 2%"),
            ("infra-rate <= 1", "1 can be read in two ways; for 1 of 100 write 1%"),
            ("infra-rate <= 101%", "101% is more than 100%"),
            ("delta >= -3pp", "delta needs two configs, as in delta(3x,1x)"),
            ("delta[3x] >= -3pp", "delta needs two configs"),
            ("delta(3x) >= -3pp", "'3x' is no pair of configs, as in delta(3x,1x)"),
            ("delta(3x,1x,2x) >= -3pp", "'3x,1x,2x' is no pair of configs"),
            ("delta(3x,) >= -3pp", "'3x,' is no pair of configs"),
            ("delta(3x,3x) >= -3pp", "3x is compared with itself"),
            ("delta(3x,1x) >= -3%", "'-3%' is no difference in percentage points, such as -3pp"),
            ("delta(3x,1x) >= -3", "'-3' is no difference in percentage points"),
            ("delta(3x,1x) >= 101pp", "101pp is more than 100pp"),
            ("delta(3x,1x) >=", "no threshold"),
            ("delta(3x,1x)", "no comparison"),
            ("mean(delta(3x,1x)) >= 0pp", "unknown function 'mean'"),
            ("equivalent(3x,1x) <= 3pp", "equivalent holds or does not, and is compared with nothing"),
            ("upper(equivalent(3x,1x)) <= 3pp", "equivalent holds or does not"),
            ("equivalent", "equivalent needs two configs, as in equivalent(3x,1x)"),
            ("equivalent(3x)", "'3x' is no pair of configs, as in equivalent(3x,1x)"),
            ("calibrated >= 3x", "calibrated holds or does not, and is compared with nothing"),
            ("calibrated[]", "no config between the brackets"),
            ("calibrated(3x)", "no comparison"),
            ("missing <= 2%", "missing is a count of trials, so its threshold is a whole number, not 2%"),
            ("missing <= 0.5", "missing is a count of trials, so its threshold is a whole number, not 0.5"),
        ],
    )
    def test_refused_with_the_reason_and_the_grammar(self, text: str, complaint: str) -> None:
        with pytest.raises(ValueError, match="infra-rate") as refused:
            parse_gate(text)
        assert complaint in str(refused.value)
        assert "write e.g. 'infra-rate[3x] <= 5%'" in str(refused.value)

    def test_unknown_config(self) -> None:
        with pytest.raises(ValueError, match=r"no resource config '3'.*did you mean '3x'\? configs: 1x, 3x$"):
            parse_gate("infra-rate[3] <= 5%").check_configs(["1x", "3x"])

    def test_both_configs_of_a_pair_must_be_known(self) -> None:
        for text in ("delta(3x,2x) >= 0pp", "delta(2x,3x) >= 0pp", "equivalent(2x,1x)", "calibrated[2x]"):
            with pytest.raises(ValueError, match=r"no resource config '2x' in this run"):
                parse_gate(text).check_configs(["1x", "3x"])

    def test_known_config_or_none(self) -> None:
        parse_gate("delta(3x,1x) >= 0pp").check_configs(["1x", "3x"])
        parse_gate("calibrated").check_configs([])
        parse_gate("infra-rate[3x] <= 5%").check_configs(["1x", "3x"])
        parse_gate("infra-rate <= 5%").check_configs([])

    @given(
        st.builds(
            Gate,
            quantity=st.sampled_from(["infra-rate", "pass-rate"]),
            config=st.none()
            | st.text(st.characters(exclude_characters="[]()<>=!~"), min_size=1).map(str.strip).filter(bool),
            bound=st.sampled_from([None, "upper", "lower"]),
            operator=st.sampled_from(["<=", "<", ">=", ">"]),
            threshold=st.decimals(0, 1, places=6),
        )
        | st.builds(
            Gate,
            quantity=st.just("missing"),
            config=st.sampled_from([None, "1x"]),
            bound=st.none(),
            operator=st.sampled_from(["<=", "<", ">=", ">"]),
            threshold=st.integers(0, 10**8).map(Decimal),
        )
        | st.builds(
            Gate,
            quantity=st.just("delta"),
            config=st.sampled_from(["1x", "my-config.2"]),
            bound=st.sampled_from([None, "upper", "lower"]),
            operator=st.sampled_from(["<=", "<", ">=", ">"]),
            threshold=st.decimals(-1, 1, places=6),
            other=st.sampled_from(["3x", "uncapped"]),
        )
        | st.sampled_from(
            [
                Gate("equivalent", "1x", None, "", Decimal(0), "3x"),
                Gate("calibrated", None, None, "", Decimal(0)),
                Gate("calibrated", "1x", None, "", Decimal(0)),
            ]
        )
    )
    def test_a_written_gate_reads_as_the_same_gate(self, gate: Gate) -> None:
        assert parse_gate(str(gate)) == gate

    @given(st.text(st.sampled_from("infra-ratepsmug[]()<>=%. 0123xuldqvcb,+") | st.characters()))
    def test_any_text_is_a_gate_or_a_value_error(self, text: str) -> None:
        try:
            gate = parse_gate(text)
        except ValueError:
            return
        assert parse_gate(str(gate)) == gate

    @given(
        st.tuples(
            st.sampled_from(
                [
                    *("infra-rate", "pass-rate", "missing", "upper(infra-rate)", "rate", "delta", "delta(1x,3x)"),
                    *("lower(delta(1x,3x))", "equivalent(1x,3x)", "equivalent", "calibrated", "delta(1x,,3x)"),
                ]
            ),
            st.sampled_from(["", "[1x]", "[", "[]"]),
            st.sampled_from(["<=", "<", ">", ">=", "=", "<=="]),
            st.text(string.digits + ".%-+e_", max_size=30),
        ).map("".join)
    )
    def test_any_near_miss_is_a_gate_or_a_value_error(self, text: str) -> None:
        try:
            gate = parse_gate(text)
        except ValueError:
            return
        assert parse_gate(str(gate)) == gate


class TestEvaluation:
    @pytest.mark.parametrize(
        ("text", "holds"),
        [
            ("infra-rate[3x] <= 9%", True),
            ("infra-rate[3x] <= 5%", False),
            ("infra-rate[1x] <= 50%", True),
            ("infra-rate[1x] < 50%", False),
            ("infra-rate[1x] >= 50%", True),
            ("infra-rate[1x] > 50%", False),
            ("infra-rate <= 9%", False),
            ("infra-rate <= 50%", True),
            ("pass-rate[uncapped] >= 90%", True),
            ("pass-rate >= 90%", False),
            ("upper(infra-rate[uncapped]) <= 24%", False),
            ("upper(infra-rate[uncapped]) <= 25%", True),
            ("lower(pass-rate[uncapped]) >= 90%", False),
            ("missing <= 0", True),
            ("missing > 0", False),
        ],
    )
    def test_the_demo(self, text: str, holds: bool) -> None:
        assert judge(text)[0] is holds

    def test_an_average_on_the_threshold_holds(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (1, 4), "u": (3, 2), "v": (2, 3)}}}
        assert judge("pass-rate <= 40%", counts)[0]
        assert judge("pass-rate >= 40%", counts)[0]
        assert not judge("pass-rate > 40%", counts)[0]

    def test_infra_errors_count_as_not_passed(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (1, 0, 1)}}}
        assert not judge("pass-rate > 50%", counts)[0]

    def test_every_agent_must_hold_and_the_line_names_the_one_that_does_not(self) -> None:
        holds, line = judge("pass-rate[3x] >= 90%", TWO_AGENTS)
        assert not holds
        assert "does not hold: bad 3x 20.0%" in line
        assert "good" not in line

    def test_every_config_must_hold_and_the_line_names_the_ones_that_do_not(self) -> None:
        holds, line = judge("infra-rate <= 10%")
        assert not holds
        assert "does not hold: 1x 50.0% [" in line
        assert "uncapped" not in line

    def test_a_config_without_a_record_does_not_hold(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (3,)}, "3x": {"t": (0, 0, 0, 3)}}}
        assert judge("infra-rate[1x] <= 5%", counts)[0]
        for text in (
            "infra-rate[3x] <= 5%",
            "infra-rate <= 5%",
            "upper(infra-rate[3x]) <= 100%",
            "pass-rate <= 99%",
        ):
            holds, line = judge(text, counts)
            assert not holds
            assert "3x has no recorded trial" in line

    def test_a_config_that_was_not_run_does_not_hold(self) -> None:
        for text in ("infra-rate[5x] <= 5%", "pass-rate[5x] >= 0", "missing[5x] <= 0"):
            assert not judge(text)[0]
        assert not judge("infra-rate <= 5%", {})[0]

    def test_missing_counts_over_agents_and_configs(self) -> None:
        counts: Counts = {
            "a": {"1x": {"t": (1, 0, 0, 2)}, "3x": {"t": (3,)}},
            "b": {"1x": {"t": (3,)}, "3x": {"t": (2, 0, 0, 1)}},
        }
        assert judge("missing <= 3", counts) == (True, "gate missing <= 3 holds: 3 of 12 planned trials missing")
        assert not judge("missing <= 2", counts)[0]
        assert judge("missing[3x] <= 1", counts)[0]
        assert not judge("missing[1x] <= 1", counts)[0]

    def test_a_point_estimate_says_what_so_few_trials_could_show_at_all(self) -> None:
        holds, line = judge("infra-rate[uncapped] <= 2%")
        assert holds
        assert line == (
            "gate infra-rate[uncapped] <= 2% holds: uncapped 0 of 12, at most 24.3%; "
            "12 trials cannot show 2%: if none is an infra-error, at most 24.3%"
        )
        assert judge("pass-rate[uncapped] >= 90%")[1].endswith(
            "12 trials cannot show 90%: if each passes, at least 75.7%"
        )

    def test_what_could_be_shown_at_all_follows_the_runs_design(self) -> None:
        for design, most in (({"alpha": 0.2}, "12.1%"), ({"target": "population"}, "60.3%")):
            analysis = analyse(run_of(DEMO, design=design))
            line = evaluate(parse_gate("infra-rate[uncapped] <= 2%"), analysis).line
            assert f"uncapped 0 of 12, at most {most}; 12 trials cannot show 2%" in line
            assert line.endswith(f"at most {most}")

    def test_nothing_is_added_where_the_data_could_show_it_or_the_interval_is_asked_for(self) -> None:
        for text in ("infra-rate[uncapped] <= 25%", "pass-rate >= 75%", "upper(infra-rate) <= 2%"):
            assert "cannot show" not in judge(text)[1]

    def test_a_cut_run_is_no_estimate(self) -> None:
        for text in ("infra-rate <= 100%", "missing <= 99"):
            holds, line = judge(text, cut_short="stopped by -x")
            assert not holds
            assert line.endswith("is refused: not an estimate: stopped by -x")

    def test_many_places_are_cut_short_in_the_line(self) -> None:
        counts: Counts = {agent: {"1x": {"t": (0, 0, 1)}} for agent in "abcdefgh"}
        assert "f 1x 100.0% [20.7, 100.0] and 2 more;" in judge("infra-rate <= 1%", counts)[1]


# 60 tasks of which 10 hungry ones crash under 1x and never under 3x, where they fail as often as they crashed.
SAME: Counts = {
    "a": {
        "1x": {f"t{place:02}": (6, 2, 12) if place < 10 else (18, 2, 0) for place in range(60)},
        "3x": {f"t{place:02}": (6, 14, 0) if place < 10 else (18, 2, 0) for place in range(60)},
        "uncapped": {f"t{place:02}": (16, 4, 0) if place < 10 else (18, 2, 0) for place in range(60)},
    }
}


class TestDifferences:
    @pytest.mark.parametrize(
        ("text", "holds"),
        [
            ("delta(3x,1x) >= -4pp", True),
            ("delta(3x,1x) <= 4pp", True),
            ("delta(3x,1x) >= 0pp", False),  # the estimate satisfies it, its interval does not
            ("upper(delta(3x,1x)) >= 0pp", True),
            ("lower(delta(3x,1x)) < 0pp", True),
            ("delta(uncapped,1x) > 5pp", True),
            ("delta(1x,uncapped) < -5pp", True),
            ("delta(uncapped,1x) <= 10pp", False),
            ("equivalent(3x,1x)", True),
            ("equivalent(uncapped,1x)", False),
            ("equivalent(uncapped,3x)", False),
            ("calibrated", True),
            ("calibrated[3x]", True),
            ("calibrated[uncapped]", False),
        ],
    )
    def test_the_interval_decides(self, text: str, holds: bool) -> None:
        assert judge(text, SAME)[0] is holds

    def test_the_margin_is_the_runs(self) -> None:
        for margin, holds in ((0.03, True), (0.01, False)):
            analysis = analyse(run_of(SAME, design={"margin": margin}))
            for text in ("equivalent(3x,1x)", "calibrated[3x]"):
                assert evaluate(parse_gate(text), analysis).holds is holds

    def test_the_line_of_a_delta_says_what_such_data_can_show(self) -> None:
        holds, line = judge("delta(3x,1x) >= -3pp", DEMO)
        assert not holds
        assert (
            "does not hold: +33.3, 95% CI [-5.3, +71.8]; with so many trials it is shown from about +35.6" in line
        )
        assert judge("delta(1x,3x) <= -70pp", DEMO)[1].endswith(
            "so few trials cannot show it, whatever their outcome"
        )

    def test_the_line_of_an_equivalence_says_what_such_data_can_show(self) -> None:
        assert judge("equivalent(3x,1x)", DEMO)[1] == (
            "gate equivalent(3x,1x) does not hold: +33.3, 90% CI [0.0, +64.3] is not inside +-3pp; the smallest "
            "margin shown is +-64.4; so few trials show none below about +-32.2, even with d = 0"
        )
        assert judge("equivalent(3x,1x)", SAME)[1].startswith("gate equivalent(3x,1x) holds: 0.0, 90% CI [-")

    def test_the_line_of_a_calibration_says_why_there_is_none(self) -> None:
        assert judge("calibrated", SAME)[1] == "gate calibrated holds: calibrated: 3x"
        assert "inconclusive: best candidate 3x, shown the same within +-64.4, not +-3pp" in judge("calibrated")[1]
        moved: Counts = {"a": {"1x": {"t": (0, 2, 8), "u": (1, 1, 8)}, "3x": {"t": (8, 2), "u": (9, 1)}}}
        assert "does not hold: the score moves under 3x: +80.0, 95% CI [" in judge("calibrated", moved)[1]
        one: Counts = {"a": {"1x": {"t": (3,)}}}
        assert "nothing to calibrate: no config with higher ceilings" in judge("calibrated", one)[1]
        clean: Counts = {"a": {name: {"t": (3, 3), "u": (4, 2)} for name in ("1x", "3x")}}
        assert "no ceiling is known to cut infra-errors by 50% or more" in judge("calibrated", clean)[1]

    def test_every_agent_must_hold(self) -> None:
        counts: Counts = {"a": SAME["a"], "b": {"1x": {"t": (2,)}, "3x": {"t": (2,)}, "uncapped": {"t": (2,)}}}
        for text in ("delta(3x,1x) >= -4pp", "equivalent(3x,1x)", "calibrated"):
            holds, line = judge(text, counts)
            assert not holds
            assert "does not hold: b: " in line
            assert "a: " not in line.replace("b: ", "")

    def test_without_a_common_task_nothing_is_shown(self) -> None:
        counts: Counts = {"a": {"1x": {"t": (3,)}, "3x": {"u": (3,)}}}
        for text in ("delta(3x,1x) >= -100pp", "equivalent(3x,1x)", "delta(5x,1x) <= 100pp"):
            assert not judge(text, counts)[0]
        assert judge("equivalent(3x,1x)", counts)[1].endswith("no task has trials under both 3x and 1x")
        assert not judge("calibrated", {})[0]

    def test_a_cut_run_shows_no_difference(self) -> None:
        for text in ("delta(3x,1x) >= -4pp", "equivalent(3x,1x)", "calibrated"):
            assert not judge(text, SAME, cut_short="stopped by -x")[0]
