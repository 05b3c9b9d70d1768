"""The point at which clients are tested: the estimate, or with a penalty the estimate without it."""

from __future__ import annotations

from adfl_stats._algebra import inverse
from adfl_stats._types import Array
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.numerical_error import curvature_and_meat
from adfl_stats.engine.problem import Problem

__all__ = ["judging_point"]


def judging_point(problem: Problem, params: Array, total_weights: Array, *, smooth: bool) -> Array:
    """Return the point (P,) at which the clients' scores have mean zero under the model.

    A penalised estimate is biased, and the score of every client with it: n_m times the squared bias would make any
    client suspicious that is large enough. Clients are tested at the solution of sum_m v_m grad L_m = 0, with the
    weights of the fit and without the penalty. Methods that solve no equation have one Newton step towards it.

    Parameters
    ----------
    problem : Problem
        With the penalty, if there is one.
    params : ndarray (P,)
        The estimate.
    total_weights : ndarray (M,)
        The clients' total weights v_m.
    smooth : bool
        Whether the estimate solves the penalised equation.
    """
    free, penalty = problem.unpenalised, problem.glm.penalty
    if penalty is None:
        return params
    hessian, _ = curvature_and_meat(free, params, total_weights)
    near: Array = params + problem.mean(total_weights) * inverse(hessian) @ penalty.gradient(params)
    return weighted_solution(free, total_weights, near) if smooth else near
