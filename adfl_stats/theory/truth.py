"""What a user knows of the truth: the abnormal clients and the true parameter, in any form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adfl_stats._validation import finite_float64, listing

__all__ = ["abnormal_mask", "true_parameter"]


def abnormal_mask(abnormal: Any, labels: pd.Index) -> NDArray[np.bool_]:
    """Return the set A as a mask over the clients.

    Parameters
    ----------
    abnormal : label, or list, set, array, Index or Series of labels, indices or booleans
        A Series (or dict) of booleans is matched by its index; other Series count by their values.
        Numbers are labels where the clients' labels are numbers, else positions.
    labels : pandas.Index
        The clients, in the order of the mask.

    Examples
    --------
    >>> abnormal_mask({"b"}, pd.Index(["a", "b", "c"])).tolist()
    [False, True, False]
    >>> abnormal_mask([0, 2], pd.Index(["a", "b", "c"])).tolist()
    [True, False, True]
    """
    if isinstance(abnormal, Mapping):
        abnormal = pd.Series(abnormal)
    if isinstance(abnormal, pd.Series) and pd.api.types.is_bool_dtype(abnormal.dtype):
        mask = _matched_mask(abnormal, labels)
    else:
        entries = _entries(abnormal)
        if entries and all(isinstance(entry, (bool, np.bool_)) for entry in entries):
            if len(entries) != len(labels):
                raise ValueError(
                    f"abnormal is a mask of {len(entries)} entries for {len(labels)} clients; "
                    "give one for each, in the order of the data, or the abnormal clients' labels"
                )
            mask = np.array(entries, dtype=np.bool_)
        else:
            mask = np.zeros(len(labels), dtype=np.bool_)
            mask[_positions(entries, labels)] = True
    if mask.all():
        raise ValueError(
            f"abnormal names all {len(labels)} clients; at least one must be normal. "
            "A mask is True for the abnormal ones; was it meant the other way round?"
        )
    return mask


def true_parameter(theta0: Any, names: list[str]) -> NDArray[np.float64]:
    """Return theta0 as an array in the order of the coefficients; a Series or a dict is matched by name."""
    if isinstance(theta0, Mapping):
        theta0 = pd.Series(theta0)
    if isinstance(theta0, pd.Series):
        absent = [name for name in names if name not in theta0.index]
        if absent or len(theta0) != len(names):
            raise ValueError(
                f"theta0 has {len(theta0)} entries named {listing(theta0.index)}; the {len(names)} coefficients "
                f"{listing(names)} are wanted. Name its entries like res.params, or pass an array in that order"
            )
        theta0 = theta0.loc[names]
    values = finite_float64(theta0, "theta0", 1)
    if len(values) != len(names):
        raise ValueError(
            f"theta0 has {len(values)} entries; the model has {len(names)} coefficients ({listing(names)}). "
            "Give one value for each, in that order"
        )
    return values


def _entries(abnormal: Any) -> list[Any]:
    """Return what was given as a list; a lone label is one entry."""
    if isinstance(abnormal, (str, bytes)) or not isinstance(abnormal, Iterable):
        return [abnormal]
    found = [] if getattr(abnormal, "ndim", 1) != 1 else list(abnormal)
    if getattr(abnormal, "ndim", 1) != 1 or any(isinstance(entry, (list, np.ndarray)) for entry in found):
        raise ValueError(
            f"abnormal is a {type(abnormal).__name__} that is not flat; give a flat list of labels or indices, or a "
            "mask with one entry for each client"
        )
    return found


def _matched_mask(abnormal: pd.Series, labels: pd.Index) -> NDArray[np.bool_]:
    absent = [label for label in labels if label not in abnormal.index]
    if absent or len(abnormal) != len(labels):
        raise ValueError(
            f"abnormal is a mask with {len(abnormal)} entries by label, and lacks {listing(absent) or 'none'} of the "
            f"{len(labels)} clients; index it by the clients' labels, each once"
        )
    return np.asarray(abnormal.loc[labels], dtype=np.bool_)


def _positions(entries: list[Any], labels: pd.Index) -> list[int]:
    unknown = [entry for entry in entries if entry not in labels]
    if not unknown:
        where = {label: position for position, label in enumerate(labels)}
        return [where[entry] for entry in entries]
    whole = all(isinstance(entry, (int, np.integer)) for entry in entries)
    if whole and not pd.api.types.is_numeric_dtype(labels.dtype):
        if all(0 <= entry < len(labels) for entry in entries):
            return [int(entry) for entry in entries]
        raise ValueError(
            f"abnormal has indices from {min(entries)} to {max(entries)}; the {len(labels)} clients have the "
            f"indices 0 to {len(labels) - 1}. Use these, or the clients' labels"
        )
    raise ValueError(
        f"abnormal names {listing(unknown)}, not among the clients {listing(labels)}; "
        "text and number are different labels"
    )
