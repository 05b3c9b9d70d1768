"""The quantities of Conditions 3 and 4 and Theorem 1 of the paper: curvature, tails, sums over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import roots_of_inverses, summed_products
from adfl_stats._types import Array, Ints
from adfl_stats.data.batches import Batch, places
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import ClientSums, linear_predictor
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Penalty
from adfl_stats.losses.point_sums import Total, all_here

__all__ = ["Regularity", "RegularitySums"]


@dataclass(frozen=True)
class Regularity:
    """What a second pass over the data finds at a point: one entry a client, but for the last two.

    Attributes
    ----------
    ranks : ndarray (M,)
        Rank of its information; P for clients that are set aside.
    least_curvature, most_curvature : ndarray (M,)
        Smallest and largest eigenvalue of its Hessian (Condition 3 asks of the first).
    gradient_noise : ndarray (M,)
        Standard error of its gradient, the root of the trace of its variance.
    score_moment, curvature_moment, lipschitz_moment : ndarray (M,)
        Eighth roots of eighth moments, Condition 4; see `_Tails`.
    shares : ndarray (M,)
        Its share of the rows (by their weights) of all clients; none for those that are set aside.
    hessian : ndarray (P, P)
        Mean Hessian over the rows of all clients, whatever their weights in a fit: Omega of Theorem 1.
    meat : ndarray (P, P)
        Variance of the mean score over the rows of all clients, Sigma / N of Theorem 1: N^-2 times the sum over rows of
        the squared scores less the mean of their client. Clients are fixed, as in the paper, so that
        differences between their means are bias and not variance.
    """

    ranks: Ints
    least_curvature: Array
    most_curvature: Array
    gradient_noise: Array
    score_moment: Array
    curvature_moment: Array
    lipschitz_moment: Array
    shares: Array
    hessian: Array
    meat: Array


class RegularitySums:
    """Measures all clients at theta (P,), where the sums over their rows are `clients`, during a pass over the data.

    A penalty counts in the curvatures; it does not vary from row to row. `total` and `parts` are those of `sums_at`.
    """

    def __init__(
        self,
        data: ClientData,
        family: Family,
        theta: Array,
        clients: ClientSums,
        penalty: Penalty | None = None,
        total: Total = all_here,
        parts: Sequence[slice] = (slice(None),),
    ) -> None:
        self._data, self._theta, self._clients, self._penalty, self._total = data, theta, clients, penalty, total
        self._values = np.linalg.eigvalsh(clients.hessian).astype(np.float64, copy=False)
        self._tails = _Tails(data, family, theta, clients.gradient, self._values[:, -1], parts)

    def add(self, batch: Batch) -> None:
        """Take in the rows of a batch."""
        self._tails.add(batch)

    def result(self) -> Regularity:
        """Return what was found."""
        data, clients, total, values = self._data, self._clients, self._total, self._values
        _, ranks = roots_of_inverses(clients.information)
        own = clients.penalised(self._penalty, self._theta).hessian
        if self._penalty is not None:
            values = np.linalg.eigvalsh(own).astype(np.float64, copy=False)
        rows = np.where(data.counted, data.totals, 0.0)
        N = float(total(lambda at: np.asarray(rows[at].sum())))
        shares = rows / N

        def pooled(at: slice) -> Array:
            use = data.counted[at]
            return summed_products(shares[at][use], own[at][use])

        noise, score, curvature, lipschitz = self._tails.eighth_roots()
        return Regularity(
            ranks=np.where(data.counted, ranks, len(self._theta)),
            least_curvature=values[:, 0],
            most_curvature=values[:, -1],
            gradient_noise=noise,
            score_moment=score,
            curvature_moment=curvature,
            lipschitz_moment=lipschitz,
            shares=shares,
            hessian=total(pooled),
            meat=total(lambda at: self._tails.meats[str(at)]) / N**2,
        )


class _Tails:
    """How noisy each client's gradient is and how heavy the tails of its rows are (Condition 4).

    Parameters
    ----------
    data, family, theta
        As in `RegularitySums`.
    gradients : ndarray (M, P)
        Each client's mean gradient.
    most : ndarray (M,)
        The largest eigenvalue of each client's Hessian, ||H_m||.
    parts : sequence of slice
        The parts of the clients whose squared scores are summed apart.
    """

    def __init__(
        self, data: ClientData, family: Family, theta: Array, gradients: Array, most: Array, parts: Sequence[slice]
    ) -> None:
        self.data, self.family, self.theta, self.gradients, self.most = data, family, theta, gradients, most
        self.sums = np.zeros((4, data.n_clients))
        self.meats = {str(part): np.zeros((len(theta), len(theta))) for part in parts}
        self._names = list(self.meats)
        self._place = places(parts, data.n_clients)

    def add(self, batch: Batch) -> None:
        """Take in the rows of a batch."""
        data, family, rows = self.data, self.family, batch.rows
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        eta = linear_predictor(data, family, self.theta, rows)
        residual = family.residual(eta, y).reshape(len(y), -1, 1)
        squared = np.einsum("ij,ij->i", X, X)
        # A column in an odd unit may overflow an eighth power; its moment is then infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            scores = (residual * X[:, None, :]).reshape(len(y), -1) - batch.spread(self.gradients[batch.clients])
            apart = np.einsum("ij,ij->i", scores, scores)
            own = _largest(family.curvature(eta, y)) * squared
            # Where a loss is not convex, the norms of the two matrices add up.
            curvature = np.maximum(own, batch.spread(self.most[batch.clients]) - np.minimum(own, 0.0))
            second, third = family.derivative_bounds(eta, y)
            lipschitz = np.maximum(second * squared, _times(third, squared**1.5))
            terms = weight * apart, *(np.square(np.square(v)) for v in (apart, curvature**2, lipschitz**2))
            for sums, term in zip(self.sums, terms, strict=True):
                sums[batch.clients] += batch.sums(weight * term)
            scores *= weight[:, None]
        use = batch.spread(data.counted[batch.clients])
        counted = scores if use.all() else scores[use]
        self.meats[self._names[self._place(batch.clients)]] += counted.T @ counted

    def eighth_roots(self) -> list[Array]:
        """Return four arrays (M,).

        The first is the root of the trace of the variance of the mean score. The others are eighth roots of the means
        over rows of the eighth powers of ||score_i - mean score||; of max(c_i ||x_i||^2, ||H_m||), which bounds
        ||c_i x_i x_i' - H_m||_2, because both matrices are nonnegative definite, more sharply than the Frobenius
        norm does; and of L(X_i, Y_i) = max(kappa_i ||x_i||^2, tau_i ||x_i||^3), the Lipschitz constant of the row's
        gradient and of its Hessian, with the family's bounds kappa_i and tau_i on the second and third derivative of
        the loss in the linear predictor (`Family.derivative_bounds`).
        """
        totals = self.data.totals
        return [np.sqrt(self.sums[0]) / totals, *(self.sums[1:] / totals) ** 0.125]


def _times(bound: Array, size: Array) -> Array:
    """Return the product; a row of zeros has a constant loss, also where the bound is infinite."""
    return np.where(size > 0.0, bound * size, 0.0)


def _largest(curvature: Array) -> Array:
    """Return each row's largest curvature; for the multinomial the trace or its global bound 1/2 stands in."""
    if curvature.ndim == 1:
        return curvature
    return np.minimum(np.einsum("ijj->i", curvature), 0.5)
