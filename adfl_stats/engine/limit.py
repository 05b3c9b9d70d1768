"""The limit theta(infinity) of the iteration, solved for directly; several runs at once.

The limit of weighted DFL, equation (4.1), is the fixed point of a round. Each Newton step solves (I - A) x = move, with
A the linear form of a round (see ``linearised.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from adfl_stats._types import Array
from adfl_stats._warn import warn
from adfl_stats.engine.iteration import PLAIN, iterate
from adfl_stats.engine.linearised import Iteration
from adfl_stats.engine.loop import safe_step
from adfl_stats.engine.numerical_error import numerical_error, standard_errors_at
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Scheme
from adfl_stats.engine.rounds_needed import rounds_to_limit
from adfl_stats.engine.transport import COLUMN_ENTRIES
from adfl_stats.errors import ConvergenceWarning

__all__ = ["Limits", "limits", "settle"]


# Newton's steps; a dozen suffice where there is a limit. (Constants without a source are ours.)
MOST_STEPS = 40
# How far each linear system is solved: a tenth of what the step before left, within these bounds (the forcing terms of
# Eisenstat & Walker 1996, for a derivative that is kept while it is good).
INNER, OUTER = 1e-6, 1e-2
# A step this small relative to the estimates is the last; the remaining error is a hundredth of it, or less.
SMALL_STEP = 1e-11
# With a derivative this poor (residual left after a Newton step) the next one takes it anew: that costs as much as the
# solutions of three to five more systems.
STALE = 0.05
# The shortest share of a Newton step in step halving.
SHORTEST = 1e-4


@dataclass(frozen=True)
class Limits:
    """Fixed points of some runs.

    Attributes
    ----------
    theta : ndarray (M, R, P)
        The fixed points.
    reached : bool
        Whether all of them were found to rounding and are stable under rounds.
    passes : int
        Passes over the data, each for all runs together.
    moved : list of float
        The longest move of a round, by the runs' steps, before each of Newton's steps and at the end.
    """

    theta: Array
    reached: bool
    passes: int
    moved: list[float]


def settle(
    problem: Problem, start: Array, steps: ClientSteps, plan: Plan, *, scheme: Scheme = PLAIN, label: str = ""
) -> Run:
    """Carry weighted DFL, equation (4.1), from `start` (M, P) to where the plan wants it, by its solver.

    Other schemes run their rounds.
    """
    if plan.rounds is None and scheme.weighted and problem.has_curvature:
        problem.find_shared(coordinates=plan.step is None)
    if plan.solver == "rounds" or not problem.has_curvature or not scheme.weighted:
        return iterate(problem, start, steps, plan, scheme=scheme, label=label)
    if plan.journal is not None:
        work = partial(_settle, problem, start, steps, plan, label)
        return plan.journal.run(partial(Run, start, np.nan), start, work)
    return _settle(problem, start, steps, plan, label)


def _settle(problem: Problem, start: Array, steps: ClientSteps, plan: Plan, label: str) -> Run:
    """Solve for the limit, at a step that makes it accurate enough; run rounds where there is none."""
    metric, bound = None, None
    if plan.step is None:
        metric, largest_curvature = problem.coordinates(problem.mean(start), steps.weights)
        step = safe_step(steps.factors, largest_curvature, problem.transport)
        bound = largest_curvature if problem.glm.family.has_global_bound else None
    else:
        step = plan.step
    run = Run(np.array(start, dtype=np.float64), step, began=start, metric=metric)
    runs, theta = Iteration(problem, [steps], step, metric), np.tile(problem.mean(start), (problem.M, 1, 1))
    # The error falls with the step, so a second or third step is the last.
    for _ in range(8):
        with np.errstate(over="ignore", invalid="ignore"):
            points = fixed_points(runs, theta, bound)
        if not points.reached:
            if plan.solver == "limit":
                warn(
                    f"no limit was found at step={step:.4g} ({points.passes} passes over the data); rounds are run "
                    "instead. The step may be beyond the limit of stability, or the network have several closed groups",
                    ConvergenceWarning,
                )
            return iterate(problem, start, steps, replace(plan, solver="rounds"), label=label)
        run.theta, run.step, run.solver = np.ascontiguousarray(points.theta[:, 0]), step, "limit"
        run.rounds += points.passes
        run.record(points.moved[-1], problem.transport)
        unit = standard_errors_at(problem, run.theta, steps.total_weights)
        error = numerical_error(problem, run.theta, steps.total_weights, unit).total
        if metric is None or error <= plan.tolerance:
            break
        shorter = float(np.clip(0.7 * plan.tolerance / error, 1e-3, 0.5))
        step *= shorter
        # To first order the clients' distances from their consensus are proportional to the step.
        centre = problem.consensus(points.theta)
        runs, theta = runs.at(step), centre + shorter * (points.theta - centre)
    if plan.final:
        run.needed = rounds_to_limit(problem, run.theta, run.step, metric, unit, plan.tolerance)
    return run


def limits(
    problem: Problem,
    start: Array,
    steps: Sequence[ClientSteps],
    step: float,
    metric: Array | None = None,
) -> Limits:
    """Return the fixed points of several runs at one step.

    Parameters
    ----------
    problem : Problem
        Data, network and family, which the runs share.
    start : ndarray (M, R, P)
        Where Newton's method begins; only the clients' means count.
    steps : sequence of R ClientSteps
        The runs' trust and steps.
    step : float
        The learning rate alpha.
    metric : ndarray (p, p), optional
        The coordinates of the runs, as `Problem.coordinates` returns them.
    """
    common = np.repeat(problem.mean(start)[None], problem.M, axis=0)
    return fixed_points(Iteration(problem, steps, step, metric), common)


def fixed_points(runs: Iteration, theta: Array, bound: Array | None = None) -> Limits:
    """Return the fixed points of some runs, by Newton's method from theta (M, R, P).

    Parameters
    ----------
    runs : Iteration
        Its curvature, if it has one, is used while it is accurate enough.
    bound : ndarray (M,), optional
        A global bound on the clients' curvature, by which rounds are known to be stable.
    """
    unit, quadratic = runs.problem.coefficient_sizes, runs.problem.glm.quadratic
    move = runs.move(theta)
    farthest = runs.problem.transport.largest
    moved, inner = [runs.problem.largest(np.abs(move))], INNER if quadratic else OUTER
    refresh = runs.curvature is None
    for _ in range(MOST_STEPS):
        if refresh:
            runs.linearise(_points(runs, theta), expected=not runs.problem.glm.family.convex)
        change = runs.solve(move, inner)
        share, before = 1.0, farthest(np.abs(move).max(axis=2))
        while True:
            trial = theta + share * change
            next_move = runs.move(trial)
            after, rounding = farthest(np.abs(next_move).max(axis=2)), _rounding(runs.problem, trial)
            if np.isfinite(after).all() and (after <= (1.0 - 0.25 * share) * before + rounding).all():
                break
            share /= 2.0
            if share < SHORTEST:
                return Limits(theta, False, runs.passes, moved)
        theta, move = trial, next_move
        moved.append(float(after.max()))
        size, reach = share * runs.problem.largest(np.abs(change * unit)), runs.problem.largest(np.abs(theta * unit))
        if size <= SMALL_STEP * (1.0 + reach) or (after <= rounding).all():
            return Limits(theta, _stable(runs, bound), runs.passes, moved)
        left = float((after / before).max())
        refresh = not quadratic and left > STALE
        inner = INNER if quadratic else float(np.clip(0.1 * left, INNER, OUTER))
    return Limits(theta, False, runs.passes, moved)


def _points(runs: Iteration, theta: Array) -> Array:
    """Return where the clients' gradients are taken in a round from theta (M, R, P), in the mean over the runs."""
    centre, largest = theta.mean(axis=1), runs.problem.transport.largest
    top = largest(centre)
    return top if (top == -largest(-centre)).all() else runs.combined(centre)


