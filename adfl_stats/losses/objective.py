"""The door for losses: what the engine asks of the clients' losses, whatever they are."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pandas as pd

from adfl_stats._types import Array, Mask

__all__ = ["Objective"]


@runtime_checkable
class Objective(Protocol):
    """The losses L_m of M clients in P parameters, of which the network minimises a weighted sum.

    Attributes
    ----------
    M, P : int
        Clients and parameters.
    labels : pandas.Index (M,)
        The clients.
    names : list of str (P,)
        The parameters.
    totals : ndarray (M,)
        What each client counts with, usually its number of rows.
    counted : ndarray (M,) of bool
        The clients that are not set aside.
    """

    M: int
    P: int

    @property
    def labels(self) -> pd.Index: ...  # noqa: D102

    @property
    def names(self) -> list[str]: ...  # noqa: D102

    @property
    def totals(self) -> Array: ...  # noqa: D102

    @property
    def counted(self) -> Mask: ...  # noqa: D102

    def start(self) -> Array:
        """Return where a method begins that is not told otherwise (M, P)."""

    def gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return each client's gradient at each of its R parameter vectors: (M, R, P) for theta (M, R, P)."""
