"""Mirror statistic and deletion shift of each client at the estimate.

The mirror statistic multiplies the scores of two halves of a client's rows. With S_k the score of client k (sum over
its rows of the loss's gradient), J_k its information and a_k its weight per row in the estimating equation
sum_k a_k S_k = 0, the estimate moves the score of client m to

    s_m = S_m - J_m H^-1 sum_k a_k S_k,    H = sum_k a_k J_k,

whose variance, per unit of dispersion and for given weights, is J_m - J_m C_m J_m with

    C_m = 2 a_m H^-1 - H^-1 (sum_k a_k^2 J_k) H^-1,

so that the statistic has mean - tr(J_m C_m). The deletion shift is how the estimate would move without the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import inverse, roots_of_inverses, stacked_cholesky
from adfl_stats._types import Array
from adfl_stats.data.batches import client_chunks
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.losses.client_sums import ClientSums
from adfl_stats.losses.point_sums import PointSums

__all__ = ["ClientDiagnostics", "gather_diagnostics"]


@dataclass(frozen=True, eq=False)
class ClientDiagnostics:
    """One entry a client; quadratic forms are per unit of dispersion, infinite for clients that are set aside.

    Attributes
    ----------
    mirror, mirror_mean : ndarray (M,)
        4 s_1' J_m^+ s_2 for the scores of two halves of the client's rows (every other row), and its mean
        under the model per unit of dispersion.
    deletion_shift : ndarray (M, P)
        How the estimate would move without the client: one Newton step, exact in the Gaussian model; NaN
        where the estimate solves no equation, or cannot do without the client.
    """

    mirror: Array
    mirror_mean: Array
    deletion_shift: Array


def gather_diagnostics(
    data: ClientData, weights: Array, point: PointSums, *, smooth: bool, members: Members = EVERYBODY
) -> ClientDiagnostics:
    """Compute mirror statistics and deletion shifts of all clients at the estimate.

    Parameters
    ----------
    data : ClientData
        The clients' sizes; no row is read.
    weights : ndarray (M,)
        The clients' total weights v_m.
    point : PointSums
        What `sums_at` found at the estimate.
    smooth : bool
        Whether the estimate solves the weighted estimating equation. If not (medians do not) it is taken as
        given, C_m = 0.
    members : Members
        The clients; the rows of what is returned are ours.
    """
    (M, P), seen = point.halves.shape, point.weighted_sums
    everybody = members.count(np.ones(M, dtype=bool))
    alone = weights / (everybody * data.totals)
    bread, error, rest = np.zeros((P, P)), np.zeros((P, P)), np.zeros(P)
    if smooth:
        bread = inverse(seen.information)
        error = bread @ seen.model_meat @ bread
        slope = members.sum_products(weights, seen.gradients)
        rest = inverse(seen.hessian) @ slope / everybody
    mirror, mirror_mean, deletion_shift = np.empty(M), np.empty(M), np.full((M, P), np.nan)
    for at in client_chunks(M, P):
        J = data.totals[at, None, None] * point.clients.information[at]
        roots, _ = roots_of_inverses(J)
        first, whole = point.halves[at], data.totals[at, None] * point.clients.gradient[at]
        mirror[at] = 4.0 * ((first[:, None] @ roots) * ((whole - first)[:, None] @ roots)).sum(axis=(1, 2))
        C = 2.0 * alone[at, None, None] * bread - error
        mirror_mean[at] = -np.einsum("mij,mji->m", J, C @ J @ roots @ roots.transpose(0, 2, 1))
        if smooth:
            some = point.clients.of(at)
            deletion_shift[at] = _without(seen.hessian, alone[at] * data.totals[at], some, rest)
    # A client whose numbers overflow is flagged.
    mirror[~data.counted] = np.inf
    return ClientDiagnostics(mirror, mirror_mean, deletion_shift)


def _without(H: Array, share: Array, clients: ClientSums, rest: Array) -> Array:
    """Return the Newton steps from the solution of the equation to that of the equation without each client.

    `share` (C,) is what the client's mean loss counts in the equation. `rest` is how far the estimate is
    from the solution itself; it is subtracted, as it is not an effect of the client.
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
