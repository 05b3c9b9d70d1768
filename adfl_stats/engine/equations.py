"""Newton's method for weighted estimating equations: the network's limit as the step tends to zero.

Several sets of weights at once: every pass over the data serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL, Transport, count_of
from adfl_stats.losses.glm import GLM

__all__ = ["Equations", "Solutions", "System", "solve", "stacked_solutions", "weighted_solution"]


# Ours: Newton's method takes a dozen steps, about twenty where the first curvature is kept.
MOST_STEPS = 100
# A relative step below this is rounding. Ours: about 500 units in the last place.
SMALL_STEP = 1e-13
# With a curvature this poor (slope left after a step) the next step takes it anew: twice at the median of all
# runs, one pass over the data for all of them, and then for each run where it stands, which costs a pass each. Ours: a
# pass for curvatures costs that for slopes ten times and more (M = n = 100, p = 50), so that slow progress is worth it.
STALE_COMMON, STALE_OWN = 0.1, 0.3
# A step of this relative size that does not bring the slope down is lost in rounding. Ours: far above the precision of
# sums over rows, far below any standard error.
ROUNDING = 1e-9
# The shortest step of step halving. Ours: a convex loss that does not fall by then is not finite nearby.
SHORTEST = 1e-6


@dataclass(frozen=True)
class Solutions:
    """Solutions for R sets of weights.

    Attributes
    ----------
    theta : ndarray (R, P)
        A set of weights whose clients do not identify all coefficients has the solution nearest to its start.
    inverses : ndarray (R, P, P)
        Pseudo-inverses of the weighted Hessians, near the solutions.
    ranks : ndarray (R,)
        Ranks of these.
    reached : ndarray (R,) of bool
        Which were found; the others reached the largest number of steps, or numbers that are not finite.
    """

    theta: Array
    inverses: Array
    ranks: Ints
    reached: Mask


class System(Protocol):
    """R systems of P estimating equations, by their slopes and Hessians.

    Attributes
    ----------
    unit : ndarray (P,)
        The coefficients' natural units, in which steps are measured.
    quadratic : bool
        Whether the curvature is the same everywhere.
    """

    unit: Array
    quadratic: bool

    def slopes(self, theta: Array) -> Array:
        """Return each system's slope at its row of theta (R, P)."""

    def hessians_at(self, points: Array, which: Mask) -> Array:
        """Return the Hessians of some systems at their rows of points (R, P)."""


class Equations:
    """The equations M^-1 sum_m v_mr grad L_m(theta_r) = 0 for R sets of total weights v.

    Parameters
    ----------
    glm : GLM
        The losses.
    total_weights : ndarray (M, R)
        The total weights.
    threads : int
        Threads of the kernel.
    transport : Transport
        By which sums over clients become those over all of them.
    """

    def __init__(self, glm: GLM, total_weights: Array, threads: int = 1, transport: Transport = LOCAL) -> None:
        self.glm, self.threads, self.transport, self.quadratic = glm, threads, transport, glm.quadratic
        self.shares = total_weights / count_of(transport, total_weights)
        # One scale for all places, so that they stop together.
        self.unit = transport.largest(glm.coefficient_sizes[None])

    def slopes(self, theta: Array) -> Array:
        """Return M^-1 sum_m v_mr grad L_m(theta_r) for every run (R, P)."""
        points = np.broadcast_to(theta, (len(self.shares), *theta.shape))
        gradients, shares = self.glm.gradients(points, self.threads), self.shares
        summed = self.transport.total(lambda at: np.einsum("mr,mrp->rp", shares[at], gradients[at]))
        if np.isfinite(summed).all():
            return summed
        # A client without weight may overflow.
        counted = np.where(shares[:, :, None] > 0.0, gradients, 0.0)
        return self.transport.total(lambda at: np.einsum("mr,mrp->rp", shares[at], counted[at]))

    def hessians_at(self, points: Array, which: Mask) -> Array:
        """Return M^-1 sum_m v_mr H_m(points_r) for the runs `which`; runs with the same Hessians share a pass."""
        waiting, out = which.copy(), np.empty((*points.shape, points.shape[1]))
        while waiting.any():
            first = int(np.argmax(waiting))
            same = waiting & (self.quadratic | (points == points[first]).all(axis=1))
            same[first] = True
            out[same] = self._weighted_hessians(points[first], self.shares[:, same])
            waiting &= ~same
        return out[which]

    def _weighted_hessians(self, point: Array, shares: Array) -> Array:
        """Return sum_m shares_mr H_m(point), (R, P, P)."""
        return self.transport.total(lambda at: self.glm.of(at).weighted_curvatures(point, shares[at]))


