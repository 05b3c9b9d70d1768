"""Whether one column space contains another."""

from __future__ import annotations

from typing import Any

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.data.batches import of_clients, row_blocks
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.transport import Members

__all__ = ["check_same_clients", "check_same_rows", "embedding"]


# A column lies in the span of others where the largest residual is below this part of its root mean square. Ours: the
# square root of the rounding error, as the coefficients solve normal equations.
IN_SPAN = 1e-6


def check_same_clients(small: ClientData, large: ClientData, names: tuple[str, str], members: Members) -> None:
    """Raise ValueError unless two designs have the same clients, each with as many rows.

    All places call this together, and raise the same error.
    """
    differ = list(small.labels) != list(large.labels) or not np.array_equal(small.sizes, large.sizes)
    if members.transport.largest(np.array([differ])):
        raise ValueError(f"{names[0]} has other clients or rows than {names[1]}; build both from the same frame")


def check_same_rows(small: ClientData, large: ClientData, names: tuple[str, str], members: Members) -> None:
    """Raise ValueError unless two designs of the same clients have the same responses, offsets and weights.

    All places call this together, and raise the same error.
    """
    (one, other), somewhere = names, members.transport.largest
    for part, word in (
        ("classes", "classes"),
        ("y", "responses"),
        ("linear_offset", "offsets"),
        ("row_weights", "weights"),
    ):
        if somewhere(np.array([not np.array_equal(_or_empty(getattr(small, part)), _or_empty(getattr(large, part)))])):
            raise ValueError(f"{one} has other {word} than {other}, row by row; build both from the same frame")


def _or_empty(values: Any) -> Any:
    return () if values is None else values


def embedding(small: ClientData, large: ClientData, names: tuple[str, str], members: Members) -> Array:
    """Return B (p_large, p_small) with X_small = X_large B, where `small` and `large` have the rows of our clients.

    A column that the larger design has under the same name with the same values has a unit vector. Others are combined
    from its columns by least squares, so that other units, codings of factors and bases of splines are recognised.

    Raises
    ------
    ValueError
        Where a column of the smaller design is no combination of the larger one's columns.
    """
    p, q = len(large.names), len(small.names)
    place = {name: j for j, name in enumerate(large.names)}
    shared = [(k, place[name]) for k, name in enumerate(small.names) if name in place]
    same = np.array([j for _, j in shared], dtype=np.int64), np.array([k for k, _ in shared], dtype=np.int64)
    differ = np.zeros(len(shared), dtype=bool)

    def products(at: slice) -> Array:
        """Return X'X beside X'Z, and below the latter the sums of squares of Z."""
        summed, (low, high, _) = np.zeros((p + 1, p + q)), at.indices(large.n_clients)
        wide, narrow = (of_clients(data, slice(low, high)) for data in (large, small))
        for rows in row_blocks(wide):
            X, Z = wide.X[rows], narrow.X[rows]
            differ[:] |= (X[:, same[0]] != Z[:, same[1]]).any(axis=0)
            summed[:p, :p] += X.T @ X
            summed[:p, p:] += X.T @ Z
            summed[p, p:] += np.square(Z).sum(axis=0)
        return summed

    summed, somewhere = members.total(products), members.transport.largest
    gram, cross, squares = summed[:p, :p], summed[:p, p:], summed[p, p:]
    equal = np.logical_not(somewhere(differ[None]))
    size = np.sqrt(np.diag(gram))
    B = np.linalg.lstsq(gram / np.outer(size, size), cross / size[:, None], rcond=None)[0] / size[:, None]
    B[:, same[1][equal]] = 0.0
    B[same[0][equal], same[1][equal]] = 1.0
    residual = np.zeros(q)
    for rows in row_blocks(large):
        residual = np.maximum(residual, np.abs(small.X[rows] - large.X[rows] @ B).max(axis=0))
    residual, rows_of_all = somewhere(residual[None]), members.sum_counts(small.sizes)
    outside = [small.names[k] for k in np.flatnonzero(residual > IN_SPAN * np.sqrt(squares / rows_of_all))]
    if outside:
        known = [name for name in outside if name in place]
        also = f"; {listing(known)} is there by name, with other values" if known else ""
        raise ValueError(
            f"the models are not nested: {names[0]} has {listing(outside)}, no linear combination of the "
            f"columns of {names[1]} ({listing(large.names)}){also}"
        )
    return np.asarray(B)
