"""A fit again on other sets of its clients, with their weights estimated anew; the network's limit each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._progress import progress_bar
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import one_pass
from adfl_stats.engine.equations import stacked_solutions
from adfl_stats.engine.problem import Problem
from adfl_stats.inference.at_estimate import PARTS, AtEstimate
from adfl_stats.inference.by_row import ByRowSums
from adfl_stats.inference.clustered import gather_clustered
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.record import FitRecord
from adfl_stats.inference.sites import model_of
from adfl_stats.losses.point_sums import sums_at
from adfl_stats.methods import Method
from adfl_stats.trust.refits import TOGETHER, Draw, refit_draws
from adfl_stats.trust.weights import trusted_by

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results

__all__ = ["Refit", "Refitter"]


@dataclass(frozen=True, eq=False)
class Refit:
    """An estimate on some of the clients.

    Attributes
    ----------
    counts : ndarray of int
        How often each of all clients counts.
    theta : ndarray (P,)
        The estimate; NaN where the clients do not identify all coefficients.
    trusted : ndarray of bool
        Which of all clients are not down-weighted.
    weights, total_weights : ndarray (M,)
        Of the clients that are ours: omega_m, and the total weights v_m of the estimating equation, each client as
        often as it counts.
    spread : ndarray (P, P) or None
        T, where the clients differ.
    dispersion : float
        The typical noise level.
    """

    counts: Ints
    theta: Array
    trusted: Mask
    weights: Array
    total_weights: Array
    spread: Array | None
    dispersion: float


@dataclass(frozen=True, eq=False)
class Refitter:
    """How to fit again: the problem, the method, the estimate, and whether clients may differ.

    All places that hold clients of the problem make the same fits together.

    Where the fit asked the data whether clients differ, its answer holds for all draws, and how much they do is
    estimated anew: copies in a draw would bias the test of heterogeneity. Where the link is not linear, the
    same is true of whether there are abnormal clients: that was decided by the likelihood of all rows.
    """

    problem: Problem
    method: Method
    params: Array
    heterogeneity: str
    components: str | None

    @classmethod
    def of(cls, res: Results, what: str, problem: Problem) -> Refitter:
        """Return what a fit of a problem needs to be made again; ValueError where a draw has no weights."""
        model, recipe = model_of(res, what)
        method = recipe.method
        if not method.models_clients and method.known_weights(problem.all_labels) is None:
            raise ValueError(
                f"{what} estimates the weights of the model of clients anew, and {method.name} as fitted has others; "
                "fit ad.ADFL(), or ad.DFL(weights=res.client_weights) to take the weights as given"
            )
        spread = recipe.heterogeneity
        if spread == "auto":
            spread = "estimate" if res.record.clients.differ else "none"
        components = None if model.family.linear else res.record.clients.components
        return cls(problem, method, res.params.to_numpy(), spread, components)

    def each(self, draws: Sequence[Ints], *, progress: bool = False, label: str = "fits") -> Iterator[Refit]:
        """Yield the fits on draws of all clients, in their order."""
        bar = progress_bar(len(draws), label, "fit") if progress else None
        try:
            for low in range(0, len(draws), TOGETHER):
                for one in self._together(draws[low : low + TOGETHER]):
                    yield one
                    if bar is not None:
                        bar.update()
        finally:
            if bar is not None:
                bar.close()

    def _together(self, draws: Sequence[Ints]) -> list[Refit]:
        """Fit some draws; one pass over the data serves all of them where it can."""
        problem, method, ours = self.problem, self.method, [self.problem.members.ours(counts) for counts in draws]
        models: list[Draw | None] = [None] * len(draws)
        if method.models_clients:
            models = list(refit_draws(problem.unpenalised, self.params, ours, self.heterogeneity, self.components))
        steps = [self._weights(counts, model) for counts, model in zip(ours, models, strict=True)]
        weights, total_weights = (np.stack(columns, axis=1) for columns in zip(*steps, strict=True))
        trusted = problem.members.gather(trusted_by(weights, problem.members))
        starts = np.stack([self.params if one is None else one.model.theta for one in models])
        starts = np.where(np.isfinite(starts), starts, self.params)
        solutions = stacked_solutions(problem, total_weights, starts)
        known = solutions.reached & (solutions.ranks == problem.P)
        theta = np.where(known[:, None], solutions.theta, np.nan)
        out = []
        for r, (counts, model, point) in enumerate(zip(draws, models, theta, strict=True)):
            spread, phi = None, 1.0
            if model is not None:
                point = point if np.isfinite(model.model.theta).all() else np.full_like(point, np.nan)
                spread, phi = model.model.spread if model.model.differ else None, model.model.null.dispersion
            out.append(Refit(counts, point, trusted[:, r], *steps[r], spread, phi))
        return out

    def precision(self, record: FitRecord, one: Refit, cov_type: str) -> tuple[Array, Array]:
        """Return standard errors and degrees of freedom of a refit by a kind of covariance, given its weights."""
        glm, P, members = self.problem.glm, self.problem.P, self.problem.members
        if not np.isfinite(one.theta).all():
            return np.full(P, np.nan), np.full(P, np.nan)
        slope = None if glm.penalty is None else glm.penalty.gradient(one.theta)
        parts_of_ours = members.transport.batches()
        point = sums_at(
            glm.data, glm.family, one.theta, one.total_weights, total=members.total, parts=parts_of_ours, slope=slope
        )
        point = point.penalised(glm.penalty, one.theta, float(members.mean(one.total_weights)))
        parts: dict[str, Any] = dict.fromkeys(PARTS) | {"weighted_sums": point.weighted_sums}
        if cov_type.startswith("CR"):
            parts["clustered"] = gather_clustered(
                glm.data,
                one.total_weights,
                point,
                smooth=True,
                spread=one.spread,
                dispersion=one.dispersion,
                ridge=glm.ridge,
                members=members,
            )
        elif cov_type.startswith("HC"):
            rows = ByRowSums(
                glm.data,
                glm.family,
                one.theta,
                one.total_weights,
                point.weighted_sums,
                smooth=True,
                slope=slope,
                members=members,
            )
            (parts["by_row"],) = one_pass(glm.data, rows)
        there = AtEstimate.of_parts(parts)
        seen = replace(record, total_weights=one.total_weights, members=members, at_estimate=there)
        inference = Inference(seen, cov_type)
        return inference.standard_errors(np.eye(P)), inference.df(np.eye(P))

    def _weights(self, counts: Ints, draw: Draw | None) -> tuple[Array, Array]:
        """Return the weights of a draw, of the clients that are ours, and its total weights."""
        problem, method, shares = self.problem, self.method, None
        if draw is None:
            known = method.known_weights(problem.all_labels)
            assert known is not None
            weights = problem.members.ours(known) * (counts > 0)
        else:
            weights = draw.weights
            if problem.weighting == "random-effects":
                shares = np.ones(problem.M)
                shares[draw.clients] = draw.model.information_shares
        steps = problem.steps(weights, balance=method.balance, shares=shares)
        return weights, steps.total_weights * counts
