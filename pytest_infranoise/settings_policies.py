"""The options for what is a matter of choice in judging and running trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pytest_infranoise.policies import Policies
from pytest_infranoise.units import parse_memory

MOST_RETRIES = 10

_OOM_CHILD = ("infra", "fail")
_OOM_MODE = ("single", "group")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def add_policy_options(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare the options with their ini twins."""
    group.addoption(
        "--infranoise-oom-child",
        choices=_OOM_CHILD,
        help="What it means without a pass when the kernel kills a process for memory that is not the agent's main "
        "one: infra (the default), an infra-error; or fail, which leaves it to the verifier.",
    )
    group.addoption(
        "--infranoise-oom-mode",
        choices=_OOM_MODE,
        help="Which processes die when memory runs out: single (the default), the kernel's victim alone; or group, "
        "all of the trial, which ends it, as on Kubernetes.",
    )
    group.addoption(
        "--infranoise-retries",
        type=int,
        metavar="N",
        help="Further attempts at a trial that ended as an infra-error with its outcome unknown (default: 0). "
        "Rates are of first attempts.",
    )
    group.addoption(
        "--infranoise-memory-reserve",
        metavar="SIZE",
        help="Memory to keep free on the engine's host, e.g. 1G or 5%%: when less is available, the trial furthest "
        "above its floor is ended as infra-error host-pressure. Default: 5%% of the memory, 500M at most; 0 turns "
        "this off.",
    )
    group.addoption(
        "--infranoise-allow-host-port",
        metavar="PORT[,PORT]",
        help="TCP ports of the engine's host that trials with a network may reach, e.g. of a proxy or a mirror of "
        "packages; by default none.",
    )
    parser.addini(
        "infranoise_allow_host_port", "ports of the host that trials may reach", type="string", default=""
    )
    parser.addini("infranoise_oom_child", "infra or fail (see --infranoise-oom-child)", type="string", default="")
    parser.addini("infranoise_oom_mode", "single or group (see --infranoise-oom-mode)", type="string", default="")
    parser.addini("infranoise_retries", "further attempts (see --infranoise-retries)", type="int", default=None)
    parser.addini("infranoise_memory_reserve", "memory to keep free on the host", type="string", default="")


def read_policies(
    config: pytest.Config, toml: Mapping[str, Any], file: Path | None
) -> tuple[Policies, tuple[str, ...]]:
    """Return the choices, and what is wrong with those that were not typed.

    Raises:
        ValueError: one that was typed is wrong.
    """
    chosen: dict[str, Any] = {}
    errors = []
    for field in fields(Policies):
        name = field.name
        key, typed = name.replace("_", "-"), getattr(config.option, f"infranoise_{name}")
        places = (
            (typed, f"--infranoise-{key}"),
            (_ini(config, f"infranoise_{name}"), f"ini value infranoise_{name}"),
            (toml.get(key), f"{file}: {key}"),
        )
        given, where = next(((value, place) for value, place in places if value not in (None, "")), (None, ""))
        if given is None:
            continue
        try:
            chosen[name] = _PARSERS[name](str(given))
        except ValueError as error:
            if typed is not None:
                raise ValueError(f"{where}: {error}") from None
            errors.append(f"{where}: {error}")
    return Policies(**chosen), tuple(errors)


def _ini(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise ValueError(f"ini value {name}: {error}") from None


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is neither {' nor '.join(choices)}")
        return text

    return parse


def _retries(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > MOST_RETRIES:
        raise ValueError(f"{text!r} is not a whole number from 0 to {MOST_RETRIES}")
    return int(text)


def parse_reserve(text: str) -> int | float:
    """Return the bytes or the share in ``1G``, ``5%`` or ``0``.

    Raises:
        ValueError: it is no such text; the message is fit to show to a user.
    """
    share = _SHARE.fullmatch(text.strip())
    if share is None:
        try:
            return parse_memory(text)
        except ValueError:
            raise ValueError(f"{text!r} is no amount of memory; give e.g. 1G, 5%, or 0 for none") from None
    if not 0 < float(share[1]) < 100:
        raise ValueError(f"{text!r} is not above 0 % and below 100 %")
    return float(share[1]) / 100


def parse_ports(text: str) -> tuple[int, ...]:
    """Return the ports in ``3128`` or ``3128, 8081``; brackets around them are TOML's.

    Raises:
        ValueError: it is no such text; the message is fit to show to a user.
    """
    words = [word.strip() for word in text.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) <= 5 and 0 < int(word) < 2**16 for word in words):
        raise ValueError(f"{text!r} is no list of ports from 1 to {2**16 - 1}; give e.g. 3128 or 3128,8081")
    return tuple(sorted({int(word) for word in words}))


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "oom_child": _one_of(_OOM_CHILD),
    "oom_mode": _one_of(_OOM_MODE),
    "retries": _retries,
    "memory_reserve": parse_reserve,
    "allow_host_port": parse_ports,
}
