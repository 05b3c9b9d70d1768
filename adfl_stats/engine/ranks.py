"""Clients on the ranks of an MPI communicator: a `Transport` of consecutive batches of clients on each rank.

Sums of batches are gathered and added in the order of the batches, as `Local` adds them: an Allreduce would change
the last bits with the number of ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array, Ints
from adfl_stats.engine.machine import machine_of
from adfl_stats.engine.transport import added, halo_of, slices

__all__ = ["Ranks", "shares"]

# Numbers of the sums of all batches, up to which every rank gathers them. Ours: a message from rank to rank takes
# microseconds, as does a megabyte.
GATHERED_ENTRIES = 1 << 17
# Bytes of the rows of all clients, up to which every rank has them; beyond, every machine. Ours: 32 MB.
REPLICATED_BYTES = 1 << 25
# How often a rank looks for a round's messages before it leaves its processor to others. Ours: about 0.1 ms, a round of
# a small problem. MPICH's own waiting leaves it at once, after which a round of 85 us waited 30 us and longer for its
# messages instead of 4; ranks that share a processor must leave it at some point.
POLLS = 200


def shares(batches: int, size: int) -> Ints:
    """Return the batches at which the shares of so many ranks begin, and their number; the last ranks may have none."""
    working = min(batches, size)
    return np.append(np.arange(working) * batches // working, np.full(size - working + 1, batches))


class Ranks:
    """One rank's place, see `Transport`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Its size is at most the number of batches.
    bounds : ndarray (B + 1,) of int
        The clients at which batches begin, and their number, see `batch_bounds`.
    first : ndarray (size + 1,) of int, optional
        The batches at which the shares of ranks begin, and their number; equal shares if not given.
    """

    def __init__(self, comm: Any, bounds: Ints, first: Ints | None = None) -> None:
        self.comm, self.size, self._rank = comm, comm.Get_size(), comm.Get_rank()
        first = shares(len(bounds) - 1, self.size) if first is None else first
        self._share, self._starts = np.diff(first), bounds[first]
        self.own = slice(int(self._starts[self._rank]), int(self._starts[self._rank + 1]))
        self._batches = slices(bounds[first[self._rank] : first[self._rank + 1] + 1] - self.own.start)

    @property
    def here(self) -> bool:
        """Whether there is one rank."""
        return bool(self.size == 1)

    def clients(self, M: int) -> Ints:
        """Return which of all M clients are ours."""
        return np.arange(M)[self.own]

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return the clients elsewhere whom ours hear."""
        return halo_of(self.clients(len(indptr) - 1), indptr, indices)

    def listen(self, halo: Ints) -> Callable[[Array], Array]:
        """Return how the halo's rows arrive: each rank says once whom it hears, messages are sent in every round."""
        owners = np.searchsorted(self._starts, halo, side="right") - 1
        wanted = [halo[owners == rank] for rank in range(self.size)]
        asked = [numbers - self.own.start for numbers in self.comm.alltoall(wanted)]
        return _Messages(self.comm, asked, [len(numbers) for numbers in wanted])

    def batches(self) -> list[slice]:
        """Return the batches of our rows."""
        return self._batches

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum over all clients."""
        ours = [np.asarray(part(at)) for at in self._batches]
        if ours[0].size * int(self._share.sum()) > GATHERED_ENTRIES:
            return self._handed_on(ours)
        return added(self._joined(np.stack(ours), self._share))

    def _handed_on(self, ours: list[Array]) -> Array:
        """Return the sum over all clients: each rank in turn adds its batches, and has those of no other."""
        before, last = self._rank - 1, self.size - 1
        summed = np.empty(ours[0].shape, dtype=ours[0].dtype)
        if before >= 0:
            self.comm.Recv(summed, before)
            ours = [summed, *ours]
        # A copy: the sum of all is written over it, and ours may be the caller's.
        summed = np.array(added(ours), order="C")
        if self._rank < last:
            self.comm.Send(summed, self._rank + 1)
        self.comm.Bcast(summed, last)
        return summed

    def largest(self, values: Array) -> Array:
        """Return the maximum over the rows of all places; NaN where there is one."""
        values = np.asarray(values)
        ours = values.max(axis=0) if len(values) else np.full(values.shape[1:], _least(values.dtype))
        return np.asarray(self._joined(ours[None], np.ones(self.size, dtype=np.int64)).max(axis=0))

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all clients."""
        values = np.asarray(values)
        if values.dtype.kind not in "fiub":
            return np.concatenate(self.comm.allgather(values))
        counts = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([len(values)], dtype=np.int64), counts)
        return self._joined(values, counts)

    def _joined(self, ours: NDArray[Any], counts: Ints) -> NDArray[Any]:
        """Return the rows of all ranks, of which each has so many; large ones are not to be written to."""
        rows, each = int(counts.sum()), int(np.prod(ours.shape[1:]))
        if self.size > 1 and rows * each * ours.itemsize > REPLICATED_BYTES:
            shared = machine_of(self.comm).joined(ours, counts)
            if shared is not None:
                return shared
        out = np.empty((rows, *ours.shape[1:]), dtype=ours.dtype)
        if out.size:
            self.comm.Allgatherv(np.ascontiguousarray(ours), (out, counts * each))
        return out


