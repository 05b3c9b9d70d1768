"""Solutions of weighted estimating equations: what a network agrees on as the step tends to zero.

Several sets of weights at once: every pass over the data serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.problem import Problem

__all__ = ["Solutions", "weighted_solution", "weighted_solutions"]


MOST_STEPS = 100
SMALL = 1e-13
# With a curvature this poor (slope left after a step) the next step takes it anew: twice in the middle of all
# runs, one pass over the data for all of them, and then for each run where it stands, which costs a pass each.
STALE_COMMON, STALE_OWN = 0.1, 0.3
# A step of this relative size that does not bring the slope down is lost in rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Solutions:
    """Solutions for R sets of weights.

    Attributes
    ----------
    theta : ndarray (R, P)
        A set of weights whose clients do not identify all coefficients has the solution nearest to its start.
    inverses : ndarray (R, P, P)
        Pseudo-inverses of the weighted curvatures, near the solutions.
    ranks : ndarray (R,)
        Ranks of these.
    """

    theta: Array
    inverses: Array
    ranks: Ints


def weighted_solution(problem: Problem, totals: Array, start: Array) -> Array:
    """Solve sum_m v_m grad L_m(theta) = 0 for total weights v (M,), from `start` (P,)."""
    found: Array = weighted_solutions(problem, totals[:, None], start[None]).theta[0]
    return found


@np.errstate(over="ignore", invalid="ignore")
def weighted_solutions(
    problem: Problem, totals: Array, start: Array, small: float = SMALL, like: Solutions | None = None
) -> Solutions:
    """Solve sum_m v_mr grad L_m(theta_r) = 0 for R sets of weights by Newton's method with step halving.

    Parameters
    ----------
    problem : Problem
        Data and family.
    totals : ndarray (M, R)
        The total weights.
    start : ndarray (R, P)
        Where to begin.
    small : float
        Relative size of a step that ends the search, if the step had a good curvature.
    like : Solutions, optional
        Of a similar problem, whose curvatures serve for as long as they are good: they cost more than slopes.
    """
    R, P = start.shape
    shares = totals / problem.M
    theta = np.array(start, dtype=np.float64)
    slope = _slopes(problem, shares, theta)
    unit = problem.glm.coefficient_sizes
    stale, moving, exact = np.ones(R, dtype=bool), np.ones(R, dtype=bool), np.zeros(R, dtype=bool)
    common = 2 if R > 1 else 0
    inverse, ranks = np.empty((R, P, P)), np.zeros(R, dtype=np.int64)
    if like is not None:
        inverse, ranks = like.inverses.copy(), like.ranks.copy()
        # Beyond its rank an inverse knows no way.
        stale = ranks < P
    for _ in range(MOST_STEPS):
        which = stale & moving
        if which.any():
            which = moving.copy() if common else which
            points = np.broadcast_to(np.median(theta[which], axis=0), theta.shape) if common else theta
            roots, ranks[which] = roots_of_inverses(_curvatures(problem, shares, points, which))
            inverse[which] = roots @ roots.transpose(0, 2, 1)
        exact |= which & problem.glm.quadratic
        # There is no better curvature than this one, for this step at least.
        best = exact | (which & (common == 0))
        newton = np.einsum("rij,rj->ri", inverse, slope)
        newton[~moving] = 0.0
        before = np.einsum("ri,ri->r", newton, slope)
        length = np.abs(newton * unit).max(axis=1) / (1.0 + np.abs(theta * unit).max(axis=1))
        theta, slope, share = _descend(problem, shares, theta, slope, newton, inverse, length > ROUNDING)
        left = np.einsum("ri,rij,rj->r", slope, inverse, slope)
        poor = ~(left <= STALE_OWN**2 * before) & ~best
        # Short steps by a poor curvature prove nothing; nor do steps that cannot be taken, but for rounding.
        stuck = share == 0.0
        moving &= np.where(stuck, poor & (length > ROUNDING), poor | (share * length > small))
        if not moving.any():
            break
        stale = poor | (~(left <= STALE_COMMON**2 * before) & ~best & (common > 0))
        common = 0 if (moving & stuck).any() else max(common - int(which.any()), 0)
    return Solutions(theta, inverse, ranks)


def _descend(
    problem: Problem,
    shares: Array,
    theta: Array,
    slope: Array,
    newton: Array,
    inverse: Array,
    halve: Mask,
) -> tuple[Array, Array, Array]:
    """Take Newton's steps, those to `halve` halved until the slope, measured by the inverse, has fallen.

    The losses are convex: short enough steps always bring it down. Where one does not, its share is 0.
    """
    before = np.einsum("ri,ri->r", newton, slope)
    share = np.where(np.isfinite(newton).all(axis=1) & (before > 0.0), 1.0, 0.0)
    while True:
        on = share > 0.0
        trial = theta.copy()
        trial[on] -= share[on, None] * newton[on]
        new = _slopes(problem, shares, trial) if on.any() else slope
        left = np.einsum("ri,rij,rj->r", new, inverse, new)
        poor = on & ~(np.isfinite(new).all(axis=1) & (left < before))
        if not poor.any():
            return trial, np.where(on[:, None], new, slope), share
        share[poor] /= 2.0
        share[(share < 1e-6) | (poor & ~halve)] = 0.0


def _slopes(problem: Problem, shares: Array, theta: Array) -> Array:
    """Return sum_m shares_mr grad L_m(theta_r) for every run (R, P)."""
    gradients = problem.common_gradients(theta)
    found: Array = np.einsum("mr,mrp->rp", shares, gradients)
    if not np.isfinite(found).all():
        # A client that does not count may overflow.
        found = np.einsum("mr,mrp->rp", shares, np.where(shares[:, :, None] > 0.0, gradients, 0.0))
    return found


def _curvatures(problem: Problem, shares: Array, points: Array, which: Mask) -> Array:
    """Return sum_m shares_mr H_m(points_r) for the runs `which`; runs with the same curvature share a pass."""
    waiting, out = which.copy(), np.empty((*points.shape, points.shape[1]))
    while waiting.any():
        first = int(np.argmax(waiting))
        same = waiting & (problem.glm.quadratic | (points == points[first]).all(axis=1))
        same[first] = True
        out[same] = 0.0
        for clients, matrices in problem.glm.newton_curvature(points[first]):
            # A client whose curvature overflows either does not count, or its slope forbids the step.
            finite = np.where(np.isfinite(matrices), matrices, 0.0)
            out[same] += np.einsum("mr,mij->rij", shares[clients][:, same], finite, optimize=True)
        waiting &= ~same
    return out[which]
