"""Clients in several places: each is a thread that holds the data of its own clients, and one place that has them all.

All of them sum by the same batches.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import adfl_stats as ad
from adfl_stats.engine.transport import Local, added, halo_of


def batches_of(bounds):
    return [slice(low, high) for low, high in itertools.pairwise(bounds)]


class Batches(Local):
    """All clients are here, in batches that are asked for in some order; their sums are added in their own."""

    def __init__(self, bounds, order=None):
        self.slices = batches_of(bounds)
        self.order = range(len(self.slices)) if order is None else order

    def batches(self):
        return self.slices

    def total(self, part):
        parts = {k: part(self.slices[k]) for k in self.order}
        return added([parts[k] for k in range(len(self.slices))])


class Only(Local):
    """A place that leaves all batches but one out of its sums."""

    def __init__(self, bounds):
        self.slices = batches_of(bounds)[:1]

    def batches(self):
        return self.slices

    def total(self, part):
        return part(self.slices[0])


class Place:
    """One of several places in threads, each with one batch of clients."""

    here = False

    def __init__(self, bounds, k, table, barrier):
        self.slices, self.k, self.table, self.barrier = batches_of(bounds), k, table, barrier

    def exchange(self, value):
        """Return what all places brought, in their order."""
        # As a message: what the place does to its array afterwards is not seen elsewhere.
        self.table[self.k] = np.array(value)
        self.barrier.wait()
        everything = list(self.table)
        self.barrier.wait()
        return everything

    def clients(self, M):
        return np.arange(M)[self.slices[self.k]]

    def halo(self, indptr, indices):
        return halo_of(self.clients(len(indptr) - 1), indptr, indices)

    def listen(self, halo):
        return lambda own: self.gather(own)[halo]

    def batches(self):
        return [slice(None)]

    def total(self, part):
        return added(self.exchange(part(slice(None))))

    def largest(self, values):
        with_rows = [one for one in self.exchange(values) if len(one)]
        return np.max([one.max(axis=0) for one in with_rows], axis=0)

    def gather(self, values):
        return np.concatenate(self.exchange(values))


def in_places(bounds, work):
    """Run work(k, transport) in a thread for each batch; return what each of them found."""
    places = len(bounds) - 1
    barrier, table = threading.Barrier(places, timeout=10), [None] * places

    def watched(k):
        try:
            return work(k, Place(bounds, k, table, barrier))
        except BaseException:
            # The others would wait for this place.
            barrier.abort()
            raise

    with ThreadPoolExecutor(places) as pool:
        tasks = [pool.submit(watched, k) for k in range(places)]
        errors = [task.exception() for task in tasks]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [task.result() for task in tasks]


def some_clients(data, at):
    """The rows of a slice of the clients."""
    rows = slice(data.offsets[at.start], data.offsets[at.stop])
    labels = np.repeat(np.asarray(data.labels), data.sizes)[rows]
    return ad.ClientData.from_arrays(data.X[rows], data.y[rows], labels)
