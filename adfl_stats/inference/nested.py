"""Tests of nested models by likelihood ratio and by score, and goodness of fit of each client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.linalg import null_space

from adfl_stats._archives import digest
from adfl_stats._arguments import one_of
from adfl_stats._types import Array
from adfl_stats._warn import warn
from adfl_stats.data.batches import batches, of_clients, row_blocks
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.transport import Members
from adfl_stats.errors import ConditionWarning
from adfl_stats.inference.nested_designs import NestedDesigns, check_places, rows_of_fit, rows_of_model
from adfl_stats.inference.sites import Site, agree_on, at_sites, model_of
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import WeightedSums, sums_at

if TYPE_CHECKING:
    from adfl_stats.inference.record import FitRecord
    from adfl_stats.inference.results import Results

__all__ = ["goodness_by_client", "likelihood_ratio_test", "score_test"]

SCORE_COVARIANCES = ("sandwich", "nonrobust", "cluster")
# Constants that families estimate before a fit, and how they are given.
CONSTANTS = {
    "negativebinomial": ("alpha", "ad.family('negativebinomial', alpha=...)"),
    "huber": ("k", "ad.Huber(scale=...)"),
}


def likelihood_ratio_test(res: Results, restricted: Any) -> tuple[float, float, float]:
    """Return statistic, p-value and degrees of freedom of a restricted fit against this one."""
    small, large = _record_of(restricted, "restricted"), res.record
    estimate = digest(small.params, small.weights)
    agree_on(res, "compare_lr_test()", {"the columns of restricted": small.columns, "its estimate": estimate})
    _check_families(small.family, large.family, ("restricted", "this fit"))
    for fit in (small, large):
        if fit.penalty is not None or not fit.smooth:
            raise ValueError("a likelihood ratio test needs maximum likelihood fits, without a penalty; use wald_test")
    names = ("restricted", "this fit")
    designs = NestedDesigns(rows_of_fit(restricted, names[0]), rows_of_fit(res, names[1]), names)
    check_places(res, restricted.model, "restricted")
    at_sites(res, "compare_lr_test()", lambda site: designs.at(site)[1])
    if not (small.trusted == large.trusted).all():
        raise ValueError(
            "the two fits trust different clients, so that their likelihoods are of different data; fit the restricted "
            "model with ad.DFL(weights=res.client_weights)"
        )
    if large.glance.differ:
        warn(
            "clients differ, which a likelihood ratio test does not allow for: its p-value is too small. Use wald_test",
            ConditionWarning,
        )
    statistic = 2.0 * (res.llf - restricted.llf)
    df = float(len(large.names) - len(small.names))
    return float(statistic), float(stats.chi2.sf(max(statistic, 0.0), df)), df


def score_test(res: Results, larger: Any, cov_type: str | None) -> tuple[float, float, float]:
    """Return statistic, p-value and degrees of freedom of the further columns of a larger model, at this fit."""
    if not all(hasattr(type(larger), part) for part in ("fit", "from_formula")) or isinstance(larger, type):
        raise TypeError(f"larger is a {type(larger).__name__}; pass a DecentralizedGLM with further columns")
    fit, rows, family = res.record, larger.rows, repr(larger.family)
    facts = {"the columns of larger": rows.data.names, "its family": family, "its rows": digest(rows.digests)}
    agree_on(res, f"score_test({cov_type})", facts)
    kind = one_of(cov_type, "cov_type", SCORE_COVARIANCES) if cov_type is not None else None
    if kind is None:
        kind = "cluster" if fit.cov_type.startswith("CR") else "sandwich"
    if not fit.smooth or fit.penalty is not None:
        raise ValueError("a score test needs an estimate that solves the estimating equation, without a penalty")
    _check_families(fit.family, larger.family, ("this fit", "larger"))
    designs = NestedDesigns(rows_of_fit(res, "this fit"), rows_of_model(larger, fit), ("this fit", "larger"))
    check_places(res, larger, "larger")

    def work(site: Site) -> tuple[float, float, float]:
        data, B = designs.at(site)
        members, q = site.members, fit.family.outputs
        weights = members.ours(fit.total_weights)
        theta, parts = res.params.to_numpy().reshape(q, -1) @ B.T, site.place.batches()
        point = sums_at(data, larger.family, theta.ravel(), weights, total=members.total, parts=parts)
        directions = _directions(B, data, q, members)
        return _efficient_score(point.weighted_sums, weights, directions, kind, res.scale, members)

    return at_sites(res, f"score_test({kind})", work)


def _check_families(small: Family, large: Family, names: tuple[str, str]) -> None:
    """Raise ValueError where two models have different families, or one with constants of its own."""
    if small == large:
        return
    if (small.name, small.link) == (large.name, large.link) and small.name in CONSTANTS:
        constant, given = CONSTANTS[small.name]
        raise ValueError(
            f"{names[0]} and {names[1]} have the family {small.label} with another {constant}, {small.par:.6g} and "
            f"{large.par:.6g}, as it is estimated before each fit. Give both models the same, {given}"
        )
    raise ValueError(f"the families differ: {names[0]} has {small.label!r} and {names[1]} {large.label!r}")


def _directions(B: Array, data: ClientData, outputs: int, members: Members) -> tuple[Array, Array]:
    """Return the coefficients' directions inside the small model and those that it lacks, (P, P_small), (P, df).

    The second may be any that complete the first: the statistic does not depend on which. They are orthogonal to it in
    units in which the columns are alike.
    """

    def squares(at: slice) -> Array:
        summed, (low, high, _) = np.zeros(len(B)), at.indices(data.n_clients)
        some = of_clients(data, slice(low, high))
        for rows in row_blocks(some):
            summed += np.square(some.X[rows]).sum(axis=0)
        return summed

    size = np.sqrt(members.total(squares))
    lacking = null_space((size[:, None] * B).T) / size[:, None]
    each: Array = np.eye(outputs)
    return np.asarray(np.kron(each, B), dtype=np.float64), np.asarray(np.kron(each, lacking), dtype=np.float64)


def _efficient_score(
    at: WeightedSums,
    total_weights: Array,
    directions: tuple[Array, Array],
    kind: str,
    scale: float,
    members: Members,
) -> tuple[float, float, float]:
    """Return the score statistic of the directions that the small model lacks, given those that it has."""
    (inside, lacking), H = directions, at.hessian
    C = lacking.T - lacking.T @ H @ inside @ np.linalg.solve(inside.T @ H @ inside, inside.T)
    scores = at.gradients * (total_weights / members.count(np.ones(len(total_weights))))[:, None]
    if kind == "nonrobust":
        variance = C @ (scale * at.model_meat) @ C.T
    elif kind == "sandwich":
        variance = C @ at.meat @ C.T
    else:

        def squares(some: slice) -> Array:
            by_client = scores[some] @ C.T
            return by_client.T @ by_client

        variance = members.total(squares)
    score = C @ members.sum(scores)
    statistic, df = float(score @ np.linalg.solve(variance, score)), float(len(C))
    return statistic, float(stats.chi2.sf(statistic, df)), df


def goodness_by_client(res: Results) -> pd.DataFrame:
    """Return deviance and Pearson's chi-square of each client at the estimate."""
    model, _ = model_of(res, "goodness_of_fit")

    def work(site: Site) -> Array:
        return site.members.gather(_goodness(site.ours(model.data), model.family, res.params.to_numpy()))

    deviance, pearson, fourth = at_sites(res, "goodness_of_fit()", work).T
    sizes, trusted = res.record.sizes, res.record.trusted
    n = sizes.astype(np.float64)
    # The typical row is that of the trusted clients: its squared residual has mean m and variance v.
    rows = n[trusted].sum()
    mean = pearson[trusted].sum() / rows
    variance = max(fourth[trusted].sum() / rows - mean**2, np.finfo(float).tiny)
    scale = variance / (2.0 * mean)
    p_values = stats.chi2.sf(pearson / scale, n * mean / scale)
    table = {"n": sizes, "deviance": deviance, "pearson": pearson, "pearson / n": pearson / n, "p_value": p_values}
    return pd.DataFrame(table, index=res.record.labels.rename(res.record.client_name))


def _goodness(data: ClientData, family: Family, theta: Array) -> Array:
    """Return deviance, Pearson's chi-square and the sum of the squares of its terms of each client, (M, 3)."""
    found = np.zeros((3, data.n_clients))
    deviance, pearson, fourth = found
    with np.errstate(over="ignore", invalid="ignore"):
        for batch in batches(data, 1):
            y, weight = data.y[batch.rows], data.weights_of(batch.rows)
            eta = linear_predictor(data, family, theta, batch.rows)
            squares = weight * family.dispersion_terms(eta, y)
            deviance[batch.clients] += batch.sums(weight * family.deviance(eta, y))
            pearson[batch.clients] += batch.sums(squares)
            fourth[batch.clients] += batch.sums(squares**2)
    return found.T


def _record_of(res: Any, name: str) -> FitRecord:
    fit = getattr(res, "record", None)
    if fit is None or not hasattr(fit, "family"):
        raise TypeError(f"{name} is a {type(res).__name__}; pass the results of a fit")
    return fit
