"""What ``infranoise plan`` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_infranoise.planner import NearSpec
from pytest_infranoise.planner import Need
from pytest_infranoise.planner import Question
from pytest_infranoise.planner import SamplePlan
from pytest_infranoise.planner import Variance
from pytest_infranoise.reports.layout import SMALLEST_WIDTH
from pytest_infranoise.reports.layout import tabulated
from pytest_infranoise.reports.text import Column
from pytest_infranoise.reports.text import wrap
from pytest_infranoise.units import plural

FEW_SAMPLES = 3


def render_plan(plan: SamplePlan, width: int) -> list[str]:
    """Return the plan as lines of at most ``width`` columns (at least 60)."""
    width = max(width, SMALLEST_WIDTH)
    question = plan.question
    title = (
        f"samples per task for {plural(question.tasks, 'task')} x {plural(question.configs, 'config')}, "
        f"power {100 * question.power:g}%, alpha {question.alpha:g}:"
    )
    lines = [*wrap(title, width), "", *_needs(plan, width)]
    lines += [line for note in _notes(plan) for line in wrap(note, width)]
    return [
        *lines,
        "",
        *_powers(plan, width),
        "",
        *(line for text in _assumptions(plan) for line in wrap(text, width)),
    ]


def _needs(plan: SamplePlan, width: int) -> list[str]:
    needs, question = plan.needs, plan.question
    columns = [
        Column("to show", [need.label for need in needs]),
        Column("each", [_count(need.samples) for need in needs], right=True),
        Column("trials", [_trials(need.samples, question, question.tasks) for need in needs], right=True),
    ]
    if question.configs > 2:
        columns += [
            Column("base+others", [_split(need) for need in needs], right=True),
            Column("trials", [_split_trials(need, question) for need in needs], right=True),
        ]
    if plan.near_spec is not None and plan.near_spec.rerun:
        rerun = plan.near_spec.rerun
        columns += [
            Column(f"{rerun} near spec", [_count(need.few) for need in needs], right=True),
            Column("trials", [_trials(need.few, question, rerun) for need in needs], right=True),
        ]
    return tabulated(columns, width)


def _count(samples: int | None) -> str:
    return "none is enough" if samples is None else str(samples)


def _trials(samples: int | None, question: Question, tasks: int) -> str:
    return "-" if samples is None else str(samples * question.configs * tasks)


def _split(need: Need) -> str:
    return "-" if need.split is None else f"{need.split.baseline}+{need.split.others}"


def _split_trials(need: Need, question: Question) -> str:
    return "-" if need.split is None else str(need.split.total(question.configs) * question.tasks)


def _notes(plan: SamplePlan) -> Iterator[str]:
    if any(need.label.startswith("same") for need in plan.needs):
        yield (
            "d is what the score really differs by, which nobody knows beforehand: plan for more than 0. The "
            "margin is fixed before the run."
        )
    numbers = [number for need in plan.needs for number in (need.samples, need.few) if number is not None]
    if any(number < FEW_SAMPLES for number in numbers):
        yield f"take at least {FEW_SAMPLES} samples even so: fewer do not tell a task's own variance"
    if any("Holm" in need.label for need in plan.needs):
        others = plan.question.configs - 1
        yield f"{others} x Holm: when all {others} other configs are tested against the baseline"
    if plan.question.configs > 2:
        yield (
            "base+others: more samples of the baseline, which every delta shares, and the same precision; run "
            "them as rounds of all configs and then more of the baseline."
        )
    if plan.near_spec is not None:
        yield from _near_spec(plan.near_spec, plan.question)


def _near_spec(near: NearSpec, question: Question) -> Iterator[str]:
    if not near.rerun:
        yield (
            f"near spec ({near.source}): no task came near its spec or was short of CPU, so no ceiling at or above "
            "it can have acted on any; there is nothing to rerun"
        )
        return
    unknown = f", and {near.unknown} more whose records cannot tell" if near.unknown else ""
    yield (
        f"near spec ({near.source}): {near.tasks} of {plural(question.tasks, 'task')}{unknown}. A ceiling at or "
        "above the spec has nothing to act on in the others, which count as unchanged in a delta over all tasks. "
        f"Variance of these tasks: {near.variance.value:.3f} ({_source(near.variance)}). A pilot misses some of "
        "them: check once that the rest does not move."
    )


def _powers(plan: SamplePlan, width: int) -> list[str]:
    powers = plan.powers
    columns = [
        Column("samples of each", [str(power.samples) for power in powers], right=True),
        Column("smallest d detected", [_points(power.delta) for power in powers], right=True),
        Column("margin shown, true d = 0", [_points(power.margin) for power in powers], right=True),
    ]
    return tabulated(columns, width)


def _points(value: float) -> str:
    if math.isnan(value):
        return "-"
    # No difference of two rates is larger than 100 points.
    return f"{100 * value:.1f}pp" if value <= 1 else "none"


def _assumptions(plan: SamplePlan) -> Iterator[str]:
    variance = plan.variance
    yield (
        f"variance of a trial given its task, E[p(1-p)]: {variance.value:.3f} ({_source(variance)}), taken to be "
        "the same under every config"
    )
    if variance.rough:
        yield "that is a rough estimate: with so few tasks or samples the numbers above may be off by a factor of 2"
    yield (
        "for one delta at a time between two configs of one agent, about these tasks and not others like them; "
        "trials independent, configs interleaved, no trial missing"
    )
    if plan.question.target == "population":
        yield (
            "the run's target is population, tasks like these: how much the delta differs between tasks sets a "
            "limit there that no number of samples of the same tasks gets below, only more tasks do"
        )


def _source(variance: Variance) -> str:
    if not variance.tasks:
        return variance.source
    return f"measured: {variance.source}, {plural(variance.tasks, 'task')}, {variance.samples} or more samples"
