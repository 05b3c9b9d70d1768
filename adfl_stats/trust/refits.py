"""The model of clients and its estimate again, on draws of the clients: for the bootstrap and for leaving clients out.

A draw is the number of times that each client counts. Clients are fitted as they are, without a copy of their rows:
copies of a client have the same score, and count in the estimating equation as often as they were drawn. Weights are
estimated anew in each draw, by the model of clients that `fit_client_model` has, from the estimate of all clients. Its
parametric bootstrap, which guards against a minority that is none, is not repeated in a draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.equations import Solutions, stacked_solutions
from adfl_stats.engine.problem import Problem
from adfl_stats.trust.chance import Chance
from adfl_stats.trust.client_model import SMALL_MOVE, ClientModel, assembled, posterior_of
from adfl_stats.trust.fitting import MOST_PASSES, constants_of, differing_coefficients
from adfl_stats.trust.scoring import client_scores, null_of, robust_centres, summarised
from adfl_stats.trust.selection import choose
from adfl_stats.trust.summaries import Summaries

__all__ = ["Draw", "refit_draws"]

# Draws that are solved together: every pass over the data serves them all. Ours: enough for matrix products.
TOGETHER = 32


@dataclass(frozen=True, eq=False)
class Draw:
    """One draw, fitted.

    Attributes
    ----------
    counts : ndarray (M,) of int
        How often each client was drawn.
    weights : ndarray (M,)
        The probabilities of being normal; zero for clients that were not drawn.
    model : ClientModel
        The model of the drawn clients, in the order of `clients`.
    clients : ndarray of int
        The drawn clients of ours, each as often as it was drawn.
    """

    counts: Ints
    weights: Array
    model: ClientModel
    clients: Ints


def refit_draws(
    problem: Problem, theta: Array, draws: Sequence[Ints], heterogeneity: str = "auto", components: str | None = None
) -> Iterator[Draw]:
    """Fit the model of clients to draws of the clients, several at a time.

    Parameters
    ----------
    problem : Problem
        Data and family, without a penalty.
    theta : ndarray (P,)
        The estimate of all clients, where the draws begin.
    draws : sequence of ndarray (M,) of int
        How often each client of ours counts.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        As in `fit_client_model`.
    components : str, optional
        The components of the model, as in `ClientModel`; chosen anew in each draw if not given.
    """
    begin = summarised(problem, theta)
    for low in range(0, len(draws), TOGETHER):
        yield from _together(problem, theta, begin, draws[low : low + TOGETHER], heterogeneity, components)


def _together(
    problem: Problem,
    theta: Array,
    begin: Summaries,
    draws: Sequence[Ints],
    heterogeneity: str,
    components: str | None,
) -> list[Draw]:
    """Fit some draws, whose estimates are solved for together."""
    counted = np.asarray(problem.objective.counted)
    only, quadratic = differing_coefficients(problem, heterogeneity), problem.glm.quadratic
    clients = [np.repeat(np.arange(problem.M), counts) for counts in draws]
    points, summaries = np.tile(theta, (len(draws), 1)), [begin] * len(draws)
    weights, models = np.zeros((problem.M, len(draws))), [_Current(components) for _ in draws]
    moving, lost = np.ones(len(draws), dtype=bool), np.zeros(len(draws), dtype=bool)
    like: Solutions | None = None
    for k in range(MOST_PASSES):
        for r in np.flatnonzero(moving):
            drawn = summaries[r].of(clients[r]), counted[clients[r]]
            models[r].fit(problem, *drawn, heterogeneity, only, hasty=k == 0)
            weights[clients[r], r] = models[r].posterior[:, 0]
        total_weights = problem.relative_sizes[:, None] * np.stack(draws, axis=1) * weights
        like = stacked_solutions(problem, total_weights, points, like=like)
        # A draw that does not identify all coefficients has no estimate.
        lost |= moving & ~(like.reached & (like.ranks == problem.P))
        moving &= ~lost
        before, points = points, np.where(moving[:, None], like.theta, points)
        for r in np.flatnonzero(moving):
            step = points[r] - before[r]
            summaries[r] = summaries[r].moved(step) if quadratic else summarised(problem, points[r])
            move = np.abs(step / models[r].units).max() * np.sqrt(models[r].n_normal)
            moving[r] = not (move < SMALL_MOVE and k > 0)
        if not moving.any():
            break
    summaries = [one.of(drawn) for one, drawn in zip(summaries, clients, strict=True)]
    points[lost] = np.nan
    return [
        Draw(counts, weights[:, r].copy(), models[r].assembled(points[r], summaries[r]), clients[r])
        for r, counts in enumerate(draws)
    ]


class _Current:
    """The model of one draw on its way, with given components or those that fit best."""

    def __init__(self, components: str | None) -> None:
        self.components = components

    def fit(
        self,
        problem: Problem,
        summaries: Summaries,
        counted: Mask,
        heterogeneity: str,
        only: Ints | None,
        *,
        hasty: bool,
    ) -> None:
        """Fit the model to the drawn clients at their present estimate."""
        if hasty:
            self.normal = np.ones(len(summaries.ranks), dtype=bool)
        self.null = null_of(problem, summaries, self.normal)
        scores, self.units, informative = client_scores(summaries, self.null)
        centres, constants = robust_centres(scores), constants_of(problem)
        settings: dict[str, Any] = {"hasty": hasty, "only": only, "constants": constants}
        candidates = choose(scores, centres, heterogeneity, Chance(), **settings)
        wanted = [one for one in candidates if self.components in (None, one.words[1])]
        self.candidates = wanted or candidates
        self.posterior = posterior_of(summaries.lost | ~counted, informative, self.candidates)
        self.normal = self.posterior[:, 0] > 0.5
        self.n_normal = summaries.members.count(self.normal)

    def assembled(self, theta: Array, summaries: Summaries) -> ClientModel:
        """Return the model at its estimate."""
        scores, _, _ = client_scores(summaries, self.null, self.units)
        return assembled(theta, self.posterior, self.candidates, self.null, summaries, scores, self.units)
