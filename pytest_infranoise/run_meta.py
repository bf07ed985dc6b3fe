"""What ``run.json`` says of a run when it begins: what is to be run, and what was decided beforehand."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC
from datetime import datetime
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.config_grammar import describe_config
from pytest_infranoise.scheduler.order import ORDERS
from pytest_infranoise.sessions import SCHEDULE

if TYPE_CHECKING:
    from pytest_infranoise.plan import Plan
    from pytest_infranoise.settings import Settings


def plan_meta(run: str, plan: Plan, settings: Settings, workers: int) -> dict[str, Any]:
    """Return what is known of a run before it begins.

    Args:
        run: its id.
        plan: its trials.
        settings: the user's.
        workers: the processes that run trials; 0 without xdist.
    """
    selection = settings.outcome_selection and f"{settings.outcome_selection} picked trials by outcome"
    return {
        "run": run,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "planned": [list(trial.key.to_json().values()) for trial in plan.trials],
        "tasks": {"collected": list(plan.collected), "skipped": dict(plan.skipped), "broken": plan.broken},
        "configs": [describe_config(config) for config in settings.configs],
        "baseline": settings.baseline.name,
        "design": asdict(settings.design),
        "agents": _agents(plan, settings),
        "samples": settings.samples,
        "seed": settings.seed,
        "order": ORDERS[settings.schedule.order],
        "schedule": {name: getattr(settings.schedule, name) for name in SCHEDULE},
        "gates": list(settings.gates),
        "pass_threshold": settings.pass_threshold,
        "workers": workers,
        "task_hashes": {task.name: task.content_hash for task in plan.tasks},
        "shard": settings.shard and str(settings.shard),
        "defaults": asdict(settings.defaults),
        "outcome_selection": selection,
        "cut_short": selection,
    }


def _agents(plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """Return the agents that have trials, in the user's order; marked functions are not his to choose."""
    from pytest_infranoise.agent_identity import agent_entry
    from pytest_infranoise.marked import AGENT

    known = {(agent.name, agent.model or ""): agent_entry(agent) for agent in (*settings.agents, AGENT)}
    planned = dict.fromkeys((trial.key.agent, trial.key.model) for trial in plan.trials)
    chosen = [(agent.name, agent.model or "") for agent in settings.agents]
    agents = dict.fromkeys([*(agent for agent in chosen if agent in planned), *planned])
    return [known.get((name, model), {"name": name, "model": model}) for name, model in agents]
