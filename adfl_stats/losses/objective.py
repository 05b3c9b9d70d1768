"""The interface of objectives: what the engine needs of the clients' losses."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing, whole_number
from adfl_stats._types import Array, Mask
from adfl_stats.losses.entry_names import EntryNames, all_distinct

__all__ = ["Objective", "checked_objective"]


@runtime_checkable
class Objective(Protocol):
    """The losses L_m of M clients in P parameters, of which the network minimises a weighted sum.

    Attributes
    ----------
    M, P : int
        Clients and parameters.
    labels : pandas.Index (M,)
        The clients.
    names : sequence of str (P,)
        The parameters.
    totals : ndarray (M,)
        Each client's sum of row weights, usually its number of rows.
    counted : ndarray (M,) of bool
        The clients that are not set aside.
    has_curvature : bool, optional
        Whether the objective has all that a generalised linear model has: values, curvatures and scores, as in
        `losses.glm.GLM`. Others leave it out, and go through every method and solver that needs gradients only.
    placed : callable, optional
        ``placed(total, gather, parts)`` returns the objective for a transport, where it needs sums over clients that
        may be elsewhere: `total` and `gather` are the transport's, `parts` the slices of our clients in its sums.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from adfl_stats.losses.objective import Objective
    >>> class Means:
    ...     M, P, labels, names = 4, 1, pd.RangeIndex(4), ["mean"]
    ...     totals, counted = np.ones(4), np.ones(4, dtype=bool)
    ...     y = np.array([1.0, 2.0, 3.0, 6.0])
    ...     def start(self):
    ...         return np.zeros((4, 1))
    ...     def gradients(self, theta, threads=1):
    ...         return theta - self.y[:, None, None]
    >>> isinstance(Means(), Objective)
    True
    """

    M: int
    P: int

    @property
    def labels(self) -> pd.Index: ...  # noqa: D102

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def totals(self) -> Array: ...  # noqa: D102

    @property
    def counted(self) -> Mask: ...  # noqa: D102

    def start(self) -> Array:
        """Return the default initial estimates (M, P)."""

    def gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return each client's gradient at each of its R parameter vectors: (M, R, P) for theta (M, R, P)."""


PARTS = ("M", "P", "labels", "names", "totals", "counted", "start", "gradients")


def checked_objective(objective: Any) -> Objective:
    """Return a user's objective, after a check of its parts and of its gradients at the start."""
    absent = [part for part in PARTS if not hasattr(objective, part)]
    if isinstance(objective, type) or absent:
        raise TypeError(
            f"objective is {objective!r}; an object with {', '.join(PARTS)} is wanted"
            + (f", and this lacks {', '.join(absent)}" if absent else ", and this is a class")
        )
    name = type(objective).__name__
    M, P = (whole_number(getattr(objective, part), f"{name}.{part}", 1) for part in ("M", "P"))
    for part, wanted in {"labels": (M,), "names": (P,), "totals": (M,), "counted": (M,)}.items():
        given = getattr(objective, part)
        shape = (len(given),) if isinstance(given, EntryNames) else np.shape(given)
        if shape != wanted:
            raise ValueError(f"{name}.{part} has shape {shape}; with M = {M} and P = {P} it must be {wanted}")
    if not isinstance(objective.labels, pd.Index):
        raise TypeError(f"{name}.labels is a {type(objective.labels).__name__}; a pandas Index is wanted")
    if not all_distinct(objective.names):
        raise ValueError(f"{name}.names has {listing(objective.names)}; each parameter needs a name of its own")
    if not isinstance(objective.totals, np.ndarray) or not np.issubdtype(objective.totals.dtype, np.number):
        raise TypeError(f"{name}.totals is {objective.totals!r}; an array of {M} positive numbers is wanted")
    if not (objective.totals > 0.0).all():
        raise ValueError(f"{name}.totals has numbers that are not positive; they are the clients' sums of row weights")
    theta = _finite(objective.start(), (M, P), f"{name}.start()")
    gradients = _gradients(objective, theta[:, None, :])
    _finite(gradients, (M, 1, P), f"{name}.gradients(theta), for theta (M, 1, P),")
    return objective


def _gradients(objective: Any, theta: Array) -> Array:
    """Return the gradients, called as the engine calls them."""
    name = f"{type(objective).__name__}.gradients"
    try:
        inspect.signature(objective.gradients).bind(theta, 1)
    except TypeError as error:
        raise TypeError(f"{name} is called with theta and the number of threads: {error}") from None
    gradients = objective.gradients(theta, 1)
    if not isinstance(gradients, np.ndarray):
        raise TypeError(f"{name} returns a {type(gradients).__name__}; an array is wanted")
    return gradients


def _finite(given: Any, shape: tuple[int, ...], name: str) -> Array:
    # Estimates in single precision stay in it: a copy may take more memory than all that a fit has.
    values = given if isinstance(given, np.ndarray) and given.dtype.kind == "f" else np.asarray(given, dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(
            f"{name} has shape {values.shape} and {int((~np.isfinite(values)).sum())} numbers that are not finite; "
            f"finite ones of shape {shape} are wanted"
        )
    return values
