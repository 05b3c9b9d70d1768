"""How many rounds lead from a start to a limit, without running them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from adfl_stats._types import Array
from adfl_stats.engine.numerical_error import StandardErrors, consensus_error, floored
from adfl_stats.engine.problem import Problem

__all__ = ["rounds_needed", "rounds_to_limit"]


# Counts beyond this are reported as infinite. Ours: at a microsecond a round, eleven days.
MOST_ROUNDS = 1e12


def rounds_needed(contraction: Array, off: Array, se: Array, apart: float, modulus: float, wanted: float) -> float:
    """Return the rounds until the effect of the start is below `wanted` standard errors.

    Parameters
    ----------
    contraction : ndarray (P, P)
        I - step Q H, by which a round multiplies the distance of the clients' consensus from its limit; Q are the
        coordinates of the run, H is the weighted curvature of equation (4.1).
    off : ndarray (P,)
        That distance at the start.
    se : ndarray (P,)
        Standard errors, the unit of all distances.
    apart : float
        How much the clients disagree at the start, in standard errors.
    modulus : float
        By how much a round multiplies that, at most.
    wanted : float
        In standard errors.
    """
    values, vectors = np.linalg.eig(contraction)
    if not np.abs(values).max() < 1.0:
        return math.inf
    parts = np.linalg.solve(vectors, off)

    def left(rounds: float) -> float:
        return float(np.max(np.abs((vectors * values**rounds) @ parts) / se))

    agreed = math.log(wanted / max(apart, wanted)) / math.log(modulus) if 0.0 < modulus < 1.0 else 0.0
    return max(_first(lambda rounds: left(rounds) <= wanted), math.ceil(agreed), 1.0)


def rounds_to_limit(
    problem: Problem, limit: Array, step: float, metric: Array | None, unit: StandardErrors, wanted: float
) -> float:
    """Return about how many rounds lead from the objective's own start to within `wanted` of a limit (M, P)."""
    start, P = problem.objective.start(), problem.P
    Q = np.eye(P) if metric is None else np.kron(np.eye(P // len(metric)), metric)
    apart = consensus_error(start, unit.se, problem.transport)
    # Eigenvalues of W are computed only where clients begin apart.
    modulus = problem.network.second_eigenvalue_estimate.value if apart > wanted else 0.0
    contraction = np.eye(P) - step * Q @ np.linalg.inv(unit.inverse)
    centre = problem.mean(limit)
    return rounds_needed(contraction, problem.mean(start) - centre, floored(unit.se, centre), apart, modulus, wanted)


def _first(enough: Callable[[float], bool]) -> float:
    """Return the first whole number that is enough, by doubling and bisection."""
    high = 1.0
    while not enough(high):
        high *= 2.0
        if high > MOST_ROUNDS:
            return math.inf
    low = high / 2.0
    while high - low > 1.0:
        middle = float(round((low + high) / 2.0))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
