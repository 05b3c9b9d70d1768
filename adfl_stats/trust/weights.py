"""Discrepancy of a client, equation (4.4), and the weight exp(-lambda s) that it gives.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from adfl_stats._types import Array, Mask
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.losses.point_sums import plain_scores
from adfl_stats.trust.minibatch_scores import minibatch_excess

__all__ = [
    "MEASURES",
    "adaptive_weights",
    "discrepancies",
    "discrepancy_unit",
    "disputed",
    "majority",
    "smallest_majority",
]


MEASURES = ("norm", "score", "loss")
# A client with less than this share of the largest weight is down-weighted. Ours: a tenth of a full weight.
TRUST = 0.1
# Quantile of chi-square below which ``measure="score"`` gives no discrepancy. Ours: the usual level of a test.
QUANTILE = 0.95
# Two sets of flags disagree where they differ about more than this share of the clients. Ours: for a note only.
DISAGREEMENT = 0.05
# Discrepancy and score of a client whose numbers overflow: finite, so that zero times it is zero.
LARGEST = 1e150


def discrepancies(problem: Problem, theta: Array, measure: str) -> Array:
    """Return every client's discrepancy s_m at its own estimate, a row of theta (M, P).

    "norm" is the norm of its gradient, as in equation (4.4); "score" by how much the square root of Rao's
    score statistic exceeds that of its chi-square 95 % point, and zero below. The statistic is `plain_scores`, with
    one dispersion for all clients; flags and `screen` use that of the model of clients with its calibrated null.
    Of losses without curvature it is the excess of the gradient's norm over its sampling error, by minibatches.
    "loss" is the client's own mean loss, for any losses (ours).
    """
    if measure == "loss" and problem.has_curvature:
        raise ValueError("measure='loss' is for losses of your own; a generalised linear model has 'score' and 'norm'")
    if measure in ("norm", "loss"):
        losses = measure == "loss"
        values = problem.own_losses(theta) if losses else np.linalg.norm(problem.whole_gradients(theta), axis=1)
        return np.where(problem.objective.counted, values.astype(np.float64), LARGEST)
    if not problem.has_curvature:
        return np.minimum(minibatch_excess(problem, theta, QUANTILE), LARGEST)
    scores, ranks = plain_scores(problem.glm.data, problem.glm.family, theta, problem.transport.gather)
    # A client without information has rank zero and score zero.
    usual = np.sqrt(stats.chi2.ppf(QUANTILE, np.maximum(ranks, 1)))
    return np.clip(np.sqrt(scores) - usual, 0.0, LARGEST)


def discrepancy_unit(discrepancy: Array, measure: str) -> float:
    """Return the unit of 1 / lambda: the median discrepancy.

    The excess score has a scale of its own, below which its median does not count.
    """
    return max(float(np.median(discrepancy)), 1.0 if measure == "score" else np.finfo(float).tiny)


def adaptive_weights(discrepancy: Array, lam: float, members: Members = EVERYBODY) -> Array:
    """Return exp(-lam s_m) over its largest value among all clients.

    Examples
    --------
    >>> adaptive_weights(np.array([1.0, 2.0]), 1e4).tolist()
    [1.0, 0.0]
    """
    return np.exp(-lam * (discrepancy + members.transport.largest(-discrepancy)))


def trusted_by(weights: Array, members: Members = EVERYBODY) -> Mask:
    """Return which clients are not down-weighted; weights (M,) or (M, R)."""
    return np.asarray(weights >= TRUST * members.transport.largest(weights))


def majority(M: int) -> int:
    """Return the smallest number of M clients that is a majority: floor(M / 2) + 1."""
    return min(M, M // 2 + 1)


def smallest_majority(scores: Array, members: Members = EVERYBODY) -> Mask:
    """Return which clients have the floor(M / 2) + 1 smallest of the scores (M, R) of all, in each column."""
    every = members.gather(scores)
    chosen = np.zeros(every.shape, dtype=bool)
    order = np.argsort(every, axis=0, kind="stable")[: majority(len(every))]
    np.put_along_axis(chosen, order, True, axis=0)
    return members.ours(chosen)


def disputed(flagged: Mask, other: Mask) -> int:
    """Return about how many clients two sets of flags differ, and zero where these are few."""
    apart = int((flagged != other).sum())
    return apart if apart > max(2.0, DISAGREEMENT * len(flagged)) else 0
