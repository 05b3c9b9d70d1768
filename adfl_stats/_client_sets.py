"""Sets of clients by labels, indices or a mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._types import ClientSet, Mask

__all__ = ["abnormal_mask", "client_mask"]


def abnormal_mask(abnormal: ClientSet, labels: pd.Index, name: str = "abnormal") -> Mask:
    """Return the set A as a mask over the clients.

    Parameters
    ----------
    abnormal : label, or list, set, array, Index or Series of labels, indices or booleans
        A Series (or dict) of booleans is matched by its index; other Series count by their values.
        Numbers are labels where the clients' labels are numbers, else positions.
    labels : pandas.Index
        The clients, in the order of the mask.
    name : str
        The argument's name in messages.

    Examples
    --------
    >>> abnormal_mask({"b"}, pd.Index(["a", "b", "c"])).tolist()
    [False, True, False]
    >>> abnormal_mask([0, 2], pd.Index(["a", "b", "c"])).tolist()
    [True, False, True]
    """
    mask = client_mask(abnormal, labels, name)
    if mask.all():
        raise ValueError(
            f"{name} names all {len(labels)} clients; at least one must be normal. "
            "A mask is True for the abnormal ones; was it meant the other way round?"
        )
    return mask


def client_mask(clients: ClientSet, labels: pd.Index, name: str) -> Mask:
    """Return any set of clients as a mask, by the rules of `abnormal_mask`.

    Parameters
    ----------
    clients : label, or list, set, array, Index or Series of labels, indices or booleans
        The set.
    labels : pandas.Index
        All clients, in the order of the mask.
    name : str
        The argument's name in messages.

    Examples
    --------
    >>> client_mask("b", pd.Index(["a", "b"]), "protect").tolist()
    [False, True]
    """
    abnormal = pd.Series(clients) if isinstance(clients, Mapping) else clients
    if isinstance(abnormal, pd.Series) and pd.api.types.is_bool_dtype(abnormal.dtype):
        mask = _matched_mask(abnormal, labels, name)
    else:
        entries = _entries(abnormal, name)
        if entries and all(isinstance(entry, (bool, np.bool_)) for entry in entries):
            if len(entries) != len(labels):
                raise ValueError(
                    f"{name} is a mask of {len(entries)} entries for {len(labels)} clients; "
                    "give one for each, in the order of the data, or the clients' labels"
                )
            mask = np.array(entries, dtype=np.bool_)
        else:
            mask = np.zeros(len(labels), dtype=np.bool_)
            mask[_positions(entries, labels, name)] = True
    return mask


def _entries(abnormal: Any, name: str) -> list[Any]:
    """Return what was given as a list; a lone label is one entry."""
    if isinstance(abnormal, (str, bytes)) or not isinstance(abnormal, Iterable):
        return [abnormal]
    entries = [] if getattr(abnormal, "ndim", 1) != 1 else list(abnormal)
    if getattr(abnormal, "ndim", 1) != 1 or any(isinstance(entry, (list, np.ndarray)) for entry in entries):
        raise ValueError(
            f"{name} is a {type(abnormal).__name__} that is not flat; give a flat list of labels or indices, or a "
            "mask with one entry for each client"
        )
    return entries


def _matched_mask(abnormal: pd.Series, labels: pd.Index, name: str) -> Mask:
    absent = [label for label in labels if label not in abnormal.index]
    if absent or len(abnormal) != len(labels):
        raise ValueError(
            f"{name} is a mask with {len(abnormal)} entries by label, and lacks {listing(absent) or 'none'} of the "
            f"{len(labels)} clients; index it by the clients' labels, each once"
        )
    return np.asarray(abnormal.loc[labels], dtype=np.bool_)


def _positions(entries: list[Any], labels: pd.Index, name: str) -> list[int]:
    unknown = [entry for entry in entries if entry not in labels]
    if not unknown:
        where = {label: position for position, label in enumerate(labels)}
        return [where[entry] for entry in entries]
    whole = all(isinstance(entry, (int, np.integer)) for entry in entries)
    if whole and not pd.api.types.is_numeric_dtype(labels.dtype):
        if all(0 <= entry < len(labels) for entry in entries):
            return [int(entry) for entry in entries]
        raise ValueError(
            f"{name} has indices from {min(entries)} to {max(entries)}; the {len(labels)} clients have the "
            f"indices 0 to {len(labels) - 1}. Use these, or the clients' labels"
        )
    raise ValueError(
        f"{name} names {listing(unknown)}, not among the clients {listing(labels)}; "
        "text and number are different labels"
    )
