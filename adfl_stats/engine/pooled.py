"""The estimates that pooled rows would give: Newton's method on the losses of some clients together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import Batch, row_blocks, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.losses.client_sums import (
    client_moments,
    column_sizes,
    linear_predictor,
    meat,
    scaled,
    weighted_curvature,
)
from adfl_stats.losses.evaluation import curvature_and_meat
from adfl_stats.losses.families import Family

__all__ = ["Estimate", "local_estimate", "pooled_estimate"]

Slopes = Callable[[Array], tuple[Array, Array]]

MOST_STEPS = 50


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate (P,) and its sandwich covariance (P, P), statsmodels' HC0."""

    params: Array
    covariance: Array


def pooled_estimate(data: ClientData, family: Family, clients: Mask, start: Array) -> Estimate | None:
    """Return the maximum likelihood estimate on the pooled rows of some clients, None where there is none.

    Parameters
    ----------
    data, family
        What the clients hold.
    clients : ndarray (M,) of bool
        Whose rows count.
    start : ndarray (P,)
        Where to begin.
    """

    def slopes(theta: Array) -> tuple[Array, Array]:
        gradient, hessian = np.zeros((family.outputs, data.X.shape[1])), np.zeros((len(theta), len(theta)))
        for rows in row_blocks(data):
            X, y, weight = data.X[rows], data.y[rows], clients[row_clients(data, rows)] * data.weights_of(rows)
            eta = linear_predictor(data, family, theta, rows)
            gradient += scaled(family.residual(eta, y), weight).reshape(len(y), -1).T @ X
            whole = Batch(slice(0, 1), rows, np.array([len(y)]))
            hessian += weighted_curvature(whole, X, family.newton_curvature(eta, y), weight)[0]
        return gradient.ravel(), hessian

    theta = _minimum(slopes, start, column_sizes(data, family))
    if theta is None:
        return None
    # So that the means over clients that the evaluation takes become sums over rows.
    weights = np.where(clients, data.n_clients * data.totals, 0.0)
    return Estimate(theta, sandwich(*curvature_and_meat(data, family, theta, weights))[1])


def local_estimate(data: ClientData, family: Family, m: int, start: Array) -> Estimate | None:
    """Return client m's own estimate; None where its loss has no single minimum (few rows, separated labels)."""
    if data.sizes[m] < data.X.shape[1]:
        return None
    total = data.totals[m]

    def slopes(theta: Array) -> tuple[Array, Array]:
        found = client_moments(data, family, theta, m)
        return total * found.gradient, total * (found.hessian if family.convex else found.information)

    theta = _minimum(slopes, start, column_sizes(data, family, m))
    if theta is None:
        return None
    squares = np.zeros((len(theta), len(theta)))
    for rows in data.blocks(m):
        residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
        squares += meat(data.X[rows], scaled(residual, data.weights_of(rows)))
    return Estimate(theta, sandwich(total * client_moments(data, family, theta, m).hessian, squares)[1])


def _minimum(slopes: Slopes, theta: Array, size: Array) -> Array | None:
    """Return where the gradient of a convex loss is zero.

    The losses here are convex, so a step is too long only where the slope along it has turned and is
    steeper than at its beginning; it is then halved.
    """
    gradient, hessian = slopes(theta)
    for k in range(MOST_STEPS):
        step = _solved(hessian, gradient)
        if step is None:
            return None
        # A Gaussian loss is solved by the first step, whatever the units of y; its second removes rounding.
        if k > 1 and np.max(np.abs(step) * size) <= 1e-8 * (1.0 + np.max(np.abs(theta) * size)):
            return theta - step
        slope, length = float(gradient @ step), 1.0
        while True:
            gradient, hessian = slopes(theta - length * step)
            if np.isfinite(hessian).all() and abs(gradient @ step) <= slope:
                break
            length /= 2.0
            if length < 1e-6:
                # Only rounding is left of the slope.
                return theta if np.max(np.abs(step) * size) <= 1e-6 else None
        theta = theta - length * step
    return None


def _solved(hessian: Array, gradient: Array) -> Array | None:
    """Return H^-1 g, or None where H is singular whatever the units of the columns."""
    size = np.sqrt(np.diag(hessian))
    if not (size > 0.0).all():
        return None
    factor, failed = linalg.lapack.dpotrf(hessian / np.outer(size, size), lower=True)
    if failed or np.diag(factor).min() < 1e-6:
        return None
    return linalg.cho_solve((factor, True), gradient / size) / size
