"""aDFL: small steps for suspicious clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adfl_stats._validation import in_interval, one_of, whole_number
from adfl_stats.engine import Plan
from adfl_stats.evaluation import score_statistics
from adfl_stats.limit import settle
from adfl_stats.methods._base import Method, Outcome, initial_estimates
from adfl_stats.methods.bridge import Bridge
from adfl_stats.problem import Problem

__all__ = ["ADFL", "adaptive_weights"]

Array = NDArray[np.float64]

# lambda where the user gives none, in units of the median suspicion and at most this. Appendix D of the
# paper, with its choice of lambda, is not public: this one is ours.
SCALE = 3.0
# A client that follows the model has a score statistic beyond this quantile with probability .05.
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class ADFL:
    """Adaptive DFL, Algorithm 1 (one stage) and Algorithm 2 (several).

    Each stage measures every client's suspicion s_m at its current estimate, gives it the weight
    omega_m = exp(-lam s_m), equation (4.3) with pi(x) = exp(-x), divides the weights by the largest
    (end of section 4.2; done in logs, so that a large lam cannot underflow) and runs weighted DFL,
    equation (4.1). The next stage starts from the estimates of the last, as the text of section 4.2
    says; Algorithm 2 as printed leaves that assignment out.

    Parameters
    ----------
    lam : float or None
        lambda_n. None takes 3 over the clients' median suspicion (over 1 if the score is smaller than that).
    stages : int
        Number of stages S.
    init : array, results, method or None
        Initial estimates: one row for all clients or one each, another fit, or a method to run first.
        None runs a robust one.
    measure : {"norm", "score"} or None
        Suspicion: the norm of the client's gradient, as in the paper; or by how much the square root of
        Rao's score statistic n_m g' I_m^+ g / phi exceeds that of its chi-square 95 % point, and zero
        below, which allows for the clients' sizes and covariates and leaves ordinary clients their full
        weight. None takes "norm" with a given `lam` and "score" where lambda is chosen here.
    balance : bool
        Divide each client's step by its influence on the network; see `DFL`.
    """

    lam: float | None = None
    stages: int = 3
    init: Any = None
    measure: str | None = None
    balance: bool = False

    def __post_init__(self) -> None:
        if self.lam is not None:
            in_interval(self.lam, "lam", 0.0, np.inf)
        whole_number(self.stages, "stages", 1)
        if self.measure is not None:
            one_of(self.measure, "measure", ("norm", "score"))

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "aDFL"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the stages."""
        measure = self.measure or ("score" if self.lam is None else "norm")
        theta, start, runs = initial_estimates(robust_start() if self.init is None else self.init, problem, plan)
        for stage in range(1, self.stages + 1):
            suspicion = suspicions(problem, theta, measure)
            lam = default_lambda(suspicion, measure) if self.lam is None else self.lam
            steps = problem.steps(adaptive_weights(suspicion, lam), balance=self.balance)
            run = settle(
                problem,
                theta,
                steps,
                plan if stage == self.stages else plan.loosened(),
                label=f"aDFL stage {stage}",
            )
            initial, theta = theta, run.theta
            runs = [*runs, run]
        details = {
            "start": start,
            "lam": float(lam),
            "measure": measure,
            "stages": self.stages,
            "balance": self.balance,
        }
        return Outcome(theta, steps, runs, details, initial=initial)


def robust_start() -> Method:
    """Return the method that initial estimates come from unless the user names another."""
    return Bridge("median")


def default_lambda(suspicion: Array, measure: str) -> float:
    """Return lambda as a multiple of one over the median suspicion.

    The excess score has a scale of its own, on which lambda is fixed, and smaller only while a poor
    start makes all clients look suspicious.
    """
    floor = 1.0 if measure == "score" else np.finfo(float).tiny
    return SCALE / max(float(np.median(suspicion)), floor)


def suspicions(problem: Problem, theta: Array, measure: str) -> Array:
    """Return every client's suspicion at its own estimate, a row of theta (M, P)."""
    if measure == "norm":
        return np.linalg.norm(problem.gradients(theta), axis=1)
    scores, ranks = score_statistics(problem.data, problem.family, theta)
    # A client whose rows say nothing of any parameter has rank zero and score zero.
    usual = np.sqrt(stats.chi2.ppf(LEVEL, np.maximum(ranks, 1)))
    return np.maximum(np.sqrt(scores) - usual, 0.0)


def adaptive_weights(suspicion: Array, lam: float) -> Array:
    """Return exp(-lam s_m) over its largest value.

    Examples
    --------
    >>> adaptive_weights(np.array([1.0, 2.0]), 1e4).tolist()
    [1.0, 0.0]
    """
    return np.exp(-lam * (suspicion - suspicion.min()))
