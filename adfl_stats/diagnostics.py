"""What to say of the data before a fit: dependent columns, clients without a minimum of their own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from adfl_stats._batches import Batch, row_blocks, whole_clients
from adfl_stats._validation import listing
from adfl_stats.data import ClientData
from adfl_stats.errors import ConditionWarning
from adfl_stats.families import Family

__all__ = ["check_design", "separated_clients", "warn_of_clients"]

Array = NDArray[np.float64]

# Multiply-adds the search for separated clients may cost.
SEARCH_BUDGET = 5e9
SEARCH_ENTRIES = 1_000_000


def check_design(data: ClientData) -> None:
    """Raise ValueError naming the columns of X that are linear combinations of others."""
    p = data.X.shape[1]
    gram = np.zeros((p, p))
    for rows in row_blocks(data):
        gram += data.X[rows].T @ data.X[rows]
    norms = np.sqrt(np.diag(gram))
    if (norms == 0).any():
        zero = [data.names[k] for k in np.flatnonzero(norms == 0)]
        raise ValueError(f"the columns {listing(zero)} of X are zero in every row; leave them out")
    # The diagonal of R is the squared distance of a unit column from the span of those before it.
    triangle, pivots = linalg.qr(gram / np.outer(norms, norms), mode="r", pivoting=True)
    size = np.abs(np.diag(triangle))
    if (size < 1e-11).any() or data.n_rows < p:
        dependent = [data.names[k] for k in pivots[size < 1e-11]]
        raise ValueError(
            f"the columns of X are linearly dependent over all {data.n_rows} rows: {listing(dependent)} can be "
            "written by the others. Leave them out"
        )


def warn_of_clients(data: ClientData, family: Family) -> None:
    """Warn of clients whose own loss has no unique minimum, so that Condition 3 fails on them."""
    short = data.sizes < data.X.shape[1]
    if short.any():
        _warn(
            f"fewer rows than the {data.X.shape[1]} columns of X",
            data.labels[short],
            "their data count, but their own loss is flat in some directions",
        )
    if family.name == "binomial":
        apart = separated_clients(data, ~short)
        if len(apart):
            _warn(
                "a response that their covariates separate perfectly",
                apart,
                "their own estimate is infinite; the network's need not be",
            )


def _warn(what: str, clients: Sequence[Any], meaning: str) -> None:
    warnings.warn(
        f"{len(clients)} client(s) have {what}: {listing(clients)}. Condition 3 (local strong convexity) fails there: "
        f"{meaning}",
        ConditionWarning,
        stacklevel=4,
    )


def separated_clients(data: ClientData, among: NDArray[np.bool_]) -> list[Any]:
    """Return the labels of clients whose 0/1 response a linear predictor separates.

    A client is named only with a certificate: a predictor, found by a few Newton steps on its own
    data, whose sign tells the response of every row. The smallest clients are searched first, within
    a budget of work; large ones are hardly ever separated.
    """
    p = data.X.shape[1]
    order = np.argsort(data.sizes, kind="stable")
    within = np.empty(data.n_clients, dtype=bool)
    within[order] = np.cumsum(12.0 * data.sizes[order] * p * p) <= SEARCH_BUDGET
    # A large client is hardly ever separated, and the search would copy its rows.
    searched = among & within & (data.sizes * p <= SEARCH_ENTRIES)
    separated = np.zeros(data.n_clients, dtype=bool)
    for pieces in whole_clients(data, p):
        clients, rows = pieces[0].clients, slice(pieces[0].rows.start, pieces[-1].rows.stop)
        which = searched[clients]
        if which.any():
            batch = Batch(clients, rows, data.sizes[clients][which])
            mine = np.repeat(which, data.sizes[clients])
            separated[clients][which] = _separated(batch, data.X[rows][mine], data.y[rows][mine])
    return list(data.labels[separated])


def _separated(batch: Batch, X: Array, y: Array) -> NDArray[np.bool_]:
    """Return which clients of a batch are separated, by ten Newton steps of each on its own rows X and y."""
    eye, sign = np.eye(X.shape[1]), 2.0 * y - 1.0
    found = np.zeros(len(batch.sizes), dtype=bool)
    theta, eta = np.zeros((len(batch.sizes), X.shape[1])), np.zeros(len(y))
    # A trace of ridge keeps the step defined when the means have run to 0 and 1.
    ridge = 1e-8 * batch.sums(np.einsum("ij,ij->i", X, X)) / X.shape[1] + 1e-300
    for _ in range(10):
        mean = 1.0 / (1.0 + np.exp(-np.clip(eta, -30.0, 30.0)))
        curvature = batch.cross(X * (mean * (1.0 - mean))[:, None], X) + ridge[:, None, None] * eye
        theta += np.linalg.solve(curvature, batch.sums(X * (y - mean)[:, None])[:, :, None])[:, :, 0]
        eta = np.einsum("ij,ij->i", X, batch.spread(theta))
        found |= np.minimum.reduceat(sign * eta, batch.starts) > 0.0
    return found & np.logical_and.reduceat(np.isin(y, (0.0, 1.0)), batch.starts)
