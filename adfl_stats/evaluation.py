"""One pass over the data at a common point: gradients, curvature, sandwich pieces, fit.

Everything inference needs is gathered here, in batches of clients and blocks of rows, so that results
can live without the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from adfl_stats._batches import Batch, batches, row_blocks, row_clients, whole_clients
from adfl_stats.data import ClientData
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
    """Sums over the rows of each of C clients, divided by its total weight where they are means.

    Attributes
    ----------
    gradient : ndarray (C, P)
        Mean gradient of the loss.
    hessian, information : ndarray (C, P, P)
        Mean observed and expected curvature.
    meat : ndarray (C, P, P)
        Sum over rows of the squared (weighted) scores over the squared total weight.
    dispersion : ndarray (C,)
        Mean over rows of the weighted squared Pearson residuals.
    """

    gradient: Array
    hessian: Array
    information: Array
    meat: Array
    dispersion: Array


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
    """Return client m's sums at theta (P,), without the axis of clients."""
    pieces = [Batch(slice(m, m + 1), rows, np.array([rows.stop - rows.start])) for rows in data.blocks(m)]
    found = _moments(data, family, theta[None], pieces)
    return ClientMoments(*(getattr(found, part.name)[0] for part in fields(found)))


def _moments(data: ClientData, family: Family, thetas: Array, pieces: list[Batch]) -> ClientMoments:
    """Return the sums of the clients whose rows `pieces` hold, each at its row of `thetas` (C, P).

    A single row of `thetas` serves all.
    """
    clients = pieces[0].clients
    C, P = clients.stop - clients.start, thetas.shape[1]
    gradient, dispersion = np.zeros((C, P)), np.zeros(C)
    hessian, meat, expected = (np.zeros((C, P, P)) for _ in range(3))
    for piece in pieces:
        rows = piece.rows
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        eta = _own_predictor(data, family, thetas, piece)
        scores = _times_rows(_scaled(family.residual(eta, y), weight), X)
        gradient += piece.sums(scores)
        meat += piece.cross(scores, scores)
        hessian += _curvature_matrices(piece, X, family.curvature(eta, y), weight)
        if family.name in _OBSERVED:
            expected += _curvature_matrices(piece, X, family.information(eta), weight)
        dispersion += piece.sums(weight * family.dispersion_terms(eta, y))
    total = data.totals[clients]
    hessian /= total[:, None, None]
    return ClientMoments(
        gradient / total[:, None],
        hessian,
        expected / total[:, None, None] if family.name in _OBSERVED else hessian,
        meat / total[:, None, None] ** 2,
        dispersion / data.sizes[clients],
    )


def evaluate(data: ClientData, family: Family, theta: Array, weights: Array) -> Evaluation:
    """Evaluate all clients at theta and combine them with total weights `weights` (v_m)."""
    M, P = data.n_clients, len(theta)
    least, most = np.zeros(M), np.zeros(M)
    gradients, raw_scores = np.zeros((M, P)), np.zeros(M)
    ranks, dispersions = np.zeros(M, dtype=np.int64), np.zeros(M)
    hessian, information, meat, model_meat = (np.zeros((P, P)) for _ in range(4))
    for pieces in whole_clients(data, P):
        found, at = _moments(data, family, theta[None], pieces), pieces[0].clients
        gradients[at], dispersions[at] = found.gradient, found.dispersion
        raw_scores[at], ranks[at] = _score_statistics(found, data.totals[at])
        ends = np.linalg.eigvalsh(found.hessian)
        least[at], most[at] = ends[:, 0], ends[:, -1]
        share = weights[at] / M
        hessian += np.tensordot(share, found.hessian, 1)
        information += np.tensordot(share, found.information, 1)
        meat += np.tensordot(share**2, found.meat, 1)
        model_meat += np.tensordot(share**2 / data.totals[at], found.information, 1)
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
        curvature = np.maximum(_largest(family.curvature(eta, y)) * squared, most[client])
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
        scores = batch.cross(_scaled(residual, data.weights_of(rows)).reshape(len(residual), -1), data.X[rows])
        found[batch.clients] += scores.reshape(len(scores), -1)
    return found / data.totals[:, None]


def curvature_and_meat(data: ClientData, family: Family, theta: Array, weights: Array) -> tuple[Array, Array]:
    """Return only the weighted curvature and meat of an `Evaluation`, in one pass that ignores clients."""
    P = len(theta)
    hessian, meat = np.zeros((P, P)), np.zeros((P, P))
    shares = weights / (data.n_clients * data.totals)
    for rows in row_blocks(data):
        X, y = data.X[rows], data.y[rows]
        weight = shares[row_clients(data, rows)]
        if data.row_weights is not None:
            weight = weight * data.row_weights[rows]
        eta = linear_predictor(data, family, theta, rows)
        scores = _times_rows(_scaled(family.residual(eta, y), weight), X)
        meat += scores.T @ scores
        whole = Batch(slice(0, 1), rows, np.array([len(y)]))
        hessian += _curvature_matrices(whole, X, family.curvature(eta, y), weight)[0]
    return hessian, meat


