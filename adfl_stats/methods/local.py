"""Every client alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.engine.rounds import Plan
from adfl_stats.methods._base import Method, Outcome, run_scheme

__all__ = ["Local"]


@dataclass(frozen=True, eq=False)
class Local(Method):
    """No communication: every client descends on its own loss alone.

    ``client_params`` are the clients' own estimates and ``params`` is their mean, without standard errors.
    A client whose rows do not identify the coefficients ends at the solution nearest to its start.

    Parameters
    ----------
    init : array, results, method or None
        Where to begin; see `ADFL`.
    """

    init: Any = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "local"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the descents."""
        # Nothing is sent, so that no lie can matter.
        scheme = Scheme(update=_alone, schedule="still")
        return run_scheme(self, scheme, problem, replace(plan, attack=None))


def _alone(exchange: Exchange, slope: Slope) -> Update:
    def update(theta: Array, step: float) -> Array:
        return theta - step * slope(theta)

    return update
