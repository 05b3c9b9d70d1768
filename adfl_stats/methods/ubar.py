"""UBAR: average the neighbours whose estimates are near and fit the client's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval
from adfl_stats._types import Array, InitialEstimates
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.engine.rules import Rule
from adfl_stats.losses.client_sums import predictors_at
from adfl_stats.methods._base import Method, Outcome, check_neighbours, run_scheme

__all__ = ["UBAR"]


@dataclass(frozen=True, eq=False)
class UBAR(Method):
    """UBAR of Guo, Zhang, Yu, Xie, Ma, Xiang & Liu (2022, IEEE TCSVT; also called MOZI).

    Of the estimates that a client hears, the share `near` that is nearest to its own is looked at; of
    these, the ones that fit its own data no worse than its own estimate are averaged (or the one that
    fits best, if none does), and the client moves to a mean of this and its own estimate. It works on
    directed networks. A client with corrupted data selects by these: UBAR is a defence against false messages
    rather than against corrupted rows. Every round evaluates losses at the neighbours' estimates and runs
    in Python; it is slower than the other methods here.

    Parameters
    ----------
    near : float
        The share of neighbours considered, at most the share of normal ones, in (0, 1]; at least one neighbour is.
        The default (ours) allows for up to 60 % of abnormal neighbours.
    own : float
        The weight of the client's own estimate, in [0, 1).
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> attack = ad.attacks.SignFlip([0, 1, 2, 3], scale=5.0)
    >>> res, plain = (model.fit(one, step=0.1, rounds=40, attack=attack) for one in (ad.UBAR(), ad.DFL()))
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """

    near: float = 0.4
    own: float = 0.5
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        in_interval(self.near, "near", 0.0, 1.0, open_low=True)
        in_interval(self.own, "own", 0.0, 1.0, open_high=True)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "UBAR"

    @property
    def needs(self) -> str:
        """A client compares its losses at what it hears."""
        return "losses"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        check_neighbours(problem, self.name, 1, "one at least")

        def build(exchange: Exchange, slope: Slope) -> Update:
            def update(theta: Array, step: float) -> Array:
                heard = exchange.heard(theta)
                exchange.tell(1, theta.shape[1])
                at = np.stack([self._combined(problem, exchange, heard, m) for m in range(problem.M)])
                return at - step * slope(at)

            return update

        # The pools of the median: the client's own estimate first, then its neighbours'.
        scheme = Scheme(Rule("median"), build, schedule="phases")
        return run_scheme(self, scheme, problem, plan, near=float(self.near))

    def _combined(self, problem: Problem, exchange: Exchange, heard: Array, m: int) -> Array:
        """Return what client m makes of what it hears."""
        pool = heard[exchange.indices[exchange.indptr[m] : exchange.indptr[m + 1]]]
        mine, others = pool[0], pool[1:]
        distance = np.linalg.norm(others - mine, axis=1)
        nearest = np.argsort(distance, kind="stable")[: max(1, int(self.near * len(others)))]
        own, *fits = client_losses(problem, m, np.vstack([mine, others[nearest]]))
        better = np.array(fits) <= own
        chosen = nearest[better] if better.any() else nearest[[int(np.argmin(fits))]]
        return np.asarray(self.own * mine + (1.0 - self.own) * others[chosen].mean(axis=0))


def client_losses(problem: Problem, m: int, thetas: Array) -> Array:
    """Return client m's loss at each row of thetas (c, P), up to a term free of it."""
    if not problem.has_curvature:
        own: Any = problem.objective
        return np.array([own.loss(m, theta) for theta in thetas])
    data, family = problem.glm.data, problem.glm.family
    total = np.zeros(len(thetas))
    for rows in data.blocks(m):
        y, etas = data.y[rows], predictors_at(data, family, thetas, rows)
        losses = np.array([family.loss(eta, y) for eta in etas]) if etas.ndim == 3 else family.loss(etas, y)
        total += losses @ data.weights_of(rows)
    penalty = problem.glm.penalty
    return total / data.totals[m] + (0.0 if penalty is None else penalty.value(thetas))
