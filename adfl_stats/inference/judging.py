"""The point at which clients are tested: the estimate, or with a penalty the estimate without it."""

from __future__ import annotations

import numpy as np

from adfl_stats._algebra import inverse
from adfl_stats._types import Array
from adfl_stats.engine.equations import Solutions, stacked_solutions
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.point_sums import WeightedSums

__all__ = ["judging_point"]

# Relative size of the step that ends Newton's method. Ours: the scores' mean is then far below their standard errors.
PRECISION = 1e-9


def judging_point(
    problem: Problem, params: Array, total_weights: Array, unpenalised: WeightedSums, *, smooth: bool
) -> Array:
    """Return the point (P,) at which the clients' scores have mean zero under the model.

    A penalised estimate is biased, and the score of every client with it: its square grows with n_m, so that the score
    test would reject for every client that is large enough. Clients are tested at the solution of
    sum_m v_m grad L_m = 0, with the weights of the fit and without the penalty. Methods that solve no equation have one
    Newton step towards it.

    Parameters
    ----------
    problem : Problem
        With the penalty, if there is one.
    params : ndarray (P,)
        The estimate.
    total_weights : ndarray (M,)
        The clients' total weights v_m.
    unpenalised : WeightedSums
        The sums over rows at the estimate, without the penalty.
    smooth : bool
        Whether the estimate solves the penalised equation.
    """
    penalty = problem.glm.penalty
    if penalty is None:
        return params
    bread = inverse(unpenalised.hessian)
    near: Array = params + problem.mean(total_weights) * bread @ penalty.gradient(params)
    if not smooth:
        return near
    if problem.glm.quadratic:
        # Newton's step is exact: no further pass over the rows.
        slope = problem.members.sum_products(total_weights, unpenalised.gradients) / problem.n_clients
        return np.asarray(params - bread @ slope)
    # The curvature at the estimate serves while it is accurate enough; slopes cost less.
    like = Solutions(near[None], bread[None], np.array([problem.P]), np.ones(1, dtype=bool))
    solution = stacked_solutions(problem.unpenalised, total_weights[:, None], near[None], PRECISION, like)
    return np.asarray(solution.theta[0])
