"""Sums over the rows of each client at a point: gradient, curvature, and Rao's score statistic of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints
from adfl_stats.data.batches import Batch, batches, of_clients, row_blocks
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Penalty

__all__ = [
    "ClientSums",
    "client_deviances",
    "client_sums_of",
    "column_squares",
    "curvature_sums",
    "linear_predictor",
    "meat",
    "own_predictor",
    "predictors_at",
    "rao_statistics",
    "scaled",
]


@dataclass(frozen=True)
class ClientSums:
    """Sums over the rows of each of C clients, divided by its total weight where they are means.

    Attributes
    ----------
    gradient : ndarray (C, P)
        Mean gradient of the loss.
    hessian, information : ndarray (C, P, P)
        Mean observed and expected curvature.
    dispersion : ndarray (C,)
        Mean over rows of the weighted squared Pearson residuals.
    """

    gradient: Array
    hessian: Array
    information: Array
    dispersion: Array

    def of(self, clients: slice) -> ClientSums:
        """Return the sums of some clients."""
        return ClientSums(*(getattr(self, part.name)[clients] for part in fields(self)))

    def penalised(self, penalty: Penalty | None, theta: Array) -> ClientSums:
        """Return gradient and observed curvature of the penalised losses at theta (P,); information stays the rows'."""
        if penalty is None:
            return self
        return replace(
            self,
            gradient=self.gradient + penalty.gradient(theta),
            hessian=self.hessian + np.diag(penalty.curvature(theta)),
        )


def client_sums_of(
    data: ClientData,
    family: Family,
    thetas: Array,
    pieces: list[Batch],
    visit: Callable[[Batch, Array, Array], None] | None = None,
) -> ClientSums:
    """Return the sums of the clients whose rows `pieces` hold, each at its row of `thetas` (C, P).

    A single row of `thetas` serves all. `visit` is given each piece with its linear predictor and weighted residuals
    (rows, outputs), for other sums over the same rows.
    """
    clients = pieces[0].clients
    C, P = clients.stop - clients.start, thetas.shape[1]
    gradient, dispersion = np.zeros((C, P)), np.zeros(C)
    hessian, expected = np.zeros((C, P, P)), np.zeros((C, P, P) if family.observed_curvature else ())
    for piece in pieces:
        rows = piece.rows
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        eta = own_predictor(data, family, thetas, piece)
        residual = scaled(family.residual(eta, y), weight).reshape(len(y), -1)
        if visit is not None:
            visit(piece, eta, residual)
        gradient += piece.cross(residual, X).reshape(C, P)
        hessian += curvature_sums(piece, X, family.curvature(eta, y), weight)
        if family.observed_curvature:
            expected += curvature_sums(piece, X, family.information(eta), weight)
        dispersion += piece.sums(weight * family.dispersion_terms(eta, y))
    total = data.totals[clients]
    hessian /= total[:, None, None]
    return ClientSums(
        gradient / total[:, None],
        hessian,
        expected / total[:, None, None] if family.observed_curvature else hessian,
        dispersion / data.sizes[clients],
    )


def linear_predictor(data: ClientData, family: Family, theta: Array, rows: slice) -> Array:
    """Return eta on a slice of rows: (n,) for one output, (n, q) for the multinomial."""
    return predictors_at(data, family, theta[None], rows)[0]


def predictors_at(data: ClientData, family: Family, thetas: Array, rows: slice | Ints) -> Array:
    """Return eta on some rows for each row of `thetas` (R, P): (R, n), or (R, n, q) for the multinomial."""
    X, q = data.X[rows], family.outputs
    if family.name == "multinomial":
        etas = (X @ thetas.reshape(-1, X.shape[1]).T).reshape(len(X), len(thetas), q).transpose(1, 0, 2)
    else:
        etas = thetas @ X.T
    if data.linear_offset is not None:
        etas += data.linear_offset[rows, None] if etas.ndim == 3 else data.linear_offset[rows]
    return etas


