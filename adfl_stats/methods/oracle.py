"""The oracle that knows the abnormal clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rounds import Plan
from adfl_stats.methods._base import Method, Outcome
from adfl_stats.methods.dfl import DFL

__all__ = ["Oracle"]


@dataclass(frozen=True, eq=False)
class Oracle(Method):
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

    has_limit: ClassVar[bool] = True
    abnormal: Any
    init: Any = None
    balance: bool = False

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "oracle DFL"

    def known_weights(self, labels: pd.Index) -> Array:
        """Return 0 for the abnormal clients and 1 for the others."""
        return np.where(abnormal_mask(self.abnormal, labels), 0.0, 1.0)

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        return DFL(self.known_weights(problem.labels), self.init, self.balance).estimate(problem, plan)
