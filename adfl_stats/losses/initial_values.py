"""Initial estimates, and the constants that a family estimates from the data before a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import batches, of_clients, row_blocks, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.whole import Whole
from adfl_stats.losses.families import Family
from adfl_stats.losses.links import LINKS
from adfl_stats.losses.point_sums import Gather, Total, ours_only
from adfl_stats.losses.robust_scale import robust_scale

__all__ = ["constant_columns", "constant_predictor", "log_means", "typical_mean", "with_constants"]

# Means below this share of the typical client's are taken for zero, where a link is not defined. Ours: far below
# the mean of any client whose data fit, far above rounding.
LEAST_MEAN = 1e-4
# A client starts with at least this share of the typical mean (ours): near zero the Gaussian loss with a log link is
# flat.
LEAST_START = 0.1


def with_constants(family: Family, data: ClientData, whole: Whole | None = None) -> Family:
    """Return the family with the constants that it takes from the data of all clients before a fit.

    These are Huber's k, and the least linear predictor of links that want a positive one: that of a mean
    `LEAST_MEAN` times the typical one, or as many times larger where the link decreases.
    """
    if family.par:
        return family
    if family.robust:
        return replace(family, par=family.tuning * robust_scale(data, whole))
    if not family.positive_predictor:
        return family
    link, typical = LINKS[family.link], typical_mean(data, ours_only if whole is None else whole.gather)
    return replace(family, par=float(min(link.of_mean(LEAST_MEAN * typical), link.of_mean(typical / LEAST_MEAN))))


def typical_mean(data: ClientData, gather: Gather = ours_only) -> float:
    """Return the median over clients of their mean response, or the mean over all where that is not positive."""
    sums = np.zeros(data.n_clients)
    for batch in batches(data, 1):
        sums[batch.clients] += batch.sums(data.weights_of(batch.rows) * data.y[batch.rows])
    means = gather((sums / data.totals)[data.counted])
    middle = float(np.median(means))
    return middle if middle > 0.0 else max(float(means.mean()), np.finfo(float).tiny)


def constant_columns(data: ClientData, clients: Mask) -> tuple[Array, Mask]:
    """Return the first row (1, p) of some clients, and which columns have its value, not zero, in all of their rows.

    Both are (0, p) where they have no rows.
    """
    some = np.flatnonzero(clients)
    first = data.X[data.offsets[some[:1]]]
    same = first != 0
    for rows in row_blocks(data) if len(some) else ():
        unlike = data.X[rows] != first
        if len(some) < len(clients):
            unlike &= clients[row_clients(data, rows), None]
        same &= ~unlike.any(axis=0)
        if not same.any():
            break
    return first, same


def constant_predictor(
    data: ClientData, family: Family, constant: tuple[int, float] | None, total: Total, gather: Gather
) -> Array:
    """Return coefficients (P,) that give every row the typical mean, or as nearly as least squares can.

    `constant` is the constant column with its value, `total` and `gather` are those of a transport.
    """
    p = data.X.shape[1]
    target = float(LINKS[family.link].of_mean(typical_mean(data, gather)))
    if constant is not None:
        theta = np.zeros(p * family.outputs)
        theta[constant[0]] = (target - _mean_offset(data, total)) / constant[1]
        return theta

    def part(at: slice) -> Array:
        # X'X, and below it the columns' sums.
        own, sums = of_clients(data, slice(*at.indices(data.n_clients)[:2])), np.zeros((p + 1, p))
        for rows in row_blocks(own):
            X = own.X[rows][own.counted[row_clients(own, rows)]]
            sums[:-1] += X.T @ X
            sums[-1] += X.sum(axis=0)
        return sums

    sums = total(part)
    return np.asarray(target * np.linalg.lstsq(sums[:-1], sums[-1])[0])


def _mean_offset(data: ClientData, total: Total) -> float:
    """Return the mean of the rows' offsets."""
    if data.linear_offset is None:
        return 0.0
    linear_offset = data.linear_offset

    def part(at: slice) -> Array:
        bounds = data.offsets[:-1][at], data.offsets[1:][at]
        own = linear_offset[bounds[0][0] : bounds[1][-1]] if len(bounds[0]) else linear_offset[:0]
        return np.array([own.sum(), len(own)])

    whole, rows = total(part)
    return float(whole / rows)


def log_means(data: ClientData, family: Family, gather: Gather) -> Array:
    """Return the logarithm of each client's mean response over its mean exposure (M,)."""
    events, exposure = np.zeros(data.n_clients), np.zeros(data.n_clients)
    for batch in batches(data, 1):
        weight = data.weights_of(batch.rows)
        events[batch.clients] += batch.sums(weight * data.y[batch.rows])
        rate = weight if data.linear_offset is None else weight * np.exp(data.linear_offset[batch.rows])
        exposure[batch.clients] += batch.sums(rate)
    # Half an event keeps the logarithm finite for a client without events (counts only).
    measured = family.name in ("gaussian", "inversegaussian", "tweedie")
    least = LEAST_START * typical_mean(data, gather) * exposure if measured else 0.5
    return np.log(np.maximum(events, least) / exposure)
