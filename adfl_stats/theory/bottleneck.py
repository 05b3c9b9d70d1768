"""What makes a run long, the network or the data: rounds if the one or the other were perfect.

Both ask for the same numerical error, solve the same weighted equation and have the same gradients at its solution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats import _kernels
from adfl_stats._types import Array
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.linearised import Curvature, Iteration
from adfl_stats.engine.loop import safe_step
from adfl_stats.engine.numerical_error import StandardErrors, consensus_error, floored, standard_errors_at
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.rounds_needed import rounds_needed
from adfl_stats.theory.outlook import BIAS_SHARE, ROUNDS_SHARE, largest_step

__all__ = ["DATA", "NEITHER", "NETWORK", "Bottleneck", "bottleneck"]

NETWORK, DATA, NEITHER = "network", "data", "neither"
# Ours: where a perfect network or perfect data leave more than this share of the rounds, they are not what makes a run
# long.
LEFT = 0.75


@dataclass(frozen=True)
class Bottleneck:
    """Rounds as things are, and what they would be in two other cases.

    Attributes
    ----------
    rounds : float
        As things are.
    perfect_network : float
        On a network that agrees in one round, W = 11'/M.
    perfect_data : float
        On the same network if every client's loss had the weighted mean Hessian, and steps the coordinates in which
        that is the identity.
    """

    rounds: float
    perfect_network: float
    perfect_data: float

    @property
    def name(self) -> str:
        """Of the two, what would save more rounds; "neither" where both leave nearly all of them."""
        if min(self.perfect_network, self.perfect_data) > LEFT * self.rounds:
            return NEITHER
        return NETWORK if self.perfect_network <= self.perfect_data else DATA


def bottleneck(problem: Problem, steps: ClientSteps, tolerance: float, rounds: float) -> Bottleneck:
    """Compare `rounds`, those of the problem as it is, with what a perfect network or perfect data would need."""
    start = problem.objective.start()
    point = weighted_solution(problem, steps.total_weights, problem.mean(start))
    unit = standard_errors_at(problem, point[None], steps.total_weights)
    cases = _Cases(problem, steps, tolerance, start, point, unit)
    return Bottleneck(rounds, cases.perfect_network(), cases.perfect_data())


@dataclass(frozen=True, eq=False)
class _Cases:
    """The weighted equation's solution, the standard errors there, and where runs begin."""

    problem: Problem
    steps: ClientSteps
    tolerance: float
    start: Array
    point: Array
    unit: StandardErrors

    def perfect_network(self) -> float:
        """Return the rounds on W = 11'/M, with steps that solve the same equation.

        After a combine step all clients have the same estimate, which descends by the mean gradient; a client's own
        last step is all that sets it apart.
        """
        problem, total_weights = self.problem, self.steps.total_weights
        own = total_weights[:, None] * problem.common_gradients(self.point[None])[:, 0]
        safe = safe_step(total_weights, problem.glm.largest_curvatures(self.point), problem.transport)
        per_step = consensus_error(own, self.unit.se)
        step, _ = largest_step(lambda step: step * per_step, safe, BIAS_SHARE * self.tolerance)
        curvature = np.linalg.inv(self.unit.inverse)
        return self._rounds(np.eye(problem.P) - step * curvature, problem.mean(self.start), 0.0, 0.0)

    def perfect_data(self) -> float:
        """Return the rounds on the network as it is if all clients had the same curvature, seen as the identity."""
        problem, M, P = self.problem, self.problem.M, self.problem.P
        own = self.steps.factors[:, None] * problem.common_gradients(self.point[None])[:, 0] @ self.unit.inverse
        rate = float(problem.mean(self.steps.total_weights))
        # In these coordinates the mean curvature M^-1 sum_m v_m H_m is the identity, and each client's is 1 / rate.
        same = np.zeros((M, P, -(-P // 4) * 4))
        same[:, np.arange(P), np.arange(P)] = 1.0 / rate
        runs = Iteration(problem, [self.steps], 1.0)
        products = _kernels.GramLoss(same, np.zeros((M, P)), True)
        runs.curvature = Curvature(products, np.eye(P)[None], np.full(M, P / rate))

        def bias(step: float) -> float:
            away = runs.at(step).solve(-step * own[:, None], 1e-8)[:, 0]
            return float(np.max(np.abs(problem.mean(away)) / self.unit.se)) + consensus_error(away, self.unit.se)

        safe = rate / float(self.steps.factors.max())
        step, _ = largest_step(bias, safe, BIAS_SHARE * self.tolerance)
        apart, second = consensus_error(self.start, self.unit.se), problem.network.second_eigenvalue_estimate.value
        return self._rounds(
            (1.0 - step) * np.eye(P), problem.consensus(self.start), apart, second * (1.0 - min(step, 1.0))
        )

    def _rounds(self, contraction: Array, begin: Array, apart: float, modulus: float) -> float:
        if not np.isfinite(contraction).all():
            return float("inf")
        se = floored(self.unit.se, self.point)
        return rounds_needed(contraction, begin - self.point, se, apart, modulus, ROUNDS_SHARE * self.tolerance)
