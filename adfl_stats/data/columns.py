"""Columns as users give them: response, clients, offset, exposure; checked and turned into arrays."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import finite_float64, refuse_masked, shape_of
from adfl_stats._types import Array, Ints

__all__ = [
    "check_alignment",
    "coded_response",
    "column_names",
    "given_names",
    "numbered_clients",
    "of_length",
    "offset_and_exposure",
    "positive",
]


def check_alignment(**parts: Any) -> None:
    """Refuse pandas objects whose rows are in different orders: positions would match the wrong ones."""
    indexed = {name: part.index for name, part in parts.items() if isinstance(part, (pd.Series, pd.DataFrame))}
    first, *others = indexed or ("",)
    for name in others:
        if not indexed[name].equals(indexed[first]):
            raise ValueError(
                f"{first} and {name} have different indexes; rows are matched by position, so bring them to one "
                "index first (reindex), or pass plain arrays"
            )


def column_names(X: Any) -> list[str]:
    """Return the names of X's columns; x1, x2, ... for an array."""
    if isinstance(X, pd.DataFrame):
        return [str(name) for name in X.columns]
    shape = shape_of(X, "X")
    if len(shape) != 2:
        raise ValueError(f"X must have 2 dimensions (rows, columns), got shape {shape}")
    return [f"x{k + 1}" for k in range(shape[1])]


def given_names(names: Any) -> list[str]:
    """Return names of columns that were given."""
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable) or getattr(names, "ndim", 1) == 0:
        raise TypeError(f"names is {names!r}; give a list with one name for each column of X")
    return [str(name) for name in names]


def coded_response(y: Any) -> tuple[Array, tuple[Any, ...] | None]:
    """Return y as float64, and its classes where it holds labels instead of numbers."""
    refuse_masked(y, "y")
    shape_of(y, "y")
    values = y if isinstance(y, (pd.Series, pd.Categorical)) else np.asarray(y)
    if values.ndim != 1:
        raise ValueError(f"y must have one dimension, got shape {values.shape}")
    if pd.api.types.is_bool_dtype(values.dtype):
        values = np.asarray(values, dtype=np.float64)
    if values.dtype == object and all(isinstance(value, Number) for value in values):
        values = np.asarray(values, dtype=np.float64)
    if not pd.api.types.is_numeric_dtype(values.dtype):
        factor = pd.Categorical(values).remove_unused_categories()
        if (factor.codes < 0).any():
            raise ValueError("y has missing labels; remove these rows or pass missing='drop'")
        return factor.codes.astype(np.float64), tuple(factor.categories)
    return finite_float64(values, "y", 1), None


def numbered_clients(client: Any) -> tuple[Ints, pd.Index]:
    """Number the clients by first appearance."""
    refuse_masked(client, "client")
    shape = shape_of(client, "client")
    if len(shape) != 1:
        raise ValueError(f"client must have one dimension, got shape {shape}")
    codes, labels = pd.factorize(client if isinstance(client, pd.Series) else np.asarray(client))
    if (codes < 0).any():
        raise ValueError(f"client has {int((codes < 0).sum())} missing labels; every row needs its client")
    return codes.astype(np.int64, copy=False), pd.Index(labels)


def offset_and_exposure(offset: Any, exposure: Any, n: int) -> Array | None:
    """Return offset plus log exposure for n rows, or None where neither is given."""
    if offset is None and exposure is None:
        return None
    total = np.zeros(n)
    if offset is not None:
        total += of_length(finite_float64(offset, "offset", 1), "offset", n)
    if exposure is not None:
        total += np.log(positive(exposure, "exposure", n))
    return total


def positive(value: Any, name: str, n: int) -> Array:
    """Return n positive numbers."""
    values = of_length(finite_float64(value, name, 1), name, n)
    if (values <= 0).any():
        row = int(np.argmax(values <= 0))
        advice = ". Leave out rows that do not count" if values[row] == 0.0 and name == "weights" else ""
        raise ValueError(f"{name} must be positive; row {row} has {values[row]:g}{advice}")
    return values


def counts(value: Any, name: str, n: int) -> Ints:
    """Return n whole numbers of at least one."""
    values = of_length(finite_float64(value, name, 1), name, n)
    wrong = (values < 1.0) | (values != np.rint(values))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{name} must be whole numbers of at least 1, as it counts like rows; row {row} has {values[row]:g}. Leave "
            "out rows that count zero times; for other weights use weights="
        )
    return values.astype(np.int64)


def of_length(values: Array, name: str, n: int) -> Array:
    """Return the values, which have to be one a row."""
    if len(values) != n:
        raise ValueError(f"{name} has {len(values)} entries, X has {n} rows; they must agree")
    return values
