"""Fits of the model of clients: it alternates with the estimate that its weights give, and readings are compared.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import client_deviances
from adfl_stats.trust.candidates import Candidate, price_of
from adfl_stats.trust.chance import BEHIND, Chance
from adfl_stats.trust.client_model import SMALL_MOVE, ClientModel, assembled, posterior_of
from adfl_stats.trust.comparison import Proposal, best_reading
from adfl_stats.trust.mixture import ClientScores, normal_run
from adfl_stats.trust.readings import Reading
from adfl_stats.trust.scoring import (
    client_scores,
    null_of,
    resampler,
    robust_centres,
    scores_of_all,
    scores_with_weight,
    summarised,
)
from adfl_stats.trust.selection import MANY_CLIENTS, MANY_COEFFICIENTS, choose
from adfl_stats.trust.spread import Spread, fit_spread
from adfl_stats.trust.summaries import Summaries, has_known_dispersion

__all__ = ["HETEROGENEITY", "MOST_PASSES", "constants_of", "differing_coefficients", "fit_client_model", "model_at"]


HETEROGENEITY = ("auto", "none", "estimate", "intercept")
# Most passes over the data; in the Gaussian model one is enough. Ours: bounds the time.
MOST_PASSES = 6
# Passes in which the kind of model is chosen anew. Ours: afterwards it is held, or kinds of nearly equal
# criteria may alternate.
FREE_PASSES = 3
# Where no client is set aside, a minority behind by no more than this is compared by the rows' own likelihood.
# Ours: about half of how far a corruption of known form is behind where it gains nothing.
REVISITED = 3.0
# The same for further kinds of minority where clients are set aside. Ours: scores are a first-order approximation.
REVISITED_OTHERS = 15.0
# With a lead of this for each client set aside, likelihoods of rows are not compared. Ours: what laws of effects that
# are not normal contribute to a lead is bounded, about 3 a client in simulations (docs/real-clients.md).
OVERWHELMING = 10.0
# The same of the deviance at the pooled estimate, which bounds a client's likelihood ratio. Ours: three times that.
LEAST_DEVIANCE = 30.0
# Least lead of a corruption of known form beside a spread in the Gaussian model, whose effects need not be normal:
# evidence is then called very strong (Kass and Raftery, 1995, Journal of the American Statistical Association 90,
# 773-795). A coherent minority with a shift of its own pays for that in its price (`candidates.UNCERTAIN`): in 28 real
# data sets as they are none leads, while shuffled clients lead by up to 5 in Hsb82 and MathAchieve.
DECISIVE = 10.0
# After a move of the estimate by less, in its own standard errors, the models that lead are fitted again from where
# they were, without a new search. Ours: scores hardly change with such a move, and a search takes most of the time.
CLOSE = 1.0


def fit_client_model(problem: Problem, theta: Array, heterogeneity: str = "auto") -> ClientModel:
    """Fit the model of clients from theta (P,), alternating with the estimate that its weights give.

    Parameters
    ----------
    problem : Problem
        Data and family.
    theta : ndarray (P,)
        Where to begin; a robust estimate, or the pooled one.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        Whether normal clients may differ: if the criterion chooses it, never, always, or in the intercept alone.
    """
    only = differing_coefficients(problem, heterogeneity)
    first = _settled(problem, theta, heterogeneity, only, np.ones(problem.M, dtype=bool))
    if problem.glm.family.linear:
        if not first.undecided:
            return first.model
        return _settled(problem, first.model.theta, heterogeneity, only, first.model.weights > 0.5, minority="").model
    # Laplace's method needs many rows for each coefficient, and a step of it factors a matrix of that size by client.
    if heterogeneity == "none" or problem.P > MANY_COEFFICIENTS or not _doubtful(problem, first):
        return first.model
    return _compared(problem, first, heterogeneity, only)


def _doubtful(problem: Problem, first: _Settled) -> bool:
    """Return whether clients would be set aside, or nearly, by a model whose evidence is not overwhelming."""
    model, members = first.model, first.model.summaries.members
    aside = (model.weights < 0.5) & ~model.summaries.lost
    count = members.count(aside)
    simple, others = (
        min((one.criterion for one in first.candidates if (one.coherent or one.gross) == abnormal), default=np.inf)
        for abnormal in (False, True)
    )
    if not count:
        return others - simple < REVISITED
    if not any(one.spread for one in first.candidates if not (one.coherent or one.gross)):
        if problem.n_clients > MANY_CLIENTS:
            return True
        simple = min(simple, _spread_criterion(model.scores, others + OVERWHELMING * count))
    if np.isinf(simple) or simple - others < OVERWHELMING * count:
        return True
    # Scores at a wrong estimate can be arbitrarily large; a likelihood ratio against the pooled estimate is at most
    # the deviance there.
    pooled = _pooled(problem)
    deviances = client_deviances(problem.glm.data, problem.glm.family, pooled[None])[:, 0]
    return float(members.sum(np.where(aside, deviances / model.null.dispersions, 0.0))) < LEAST_DEVIANCE * count


def _spread_criterion(scores: ClientScores, wanted: float) -> float:
    """Return the criterion of clients that only differ, by one variance of all coefficients, if it may reach `wanted`.

    No spread is tried where no excess variance remains without the abnormal clients.
    """
    plain = normal_run(scores)
    spread = Spread.of(scores, np.arange(scores.P), common=True)
    price = price_of(spread, plain, scores.n_clients)
    return Candidate(*fit_spread(scores, spread, plain, 0.5 * (price - wanted)), price).criterion


def _pooled(problem: Problem) -> Array:
    """Return the pooled estimate (P,).

    Not from the estimate of clients with weight: where their covariates separate the responses it is at infinity.
    """
    start = problem.mean(problem.objective.start())
    return weighted_solution(problem, problem.relative_sizes * problem.objective.counted, start)


def _compared(problem: Problem, first: _Settled, heterogeneity: str, only: Ints | None) -> ClientModel:
    """Return the model whose abnormal clients are those of the best reading of the rows' own likelihood."""
    model, counted = first.model, problem.objective.counted
    pooled = _pooled(problem)
    lost = model.summaries.lost | ~counted
    proposals: dict[str, Proposal] = {}
    for one in first.candidates:
        if one.coherent and one.minority not in proposals and one.criterion < first.best.criterion + REVISITED_OTHERS:
            weights = posterior_of(lost, first.informative, [one])[:, 0]
            theta = weighted_solution(problem, problem.relative_sizes * weights, pooled)
            shift = None if one.runs.shifts is None else one.runs.shifts[0] * model.units
            proposals[one.minority] = Proposal(theta, shift)
    gross = Proposal(model.theta) if first.best.gross else None
    asked = heterogeneity != "auto"
    reading = best_reading(problem, pooled, proposals, only, constants_of(problem), gross, spread=asked)
    if reading is None:
        return model
    agrees = (reading.minority, reading.gross) == (first.best.minority, first.best.gross) and not reading.simple
    labels = has_known_dispersion(problem.glm.data, problem.glm.family)
    if labels and agrees and not reading.law.n_variances and not first.best.spread:
        # Where clients share one parameter, scores of labels near it are as informative as likelihoods and have heavier
        # tails: "binomial-p10-OOD.4" of `simulate.field_designs` has relative efficiency .88 by scores, .83 by
        # readings. The information in counts grows with their mean, without bound, and a minority's is not that at the
        # normal clients' parameter: "poisson-p10-OOD.4" has .94 and .99.
        return replace(model, compared=True)
    posterior = np.where(lost[:, None], np.array([0.0, 0.0, 1.0]), reading.posteriors)
    # A client without a score is taken as normal.
    posterior[~lost & (posterior.sum(axis=1) == 0.0)] = 1.0, 0.0, 0.0
    return _with_posterior(problem, first, posterior, reading, heterogeneity, only)


