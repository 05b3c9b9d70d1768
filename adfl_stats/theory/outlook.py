"""Step and rounds for a given tolerance, from the fixed point of the iteration, without running it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adfl_stats._types import Array
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.loop import safe_step
from adfl_stats.engine.numerical_error import (
    StandardErrors,
    consensus_error,
    floored,
    numerical_error,
    standard_errors_at,
)
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.rounds_needed import rounds_needed
from adfl_stats.theory.linearised import Linearised
from adfl_stats.theory.rates import plain_solution

__all__ = ["BIAS_SHARE", "ROUNDS_SHARE", "Outlook", "largest_step", "outlook"]


# Shares of the tolerance for the step's bias, which no round removes, and for what rounds leave. Ours: rounds grow with
# one over the step, but with the logarithm of the second share only.
BIAS_SHARE, ROUNDS_SHARE = 0.8, 0.2


@dataclass(frozen=True)
class Outlook:
    """What to expect of one network, one kind of steps and one set of coordinates.

    Attributes
    ----------
    step : float
        The largest step whose bias is below its share of the tolerance, at most `safe`; NaN if there is none.
    safe : float
        One over the largest curvature of any client.
    rounds : float
        Rounds at this step until what is left of the start is below its share of the tolerance.
    bias : float
        Numerical error of the limit (optimisation plus consensus), in standard errors.
    own : float
        The part of it that clients have from their own last gradient, whatever the network.
    imbalance : float
        Distance, in standard errors, between what the network solves and the solution that counts clients
        by trust and size only.
    gap : float
        1 - |lambda_2(W)|.
    pace : float
        Step times the smallest curvature of the clients' mean loss.
    """

    step: float
    safe: float
    rounds: float
    bias: float
    own: float
    imbalance: float
    gap: float
    pace: float

    @property
    def rounds_with_cuts(self) -> float:
        """Rounds if the first ones have the safe step and each later phase a tenth of the step before it.

        A phase begins at ten times its own bias and ends where that is all that counts.
        """
        if not self.step < self.safe:
            return self.rounds
        most = self.pace * self.safe / self.step
        total, pace = self.rounds * self.pace / most, self.pace
        while pace < most:
            total += math.log(10.0 * BIAS_SHARE / ROUNDS_SHARE) / pace
            pace *= 10.0
        return float(min(math.ceil(total), self.rounds))


def outlook(problem: Problem, steps: ClientSteps, tolerance: float, *, preconditioned: bool = False) -> Outlook:
    """Find step and rounds by the fixed point of the iteration, without running it."""
    start = problem.objective.start()
    point = weighted_solution(problem, steps.total_weights, start.mean(axis=0))
    if preconditioned:
        metric, largest_curvature = problem.coordinates(point)
    else:
        metric, largest_curvature = None, problem.glm.largest_curvatures(point)
    safe = safe_step(steps.factors, largest_curvature)
    unit = standard_errors_at(problem, point[None], steps.total_weights)
    iteration = Linearised(problem, steps, point, safe, metric)
    step, bias = largest_step(lambda step: _bias(iteration.at(step), unit), safe, BIAS_SHARE * tolerance)
    iteration = iteration.at(step)
    off = np.abs(plain_solution(problem, steps, point) - point)
    # With W = 11'/M the clients would differ by this step of theirs alone.
    own = iteration.own_step()
    # An estimate serves: the number is only compared with another.
    second = problem.network.second_eigenvalue_estimate.value
    pace = iteration.step * float(np.linalg.eigvals(iteration.mean_curvature).real.min())
    return Outlook(
        step=iteration.step,
        safe=safe,
        rounds=_rounds(iteration, unit, start, second * (1.0 - pace), ROUNDS_SHARE * tolerance),
        bias=bias,
        own=consensus_error(own, unit.se),
        imbalance=float(np.max(off / unit.se)),
        gap=1.0 - second,
        pace=pace,
    )


def largest_step(bias_at: Callable[[float], float], most: float, wanted: float) -> tuple[float, float]:
    """Return the largest step, at most `most`, whose limit has a bias of `wanted`, and that bias; NaN if none is found.

    The bias is proportional to the step while that is small, so that dividing by the excess converges
    in a few solves.
    """
    step, bias = most, bias_at(most)
    for _ in range(12):
        if bias <= wanted:
            return step, bias
        # Far from the limit of small steps, or where the solve failed, proportion says little: go down quickly.
        ratio = wanted / bias if math.isfinite(bias) else 0.0
        step *= float(np.clip(0.99 * ratio, 0.01, 0.99))
        bias = bias_at(step)
    return math.nan, math.nan


def _bias(iteration: Linearised, unit: StandardErrors) -> float:
    """Return the numerical error of the limit, as fits report it; infinite where there is no limit near."""
    theta, reached = iteration.limit()
    if not reached:
        return math.inf
    return numerical_error(iteration.problem, theta, iteration.steps.total_weights, unit).total


def _rounds(iteration: Linearised, unit: StandardErrors, start: Array, modulus: float, wanted: float) -> float:
    """Return the rounds until the effect of the start is below `wanted` standard errors."""
    if not math.isfinite(iteration.step):
        return math.inf
    contraction = np.eye(iteration.problem.P) - iteration.step * iteration.mean_curvature
    off = iteration.consensus(start.ravel()) - iteration.point
    se = floored(unit.se, iteration.point)
    return rounds_needed(contraction, off, se, consensus_error(start, unit.se), modulus, wanted)
