"""How many samples does a question need, and what can so many samples show?

The answer for one delta between two configs on these tasks, from the variance of a trial given its task:
either a usual value, or what an earlier run showed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace

from pytest_infranoise.analysis import analyse
from pytest_infranoise.journal import Run
from pytest_infranoise.peaks import near_spec
from pytest_infranoise.peaks import usages
from pytest_infranoise.results import AgentResult
from pytest_infranoise.stats.gaps import USUAL_ICC
from pytest_infranoise.stats.planning import Split
from pytest_infranoise.stats.planning import cheapest_split
from pytest_infranoise.stats.planning import margin_shown
from pytest_infranoise.stats.planning import mde
from pytest_infranoise.stats.planning import plan_k
from pytest_infranoise.stats.planning import plan_k_tost
from pytest_infranoise.stats.rates import within_task_variance

USUAL_SCORE = 0.6
SHOWN_SAMPLES = (1, 3, 5, 10, 20, 40)
# Below so many tasks with two samples an estimate of their variance is hardly better than the usual value.
FEW_TASKS = 10


@dataclass(frozen=True, slots=True)
class Variance:
    """The mean over tasks of p(1-p), and where it is from.

    ``tasks`` and ``samples`` are those of the run that it was estimated from, 0 for an assumption.
    """

    value: float
    source: str
    tasks: int = 0
    samples: int = 0

    @property
    def rough(self) -> bool:
        """Whether it was estimated from too little to be relied on."""
        return 0 < self.tasks < FEW_TASKS or self.samples == 2


@dataclass(frozen=True, slots=True)
class NearSpec:
    """Tasks whose trials came near their spec: the only ones that a ceiling can act on.

    ``unknown`` are tasks whose records cannot tell; they are not in ``tasks`` and have to be rerun too.
    """

    tasks: int
    unknown: int
    source: str
    variance: Variance

    @property
    def rerun(self) -> int:
        """Tasks to run again."""
        return self.tasks + self.unknown


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be known: differences as proportions, of them a margin, a delta, or both.

    ``target`` is what the run that is planned from was made for; the answer is about these tasks all the same.
    """

    tasks: int
    configs: int
    margin: float | None
    delta: float | None
    alpha: float = 0.05
    power: float = 0.8
    target: str = "benchmark"


@dataclass(frozen=True, slots=True)
class Need:
    """Samples per task for one question; None where no number is enough.

    ``samples`` in every config; ``split`` the cheapest unequal numbers of the same precision. ``few`` is the same
    as ``samples`` where only the tasks near their spec run.
    """

    label: str
    samples: int | None
    split: Split | None
    few: int | None


@dataclass(frozen=True, slots=True)
class Power:
    """What so many samples per task and config can do, as proportions: detect ``delta``, show ``margin``."""

    samples: int
    delta: float
    margin: float


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """The answer."""

    question: Question
    variance: Variance
    near_spec: NearSpec | None
    needs: tuple[Need, ...]
    powers: tuple[Power, ...]


def assumed_variance(icc: float = USUAL_ICC, score: float = USUAL_SCORE) -> Variance:
    """Return the variance that follows from a score and the share of variance between tasks."""
    return Variance((1.0 - icc) * score * (1.0 - score), f"assumed: score {100 * score:g}%, ICC {icc:g}")


def measured_variance(run: Run, tasks: frozenset[str] | None = None) -> Variance | None:
    """Return the variance that a run shows, of the agent with the largest; None where it shows none.

    ``tasks``: only of these. None also when nothing varies inside any task: nothing can be planned from that.
    """
    analysis = analyse(run)
    found = [variance for agent in analysis.agents if (variance := _variance(agent, tasks)) is not None]
    largest = max(found, key=lambda variance: variance.value, default=None)
    if largest is not None and analysis.cut_short:
        return replace(largest, source=f"{largest.source} of a run that is not an estimate, {analysis.cut_short}")
    return largest


def _variance(agent: AgentResult, tasks: frozenset[str] | None) -> Variance | None:
    values, used, samples = [], set[str](), []
    for result in agent.configs:
        cells = {
            name: cell
            for name, cell in result.cells.items()
            if cell.recorded >= 2 and (tasks is None or name in tasks)
        }
        if cells:
            values.append(
                within_task_variance([c.passes for c in cells.values()], [c.recorded for c in cells.values()])
            )
            used.update(cells)
            samples += [cell.recorded for cell in cells.values()]
    mean = sum(values) / len(values) if values else 0.0
    if not mean > 0:
        return None
    source = f"{agent.label}, mean of {len(values)} {'config' if len(values) == 1 else 'configs'}"
    return Variance(mean, source, len(used), min(samples))


def near_spec_of(run: Run, fallback: Variance) -> NearSpec:
    """Return how many tasks of a run came near their spec, in memory or by lack of CPU, under any config."""
    found = near_spec(usages(run), run.missing)
    variance = (measured_variance(run, found.rerun) if found.rerun else None) or fallback
    return NearSpec(len(found.tasks), len(found.unknown), f"run {run.meta.get('run', run.path.name)}", variance)


def make_plan(
    question: Question,
    variance: Variance,
    near_spec: NearSpec | None = None,
    samples: tuple[int, ...] = SHOWN_SAMPLES,
) -> SamplePlan:
    """Answer a question.

    Raises:
        ValueError: alpha or power outside (0, 1), or more tasks near their spec than there are.
    """
    powers = tuple(
        Power(
            k,
            mde(question.tasks, k, variance.value, alpha=question.alpha, power=question.power),
            margin_shown(question.tasks, k, variance.value, alpha=question.alpha, power=question.power),
        )
        for k in samples
    )
    return SamplePlan(question, variance, near_spec, tuple(_needs(question, variance, near_spec)), powers)


def _needs(question: Question, variance: Variance, near_spec: NearSpec | None) -> Iterator[Need]:
    others = question.configs - 1
    if question.margin is not None:
        for share in (0, 1, 2):
            true = question.margin * share / 3
            apart = "0" if not share else f"{100 * true:.3g}pp"
            label = f"same +-{100 * question.margin:.3g}pp, if d = {apart}"
            yield _need(
                label, question, variance, near_spec, margin=question.margin, delta=true, alpha=question.alpha
            )
    if question.delta is not None:
        label = f"detect d = {100 * question.delta:.3g}pp"
        yield _need(label, question, variance, near_spec, margin=None, delta=question.delta, alpha=question.alpha)
        if others > 1:
            yield _need(
                f"the same, {others} x Holm",
                question,
                variance,
                near_spec,
                margin=None,
                delta=question.delta,
                alpha=question.alpha / others,
            )


def _need(
    label: str,
    question: Question,
    variance: Variance,
    near_spec: NearSpec | None,
    *,
    margin: float | None,
    delta: float,
    alpha: float,
) -> Need:
    def samples(value: float, run_tasks: int | None) -> int | None:
        if margin is None:
            return plan_k(delta, question.tasks, value, alpha=alpha, power=question.power, run_tasks=run_tasks)
        return plan_k_tost(
            margin,
            question.tasks,
            value,
            true_delta=delta,
            alpha=alpha,
            power=question.power,
            run_tasks=run_tasks,
        )

    every = samples(variance.value, None)
    few = samples(near_spec.variance.value, near_spec.rerun) if near_spec is not None and near_spec.rerun else None
    return Need(
        label=label,
        samples=every,
        split=cheapest_split(every, question.configs) if every is not None and question.configs > 1 else None,
        few=few,
    )
