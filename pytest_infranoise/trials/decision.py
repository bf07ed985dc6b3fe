"""What judging a trial takes and gives, as pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_infranoise.model import Cause
from pytest_infranoise.model import FailReason
from pytest_infranoise.model import Flag
from pytest_infranoise.model import Verdict


@dataclass(frozen=True, slots=True)
class Policy:
    """What is a matter of choice, and so is published with every result.

    ``oom_child`` says what a kernel kill of a process that is not the agent's main one means when the trial does
    not pass. In the ``oom_mode`` group the first kernel kill ends the trial, as on Kubernetes, where it kills every
    process of a container; nothing that such a trial left behind is a verdict. ``starved_share`` is the share of
    CPU periods throttled in the agent phase from which a trial is flagged as starved: a quarter, because bursts of
    a second or two in an unstarved trial stay well below it.
    """

    pass_threshold: float = 1.0
    oom_child: Literal["infra", "fail"] = "infra"
    oom_mode: Literal["single", "group"] = "single"
    starved_share: float = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says; an ``outcome`` of None is a pass."""

    outcome: Cause | FailReason | None
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, the rule that made it and one line for people."""

    verdict: Verdict
    rule: str
    summary: str
    cause: Cause | None = None
    reason: FailReason | None = None
    flags: tuple[Flag, ...] = ()
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigMistake:
    """Instead of a decision: the user's mistake, from which no trial result can come (rule 1)."""

    text: str
