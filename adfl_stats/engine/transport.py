"""The interface for clients on several machines: sums, maxima and rows over all clients from those of our own.

Arrays over clients have a row for each client that is ours. What is needed of all of them goes through a
`Transport`. Sums, and products of rows with a matrix, are taken batch by batch, sums added in the order of the batches,
so that it does not matter where a batch is computed; that the batches are the same wherever the clients are is up to
`batch_bounds`, and that arrays are alike in memory up to `row_major`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adfl_stats._algebra import row_major, summed_products
from adfl_stats._properties import once
from adfl_stats._types import Array, Ints

__all__ = [
    "COLUMN_ENTRIES", "EVERYBODY", "LOCAL", "Local", "Members", "Transport", "added", "batch_bounds", "count_of",
    "cuts_of", "entries_of", "halo_of", "mean_over", "once", "slices",
]  # fmt: skip

T = TypeVar("T")


# Clients, and rows, of a batch, about. Ours: a sum by batches then costs a few per cent more than one over all clients.
BATCH_CLIENTS, BATCH_ROWS = 4096, 1 << 14
# Numbers of all clients that a place has at a time, where it needs those of all but not at once. Ours: 8 MB.
COLUMN_ENTRIES = 1 << 20
# More batches than ranks that a fit could use.
MOST_BATCHES = 4096


def batch_bounds(clients: int, rows: int) -> Ints:
    """Return the clients at which batches begin, and behind them the number of all: the same wherever clients are.

    There are as many as a power of two, so that two or four ranks have equal shares.

    Parameters
    ----------
    clients, rows : int
        Those of all places together.
    """
    wanted = max(clients / BATCH_CLIENTS, rows / BATCH_ROWS, 1.0)
    count = min(2 ** round(np.log2(wanted)), clients, MOST_BATCHES)
    return np.arange(count + 1) * clients // count


class Transport(Protocol):
    """What the engine needs of a place that holds some of the clients."""

    @property
    def here(self) -> bool:
        """Whether all clients are ours."""

    def clients(self, M: int) -> Ints:
        """Return which of all M clients are ours, in the order of our rows."""

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return the clients elsewhere whom ours hear, of the network's rows (CSR)."""

    def listen(self, halo: Ints) -> Callable[[Array], Array]:
        """Return how the rows (h, ...) of the clients `halo` arrive in a round, from our own rows (m, ...).

        All places call `listen` together, and what it returns together in every round.
        """

    def batches(self) -> list[slice]:
        """Return the batches of our rows that `total` asks for."""

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum over all clients.

        Parameters
        ----------
        part : callable
            Of a slice of our rows: the sum over them. Each batch of ours is asked for once.
        """

    def largest(self, values: Array) -> Array:
        """Return the maximum over the rows of values (k, ...), usually one for each client, of all places."""

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all clients, in their order, from the rows (m, ...) of ours, or of some of ours."""


