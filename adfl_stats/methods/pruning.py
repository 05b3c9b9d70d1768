"""IOS and NNA: drop the farthest neighbours, average the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adfl_stats._arguments import whole_number
from adfl_stats._types import InitialEstimates
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rules import Rule
from adfl_stats.methods._base import Combining, check_neighbours

__all__ = ["IOS", "NNA"]


@dataclass(frozen=True, eq=False)
class _Pruning(Combining):
    """Drop b neighbours, take the weighted mean of the rest.

    A client to which W gives no weight of its own joins its d neighbours as one of d + 1. The client
    itself is never dropped.
    """

    b: int
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        whole_number(self.b, "b", 0)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's name and options, for summaries."""
        return {"b": self.b}

    def combination(self, problem: Problem) -> Rule:
        """Return the mean of the clients that are kept.

        Parameters
        ----------
        problem : Problem
            Objective and network.

        Returns
        -------
        Rule
            The kernel's rule of combination.
        """
        check_neighbours(problem, self.name, self.b + 1, f"b + 1 at b = {self.b}, so that one is left")
        return Rule(self.name.lower(), self.b)


@dataclass(frozen=True, eq=False)
class IOS(_Pruning):
    """Iterative outlier scissor of Wu, Chen & Ling (2023, IEEE TSP).

    b times, the neighbour farthest from the weighted mean of those left, the client among them, is
    dropped; then the weighted mean is taken. Analysed for undirected networks with symmetric weights
    (``net.metropolis()``), it runs on directed ones too.

    Parameters
    ----------
    b : int
        The largest number of abnormal neighbours of any client; b + 1 neighbours are needed.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.IOS(4))
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """


@dataclass(frozen=True, eq=False)
class NNA(_Pruning):
    """Nearest neighbour averaging (Farhadkhani, Guerraoui, Gupta, Hoang, Pinot & Stephan 2023, ICML).

    The b neighbours farthest from the client's own estimate are dropped, and the weighted mean of the
    rest and the client is taken. Analysed for complete networks, and by Gaucher et al. for undirected
    ones; it runs on directed ones too.

    Parameters
    ----------
    b : int
        The largest number of abnormal neighbours of any client; b + 1 neighbours are needed.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.NNA(4))
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """
