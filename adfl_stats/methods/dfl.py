"""Decentralised federated learning, plain and with given weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from adfl_stats._arguments import float64_array, listing
from adfl_stats._types import Array, ClientWeights, InitialEstimates
from adfl_stats.engine.limit import settle
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.methods._base import Method, Outcome, initial_estimates
from adfl_stats.methods.descents import check_descent, said_of, scheme_of

__all__ = ["DFL"]


@dataclass(frozen=True, eq=False)
class DFL(Method):
    """Standard DFL, equation (3.1), or weighted DFL, equation (4.1), with given weights.

    Parameters
    ----------
    weights : array, Series, dict or None
        omega_m in [0, 1] for each client: in the order of the data, or by label. With 1 for the clean
        clients and 0 for the others this is the oracle's iteration. None gives every client weight 1.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.
    balance : bool
        Divide each client's step by its influence on the network, so that all count alike also where
        SE(W) is not zero (ours; the paper assumes that SE(W) is small).
    clip : float or None
        The greatest length of a client's gradient, in the user's coordinates; longer ones are shortened to it. The
        paper assumes bounded gradients (section 6). In the limit clients then count as in Huber's M-estimation, the
        weight of a client with gradient g being omega_m min(1, clip / ||g||); there are no standard errors where a
        gradient is shortened at the estimate. Gradients of rows are clipped by ``losses.PrivateGLM(clip=, noise=0.0)``.
    local_steps : int
        Gradient steps between two exchanges, 1 in the paper. With k steps of size alpha the limit moves by about
        alpha (k - 1) / 2 H^-1 sum_m v_m f_m H_m g_m on a complete network, which is zero where clients are alike;
        ``model.local_updates(res)`` has it for given data and network, with the rounds that are saved.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> res = model.fit(ad.DFL())
    >>> weights = {label: float(label not in sim.abnormal_labels) for label in data.labels}
    >>> weighted = model.fit(ad.DFL(weights))
    >>> bool(abs(weighted.params - sim.theta0).max() < abs(res.params - sim.theta0).max())
    True
    """

    weights: ClientWeights | None = None
    init: InitialEstimates | None = None
    balance: bool = False
    clip: float | None = None
    local_steps: int = 1

    def __post_init__(self) -> None:
        check_descent(self.clip, self.local_steps)

    @property
    def has_limit(self) -> bool:
        """Whether its rounds are those of equation (4.1)."""
        return self.clip is None and self.local_steps == 1

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "DFL" if self.weights is None else "weighted DFL"

    def known_weights(self, labels: pd.Index) -> Array:
        """Return the given weights."""
        return client_weights(self.weights, labels)

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        steps = problem.steps(problem.members.ours(self.known_weights(problem.all_labels)), balance=self.balance)
        theta, start, runs = initial_estimates(self.init, problem, plan)
        scheme = scheme_of(problem, self.clip, self.local_steps)
        run = settle(problem, theta, steps, plan.after(runs), scheme=scheme, label=self.name)
        details = {**start, "balance": self.balance, **said_of(problem, run.theta, steps, scheme)}
        return Outcome(run.theta, steps, [*runs, run], details, smooth=not details.get("clipped"), initial=theta)


def client_weights(weights: ClientWeights | None, labels: pd.Index) -> Array:
    """Return one weight per client, in the order of `labels`."""
    if weights is None:
        return np.ones(len(labels))
    if isinstance(weights, Mapping):
        weights = pd.Series(weights)
    if isinstance(weights, pd.Series):
        absent = [label for label in labels if label not in weights.index]
        if absent:
            raise ValueError(f"weights lacks the clients {listing(absent)}; give every client a weight in [0, 1]")
        unknown = [label for label in weights.index if label not in labels]
        if unknown:
            raise ValueError(f"weights names clients that the data do not have: {listing(unknown)}; leave them out")
        weights = weights.loc[labels]
    values = float64_array(weights, "weights")
    if values.shape != (len(labels),):
        raise ValueError(
            f"weights has shape {values.shape}; one weight for each of the {len(labels)} clients is wanted"
        )
    if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
        raise ValueError(f"weights must lie in [0, 1]; found {values.min():g} to {values.max():g}")
    if not values.any():
        raise ValueError("weights are all zero; at least one client needs a positive weight")
    return values