class Local:
    """All clients are ours.

    Parameters
    ----------
    bounds : ndarray (B + 1,) of int, optional
        Where batches begin and end, see `batch_bounds`; one batch if not given.
    """

    here = True

    def __init__(self, bounds: Ints | None = None) -> None:
        self._batches = [slice(None)] if bounds is None or len(bounds) < 3 else slices(bounds)

    def clients(self, M: int) -> Ints:
        """Return all."""
        return np.arange(M)

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return none."""
        return halo_of(self.clients(len(indptr) - 1), indptr, indices)

    def listen(self, halo: Ints) -> Callable[[Array], Array]:
        """Return no rows: nobody is elsewhere."""
        return lambda own: own[:0]

    def batches(self) -> list[slice]:
        """Return all of them."""
        return self._batches

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum, batch by batch."""
        # In memory as messages are that arrive from elsewhere.
        return row_major(np.asarray(added(map(part, self._batches))))

    def largest(self, values: Array) -> Array:
        """Return the maximum itself."""
        return np.asarray(values.max(axis=0))

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows themselves, in memory as those that arrive from elsewhere."""
        return row_major(np.asarray(values))


def cuts_of(transport: Transport) -> Ints:
    """Return our clients at which batches begin, but for the first."""
    return np.array([at.start for at in transport.batches()[1:]], dtype=np.int64)


def slices(bounds: Ints) -> list[slice]:
    """Return the slices between neighbouring bounds."""
    return [slice(int(low), int(high)) for low, high in pairwise(bounds)]


def added(parts: Iterable[Array]) -> Array:
    """Return the sum of some arrays, in their order."""
    return reduce(operator.add, parts)


LOCAL = Local()


@dataclass(frozen=True, eq=False)
class Members:
    """Some of the clients: the numbers of those that are ours, and the transport that reaches the others.

    Arrays over them have a row for each that is ours. Numbers leave a place as sums, or as rows of `gather`; the
    latter is for a few numbers a client.

    Attributes
    ----------
    transport : Transport
        By which sums and rows become those of all of them.
    numbers : ndarray (m,) of int or None
        Ours, as numbers among all clients; None where all are ours.
    rows : ndarray (m,) of int or None
        Their places among all clients of ours, in increasing order, of one that is drawn twice next to each other;
        None where these are all that are ours.
    """

    transport: Transport = LOCAL
    numbers: Ints | None = None
    rows: Ints | None = None

    def of(self, some: NDArray[Any]) -> Members:
        """Return those of ours that `some` selects, with those of the others elsewhere.

        `some` is a mask (m,), or their places in increasing order, of which one may be drawn twice.
        """
        chosen = np.flatnonzero(some) if some.dtype == bool else some
        return Members(
            self.transport,
            None if self.numbers is None else self.numbers[chosen],
            chosen if self.rows is None else self.rows[chosen],
        )

    def within(self, at: slice) -> slice:
        """Return which of these are of a batch."""
        if self.rows is None or at.stop is None:
            return at
        ends = at.start, at.stop
        if ends not in self._within:
            low, high = np.searchsorted(self.rows, ends)
            self._within[ends] = slice(int(low), int(high))
        return self._within[ends]

    @once
    def _within(self) -> dict[tuple[int, int], slice]:
        """Which of these are of a batch, by its ends, where that was asked for: each sum asks for all batches."""
        return {}

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum over all, from sums over slices of ours."""
        return self.transport.total(part if self.rows is None else lambda at: part(self.within(at)))

    def sum(self, values: NDArray[Any]) -> Array:
        """Return the sum of the rows (m, ...) of all."""
        return self.total(lambda at: row_major(values[at]).sum(axis=0))

    def sum_products(self, left: Array, right: Array) -> Array:
        """Return the sum over all of left_m right_m, for rows (m,) or (m, a) and (m, ...) of ours."""

        def part(at: slice) -> Array:
            rows = left[at]
            return summed_products(rows, rows if right is left else right[at])

        return self.total(part)

    def products(self, rows: Array, matrix: Array) -> Array:
        """Return the rows (m, a) of ours times a matrix (a, b), batch by batch.

        A product of matrices rounds a row by where it stands among the others, so that a client's would depend on who
        else is in this place.
        """
        common = row_major(matrix)
        parts = [row_major(rows[self.within(at)]) @ common for at in self.transport.batches()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def mean(self, values: NDArray[Any]) -> Array:
        """Return the mean of the rows (m, ...) of all."""
        return self.sum(values) / float(self.total(lambda at: np.asarray(float(len(values[at])))))

    def count(self, some: NDArray[Any]) -> int:
        """Return of how many of all `some` (m,) is true."""
        return round(float(self.total(lambda at: np.asarray(np.count_nonzero(some[at])))))

    def sum_counts(self, counts: NDArray[Any]) -> int:
        """Return the sum of the whole numbers (m,) of all; a transport may know sums approximately."""
        return round(float(self.sum(counts)))

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all, from the rows (m, ...) of ours."""
        return self.transport.gather(values)

    def by_columns(self, values: NDArray[Any], count: int) -> Iterator[NDArray[Any]]:
        """Yield the rows of all, of some columns (m, k) at a time: no place has those of more than fit in memory.

        `count` is how many rows all have.
        """
        each = max(COLUMN_ENTRIES // max(count, 1), 1)
        for first in range(0, values.shape[1], each):
            yield self.gather(values[:, first : first + each])

    def ours(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return our rows of those of all, as `gather` has them."""
        return values if self.numbers is None else values[self._places]

    @once
    def _places(self) -> Ints:
        """Where our rows are among those of all."""
        assert self.numbers is not None
        # The place of a client is no message of it: it is not counted (`Counted`).
        everybody = getattr(self.transport, "inner", self.transport).gather(self.numbers)
        order = np.argsort(everybody, kind="stable")
        # Of a client that was drawn twice all are here, one after the other.
        copy = np.arange(len(self.numbers)) - np.searchsorted(self.numbers, self.numbers)
        return np.asarray(order[np.searchsorted(everybody, self.numbers, sorter=order) + copy])

    def together(self, work: Callable[[], T]) -> T:
        """Return what `work` does for our rows; where it fails in one place (LinAlgError), it fails in all."""
        try:
            done, failure = work(), None
        except np.linalg.LinAlgError as error:
            done, failure = None, error
        if self.transport.largest(np.array([failure is not None])):
            raise failure or np.linalg.LinAlgError("a matrix of a client elsewhere is singular")
        return done  # type: ignore[return-value]


EVERYBODY = Members()


def mean_over(transport: Transport, values: Array) -> Array:
    """Return the mean over all clients of values (m, ...) that have a row for each of ours."""
    return transport.total(lambda at: row_major(values[at]).sum(axis=0)) / count_of(transport, values)


def count_of(transport: Transport, values: Array) -> float:
    """Return the number of all clients, from values (m, ...) that have a row for each of ours."""
    return float(transport.total(lambda at: np.asarray(float(len(values[at])))))


def halo_of(own: Ints, indptr: Ints, indices: Ints) -> Ints:
    """Return the clients outside `own` whom those in it hear, in increasing order, of a network's rows (CSR)."""
    heard = np.zeros(len(indptr) - 1, dtype=bool)
    heard[indices[entries_of(own, indptr)]] = True
    heard[own] = False
    return np.flatnonzero(heard)


def entries_of(rows: Ints, indptr: Ints) -> Ints:
    """Return where the entries of some rows are, one row after the other, in a matrix in CSR form."""
    degrees = np.diff(indptr)[rows]
    ends = np.cumsum(degrees)
    return np.repeat(indptr[rows] - (ends - degrees), degrees) + np.arange(int(degrees.sum()))