def weighted_solution(problem: Problem, total_weights: Array, start: Array) -> Array:
    """Solve sum_m v_m grad L_m(theta) = 0 for total weights v (M,), from `start` (P,)."""
    theta: Array = stacked_solutions(problem, total_weights[:, None], start[None]).theta[0]
    return theta


def stacked_solutions(
    problem: Problem, total_weights: Array, start: Array, small: float = SMALL_STEP, like: Solutions | None = None
) -> Solutions:
    """Solve sum_m v_mr grad L_m(theta_r) = 0 for R sets of total weights (M, R); see `solve`."""
    return solve(Equations(problem.glm, total_weights, problem.threads, problem.transport), start, small, like)


@np.errstate(over="ignore", invalid="ignore")
def solve(equations: System, start: Array, small: float = SMALL_STEP, like: Solutions | None = None) -> Solutions:
    """Solve R systems of estimating equations by Newton's method with step halving.

    Parameters
    ----------
    equations : System
        Their slopes and Hessians.
    start : ndarray (R, P)
        Where to begin.
    small : float
        Relative size of a step that ends the search, if the step had a good curvature.
    like : Solutions, optional
        Of a similar problem, whose Hessians are used while they are accurate enough: they cost more than slopes.
    """
    R, P = start.shape
    theta = np.array(start, dtype=np.float64)
    slope = equations.slopes(theta)
    unit, quadratic = equations.unit, equations.quadratic
    stale, moving, exact, lost = (np.full(R, value) for value in (True, True, False, False))
    common = 2 if R > 1 else 0
    inverse, ranks = np.empty((R, P, P)), np.zeros(R, dtype=np.int64)
    if like is not None:
        inverse, ranks = like.inverses.copy(), like.ranks.copy()
        # A rank-deficient inverse leaves directions out.
        stale = ranks < P
    for _ in range(MOST_STEPS):
        which = stale & moving
        if which.any():
            which = moving.copy() if common else which
            points = np.broadcast_to(np.median(theta[which], axis=0), theta.shape) if common else theta
            roots, ranks[which] = roots_of_inverses(equations.hessians_at(points, which))
            inverse[which] = roots @ roots.transpose(0, 2, 1)
        exact |= which & quadratic
        # The exact curvature at this step.
        best = exact | (which & (common == 0))
        newton = np.einsum("rij,rj->ri", inverse, slope)
        newton[~moving] = 0.0
        before = np.einsum("ri,ri->r", newton, slope)
        length = np.abs(newton * unit).max(axis=1) / (1.0 + np.abs(theta * unit).max(axis=1))
        theta, slope, share = _descend(equations, theta, slope, newton, inverse, length > ROUNDING)
        left = np.einsum("ri,rij,rj->r", slope, inverse, slope)
        poor = ~(left <= STALE_OWN**2 * before) & ~best
        # A short step by a poor curvature is no sign of convergence, nor is one that fails for another reason than
        # rounding.
        stuck = share == 0.0
        still = np.where(stuck, poor & (length > ROUNDING), poor | (share * length > small))
        lost |= moving & ~still & stuck & ~(length <= ROUNDING)
        moving &= still
        if not moving.any():
            break
        stale = poor | (~(left <= STALE_COMMON**2 * before) & ~best & (common > 0))
        common = 0 if (moving & stuck).any() else max(common - int(which.any()), 0)
    return Solutions(theta, inverse, ranks, ~(moving | lost))


def _descend(
    equations: System, theta: Array, slope: Array, newton: Array, inverse: Array, halve: Mask
) -> tuple[Array, Array, Array]:
    """Take Newton's steps, those to `halve` halved until the slope, measured by the inverse, has fallen.

    The losses are convex, so that short enough steps decrease it. Where none does, the share is 0.
    """
    before = np.einsum("ri,ri->r", newton, slope)
    share = np.where(np.isfinite(newton).all(axis=1) & (before > 0.0), 1.0, 0.0)
    while True:
        on = share > 0.0
        trial = theta.copy()
        trial[on] -= share[on, None] * newton[on]
        new = equations.slopes(trial) if on.any() else slope
        left = np.einsum("ri,rij,rj->r", new, inverse, new)
        poor = on & ~(np.isfinite(new).all(axis=1) & (left < before))
        if not poor.any():
            return trial, np.where(on[:, None], new, slope), share
        share[poor] /= 2.0
        share[(share < SHORTEST) | (poor & ~halve)] = 0.0
