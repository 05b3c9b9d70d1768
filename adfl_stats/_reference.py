"""NumPy twin of the kernel: the same names and signatures, and the specification of what they do.

Written for clarity, not speed; the tests run both on the same inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats.families import FAMILY_NAMES, Family

__all__ = ["MEAN", "MEDIAN", "GramLoss", "Mixing", "RowLoss", "combine", "gradient", "rounds"]

MEAN, MEDIAN = 0, 1
Array = NDArray[np.float64]


class Mixing:
    """How a client combines what it hears; see the kernel's class of this name."""

    def __init__(self, indptr: Any, indices: Any, weights: Array, rule: int = MEAN) -> None:
        self.indptr, self.indices, self.weights, self.rule = indptr, indices, weights, rule
        self.n_clients = len(indptr) - 1

    def row(self, m: int, theta: Array) -> Array:
        """Combine what client m hears."""
        span = slice(self.indptr[m], self.indptr[m + 1])
        heard = theta[self.indices[span]]
        if self.rule == MEDIAN:
            return np.median(heard, axis=0)
        return np.tensordot(self.weights[span], heard, axes=1)


class RowLoss:
    """Losses from the rows; see the kernel's class of this name."""

    def __init__(
        self,
        X: Array,
        y: Array,
        offsets: Any,
        totals: Array,
        family: int,
        par: float = 0.0,
        outputs: int = 1,
        shift: Array | None = None,
        row_weights: Array | None = None,
        metric: Array | None = None,
    ) -> None:
        self.X, self.y, self.offsets, self.totals = X, y, offsets, totals
        self.family, self.outputs = Family(FAMILY_NAMES[family], par, outputs), outputs
        self.shift, self.row_weights, self.metric = shift, row_weights, metric
        self.n_clients, self.n_columns = len(offsets) - 1, X.shape[1]

    def gradient_at(self, m: int, theta: Array) -> Array:
        """Return client m's gradients at the rows of theta, one row a run."""
        rows = slice(self.offsets[m], self.offsets[m + 1])
        X, y = self.X[rows], self.y[rows]
        out = np.empty_like(theta)
        for r, parameters in enumerate(theta):
            eta = X @ parameters.reshape(self.outputs, self.n_columns).T
            if self.shift is not None:
                eta += self.shift[rows, None]
            if self.outputs == 1 and self.family.name != "multinomial":
                residual = self.family.residual(eta[:, 0], y)[:, None]
            else:
                residual = self.family.residual(eta, y)
            if self.row_weights is not None:
                residual = residual * self.row_weights[rows, None]
            found = residual.T @ X / self.totals[m]
            out[r] = (found if self.metric is None else found @ self.metric.T).ravel()
        return out


class GramLoss:
    """Gaussian losses by Gram matrices; see the kernel's class of this name."""

    def __init__(self, S: Array, b: Array) -> None:
        self.S, self.b, self.outputs = S, b, 1
        self.n_clients, self.n_columns = S.shape[0], S.shape[1]

    def gradient_at(self, m: int, theta: Array) -> Array:
        """Return client m's gradients at the rows of theta, one row a run."""
        return theta @ self.S[m, :, : self.n_columns].T - self.b[m]


def combine(mixing: Mixing, theta: Array, out: Array) -> None:
    """Write what every client hears into `out`."""
    for m in range(mixing.n_clients):
        out[m] = mixing.row(m, theta)


def gradient(loss: RowLoss | GramLoss, theta: Array, out: Array, threads: int = 1) -> None:
    """Write every client's gradient at its own row of `theta`."""
    for m in range(loss.n_clients):
        out[m] = loss.gradient_at(m, theta[m])


def rounds(
    mixing: Mixing,
    loss: RowLoss | GramLoss,
    theta: Array,
    steps: Array,
    n_rounds: int,
    moved: Array,
    limits: Array,
    threads: int = 1,
) -> int:
    """Do `n_rounds` rounds in place and return how many were done (equations (3.1) and (4.1))."""
    at, slope = np.empty_like(theta), np.empty_like(theta)
    for t in range(n_rounds):
        old = theta.copy()
        combine(mixing, theta, at)
        gradient(loss, at, slope)
        theta[:] = at - steps[:, :, None] * slope
        moved[t] = np.sqrt(((theta - old) ** 2).sum(axis=2)).max(axis=0)
        if not np.all(np.isfinite(moved[t]) & (moved[t] <= limits)):
            return t + 1
    return n_rounds
