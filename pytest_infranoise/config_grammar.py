"""The grammar of resource configs: texts and tables in ``infranoise.toml`` to configs, and back.

A value of ``--resource-config`` with a ``:`` is exactly one config, any other a comma list of names:

- ``Kx`` (``1x``, ``2.5x``): floor 1x, ceiling K times the spec;
- ``uncapped``: floor 1x, no ceiling;
- ``task``: floor and ceiling that the task states itself; where it states one amount, that is both, as in ``1x``;
- ``NAME:memory=RANGE,cpus=RANGE,time=Kx``: each resource by itself; one that is left out is ``1x..1x``;
- a name from ``[configs.NAME]``, a table with the same keys and ``extends``, the config that it starts from.

A RANGE is ``FLOOR..CEILING``. Either end is a multiple of the spec (``1.5x``) or an amount (``512M``; ``2`` cores),
and the ceiling may be ``uncapped``. Without ``..`` it means what the config of that name does: ``5x`` is
``1x..5x``. A single amount is refused, because it could as well be both ends as the ceiling alone. ``time``
multiplies the agent's timeout; setup and verifier are not the agent's, and their time is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from pytest_infranoise.model import Amount
from pytest_infranoise.model import ResourceConfig
from pytest_infranoise.model import Rule
from pytest_infranoise.units import parse_memory

DEFAULT_CONFIGS = ("1x", "3x", "uncapped")
GRAMMAR = (
    "write Kx (floor 1x, ceiling K times the spec, e.g. 1x or 3x), uncapped (floor 1x, no ceiling), task (what the "
    "task states), a name from [configs.NAME] in infranoise.toml, or NAME:memory=1x..5x,cpus=1x..1x,time=1.5x (a "
    "resource's floor..ceiling in multiples of the spec or amounts such as 512M or 2, a ceiling also uncapped)"
)
CONFIG_KEYS = ("memory", "cpus", "time")
UNCAPPED = "uncapped"
TASK = "task"
RESERVED = (UNCAPPED, TASK)

STRICT = Rule(1.0, 1.0)
MAX_MEMORY = 1024**5
MAX_CPUS = 4096
MAX_TIME = 100

_MULTIPLE = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)x")
_MEMORY = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,9})?\s?(?:[kmgt](?:i?b)?|b)", re.ASCII | re.IGNORECASE)
_CORES = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,39}")
_UNITS = (("T", 1024**4), ("G", 1024**3), ("M", 1024**2), ("K", 1024), ("B", 1))
EXAMPLES = {"memory": "512M", "cpus": "2"}


class UnknownConfig(ValueError):
    """A config is chosen by a name that nobody defines."""


def parse_configs(
    values: Iterable[str], named: Mapping[str, ResourceConfig] | None = None
) -> tuple[ResourceConfig, ...]:
    """Return the configs that values of ``--resource-config`` choose, in order.

    Args:
        values: comma lists of names, or single configs with a ``:``.
        named: the configs of ``infranoise.toml``.

    Raises:
        ValueError: one is wrong, unknown (``UnknownConfig``) or given twice (``1.0x`` is ``1x``), or there is none.
    """
    configs: dict[str, ResourceConfig] = {}
    for value in values:
        for text in [value] if ":" in value else value.split(","):
            config = parse_config(text, named)
            if config.name in configs:
                raise ValueError(f"resource config {config.name!r} is given twice")
            configs[config.name] = config
    if not configs:
        raise ValueError(f"no resource config given; {GRAMMAR}")
    return tuple(configs.values())


def parse_config(text: str, named: Mapping[str, ResourceConfig] | None = None) -> ResourceConfig:
    """Return the one config that ``text`` names or describes.

    Raises:
        ValueError: there is no such config (``UnknownConfig``), or it contradicts itself; the message has the
            grammar.
    """
    text = text.strip()
    try:
        if ":" in text:
            return _described(text, named or {})
        config = built_in(text) or (named or {}).get(text)
    except ValueError as error:
        raise ValueError(f"resource config {text!r}: {error}; {GRAMMAR}") from None
    if config is None:
        raise UnknownConfig(
            f"unknown resource config {text!r}; {near_match(text, [*(named or {}), *RESERVED])}{GRAMMAR}"
        )
    return config


def near_match(text: str, known: Iterable[str]) -> str:
    """Return a hint at what may have been meant, empty or ending in a space."""
    import difflib  # here, because most pytest runs have no mistake to tell

    near = difflib.get_close_matches(text.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def built_in(text: str) -> ResourceConfig | None:
    """Return the config that is called ``text`` without anybody defining it; None when there is none.

    Raises:
        ValueError: it would have its ceiling below its floor.
    """
    if text not in RESERVED and _MULTIPLE.fullmatch(text) is None:
        return None
    rule = _rule_of_name(text)
    name = text if text in RESERVED else _multiple_text(float(text[:-1]))
    return ResourceConfig(name, cpus=rule, memory=rule)


def _described(text: str, named: Mapping[str, ResourceConfig]) -> ResourceConfig:
    name, _, rest = text.partition(":")
    name = check_config_name(name.strip())
    if name in named:
        raise ValueError(f"{name!r} is also a config of infranoise.toml; give it by name alone, or rename this one")
    parts: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in CONFIG_KEYS or not equals:
            raise ValueError(
                f"{part.strip()!r} sets none of {', '.join(CONFIG_KEYS)}; repeat the option for another config"
            )
        if key in parts:
            raise ValueError(f"{key} is given twice")
        parts[key] = value
    config = ResourceConfig(name, cpus=STRICT, memory=STRICT)
    return with_parts(config, parts)


def check_config_name(name: str) -> str:
    """Return a name that a config of the user's may have.

    Raises:
        ValueError: it could be mistaken for a config of ours, or would not be safe in test ids and paths.
    """
    if _NAME.fullmatch(name) is None:
        hint = (
            "; a value with ':' is exactly one config, give others by repeating the option" if "," in name else ""
        )
        raise ValueError(
            f"{name!r} cannot be a config's name: use up to 40 letters, digits, '.', '_' and '-', a letter in front"
            f"{hint}"
        )
    if name.lower() in RESERVED:
        raise ValueError(f"{name!r} is reserved; choose another name")
    return name


def with_parts(config: ResourceConfig, parts: Mapping[str, str]) -> ResourceConfig:
    """Return ``config`` with the resources and the time that ``parts`` (by ``CONFIG_KEYS``) give.

    Raises:
        ValueError: a part says nothing that can be.
    """
    values: dict[str, Any] = {}
    for key, text in parts.items():
        try:
            values[key] = parse_time(text) if key == "time" else parse_rule(text, key)
        except ValueError as error:
            raise ValueError(f"{key}={text}: {error}") from None
    return ResourceConfig(
        config.name,
        cpus=values.get("cpus", config.cpus),
        memory=values.get("memory", config.memory),
        time=values.get("time", config.time),
    )


def parse_rule(text: str, resource: str) -> Rule:
    """Return the floor and ceiling that a RANGE gives to ``resource``, which is memory or cpus.

    Raises:
        ValueError: it is none; the message says what to write.
    """
    text = text.strip()
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots:
        return _rule_of_name(text, resource)
    rule = Rule(_end(low, resource), None if high == UNCAPPED else _end(high, resource))
    if _surely_above(rule.floor, rule.ceiling):
        raise ValueError(f"the floor {low} is above the ceiling {high}")
    return rule


def _rule_of_name(text: str, resource: str = "memory") -> Rule:
    if text == UNCAPPED:
        return Rule(1.0, None)
    if text == TASK:
        return Rule(1.0, 1.0, own=True)
    end = _end(text, resource)
    if isinstance(end, Amount):
        raise ValueError(f"one amount could be both ends or the ceiling alone; write {text}..{text} or 1x..{text}")
    if end < 1:
        raise ValueError(
            f"a ceiling below the floor of 1x; as floor and ceiling both it is NAME:memory={text}..{text}"
        )
    return Rule(1.0, end)


def _end(text: str, resource: str) -> float | Amount:
    match = _MULTIPLE.fullmatch(text)
    if match is not None:
        if not float(match[1]):
            raise ValueError("0x of a resource is nothing; give more")
        return float(match[1])
    pattern, most = (_MEMORY, MAX_MEMORY) if resource == "memory" else (_CORES, MAX_CPUS)
    if pattern.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is neither a multiple such as 1.5x nor an amount such as {EXAMPLES[resource]}; "
            "write FLOOR..CEILING"
        )
    value = float(parse_memory(text)) if resource == "memory" else float(text)
    if not 0 < value <= most:
        raise ValueError(f"{text} is not above 0 and at most {'1024T' if resource == 'memory' else most}")
    return Amount(value)


def _surely_above(floor: float | Amount, ceiling: float | Amount | None) -> bool:
    """Whether a floor is above the ceiling for every task; a multiple and an amount depend on the task."""
    if isinstance(floor, Amount) and isinstance(ceiling, Amount):
        return floor.value > ceiling.value
    return isinstance(floor, float) and isinstance(ceiling, float) and floor > ceiling


def parse_time(text: str) -> float:
    """Return the factor that ``Kx`` puts on the agent's timeout.

    Raises:
        ValueError: it is no multiple, or none that makes sense.
    """
    match = _MULTIPLE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= MAX_TIME:
        raise ValueError(f"write a multiple above 0x and at most {MAX_TIME}x, e.g. 1.5x")
    return float(match[1])


# And back


def format_config(config: ResourceConfig) -> str:
    """Return the shortest text that ``parse_config`` reads as the same config."""
    if _NAME.fullmatch(config.name) is None or config.name in RESERVED:
        return config.name
    parts = [f"memory={format_rule(config.memory, 'memory')}", f"cpus={format_rule(config.cpus, 'cpus')}"]
    if config.time != 1:
        parts.append(f"time={_multiple_text(config.time)}")
    return f"{config.name}:{','.join(parts)}"


def format_rule(rule: Rule, resource: str) -> str:
    """Return the RANGE of a rule for ``resource``, which is memory or cpus."""
    if rule.own:
        return TASK
    ceiling = UNCAPPED if rule.ceiling is None else format_end(rule.ceiling, resource)
    return f"{format_end(rule.floor, resource)}..{ceiling}"


def format_end(end: float | Amount, resource: str) -> str:
    """Return one end of a RANGE, e.g. ``1.5x``, ``512M`` or ``2``."""
    if isinstance(end, float):
        return _multiple_text(end)
    if resource == "cpus":
        return _plain(end.value)
    size = int(end.value)
    unit, factor = next((unit, factor) for unit, factor in _UNITS if size % factor == 0)
    return f"{size // factor}{unit}"


def _multiple_text(factor: float) -> str:
    return f"{_plain(factor)}x"


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def describe_config(config: ResourceConfig) -> dict[str, Any]:
    """Return a config's entry in run.json.

    Of an end, a number is a multiple of the spec, a text an amount (or ``task``: the ceiling that the task states),
    null no ceiling. ``option`` is what ``--resource-config`` takes for the same config.
    """
    return {
        "name": config.name,
        "cpus": _describe_rule(config.cpus, "cpus"),
        "memory": _describe_rule(config.memory, "memory"),
        "time": config.time,
        "option": format_config(config),
    }


def _describe_rule(rule: Rule, resource: str) -> dict[str, float | str | None]:
    def end(value: float | Amount | None) -> float | str | None:
        return format_end(value, resource) if isinstance(value, Amount) else value

    return {"floor": end(rule.floor), "ceiling": TASK if rule.own else end(rule.ceiling)}
