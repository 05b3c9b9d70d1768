"""SLBRN: gradient tracking with medians or trimmed means, reconstructed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats._types import InitialEstimates
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.engine.rules import Rule
from adfl_stats.errors import DivergenceError
from adfl_stats.losses.penalties import Lasso
from adfl_stats.methods._base import Method, Outcome, check_neighbours, check_undirected, one_way_pair, run_scheme
from adfl_stats.methods.tracking import tracked

__all__ = ["SLBRN"]


@dataclass(frozen=True, eq=False)
class SLBRN(Method):
    """SLBRN of Zhang & Wang (2024, Information Sciences 653), reconstructed from its published description.

    Robust sparse M-estimation on undirected networks: "gradient tracking and proximal algorithm are
    combined" with robust rules of aggregation. The authors' own pseudo-code was not at hand; this is the
    recursion that the description suggests, and its details are ours. With AGG the rule over a client's
    neighbours and itself and S the soft threshold,
    theta_m <- S(AGG_k theta_k - alpha z_m, alpha penalty) and z_m <- AGG_k z_k + g_m(new) - g_m(old).

    Medians do not preserve the mean of z, so that errors accumulate on directed networks, where the paper of
    aDFL reports that SLBRN fails to converge: a directed network is refused. With ``force=True`` it runs
    nevertheless, and divergence raises `DivergenceError`. "auto" takes a tenth of the other methods' step.

    Parameters
    ----------
    rule : {"median", "trimmed"}
        SLBRN-M or SLBRN-T; both as in `Bridge`.
    b : int or None
        For "trimmed": the largest number of abnormal neighbours of any client; 2 b + 1 neighbours are needed.
    penalty : float
        L1 penalty of all coefficients, the constant included; zero for none.
    force : bool
        Run on a directed network as well.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.SLBRN())
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """

    rule: str = "median"
    b: int | None = None
    penalty: float = 0.0
    force: bool = False
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        one_of(self.rule, "rule", ("median", "trimmed"))
        in_interval(self.penalty, "penalty", 0.0, np.inf)
        if self.b is not None:
            whole_number(self.b, "b", 0)
        elif self.rule == "trimmed":
            raise ValueError(
                "b is None; rule 'trimmed' needs the largest number of abnormal neighbours of a client. Give b, or use "
                "rule 'median', which needs none"
            )

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "SLBRN-M" if self.rule == "median" else "SLBRN-T"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        directed = one_way_pair(problem) is not None
        if not self.force:
            check_undirected(problem, self.name, weights=False)
        b = (self.b or 0) if self.rule == "trimmed" else 0
        if self.rule == "trimmed":
            check_neighbours(problem, self.name, 2 * b + 1, f"2b + 1 at b = {b}")
        scheme = Scheme(Rule(self.rule, b), self._round, schedule="phases", caution=0.1)
        try:
            return run_scheme(self, scheme, problem, plan, rule=self.rule, b=b, penalty=float(self.penalty))
        except DivergenceError as error:
            if not directed:
                raise
            what = str(error).partition(";")[0]
            raise DivergenceError(
                f"{self.name} does not converge here, as the paper of aDFL reports of SLBRN on directed networks: "
                f"{what}. Medians and trimmed means do not preserve the mean of the tracked gradients; use an "
                "undirected network, or a method for directed ones, such as ad.Bridge()"
            ) from None

    def _round(self, exchange: Exchange, slope: Slope) -> Update:
        return tracked(exchange, slope, Lasso(self.penalty) if self.penalty else None)
