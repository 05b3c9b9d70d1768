"""The columns that tables and summaries show of the clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats.inference.client_record import ClientRecord
from adfl_stats.inference.record import FitRecord

__all__ = ["client_columns"]


def client_columns(fit: FitRecord, clients: ClientRecord) -> dict[str, NDArray[Any]]:
    """Return the columns of `Results.clients` that need no comparison of clients and no estimate without one.

    `clients` is the fit's model of clients, or the one of the preliminary tests.
    """
    unit = np.sqrt(np.diag(fit.sandwich))
    # Data without noise have standard errors of zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (fit.theta - fit.params) / unit
    norms = np.linalg.norm(fit.weighted_sums.gradients, axis=1)
    return {
        "n": fit.sizes,
        "gradient": np.where(fit.set_aside, np.inf, norms),
        "score": clients.statistics,
        "df": clients.ranks,
        "p_value": clients.p_values,
        **fit.discrepancy_column,
        "weight": fit.weights,
        "noise": clients.noise,
        "influence": fit.influence,
        "distance": np.sqrt((apart**2).mean(axis=1)),
    }