class _Messages:
    """The rows that ranks send one another in every round, by requests that are kept.

    Parameters
    ----------
    asked : list of ndarray
        By rank: which of our rows it hears.
    heard : list of int
        By rank: how many rows we hear from it.
    """

    def __init__(self, comm: Any, asked: list[Ints], heard: list[int]) -> None:
        self._comm, self._asked, self._heard = comm, asked, heard
        self._kept: dict[tuple[Any, ...], _Buffers] = {}

    def __call__(self, own: Array) -> Array:
        """Return the halo's rows, from our own (m, ...); they are overwritten by the next call."""
        kind = (own.dtype.str, *own.shape[1:])
        if kind not in self._kept:
            self._kept[kind] = _Buffers(self._comm, self._asked, self._heard, own)
        return self._kept[kind].exchange(own)


class _Buffers:
    """Messages of one shape, and their persistent requests."""

    def __init__(self, comm: Any, asked: list[Ints], heard: list[int], own: Array) -> None:
        ends = np.cumsum([0, *heard])
        self._received = np.empty((int(ends[-1]), *own.shape[1:]), dtype=own.dtype)
        self._sent = [(rows, np.empty((len(rows), *own.shape[1:]), dtype=own.dtype)) for rows in asked if len(rows)]
        receivers = [rank for rank, rows in enumerate(asked) if len(rows)]
        self._requests = [
            comm.Recv_init(self._received[ends[rank] : ends[rank + 1]], rank)
            for rank, count in enumerate(heard)
            if count
        ] + [comm.Send_init(buffer, rank) for rank, (_, buffer) in zip(receivers, self._sent, strict=True)]
        weakref.finalize(self, _free, self._requests)

    def exchange(self, own: Array) -> Array:
        """Send rows of ours, and return those that arrive."""
        for rows, buffer in self._sent:
            # With another mode NumPy fills a copy of the buffer first.
            own.take(rows, 0, buffer, "clip")
        if self._requests:
            kind = type(self._requests[0])
            kind.Startall(self._requests)
            for _ in range(POLLS):
                if kind.Testall(self._requests):
                    break
            else:
                kind.Waitall(self._requests)
        return self._received


def _free(requests: list[Any]) -> None:
    """Give the requests back, unless MPI has ended."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for request in requests:
            request.Free()


def _least(kind: np.dtype[Any]) -> Any:
    """Return a value that no maximum is changed by."""
    return {"f": -np.inf, "b": False}[kind.kind] if kind.kind in "fb" else np.iinfo(kind).min
