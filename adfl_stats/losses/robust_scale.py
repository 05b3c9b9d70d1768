"""A robust scale of the residuals of a linear regression, and the estimate that they are taken around.

Clients have scales of their own, which are combined by medians: the influence of a minority of abnormal clients is
bounded by the spread of the normal clients' scales, and that of gross rows inside clients is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.leverage import NORMAL_MEDIAN
from adfl_stats.data.whole import Whole

__all__ = ["RobustRegression", "robust_regression", "robust_scale", "sampled_numbers"]


# Huber's constant of the preliminary fits, 95 % efficient under normal errors (Huber 1981).
TUNING = 1.345
# Entries of X and clients in the subsample, and the least rows of a client. Ours: one scale has a standard error of
# about 1 % from 10,000 rows.
MOST_ENTRIES, MOST_CLIENTS, LEAST_ROWS = 1 << 21, 4096, 64
# Iterations of a fit, concentration steps, and the relative change of the scale at which both stop. Ours: the change is
# a tenth of the standard error above.
MOST_ITERATIONS, MOST_STEPS, SMALL_CHANGE = 30, 10, 1e-3
# Residuals this small relative to the responses are rounding errors, as in `losses.point_sums`.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class RobustRegression:
    """A robust estimate (p,) and the scale of the residuals around it."""

    theta: Array
    scale: float


@dataclass(frozen=True, eq=False)
class _Sample:
    """Rows of some clients: X, y without offset, weights, and how many rows each client has here."""

    X: Array
    y: Array
    weights: Array
    sizes: Ints

    def of(self, clients: Mask) -> _Sample:
        mine = np.repeat(clients, self.sizes)
        return _Sample(self.X[mine], self.y[mine], self.weights[mine], self.sizes[clients])

    def pooled(self) -> _Sample:
        return _Sample(self.X, self.y, self.weights, np.array([len(self.y)]))

    def scales(self, residuals: Array) -> Array:
        """Return each client's median absolute residual over that of a standard normal; infinite where it overflows."""
        scales = _medians(np.abs(residuals), self.weights, self.sizes) / NORMAL_MEDIAN
        return np.where(np.isnan(scales), np.inf, scales)


def robust_scale(data: ClientData, whole: Whole | None = None) -> float:
    """Return the scale of `robust_regression`; raise ValueError where there is none."""
    sample = _thinned(data, whole)
    scale = _best(sample).scale
    size = float(np.median(_medians(np.abs(sample.y), sample.weights, sample.sizes)))
    if not (np.isfinite(scale) and scale > ROUNDING * size):
        raise ValueError(
            f"family 'huber' found the scale {scale:g} of the residuals: in most clients at least half of the rows "
            "are fitted exactly, or numbers overflow. Give the scale, ad.Huber(scale=...), or use family='gaussian'"
        )
    return scale


def robust_regression(data: ClientData, whole: Whole | None = None) -> RobustRegression:
    """Return a robust regression of y on X with the median over clients of their residual scales.

    From each start, concentration steps fit Huber's loss to the majority of the clients whose residuals are
    smallest. The starts are the fit to all rows and the median of the clients' own fits. Of these the
    smallest scale is taken. That, and the fit to the same rows, bias it downwards by about
    1 % where clients or rows are few (20 clients of 100 rows), and less with more of them.
    """
    return _best(_thinned(data, whole))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _best(sample: _Sample) -> RobustRegression:
    return min((_concentrated(sample, start) for start in _starts(sample)), key=lambda fit: fit.scale)


def _thinned(data: ClientData, whole: Whole | None) -> _Sample:
    """Return rows evenly spaced within clients, and clients evenly spaced, few enough for many passes.

    Where some clients are elsewhere, their rows arrive, so that all places have the same sample.
    """
    whole = whole or Whole.here(data)
    clients, most = _sampled(whole, data.X.shape[1])
    clients = clients - whole.first
    clients = clients[(clients >= 0) & (clients < data.n_clients)]
    sizes = np.minimum(data.sizes[clients], most)
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.repeat(data.offsets[clients], sizes) + place * np.repeat(data.sizes[clients], sizes) // np.repeat(
        sizes, sizes
    )
    y = data.y[rows] if data.linear_offset is None else data.y[rows] - data.linear_offset[rows]
    weights = np.ones(len(rows)) if data.row_weights is None else data.row_weights[rows]
    return _Sample(*map(whole.joined, (np.asarray(data.X[rows]), np.asarray(y), weights, sizes)))


