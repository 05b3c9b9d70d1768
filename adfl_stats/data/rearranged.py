"""Copies of data with zeros for the rows of some clients, or with the clients in another order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import pandas as pd

from adfl_stats._types import Mask
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.views import changeable, frozen

__all__ = ["reordered", "with_zeros"]


# What stands for the responses of a client that is set aside: in the domain of all families, and the same whichever
# clients are in this place.
RESPONSE = 1.0


def with_zeros(data: ClientData, clients: Mask) -> ClientData:
    """Return the data with zeros for the rows of some clients (M,); see `ClientData.setting_aside`."""
    X, y = changeable(data.X), changeable(data.y)
    linear_offset = None if data.linear_offset is None else changeable(data.linear_offset)
    weights = None if data.row_weights is None else changeable(data.row_weights)
    for m in np.flatnonzero(clients):
        rows = slice(*data.offsets[m : m + 2])
        X[rows], y[rows] = 0.0, RESPONSE
        if linear_offset is not None:
            linear_offset[rows] = 0.0
        if weights is not None:
            weights[rows] = 1.0
    return assembled(
        data,
        X=frozen(X),
        y=frozen(y),
        linear_offset=None if linear_offset is None else frozen(linear_offset),
        row_weights=None if weights is None else frozen(weights),
        set_aside=frozen(clients),
    )


def reordered(data: ClientData, labels: Iterable[Hashable]) -> ClientData:
    """Return the data with the clients in another order; see `ClientData.in_order`."""
    wanted = pd.Index(list(labels))
    order = data.labels.get_indexer(wanted)
    if len(wanted) != data.n_clients or (np.sort(order) != np.arange(data.n_clients)).any():
        raise ValueError(
            f"labels must be the {data.n_clients} clients of the data, each once, in another order; found are "
            f"{len(wanted)}, of which the data have {len(np.unique(order[order >= 0]))}"
        )
    sizes = data.sizes[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.repeat(data.offsets[order] - offsets[:-1], sizes) + np.arange(data.n_rows)
    return assembled(
        data,
        X=frozen(data.X[rows]),
        y=frozen(data.y[rows]),
        offsets=frozen(offsets.astype(np.int64)),
        labels=data.labels[order],
        linear_offset=None if data.linear_offset is None else frozen(data.linear_offset[rows]),
        row_weights=None if data.row_weights is None else frozen(data.row_weights[rows]),
        row_order=frozen(rows if data.row_order is None else data.row_order[rows]),
        set_aside=None if data.set_aside is None else frozen(data.set_aside[order]),
        cuts=None,
    )
