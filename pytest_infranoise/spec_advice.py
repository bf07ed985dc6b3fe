"""A floor and a ceiling per task to publish, from what a run showed, or an honest blank.

A task that states one number leaves open whether it is guaranteed or a limit. The floor recommended here is what
trials were seen to work with, the ceiling the smallest that was really run and killed nothing. What the records
cannot carry stays None, with the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_infranoise.model import Verdict
from pytest_infranoise.peaks import TrialUsage
from pytest_infranoise.units import format_memory

# Fewer trials under a ceiling say nothing of what it does.
FEWEST_TRIALS = 3
HEADROOM = 1.25
_MIB = 1024**2
_FLOOR_STEP = 16 * _MIB
_CEILING_STEP = 64 * _MIB
_CEILING_REACHED = 0.98
# What a limit may lose between being asked for and being read back.
_PAGE = 4096
_CPU_ROUNDING = 0.0101
_Ceiling = Callable[[TrialUsage], "float | None"]
RULES = (
    "memory floor: the task's spec, or what half of the trials that passed unkilled needed (of all with a verdict, "
    f"where fewer than {FEWEST_TRIALS} passed; anonymous plus shared memory, no page cache), whichever is more, in "
    f"steps of {format_memory(_FLOOR_STEP)}",
    "memory ceiling: the smallest that was really run, from the calibration's config upward, under which at least "
    f"{FEWEST_TRIALS} trials ended with a verdict, none was killed at its ceiling, and which no trial was seen to "
    f"need more than; where only trials without a ceiling were not killed, their largest need and "
    f"{HEADROOM - 1:.0%} more, in steps of {format_memory(_CEILING_STEP)}",
    "CPU floor: the task's spec; a run does not show how many cores are needed",
    f"CPU ceiling: likewise the smallest under which at least {FEWEST_TRIALS} trials ended with a verdict and none "
    "was short of CPU or out of time; none above the host's cores, where a ceiling throttles nothing",
    "a need is the largest of samples taken about ten times a second: a lower bound",
)


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended amount in bytes or cores, None where the evidence does not carry one; ``reason`` either way."""

    value: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class ConfigEvidence:
    """What the trials of one task under one config showed; bytes and cores, a ceiling also ``uncapped``.

    ``killed`` counts trials in which the kernel killed for memory, ``at_ceiling`` those at their own ceiling.
    Needs are without page cache, the peak with it.
    """

    config: str
    trials: int
    passes: int
    fails: int
    infra: int
    killed: int
    at_ceiling: int
    starved: int
    timed_out: int
    memory_ceiling: float | str | None
    cpus_ceiling: float | str | None
    needs_known: int
    median_need: int | None
    largest_need: int | None
    largest_peak: int | None


@dataclass(frozen=True, slots=True)
class TaskAdvice:
    """The recommendation for one task, with what it rests on."""

    task: str
    task_hash: str
    memory_spec: int | None
    cpus_spec: float | None
    memory_floor: Advice
    memory_ceiling: Advice
    cpus_floor: Advice
    cpus_ceiling: Advice
    evidence: tuple[ConfigEvidence, ...]

    @property
    def complete(self) -> bool:
        """Whether everything could be recommended."""
        parts = (self.memory_floor, self.memory_ceiling, self.cpus_floor, self.cpus_ceiling)
        return all(part.value is not None for part in parts)


def advise(
    trials: Iterable[TrialUsage], chosen: str | None = None, host_cpus: float | None = None
) -> tuple[TaskAdvice, ...]:
    """Return the recommendations, by task.

    Args:
        trials: everything that was recorded, of all agents.
        chosen: the config that the calibration picked, or its best candidate; None starts from the spec.
        host_cpus: cores of the host that it ran on.
    """
    by_task: dict[str, list[TrialUsage]] = {}
    for trial in trials:
        by_task.setdefault(trial.key.task, []).append(trial)
    return tuple(_task(by_task[task], chosen, host_cpus) for task in sorted(by_task))


def above(advice: Iterable[TaskAdvice], trials: Iterable[TrialUsage], chosen: str | None) -> tuple[str, ...]:
    """Return the tasks whose recommended ceiling is above the one that they ran under in the config ``chosen``."""
    by_task: dict[str, list[TrialUsage]] = {}
    for trial in trials:
        if trial.key.config == chosen:
            by_task.setdefault(trial.key.task, []).append(trial)
    found = []
    for task in advice:
        group = by_task.get(task.task, [])
        memory = max((trial.memory_ceiling for trial in group if trial.memory_ceiling), default=math.inf)
        cpus = max((trial.cpus_ceiling for trial in group if trial.cpus_ceiling), default=math.inf)
        if (task.memory_ceiling.value or 0) > memory + _PAGE or (
            task.cpus_ceiling.value or 0
        ) > cpus + _CPU_ROUNDING:
            found.append(task.task)
    return tuple(found)


def _memory(trial: TrialUsage) -> float | None:
    return trial.memory_ceiling


def _cpus(trial: TrialUsage) -> float | None:
    return trial.cpus_ceiling


