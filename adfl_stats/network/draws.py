"""Random draws that generators of networks are made of: edges, pairs, distinct neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from adfl_stats._arguments import whole_number
from adfl_stats._types import Ints

__all__ = ["Edges", "Seed", "both_ways", "distinct", "generator", "plain_seed", "redrawn", "successes", "triangle"]

Seed = int | np.random.Generator | None
# Receivers and senders of the directed edges.
Edges = tuple[Ints, Ints]

# Draws of a random graph until nobody is isolated. Ours: bounds the time.
MOST_DRAWS = 1000
# With more isolated clients than this expected, 1000 draws succeed with probability below 1000 e^-10 = 0.05.
MOST_ISOLATED = 10.0


# SciPy counts entries in 32 bits below this, and beyond it a network takes tens of gigabytes.
MOST_EDGES = 2**31


def refuse_vast(edges: float, arguments: str) -> None:
    """Raise ValueError, with the arguments to lower, where a network has more edges than there is room for."""
    if edges > MOST_EDGES:
        raise ValueError(f"{arguments}: that makes about {edges:.2g} edges, more than 2**31; lower them")


def both_ways(one: Ints, other: Ints) -> Edges:
    """Return the edges from each to the other."""
    return np.concatenate([one, other]), np.concatenate([other, one])


def generator(seed: Seed) -> np.random.Generator:
    """Return the source of randomness that a seed stands for."""
    if seed is None or isinstance(seed, np.random.Generator):
        return np.random.default_rng(seed)
    return np.random.default_rng(whole_number(seed, "seed", 0, None))


def plain_seed(seed: Seed) -> int:
    """Return a whole number for networkx, whose older versions do not take a Generator."""
    return int(generator(seed).integers(2**31))


def redrawn(M: int, draw: Callable[[], Edges], expected: float, trouble: str, advice: str) -> Edges:
    """Draw until every client has an in-neighbour; refuse at once where too many isolated ones are expected."""
    if expected > MOST_ISOLATED:
        raise ValueError(f"{trouble}: about {expected:.3g} clients would be isolated in each draw; {advice}")
    for _ in range(MOST_DRAWS):
        edges = draw()
        if np.bincount(edges[0], minlength=M).all():
            return edges
    raise ValueError(f"{trouble}: some client was isolated in each of {MOST_DRAWS} draws; {advice}")


def successes(rng: np.random.Generator, total: int, q: float) -> Ints:
    """Return the successes among `total` trials of probability `q`, in order and in O(total * q) time.

    The gaps between successes are geometric, so that failures need not be drawn one by one.
    """
    parts: list[Ints] = []
    at = -1
    while q > 0.0 and at < total - 1:
        mean = (total - 1 - at) * q
        gaps = rng.geometric(q, size=int(mean + 4.0 * math.sqrt(mean)) + 10)
        # A gap beyond the end may be huge; cut off, it cannot overflow the sum.
        places = at + np.cumsum(np.minimum(gaps, total + 1))
        parts.append(places[places < total])
        at = int(places[-1])
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def triangle(position: Ints) -> Edges:
    """Return the pairs low < high at the given places of (0,1), (0,2), (1,2), (0,3), ..."""
    high = ((1.0 + np.sqrt(1.0 + 8.0 * position)) / 2.0).astype(np.int64)
    # The square root may be off by one place where the numbers are large.
    high -= high * (high - 1) // 2 > position
    high += high * (high + 1) // 2 <= position
    return position - high * (high - 1) // 2, high


def distinct(rng: np.random.Generator, M: int, D: int) -> Ints:
    """Return M rows of D different numbers below M - 1."""
    # Comparing costs D^2/2 per client, sorting keys some 10 M.
    return _distinct_by_comparing(rng, M, D) if D * D <= 16 * M else _distinct_by_sorting(rng, M, D)


def _distinct_by_comparing(rng: np.random.Generator, M: int, D: int) -> Ints:
    """Return M rows of D different numbers below M - 1: Floyd's method, on all rows at once."""
    drawn = np.empty((D, M), dtype=np.int64)
    for i, last in enumerate(range(M - 1 - D, M - 1)):
        new = rng.integers(0, last + 1, size=M)
        # A number drawn before is replaced by `last`, which no earlier draw could give.
        drawn[i] = np.where((drawn[:i] == new).any(axis=0), last, new)
    return drawn.T


def _distinct_by_sorting(rng: np.random.Generator, M: int, D: int, block: int = 256) -> Ints:
    """Return M rows of D different numbers below M - 1: the places of the D smallest of random keys."""
    rows = [rng.random((min(block, M - low), M - 1)).argpartition(D - 1)[:, :D] for low in range(0, M, block)]
    return np.concatenate(rows).astype(np.int64)
