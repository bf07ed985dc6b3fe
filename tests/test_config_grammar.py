from __future__ import annotations

import json
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from pytest_infranoise.config_grammar import GRAMMAR
from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.config_grammar import format_config
from pytest_infranoise.config_grammar import parse_config
from pytest_infranoise.config_grammar import parse_configs
from pytest_infranoise.config_tables import configs_of_tables
from pytest_infranoise.model import Amount
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from tests.config_strategies import built_in
from tests.config_strategies import described
from tests.config_strategies import tried

MIB = 1024**2


# What is written


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("1x", ResourceConfig("1x", Rule(1.0, 1.0), Rule(1.0, 1.0))),
        ("2.50x", ResourceConfig("2.5x", Rule(1.0, 2.5), Rule(1.0, 2.5))),
        ("uncapped", ResourceConfig("uncapped", Rule(1.0, None), Rule(1.0, None))),
        ("task", ResourceConfig("task", Rule(own=True), Rule(own=True))),
        ("n:memory=1x..5x,cpus=1x..1x,time=1.5x", ResourceConfig("n", Rule(1.0, 1.0), Rule(1.0, 5.0), 1.5)),
        ("n:time=0.5x", ResourceConfig("n", Rule(1.0, 1.0), Rule(1.0, 1.0), 0.5)),
        ("n:memory=5x", ResourceConfig("n", Rule(1.0, 1.0), Rule(1.0, 5.0))),
        ("n:cpus=uncapped", ResourceConfig("n", Rule(1.0, None), Rule(1.0, 1.0))),
        ("n:memory=task", ResourceConfig("n", Rule(1.0, 1.0), Rule(own=True))),
        ("n:memory=0.5x..0.5x", ResourceConfig("n", Rule(1.0, 1.0), Rule(0.5, 0.5))),
        (
            " n : memory = 512M .. 1.5 GiB , cpus = 0.5 .. uncapped ",
            ResourceConfig("n", Rule(Amount(0.5), None), Rule(Amount(512 * MIB), Amount(1536 * MIB))),
        ),
        ("n:memory=1x..512M,cpus=1..2x", ResourceConfig("n", Rule(Amount(1.0), 2.0), Rule(1.0, Amount(512 * MIB)))),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, config: ResourceConfig) -> None:
    assert parse_config(text) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5x", "a ceiling below the floor of 1x"),
        ("0x", "0x of a resource is nothing"),
        ("n:memory=512M", "could be both ends or the ceiling alone; write 512M..512M or 1x..512M"),
        ("n:memory=512..1024", "'512' is neither a multiple such as 1.5x nor an amount such as 512M"),
        ("n:cpus=1x..512M", "'512M' is neither a multiple such as 1.5x nor an amount such as 2"),
        ("n:memory=1x..2x..3x", "'2x..3x' is neither"),
        ("n:memory=..2x", "'' is neither"),
        ("n:memory=uncapped..2x", "'uncapped' is neither"),
        ("n:memory=1x..0M", "0M is not above 0"),
        ("n:memory=1x..2048T", "2048T is not above 0 and at most 1024T"),
        ("n:memory=1x..9999999999999999G", "is not above 0 and at most 1024T"),
        ("n:memory=3x..1x", "the floor 3x is above the ceiling 1x"),
        ("n:memory=2G..512M", "the floor 2G is above the ceiling 512M"),
        ("n:memory=\N{ARABIC-INDIC DIGIT THREE}x..5x", "neither a multiple"),
        ("n:time=90s", "write a multiple above 0x"),
        ("n:time=0x", "write a multiple above 0x"),
        ("n:time=101x", "at most 100x"),
        ("n:ram=1x..2x", "'ram=1x..2x' sets none of memory, cpus, time"),
        ("n:", "'' sets none of memory, cpus, time"),
        ("n:memory=1x..2x,3x", "'3x' sets none of memory, cpus, time; repeat the option for another config"),
        ("n:memory=1x..2x,memory=3x", "memory is given twice"),
        ("1x,n:memory=3x", "a value with ':' is exactly one config"),
        ("3x:memory=1x..2x", "'3x' cannot be a config's name"),
        ("task:time=2x", "'task' is reserved"),
        ("Uncapped:time=2x", "'Uncapped' is reserved"),
        ("../n:time=2x", "'../n' cannot be a config's name"),
        ("a[b]:time=2x", "'a[b]' cannot be a config's name"),
        ("a b:time=2x", "'a b' cannot be a config's name"),
        (f"{'n' * 41}:time=2x", "cannot be a config's name"),
        (":time=2x", "'' cannot be a config's name"),
        ("taks", "unknown resource config 'taks'; did you mean 'task'?"),
        ("3X", "unknown resource config '3X'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_grammar(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="resource config") as raised:
        parse_config(text)

    assert message in str(raised.value)
    assert str(raised.value).endswith(GRAMMAR)
    assert "\n" not in str(raised.value)


def test_a_value_with_a_colon_is_one_config_and_any_other_a_list() -> None:
    configs = parse_configs(["1x, 3x", "ram:memory=1x..5x,cpus=1x..1x", "uncapped"])

    assert [config.name for config in configs] == ["1x", "3x", "ram", "uncapped"]
    with pytest.raises(ValueError, match="'ram' is given twice"):
        parse_configs(["ram:memory=5x", "ram:memory=6x"])


@given(described | built_in)
@settings(deadline=None)
def test_a_config_is_read_back_as_it_was_written(config: ResourceConfig) -> None:
    assert parse_config(format_config(config)) == config
    assert parse_configs([format_config(config)]) == (config,)


@given(described | built_in)
@settings(deadline=None)
def test_run_json_says_what_a_config_is(config: ResourceConfig) -> None:
    entry = json.loads(json.dumps(describe_config(config)))

    assert entry["name"] == config.name
    assert entry["time"] == config.time
    assert parse_config(entry["option"]) == config
    for resource, rule in (("cpus", config.cpus), ("memory", config.memory)):
        told = entry[resource]
        if isinstance(rule.floor, float):
            assert told["floor"] == rule.floor
        if rule.own:
            assert told["ceiling"] == "task"
        elif not isinstance(rule.ceiling, Amount):
            assert told["ceiling"] == rule.ceiling
        else:
            assert isinstance(told["ceiling"], str)


@given(st.text(max_size=40) | st.from_regex(r"[a-z]{1,3}:[a-z0-9=.,x]{0,20}", fullmatch=True))
@settings(deadline=None)
def test_any_text_is_a_config_or_one_clear_error(text: str) -> None:
    config, error = tried(lambda: parse_config(text))

    if config is None:
        assert error.endswith(GRAMMAR)
    else:
        assert parse_config(format_config(config)) == config


# Tables of infranoise.toml


def test_tables_may_extend_each_other_and_what_is_built_in() -> None:
    configs, errors = configs_of_tables(
        {
            "slower": {"extends": "slow", "memory": "task"},
            "slow": {"extends": "3x", "time": "1.5x"},
            "ram": {"memory": "1x..5x"},
            "copy": {"extends": "ram"},
        }
    )

    assert errors == []
    assert configs == {
        "slow": ResourceConfig("slow", Rule(1.0, 3.0), Rule(1.0, 3.0), 1.5),
        "slower": ResourceConfig("slower", Rule(1.0, 3.0), Rule(own=True), 1.5),
        "ram": ResourceConfig("ram", Rule(1.0, 1.0), Rule(1.0, 5.0)),
        "copy": ResourceConfig("copy", Rule(1.0, 1.0), Rule(1.0, 5.0)),
    }
    assert parse_configs(["ram,1x,slow"], configs) == (configs["ram"], parse_config("1x"), configs["slow"])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (3, "configs: write one table for each config: [configs.NAME]"),
        ({"a": 3}, "configs.a: write a table: [configs.a]"),
        ({"a": {}}, "configs.a: sets nothing"),
        ({"a": {"memroy": "1x..2x"}}, "configs.a: unknown key 'memroy'; did you mean 'memory'?"),
        ({"a": {"memory": 3}}, 'configs.a.memory: 3 is not a text; write e.g. "1x..512M"'),
        ({"a": {"time": 1.5}}, 'configs.a.time: 1.5 is not a text; write e.g. "1.5x"'),
        ({"a": {"extends": ["3x"]}}, "configs.a.extends: ['3x'] is not a text"),
        ({"a": {"memory": "512M"}}, "configs.a: memory=512M: one amount could be both ends or the ceiling alone"),
        ({"a": {"extends": "b"}}, "configs.a.extends: unknown config 'b'; write Kx"),
        ({"a": {"extends": "0.5x"}}, "configs.a.extends: a ceiling below the floor"),
        ({"3x": {"memory": "1x..2x"}}, "configs: '3x' cannot be a config's name"),
        ({"task": {"memory": "1x..2x"}}, "configs: 'task' is reserved"),
        ({"a": {"extends": "a"}}, "configs: a -> a extend each other in a circle"),
    ],
)
def test_a_wrong_table_is_one_error(tables: object, message: str) -> None:
    configs, errors = configs_of_tables(tables)

    assert configs == {}
    assert len(errors) == 1
    assert errors[0].startswith(message)


