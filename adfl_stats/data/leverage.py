"""Mallows weights: rows whose covariates lie far from the rest of their client's count less."""

from __future__ import annotations

import numpy as np

from adfl_stats._arguments import in_interval
from adfl_stats._types import Array
from adfl_stats.data import client_data as _data
from adfl_stats.data.batches import Batch, batches, whole_clients
from adfl_stats.data.client_data import ClientData, assembled

__all__ = ["NORMAL_MEDIAN", "mallows"]


# The median absolute value of a standard normal variable.
NORMAL_MEDIAN = 0.6744897501960817
# Clients with fewer rows are centred at the median of all clients. Ours: a median of fewer rows depends on single ones.
LEAST_ROWS = 8


def mallows(data: ClientData, c: float = 3.0) -> ClientData:
    """Return the data with row weights that bound the influence of outlying covariates.

    With z the largest distance of a row's covariates from the client's medians, in normalised median absolute
    deviations, the row's weight is 1 for z <= c and (c / z)^2 beyond, so that z times the weight is at most c.
    Weights that depend on covariates alone leave every family's estimating equation unbiased.

    Parameters
    ----------
    data : ClientData
        What each client holds; its own row weights are multiplied by these.
    c : float
        Distance at which weights begin to fall. Of normal rows with p independent covariates about 0.3 p % lie
        beyond 3.

    Returns
    -------
    ClientData
        The same rows, with weights. Covariates are not copied.

    Notes
    -----
    The residuals of the binomial and the multinomial are bounded, and so are those of `Huber`: with these
    weights a row's influence is bounded. Those of the other families are not: a gross count still moves a
    Poisson fit, and so does a gross covariate, whose mean exp(x'theta) grows faster than the weight falls.

    A column's unit is the larger of the client's own median absolute deviation and the median of all clients',
    so that neither a client with more spread nor one with few rows is down-weighted as a whole. Columns where both
    are zero (constants, rare levels of factors, mostly zero counts) do not count. Clients with fewer than 8 rows
    are centred at the median of all clients' medians. Medians of clients with more than 8192 rows are those of rows
    evenly spaced. Score statistics take the weights for precisions, which is slightly conservative; standard errors
    are the sandwich's and need no such assumption.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.hospitals(seed=1)
    >>> data = ad.ClientData.from_frame(sim.frame(), "readmitted ~ age + severity + comorbid + treated", "hospital")
    >>> safe = ad.mallows(data)
    >>> bool(safe.row_weights.max() <= 1.0 and safe.row_weights.mean() > 0.95)
    True
    """
    if not isinstance(data, ClientData):
        raise TypeError(
            f"data is a {type(data).__name__}; build a ClientData with ClientData.from_frame or from_arrays first"
        )
    try:
        in_interval(c, "c", 0.0, np.inf, open_low=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}: the usual value is 3; without weights pass the data themselves") from None
    centres, units = _centres_and_units(data)
    weights = np.empty(data.n_rows)
    for batch in batches(data, data.X.shape[1]):
        apart = np.abs(data.X[batch.rows] - batch.spread(centres[batch.clients]))
        unit = batch.spread(units[batch.clients])
        z = np.divide(apart, unit, out=np.zeros_like(apart), where=unit > 0.0).max(axis=1)
        weights[batch.rows] = np.square(c / np.maximum(z, c)) * data.weights_of(batch.rows)
    weights.flags.writeable = False
    return assembled(data, row_weights=weights)


def _centres_and_units(data: ClientData) -> tuple[Array, Array]:
    """Return where each client's rows are measured from and the unit of each of its columns, (M, p) both."""
    centres = _client_medians(data, None)
    small = data.sizes < LEAST_ROWS
    centres[small] = np.median(centres, axis=0)
    own = _client_medians(data, centres) / NORMAL_MEDIAN
    return centres, np.maximum(own, np.median(own, axis=0))


def _client_medians(data: ClientData, centres: Array | None) -> Array:
    """Return each client's medians of the columns of X, or of their distances from its row of `centres`, (M, p)."""
    p = data.X.shape[1]
    out = np.empty((data.n_clients, p))
    for pieces in whole_clients(data, p):
        clients = pieces[0].clients
        if len(pieces) > 1:
            # One client that does not fit into a block.
            size, most = int(data.sizes[clients.start]), _data.BLOCK_ROWS
            X = data.X[data.offsets[clients.start] + np.arange(most) * size // most]
            batch = Batch(clients, slice(0, most), np.array([most]))
        else:
            X, batch = data.X[pieces[0].rows], pieces[0]
        out[clients] = batch.medians(X if centres is None else np.abs(X - batch.spread(centres[clients])))
    return out
