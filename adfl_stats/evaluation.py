"""One pass over the data at a common point: gradients, curvature, sandwich pieces, fit.

Everything inference needs is gathered here, client by client and block by block, so that results can
live without the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from adfl_stats.data import BLOCK_ROWS, ClientData
from adfl_stats.families import Family

__all__ = [
    "ClientMoments",
    "Evaluation",
    "client_gradients",
    "client_moments",
    "curvature_and_meat",
    "evaluate",
    "score_statistics",
]

Array = NDArray[np.float64]

# Families whose observed curvature depends on y; in the others it is the expected one.
_OBSERVED = ("gamma", "negativebinomial")


@dataclass(frozen=True)
class ClientMoments:
    """Sums over one client's rows, divided by its total weight where they are means.

    Attributes
    ----------
    gradient : ndarray (P,)
        Mean gradient of the loss.
    hessian, information : ndarray (P, P)
        Mean observed and expected curvature.
    meat : ndarray (P, P)
        Sum over rows of the squared (weighted) scores over the squared total weight.
    dispersion : float
        Mean over rows of the weighted squared Pearson residuals.
    """

    gradient: Array
    hessian: Array
    information: Array
    meat: Array
    dispersion: float


@dataclass(frozen=True)
class Evaluation:
    """The clients at a common point theta, combined with their total weights v_m.

    Attributes
    ----------
    gradients : ndarray (M, P)
        Each client's mean gradient.
    scores : ndarray (M,)
        Rao's score statistic of each client, n_m g' I_m^+ g / phi.
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
    ranks: NDArray[np.int64]
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


def client_moments(data: ClientData, family: Family, theta: Array, m: int) -> ClientMoments:
    """Return client m's sums at theta (P,)."""
    p, q = data.X.shape[1], family.outputs
    gradient, dispersion = np.zeros(p * q), 0.0
    hessian, information, meat = np.zeros((p * q, p * q)), np.zeros((p * q, p * q)), np.zeros((p * q, p * q))
    for rows in data.blocks(m):
        X, y = data.X[rows], data.y[rows]
        eta = linear_predictor(data, family, theta, rows)
        residual = family.residual(eta, y)
        weight = data.weights_of(rows)
        scores = _times_rows(_scaled(residual, weight), X)
        gradient += scores.sum(axis=0)
        meat += scores.T @ scores
        hessian += _curvature_matrix(X, family.curvature(eta, y), weight)
        if family.name in _OBSERVED:
            information += _curvature_matrix(X, family.information(eta), weight)
        dispersion += float(weight @ family.dispersion_terms(eta, y))
    if family.name not in _OBSERVED:
        information = hessian
    total = data.totals[m]
    return ClientMoments(
        gradient / total,
        hessian / total,
        information / total,
        meat / total**2,
        dispersion / data.sizes[m],
    )