def test_a_circle_is_told_and_leaves_other_tables_alone() -> None:
    configs, errors = configs_of_tables(
        {"a": {"extends": "b"}, "b": {"extends": "c"}, "c": {"extends": "a"}, "d": {"memory": "2x"}}
    )

    assert list(configs) == ["d"]
    assert "configs: a -> b -> c -> a extend each other in a circle; remove one `extends`" in errors


def test_one_name_has_one_meaning() -> None:
    named, _ = configs_of_tables({"ram": {"memory": "1x..5x"}})

    with pytest.raises(ValueError, match=r"'ram' is also a config of infranoise\.toml"):
        parse_config("ram:memory=1x..6x", named)
    with pytest.raises(ValueError, match="unknown resource config 'rma'; did you mean 'ram'"):
        parse_config("rma", named)


# What the docs say


DOCS = (Path(__file__).parents[1] / "docs" / "resource-configs.md").read_text("utf-8")


@pytest.mark.parametrize("text", sorted(set(re.findall(r"\b((?:memory|cpus)=[^\s`,]+)(?=`)", DOCS))))
def test_every_range_in_the_docs_is_what_they_say(text: str) -> None:
    if f"`{text}`) is refused" in DOCS:
        with pytest.raises(ValueError, match="one amount"):
            parse_config(f"n:{text}")
    else:
        assert parse_config(f"n:{text}").name == "n"


def test_the_table_and_the_command_in_the_docs_are_configs() -> None:
    table = tomllib.loads(DOCS.partition("```toml\n")[2].partition("```")[0])
    named, errors = configs_of_tables(table["configs"])
    assert errors == []
    assert [config.name for config in parse_configs(table["resource-configs"], named)] == ["1x", "ram5", "slow"]
    command = shlex.split(re.findall(r"^pytest .*", DOCS, re.MULTILINE)[0])
    values = [value for option, value in pairwise(command) if option == "--resource-config"]
    assert [config.name for config in parse_configs(values)] == ["1x", "uncapped", "ram5"]
