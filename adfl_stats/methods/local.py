"""Local estimates, without communication."""

from __future__ import annotations

from dataclasses import dataclass, replace

from adfl_stats._types import Array, InitialEstimates
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.methods._base import Method, Outcome, run_scheme

__all__ = ["Local"]


@dataclass(frozen=True, eq=False)
class Local(Method):
    """No communication: every client descends on its own loss alone.

    ``client_params`` are the clients' own estimates and ``params`` is their mean, without standard errors.
    A client whose rows do not identify the coefficients ends at the solution nearest to its start.

    Parameters
    ----------
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.Local())
    >>> off = abs(res.client_params - sim.theta0).max(axis=1)       # corrupted clients have the worst estimates
    >>> sorted(off.index[off > 1.0]) == sorted(sim.abnormal_labels)
    True
    """

    init: InitialEstimates | None = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "local"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the descents."""
        # Nothing is sent, so that there is nothing to attack.
        scheme = Scheme(update=_alone, schedule="still")
        return run_scheme(self, scheme, problem, replace(plan, attack=None))


def _alone(exchange: Exchange, slope: Slope) -> Update:
    def update(theta: Array, step: float) -> Array:
        return theta - step * slope(theta)

    return update
