"""ClippedGossip: gossip with differences to neighbours clipped at a radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._arguments import in_interval, one_of
from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import ClientSet, InitialEstimates
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rules import Rule
from adfl_stats.methods._base import Combining

__all__ = ["ClippedGossip"]


@dataclass(frozen=True, eq=False)
class ClippedGossip(Combining):
    """ClippedGossip of He, Karimireddy & Jaggi (2022, arXiv 2202.01545): self-centred clipping.

    A client at x_m that hears x_k moves to x_m + sum_k w_mk clip(x_k - x_m, tau_m), where clip shortens a
    vector to the length tau_m. Without a bound this is gossip with W. A client to which W gives no weight
    of its own joins its d neighbours as one of d + 1. The original adapts first and then combines: its
    estimates are ours half a round later. Its momentum (heavy ball) is left out: gradients are exact here.

    Its analysis is for undirected networks with symmetric weights (``net.metropolis()``); on directed ones
    it runs, without that guarantee. Radii are lengths in units of the coefficients.

    Parameters
    ----------
    radius : float or {"second", "declared", "known"}
        A given length (``numpy.inf`` clips nothing); or, each round and for each client, the second
        largest distance to a neighbour (the largest where there is one, the authors' rule without
        parameters); or sqrt(sum_k w_mk r_k^2 / delta) over the closest of the pool, those that are left
        when the farthest with together at least the weight `delta` are set aside; or the same over the
        neighbours that are not in `abnormal`, delta being the weight of those that are (the radius of the
        theory, unknown in practice).
    delta : float or None
        For "declared": the largest total weight of abnormal neighbours, in [0, 1).
    abnormal : labels, indices, mask or None
        For "known": the abnormal clients.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.ClippedGossip("declared", delta=0.2))
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """

    radius: float | str = "second"
    delta: float | None = None
    abnormal: ClientSet | None = None
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.radius, str):
            # Infinity is a radius, and no finite number.
            if not (isinstance(self.radius, float) and self.radius == np.inf):
                in_interval(self.radius, "radius", 0.0, np.inf, open_low=True)
        else:
            one_of(self.radius, "radius", ("second", "declared", "known"))
        for name, wanted in (("delta", "declared"), ("abnormal", "known")):
            given = getattr(self, name) is not None
            if given != (self.radius == wanted):
                raise ValueError(
                    f"{name} is {'given' if given else 'None'} with radius={self.radius!r}; radius={wanted!r} wants "
                    f"{name}, the others do not"
                )
        if self.delta is not None:
            in_interval(self.delta, "delta", 0.0, 1.0, open_high=True)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "ClippedGossip"

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's name and options, for summaries."""
        return {"radius": self.radius if isinstance(self.radius, str) else float(self.radius)}

    def combination(self, problem: Problem) -> Rule:
        """Return the rule that clips differences.

        Parameters
        ----------
        problem : Problem
            Objective and network.

        Returns
        -------
        Rule
            The kernel's rule of combination.
        """
        if self.radius == "second":
            return Rule("clip-second")
        if self.radius == "declared":
            return Rule("clip-declared", value=float(self.delta or 0.0))
        if self.radius == "known":
            return Rule("clip-known", bad=abnormal_mask(self.abnormal, problem.all_labels))
        return Rule("clip", value=float(self.radius))
