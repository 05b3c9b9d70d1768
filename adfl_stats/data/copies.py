"""Clients that hold the same rows: found by hashes, and distinguished from rows that are equal by chance.

Copies count as if they were new data, and the intervals are too short by the root of their number. A row becomes 64
bits, a client the sum of these over its rows, which does not depend on their order: two clients of other rows have
equal sums with probability 2^-64. So equal sums mean equal rows; but rows of few categories may be equal by chance.
Its probability is estimated from how often rows repeat inside clients, and a client is named only where less than
`EXPECTED_PAIRS` such pairs are expected in the whole network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.whole import HASHES, Whole

__all__ = ["RowHashes", "copied_clients", "overlapping_clients"]

Hashes = NDArray[np.uint64]

# Rows whose hashes are kept, 24 bytes each; of more rows about half, a quarter, ... of every client's. (All constants
# here are ours.)
MOST_ROWS = 1 << 21
# Expected number of pairs of clients that are equal by chance, below which they are named: one false warning in a
# thousand data sets. (This and the next three are ours.)
EXPECTED_PAIRS = 1e-3
# Clients that share this part of the rows of the smaller one are named: standard errors are then clearly too small.
SHARED_ROWS = 0.5
# A row that more clients than this have is a common one, not a copied one.
MOST_HOLDERS = 30
# More pairs than this are not searched.
MOST_PAIRS = 2_000_000


@dataclass
class RowHashes:
    """What is kept of the rows of all clients.

    Attributes
    ----------
    digests, designs : ndarray (M,)
        Sums of the hashes of each client's rows, and of their covariates alone.
    kept : list of ndarray (3, rows)
        Some rows, block by block: the hash of the covariates, of the row, and its client. Which rows are kept depends
        on their covariates, so that they are the same on every client.
    modulus : int
        Hashes divisible by it are kept: 1, or a power of two where there are very many rows.
    """

    digests: Hashes
    designs: Hashes
    kept: list[Hashes]
    modulus: int

    @classmethod
    def none_yet(cls, data: ClientData, rows: int) -> RowHashes:
        """Make ready for the rows of the data, which are a part of so many."""
        modulus = 1
        while rows > MOST_ROWS * modulus:
            modulus *= 2
        digests, designs = np.zeros((2, data.n_clients), dtype=np.uint64)
        return cls(digests, designs, [], modulus)

    def add(self, data: ClientData, batch: Batch) -> None:
        """Hash the rows of a batch."""
        rows, designs = row_hashes(data, batch.rows)
        self.digests[batch.clients] += np.add.reduceat(rows, batch.first_rows)
        self.designs[batch.clients] += np.add.reduceat(designs, batch.first_rows)
        owners = batch.spread(np.arange(batch.clients.start, batch.clients.stop, dtype=np.uint64))
        block = np.stack([designs, rows, owners])
        self.kept.append(block[:, designs % np.uint64(self.modulus) == 0] if self.modulus > 1 else block)

    def of_all(self, whole: Whole) -> RowHashes:
        """Return what is kept of the rows of all clients, from those at hand."""
        # Two sums of a client, and two hashes of every row that is kept; about as many of each client.
        whole.told(HASHES, 2 + -(-2 * whole.n_rows // (self.modulus * whole.n_clients)))
        if whole.alone:
            return self
        designs, rows, owners = np.concatenate([np.zeros((3, 0), dtype=np.uint64), *self.kept], axis=1)
        kept = whole.joined(np.stack([designs, rows, owners + np.uint64(whole.first)], axis=1)).T
        return RowHashes(whole.joined(self.digests), whole.joined(self.designs), [kept], self.modulus)

    @cached_property
    def runs(self) -> DistinctRows:
        """The distinct rows of each client."""
        designs, rows, owners = np.concatenate(self.kept, axis=1)
        # One sort by both hashes; clients come in order, and stay so among equal rows.
        low = np.uint64((1 << 20) - 1)
        order = np.argsort((designs & ~low) | (rows & low), kind="stable")
        designs, rows, owners = designs[order], rows[order], owners[order]
        begin = _beginnings(designs, rows, owners)
        return DistinctRows(designs[begin], rows[begin], owners[begin].astype(np.int64), _lengths(begin, len(rows)))


@dataclass(frozen=True)
class DistinctRows:
    """The distinct rows of each client, in an order in which equal covariates are neighbours.

    Attributes
    ----------
    designs, rows : ndarray (R,)
        Hashes of the covariates and of the whole row.
    owners, counts : ndarray (R,)
        Whose row it is, and how often the client has it.
    """

    designs: Hashes
    rows: Hashes
    owners: Ints
    counts: Ints

    def sizes(self, M: int) -> Array:
        """Return the number of rows of each client here (M,)."""
        return np.asarray(np.bincount(self.owners, self.counts, minlength=M), dtype=np.float64)

    def repeats(self, M: int) -> float:
        """Return a bound on the probability that two rows of a client are equal, from all clients."""
        sizes = self.sizes(M)
        pairs = float((sizes * (sizes - 1.0)).sum()) / 2.0
        equal = float((self.counts * (self.counts - 1.0)).sum()) / 2.0
        # One more than were seen: that none was seen does not make it impossible.
        return min(1.0, (equal + 1.0) / max(pairs, 1.0))


def row_hashes(data: ClientData, rows: slice) -> tuple[Hashes, Hashes]:
    """Return 64 bits for each of some rows (covariates, response, offset and weight), and for its covariates alone."""
    design = np.zeros(rows.stop - rows.start, dtype=np.uint64)
    for column in data.X[rows].T:
        design = _mixed(design, column)
    whole = design
    for part in (data.y, data.linear_offset, data.row_weights):
        whole = whole if part is None else _mixed(whole, part[rows])
    return whole, design


def _mixed(before: Hashes, column: Array) -> Hashes:
    """Return hashes that depend on one more column, and on where it stands."""
    # Minus zero is zero. Whole numbers have their bits at the top, where a product would lose them.
    bits = (column + 0.0).view(np.uint64)
    bits = (before ^ bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(29)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    return bits ^ (bits >> np.uint64(32))


def copied_clients(whole: Whole, hashes: RowHashes) -> list[Ints]:
    """Return groups of clients that hold the same rows, in any order, and not by chance.

    Covariates that other clients have too, with other responses, are a design, and responses alone may well be equal.
    """
    order = np.lexsort((hashes.digests, whole.sizes))
    same = (np.diff(hashes.digests[order]) == 0) & (np.diff(whole.sizes[order]) == 0)
    if not same.any():
        return []
    groups = [np.sort(group) for group in np.split(order, np.flatnonzero(~same) + 1) if len(group) > 1]
    chance = _chance_of_equal(hashes.runs, whole.sizes)
    groups = [group for group in groups if _unlikely(chance[group[0]], whole.n_clients)]
    design, holders = np.unique(hashes.designs, return_counts=True)
    alone = [holders[np.searchsorted(design, hashes.designs[group[0]])] == len(group) for group in groups]
    return sorted((group for group, own in zip(groups, alone, strict=True) if own), key=lambda group: int(group[0]))


def overlapping_clients(whole: Whole, hashes: RowHashes, copies: list[Ints]) -> list[tuple[int, int, float]]:
    """Return pairs of clients that share at least half of the rows of the first, and the share; not by chance.

    Of clients that are copies of each other only the first is looked at. Where rows repeat often inside clients, as
    those of few categories do, no client is named; nor is one that shares covariates with another whose responses
    differ.
    """
    # A sort that keeps the rows' places costs more.
    designs = np.sort(np.concatenate([block[0] for block in hashes.kept]))
    if (designs[1:] != designs[:-1]).all():
        return []
    M, runs = whole.n_clients, hashes.runs
    repeat, sizes = runs.repeats(M), np.bincount(runs.owners, minlength=M)
    # Chance matches are excluded.
    looked_at = sizes * repeat < 1.0
    for group in copies:
        looked_at[group[1:]] = False
    pairs = _shared(runs, looked_at[runs.owners], M)
    if pairs is None:
        return []
    one, other, designs, rows = pairs
    larger = sizes[one] > sizes[other]
    one, other = np.where(larger, other, one), np.where(larger, one, other)
    small = sizes[one]
    designed = np.zeros(M, dtype=bool)
    alike = (designs >= SHARED_ROWS * small) & (designs > rows)
    designed[one[alike]] = designed[other[alike]] = True
    # Some rows of the one, each equal to any row of the other.
    chance = _log_choose(small, rows) + rows * np.log(sizes[other] * repeat)
    named = (rows >= SHARED_ROWS * small) & ~designed[one] & ~designed[other] & _unlikely(chance, M)
    return [(int(one[k]), int(other[k]), float(rows[k] / small[k])) for k in np.flatnonzero(named)]


def _shared(runs: DistinctRows, keep: Mask, M: int) -> tuple[Ints, ...] | None:
    """Return pairs of clients, and how many covariates and how many rows they share; None where too many do.

    Covariates of many clients are common ones, and do not count.
    """
    designs, rows, owners = runs.designs[keep], runs.rows[keep], runs.owners[keep]
    begin = _beginnings(designs)
    holders = _lengths(begin, len(designs))
    codes, equal = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=bool)]
    for k in np.unique(holders[(holders > 1) & (holders <= MOST_HOLDERS)]):
        place = begin[holders == k, None] + np.arange(k)
        left, right = np.triu_indices(int(k), 1)
        if len(place) * len(left) + sum(map(len, codes)) > MOST_PAIRS:
            return None
        left, right = place[:, left].ravel(), place[:, right].ravel()
        low, high = np.minimum(owners[left], owners[right]), np.maximum(owners[left], owners[right])
        codes.append((low * M + high)[low < high])
        equal.append((rows[left] == rows[right])[low < high])
    code, place = np.unique(np.concatenate(codes), return_inverse=True)
    both = np.bincount(place, np.concatenate(equal), minlength=len(code)).astype(np.int64)
    return code // M, code % M, np.bincount(place, minlength=len(code)), both


def _unlikely(chance: Any, M: int) -> Any:
    """Return whether fewer than `EXPECTED_PAIRS` such pairs among M clients are expected, from a log probability."""
    return chance + np.log(max(0.5 * M * (M - 1.0), 1.0)) < np.log(EXPECTED_PAIRS)


def _log_choose(n: Ints, k: Ints) -> Array:
    return np.asarray(special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0))


def _beginnings(*keys: NDArray[Any]) -> Ints:
    """Return where a new combination of sorted keys begins."""
    new = np.ones(len(keys[0]), dtype=bool)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(new)


def _lengths(begin: Ints, end: int) -> Ints:
    return np.diff(begin, append=end)


def _chance_of_equal(runs: DistinctRows, sizes: Ints) -> Array:
    """Return the log of a bound on the chance that another client has exactly the rows of each client (M,).

    The rows of both are draws from one distribution. The multinomial probability of the client's counts is largest
    where its own shares are the true ones. And there are n! ways to pair the rows of two clients, each of which has all
    pairs equal with the probability that one has, to the power of n.
    """
    M, owners, counts = len(sizes), runs.owners, runs.counts
    kept = runs.sizes(M)
    orders = special.gammaln(kept + 1.0) - np.bincount(owners, special.gammaln(counts + 1.0), minlength=M)
    own = orders + np.bincount(owners, counts * np.log(counts / kept[owners]), minlength=M)
    paired = special.gammaln(sizes + 1.0) + sizes * np.log(runs.repeats(M))
    return np.asarray(np.minimum(own, paired))
