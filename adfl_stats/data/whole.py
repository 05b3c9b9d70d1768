"""All clients, of whom those of the data at hand may be a part: their names, sizes, and how their numbers arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adfl_stats._types import Ints, Mask
from adfl_stats.data.client_data import ClientData

__all__ = ["DATA", "HASHES", "ROW", "SUM", "Whole"]

# Kinds of messages that clients send before a fit, see `engine.ledger`: a summand of a sum, numbers of a client's own,
# hashes of its rows, and rows themselves.
SUM, ROW, HASHES, DATA = "summand", "row", "hashes", "rows of data"


def _ours(values: NDArray[Any]) -> NDArray[Any]:
    return values


def _uncounted(kind: str, numbers: int) -> None:
    """Do nothing."""


@dataclass(frozen=True, eq=False)
class Whole:
    """The clients of all places; those of the data at hand are consecutive ones.

    Attributes
    ----------
    labels : pandas.Index
        The clients.
    sizes : ndarray (M,) of int64
        Their numbers of rows.
    first : int
        The place of the first client at hand.
    joined : callable
        From rows of this place to those of all places, in their order; all places call it together.
    told : callable
        Called with the kind of what each client tells all others, and how many numbers.
    """

    labels: pd.Index
    sizes: Ints
    first: int = 0
    joined: Callable[[NDArray[Any]], NDArray[Any]] = _ours
    told: Callable[[str, int], None] = _uncounted

    @classmethod
    def here(cls, data: ClientData) -> Whole:
        """Return the clients of the data, where there are no others."""
        return cls(data.labels, data.sizes)

    @property
    def alone(self) -> bool:
        """Whether there are no other clients than those at hand."""
        return self.joined is _ours

    @property
    def n_clients(self) -> int:
        """Number of all clients."""
        return len(self.labels)

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return int(self.sizes.sum())

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all clients, from those (m, ...) of the clients at hand."""
        self.told(ROW, int(np.prod(values.shape[1:])))
        return self.joined(values)

    def named(self, some: Mask) -> pd.Index:
        """Return those of all clients of whom `some`, of ours, is true."""
        return self.labels[self.gather(some)]

    def added(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of what the places have."""
        self.told(SUM, values.size)
        return np.asarray(self.joined(values[None]).sum(axis=0))
