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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._algebra import inverse, roots_of_inverses, stacked_cholesky
from adfl_stats._batches import Batch, whole_clients
from adfl_stats.data import ClientData
from adfl_stats.evaluation import Evaluation
from adfl_stats.families import Family
from adfl_stats.moments import ClientMoments, linear_predictor, moments, scaled

__all__ = ["Evidence", "gather_evidence"]

Array = NDArray[np.float64]

# A direction in which the client decides the estimate by itself leaves less than this share of its variance.
LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Evidence:
    """One entry a client; quadratic forms are per unit of dispersion, infinite for clients that are set aside.

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
    bread, error, rest = np.zeros((P, P)), np.zeros((P, P)), np.zeros(P)
    if smooth:
        bread = inverse(found.information)
        error = bread @ found.model_meat @ bread
        rest = inverse(found.hessian) @ (weights @ found.gradients) / M
    parts = []
    for pieces in whole_clients(data, P):
        at = pieces[0].clients
        total, clients = data.totals[at], moments(data, family, theta[None], pieces)
        J = total[:, None, None] * clients.information
        roots, ranks = roots_of_inverses(J)
        C = 2.0 * alone[at, None, None] * bread - error
        part = _quadratic_forms(total[:, None] * clients.gradient, J @ roots, roots, ranks, C)
        part |= _row_forms(data, family, theta, pieces, roots) | {"dispersion": clients.dispersion}
        part["shift"] = (
            _without(found.hessian, alone[at] * total, clients, rest) if smooth else np.full((len(total), P), np.nan)
        )
        parts.append(part)
    gathered = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if data.set_aside is not None:
        # Nothing can be said for a client whose numbers overflow; its residuals are no one's scale.
        gathered["dispersion"][data.set_aside] = np.median(gathered["dispersion"][data.counted])
        gathered["rank"][data.set_aside] = P
        for name in ("statistic", "mirror"):
            gathered[name][data.set_aside] = np.inf
    return Evidence(**gathered)


def _quadratic_forms(s: Array, JF: Array, roots: Array, ranks: NDArray[np.int64], C: Array) -> dict[str, NDArray[Any]]:
    """Return s' V^+ s, its rank, and the mean of the mirror statistic, in coordinates where J is the identity.

    Coordinates beyond the rank of J are zero in s and in J C J, and count for nothing.
    """
    pulled = JF.transpose(0, 2, 1) @ C @ JF
    along, variance = (s[:, None, :] @ roots).transpose(0, 2, 1), np.eye(s.shape[1]) - pulled
    lower, full = stacked_cholesky(variance, np.sqrt(LEAST_VARIANCE))
    statistic, rank = np.empty(len(s)), ranks.copy()
    statistic[full] = np.square(np.linalg.solve(lower[full], along[full])).sum(axis=(1, 2))
    values, vectors = np.linalg.eigh(variance[~full])
    keep = values > LEAST_VARIANCE
    squares = np.square(vectors.transpose(0, 2, 1) @ along[~full])[:, :, 0]
    statistic[~full] = np.divide(squares, values, out=np.zeros_like(values), where=keep).sum(axis=1)
    rank[~full] -= (~keep).sum(axis=1)
    return {"statistic": statistic, "rank": rank, "mirror_mean": -np.trace(pulled, axis1=1, axis2=2)}


def _row_forms(data: ClientData, family: Family, theta: Array, pieces: list[Batch], roots: Array) -> dict[str, Array]:
    """Return the peaks and the mirror statistics of the clients whose rows `pieces` hold."""
    clients, (C, P, _) = pieces[0].clients, roots.shape
    halves, expected, peak = np.zeros((2, C, P)), np.zeros(C), np.zeros(C)
    by_output = roots.reshape(C, family.outputs, -1, P)
    for piece in pieces:
        rows = piece.rows
        y, weight = data.y[rows], data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        residual = scaled(family.residual(eta, y), weight).reshape(len(y), -1)
        information = (weight * family.information(eta).T).T.reshape(len(y), family.outputs, family.outputs)
        along = [piece.times(data.X[rows], by_output[:, j]) for j in range(family.outputs)]
        gram = np.stack([[np.einsum("ij,ij->i", z, other) for other in along] for z in along], axis=-1)
        share = information @ gram.transpose(1, 2, 0)
        normal = np.square(np.einsum("ijj->i", share)) + 2.0 * np.einsum("ijk,ikj->i", share, share)
        expected += piece.sums(normal)
        scores = np.add.reduce([r[:, None] * z for r, z in zip(residual.T, along, strict=True)])
        peak += piece.sums(np.square(np.einsum("ij,ij->i", scores, scores)))
        second = (np.arange(rows.start, rows.stop) - piece.spread(data.offsets[clients])) % 2 == 1
        halves[1] += piece.sums(scores * second[:, None])
        halves[0] += piece.sums(scores * ~second[:, None])
    return {"expected_peak": expected, "peak": peak, "mirror": 4.0 * np.einsum("ij,ij->i", *halves)}


def _without(H: Array, share: Array, clients: ClientMoments, rest: Array) -> Array:
    """Return the Newton steps from the solution of the equation to that of the equation without each client.

    `share` (C,) is what the client's mean loss counts in the equation. `rest` is how far the estimate is
    from the solution itself; it is taken off, or it would be laid to the client's account.
    """
    size = np.sqrt(np.diag(H))
    others = (H - share[:, None, None] * clients.hessian) / np.outer(size, size)
    _, possible = stacked_cholesky(others, 1e-6)
    gradient = (clients.gradient - clients.hessian @ rest) / size
    steps = np.full(gradient.shape, np.nan)
    steps[possible] = np.linalg.solve(others[possible], gradient[possible, :, None])[:, :, 0] / size
    steps[possible] *= share[possible, None]
    steps[share == 0.0] = 0.0
    return steps