def score_statistics(data: ClientData, family: Family, thetas: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return each client's score statistic at its own row of `thetas` (M, P), and its rank."""
    raw, ranks, dispersions = (
        np.zeros(data.n_clients),
        np.zeros(data.n_clients, dtype=np.int64),
        np.zeros(data.n_clients),
    )
    for pieces in whole_clients(data, thetas.shape[1]):
        at = pieces[0].clients
        found = _moments(data, family, thetas[at], pieces)
        raw[at], ranks[at] = _score_statistics(found, data.totals[at])
        dispersions[at] = found.dispersion
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


def _own_predictor(data: ClientData, family: Family, thetas: Array, batch: Batch) -> Array:
    """Return eta on a batch, each client with its row of `thetas`, or all with the only one."""
    if len(thetas) == 1:
        return linear_predictor(data, family, thetas[0], batch.rows)
    own = batch.spread(thetas).reshape(-1, family.outputs, data.X.shape[1])
    eta = np.einsum("ij,ikj->ik", data.X[batch.rows], own)
    if data.shift is not None:
        eta += data.shift[batch.rows, None]
    return eta if family.name == "multinomial" else eta[:, 0]


def curvature_matrices(data: ClientData, family: Family, theta: Array) -> Iterator[tuple[slice, Array]]:
    """Yield some clients and their X'BX / total (C, p, p), with the bounds B on the curvature along a run."""
    for pieces in whole_clients(data, data.X.shape[1]):
        total = np.zeros(())
        for piece in pieces:
            rows = piece.rows
            bound = family.curvature_bound(linear_predictor(data, family, theta, rows), data.y[rows])
            total = total + _curvature_matrices(piece, data.X[rows], bound, data.weights_of(rows))
        clients = pieces[0].clients
        yield clients, total / data.totals[clients, None, None]


def _scaled(residual: Array, weight: Array) -> Array:
    return residual * (weight if residual.ndim == 1 else weight[:, None])


def _times_rows(residual: Array, X: Array) -> Array:
    """Return each row's score: residual times x, output by output."""
    if residual.ndim == 1:
        return X * residual[:, None]
    return (residual[:, :, None] * X[:, None, :]).reshape(len(X), -1)


def _curvature_matrices(batch: Batch, X: Array, curvature: Array, weight: Array) -> Array:
    """Return each client's sum over rows of weight times curvature times xx', (C, P, P)."""
    if curvature.ndim == 1:
        return batch.cross(X * (curvature * weight)[:, None], X)
    p, q = X.shape[1], curvature.shape[1]
    out = np.empty((len(batch.sizes), q, p, q, p))
    for j in range(q):
        for k in range(j, q):
            out[:, j, :, k] = batch.cross(X * (curvature[:, j, k] * weight)[:, None], X)
            out[:, k, :, j] = out[:, j, :, k].transpose(0, 2, 1)
    return out.reshape(-1, p * q, p * q)


def _largest(curvature: Array) -> Array:
    """Return each row's largest curvature; for the multinomial the trace or its global bound 1/2 stands in."""
    if curvature.ndim == 1:
        return curvature
    return np.minimum(np.einsum("ijj->i", curvature), 0.5)


def _score_statistics(found: ClientMoments, totals: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return n g' I^+ g and the rank of I of each client; the pseudo-inverse serves clients with n_m < P.

    The columns are brought to one scale first, or their units would decide about the rank.
    """
    size = np.sqrt(np.diagonal(found.information, axis1=1, axis2=2))
    unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
    scaled, gradient = found.information * unit[:, :, None] * unit[:, None, :], found.gradient * unit
    statistic, ranks = np.zeros(len(totals)), np.full(len(totals), size.shape[1])
    factor = _cholesky(scaled)
    # The squared pivots are what a unit column has left beside those before it: full rank, the usual case.
    full = np.diagonal(factor, axis1=1, axis2=2).min(axis=1) > 1e-4
    along = np.linalg.solve(factor[full], gradient[full, :, None])[:, :, 0]
    statistic[full] = np.einsum("ij,ij->i", along, along)
    values, vectors = np.linalg.eigh(scaled[~full])
    keep = values > np.maximum(values[:, -1:], 0.0) * values.shape[1] * 1e-12
    along = np.einsum("ijk,ij->ik", vectors, gradient[~full])
    statistic[~full] = np.divide(along**2, values, out=np.zeros_like(values), where=keep).sum(axis=1)
    ranks[~full] = keep.sum(axis=1)
    return totals * statistic, ranks


def _cholesky(matrices: Array) -> Array:
    """Return the Cholesky factors (C, P, P), or zeros where one of the matrices has none."""
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.zeros_like(matrices)


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
