"""Checks of the parts of `ClientData` when it is built directly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import check_finite, listing, shape_of

__all__ = ["check_parts"]


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError, which name the part, unless all parts are of the right kind and agree."""
    X, offsets, labels, names = (parts[name] for name in ("X", "offsets", "labels", "names"))
    _numbers(X, "X", 2)
    n, p = X.shape
    if n == 0 or p == 0:
        raise ValueError(f"X has shape {X.shape}; at least one row and one column are wanted")
    for name in ("y", "linear_offset", "row_weights"):
        if name == "y" or parts[name] is not None:
            _numbers(parts[name], name, 1)
            if len(parts[name]) != n:
                raise ValueError(f"{name} has {len(parts[name])} entries, X has {n} rows; they must agree")
    if parts["row_weights"] is not None and (parts["row_weights"] < 0.0).any():
        raise ValueError("row_weights has negative numbers; weights must be at least 0")
    if not isinstance(labels, pd.Index):
        raise TypeError(f"labels is a {type(labels).__name__}; pass a pandas Index of the clients' names")
    if not labels.is_unique or labels.hasnans:
        raise ValueError(
            f"labels names clients twice or not at all: {listing(labels[labels.duplicated() | labels.isna()])}"
        )
    _check_offsets(offsets, len(labels), n)
    if not isinstance(names, (list, tuple)):
        raise TypeError(f"names is a {type(names).__name__}; pass a list with the name of each column of X")
    if not all(isinstance(name, Hashable) for name in names):
        raise TypeError(f"names has {listing(names)}; pass a list with the name of each column of X")
    if len(names) != p or len(set(names)) != p:
        raise ValueError(f"names has {len(set(names))} distinct entries for {p} columns of X")
    aside = parts["set_aside"]
    if aside is not None and (shape_of(aside, "set_aside") != (len(labels),) or np.asarray(aside).dtype != bool):
        raise ValueError("set_aside must be a mask with one entry a client")


def _numbers(values: Any, name: str, ndim: int) -> None:
    fine = isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == ndim
    if not fine or isinstance(values, np.ma.MaskedArray) or not values.flags.c_contiguous:
        kind = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise TypeError(
            f"{name} is a {kind}; wanted is a plain array of float64 with {ndim} dimension(s) in C order. "
            "ClientData.from_arrays converts"
        )
    check_finite(values, name)


def _check_offsets(offsets: Any, n_clients: int, n: int) -> None:
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64 or offsets.shape != (n_clients + 1,):
        raise TypeError(
            f"offsets must be an array of int64 with {n_clients + 1} entries, one more than labels; "
            f"found {getattr(offsets, 'dtype', type(offsets).__name__)} of shape {shape_of(offsets, 'offsets')}"
        )
    if not offsets.flags.c_contiguous or offsets[0] != 0 or offsets[-1] != n:
        raise ValueError(f"offsets runs from {offsets[0]} to {offsets[-1]}; wanted is from 0 to {n}, the rows of X")
    empty = np.flatnonzero(np.diff(offsets) <= 0)
    if empty.size:
        raise ValueError(f"offsets does not increase after entry {empty[0]}: client {empty[0]} has no rows")
