"""Solutions of weighted estimating equations: what a network agrees on as the step tends to zero.

Several sets of weights at once: every pass over the data serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adfl_stats._algebra import roots_of_inverses
from adfl_stats.problem import Problem

__all__ = ["Solutions", "weighted_solution", "weighted_solutions"]

Array = NDArray[np.float64]

MOST_STEPS = 100
SMALL = 1e-13
# With a curvature this poor (slope left after a step) the next step takes it anew: twice in the middle of all
# runs, one pass over the data for all of them, and then for each run where it stands, which costs a pass each.
STALE_COMMON, STALE_OWN = 0.1, 0.3


@dataclass(frozen=True)
class Solutions:
    """Solutions for R sets of weights.

    Attributes
    ----------
    theta : ndarray (R, P)
        A set of weights whose clients do not identify all coefficients has the solution nearest to its start.
    inverses : ndarray (R, P, P)
        Inverses of the weighted curvatures, near the solutions.
    """

    theta: Array
    inverses: Array


def weighted_solution(problem: Problem, totals: Array, start: Array) -> Array:
    """Solve sum_m v_m grad L_m(theta) = 0 for total weights v (M,), from `start` (P,)."""
    found: Array = weighted_solutions(problem, totals[:, None], start[None]).theta[0]
    return found


def weighted_solutions(
    problem: Problem, totals: Array, start: Array, small: float = SMALL, inverses: Array | None = None
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
        Relative size of a step that ends the search.
    inverses : ndarray (R, P, P), optional
        Those of a similar problem, which serve for as long as they do: curvatures cost more than slopes.
    """
    R, P = start.shape
    shares = totals / problem.M
    theta = np.array(start, dtype=np.float64)
    slope = _slopes(problem, shares, theta)
    unit = problem.coefficient_sizes
    stale, moving = np.full(R, inverses is None), np.ones(R, dtype=bool)
    inverse = np.empty((R, P, P)) if inverses is None else inverses.copy()
    common = 2
    for _ in range(MOST_STEPS):
        which = stale & moving
        if which.any():
            points = np.broadcast_to(theta[which].mean(axis=0), theta.shape) if common else theta
            inverse[which] = _inverses(_curvatures(problem, shares, points, which))
            common = max(common - 1, 0)
        newton = np.einsum("rij,rj->ri", inverse, slope)
        newton[~moving] = 0.0
        before = np.einsum("ri,ri->r", newton, slope)
        theta, slope, share = _descend(problem, shares, theta, slope, newton)
        size = share * np.abs(newton * unit).max(axis=1)
        moving &= (size > small * (1.0 + np.abs(theta * unit).max(axis=1))) & (share > 0.0)
        if not moving.any():
            break
        left = np.einsum("ri,rij,rj->r", slope, inverse, slope)
        stale = (left > (STALE_COMMON if common else STALE_OWN) ** 2 * before) & (not problem.quadratic)
    return Solutions(theta, inverse)


def _inverses(matrices: Array) -> Array:
    """Return pseudo-inverses (R, P, P)."""
    roots, _ = roots_of_inverses(matrices)
    return np.asarray(roots @ roots.transpose(0, 2, 1))


def _descend(problem: Problem, shares: Array, theta: Array, slope: Array, newton: Array) -> tuple[Array, Array, Array]:
    """Take Newton's steps, each halved until the slope along it has fallen; share 0 where it never does."""
    share = np.ones(len(theta))
    ahead = np.abs(np.einsum("ri,ri->r", newton, slope))
    while True:
        trial = theta - share[:, None] * newton
        new = _slopes(problem, shares, trial)
        # The losses are convex: along a good step the slope in its direction falls.
        along = np.abs(np.einsum("ri,ri->r", newton, new))
        poor = (share > 0.0) & ~(np.isfinite(new).all(axis=1) & ((along < ahead) | (ahead == 0.0)))
        if not poor.any():
            return trial, new, share
        share[poor] /= 2.0
        share[share < 1e-6] = 0.0


def _slopes(problem: Problem, shares: Array, theta: Array) -> Array:
    """Return sum_m shares_mr grad L_m(theta_r) for every run (R, P)."""
    found: Array = np.einsum("mr,mrp->rp", shares, problem.common_gradients(theta))
    return found


def _curvatures(problem: Problem, shares: Array, points: Array, which: NDArray[np.bool_]) -> Array:
    """Return sum_m shares_mr H_m(points_r) for the runs `which`; runs with the same curvature share a pass."""
    waiting, out = which.copy(), np.empty((*points.shape, points.shape[1]))
    while waiting.any():
        point = points[np.argmax(waiting)]
        same = waiting & (problem.quadratic | (points == point).all(axis=1))
        out[same] = 0.0
        for clients, matrices in problem.curvature(point):
            out[same] += np.einsum("mr,mij->rij", shares[clients][:, same], matrices, optimize=True)
        waiting &= ~same
    return out[which]