def _sampled(whole: Whole, p: int) -> tuple[Ints, int]:
    """Return which of all clients are in the sample, and the most rows of a client there."""
    least = max(LEAST_ROWS, 4 * p)
    count = min(whole.n_clients, MOST_CLIENTS, max(16, MOST_ENTRIES // (least * p)))
    return np.arange(count) * whole.n_clients // count, max(least, MOST_ENTRIES // (p * count))


def sampled_numbers(whole: Whole, p: int) -> int:
    """Return how many numbers a client of the sample sends on average: p covariates, response and weight of rows."""
    clients, most = _sampled(whole, p)
    return -(-int(np.minimum(whole.sizes[clients], most).sum()) * (p + 2) // len(clients))


def _starts(sample: _Sample) -> Iterator[Array]:
    yield _huber_fits(sample.pooled())[0][0]
    p = sample.X.shape[1]
    # With fewer rows a client's own fit is overfitted.
    enough = sample.sizes >= 2 * p
    if 2 * enough.sum() > len(enough):
        own, ranks = _huber_fits(sample.of(enough))
        yield np.median(own[ranks == p], axis=0) if (ranks == p).any() else np.zeros(p)


def _concentrated(sample: _Sample, theta: Array) -> RobustRegression:
    """Refit to the better majority of the clients for as long as the median of their scales falls."""
    scales = sample.scales(sample.y - sample.X @ theta)
    best = RobustRegression(theta, float(np.median(scales)))
    for _ in range(MOST_STEPS):
        nearest = np.zeros(len(scales), dtype=bool)
        nearest[np.argsort(scales, kind="stable")[: len(scales) // 2 + 1]] = True
        theta = _huber_fits(sample.of(nearest).pooled())[0][0]
        scales = sample.scales(sample.y - sample.X @ theta)
        refit, before = RobustRegression(theta, float(np.median(scales))), best.scale
        best = min(best, refit, key=lambda one: one.scale)
        if not refit.scale < (1.0 - SMALL_CHANGE) * before:
            break
    return best


def _huber_fits(sample: _Sample) -> tuple[Array, Ints]:
    """Fit Huber's loss to each client by iterated weighted least squares, its own scale in step; with the ranks."""
    batch = Batch(slice(0, len(sample.sizes)), slice(0, len(sample.y)), sample.sizes)
    weights, scales = sample.weights, np.full(len(sample.sizes), np.inf)
    for _ in range(MOST_ITERATIONS):
        weighted = sample.X * weights[:, None]
        roots, ranks = roots_of_inverses(batch.cross(weighted, sample.X))
        right = batch.cross(weighted, sample.y[:, None])
        theta = (roots @ (roots.transpose(0, 2, 1) @ right))[:, :, 0]
        residuals = sample.y - np.einsum("ij,ij->i", sample.X, batch.spread(theta))
        before, scales = scales, sample.scales(residuals)
        if (np.abs(scales - before) <= SMALL_CHANGE * scales).all():
            break
        limits = batch.spread(np.maximum(TUNING * scales, np.finfo(float).tiny))
        weights = sample.weights * np.minimum(1.0, limits / np.maximum(np.abs(residuals), limits))
    return theta, ranks


def _medians(values: Array, weights: Array, sizes: Ints) -> Array:
    """Return each client's weighted median: the middle of the two values where half of the weight lies between them."""
    order = np.lexsort((values, np.repeat(np.arange(len(sizes)), sizes)))
    values, weights = values[order], weights[order]
    first_rows = np.cumsum(sizes) - sizes
    totals = np.add.reduceat(weights, first_rows)
    # Sums within the client, so that the clients before it add no rounding errors.
    passed = np.cumsum(weights / np.repeat(totals, sizes)) - np.repeat(np.arange(len(sizes)), sizes)
    below = np.add.reduceat((passed < 0.5 - 1e-9).astype(np.int64), first_rows)
    upto = np.add.reduceat((passed < 0.5 + 1e-9).astype(np.int64), first_rows)
    last = sizes - 1
    low, high = first_rows + np.minimum(below, last), first_rows + np.minimum(upto, last)
    return 0.5 * (values[low] + values[high])
