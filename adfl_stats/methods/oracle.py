"""The oracle: weighted DFL with known abnormal clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import Array, ClientSet, InitialEstimates
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.methods._base import Method, Outcome
from adfl_stats.methods.dfl import DFL

__all__ = ["Oracle"]


@dataclass(frozen=True, eq=False)
class Oracle(Method):
    """Weighted DFL, equation (4.1), with weight 0 for the abnormal clients and 1 for the others.

    The benchmark of the paper's section 4, which needs the abnormal clients to be known. They still combine and
    send estimates, so that W is unchanged.

    Parameters
    ----------
    abnormal : labels, indices or mask
        The set A.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.
    balance : bool
        Divide each client's step by its influence on the network; see `DFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> res = model.fit(ad.Oracle(sim.abnormal_labels))
    >>> bool(abs(res.params - sim.theta0).max() < 4 * res.bse.max())
    True
    """

    has_limit = True
    abnormal: ClientSet
    init: InitialEstimates | None = None
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
        return DFL(self.known_weights(problem.all_labels), self.init, self.balance).estimate(problem, plan)
