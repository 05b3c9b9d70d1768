"""Doubly stochastic weights on the edges there are: Metropolis weights and Sinkhorn's scaling."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph, linalg

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.network.products import Products

__all__ = ["ImpossibleRepairError", "metropolis_weights", "scaled_to_balance"]

# Largest distance of a column sum from 1. Ours: some thousand units in the last place, below `measures.SE_ROUNDING`, so
# that SE(W) of the result is zero.
ACCURACY = 1e-12
# Sweeps before Newton's method takes over. Ours: a sweep contracts by the squared second singular value (Knight 2008);
# where that is below .87, 12 digits are gained by then. A sweep costs two products with W, a Newton step a
# factorisation.
SWEEPS = 200
# Newton steps with step halving, whose convergence is quadratic at the end. Ours: bounds the time.
NEWTON_STEPS = 60
# Bound on the entries of W'W up to which it is factored. Ours: networks on which sweeps are slow have few.
MOST_FACTORED = 3e6
# Armijo's share of the decrease that the slope promises, and the shortest share of a step (Nocedal & Wright 2006, 3.1:
# 1e-4); rounding of the objective, per client. Ours.
ARMIJO, SHORTEST, ROUNDING = 1e-4, 1e-6, 1e-13
# What makes the Hessian regular along its null space; tolerance and steps of conjugate gradients. Ours: the ridge is
# below the accuracy; a Newton step need not be exact (Dembo, Eisenstat & Steihaug 1982).
RIDGE, CG_TOLERANCE, CG_STEPS = 1e-13, 1e-4, 500


class ImpossibleRepairError(ValueError):
    """The edges do not allow a repair; `reason` says why in a few words, for tables."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def metropolis_weights(W: sparse.csr_array, labels: pd.Index) -> sparse.csr_array:
    """Return ``w_mk = 1 / (1 + max(d_m, d_k))`` for neighbours, with the rest of each row on the diagonal."""
    M = W.shape[0]
    support = W.tocoo()
    other = support.row != support.col
    row, col = support.row[other], support.col[other]
    _refuse_one_way(row, col, labels)
    degree = np.bincount(row, minlength=M)
    weight = 1.0 / (1.0 + np.maximum(degree[row], degree[col]))
    own = 1.0 - np.bincount(row, weights=weight, minlength=M)
    everyone = np.arange(M)
    places = (np.concatenate([row, everyone]), np.concatenate([col, everyone]))
    return sparse.csr_array((np.concatenate([weight, own]), places), shape=W.shape)


def _refuse_one_way(row: NDArray[np.integer], col: NDArray[np.integer], labels: pd.Index) -> None:
    """Raise ValueError if some client m receives from k, but k not from m."""
    ones = sparse.csr_array((np.ones(len(row)), (row, col)), shape=(len(labels), len(labels)))
    alone = sparse.coo_array(ones - ones.T)
    one_way = np.flatnonzero(alone.data > 0)
    if one_way.size:
        m, k = labels[alone.row[one_way[0]]], labels[alone.col[one_way[0]]]
        raise ImpossibleRepairError(
            f"metropolis() needs edges in both directions, but {one_way.size} edges go one way: client "
            f"{listing([m])} receives from {listing([k])}, not the reverse. "
            "Make the adjacency matrix symmetric, e.g. np.maximum(A, A.T)",
            f"{one_way.size} edges go one way",
        )


def scaled_to_balance(W: sparse.csr_array, labels: pd.Index) -> sparse.csr_array:
    """Return the only doubly stochastic matrix of the form ``diag(r) W diag(c)``.

    It exists if and only if the support of W is total: every edge lies on some cover of the clients by
    disjoint cycles (Sinkhorn and Knopp 1967). Sums are accurate to 1e-12.
    """
    _refuse_support(W, labels)
    by = Products.of(W)
    column = np.ones(W.shape[0])
    for sweep in range(SWEEPS):
        row = 1.0 / by.forward(column)
        reached = by.backward(row)
        # The rows are exact now, so that only columns are off.
        if sweep and np.abs(column * reached - 1.0).max() < ACCURACY / 4:
            break
        column = 1.0 / reached
    else:
        # Sweeps contract by the square of the second singular value of the result: useless where it mixes slowly.
        row, column = _newton(W, by, column)
    scaled = W.data * np.repeat(row, np.diff(W.indptr)) * column[W.indices]
    result = sparse.csr_array((scaled, W.indices.copy(), W.indptr.copy()), shape=W.shape)
    off = float(np.abs(result.sum(axis=0) - 1.0).max())
    if not off < ACCURACY:
        raise ImpossibleRepairError(
            f"balanced() could not bring the column sums of W closer to 1 than {off:.2g} (wanted {ACCURACY:g}), as "
            "some weights would have to be minute. Use net.lazy(0.5).balanced(), net.metropolis(), or leave W alone "
            "and balance the steps",
            f"column sums stay {off:.2g} off 1",
        )
    return result


