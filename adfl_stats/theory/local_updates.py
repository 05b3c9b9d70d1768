"""Several gradient steps between exchanges: the bias that they add, and what they save.

A client that does k steps of size alpha f_m between two exchanges moves, to first order in its curvature H_m, by
-alpha f_m K_m g_m with K_m = sum_{j < k} (I - alpha f_m H_m)^j, in the place of -alpha f_m g_m. The consensus then
solves sum_m v_m K_m g_m = 0, exactly so for quadratic losses, and moves from the estimate, where sum_m v_m g_m = 0, by
-(sum_m v_m K_m H_m)^-1 sum_m v_m K_m g_m. For small steps K_m is about k (I - alpha (k - 1) / 2 f_m H_m): the bias
grows with alpha (k - 1), and is zero where all clients have the same gradient or the same f_m H_m.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, several, whole_number
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.numerical_error import consensus_error, floored, standard_errors_at
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rounds_needed import rounds_needed
from adfl_stats.inference.record import FitRecord
from adfl_stats.theory.rates import steps_of

__all__ = ["local_updates"]

# What is left of the start when a run ends, in standard errors: the usual tolerance of fits.
WANTED = 0.05
# The bias of a number of steps that may be called best. Ours: as the tolerance, it adds .0025 of the variance.
MOST_BIAS = 0.05


def local_updates(
    problem: Problem, fit: FitRecord, counts: Sequence[int], message: float, step: float | None
) -> pd.DataFrame:
    """Return bias, rounds and cost of each number of local steps; see `DecentralizedGLM.local_updates`."""
    counts = [whole_number(k, "local_steps", 1, 10_000) for k in several(counts, "local_steps", "numbers of steps")]
    message = in_interval(message, "message", 0.0, np.inf)
    if step is None:
        if fit.preconditioned:
            raise ValueError("step is None, and the fit chose its steps in other coordinates; give step, a number")
        step = fit.step
    step = in_interval(step, "step", 0.0, np.inf, open_low=True)
    steps = steps_of(problem, fit)
    theta = weighted_solution(problem, steps.total_weights, fit.params)
    matrices = np.concatenate([part for _, part in problem.glm.curvature(theta)])
    gradients = problem.common_gradients(theta[None])[:, 0]
    unit, start = (
        standard_errors_at(problem, np.tile(theta, (problem.M, 1)), steps.total_weights),
        problem.objective.start(),
    )
    apart = consensus_error(start, unit.se)
    mixing, se = problem.network.second_eigenvalue_estimate.value, floored(unit.se, theta)
    lines = {}
    share, move = steps.total_weights / problem.M, step * steps.factors[:, None, None] * matrices
    power, summed = np.broadcast_to(np.eye(problem.P), matrices.shape), np.zeros_like(matrices)
    for k in range(1, max(counts) + 1):
        summed = summed + power
        power = power - move @ power
        if k not in counts:
            continue
        curvature = np.tensordot(share, summed @ matrices, 1)
        bias = -np.linalg.solve(curvature, np.einsum("m,mij,mj->i", share, summed, gradients))
        contraction = np.eye(problem.P) - step * curvature
        rounds = rounds_needed(contraction, problem.mean(start) - theta, se, apart, mixing, WANTED)
        lines[k] = {"bias": float(np.max(np.abs(bias) / se)), "rounds": rounds, "cost": rounds * (message + k)}
    table = pd.DataFrame.from_dict(lines, orient="index").rename_axis("local_steps")
    fine = table["cost"].where(table["bias"] <= MOST_BIAS)
    return table.assign(best=(table.index == fine.idxmin()) if fine.notna().any() else False)
