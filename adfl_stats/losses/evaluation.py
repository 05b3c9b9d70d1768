"""One pass over the data at a common point: gradients, curvature, sandwich pieces, fit.

Everything inference needs is gathered here, in batches of clients and blocks of rows, so that results
can live without the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch, batches, row_blocks, row_clients, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import (
    linear_predictor,
    linear_predictors,
    meat,
    moments,
    own_predictor,
    scaled,
    score_statistic,
    weighted_curvature,
)
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge

__all__ = [
    "Evaluation",
    "client_gradients",
    "curvature_and_meat",
    "evaluate",
    "majority_misfits",
    "rounding_variance",
    "score_statistics",
]


# Residuals this small beside the responses are rounding errors.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Evaluation:
    """The clients at a common point theta, combined with their total weights v_m.

    Attributes
    ----------
    gradients : ndarray (M, P)
        Each client's mean gradient.
    scores : ndarray (M,)
        Rao's score statistic of each client, n_m g' I_m^+ g / phi; infinite for clients that are set aside.
    ranks : ndarray (M,)
        Rank of each client's information: the degrees of freedom of its score statistic.
    hessian, information : ndarray (P, P)
        M^-1 sum_m v_m times the clients' observed and expected curvature.
    meat, model_meat : ndarray (P, P)
        Variance of the weighted mean gradient: from the rows' scores, and from the information (for
        dispersion one).
    scale : float
        Dispersion: Pearson's, with N - P in the divisor, over the weighted clients.
    least_curvature, most_curvature : ndarray (M,)
        Smallest and largest eigenvalue of each client's Hessian (Condition 3 asks of the first).
    gradient_noise : ndarray (M,)
        Standard error of each client's gradient, the root of the trace of its variance.
    score_moment, curvature_moment, lipschitz_moment : ndarray (M,)
        Eighth roots of eighth moments, Condition 4; see `client_tails`.
    """

    gradients: Array
    scores: Array
    ranks: Ints
    hessian: Array
    information: Array
    meat: Array
    model_meat: Array
    scale: float
    least_curvature: Array
    most_curvature: Array
    gradient_noise: Array
    score_moment: Array
    curvature_moment: Array
    lipschitz_moment: Array

    def penalised(self, penalty: Ridge | None, theta: Array, weights: Array) -> Evaluation:
        """Return the gradients and curvatures of the penalised losses; variances and scores are those of the rows.

        The clients' extreme curvatures become bounds (Weyl's inequality).
        """
        if penalty is None:
            return self
        curvature = penalty.curvature(theta)
        added = weights.mean() * np.diag(curvature)
        return replace(
            self,
            gradients=self.gradients + penalty.gradient(theta),
            hessian=self.hessian + added,
            information=self.information + added,
            least_curvature=self.least_curvature + curvature.min(),
            most_curvature=self.most_curvature + curvature.max(),
        )


def evaluate(data: ClientData, family: Family, theta: Array, weights: Array) -> Evaluation:
    """Evaluate all clients at theta and combine them with total weights `weights` (v_m)."""
    M, P = data.n_clients, len(theta)
    least, most = np.zeros(M), np.zeros(M)
    gradients, raw_scores = np.zeros((M, P)), np.zeros(M)
    ranks, dispersions = np.zeros(M, dtype=np.int64), np.zeros(M)
    hessian, information, row_meat, model_meat = (np.zeros((P, P)) for _ in range(4))
    for pieces in whole_clients(data, P):
        found, at = moments(data, family, theta[None], pieces), pieces[0].clients
        gradients[at], dispersions[at] = found.gradient, found.dispersion
        raw_scores[at], ranks[at] = score_statistic(found, data.totals[at])
        ends = np.linalg.eigvalsh(found.hessian)
        least[at], most[at] = ends[:, 0], ends[:, -1]
        share = weights[at] / M
        hessian += np.tensordot(share, found.hessian, 1)
        information += np.tensordot(share, found.information, 1)
        for piece in pieces:
            rows, weight = piece.rows, piece.spread(share / data.totals[at]) * data.weights_of(piece.rows)
            residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
            row_meat += meat(data.X[rows], scaled(residual, weight))
        model_meat += np.tensordot(share**2 / data.totals[at], found.information, 1)
    noise, *tails = client_tails(data, family, theta, gradients, most)
    raw_scores[~data.counted], ranks[~data.counted] = np.inf, P
    return Evaluation(
        gradients=gradients,
        scores=raw_scores / _typical_dispersion(data, family, dispersions),
        ranks=ranks,
        hessian=hessian,
        information=information,
        meat=row_meat,
        model_meat=model_meat,
        scale=_scale(family, dispersions, data, weights, P),
        least_curvature=least,
        most_curvature=most,
        gradient_noise=noise,
        score_moment=tails[0],
        curvature_moment=tails[1],
        lipschitz_moment=tails[2],
    )


def client_tails(data: ClientData, family: Family, theta: Array, gradients: Array, most: Array) -> list[Array]:
    """Return how noisy each client's gradient is and how heavy the tails of its rows are (Condition 4).

    Parameters
    ----------
    data, family, theta
        As in `evaluate`.
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


