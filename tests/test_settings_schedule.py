from __future__ import annotations

import pytest

from pytest_infranoise.settings import read_settings
from pytest_infranoise.settings_schedule import DEFAULT_SCHEDULE
from pytest_infranoise.settings_schedule import ScheduleSettings

CHOSEN = ScheduleSettings("packed", "ceiling", 1.5, 12 * 1024**3, 0.5)


def test_without_a_word_the_order_is_shuffled_and_the_host_is_what_it_is(pytester: pytest.Pytester) -> None:
    assert read_settings(pytester.parseconfig()).schedule == DEFAULT_SCHEDULE == ScheduleSettings()


def test_options_ini_and_toml_say_the_same(pytester: pytest.Pytester) -> None:
    options = {"order": "packed", "admit": "ceiling", "host-cpus": "1.5", "host-memory": "12G", "heartbeat": "0.5"}
    typed = [f"--infranoise-{name}={value}" for name, value in options.items()]
    assert read_settings(pytester.parseconfig(*typed)).schedule == CHOSEN

    ini = [f"-o=infranoise_{name.replace('-', '_')}={value}" for name, value in options.items()]
    assert read_settings(pytester.parseconfig(*ini)).schedule == CHOSEN

    pytester.path.joinpath("infranoise.toml").write_text("order = 'packed'\nadmit = 'ceiling'\n", "utf-8")
    assert read_settings(pytester.parseconfig()).schedule == ScheduleSettings("packed", "ceiling")
    assert read_settings(pytester.parseconfig("--infranoise-order=blocks")).schedule.order == "blocks"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--infranoise-host-cpus=many", "--infranoise-host-cpus: 'many' is not a number of CPUs"),
        ("--infranoise-host-cpus=0", "--infranoise-host-cpus: '0' is not a number of CPUs"),
        ("--infranoise-host-cpus=inf", "--infranoise-host-cpus: 'inf' is not a number of CPUs"),
        ("--infranoise-host-memory=lots", "--infranoise-host-memory: 'lots' is not an amount of memory"),
        ("--infranoise-heartbeat=often", "--infranoise-heartbeat: 'often' is not a number of minutes"),
        ("--infranoise-heartbeat=-1", "--infranoise-heartbeat: '-1' is not a number of minutes"),
        ("--infranoise-host-memory=1M", "--infranoise-host-memory: '1M' is less memory than one container needs"),
    ],
)
def test_what_was_typed_wrong_is_told_at_once(pytester: pytest.Pytester, argument: str, message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        read_settings(pytester.parseconfig(argument))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("infranoise_order=random", "ini value infranoise_order: 'random' is none of shuffled, packed, blocks"),
        ("infranoise_admit=both", "ini value infranoise_admit: 'both' is none of floor, ceiling"),
        ("infranoise_host_memory=lots", "ini value infranoise_host_memory: 'lots' is not an amount of memory"),
    ],
)
def test_a_wrong_ini_value_waits_until_there_are_trials(
    pytester: pytest.Pytester, value: str, message: str
) -> None:
    settings = read_settings(pytester.parseconfig("-o", value))

    assert settings.schedule == DEFAULT_SCHEDULE
    assert any(error.startswith(message) for error in settings.toml_errors)


def test_a_wrong_word_in_the_settings_file_is_named(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("infranoise.toml").write_text("order = 'best'\nadmit = ['floor']\n", "utf-8")

    errors = read_settings(pytester.parseconfig()).toml_errors

    assert [error.partition("infranoise.toml: ")[2] for error in errors] == [
        "order: 'best' is none of shuffled, packed, blocks",
        "admit: ['floor'] is none of floor, ceiling",
    ]