def _task(trials: Sequence[TrialUsage], chosen: str | None, host_cpus: float | None) -> TaskAdvice:
    memory_spec = next((trial.memory_spec for trial in trials if trial.memory_spec), None)
    cpus_spec = next((trial.cpus_spec for trial in trials if trial.cpus_spec), None)
    hashes = list(dict.fromkeys(trial.task_hash for trial in trials))
    blank = Advice(None, f"the task changed during the run ({len(hashes)} contents)") if len(hashes) > 1 else None
    ceiling = blank or _memory_ceiling(trials, _start(trials, chosen, _memory, memory_spec))
    return TaskAdvice(
        task=trials[0].key.task,
        task_hash=hashes[0],
        memory_spec=None if memory_spec is None else int(memory_spec),
        cpus_spec=cpus_spec,
        memory_floor=blank or _memory_floor(trials, memory_spec, ceiling.value),
        memory_ceiling=ceiling,
        cpus_floor=blank or _cpus_floor(cpus_spec),
        cpus_ceiling=blank or _cpus_ceiling(trials, _start(trials, chosen, _cpus, cpus_spec), host_cpus),
        evidence=tuple(_evidence(trials)),
    )


def _start(trials: Sequence[TrialUsage], chosen: str | None, resource: _Ceiling, spec: float | None) -> float:
    """Return the smallest ceiling to consider: that of the chosen config, else the spec."""
    of_chosen = [resource(trial) for trial in trials if trial.key.config == chosen]
    known = [value for value in of_chosen if value is not None and math.isfinite(value)]
    return max([*known, spec or 0.0])


# Memory


def _memory_ceiling(trials: Sequence[TrialUsage], start: float) -> Advice:
    groups = _by_ceiling(trials, _memory)
    if not groups:
        return Advice(None, "no record states the memory ceiling that was in force")
    needs = [trial.least_need for trial in trials if trial.least_need is not None]
    largest = max(needs, default=None)
    tried = {ceiling: group for ceiling, group in groups.items() if ceiling > start - _PAGE}
    for ceiling, group in tried.items():
        if len(_ended(group)) < FEWEST_TRIALS or any(trial.own_kill for trial in group):
            continue
        if not math.isfinite(ceiling):
            return _from_needs(group)
        if largest is not None and largest > ceiling:
            continue
        seen = f"largest need seen {format_memory(largest)}" if largest else "what they needed is not known"
        # Never a page below the spec because of how it was read back.
        return Advice(int(max(ceiling, start)), f"none of {len(group)} trials killed under it; {seen}")
    return Advice(None, _why_no_ceiling(groups, tried, largest))


def _from_needs(group: Sequence[TrialUsage]) -> Advice:
    if any(trial.killed for trial in group):
        return Advice(None, "without a ceiling trials were killed because the host ran out of memory")
    needs = [trial.need for trial in _ended(group) if trial.need is not None]
    if len(needs) < FEWEST_TRIALS:
        return Advice(
            None,
            "only trials without a ceiling were not killed, and what they needed is not known: their peaks count "
            "page cache",
        )
    value = math.ceil(max(needs) * HEADROOM / _CEILING_STEP) * _CEILING_STEP
    return Advice(
        value,
        f"not run under this ceiling: killed, or seen to need more, under every lower one; without a ceiling "
        f"{len(needs)} trials needed up to {format_memory(max(needs))}",
    )


def _why_no_ceiling(
    groups: Mapping[float, Sequence[TrialUsage]], tried: Mapping[float, Sequence[TrialUsage]], largest: float | None
) -> str:
    if not tried:
        return "no ceiling as high as the spec was run"
    killed = [ceiling for ceiling, group in tried.items() if any(trial.own_kill for trial in group)]
    if len(killed) == len(tried):
        most = max(groups)
        what = "" if not math.isfinite(most) else f", up to {format_memory(most)}"
        return f"killed under every ceiling that was run{what}"
    if any(len(_ended(group)) < FEWEST_TRIALS for group in tried.values()):
        return f"fewer than {FEWEST_TRIALS} trials ended with a verdict under a ceiling that killed nothing"
    return f"a trial needed {format_memory(largest or 0)}, more than every ceiling that killed nothing"


def _memory_floor(trials: Sequence[TrialUsage], spec: float | None, ceiling: float | None) -> Advice:
    unkilled = [trial for trial in _ended(trials) if not trial.killed]
    passed = [trial for trial in unkilled if trial.passed]
    group, what = (
        (passed, "passing trials") if len(passed) >= FEWEST_TRIALS else (unkilled, "trials with a verdict")
    )
    if len(group) < FEWEST_TRIALS:
        return Advice(None, f"fewer than {FEWEST_TRIALS} trials ended with a verdict and without a kill")
    needs = [trial.need for trial in group if trial.need is not None]
    if len(needs) >= FEWEST_TRIALS and len(needs) * 2 >= len(group):
        return _floor_of_needs(needs, what, spec, ceiling)
    peaks = [trial.peak for trial in group if trial.peak is not None]
    if not peaks:
        return Advice(None, "memory was not measured in enough trials")
    if len(peaks) == len(group) and spec is not None and max(peaks) <= spec:
        return Advice(int(spec), f"the spec; {len(peaks)} {what} stayed below it, page cache included")
    at_limit = [
        trial
        for trial in group
        if trial.peak and trial.memory_ceiling and trial.peak >= _CEILING_REACHED * trial.memory_ceiling
    ]
    where = ", and they stand at the ceiling, as page cache alone makes them" if at_limit else ""
    return Advice(None, f"the only peaks count page cache{where}: what the trials needed is not known")


