"""The interface for clients on several machines: sums, maxima and rows over all clients from those of our own.

Arrays over clients have a row for each client that is ours. What is needed of all of them goes through a
`Transport`; the local one, where all clients are ours, changes no bit. Sums are taken batch by batch and added in
the order of the batches, so that it does not matter where a batch is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from adfl_stats._types import Array, Ints

__all__ = ["LOCAL", "Local", "Transport", "count_of", "halo_of", "mean_over"]


class Transport(Protocol):
    """What the engine asks of a place that holds some of the clients."""

    def clients(self, M: int) -> Ints:
        """Return which of all M clients are ours, in the order of our rows."""

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return the clients elsewhere whom ours hear, of the network's rows (CSR)."""

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum over all clients.

        Parameters
        ----------
        part : callable
            Of a slice of our rows: the sum over them. Each batch of ours is asked for once.
        """

    def largest(self, values: Array) -> Array:
        """Return the maximum over the rows of values (k, ...), usually one for each client, of all places."""

    def gather(self, values: Array) -> Array:
        """Return the rows of all clients, in their order, from the rows (m, ...) of ours."""


class Local:
    """All clients are ours, in one batch."""

    def clients(self, M: int) -> Ints:
        """Return all."""
        return np.arange(M)

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return none."""
        return halo_of(self.clients(len(indptr) - 1), indptr, indices)

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum itself."""
        return part(slice(None))

    def largest(self, values: Array) -> Array:
        """Return the maximum itself."""
        return np.asarray(values.max(axis=0))

    def gather(self, values: Array) -> Array:
        """Return the rows themselves."""
        return values


LOCAL = Local()


def mean_over(transport: Transport, values: Array) -> Array:
    """Return the mean over all clients of values (m, ...) that have a row for each of ours."""
    return transport.total(lambda at: values[at].sum(axis=0)) / count_of(transport, values)


def count_of(transport: Transport, values: Array) -> float:
    """Return the number of all clients, from values (m, ...) that have a row for each of ours."""
    return float(transport.total(lambda at: np.asarray(float(len(values[at])))))


def halo_of(own: Ints, indptr: Ints, indices: Ints) -> Ints:
    """Return the clients outside `own` whom those in it hear, in increasing order, of a network's rows (CSR)."""
    heard = [indices[indptr[m] : indptr[m + 1]] for m in own]
    return np.setdiff1d(np.concatenate([indices[:0], *heard]), own)
