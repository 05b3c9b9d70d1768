"""BRIDGE: robust combination of what the neighbours send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._validation import one_of
from adfl_stats.engine import Plan, iterate
from adfl_stats.methods._base import Outcome, initial_estimates
from adfl_stats.problem import Problem

__all__ = ["Bridge"]


@dataclass(frozen=True, eq=False)
class Bridge:
    """BRIDGE-M of Fang, Yang & Bajwa (2022): a client takes the coordinate-wise median.

    The pool is what the client hears and its own estimate; an even pool has the midpoint of the two
    middle values as its median. The gradient is taken at the median, as in the other methods here.
    It works on directed networks and needs a majority of good clients in most neighbourhoods.

    Parameters
    ----------
    rule : {"median"}
        The rule of combination.
    init : array, results, method or None
        Where to begin; see `ADFL`.
    """

    rule: str = "median"
    init: Any = None

    def __post_init__(self) -> None:
        one_of(self.rule, "rule", ("median",))

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "BRIDGE-M"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion with medians in the place of means."""
        theta, name, runs = initial_estimates(self.init, problem, plan)
        steps = problem.steps(np.ones(problem.M))
        run = iterate(problem, theta, steps, plan, median=True, label=self.name)
        return Outcome(run.theta, steps, [*runs, run], {"start": name}, smooth=False, initial=theta)
