"""EXTRA and gradient tracking: exact methods for undirected networks, without a defence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import eigsh

from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.engine.rounds import Plan
from adfl_stats.methods._base import Method, Outcome, check_undirected, run_scheme

__all__ = ["Extra", "GradientTracking", "tracked"]


@dataclass(frozen=True, eq=False)
class Extra(Method):
    """EXTRA of Shi, Ling, Wu & Yin (2015, SIAM J. Optim.): the pooled estimate at a constant step.

    Theta_1 = W Theta_0 - alpha G(Theta_0), then
    Theta_{t+2} = (I + W) Theta_{t+1} - (I + W) / 2 Theta_t - alpha (G(Theta_{t+1}) - G(Theta_t)).
    Unlike DFL it leaves no bias of the order of the step. It trusts every client: abnormal ones bias it
    like the pooled fit. It needs an undirected network with symmetric weights (``net.metropolis()``);
    "auto" takes the step lambda_min((I + W) / 2) over the largest curvature, half the bound of its theory.

    Parameters
    ----------
    init : array, results, method or None
        Where to begin; see `ADFL`.
    """

    init: Any = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "EXTRA"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        check_undirected(problem, self.name, weights=True)
        scheme = Scheme(update=_corrected, schedule="hold", caution=max(0.5 * (1.0 + _smallest(problem)), 1e-3))
        return run_scheme(self, scheme, problem, plan, smooth=True)


@dataclass(frozen=True, eq=False)
class GradientTracking(Method):
    """Gradient tracking (DIGing; Nedic, Olshevsky & Shi 2017, SIAM J. Optim.).

    Theta_{t+1} = W Theta_t - alpha Z_t and Z_{t+1} = W Z_t + G(Theta_{t+1}) - G(Theta_t) with
    Z_0 = G(Theta_0): the rows of Z follow the clients' mean gradient, and the estimates converge to the
    pooled one at a constant step. It trusts every client and sends twice as much as DFL. It needs an
    undirected network with symmetric weights (``net.metropolis()``); the step that it bears falls with
    the mixing of W, so that "auto" tries again with a fourth of the step where a run blows up.

    Parameters
    ----------
    init : array, results, method or None
        Where to begin; see `ADFL`.
    """

    init: Any = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "gradient tracking"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        check_undirected(problem, self.name, weights=True)
        scheme = Scheme(update=tracked, schedule="hold", caution=0.25)
        return run_scheme(self, scheme, problem, plan, smooth=True)


def tracked(exchange: Exchange, slope: Slope, penalty: float = 0.0) -> Update:
    """Return the round of gradient tracking; its state is the last gradient and what tracks the mean.

    A `penalty` on absolute values is met by the soft threshold, its proximal operator.
    """
    last: Array | None = None
    track: Array = np.empty(0)

    def update(theta: Array, step: float) -> Array:
        nonlocal last, track
        if last is None:
            last = track = slope(theta)
        after = exchange.combine(theta) - step * track
        if penalty:
            after = np.sign(after) * np.maximum(np.abs(after) - step * penalty, 0.0)
        found = slope(after)
        track = exchange.combine(track) + found - last
        last = found
        return after

    return update


def _corrected(exchange: Exchange, slope: Slope) -> Update:
    """Return the round of EXTRA; its state is the last estimate, what was heard of it, and its gradient."""
    before: tuple[Array, Array, Array] | None = None

    def update(theta: Array, step: float) -> Array:
        nonlocal before
        mixed, found = exchange.combine(theta), slope(theta)
        if before is None:
            after = mixed - step * found
        else:
            old, old_mixed, old_found = before
            after = theta + mixed - 0.5 * (old + old_mixed) - step * (found - old_found)
        before = theta.copy(), mixed, found
        return after

    return update


def _smallest(problem: Problem) -> float:
    """Return the smallest eigenvalue of a symmetric W."""
    W = problem.network.W
    if problem.M <= 500:
        return float(linalg.eigvalsh(W.toarray())[0])
    return float(eigsh(W, k=1, which="SA", return_eigenvectors=False, v0=np.cos(np.arange(problem.M) ** 2))[0])
