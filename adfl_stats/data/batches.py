"""Rows in pieces small enough for temporary arrays beside a memory map, many small clients at a time.

A Python loop over a hundred thousand clients costs more than the arithmetic: it is over batches of consecutive
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array, Ints
from adfl_stats.data import client_data as _data
from adfl_stats.data.client_data import ClientData, assembled

__all__ = [
    "Batch",
    "RowSums",
    "batches",
    "client_chunks",
    "of_clients",
    "one_pass",
    "places",
    "row_blocks",
    "row_clients",
    "whole_clients",
]


# Entries of the (P, P) matrices of a batch's clients together. Ours: 8 MB.
MATRIX_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Consecutive rows: of some whole clients, or a piece of one that is large.

    Attributes
    ----------
    clients, rows : slice
        Which clients and rows of the data these are.
    sizes : ndarray (C,)
        Rows of each client here.
    """

    clients: slice
    rows: slice
    sizes: Ints

    @cached_property
    def first_rows(self) -> Ints:
        """Where each client's rows begin, counted within the batch."""
        return np.cumsum(self.sizes) - self.sizes

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values (C, ...) of the batch's clients once for each of their rows."""
        return np.repeat(values, self.sizes, axis=0)

    def sums(self, values: Array) -> Array:
        """Return each client's sum of the values (R, ...) of its rows."""
        return np.add.reduceat(values, self.first_rows, axis=0)

    def medians(self, values: Array) -> Array:
        """Return each client's medians of the values (R, a) of its rows, (C, a)."""
        out = np.empty((len(self.sizes), values.shape[1]))
        for which, place in self._by_size:
            out[which] = np.median(values[place], axis=1)
        return out

    def cross(self, left: Array, right: Array) -> Array:
        """Return each client's left'right, (C, a, b), for rows (R, a) and (R, b)."""
        if self._equal:
            shape = len(self.sizes), self.sizes[0], -1
            return np.matmul(left.reshape(shape).transpose(0, 2, 1), right.reshape(shape))
        out = np.empty((len(self.sizes), left.shape[1], right.shape[1]))
        for which, place in self._by_size:
            stack = left[place]
            # One array twice is a symmetric product, at half the cost.
            out[which] = np.matmul(stack.transpose(0, 2, 1), stack if right is left else right[place])
        return out

    def times(self, values: Array, matrices: Array) -> Array:
        """Return the values (R, a) of each client's rows times its own matrix, of `matrices` (C, a, b)."""
        if self._equal:
            stack = values.reshape(len(self.sizes), self.sizes[0], -1)
            return np.matmul(stack, matrices).reshape(len(values), -1)
        out = np.empty((len(values), matrices.shape[2]))
        for which, place in self._by_size:
            out[place] = np.matmul(values[place], matrices[which])
        return out

    @cached_property
    def _equal(self) -> bool:
        """Whether all clients have as many rows here, so that these are a stack already."""
        return bool((self.sizes == self.sizes[0]).all())

    @cached_property
    def _by_size(self) -> list[tuple[Ints, Ints]]:
        """The clients of each size, and the places of their rows (c, size): their products are stacked."""
        groups = [np.flatnonzero(self.sizes == size) for size in np.unique(self.sizes)]
        return [(which, self.first_rows[which, None] + np.arange(self.sizes[which[0]])) for which in groups]


def whole_clients(data: ClientData, P: int) -> Iterator[list[Batch]]:
    """Yield lists of batches that hold all rows of some clients: one of many clients, or all pieces of one.

    Parameters
    ----------
    data : ClientData
        The rows.
    P : int
        The side of the square matrices that are kept for every client of a list.
    """
    offsets, low, ends = data.offsets, 0, _ends(data)
    most = max(1, MATRIX_ENTRIES // (P * P))
    while low < data.n_clients:
        fitting = int(np.searchsorted(offsets, offsets[low] + _data.BLOCK_ROWS, side="right")) - 1
        end = int(ends[np.searchsorted(ends, low, side="right")])
        high = max(low + 1, min(fitting, low + most, end))
        clients = slice(low, high)
        if high == low + 1:
            yield [Batch(clients, rows, np.array([rows.stop - rows.start])) for rows in data.blocks(low)]
        else:
            yield [Batch(clients, slice(int(offsets[low]), int(offsets[high])), data.sizes[clients])]
        low = high


def batches(data: ClientData, P: int) -> Iterator[Batch]:
    """Yield the batches of `whole_clients` one by one, for sums over the pieces of a client."""
    for group in whole_clients(data, P):
        yield from group


class RowSums(Protocol):
    """Sums that are gathered while a pass over the data goes on."""

    def add(self, batch: Batch) -> None:
        """Take in the rows of a batch."""

    def result(self) -> Any:
        """Return what was found, after the last batch."""


def one_pass(data: ClientData, *sums: RowSums) -> list[Any]:
    """Gather several sums in one pass over the data, and return their results."""
    for batch in batches(data, data.X.shape[1]):
        for one in sums:
            one.add(batch)
    return [one.result() for one in sums]


def places(parts: Sequence[slice], M: int) -> Callable[[slice], int]:
    """Return in which of the parts of M clients, which follow one another, some clients of one part are."""
    first = [at.indices(M)[0] for at in parts]
    return lambda clients: int(np.searchsorted(first, clients.start, side="right")) - 1


def client_chunks(M: int, P: int, part: slice = slice(None)) -> list[slice]:
    """Return slices of a part of M clients whose (P, P) matrices stay in the processor's cache, a few of each."""
    size, (start, stop, _) = max(1, MATRIX_ENTRIES // (8 * P * P)), part.indices(M)
    return [slice(low, min(low + size, stop)) for low in range(start, stop, size)]


def row_blocks(data: ClientData) -> Iterator[slice]:
    """Yield slices of all rows, across clients."""
    for start, stop in pairwise([0, *data.offsets[_ends(data)].tolist()]):
        for low in range(start, stop, _data.BLOCK_ROWS):
            yield slice(low, min(low + _data.BLOCK_ROWS, stop))


def _ends(data: ClientData) -> Ints:
    """Return the clients at which passes over the rows begin a new batch, and behind them the number of all."""
    return np.append(np.zeros(0, dtype=np.int64) if data.cuts is None else data.cuts, data.n_clients)


def row_clients(data: ClientData, rows: slice) -> Ints:
    """Return the client of each row of a slice."""
    first, last = np.searchsorted(data.offsets, (rows.start, rows.stop - 1), side="right") - 1
    ends = np.clip(data.offsets[first : last + 2], rows.start, rows.stop)
    return np.repeat(np.arange(first, last + 1), ends[1:] - ends[:-1])


def of_clients(data: ClientData, clients: slice) -> ClientData:
    """Return the data of some consecutive clients, without a copy of their rows."""
    offsets = data.offsets[clients.start : clients.stop + 1]
    rows = slice(int(offsets[0]), int(offsets[-1]))
    return assembled(
        data,
        X=data.X[rows],
        y=data.y[rows],
        offsets=offsets - offsets[0],
        labels=data.labels[clients],
        linear_offset=None if data.linear_offset is None else data.linear_offset[rows],
        row_weights=None if data.row_weights is None else data.row_weights[rows],
        set_aside=None if data.set_aside is None else data.set_aside[clients],
        cuts=None if data.cuts is None else _within(data.cuts, clients),
    )


def _within(cuts: Ints, clients: slice) -> Ints:
    """Return the cuts inside a slice of the clients, counted from its first."""
    return cuts[(clients.start < cuts) & (cuts < clients.stop)] - clients.start
