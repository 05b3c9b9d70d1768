"""What others are held against: every client alone, and the oracle that knows the abnormal clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adfl_stats._clients import abnormal_mask
from adfl_stats.engine import Plan
from adfl_stats.exchange import Exchange, Scheme, Slope, Update
from adfl_stats.methods._base import Outcome, run_scheme
from adfl_stats.methods.dfl import DFL
from adfl_stats.problem import Problem

__all__ = ["Local", "Oracle"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Local:
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


@dataclass(frozen=True, eq=False)
class Oracle:
    """Weighted DFL, equation (4.1), with weight 0 for the abnormal clients and 1 for the others.

    What could be had if the abnormal clients were known: the yardstick of the paper. They still relay what
    they hear, so that the network stays as it is.

    Parameters
    ----------
    abnormal : labels, indices or mask
        The set A.
    init : array, results, method or None
        Where to begin; see `ADFL`.
    balance : bool
        Divide each client's step by its influence on the network; see `DFL`.
    """

    abnormal: Any
    init: Any = None
    balance: bool = False

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "oracle DFL"

    def ignored(self, labels: pd.Index) -> NDArray[np.bool_]:
        """Return the abnormal clients, which have no weight."""
        return abnormal_mask(self.abnormal, labels)

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        weights = 1.0 - abnormal_mask(self.abnormal, problem.data.labels)
        return DFL(weights, self.init, self.balance).estimate(problem, plan)


def _alone(exchange: Exchange, slope: Slope) -> Update:
    def update(theta: Array, step: float) -> Array:
        return theta - step * slope(theta)

    return update