def _floor_of_needs(needs: Sequence[int], what: str, spec: float | None, ceiling: float | None) -> Advice:
    median = statistics.median(needs)
    stepped = math.ceil(median / _FLOOR_STEP) * _FLOOR_STEP
    seen = f"{len(needs)} {what} needed {format_memory(median)} in the middle, {format_memory(max(needs))} at most"
    if spec is not None and median <= spec:
        return Advice(int(spec), f"the spec; {seen}")
    if ceiling is not None and stepped > ceiling:
        return Advice(int(ceiling), f"as the ceiling; {seen}")
    why = "above the spec" if spec is not None else "no spec is known"
    return Advice(int(stepped), f"{why}: {seen}")


# CPU


def _cpus_floor(spec: float | None) -> Advice:
    if spec is None:
        return Advice(None, "the records do not tell the task's spec")
    return Advice(spec, "the spec; a run does not show how many cores are needed")


def _cpus_ceiling(trials: Sequence[TrialUsage], start: float, host_cpus: float | None) -> Advice:
    groups = _by_ceiling(trials, _cpus)
    if not groups:
        return Advice(None, "no record states the CPU ceiling that was in force")
    tried = {ceiling: group for ceiling, group in groups.items() if ceiling >= start - _CPU_ROUNDING}
    for ceiling, group in tried.items():
        troubled = sum(trial.starved or trial.timed_out for trial in group)
        if len(_ended(group)) < FEWEST_TRIALS or troubled:
            continue
        if host_cpus is not None and ceiling > host_cpus:
            return Advice(
                None,
                f"only with more than the host's {host_cpus:g} cores, which throttle nothing, was nobody short",
            )
        if not math.isfinite(ceiling):
            return Advice(None, "only trials without a CPU ceiling were neither short of CPU nor out of time")
        return Advice(max(ceiling, start), f"none of {len(group)} trials short of CPU or out of time under it")
    troubled = sum(trial.starved or trial.timed_out for trial in trials)
    if troubled:
        return Advice(
            None, f"{troubled} of {len(trials)} trials short of CPU or out of time under the ceilings run"
        )
    return Advice(
        None, f"fewer than {FEWEST_TRIALS} trials ended with a verdict under any ceiling from the spec on"
    )


# Counting


def _ended(trials: Iterable[TrialUsage]) -> list[TrialUsage]:
    """Return the trials that ended with a pass or a fail."""
    return [trial for trial in trials if trial.verdict is not Verdict.INFRA_ERROR]


def _by_ceiling(trials: Iterable[TrialUsage], resource: _Ceiling) -> dict[float, list[TrialUsage]]:
    groups: dict[float, list[TrialUsage]] = {}
    for trial in trials:
        ceiling = resource(trial)
        if ceiling is not None:
            groups.setdefault(ceiling, []).append(trial)
    return dict(sorted(groups.items()))


def _evidence(trials: Sequence[TrialUsage]) -> Iterable[ConfigEvidence]:
    configs = dict.fromkeys(trial.key.config for trial in sorted(trials, key=_height))
    for config in configs:
        group = [trial for trial in trials if trial.key.config == config]
        needs = [trial.need for trial in group if trial.need is not None]
        peaks = [trial.peak for trial in group if trial.peak is not None]
        memory = {trial.memory_ceiling for trial in group}
        cpus = {trial.cpus_ceiling for trial in group}
        yield ConfigEvidence(
            config=config,
            trials=len(group),
            passes=sum(trial.passed for trial in group),
            fails=sum(trial.verdict is Verdict.FAIL for trial in group),
            infra=sum(trial.verdict is Verdict.INFRA_ERROR for trial in group),
            killed=sum(trial.killed for trial in group),
            at_ceiling=sum(trial.own_kill for trial in group),
            starved=sum(trial.starved for trial in group),
            timed_out=sum(trial.timed_out for trial in group),
            memory_ceiling=_one(memory),
            cpus_ceiling=_one(cpus),
            needs_known=len(needs),
            median_need=int(statistics.median(needs)) if needs else None,
            largest_need=max(needs, default=None),
            largest_peak=max(peaks, default=None),
        )


def _height(trial: TrialUsage) -> tuple[float, float]:
    """Return what evidence is ordered by: rising ceilings, unknown ones last."""
    memory, cpus = (math.inf if part is None else part for part in (trial.memory_ceiling, trial.cpus_ceiling))
    return memory, cpus


def _one(values: set[float | None]) -> float | str | None:
    """Return the ceiling of a config, None where trials disagree or none states it."""
    if len(values) != 1:
        return None
    (value,) = values
    return "uncapped" if value is not None and math.isinf(value) else value
