"""Two things more about each client at the estimate, in a second pass over the data.

The mirror statistic multiplies the scores of two halves of a client's rows. With S_k the score of client k (sum over
its rows of the loss's gradient), J_k its information and a_k its weight per row in the estimating equation
sum_k a_k S_k = 0, the estimate moves the score of client m to

    s_m = S_m - J_m H^-1 sum_k a_k S_k,    H = sum_k a_k J_k,

whose variance, per unit of dispersion and for given weights, is J_m - J_m C_m J_m with

    C_m = 2 a_m H^-1 - H^-1 (sum_k a_k^2 J_k) H^-1,

so that the statistic has mean - tr(J_m C_m). The shift is how the estimate would move without the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import inverse, roots_of_inverses, stacked_cholesky
from adfl_stats._types import Array
from adfl_stats.data.batches import Batch, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import ClientMoments, linear_predictor, moments, scaled
from adfl_stats.losses.evaluation import Evaluation
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge

__all__ = ["Evidence", "gather_evidence"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """One entry a client; quadratic forms are per unit of dispersion, infinite for clients that are set aside.

    Attributes
    ----------
    mirror, mirror_mean : ndarray (M,)
        4 s_1' J_m^+ s_2 for the scores of two halves of the client's rows (every other row), and its mean
        under the model per unit of dispersion.
    shift : ndarray (M, P)
        How the estimate would move without the client: one Newton step, exact in the Gaussian model; NaN
        where the estimate solves no equation, or cannot do without the client.
    """

    mirror: Array
    mirror_mean: Array
    shift: Array


def gather_evidence(
    data: ClientData,
    family: Family,
    theta: Array,
    weights: Array,
    found: Evaluation,
    *,
    smooth: bool,
    penalty: Ridge | None = None,
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
    penalty : Ridge, optional
        Part of the equation, with each client's share of it.
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
        roots, _ = roots_of_inverses(J)
        C = 2.0 * alone[at, None, None] * bread - error
        pulled = np.einsum("mij,mji->m", J, C @ J @ roots @ roots.transpose(0, 2, 1))
        shift = np.full((len(total), P), np.nan)
        if smooth:
            shift = _without(found.hessian, alone[at] * total, clients.penalised(penalty, theta), rest)
        mirror = _mirrors(data, family, theta, pieces, roots)
        parts.append({"mirror": mirror, "mirror_mean": -pulled, "shift": shift})
    gathered = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if data.set_aside is not None:
        # Nothing can be said for a client whose numbers overflow.
        gathered["mirror"][data.set_aside] = np.inf
    return Evidence(**gathered)


def _mirrors(data: ClientData, family: Family, theta: Array, pieces: list[Batch], roots: Array) -> Array:
    """Return the mirror statistics of the clients whose rows `pieces` hold."""
    clients, (C, P, _) = pieces[0].clients, roots.shape
    halves = np.zeros((2, C, P))
    for piece in pieces:
        rows = piece.rows
        residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
        residual = scaled(residual, data.weights_of(rows)).reshape(len(residual), -1)
        second = (np.arange(rows.start, rows.stop) - piece.spread(data.offsets[clients])) % 2 == 1
        for half, mask in zip(halves, (~second, second), strict=True):
            half += piece.cross(residual * mask[:, None], data.X[rows]).reshape(C, P)
    first, other = (half[:, None, :] @ roots for half in halves)
    return np.asarray(4.0 * (first * other).sum(axis=(1, 2)))


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