def own_predictor(data: ClientData, family: Family, thetas: Array, batch: Batch) -> Array:
    """Return eta on a batch, each client with its row of `thetas`, or all with the only one."""
    if len(thetas) == 1:
        return linear_predictor(data, family, thetas[0], batch.rows)
    own = batch.spread(thetas).reshape(-1, family.outputs, data.X.shape[1])
    eta = np.einsum("ij,ikj->ik", data.X[batch.rows], own)
    if data.linear_offset is not None:
        eta += data.linear_offset[batch.rows, None]
    return eta if family.name == "multinomial" else eta[:, 0]


def client_deviances(data: ClientData, family: Family, thetas: Array) -> Array:
    """Return each client's deviance at every one of `thetas` (R, P), (M, R); a huge number where it overflows."""
    out = np.zeros((data.n_clients, len(thetas)))
    with np.errstate(over="ignore", invalid="ignore"):
        for batch in batches(data, 1):
            y, weight = data.y[batch.rows], data.weights_of(batch.rows)
            for r, eta in enumerate(predictors_at(data, family, thetas, batch.rows)):
                out[batch.clients, r] += batch.sums(weight * family.deviance(eta, y))
    return np.where(np.isfinite(out), out, np.finfo(float).max / 1e10)


def column_squares(data: ClientData, clients: slice) -> Array:
    """Return the number of rows of some clients, and behind it the sums of squares of their columns, (1 + p,)."""
    low, high, _ = clients.indices(data.n_clients)
    own, squares = of_clients(data, slice(low, high)), np.zeros(data.X.shape[1])
    for rows in row_blocks(own):
        squares += np.einsum("ij,ij->j", own.X[rows], own.X[rows])
    return np.append(float(own.n_rows), squares)


def scaled(residual: Array, weight: Array) -> Array:
    """Return each row's residual, of one output or several, times its weight."""
    return residual * (weight if residual.ndim == 1 else weight[:, None])


def meat(X: Array, residual: Array, added: Array | None = None) -> Array:
    """Return the sum over rows of the squares ss' of their scores, (P, P), from their (weighted) residuals.

    `added` (n, P) is what each row's score has beside: its share of a penalty's gradient.
    """
    scores = (residual.reshape(len(X), -1, 1) * X[:, None, :]).reshape(len(X), -1)
    if added is not None:
        scores += added
    return np.asarray(scores.T @ scores)


def curvature_sums(batch: Batch, X: Array, curvature: Array, weight: Array) -> Array:
    """Return each client's sum over rows of weight times curvature times xx', (C, P, P)."""
    if curvature.ndim == 1:
        if curvature.min(initial=0.0) < 0.0:
            # A loss that is not convex.
            return batch.cross(X * (curvature * weight)[:, None], X)
        root = X * np.sqrt(curvature * weight)[:, None]
        return batch.cross(root, root)
    p, q = X.shape[1], curvature.shape[1]
    out = np.empty((len(batch.sizes), q, p, q, p))
    for j in range(q):
        for k in range(j, q):
            out[:, j, :, k] = batch.cross(X * (curvature[:, j, k] * weight)[:, None], X)
            out[:, k, :, j] = out[:, j, :, k].transpose(0, 2, 1)
    return out.reshape(-1, p * q, p * q)


def rao_roots(information: Array, totals: Array) -> tuple[Array, Ints]:
    """Return F_m (C, P, P) with F_m F_m' = n_m I_m^+, and the ranks of I_m; see `rao_statistics`."""
    roots, ranks = roots_of_inverses(information)
    roots *= np.sqrt(totals)[:, None, None]
    return roots, ranks


def rao_statistics(gradients: Array, roots: Array) -> Array:
    """Return n_m g' I_m^+ g of mean gradients g (C, R, P) of each client, with the `rao_roots` of its information.

    Rao's score statistic per unit of dispersion; the pseudo-inverse serves clients with n_m < P.
    """
    statistics = np.square(gradients @ roots).sum(axis=2)
    # A client whose numbers overflow has an infinite statistic.
    return np.where(np.isnan(statistics), np.inf, statistics)