def client_gradients(data: ClientData, family: Family, theta: Array) -> Array:
    """Return every client's mean gradient at a common theta, (M, P)."""
    found = np.zeros((data.n_clients, len(theta)))
    for batch in batches(data, len(theta)):
        rows = batch.rows
        residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
        scores = batch.cross(scaled(residual, data.weights_of(rows)).reshape(len(residual), -1), data.X[rows])
        found[batch.clients] += scores.reshape(len(scores), -1)
    return found / data.totals[:, None]


def curvature_and_meat(data: ClientData, family: Family, theta: Array, weights: Array) -> tuple[Array, Array]:
    """Return only the weighted curvature and meat of an `Evaluation`, in one pass that ignores clients."""
    P = len(theta)
    hessian, row_meat = np.zeros((P, P)), np.zeros((P, P))
    shares = weights / (data.n_clients * data.totals)
    for rows in row_blocks(data):
        X, y = data.X[rows], data.y[rows]
        weight = shares[row_clients(data, rows)] * data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        row_meat += meat(X, scaled(family.residual(eta, y), weight))
        whole = Batch(slice(0, 1), rows, np.array([len(y)]))
        hessian += weighted_curvature(whole, X, family.curvature(eta, y), weight)[0]
    return hessian, row_meat


@np.errstate(over="ignore", invalid="ignore")
def score_statistics(data: ClientData, family: Family, thetas: Array) -> tuple[Array, Ints]:
    """Return each client's score statistic at its own row of `thetas` (M, P), or the only one, and its rank."""
    raw, ranks, dispersions = (
        np.zeros(data.n_clients),
        np.zeros(data.n_clients, dtype=np.int64),
        np.zeros(data.n_clients),
    )
    for pieces in whole_clients(data, thetas.shape[1]):
        at = pieces[0].clients
        found = moments(data, family, thetas if len(thetas) == 1 else thetas[at], pieces)
        raw[at], ranks[at] = score_statistic(found, data.totals[at])
        dispersions[at] = found.dispersion
    raw[~data.counted], ranks[~data.counted] = np.inf, thetas.shape[1]
    return raw / _typical_dispersion(data, family, dispersions), ranks


