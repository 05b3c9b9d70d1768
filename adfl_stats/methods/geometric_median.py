"""Geometric median of what a client hears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import InitialEstimates
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rules import Rule
from adfl_stats.methods._base import Combining

__all__ = ["GeometricMedian"]


@dataclass(frozen=True, eq=False)
class GeometricMedian(Combining):
    """RFA of Pillutla, Kakade & Harchaoui (2022, IEEE TSP), with the neighbourhood in the place of the server.

    A client takes the z that minimises sum_k w_mk ||z - x_k|| over what it hears and its own estimate, by the smoothed
    iteration of Weiszfeld, begun at their weighted mean. It does not need the number of abnormal clients and works on
    directed networks; normal clients must have more than half of the weight of a neighbourhood. A client to which W
    gives no weight of its own joins its d neighbours as one of d + 1.

    Parameters
    ----------
    iterations : int
        Steps of Weiszfeld's iteration in every round; 4 in the authors' code, more here (ours), which is nearer to
        the exact median.
    smoothing : float
        Lower bound on distances, in units of the coefficients; 1e-5 in the authors' code.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.GeometricMedian())
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """

    iterations: int = 16
    smoothing: float = 1e-6
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        whole_number(self.iterations, "iterations", 1)
        in_interval(self.smoothing, "smoothing", 0.0, np.inf, open_low=True)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "geometric median"

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's name and options, for summaries."""
        return {"iterations": self.iterations}

    def combination(self, problem: Problem) -> Rule:
        """Return the rule of geometric medians.

        Parameters
        ----------
        problem : Problem
            Objective and network.

        Returns
        -------
        Rule
            The kernel's rule of combination.
        """
        return Rule("geometric", self.iterations, self.smoothing)
