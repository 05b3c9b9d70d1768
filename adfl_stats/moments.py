"""Sums over the rows of each client at a point: gradient, curvature, meat, and Rao's score statistic of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from adfl_stats._batches import Batch
from adfl_stats.data import ClientData
from adfl_stats.families import Family

__all__ = [
    "ClientMoments",
    "client_moments",
    "linear_predictor",
    "moments",
    "rows_times",
    "scaled",
    "score_statistic",
    "weighted_curvature",
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


def client_moments(data: ClientData, family: Family, theta: Array, m: int) -> ClientMoments:
    """Return client m's sums at theta (P,), without the axis of clients."""
    pieces = [Batch(slice(m, m + 1), rows, np.array([rows.stop - rows.start])) for rows in data.blocks(m)]
    found = moments(data, family, theta[None], pieces)
    return ClientMoments(*(getattr(found, part.name)[0] for part in fields(found)))


def moments(data: ClientData, family: Family, thetas: Array, pieces: list[Batch]) -> ClientMoments:
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
        scores = rows_times(scaled(family.residual(eta, y), weight), X)
        gradient += piece.sums(scores)
        meat += piece.cross(scores, scores)
        hessian += weighted_curvature(piece, X, family.curvature(eta, y), weight)
        if family.name in _OBSERVED:
            expected += weighted_curvature(piece, X, family.information(eta), weight)
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


def scaled(residual: Array, weight: Array) -> Array:
    """Return each row's residual, of one output or several, times its weight."""
    return residual * (weight if residual.ndim == 1 else weight[:, None])


def rows_times(residual: Array, X: Array) -> Array:
    """Return each row's score: residual times x, output by output."""
    if residual.ndim == 1:
        return X * residual[:, None]
    return (residual[:, :, None] * X[:, None, :]).reshape(len(X), -1)


def weighted_curvature(batch: Batch, X: Array, curvature: Array, weight: Array) -> Array:
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


def score_statistic(found: ClientMoments, totals: Array) -> tuple[Array, NDArray[np.int64]]:
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
