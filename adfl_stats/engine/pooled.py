"""The estimates that pooled rows would give: the estimating equations of some clients' rows together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Mask
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.equations import Equations, solve
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.losses.evaluation import curvature_and_meat
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

__all__ = ["Estimate", "local_estimate", "pooled_estimate"]


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
    # With these total weights the means over clients are sums over rows.
    weights = np.where(clients, data.n_clients * data.totals, 0.0)
    found = solve(Equations(GLM(data, family), weights[:, None]), start[None])
    theta = found.theta[0]
    if not found.reached[0]:
        return None
    hessian, meat = curvature_and_meat(data, family, theta, weights)
    # Few rows, or separated labels: the loss has no single minimum.
    if roots_of_inverses(hessian[None])[1][0] < len(theta):
        return None
    return Estimate(theta, sandwich(hessian, meat)[1])


def local_estimate(data: ClientData, family: Family, m: int, start: Array) -> Estimate | None:
    """Return client m's own estimate; None where its loss has no single minimum (few rows, separated labels)."""
    if data.sizes[m] < data.X.shape[1]:
        return None
    return pooled_estimate(_alone(data, m), family, np.ones(1, dtype=bool), start)


def _alone(data: ClientData, m: int) -> ClientData:
    """Return the data of client m, without a copy of its rows."""
    rows = slice(int(data.offsets[m]), int(data.offsets[m + 1]))
    return replace(
        data,
        X=data.X[rows],
        y=data.y[rows],
        offsets=np.array([0, rows.stop - rows.start]),
        labels=data.labels[m : m + 1],
        shift=None if data.shift is None else data.shift[rows],
        row_weights=None if data.row_weights is None else data.row_weights[rows],
        set_aside=None,
    )
