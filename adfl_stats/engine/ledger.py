"""Counts of messages: a transport that counts those of another, by phase of a fit.

Counted is what one client sends, whichever place its rows are in: a summand of every sum, a value of every maximum, its
row of what all clients see of each other, and its estimate to each neighbour in every round; where a model is built,
also hashes of its rows, and with Huber's loss some rows (`data.whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array, Ints
from adfl_stats.data.whole import ROW, SUM
from adfl_stats.engine.transport import Transport

__all__ = ["Counted", "Entry", "Ledger", "inside", "observed", "phase", "uncounted"]

# Kinds of messages beside those of `data.whole`.
MAXIMUM, NEIGHBOURS = "maximum", "to neighbours"


@dataclass(frozen=True)
class Price:
    """What messages cost where there is no centre: all go to neighbours; nothing where there is one.

    Attributes
    ----------
    rounds, diameter : int
        Rounds of messages between neighbours in which a sum is known everywhere, and in which a message is.
    clients : int
        How many there are, whose rows each passes on; zero where there is a centre.
    """

    rounds: int = 0
    diameter: int = 0
    clients: int = 0

    def of(self, kind: str, messages: int, numbers: int) -> tuple[int, int]:
        """Return the rounds that messages take, and how many numbers a client sends to each neighbour in them."""
        if kind == NEIGHBOURS:
            return (messages, numbers) if self.clients else (0, 0)
        if kind == SUM:
            # With each goes the weight that a push-sum average is over.
            return messages * self.rounds, (numbers + messages) * self.rounds
        return messages * self.diameter, numbers * (self.diameter if kind == MAXIMUM else self.clients)


@dataclass
class Entry:
    """Messages of one kind in one phase.

    Attributes
    ----------
    messages : int
        How many a client sends; to neighbours, rounds.
    numbers : int
        How many numbers these have together; to neighbours, what each of them hears.
    largest : int
        The numbers of the largest message.
    gossip_rounds, gossip_numbers : int
        Without a centre (`Gossip`): the rounds of messages between neighbours that these took, and the numbers that a
        client sent in them to each that hears it.
    """

    messages: int = 0
    numbers: int = 0
    largest: int = 0
    gossip_rounds: int = 0
    gossip_numbers: int = 0

    def add(self, messages: int, each: int, gossip: tuple[int, int]) -> None:
        """Count messages of `each` numbers, and what they cost without a centre."""
        self.messages += messages
        self.numbers += messages * each
        self.largest = max(self.largest, each)
        self.gossip_rounds += gossip[0]
        self.gossip_numbers += gossip[1]


@dataclass
class Ledger:
    """Entries by phase and kind, at the price of a place; nothing is counted outside of a phase."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    phase: str | None = None
    price: Price = Price()

    def count(self, kind: str, messages: int, each: int) -> None:
        """Count messages of `each` numbers in the present phase."""
        if self.phase is None:
            return
        entry = self.entries.get((self.phase, kind))
        if entry is None:
            entry = self.entries[self.phase, kind] = Entry()
        entry.add(messages, each, self.price.of(kind, messages, messages * each))

    def words(self) -> list[list[Any]]:
        """Return the entries for a file."""
        return [[*key, *astuple(entry)] for key, entry in self.entries.items()]

    def __add__(self, other: Ledger) -> Ledger:
        """Return a ledger with the messages of both, at the price of this one."""
        both = self.at(self.price)
        for (name, kind), one in other.entries.items():
            entry = both.entries.setdefault((name, kind), Entry())
            entry.messages += one.messages
            entry.numbers += one.numbers
            entry.largest = max(entry.largest, one.largest)
        return both.at(self.price)

    def at(self, price: Price) -> Ledger:
        """Return a ledger with the same messages, of a place where they have another price."""
        entries = {
            (name, kind): Entry(one.messages, one.numbers, one.largest, *price.of(kind, one.messages, one.numbers))
            for (name, kind), one in self.entries.items()
        }
        return Ledger(entries, price=price)

    @classmethod
    def of_words(cls, words: list[list[Any]]) -> Ledger:
        """Return the ledger of a file."""
        return cls({(name, kind): Entry(*counts) for name, kind, *counts in words})


class Counted:
    """A transport whose messages are counted, see `Transport`.

    Parameters
    ----------
    inner : Transport
        By which they go.
    before : Ledger, optional
        What was sent before, whose entries come first.
    """

    def __init__(self, inner: Transport, before: Ledger | None = None) -> None:
        self.inner, self.ledger = inner, (before or Ledger()).at(getattr(inner, "price", Price()))

    @property
    def here(self) -> bool:
        """Whether all clients are ours."""
        return self.inner.here

    def clients(self, M: int) -> Ints:
        """Return our clients."""
        return self.inner.clients(M)

    def halo(self, indptr: Ints, indices: Ints) -> Ints:
        """Return the clients elsewhere whom ours hear."""
        return self.inner.halo(indptr, indices)

    def listen(self, halo: Ints) -> Callable[[Array], Array]:
        """Return how the halo's rows arrive."""
        return self.inner.listen(halo)

    def batches(self) -> list[slice]:
        """Return the batches of our rows."""
        return self.inner.batches()

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum over all clients, and count each client's summand."""
        summed = self.inner.total(part)
        self.ledger.count(SUM, 1, int(np.size(summed)))
        return summed

    def largest(self, values: Array) -> Array:
        """Return the maximum over all clients, and count each client's values."""
        top = self.inner.largest(values)
        self.ledger.count(MAXIMUM, 1, int(np.size(top)))
        return top

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of all clients, and count that of each."""
        rows = self.inner.gather(values)
        self.ledger.count(ROW, 1, int(np.prod(np.shape(values)[1:])))
        return rows

    def told(self, kind: str, numbers: int) -> None:
        """Count a message of a kind that each client sends otherwise."""
        self.ledger.count(kind, 1, numbers)

    def said(self, rounds: int, numbers: int) -> None:
        """Count rounds in which a client sends its neighbours so many numbers."""
        self.ledger.count(NEIGHBOURS, rounds, numbers)

    def looked(self, rounds: int, runs: int) -> None:
        """Count rounds after each of which all look for the longest moves of some runs."""
        with observed(self):
            self.ledger.count(MAXIMUM, rounds, runs)


def uncounted(transport: Transport) -> Transport:
    """Return the transport without a ledger."""
    return transport.inner if isinstance(transport, Counted) else transport


def phase(transport: Transport, name: str) -> AbstractContextManager[None]:
    """Return a context whose messages are counted as those of a phase; the innermost one holds."""
    return _phase(transport.ledger, name) if isinstance(transport, Counted) else nullcontext()


def inside(transport: Transport, name: str) -> AbstractContextManager[None]:
    """Return a context whose messages are those of another phase; where nothing is counted, nothing is."""
    counts = isinstance(transport, Counted) and transport.ledger.phase is not None
    return phase(transport, name) if counts else nullcontext()


def observed(transport: Transport) -> AbstractContextManager[None]:
    """Return a context for what is looked at while rounds run, which these do not need: the trace, and divergence."""
    return inside(transport, "trace")


@contextmanager
def _phase(ledger: Ledger, name: str) -> Iterator[None]:
    before, ledger.phase = ledger.phase, name
    try:
        yield
    finally:
        ledger.phase = before