def _with_posterior(
    problem: Problem, first: _Settled, posterior: Array, reading: Reading, heterogeneity: str, only: Ints | None
) -> ClientModel:
    """Return the model with given probabilities of the clients, at the estimate that they give."""
    weights = posterior[:, 0]
    theta = weighted_solution(problem, problem.relative_sizes * weights, reading.theta)
    summaries = summarised(problem, theta)
    null = null_of(problem, summaries, weights > 0.5)
    scores, units, _ = client_scores(summaries, null)
    # The best models without abnormal clients are not among those that led before.
    near = [] if reading.simple else _leading(first.candidates)
    near = [one.moved(theta - first.model.theta, first.model.units, units) for one in near]
    settings: dict[str, Any] = {"only": only, "constants": constants_of(problem)}
    candidates = choose(scores, robust_centres(scores), heterogeneity, Chance(), near=near, **settings)
    wanted = (reading.minority, reading.gross)
    candidates = sorted(candidates, key=lambda one: (one.minority, one.gross) != wanted)
    return replace(assembled(theta, posterior, candidates, null, summaries, scores, units), compared=True)


@dataclass(frozen=True, eq=False)
class _Settled:
    """The last iterate from one start: the model, its candidates, the clients that have a score."""

    model: ClientModel
    candidates: list[Candidate]
    informative: Mask

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def undecided(self) -> bool:
        """Whether a corruption of known form leads among clients that differ, and not by very strong evidence."""
        simple = min((one.criterion for one in self.candidates if not one.coherent), default=np.inf)
        known = self.best.runs.mechanism is not None
        return known and bool(self.best.spread) and self.best.criterion + DECISIVE > simple


