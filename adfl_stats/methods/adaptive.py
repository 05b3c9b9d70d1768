"""aDFL: small steps for suspicious clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from adfl_stats._validation import in_interval, one_of, whole_number
from adfl_stats.engine import Plan, Run
from adfl_stats.errors import ConvergenceWarning
from adfl_stats.limit import settle
from adfl_stats.methods._base import Method, Outcome, initial_estimates
from adfl_stats.methods.bridge import Bridge
from adfl_stats.methods.trimmed_scores import TrimmedScores
from adfl_stats.problem import Problem
from adfl_stats.suspicion import (
    CLEAR,
    MEASURES,
    adaptive_weights,
    advantage,
    agree_on_trust,
    disputed,
    suspicion_unit,
    suspicions,
    trusted_by,
)
from adfl_stats.tuning import GRID, LambdaPath, can_tune, lambda_path

__all__ = ["ADFL"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# lambda in units of one over the median suspicion where the clients are too small to choose it by their rows.
UNTUNED = 4.0


@dataclass(frozen=True, eq=False)
class ADFL:
    """Adaptive DFL, Algorithm 1 (one stage) and Algorithm 2 (several).

    Each stage measures every client's suspicion s_m at its current estimate, gives it the weight
    omega_m = exp(-lam s_m), equation (4.3) with pi(x) = exp(-x), divides the weights by the largest
    (end of section 4.2; done in logs, so that a large lam cannot underflow) and runs weighted DFL,
    equation (4.1). The next stage starts from the estimates of the last, as the text of section 4.2
    says; Algorithm 2 as printed leaves that assignment out.

    With a number for `lam` this is the paper's method. What the paper leaves open is ours: the choice of
    lambda, the start, and a last stage in which trusted clients count alike.

    Parameters
    ----------
    lam : float, sequence of float or "cv"
        lambda_n; several are compared by cross-validation inside the clients (see `tuning`), and "cv" compares
        a grid of multiples of one over the median suspicion.
    stages : int
        Number of stages S.
    init : array, results, method or None
        Initial estimates: one row for all clients or one each, another fit, or a method to run first.
        None takes the better of BRIDGE-M and `TrimmedScores`, and warns where they disagree.
    measure : {"norm", "score"} or None
        Suspicion: the norm of the client's gradient, as in the paper; or by how much the square root of
        Rao's score statistic n_m g' I_m^+ g / phi exceeds that of its chi-square 95 % point, and zero
        below, which allows for the clients' sizes and covariates and leaves ordinary clients their full
        weight. None takes "norm" with a single number for `lam`, else "score".
    equalise : bool or None
        Whether a last stage gives weight 1 to the clients whose score statistics fit the model, and 0 to those
        that are more probably abnormal than not, given the statistics of all (refitted until that stays). None
        does so unless `lam` is a single number.
    refresh : int or None
        Recompute the weights after every so many rounds, for corruption that begins while the network runs;
        needs `rounds` in the fit, and takes the place of `stages` and of the last stage.
    balance : bool
        Divide each client's step by its influence on the network; see `DFL`.
    """

    # Clients whose numbers overflow have weight 0, and the others are fitted.
    sets_aside: ClassVar[bool] = True
    lam: float | str | Sequence[float] = "cv"
    stages: int = 3
    init: Any = None
    measure: str | None = None
    equalise: bool | None = None
    refresh: int | None = None
    balance: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.lam, str):
            if self.lam != "cv":
                raise ValueError(f"lam is {self.lam!r}; give a number, several to choose from, or 'cv'")
        else:
            values = [self.lam] if np.ndim(self.lam) == 0 else list(self.lam)  # type: ignore[arg-type]
            if not values:
                raise ValueError("lam is empty; give a number, several to choose from, or 'cv'")
            for value in values:
                in_interval(value, "lam", 0.0, np.inf)
        whole_number(self.stages, "stages", 1)
        if self.measure is not None:
            one_of(self.measure, "measure", MEASURES)
        if self.refresh is not None:
            whole_number(self.refresh, "refresh", 1)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "aDFL"

    @property
    def _fixed(self) -> bool:
        return not isinstance(self.lam, str) and np.ndim(self.lam) == 0

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the stages."""
        measure = self.measure or ("norm" if self._fixed else "score")
        theta, start, runs = initial_estimates(robust_start() if self.init is None else self.init, problem, plan)
        begin, trusted = theta.mean(axis=0), list[Mask]()
        suspicion = suspicions(problem, theta, measure)
        choice, path = self._choose(problem, begin, suspicion, measure)
        plans = self._plans(plan)
        equalise = self.refresh is None and (not self._fixed if self.equalise is None else self.equalise)
        for k, stage in enumerate(plans):
            if k > 0:
                suspicion = suspicions(problem, theta, measure)
            lam = choice / suspicion_unit(suspicion, measure) if isinstance(self.lam, str) else choice
            steps = problem.steps(adaptive_weights(suspicion, lam), balance=self.balance)
            trusted.append(trusted_by(steps.weights))
            last = k + 1 == len(plans) and not equalise
            run = settle(problem, theta, steps, stage if last else stage.loosened(), label=f"aDFL stage {k + 1}")
            initial, theta = theta, run.theta
            runs = [*runs, run]
        if equalise:
            bad, dispute = self._flagged(problem, (begin, trusted[0]), (theta.mean(axis=0), trusted[-1]))
            start = dispute | start
            steps = problem.steps(np.where(bad, 0.0, 1.0), balance=self.balance)
            # `initial` stays that of the last stage whose weights lambda gave: Condition 7 speaks of it.
            run = settle(problem, theta, steps, plan, label="aDFL last stage")
            theta = run.theta
            runs = [*runs, run]
        details = {
            **start,
            "lam": float(lam),
            "measure": measure,
            "stages": len(plans),
            "equalise": equalise,
            "balance": self.balance,
        }
        if path is not None:
            details["lambda_path"] = path.to_frame().to_dict("list")
        if self.refresh is not None:
            runs = [*runs[: -len(plans)], _joined(runs[-len(plans) :])]
        return Outcome(theta, steps, runs, details, initial=initial)

    def _choose(
        self, problem: Problem, start: Array, suspicion: Array, measure: str
    ) -> tuple[float, LambdaPath | None]:
        """Return lambda, or for "cv" its multiple of one over the median suspicion, and how it was chosen."""
        if self._fixed:
            return float(self.lam), None  # type: ignore[arg-type]
        unit = suspicion_unit(suspicion, measure)
        multiples = np.array(GRID) if isinstance(self.lam, str) else unit * np.sort(np.asarray(self.lam, float))
        if not can_tune(problem):
            return (UNTUNED if isinstance(self.lam, str) else float(np.median(multiples)) / unit), None
        lams = multiples / unit
        weights = np.stack([adaptive_weights(suspicion, lam) for lam in lams], axis=1)
        path = lambda_path(problem, weights, lams, start, balance=self.balance)
        return float((multiples if isinstance(self.lam, str) else lams)[path.best]), path

    def _flagged(
        self, problem: Problem, start: tuple[Array, Mask], stages: tuple[Array, Mask]
    ) -> tuple[Mask, dict[str, int]]:
        """Flag clients from two estimates and those trusted there; return the flags that count, and a dispute.

        Weights of abnormal clients that are not small draw the stages towards these clients, and the more so the
        further they got: where the signal is weak the start may have seen more clearly.
        """
        (early, at_start), (late, theta) = (agree_on_trust(problem, *given) for given in (start, stages))
        if (early == late).all() or advantage(problem, at_start, theta) <= CLEAR:
            return late, {}
        apart = disputed(early, late)
        if not apart:
            return early, {}
        warnings.warn(
            f"flags disagree about {apart} of {problem.M} clients: {int(early.sum())} seen from the start, "
            f"{int(late.sum())} after the stages. Those from the start count, where the majority fits together better; "
            "see ad.screen(res) and ad.compare_starts(model)",
            ConvergenceWarning,
            stacklevel=4,
        )
        return early, {"disputed": apart}

    def _plans(self, plan: Plan) -> list[Plan]:
        """Return the plans of the stages."""
        if self.refresh is None:
            return [plan] * self.stages
        if plan.rounds is None:
            raise ValueError(f"refresh={self.refresh} needs a number of rounds; pass rounds= to fit")
        whole, rest = divmod(plan.rounds, self.refresh)
        return [replace(plan, rounds=self.refresh)] * whole + ([replace(plan, rounds=rest)] if rest else [])


def robust_start() -> Method:
    """Return the method that initial estimates come from unless the user names another."""
    return TrimmedScores(rival=Bridge("median"))


def _joined(runs: list[Run]) -> Run:
    """Return the runs as one, whose weights changed on the way."""
    whole = Run(runs[-1].theta, runs[-1].step)
    for run in runs:
        whole.trace += [line | {"round": line["round"] + whole.rounds} for line in run.trace]
        whole.rounds += run.rounds
    return whole
