"""What speaks against each client at the estimate, in a second pass over the data.

The pass needs the curvature of all clients together, and leaves a few numbers a client, so that results
can screen clients without the data. With S_k the score of client k (sum over its rows of the loss's
gradient), J_k its information and a_k its weight per row in the estimating equation sum_k a_k S_k = 0, the
estimate moves the score of client m to

    s_m = S_m - J_m H^-1 sum_k a_k S_k,    H = sum_k a_k J_k,

whose variance, per unit of dispersion and for given weights, is

    V_m = J_m - J_m C_m J_m,    C_m = 2 a_m H^-1 - H^-1 (sum_k a_k^2 J_k) H^-1.

For a client that counts fully C_m is positive: its own data pulled the estimate its way. For one without
weight it is negative: the estimate has an error of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from adfl_stats._algebra import inverse
from adfl_stats.data import ClientData
from adfl_stats.evaluation import Evaluation
from adfl_stats.families import Family
from adfl_stats.moments import ClientMoments, client_moments, linear_predictor

__all__ = ["Evidence", "gather_evidence"]

Array = NDArray[np.float64]

# A direction in which the client decides the estimate by itself leaves less than this share of its variance.
LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Evidence:
    """One entry a client; quadratic forms are per unit of dispersion.

    Attributes
    ----------
    statistic : ndarray (M,)
        s_m' V_m^+ s_m.
    rank : ndarray (M,)
        Rank of V_m, the statistic's mean under the model.
    dispersion : ndarray (M,)
        Mean of the squared Pearson residuals.
    expected_peak, peak : ndarray (M,)
        With e_i the quadratic form of row i's score in J_m^+: what the sum of e_i^2 would be for normal
        scores, and what it is (times the dispersion squared). They give the statistic's variance.
    mirror, mirror_mean : ndarray (M,)
        4 s_1' J_m^+ s_2 for the scores of two halves of the client's rows (every other row), and its mean
        under the model per unit of dispersion.
    shift : ndarray (M, P)
        How the estimate would move without the client: one Newton step, exact in the Gaussian model; NaN
        where the estimate solves no equation, or cannot do without the client.
    """

    statistic: Array
    rank: NDArray[np.int64]
    dispersion: Array
    expected_peak: Array
    peak: Array
    mirror: Array
    mirror_mean: Array
    shift: Array


def gather_evidence(
    data: ClientData, family: Family, theta: Array, weights: Array, found: Evaluation, *, smooth: bool
) -> Evidence:
    """Look at every client's score at theta.

    Parameters
    ----------
    data, family, theta
        As in `evaluate`.
    weights : ndarray (M,)
        The clients' total weights v_m.
    found : Evaluation
        What `evaluate` returned for these.
    smooth : bool
        Whether theta solves the weighted estimating equation. If not (medians do not) it is taken as
        given, C_m = 0.
    """
    M, P = data.n_clients, len(theta)
    alone = weights / (M * data.totals)
    if smooth:
        bread = inverse(found.information)
        error = bread @ found.model_meat @ bread
        rest = inverse(found.hessian) @ (weights @ found.gradients) / M
    vectors = {name: np.zeros(M) for name in _NUMBERS}
    rank, shift = np.zeros(M, dtype=np.int64), np.full((M, P), np.nan)
    for m in range(M):
        total, moments = data.totals[m], client_moments(data, family, theta, m)
        C = 2.0 * alone[m] * bread - error if smooth else np.zeros((P, P))
        factor = _root_of_inverse(total * moments.information)
        numbers = _quadratic_forms(total * moments.gradient, total * moments.information @ factor, factor, C)
        numbers |= _row_forms(data, family, theta, m, factor)
        rank[m] = numbers.pop("rank")
        for name, value in (numbers | {"dispersion": moments.dispersion}).items():
            vectors[name][m] = value
        if smooth:
            shift[m] = _without(found.hessian, alone[m] * total, moments, rest)
    return Evidence(rank=rank, shift=shift, **vectors)


_NUMBERS = ("statistic", "dispersion", "expected_peak", "peak", "mirror", "mirror_mean")


def _root_of_inverse(J: Array) -> Array:
    """Return F (P, r) with F'JF = I and r the rank of J, so that s' F F' s = s' J^+ s for s in the range of J."""
    size = np.sqrt(np.diag(J))
    unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
    scaled = J * np.outer(unit, unit)
    lower, failed = linalg.lapack.dpotrf(scaled, lower=True)
    # As for the score statistic: pivots are what a unit column has left beside those before it.
    if not failed and np.diag(lower).min() > 1e-4:
        return unit[:, None] * linalg.lapack.dtrtri(lower, lower=True)[0].T
    values, vectors = np.linalg.eigh(scaled)
    keep = values > max(values[-1], 0.0) * len(values) * 1e-12
    return unit[:, None] * vectors[:, keep] / np.sqrt(values[keep])


def _quadratic_forms(s: Array, JF: Array, factor: Array, C: Array) -> dict[str, float]:
    """Return s' V^+ s, its rank, and the mean of the mirror statistic, in coordinates where J is the identity."""
    pulled = JF.T @ C @ JF
    along, variance = factor.T @ s, np.eye(len(pulled)) - pulled
    lower, failed = linalg.lapack.dpotrf(variance, lower=True)
    if len(along) and not failed and np.diag(lower).min() ** 2 > LEAST_VARIANCE:
        z = linalg.solve_triangular(lower, along, lower=True)
    else:
        values, vectors = np.linalg.eigh(variance)
        keep = values > LEAST_VARIANCE
        z = vectors[:, keep].T @ along / np.sqrt(values[keep])
    return {"statistic": float(z @ z), "rank": len(z), "mirror_mean": -float(np.trace(pulled))}


