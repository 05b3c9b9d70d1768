"""What Conditions 3 and 4 of the paper ask of each client: curvature that is bounded away from zero, light tails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints
from adfl_stats.data.batches import batches
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import ClientMoments, linear_predictor
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge

__all__ = ["Regularity", "regularity"]


@dataclass(frozen=True)
class Regularity:
    """One entry a client.

    Attributes
    ----------
    ranks : ndarray (M,)
        Rank of its information; P for clients that are set aside.
    least_curvature, most_curvature : ndarray (M,)
        Smallest and largest eigenvalue of its Hessian (Condition 3 asks of the first).
    gradient_noise : ndarray (M,)
        Standard error of its gradient, the root of the trace of its variance.
    score_moment, curvature_moment, lipschitz_moment : ndarray (M,)
        Eighth roots of eighth moments, Condition 4; see `_tails`.
    """

    ranks: Ints
    least_curvature: Array
    most_curvature: Array
    gradient_noise: Array
    score_moment: Array
    curvature_moment: Array
    lipschitz_moment: Array


def regularity(
    data: ClientData, family: Family, theta: Array, clients: ClientMoments, penalty: Ridge | None = None
) -> Regularity:
    """Measure all clients at theta (P,), where the sums over their rows are `clients`, in one pass over the data.

    A penalty counts in the extreme curvatures; it does not vary from row to row.
    """
    _, ranks = roots_of_inverses(clients.information)
    values = np.linalg.eigvalsh(clients.hessian).astype(np.float64, copy=False)
    tails = _tails(data, family, theta, clients.gradient, values[:, -1])
    if penalty is not None:
        values = np.linalg.eigvalsh(clients.penalised(penalty, theta).hessian).astype(np.float64, copy=False)
    return Regularity(np.where(data.counted, ranks, len(theta)), values[:, 0], values[:, -1], *tails)


def _tails(data: ClientData, family: Family, theta: Array, gradients: Array, most: Array) -> list[Array]:
    """Return how noisy each client's gradient is and how heavy the tails of its rows are (Condition 4).

    Parameters
    ----------
    data, family, theta
        As in `regularity`.
    gradients : ndarray (M, P)
        Each client's mean gradient.
    most : ndarray (M,)
        The largest eigenvalue of each client's Hessian, ||H_m||.

    Returns
    -------
    noise : ndarray (M,)
        Root of the trace of the variance of the mean score.
    score, curvature, lipschitz : ndarray (M,)
        Eighth roots of the means over rows of the eighth powers of ||score_i - mean score||; of
        max(c_i ||x_i||^2, ||H_m||), which bounds ||c_i x_i x_i' - H_m||_2, because both matrices are
        nonnegative definite, more sharply than the Frobenius norm does; and of kappa_i ||x_i||^2, the
        Lipschitz constant of the row's gradient, with the family's bound kappa_i on the curvature.
    """
    M, p = data.n_clients, data.X.shape[1]
    sums = np.zeros((4, M))
    along = gradients.reshape(M, -1, p)
    squared_gradients = np.einsum("ij,ij->i", gradients, gradients)
    for batch in batches(data, p):
        rows, client = batch.rows, batch.spread(np.arange(batch.clients.start, batch.clients.stop))
        X, y = data.X[rows], data.y[rows]
        eta = linear_predictor(data, family, theta, rows)
        residual = family.residual(eta, y).reshape(len(y), -1)
        squared = np.einsum("ij,ij->i", X, X)
        # ||r x - g||^2, multiplied out, output by output.
        apart = np.einsum("ij,ij->i", residual, residual) * squared + squared_gradients[client]
        for j in range(family.outputs):
            apart -= 2.0 * residual[:, j] * np.einsum("ij,ij->i", X, along[client, j])
        np.maximum(apart, 0.0, out=apart)
        own = _largest(family.curvature(eta, y)) * squared
        # Where a loss is not convex, the norms of the two matrices add up.
        curvature = np.maximum(own, most[client] - np.minimum(own, 0.0))
        lipschitz = family.curvature_bound(eta, y) * squared
        weight = data.weights_of(rows)
        # A column in an odd unit may overflow an eighth power; its moment is then infinite.
        with np.errstate(over="ignore"):
            terms = weight * apart, *(np.square(np.square(v)) for v in (apart, curvature**2, lipschitz**2))
            for total, term in zip(sums, terms, strict=True):
                total[batch.clients] += batch.sums(weight * term)
    return [np.sqrt(sums[0]) / data.totals, *(sums[1:] / data.totals) ** 0.125]


def _largest(curvature: Array) -> Array:
    """Return each row's largest curvature; for the multinomial the trace or its global bound 1/2 stands in."""
    if curvature.ndim == 1:
        return curvature
    return np.minimum(np.einsum("ijj->i", curvature), 0.5)
