"""Several gradient steps between exchanges: the bias that they add, and what they save.

A client that does k steps of size alpha f_m between two exchanges moves, to first order in its curvature H_m, by
-alpha f_m K_m g_m with K_m = sum_{j < k} (I - alpha f_m H_m)^j, in the place of -alpha f_m g_m. The network's limit,
x_m from the estimate, where sum_m v_m g_m = 0, solves

    x_m = (I - alpha f_m K_m H_m) (W x)_m - alpha f_m K_m g_m,

exactly so for quadratic losses. The bias is the clients' mean of x less that for k = 1. On a complete network it is
-(sum_m v_m K_m H_m)^-1 sum_m v_m K_m g_m; on others clients get about k times as far apart between exchanges as well,
which moves their mean by as much in order. For small steps K_m is about k (I - alpha (k - 1) / 2 f_m H_m): the bias
grows with alpha (k - 1), and is zero where all clients have the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, several, whole_number
from adfl_stats._types import Array
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.krylov import gmres
from adfl_stats.engine.linearised import limit_preconditioner
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
# How far the network's limit is solved for, relative to what it moves by. Ours.
ACCURACY = 1e-9


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
    modulus, se = problem.network.second_eigenvalue_estimate.value, floored(unit.se, theta)
    lines, one = {}, np.full(problem.P, np.inf)
    share, move = steps.total_weights / problem.M, step * steps.factors[:, None, None] * matrices
    power, summed = np.broadcast_to(np.eye(problem.P), matrices.shape), np.zeros_like(matrices)
    for k in range(1, max(counts) + 1):
        # Where a step is beyond stability powers grow until they overflow, and there is no limit.
        with np.errstate(over="ignore", invalid="ignore"):
            summed = summed + power
            power = power - move @ power
        if k not in {1, *counts}:
            continue
        bias, rounds = np.inf, np.inf
        if np.isfinite(power).all():
            curvature = step * np.tensordot(share, summed @ matrices, 1)
            contraction = np.eye(problem.P) - curvature
            rounds = rounds_needed(contraction, problem.mean(start) - theta, se, apart, modulus, WANTED)
        if np.isfinite(rounds):
            drift = step * steps.factors[:, None] * np.einsum("mij,mj->mi", summed, gradients)
            moved = problem.mean(_limit(problem, power, drift, curvature))
            one = moved if k == 1 else one
            bias = float(np.max(np.abs(moved - one) / se))
        if k in counts:
            lines[k] = {"bias": bias, "rounds": rounds, "cost": rounds * (message + k)}
    table = pd.DataFrame.from_dict(lines, orient="index").rename_axis("local_steps")
    fine = table["cost"].where(table["bias"] <= MOST_BIAS)
    return table.assign(best=(table.index == fine.idxmin()) if fine.notna().any() else False)


def _limit(problem: Problem, power: Array, drift: Array, mean: Array) -> Array:
    """Return the fixed point (M, P) of x -> S_m (W x)_m - drift_m, S_m being `power` (M, P, P).

    `mean` (P, P) is about I - S on the consensus.
    """
    W, before = problem.network.W, limit_preconditioner(problem, mean[None])

    def system(x: Array) -> Array:
        return np.asarray(x - np.einsum("mij,mj->mi", power, W @ x))

    return gmres(system, -drift, lambda r: before(r[:, None])[:, 0], ACCURACY)