def _newton(W: sparse.csr_array, by: Products, column: Array) -> tuple[Array, Array]:
    """Minimise ``f(y) = sum_m log(W e^y)_m - sum_k y_k``, whose minimum has ``column = e^y``.

    The gradient is the excess of the column sums, the Hessian ``I - P'P`` for P the scaled matrix.
    """
    y = np.log(column)

    def scaled(y: Array) -> tuple[Array, Array, float]:
        # Too long a step may overflow; the objective is then not finite, and the step is halved.
        with np.errstate(all="ignore"):
            column = np.exp(y)
            sums = by.forward(column)
            return column, 1.0 / sums, float(np.sum(np.log(sums)) - np.sum(y))

    column, row, height = scaled(y)
    for _ in range(NEWTON_STEPS):
        total = column * by.backward(row)
        gradient = total - 1.0
        if np.abs(gradient).max() < ACCURACY / 4:
            break
        move = _newton_step(W, row, column, total, gradient)
        if move is None:
            break
        slope = float(gradient @ move)
        length = 1.0
        while length > SHORTEST:
            # Near the minimum decreases are below rounding; there the full step is safe.
            if scaled(y + length * move)[2] <= height + ARMIJO * length * slope + ROUNDING * len(y):
                break
            length /= 2
        y = y + length * move
        y -= y.mean()
        column, row, height = scaled(y)
    return row, column


def _newton_step(W: sparse.csr_array, row: Array, column: Array, total: Array, gradient: Array) -> Array | None:
    """Solve for Newton's step, or return None where that would take too long.

    Networks on which sweeps are slow are long and thin, and their Hessian, a graph's Laplacian, has sparse
    factors; if it has too many entries, conjugate gradients are tried.
    """
    n = len(row)
    entries = row.repeat(np.diff(W.indptr)) * W.data * column[W.indices]
    P = sparse.csr_array((entries, W.indices, W.indptr), shape=W.shape)
    # The Hessian is singular along constant shifts of y, one for each connected part; the ridge makes it regular.
    if float(np.sum(np.diff(W.indptr).astype(np.float64) ** 2)) <= MOST_FACTORED:
        hessian = sparse.csc_array(sparse.diags_array(total + RIDGE) - P.T @ P)
        try:
            return np.asarray(-linalg.splu(hessian).solve(gradient))
        except RuntimeError:  # singular up to rounding
            return None
    operator = linalg.LinearOperator((n, n), matvec=lambda v: total * v - P.T @ (P @ v) + v.mean(), dtype=np.float64)
    move, stuck = linalg.cg(operator, -gradient, rtol=CG_TOLERANCE, maxiter=CG_STEPS)
    return None if stuck else move


def _refuse_support(W: sparse.csr_array, labels: pd.Index) -> None:
    """Raise ValueError unless every edge lies on a perfect matching of receivers and senders."""
    M = W.shape[0]
    advice = (
        "Let clients keep a share of their own estimate, net.lazy(0.5).balanced(), which is enough on strongly "
        "connected networks; or leave W alone and balance the steps"
    )
    diagonal = W.diagonal()
    # sender[m] is matched with receiver m. Self loops match each client with itself.
    sender = np.arange(M) if (diagonal > 0).all() else csgraph.maximum_bipartite_matching(W, perm_type="column")
    unmatched = np.flatnonzero(sender < 0)
    if unmatched.size:
        few, heard = _hall_violation(W, sender, int(unmatched[0]))
        raise ImpossibleRepairError(
            f"balanced() needs edges on which weights can be doubly stochastic, but the {len(few)} clients "
            f"{listing(labels[few])} listen to {listing(labels[heard])} only, whose columns sum to "
            f"{len(heard)}, not {len(few)}. {advice}",
            f"{len(few)} clients listen to {len(heard)} only",
        )
    place = np.empty(M, dtype=np.int64)
    place[sender] = np.arange(M)
    # In the graph in which m leads to the receivers matched with its in-neighbours, cycles exchange matchings.
    leads = sparse.csr_array((W.data, place[W.indices], W.indptr), shape=W.shape)
    count, group = csgraph.connected_components(leads, directed=True, connection="strong")
    if count == 1:
        return
    row = np.repeat(np.arange(M), np.diff(W.indptr))
    across = np.flatnonzero(group[row] != group[place[W.indices]])
    if across.size:
        m, k = labels[row[across[0]]], labels[W.indices[across[0]]]
        raise ImpossibleRepairError(
            f"balanced() would have to give weight zero to {across.size} of {W.nnz} edges, the first being that on "
            f"which client {listing([m])} receives from {listing([k])}: doubly stochastic weights on these edges "
            f"cannot use it. {advice}, or drop these edges",
            f"{across.size} of {W.nnz} edges would have weight zero",
        )


def _hall_violation(
    W: sparse.csr_array, sender: NDArray[np.integer], start: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return receivers, among them `start`, who together listen to fewer senders (Hall's condition), and these."""
    M = W.shape[0]
    receiver = np.full(M, -1)
    receiver[sender[sender >= 0]] = np.flatnonzero(sender >= 0)
    inside, heard = np.zeros(M, dtype=bool), np.zeros(M, dtype=bool)
    new = np.array([start])
    while new.size:
        inside[new] = True
        reached = np.unique(np.concatenate([W.indices[W.indptr[m] : W.indptr[m + 1]] for m in new]))
        heard[reached] = True
        # Each sender reached is matched, or the matching could be longer; follow it to its receiver.
        follow = receiver[reached]
        new = follow[~inside[follow]]
    return np.flatnonzero(inside), np.flatnonzero(heard)
