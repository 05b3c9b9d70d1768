"""NumPy twin of the kernel: the same names and signatures, and the specification of what they do.

Written for clarity, not speed; the tests run both on the same inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adfl_stats._types import Array
from adfl_stats.engine.rules import RULES
from adfl_stats.losses.families import Family

__all__ = ["Combiner", "GramLoss", "RowLoss", "State", "combine", "gradient", "rounds", "shortened"]


class Combiner:
    """How a client combines what it hears; see the kernel's class of this name."""

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        weights: Array,
        rule: int = 0,
        count: int = 0,
        value: float = 0.0,
        bad: Any = None,
    ) -> None:
        self.indptr, self.indices, self.weights, self.bad = indptr, indices, weights, bad
        self.rule, self.count, self.value = RULES[rule], count, value
        self.n_clients = len(indptr) - 1

    def row(self, m: int, theta: Array) -> Array:
        """Combine what client m hears, one row a run."""
        span = slice(self.indptr[m], self.indptr[m + 1])
        heard, weights = theta[self.indices[span]], self.weights[span]
        if self.rule == "mean":
            return np.tensordot(weights, heard, axes=1)
        bad = None if self.bad is None else self.bad[span].astype(bool)
        return np.stack([self._screen(heard[:, r], weights, bad) for r in range(heard.shape[1])])

    def _screen(self, pool: Array, weights: Array, bad: Any) -> Array:
        """Combine a pool (rows, P) whose first row is the client's own."""
        if self.rule == "median":
            return np.asarray(np.median(pool, axis=0))
        if self.rule == "trimmed":
            b = min(self.count, max(len(pool) - 2, 0) // 2)
            kept = np.sort(pool[1:], axis=0)[b : len(pool) - 1 - b]
            return np.asarray((pool[0] + kept.sum(axis=0)) / (1 + len(kept)))
        if self.rule in ("krum", "bulyan"):
            return krum(pool, self.count, self.rule == "bulyan")
        if self.rule == "geometric":
            return geometric_median(pool, weights, self.value, self.count)
        if self.rule in ("ios", "nna"):
            return pruned_mean(pool, weights, self.count, self.rule == "ios")
        distance = np.linalg.norm(pool - pool[0], axis=1)
        radius = clip_radius(self.rule, self.value, distance, weights, bad)
        scale = np.minimum(1.0, radius / np.where(distance > 0, distance, 1.0))
        return np.asarray(pool[0] + (weights * scale) @ (pool - pool[0]))


def krum(pool: Array, b: int, bulyan: bool) -> Array:
    """Return Krum's row of the pool, or the trimmed mean of Bulyan's picks."""
    distances = ((pool[:, None] - pool[None]) ** 2).sum(axis=2)
    left, picked = list(range(len(pool))), []
    for _ in range(max(1, len(pool) - 2 * b) if bulyan else 1):
        near = min(max(len(left) - b - 2, 1), len(left) - 1)
        scores = [np.sort([distances[i, j] for j in left if j != i])[:near].sum() for i in left]
        picked.append(left.pop(int(np.argmin(scores))))
    trim = min(b, (len(picked) - 1) // 2)
    return np.asarray(np.sort(pool[picked], axis=0)[trim : len(picked) - trim].mean(axis=0))


def clip_radius(rule: str, value: float, distance: Array, weights: Array, bad: Any) -> float:
    """Return the radius of clipping from the distances of the pool's rows to the first."""
    if rule == "clip":
        return value
    if rule == "clip-second":
        return float(np.sort(distance)[-2 if len(distance) > 2 else -1])
    squares = weights * distance**2
    if rule == "clip-known":
        return float(np.sqrt(squares[~bad].sum() / weights[bad].sum())) if bad.any() else np.inf
    if value <= 0:
        return np.inf
    order = np.lexsort((weights, distance))
    kept = order[np.cumsum(weights[order]) <= weights.sum() - value + 1e-12]
    return float(np.sqrt(squares[kept].sum() / value))


def geometric_median(pool: Array, weights: Array, least: float, iterations: int) -> Array:
    """Do some iterations of Weiszfeld's from the weighted mean, no distance counting as smaller than `least`."""
    median = weights @ pool / weights.sum()
    for _ in range(iterations):
        pull = weights / np.maximum(least, np.linalg.norm(pool - median, axis=1))
        median = pull @ pool / pull.sum()
    return np.asarray(median)


def pruned_mean(pool: Array, weights: Array, b: int, about_mean: bool) -> Array:
    """Drop b rows, each the farthest from the mean of those left (or from the first), and average the rest."""
    left = list(range(len(pool)))
    for _ in range(min(b, len(pool) - 1)):
        centre = weights[left] @ pool[left] / weights[left].sum() if about_mean else pool[0]
        left.remove(max(left[1:], key=lambda j: float(((pool[j] - centre) ** 2).sum())))
    return np.asarray(weights[left] @ pool[left] / weights[left].sum())


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
        linear_offset: Array | None = None,
        row_weights: Array | None = None,
        metric: Array | None = None,
        ridge: Array | None = None,
        row_bounds: Array | None = None,
    ) -> None:
        self.X, self.y, self.offsets, self.totals = X, y, offsets, totals
        self.family, self.outputs = Family.of_code(family, par, outputs), outputs
        self.linear_offset, self.row_weights, self.metric, self.ridge = linear_offset, row_weights, metric, ridge
        self.row_bounds = row_bounds
        self.n_clients, self.n_columns = len(offsets) - 1, X.shape[1]

    def gradient_at(self, m: int, theta: Array) -> Array:
        """Return client m's gradients at the rows of theta, one row a run."""
        rows = slice(self.offsets[m], self.offsets[m + 1])
        X, y = self.X[rows], self.y[rows]
        out = np.empty_like(theta)
        for r, parameters in enumerate(theta):
            eta = X @ parameters.reshape(self.outputs, self.n_columns).T
            if self.linear_offset is not None:
                eta += self.linear_offset[rows, None]
            if self.outputs == 1 and self.family.name != "multinomial":
                residual = self.family.residual(eta[:, 0], y)[:, None]
            else:
                residual = self.family.residual(eta, y)
            if self.row_bounds is not None:
                residual = bounded(residual, self.row_bounds[rows])
            if self.row_weights is not None:
                residual = residual * self.row_weights[rows, None]
            gradient = residual.T @ X / self.totals[m]
            if self.ridge is not None:
                gradient += (self.ridge * parameters).reshape(gradient.shape)
            out[r] = (gradient if self.metric is None else gradient @ self.metric.T).ravel()
        return out


def bounded(residuals: Array, bounds: Array) -> Array:
    """Return residuals (rows, outputs), shortened to the length of their bounds (rows,) where they are longer."""
    if residuals.shape[1] == 1:
        return np.clip(residuals, -bounds[:, None], bounds[:, None])
    length = np.linalg.norm(residuals, axis=1)
    return np.where(length > bounds, bounds / np.where(length > 0.0, length, 1.0), 1.0)[:, None] * residuals


class GramLoss:
    """Gaussian losses by Gram matrices; see the kernel's class of this name."""

    def __init__(self, S: Array, b: Array, symmetric: bool = False) -> None:
        self.S, self.b, self.outputs = S, b, 1
        self.n_clients, self.n_columns = S.shape[0], S.shape[1]

    def gradient_at(self, m: int, theta: Array) -> Array:
        """Return client m's gradients at the rows of theta, one row a run."""
        return theta @ self.S[m, :, : self.n_columns].T - self.b[m]


def combine(combiner: Combiner, theta: Array, out: Array) -> None:
    """Write what every client hears into `out`."""
    for m in range(combiner.n_clients):
        out[m] = combiner.row(m, theta)


def gradient(loss: RowLoss | GramLoss, theta: Array, out: Array, threads: int = 1) -> None:
    """Write every client's gradient at its own row of `theta`."""
    for m in range(loss.n_clients):
        out[m] = loss.gradient_at(m, theta[m])


def rounds(
    combiner: Combiner,
    loss: RowLoss | GramLoss,
    theta: Array,
    steps: Array,
    n_rounds: int,
    moved: Array,
    limits: Array,
    threads: int = 1,
    clip: float = np.inf,
    local_steps: int = 1,
) -> int:
    """Do `n_rounds` rounds in place and return how many were done (equations (3.1) and (4.1))."""
    state = State(combiner, loss, theta, steps, threads, clip, local_steps)
    done = 0
    while done < n_rounds:
        state.round(moved[done])
        done += 1
        if not np.all(np.isfinite(moved[done - 1]) & (moved[done - 1] <= limits)):
            break
    state.write(theta)
    return done


class State:
    """Estimates that are kept between rounds; see the kernel's class of this name."""

    def __init__(
        self,
        combiner: Combiner,
        loss: RowLoss | GramLoss,
        theta: Array,
        steps: Array,
        threads: int = 1,
        clip: float = np.inf,
        local_steps: int = 1,
    ) -> None:
        self._combiner, self._loss, self._theta, self._steps = combiner, loss, theta.copy(), steps
        self._clip, self._local_steps = clip, local_steps

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._theta.reshape(len(self._theta), -1)

    def round(self, moved: Array) -> None:
        """Do one round, and write the clients' longest move in each run into `moved`."""
        M = self._loss.n_clients
        at = np.empty_like(self._theta[:M])
        slope = np.empty_like(at)
        combine(self._combiner, self._theta, at)
        for _ in range(self._local_steps):
            gradient(self._loss, at, slope)
            at = at - self._steps[:, :, None] * shortened(slope, self._clip)
        moved[:] = np.sqrt(((at - self._theta[:M]) ** 2).sum(axis=2)).max(axis=0)
        self._theta[:M] = at

    def write(self, theta: Array) -> None:
        """Write the estimates of the clients, without those of others whom they hear, into `theta`."""
        theta[:] = self._theta[: self._loss.n_clients]


def shortened(gradients: Array, clip: float) -> Array:
    """Return gradients (..., P), those longer than `clip` shortened to that length; what is not finite stays so."""
    if np.isinf(clip):
        return gradients
    largest = np.abs(gradients).max(axis=-1, keepdims=True)
    # Relative to the largest entry, so that squares do not overflow.
    unit = np.where(np.isfinite(largest) & (largest > 0.0), largest, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt(np.sum((gradients / unit) ** 2, axis=-1, keepdims=True))
    share = clip / unit / np.where(length > 0.0, length, 1.0)
    return np.asarray(np.where(np.isfinite(length) & (share < 1.0), share, 1.0) * gradients)