def evaluate(data: ClientData, family: Family, theta: Array, weights: Array) -> Evaluation:
    """Evaluate all clients at theta and combine them with total weights `weights` (v_m)."""
    M, P = data.n_clients, len(theta)
    least, most = np.zeros(M), np.zeros(M)
    gradients, raw_scores = np.zeros((M, P)), np.zeros(M)
    ranks, dispersions = np.zeros(M, dtype=np.int64), np.zeros(M)
    hessian, information, meat, model_meat = (np.zeros((P, P)) for _ in range(4))
    for m in range(M):
        found = client_moments(data, family, theta, m)
        gradients[m], dispersions[m] = found.gradient, found.dispersion
        raw_scores[m], ranks[m] = _score_statistic(found, data.totals[m])
        ends = np.linalg.eigvalsh(found.hessian)
        least[m], most[m] = ends[0], ends[-1]
        hessian += weights[m] / M * found.hessian
        information += weights[m] / M * found.information
        meat += (weights[m] / M) ** 2 * found.meat
        model_meat += (weights[m] / M) ** 2 / data.totals[m] * found.information
    noise, *tails = client_tails(data, family, theta, gradients, most)
    return Evaluation(
        gradients=gradients,
        scores=raw_scores / common_dispersion(family, dispersions),
        ranks=ranks,
        hessian=hessian,
        information=information,
        meat=meat,
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

    One pass in blocks of rows of any client: small clients would pay for calls of their own.

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
    for low in range(0, data.n_rows, BLOCK_ROWS):
        rows = slice(low, min(low + BLOCK_ROWS, data.n_rows))
        X, y, client = data.X[rows], data.y[rows], _row_clients(data, rows)
        eta = linear_predictor(data, family, theta, rows)
        residual = family.residual(eta, y).reshape(len(y), -1)
        squared = np.einsum("ij,ij->i", X, X)
        # ||r x - g||^2, multiplied out, output by output.
        apart = np.einsum("ij,ij->i", residual, residual) * squared + squared_gradients[client]
        for j in range(family.outputs):
            apart -= 2.0 * residual[:, j] * np.einsum("ij,ij->i", X, along[client, j])
        np.maximum(apart, 0.0, out=apart)
        curvature = np.maximum(_largest(family.curvature(eta, y)) * squared, most[client])
        lipschitz = family.curvature_bound(eta, y) * squared
        weight = data.weights_of(rows)
        # A column in an odd unit may overflow an eighth power; its moment is then infinite.
        with np.errstate(over="ignore"):
            terms = weight * apart, *(np.square(np.square(v)) for v in (apart, curvature**2, lipschitz**2))
            for total, term in zip(sums, terms, strict=True):
                total += np.bincount(client, weights=weight * term, minlength=M)
    return [np.sqrt(sums[0]) / data.totals, *(sums[1:] / data.totals) ** 0.125]


def client_gradients(data: ClientData, family: Family, theta: Array) -> Array:
    """Return every client's mean gradient at a common theta, (M, P)."""
    found = np.zeros((data.n_clients, len(theta)))
    for m in range(data.n_clients):
        for rows in data.blocks(m):
            residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
            if data.row_weights is not None:
                residual = _scaled(residual, data.row_weights[rows])
            found[m] += (residual.reshape(len(residual), -1).T @ data.X[rows]).ravel()
    return found / data.totals[:, None]


def curvature_and_meat(data: ClientData, family: Family, theta: Array, weights: Array) -> tuple[Array, Array]:
    """Return only the weighted curvature and meat of an `Evaluation`, in one pass that ignores clients."""
    P = len(theta)
    hessian, meat = np.zeros((P, P)), np.zeros((P, P))
    shares = weights / (data.n_clients * data.totals)
    for low in range(0, data.n_rows, BLOCK_ROWS):
        rows = slice(low, min(low + BLOCK_ROWS, data.n_rows))
        X, y = data.X[rows], data.y[rows]
        weight = shares[_row_clients(data, rows)]
        if data.row_weights is not None:
            weight = weight * data.row_weights[rows]
        eta = linear_predictor(data, family, theta, rows)
        scores = _times_rows(_scaled(family.residual(eta, y), weight), X)
        meat += scores.T @ scores
        hessian += _curvature_matrix(X, family.curvature(eta, y), weight)
    return hessian, meat


def score_statistics(data: ClientData, family: Family, thetas: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return each client's score statistic at its own row of `thetas` (M, P), and its rank."""
    raw, ranks, dispersions = (
        np.zeros(data.n_clients),
        np.zeros(data.n_clients, dtype=np.int64),
        np.zeros(data.n_clients),
    )
    for m, theta in enumerate(thetas):
        found = client_moments(data, family, theta, m)
        raw[m], ranks[m] = _score_statistic(found, data.totals[m])
        dispersions[m] = found.dispersion
    return raw / common_dispersion(family, dispersions), ranks


def common_dispersion(family: Family, dispersions: Array) -> float:
    """Return the dispersion all clients are measured by: the median of theirs.

    A client's own residuals must not set its own scale, or a bad client would excuse itself.
    """
    # The floor serves data without noise, whose gradients and dispersion are both zero; where the
    # dispersion should be one, more of it (overdispersed counts, weights of any scale) is allowed for.
    return max(float(np.median(dispersions)), 1e-100 if family.estimates_scale else 1.0)


def linear_predictor(data: ClientData, family: Family, theta: Array, rows: slice) -> Array:
    """Return eta on a slice of rows: (n,) for one output, (n, q) for the multinomial."""
    eta = data.X[rows] @ theta.reshape(family.outputs, -1).T
    if data.shift is not None:
        eta += data.shift[rows, None]
    return eta if family.name == "multinomial" else eta[:, 0]


def curvature_matrices(data: ClientData, family: Family, theta: Array) -> Iterator[Array]:
    """Yield, client by client, X'BX / total with the bounds B on the curvature along a run (p, p)."""
    for m in range(data.n_clients):
        total = np.zeros((data.X.shape[1], data.X.shape[1]))
        for rows in data.blocks(m):
            bound = family.curvature_bound(linear_predictor(data, family, theta, rows), data.y[rows])
            weight = bound if data.row_weights is None else bound * data.row_weights[rows]
            total += (data.X[rows] * weight[:, None]).T @ data.X[rows]
        yield total / data.totals[m]


def _row_clients(data: ClientData, rows: slice) -> NDArray[np.int64]:
    return np.searchsorted(data.offsets, np.arange(rows.start, rows.stop), side="right") - 1


def _scaled(residual: Array, weight: Array) -> Array:
    return residual * (weight if residual.ndim == 1 else weight[:, None])


def _times_rows(residual: Array, X: Array) -> Array:
    """Return each row's score: residual times x, output by output."""
    if residual.ndim == 1:
        return X * residual[:, None]
    return (residual[:, :, None] * X[:, None, :]).reshape(len(X), -1)


def _curvature_matrix(X: Array, curvature: Array, weight: Array) -> Array:
    if curvature.ndim == 1:
        return (X * (curvature * weight)[:, None]).T @ X
    p, q = X.shape[1], curvature.shape[1]
    out = np.empty((q, p, q, p))
    for j in range(q):
        for k in range(j, q):
            out[j, :, k] = (X * (curvature[:, j, k] * weight)[:, None]).T @ X
            out[k, :, j] = out[j, :, k].T
    return out.reshape(p * q, p * q)


def _largest(curvature: Array) -> Array:
    """Return each row's largest curvature; for the multinomial the trace or its global bound 1/2 stands in."""
    if curvature.ndim == 1:
        return curvature
    return np.minimum(np.einsum("ijj->i", curvature), 0.5)


def _score_statistic(found: ClientMoments, total: float) -> tuple[float, int]:
    """Return n g' I^+ g and the rank of I; the pseudo-inverse serves clients with n_m < P.

    The columns are brought to one scale first, or their units would decide about the rank.
    """
    size = np.sqrt(np.diag(found.information))
    unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
    scaled, gradient = found.information * np.outer(unit, unit), found.gradient * unit
    factor, failed = linalg.lapack.dpotrf(scaled, lower=True)
    # The squared pivots are what a unit column has left beside those before it: full rank, the usual case.
    if not failed and np.diag(factor).min() > 1e-4:
        along = linalg.solve_triangular(factor, gradient, lower=True)
        return float(total * along @ along), len(along)
    values, vectors = np.linalg.eigh(scaled)
    keep = values > max(values[-1], 0.0) * len(values) * 1e-12
    along = vectors[:, keep].T @ gradient
    return float(total * np.sum(along**2 / values[keep])), int(keep.sum())


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
