"""Maps the estimator names of statistics-reference.json to the package's functions.

Arguments that a case leaves out take the package's defaults; results are plain JSON values, so an
undefined number is None.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_infranoise.stats import calibration
from pytest_infranoise.stats import decomposition
from pytest_infranoise.stats import deltas
from pytest_infranoise.stats import equivalence
from pytest_infranoise.stats import gaps
from pytest_infranoise.stats import movers
from pytest_infranoise.stats import multiplicity
from pytest_infranoise.stats import planning
from pytest_infranoise.stats import rates
from pytest_infranoise.stats import sequential
from pytest_infranoise.stats import slots
from pytest_infranoise.stats import trend
from pytest_infranoise.stats import variants

Result = dict[str, Any]
COUNTS = ("x1", "n1", "x0", "n0")
# "floor" is the reference's name for the baseline config.
Q_SOURCES = {"floor": "baseline", "baseline": "baseline", "both": "both", "ceiling": "top", "top": "top"}
CONFIGS = {"equal": "same", "identical": "same", "different": "documented", "unknown": "undocumented"}


def evaluate(fn: str, args: Mapping[str, Any]) -> Result:
    """Run the estimator that the reference calls `fn`; KeyError for a name it does not know."""
    return {key: plain(value) for key, value in ESTIMATORS[fn](**args).items()}


def plain(value: Any) -> Any:
    """Reduce numpy values to JSON ones; nan becomes None."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def interval(function: Callable[..., rates.Interval]) -> Callable[..., Result]:
    return lambda **args: function(**args)._asdict()


def value(key: str, function: Callable[..., Any]) -> Callable[..., Result]:
    return lambda **args: {key: function(**args)}


def fields(function: Callable[..., Any]) -> Callable[..., Result]:
    """Result of a function that returns a flat dataclass or named tuple."""

    def run(**args: Any) -> Result:
        result = function(**args)
        if hasattr(result, "_asdict"):
            return dict(result._asdict())
        return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}

    return run


def delta_se(**args: Any) -> Result:
    est, se = deltas.delta_se(**args)
    return {"est": est, "se": se}


def delta_paired(**args: Any) -> Result:
    return fields(deltas.delta_paired)(**args)


def tost(**args: Any) -> Result:
    """The reference tests equivalence with the paired t, unguarded, unless it names a target."""
    counts = {key: args.pop(key) for key in COUNTS}
    target = args.pop("target", "population")
    estimator = deltas.delta_t if target == "population" else deltas.delta_se_fixed
    result = equivalence.tost(estimator(**counts), **args)
    return equivalence_result(result)


def equivalence_result(result: equivalence.Equivalence) -> Result:
    return {
        "p": result.p,
        "lo": result.interval.lo,
        "hi": result.interval.hi,
        "equivalent": str(result.shown),
        "bound": result.smallest,
    }


def delta_degenerate(**args: Any) -> Result:
    margin, alpha = args.pop("margin"), args.pop("alpha", 0.05)
    delta = deltas.delta_paired(**args)
    result = equivalence.tost(delta, margin, alpha)
    return {
        **equivalence_result(result),
        "method": delta.method,
        "est": delta.est,
        "se": delta.se,
        "p": delta.p,
        "p_tost": result.p,
    }


def cochran_armitage(**args: Any) -> Result:
    result = trend.cochran_armitage(**args)
    return {"z": result.z, "z2": result.z**2, "p": result.p}


def trend_stratified(**args: Any) -> Result:
    return fields(trend.trend_stratified)(x=args.pop("X"), n=args.pop("N"), **args)


def gap(**args: Any) -> Result:
    if "configs" in args:
        args["configs"] = CONFIGS.get(args["configs"], args["configs"])
    return fields(gaps.gap_verdict)(**args)


def flip_p(**args: Any) -> Result:
    n = args.pop("n", None)
    return {"p": movers.flip_p(args["x1"], args.get("n1", n), args["x0"], args.get("n0", n))}


def decompose(**args: Any) -> Result:
    if "q_source" in args:
        args["q_source"] = Q_SOURCES[args["q_source"]]
    return fields(decomposition.decompose)(**args)


def slot_components(**args: Any) -> Result:
    result = slots.slot_components(**args)
    return {**fields(slots.slot_components)(**args), "Q": result.q, "tau2": result.sigma2}


def planned(function: Callable[..., int | None]) -> Callable[..., Result]:
    return lambda **args: {"k": function(tasks=args.pop("T"), **args)}


def calibrate(**args: Any) -> Result:
    result = calibration.calibrate(args.pop("X"), args.pop("E"), args.pop("k"), **args)
    return {
        "status": result.status,
        "pick": result.pick,
        "candidate": result.candidate,
        "p_infra": [row.p_infra for row in result.rows],
        "p_infra_holm": [row.p_infra_holm for row in result.rows],
        "cut": [row.cut for row in result.rows],
        "delta": [row.score.est for row in result.rows],
        "se": [row.score.se for row in result.rows],
        "df": [row.score.df for row in result.rows],
        "p_tost": [row.equivalence.p for row in result.rows],
    }


ESTIMATORS: dict[str, Callable[..., Result]] = {
    "wilson": interval(rates.wilson),
    "clopper_pearson": interval(rates.clopper_pearson),
    "jeffreys": interval(rates.jeffreys),
    "korn_graubard": interval(rates.korn_graubard),
    "rate_ci": interval(rates.rate_ci),
    "rate_ci_benchmark": interval(rates.rate_ci),
    "rate_ci_population": lambda **args: rates.rate_ci(**args, target="population")._asdict(),
    "mean_rate": value("mean", rates.mean_rate),
    "se_fixed": value("se", rates.se_fixed),
    "se_cluster": value("se", rates.se_cluster),
    "icc": value("icc", rates.icc),
    "within_task_variance": value("sw2", rates.within_task_variance),
    "newcombe": interval(deltas.newcombe),
    "newcombe_paired": interval(deltas.newcombe_paired),
    "delta_se": delta_se,
    "delta_se_fixed": fields(deltas.delta_se_fixed),
    "delta_t": fields(deltas.delta_t),
    "delta_paired": delta_paired,
    "delta_degenerate": delta_degenerate,
    "cmh_exact_p": value("p", deltas.cmh_exact_p),
    "cmh_z2": value("z2", deltas.cmh_z2),
    "two_prop_z_p": value("p", deltas.two_prop_z_p),
    "signflip": value("p", deltas.signflip),
    "tost": tost,
    "holm": value("adj", multiplicity.holm),
    "bh": value("adj", multiplicity.bh),
    "cochran_armitage": cochran_armitage,
    "trend_stratified": trend_stratified,
    "isotonic": value("fit", trend.isotonic),
    "calibrate": calibrate,
    "accounting": fields(decomposition.accounting),
    "decompose": decompose,
    "score_variants": fields(variants.score_variants),
    "flip_p": flip_p,
    "gap": gap,
    "cv_bias": value("cv", gaps.cv_bias),
    "plan_k": planned(planning.plan_k),
    "plan_k_tost": planned(planning.plan_k_tost),
    "mde": lambda **args: {"mde": planning.mde(tasks=args.pop("T"), **args)},
    "gs_bounds": value("b", sequential.gs_bounds),
    "gs_spend": value("spent", sequential.gs_spend),
    "asymp_cs": interval(sequential.asymp_cs),
    "mcnemar_evalue": value("e", sequential.mcnemar_evalue),
    "slots": slot_components,
}
