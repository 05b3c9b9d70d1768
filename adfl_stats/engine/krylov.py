"""GMRES for vectors whose rows are spread over places: each has those of its own clients, and of no other.

SciPy's GMRES takes products of whole vectors, so that every place would keep the basis of all clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats.engine.transport import EVERYBODY, Members

__all__ = ["gmres"]

Vectors = NDArray[Any]

# Vectors between restarts, and restarts. (Ours.) With the preconditioner of the limit 5 to 20 vectors are the rule for
# 1e-6; more are needed where clients are far apart or the network is large and sparse.
ROOM, RESTARTS = 80, 25
# A new vector this much shorter than its image is rounding: the basis has the solution, or the system is singular.
SHORTEST = 1e-14


def gmres(
    system: Callable[[Vectors], Vectors],
    b: Vectors,
    preconditioner: Callable[[Vectors], Vectors],
    rtol: float,
    members: Members = EVERYBODY,
) -> Vectors:
    """Solve a linear system, or come as near as restarts allow; NaN where its numbers, or their squares, overflow.

    GMRES of Saad & Schultz (1986) with the preconditioner on the right, so that what is left is that of the system.
    A new vector is made orthogonal to the others twice by classical Gram-Schmidt: two sums over all clients, and as
    orthogonal as by Householder's method (Giraud et al. 2005).

    Parameters
    ----------
    system, preconditioner : callable
        From our rows (m, ...) of a vector to ours of its image; all places call them together.
    b : ndarray (m, ...)
        Our rows of the right side; complex where the system is.
    rtol : float
        What may be left, relative to b.
    members : Members
        The clients, see there.
    """
    basis = _Basis(b, members)
    x, residual, length = np.zeros_like(b), b, basis.size(b)
    if not np.isfinite(length):
        return np.full_like(b, np.nan)
    target = rtol * length
    for _ in range(RESTARTS):
        if length <= target:
            break
        basis.keep(0, residual / length)
        H, goal = np.zeros((ROOM + 1, ROOM), dtype=b.dtype), np.zeros(ROOM + 1)
        goal[0] = length
        for j in range(ROOM):
            count = j + 1
            basis.keep(count, system(preconditioner(basis.vector(j))))
            first = basis.products(count)
            if not np.isfinite(first).all():
                return np.full_like(b, np.nan)
            basis.subtract(count, first[:-1])
            second = basis.products(count)
            basis.subtract(count, second[:-1])
            height = float(np.sqrt(max(second[-1].real - np.square(np.abs(second[:-1])).sum(), 0.0)))
            H[:count, j], H[count, j] = first[:-1] + second[:-1], height
            y = np.linalg.lstsq(H[: count + 1, :count], goal[: count + 1], rcond=None)[0]
            left = float(np.linalg.norm(goal[: count + 1] - H[: count + 1, :count] @ y))
            ended = height <= SHORTEST * np.sqrt(first[-1].real)
            if left <= target or ended:
                break
            basis.divide(count, height)
        x = x + preconditioner(basis.combined(y))
        if left <= target or ended:
            break
        residual = b - system(x)
        length = basis.size(residual)
    return x


class _Basis:
    """Our rows of some vectors, batch by batch: products round by how rows lie in memory, see `Members.products`.

    Parameters
    ----------
    like : ndarray (m, ...)
        A vector.
    members : Members
        The clients.
    """

    def __init__(self, like: Vectors, members: Members) -> None:
        self._like, self._members = like, members
        # The slices that `Members.total` asks for, and the vectors' numbers there.
        self._slices = members.transport.batches()
        self._parts = [np.empty((ROOM + 1, like[members.within(at)].size), like.dtype) for at in self._slices]

    def vector(self, k: int) -> Vectors:
        """Return a vector (m, ...)."""
        return self._joined([part[k] for part in self._parts])

    def keep(self, k: int, x: Vectors) -> None:
        """Keep a vector."""
        for at, part in zip(self._slices, self._parts, strict=True):
            part[k] = x[self._members.within(at)].ravel()

    def products(self, k: int) -> Vectors:
        """Return the inner products of vectors 0, ..., k with vector k: a sum over all clients."""
        return self._total([part[: k + 1].conj() @ part[k] for part in self._parts])

    def subtract(self, k: int, times: Vectors) -> None:
        """Take multiples of vectors 0, ..., k - 1 from vector k."""
        for part in self._parts:
            part[k] -= times @ part[:k]

    def divide(self, k: int, by: float) -> None:
        """Divide vector k by a number."""
        for part in self._parts:
            part[k] /= by

    def combined(self, by: Vectors) -> Vectors:
        """Return the sum of the first vectors, times a factor each."""
        return self._joined([by @ part[: len(by)] for part in self._parts])

    def size(self, x: Vectors) -> float:
        """Return the length of a vector of all clients."""
        parts = [x[self._members.within(at)].ravel() for at in self._slices]
        return float(np.sqrt(self._total([np.asarray(np.vdot(part, part).real) for part in parts])))

    def _total(self, parts: list[Vectors]) -> Vectors:
        """Return the sum over all clients, from those of our batches."""
        by_start = {at.start: part for at, part in zip(self._slices, parts, strict=True)}
        return self._members.transport.total(lambda at: by_start[at.start])

    def _joined(self, parts: list[Vectors]) -> Vectors:
        """Return a vector (m, ...), of its numbers in our batches."""
        out = np.zeros_like(self._like)
        for at, part in zip(self._slices, parts, strict=True):
            rows = out[self._members.within(at)]
            rows[...] = part.reshape(rows.shape)
        return out
