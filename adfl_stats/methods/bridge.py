"""BRIDGE: robust aggregation of the neighbours' estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adfl_stats._arguments import one_of, whole_number
from adfl_stats._types import InitialEstimates
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.rules import Rule
from adfl_stats.methods._base import Combining, check_neighbours

__all__ = ["Bridge"]

LETTERS = {"median": "M", "trimmed": "T", "krum": "K", "bulyan": "B"}


@dataclass(frozen=True, eq=False)
class Bridge(Combining):
    """BRIDGE of Fang, Yang & Bajwa (2022, IEEE TSIPN): robust aggregation of neighbours' estimates.

    The pool is what the client hears and its own estimate. The gradient is taken at the screened point,
    as in the other methods here (the authors print it at the client's own estimate; their code does as
    we do). It works on directed networks and needs a majority of normal clients in most neighbourhoods.

    - "median" (BRIDGE-M): the median of each coordinate; an even pool has the midpoint of the two middle
      values.
    - "trimmed" (BRIDGE-T): of each coordinate the neighbours' b largest and b smallest values are
      dropped, and the rest averaged with the client's own. Needs 2 b + 1 neighbours.
    - "krum" (BRIDGE-K): the estimate of the pool with the least sum of squared distances to its
      nearest others, all but b + 2 of the pool. Needs b + 3 neighbours.
    - "bulyan" (BRIDGE-B): Krum picks all but 2 b of the pool, one after the other, and of each coordinate
      of the picks the b largest and b smallest values are dropped. Needs max(4 b, 3 b + 2) neighbours.

    Parameters
    ----------
    rule : {"median", "trimmed", "krum", "bulyan"}
        The rule of combination.
    b : int or None
        The largest number of abnormal neighbours of any client, which must be known; the median does not use it.
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.Bridge("trimmed", b=4))
    >>> plain = model.fit(ad.DFL())
    >>> bool(abs(res.params - sim.theta0).max() < abs(plain.params - sim.theta0).max())
    True
    """

    rule: str = "median"
    b: int | None = None
    init: InitialEstimates | None = None

    def __post_init__(self) -> None:
        one_of(self.rule, "rule", tuple(LETTERS))
        if self.b is not None:
            whole_number(self.b, "b", 0)
        elif self.rule != "median":
            raise ValueError(
                f"b is None; rule {self.rule!r} needs the largest number of abnormal neighbours of a client. "
                "Give b, or use rule 'median', which needs none"
            )

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return f"BRIDGE-{LETTERS[self.rule]}"

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's name and options, for summaries."""
        return {"rule": self.rule} | ({} if self.rule == "median" else {"b": self.b or 0})

    def combination(self, problem: Problem) -> Rule:
        """Return the rule, where every client has neighbours enough for it.

        Parameters
        ----------
        problem : Problem
            Objective and network.

        Returns
        -------
        Rule
            The kernel's rule of combination.
        """
        if self.rule == "median":
            return Rule("median")
        b = self.b or 0
        least, formula = {
            "trimmed": (2 * b + 1, "2b + 1"),
            "krum": (b + 3, "b + 3"),
            "bulyan": (max(4 * b, 3 * b + 2), "max(4b, 3b + 2)"),
        }[self.rule]
        check_neighbours(problem, self.name, least, f"{formula} at b = {b}")
        return Rule(self.rule, b)