def _row_forms(data: ClientData, family: Family, theta: Array, m: int, factor: Array) -> dict[str, float]:
    """Return the peaks and the mirror statistic of client m."""
    halves = np.zeros((2, factor.shape[1]))
    expected = peak = 0.0
    by_output = factor.reshape(family.outputs, data.X.shape[1], factor.shape[1])
    for rows in data.blocks(m):
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        residual = (family.residual(eta, y) * (weight if eta.ndim == 1 else weight[:, None])).reshape(len(y), -1)
        information = (weight * family.information(eta).T).T.reshape(len(y), family.outputs, family.outputs)
        along = [X @ part for part in by_output]
        scores = np.add.reduce([r[:, None] * z for r, z in zip(residual.T, along, strict=True)])
        halves += scores[::2].sum(axis=0), scores[1::2].sum(axis=0)
        peak += float(np.square(np.einsum("ij,ij->i", scores, scores)).sum())
        gram = np.stack([[np.einsum("ij,ij->i", z, other) for other in along] for z in along], axis=-1)
        share = information @ gram.transpose(1, 2, 0)
        expected += float(np.square(np.einsum("ijj->i", share)).sum() + 2.0 * np.einsum("ijk,ikj->", share, share))
    return {"expected_peak": expected, "peak": peak, "mirror": 4.0 * float(halves[0] @ halves[1])}


def _without(H: Array, share: float, moments: ClientMoments, rest: Array) -> Array:
    """Return the Newton step from the solution of the equation to that of the equation without the client.

    `rest` is how far the estimate is from the solution itself; it is taken off, or it would be laid to
    the client's account.
    """
    if share == 0.0:
        return np.zeros(len(H))
    gradient = moments.gradient - moments.hessian @ rest
    others = H - share * moments.hessian
    size = np.sqrt(np.diag(H))
    factor, failed = linalg.lapack.dpotrf(others / np.outer(size, size), lower=True)
    if failed or np.diag(factor).min() < 1e-6:
        return np.full(len(H), np.nan)
    return share * linalg.cho_solve((factor, True), gradient / size) / size