def _settled(
    problem: Problem, theta: Array, heterogeneity: str, only: Ints | None, normal: Mask, *, minority: str | None = None
) -> _Settled:
    """Alternate between the model of clients and the estimate that its weights give.

    With `minority` the model is the best one with that kind of minority; "" is none.
    """
    members, summaries = problem.members, summarised(problem, theta)
    passes: list[list[Candidate]] = []
    before, units_before, chance, close = theta, np.ones(problem.P), Chance(), False
    settings: dict[str, Any] = {"only": only, "constants": constants_of(problem)}
    for k in range(MOST_PASSES):
        null = null_of(problem, summaries, normal)
        scores, units, informative = client_scores(summaries, null)
        hasty = k == 0 and minority is None
        near = [one.moved(theta - before, units_before, units) for one in _leading(passes[-1])] if close else []
        chance = Chance(resampler(problem, theta, summaries, null, normal), chance if close else None)
        centres = robust_centres(scores)
        candidates = choose(scores, centres, heterogeneity, chance, hasty=hasty, near=near, **settings)
        passes.append(candidates)
        if minority is not None:
            candidates = sorted(candidates, key=lambda one: one.minority != minority)
        elif k >= FREE_PASSES:
            candidates = _held(candidates, passes[1:])
        # The probabilities of a reading that is held are its own.
        reading = [one for one in candidates if minority in (None, one.minority)]
        posterior = posterior_of(summaries.lost | ~problem.objective.counted, informative, reading or candidates)
        weights = posterior[:, 0]
        before, theta = theta, weighted_solution(problem, problem.relative_sizes * weights, theta)
        units_before, normal = units, weights > 0.5
        move = float(np.abs((theta - before) / units).max() * np.sqrt(members.count(normal)))
        summaries = summaries.moved(theta - before) if problem.glm.quadratic else summarised(problem, theta)
        close = move < CLOSE and not hasty
        if move < SMALL_MOVE and k > 0:
            break
    scores, _, _ = client_scores(summaries, null, units)
    model = assembled(theta, posterior, candidates, null, summaries, scores, units, move)
    return _Settled(model, candidates, informative)


def _leading(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates that may be the best at an estimate close by, and the best of each kind of components."""
    least = {(one.minority, one.gross): one for one in reversed(candidates)}
    near = [one for one in candidates if one.criterion < candidates[0].criterion + 2.0 * BEHIND]
    return list({id(one): one for one in (*near, *least.values())}.values())


def _held(candidates: list[Candidate], passes: list[list[Candidate]]) -> list[Candidate]:
    """Return the candidates with those first whose kind had the best criterion over all passes.

    Kinds of model with nearly equal criteria can follow one another without end, as each moves the estimate to where
    another one is best.
    """
    behind: dict[tuple[str, str], float] = {}
    for one in candidates:
        gaps = [min((c.criterion for c in every if c.words == one.words), default=np.inf) for every in passes]
        best = [every[0].criterion for every in passes]
        behind[one.words] = float(np.minimum(np.subtract(gaps, best), BEHIND).mean())
    kind = min(behind, key=lambda words: behind[words])
    return sorted(candidates, key=lambda one: one.words != kind)


def model_at(
    problem: Problem, theta: Array, weights: Array, heterogeneity: str = "auto", summaries: Summaries | None = None
) -> ClientModel:
    """Fit the model of clients at an estimate theta (P,) that its weights have no part in, for inference and screening.

    Parameters
    ----------
    problem : Problem
        Data and family.
    theta : ndarray (P,)
        The estimate.
    weights : ndarray (M,)
        The method's own. Clients without weight have no part in the model, and no probability; they are screened by it.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        As in `fit_client_model`.
    summaries : Summaries, optional
        The clients at theta, with the shape of those that have weight; found in a pass over the data if not given.
    """
    only, counted = differing_coefficients(problem, heterogeneity), weights > 0.0
    if summaries is None:
        summaries = summarised(problem, theta, counted)
    normal = counted
    for hasty in (True, False):
        null, scores, units, informative = scores_with_weight(problem, summaries, counted, normal)
        centres, constants = robust_centres(scores), constants_of(problem, counted)
        candidates = choose(scores, centres, heterogeneity, Chance(), hasty=hasty, only=only, constants=constants)
        posterior = posterior_of(summaries.lost | ~problem.objective.counted, informative, candidates)
        posterior[~counted] = 0.0
        normal = posterior[:, 0] > 0.5
    scores = scores_of_all(scores, units, null, summaries, counted)
    return assembled(theta, posterior, candidates, null, summaries, scores, units)


def differing_coefficients(problem: Problem, heterogeneity: str) -> Ints | None:
    """Return the coefficients that clients may differ in; None for all."""
    if heterogeneity != "intercept":
        return None
    constants = constants_of(problem)
    if constants is None:
        raise ValueError(
            "heterogeneity='intercept' needs a constant column in X, and there is none; add one, or use 'auto'"
        )
    return constants


def constants_of(problem: Problem, counted: Mask | None = None) -> Ints | None:
    """Return the coefficients of the constant column, one for each linear predictor; None where there is none.

    A column that clients without weight alone make vary is constant for those that are `counted` (M,).
    """
    constant = problem.glm.constant_column
    if constant is None and counted is not None and problem.members.count(~counted):
        constant = problem.glm.constant_column_of(counted)
    return None if constant is None else np.arange(problem.glm.family.outputs) * problem.glm.p + constant[0]