@np.errstate(over="ignore", invalid="ignore")
def majority_misfits(data: ClientData, family: Family, thetas: Array, chosen: Mask) -> Array:
    """Return how badly each of thetas (R, P) suits the clients chosen for it (M, R), beside the others of thetas.

    It is the sum over their rows of the deviance beyond that at the theta which suits the client best, in units of a
    typical row's deviance. Deviances themselves would favour clients that are easy to predict.
    """
    deviances = np.zeros(chosen.shape)
    for batch in batches(data, 1):
        y, weight = data.y[batch.rows], data.weights_of(batch.rows)
        for r, eta in enumerate(linear_predictors(data, family, thetas, batch.rows)):
            deviances[batch.clients, r] += batch.sums(weight * family.deviance(eta, y))
    deviances = np.where(np.isfinite(deviances), deviances, np.inf)
    least = deviances.min(axis=1, keepdims=True)
    beyond = np.subtract(deviances, least, out=np.full_like(deviances, np.inf), where=np.isfinite(deviances))
    typical = float(np.median(least[:, 0] / data.totals))
    return np.asarray(np.where(chosen, beyond, 0.0).sum(axis=0) / max(typical, np.finfo(float).tiny))


def _typical_dispersion(data: ClientData, family: Family, dispersions: Array) -> float:
    """Return the dispersion all clients are measured by: the median of theirs.

    A client's own residuals must not set its own scale, or a bad client would excuse itself.
    """
    if family.estimates_scale:
        # Data without noise: what rounding leaves of their residuals must not be weighed against itself.
        least = max(rounding_variance(data) if family.additive else ROUNDING**2, np.finfo(float).tiny)
    else:
        # Where the dispersion should be one, more of it (overdispersed counts, weights of any scale) is allowed for.
        least = 1.0
    return max(float(np.median(dispersions[data.counted])), least)


def curvature_matrices(
    data: ClientData, family: Family, theta: Array, *, bound: bool = False, expected: bool = False
) -> Iterator[tuple[slice, Array]]:
    """Yield some clients and their mean curvature X'BX / total at theta (P,), or at their rows of theta (M, P).

    With `expected`, B is the information. With `bound`, B bounds the curvature along a run from theta. The matrices are
    (C, P, P), with `bound` (C, p, p).
    """
    thetas = np.atleast_2d(theta)
    for pieces in whole_clients(data, data.X.shape[1] if bound else thetas.shape[1]):
        total, own = np.zeros(()), thetas if len(thetas) == 1 else thetas[pieces[0].clients]
        for piece in pieces:
            rows = piece.rows
            eta, y = own_predictor(data, family, own, piece), data.y[rows]
            if expected:
                found = family.information(eta)
            else:
                found = family.curvature_bound(eta, y) if bound else family.curvature(eta, y)
            total = total + weighted_curvature(piece, data.X[rows], found, data.weights_of(rows))
        clients = pieces[0].clients
        yield clients, total / data.totals[clients, None, None]


def _largest(curvature: Array) -> Array:
    """Return each row's largest curvature; for the multinomial the trace or its global bound 1/2 stands in."""
    if curvature.ndim == 1:
        return curvature
    return np.minimum(np.einsum("ijj->i", curvature), 0.5)


def rounding_variance(data: ClientData) -> float:
    """Return the residual variance below which responses are fitted but for rounding errors, in their own units."""
    return ROUNDING**2 * float(np.median(_mean_squares(data)[data.counted]))


def _mean_squares(data: ClientData) -> Array:
    """Return each client's mean square of the (weighted) responses (M,)."""
    found = np.zeros(data.n_clients)
    for batch in batches(data, 1):
        found[batch.clients] += batch.sums(data.weights_of(batch.rows) * np.square(data.y[batch.rows]))
    return found / data.sizes


def _scale(family: Family, dispersions: Array, data: ClientData, weights: Array, P: int) -> float:
    """Return the dispersion over the clients, each with its share of trust."""
    if not family.estimates_scale:
        return 1.0
    # Trust is v_m relative to the client's size: pooled clean data have it equal everywhere, and the
    # effective number of rows (Kish's) is then N.
    trust = weights / data.totals
    share = trust * data.sizes
    rows = float(share.sum() ** 2 / (trust @ share))
    return float(share @ dispersions / share.sum() * rows / max(rows - P, 1.0))