def _rounding(problem: Problem, theta: Array) -> float:
    """Return the size of a move that is only rounding: a few units in the last place."""
    return 8.0 * float(np.finfo(np.float64).eps) * (1.0 + problem.largest(np.abs(theta)))


def _stable(runs: Iteration, bound: Array | None) -> bool:
    """Return whether the fixed point is stable under rounds.

    It is where no client's step exceeds 2 over its curvature, which its trace bounds; else by power iteration: whether
    the last 20 of 60 rounds of the linear form from a random start grow.
    """
    curvature = runs.linear.traces if bound is None else np.minimum(bound, runs.linear.traces)
    if runs.step * runs.problem.largest(runs.factors.max(axis=1) * curvature) <= 2.0:
        return True
    x, norms = _drawn(runs), []
    for _ in range(3):
        for _ in range(20):
            x = runs.apply(x)
        norms.append(runs.problem.largest(np.abs(x)))
    return norms[2] <= norms[1]


def _drawn(runs: Iteration) -> Array:
    """Return our rows of random numbers for all clients, of which no place has more than some at once."""
    rng, problem, R = np.random.default_rng(0), runs.problem, runs.factors.shape[1]
    M, P, ours = problem.n_clients, problem.P, problem.transport.clients(problem.n_clients)
    each, parts = max(COLUMN_ENTRIES // (R * P), 1), []
    for first in range(0, M, each):
        drawn = rng.normal(size=(min(each, M - first), R, P))
        low, high = np.searchsorted(ours, (first, first + len(drawn)))
        parts.append(drawn[ours[low:high] - first])
    return np.concatenate(parts)
