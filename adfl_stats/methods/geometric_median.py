"""Geometric median of what a client hears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Scheme
from adfl_stats.engine.rounds import Plan
from adfl_stats.engine.rules import Rule
from adfl_stats.methods._base import Method, Outcome, run_scheme

__all__ = ["GeometricMedian"]


@dataclass(frozen=True, eq=False)
class GeometricMedian(Method):
    """RFA of Pillutla, Kakade & Harchaoui (2022, IEEE TSP), with the neighbourhood in the place of the server.

    A client takes the z that minimises sum_k w_mk ||z - x_k|| over what it hears and its own estimate, by
    the smoothed iteration of Weiszfeld, begun at their weighted mean. It needs no number of bad
    clients and works on directed networks; half of the weight of a neighbourhood must be good. A client to
    which W gives no weight of its own joins its d neighbours as one of d + 1.

    Parameters
    ----------
    iterations : int
        Of Weiszfeld's iteration, in every round.
    smoothing : float
        Distances below this count as this; in units of the coefficients.
    init : array, results, method or None
        Where to begin; see `ADFL`.
    """

    iterations: int = 16
    smoothing: float = 1e-6
    init: Any = None

    def __post_init__(self) -> None:
        whole_number(self.iterations, "iterations", 1)
        in_interval(self.smoothing, "smoothing", 0.0, np.inf, open_low=True)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "geometric median"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion with geometric medians."""
        rule = Rule("geometric", self.iterations, self.smoothing)
        return run_scheme(self, Scheme(rule, schedule="phases"), problem, plan, iterations=self.iterations)
