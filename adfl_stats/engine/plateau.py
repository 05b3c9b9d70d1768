"""When to cut a constant step: a test of stationarity of stochastic rounds (Lang, Zhang & Xiao 2019).

Where x <- x - alpha d is stationary, E ||x||^2 does not change, so that z = <x - c, d> - alpha / 2 ||d||^2 has mean
zero for any c. Here x is the clients' mean and c its value at the end of the window, from which rounds that still
descend come: their z is positive. The step is cut where a confidence interval for the mean of z, by batch means,
contains zero or lies below, the rule of the authors' later paper (Zhang, Lang, Liu & Xiao 2020), which needs fewer
rounds than that of the first. In the last rounds of a window, as many as the slowest direction takes to forget, z is
positive with stationary rounds too: where these are more than a batch has, about the root of the window, the step is
cut late or not at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adfl_stats._types import Array

__all__ = ["CUT", "Plateau"]

# The factor of a cut and the level of the interval are those of Lang, Zhang & Xiao (2019).
CUT, LEVEL = 0.1, 0.8
# The shortest window that is tested. Ours: six batches of six rounds, and t with 5 degrees of freedom.
LEAST_ROUNDS = 40
# Coordinates that are kept of a round, evenly spaced: z has mean zero for any of them. Ours: 40 MB for 1,000 rounds.
MOST_KEPT = 10_000


class Plateau:
    """The rounds since the last cut, of which the later half is tested."""

    def __init__(self) -> None:
        self._places: list[NDArray[np.float32]] = []

    def add(self, place: Array) -> None:
        """Add the clients' mean (P,) after a round."""
        self._places.append(place[:: -(-len(place) // MOST_KEPT)].astype(np.float32))

    def reached(self, step: float) -> bool:
        """Return whether the rounds at this step are stationary; if so, forget them."""
        rounds = len(self._places) // 2
        if rounds < LEAST_ROUNDS:
            return False
        x = np.stack(self._places[-rounds - 1 :]).astype(np.float64)
        x -= x[-1]
        d = (x[:-1] - x[1:]) / step
        z = np.einsum("kp,kp->k", x[:-1], d) - 0.5 * step * np.einsum("kp,kp->k", d, d)
        batches = int(np.sqrt(rounds))
        means = z[-batches * (rounds // batches) :].reshape(batches, -1).mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(batches)
        if means.mean() - stats.t.isf(0.5 - LEVEL / 2.0, batches - 1) * error > 0.0:
            return False
        self._places = []
        return True
