"""The model of clients, fitted: probabilities of following the majority, spread between clients.

theta_m = theta + u_m with u_m ~ (0, T) for normal clients; a coherent minority shares another parameter; gross
clients are far away, each in its own direction. The probability of being normal, given the scores of all, is the
client's weight omega_m in equation (4.1). It measures fit to the majority, not whether data are corrupt. The paper's
normal clients have T = 0; the rest is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import ClientMoments
from adfl_stats.trust.mixture import COHERENT, GROSS, NORMAL, ClientScores, standardising
from adfl_stats.trust.null import Null, calibrate
from adfl_stats.trust.resampling import resampled_scores
from adfl_stats.trust.selection import BEHIND, Candidate, Resample, choose
from adfl_stats.trust.summaries import Summaries, has_known_dispersion, summarise

__all__ = ["HETEROGENEITY", "ClientModel", "differing_coefficients", "fit_client_model", "model_at", "null_of"]


# Components of models without a coherent minority.
SIMPLE = ("normal", "normal + gross")
HETEROGENEITY = ("auto", "none", "estimate", "intercept")
# Most passes over the data; in the Gaussian model one is enough. Ours: bounds the time.
MOST_PASSES = 6
# Passes in which the kind of model is chosen anew. Ours: afterwards it is held, or kinds of nearly equal
# criteria may alternate.
FREE_PASSES = 3
# Of the best models with and without a minority the second is tried at its own estimate if it is behind by no more than
# this. Ours: below the price of a corruption of known form, which is how far behind it is where it gains nothing.
REVISITED = 6.0
# What a minority with a shift of its own must lead by there. Ours: about the 95 % point of chi-square with 1 degree of
# freedom, 3.84; where it is not decided nobody is set aside.
UNDECIDED = 4.0
# A move of the estimate, in its own standard errors, that needs no further pass. Ours: twice the tolerance of a fit.
SMALL_MOVE = 0.1


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The fitted model of clients.

    Attributes
    ----------
    theta : ndarray (P,)
        The solution of the estimating equation with the clients' probabilities as weights.
    weights : ndarray (M,)
        Probability of being normal.
    probabilities : ndarray (M, 3)
        Of being normal, of belonging to a coherent minority, of being gross.
    spread : ndarray (P, P)
        T, the covariance of the normal clients' parameters.
    spread_kind, components : str
        Which parts the model has.
    shift : ndarray (P,) or None
        Of the coherent minority.
    null : Null
        The distribution of normal clients' scores.
    summaries : Summaries
        The clients at `theta`, up to its last small move.
    scores : ClientScores
        The same per unit of noise, in units of `units`.
    units : ndarray (P,)
        A typical client's standard error of each coefficient.
    candidates : list of tuple
        Spread, components and criterion of the models that were compared, the chosen one first.
    move : float
        How far the estimate moved in the last pass, in its standard errors; zero where the estimate was given.
    """

    theta: Array
    weights: Array
    probabilities: Array
    spread: Array
    spread_kind: str
    components: str
    shift: Array | None
    null: Null
    summaries: Summaries
    scores: ClientScores
    units: Array
    candidates: list[tuple[str, str, float]]
    move: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether the passes over the data ended because the estimate no longer moved."""
        return self.move < SMALL_MOVE

    @property
    def differ(self) -> bool:
        """Whether clients differ."""
        return self.spread_kind != "none"

    @property
    def information_shares(self) -> Array:
        """The share of each client's information that is left about the mean of clients that differ (M,).

        With J_m the client's information and (J_m^-1 + T)^-1 that about the mean, the ratio of their traces in
        coordinates in which the mean of the J_m is the identity; random-effects weights by one number a client.
        """
        heard = self.summaries.ranks > 0
        T = self.spread / np.outer(self.units, self.units)
        standard = standardising(self.scores)
        J = self.scores.information
        left = np.asarray(np.linalg.solve(np.eye(len(T)) + J @ T, J), dtype=np.float64)
        found = np.ones(len(heard))
        found[heard] = _traces(left, standard) / np.maximum(_traces(J, standard), np.finfo(float).tiny)
        # The estimating equation weighs rows alike; the information is per unit of noise.
        found[heard] *= self.null.dispersion / self.null.dispersions[heard]
        return found

    @property
    def lead(self) -> float:
        """How far the best models with and without a coherent minority are apart; infinite where one was not tried."""
        best = [
            min((c for _, words, c in self.candidates if (words not in SIMPLE) == has), default=np.inf)
            for has in (False, True)
        ]
        return float(abs(best[1] - best[0])) if np.isfinite(best).all() else np.inf

    @property
    def cochran(self) -> list[float]:
        """Cochran's Q of the normal clients, its degrees of freedom and p-value."""
        heard = self.summaries.ranks > 0
        return _cochran(self.scores.of(self.probabilities[heard, 0] > 0.5))

    def information_lost(self, aside: Mask) -> Array:
        """Return the share of the information about each coefficient (P,), others given, that some clients hold."""
        heard = self.summaries.ranks > 0
        known = np.diagonal(self.scores.information, axis1=1, axis2=2)
        members, lost = self.scores.members, known[aside[heard]]
        total = members.sum(known)
        return np.asarray(np.divide(members.sum(lost), total, out=np.zeros_like(total), where=total > 0))

    def at(self, problem: Problem, theta: Array, sums: ClientMoments) -> ClientModel:
        """Return the model with the clients' scores at another estimate (P,) close by, where their sums are `sums`."""
        step = theta - self.theta
        if not step.any():
            return self
        if problem.glm.quadratic:
            summaries = self.summaries.moved(step)
        else:
            summaries = self.summaries.renewed(sums, problem.objective.totals)
        information = problem.objective.totals[:, None, None] * sums.information
        scores, _, _ = client_scores(summaries, self.null, self.units, information)
        return replace(self, theta=theta, summaries=summaries, scores=scores)


def fit_client_model(problem: Problem, theta: Array, heterogeneity: str = "auto") -> ClientModel:
    """Fit the model of clients from theta (P,), alternating with the estimate that its weights give.

    Parameters
    ----------
    problem : Problem
        Data and family.
    theta : ndarray (P,)
        Where to begin; a robust estimate, or the pooled one.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        Whether normal clients may differ: where the data say so, never, always, or in the intercept alone.
    """
    only = differing_coefficients(problem, heterogeneity)
    first = _settled(problem, theta, heterogeneity, only, np.ones(problem.M, dtype=bool))
    if problem.glm.quadratic:
        return first.model
    # Scores are linear in the parameter up to first order only: whether there is a minority may depend on the estimate
    # at which that is asked. Each reading is judged at its own.
    other = next((one for one in first.candidates if one.coherent != first.best.coherent), None)
    if other is None or other.criterion - first.best.criterion > REVISITED:
        return first.model
    lost = first.model.summaries.lost | ~problem.objective.counted
    weights = _posterior(lost, first.heard, [other])[:, 0]
    begin = weighted_solution(problem, problem.sizes * weights, first.model.theta)
    second = _settled(problem, begin, heterogeneity, only, weights > 0.5, minority=other.coherent)
    best = min(first, second, key=lambda one: one.criterion + UNDECIDED * (one.best.runs.shifts is not None))
    if best is first and not first.best.coherent:
        # The weights of the reading that everybody is normal are its own, whichever reading was tried first.
        model = first.model
        best = _settled(problem, model.theta, heterogeneity, only, model.weights > 0.5, minority=False)
    return best.model


@dataclass(frozen=True, eq=False)
class _Settled:
    """Where the passes from one start ended: the model, its candidates, the clients that have a score."""

    model: ClientModel
    candidates: list[Candidate]
    heard: Mask

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def criterion(self) -> float:
        """Twice the negative log density of the clients' unscaled scores, plus the price: for two points theta."""
        summaries, null = self.model.summaries, self.model.null
        members, ranks = self.model.scores.members, summaries.ranks[self.heard]
        factors = summaries.factors[self.heard]
        values = np.linalg.eigvalsh(factors @ factors.transpose(0, 2, 1))
        inside = np.arange(values.shape[1]) >= (values.shape[1] - ranks)[:, None]
        logs = np.where(inside, np.log(np.maximum(values, np.finfo(float).tiny)), 0.0).sum(axis=1)
        logs += ranks * np.log(null.dispersions[self.heard])
        logs += (ranks == values.shape[1]) * np.linalg.slogdet(null.shape)[1]
        return float(self.best.criterion + members.sum(logs))


def _settled(
    problem: Problem, theta: Array, heterogeneity: str, only: Ints | None, normal: Mask, *, minority: bool | None = None
) -> _Settled:
    """Alternate between the model of clients and the estimate that its weights give.

    With `minority` the model is the best one with, or without, a coherent minority.
    """
    members, summaries = problem.members, summarised(problem, theta)
    passes: list[list[Candidate]] = []
    for k in range(MOST_PASSES):
        null = null_of(problem, summaries, normal)
        scores, units, heard = client_scores(summaries, null)
        resample = _resampler(problem, theta, summaries, null, normal)
        hasty = k == 0 and minority is None
        candidates = choose(scores, robust_centres(scores), heterogeneity, resample, hasty=hasty, only=only)
        passes.append(candidates)
        if minority is not None:
            candidates = sorted(candidates, key=lambda one: one.coherent != minority)
        elif k >= FREE_PASSES:
            candidates = _held(candidates, passes[1:])
        # The probabilities of a reading that is held are its own.
        reading = [one for one in candidates if minority in (None, one.coherent)]
        posterior = _posterior(summaries.lost | ~problem.objective.counted, heard, reading or candidates)
        weights = posterior[:, 0]
        before, theta = theta, weighted_solution(problem, problem.sizes * weights, theta)
        normal = weights > 0.5
        move = float(np.abs((theta - before) / units).max() * np.sqrt(members.count(normal)))
        summaries = summaries.moved(theta - before) if problem.glm.quadratic else summarised(problem, theta)
        if move < SMALL_MOVE and k > 0:
            break
    scores, _, _ = client_scores(summaries, null, units)
    model = _assembled(theta, posterior, candidates, null, summaries, scores, units, move)
    return _Settled(model, candidates, heard)


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
    inside, normal = replace(summaries, ranks=np.where(counted, summaries.ranks, 0)), counted
    for hasty in (True, False):
        null = null_of(problem, inside, normal)
        scores, units, heard = client_scores(inside, null)
        candidates = choose(scores, robust_centres(scores), heterogeneity, lambda *_: None, hasty=hasty, only=only)
        posterior = _posterior(inside.lost | ~problem.objective.counted, heard, candidates)
        posterior[~counted] = 0.0
        normal = posterior[:, 0] > 0.5
    if problem.members.count(~counted):
        scores, _, _ = client_scores(summaries, null, units)
    return _assembled(theta, posterior, candidates, null, summaries, scores, units)


def summarised(problem: Problem, theta: Array, counted: Mask | None = None) -> Summaries:
    """Return the clients at theta (P,), with the shape of those `counted` (M,), or of all."""
    return summarise(problem.glm.data, problem.glm.family, theta, counted, problem.members)


def differing_coefficients(problem: Problem, heterogeneity: str) -> Ints | None:
    """Return the coefficients that clients may differ in; None for all."""
    if heterogeneity != "intercept":
        return None
    constant = problem.glm.constant_column
    if constant is None:
        raise ValueError(
            "heterogeneity='intercept' needs a constant column in X, and there is none; add one, or use 'auto'"
        )
    return np.arange(problem.glm.family.outputs) * problem.glm.p + constant[0]


def _posterior(lost: Mask, heard: Mask, candidates: list[Candidate]) -> Array:
    """Return the probabilities of all clients (M, 3), those that are `lost` and those without a score included."""
    # A client of rank zero has no score: it is taken as normal.
    posterior = np.column_stack([~lost, np.zeros(len(lost)), lost]).astype(np.float64)
    posterior[heard] = _probabilities(candidates)
    return posterior


def _assembled(
    theta: Array,
    posterior: Array,
    candidates: list[Candidate],
    null: Null,
    summaries: Summaries,
    scores: ClientScores,
    units: Array,
    move: float = 0.0,
) -> ClientModel:
    best = candidates[0]
    spread, components = best.words
    return ClientModel(
        theta=theta,
        weights=posterior[:, 0],
        probabilities=posterior,
        spread=best.spread.covariance * np.outer(units, units),
        spread_kind=spread,
        components=components,
        shift=None if best.runs.shifts is None else best.runs.shifts[0] * units,
        null=null,
        summaries=summaries,
        scores=scores,
        units=units,
        candidates=[(*one.words, one.criterion) for one in candidates],
        move=move,
    )


def null_of(problem: Problem, summaries: Summaries, normal: Mask) -> Null:
    """Calibrate, with what the family says of the dispersion."""
    data, family = problem.glm.data, problem.glm.family
    least = 0.0 if family.estimates_scale else 1.0
    known, floor = has_known_dispersion(data, family), problem.rounding_variance
    return calibrate(summaries, normal, known=known, least=least, floor=floor)


def _resampler(problem: Problem, theta: Array, summaries: Summaries, null: Null, normal: Mask) -> Resample:
    """Return how to draw scores of normal clients."""

    def resample(spread: Array, count: int) -> Iterator[ClientScores] | None:
        scores, units, heard = client_scores(summaries, null)
        given = spread * np.outer(units, units)
        drawn = resampled_scores(problem, theta, summaries, null, given, normal, count)
        return None if drawn is None else (_rescored(scores, summaries, null, units, heard, one) for one in drawn)

    return resample


def _cochran(scores: ClientScores) -> list[float]:
    """Return Cochran's Q: the clients' score statistics at their common estimate, summed.

    A score of t with nu degrees of freedom has a statistic of variance 2 r (nu + r - 2) / (nu - 4); chi-square is
    scaled to the sum of these.
    """
    if scores.n_clients == 0:
        return [0.0, 0.0, 1.0]
    total = scores.members.sum
    centre = scores.weighted_means(np.ones((scores.M, 1)))
    Q, ranks = float(total(scores.statistics(centre)[:, 0])), float(total(scores.ranks))
    df = max(ranks - scores.P, 0.0)
    variance = float(total(2.0 * scores.ranks * (scores.df + scores.ranks - 2.0) / (scores.df - 4.0 + 1e-9)))
    scale = max(variance / (2.0 * ranks), 1.0)
    return [Q, df, float(stats.chi2.sf(Q / scale, df / scale)) if df > 0 else 1.0]


def _rescored(
    scores: ClientScores, summaries: Summaries, null: Null, units: Array, heard: Mask, drawn: Array
) -> ClientScores:
    """Return the clients' scores with others (M, P) in the place of their own; the information is the same."""
    z = drawn[heard] / np.sqrt(null.dispersions[heard])[:, None]
    full = summaries.ranks[heard] == scores.P
    lower = np.linalg.cholesky(null.shape)
    z[full] = np.linalg.solve(lower, z[full].T).T
    back = z.copy()
    back[full] = np.linalg.solve(lower.T, back[full].T).T
    back /= np.sqrt(null.dispersions[heard])[:, None]
    slopes = np.einsum("mij,mi->mj", summaries.factors[heard], back) * units
    return replace(scores, slopes=slopes, squares=np.square(z).sum(axis=1))


def _traces(matrices: Array, standard: Array) -> Array:
    """Return tr(R'JR) for each of J (M, P, P)."""
    return np.asarray(np.einsum("mij,ik,jk->m", matrices, standard, standard, optimize=True))


def client_scores(
    summaries: Summaries, null: Null, units: Array | None = None, information: Array | None = None
) -> tuple[ClientScores, Array, Mask]:
    """Return the scores of the clients that have one, per unit of noise, the coefficients' units and the clients.

    `information` (M, P, P), if given, is that behind the summaries, and saves its product from their factors.
    """
    heard = summaries.ranks > 0
    P = summaries.scores.shape[1]
    noise, level = np.sqrt(null.dispersions[heard]), np.sqrt(null.dispersion)
    # Noise relative to its typical level, or data of tiny or huge numbers would overflow; `units` make up for it.
    A = summaries.factors[heard] * (level / noise)[:, None, None]
    # The score and its expectations under corruptions of known form.
    z = np.concatenate([summaries.scores[heard, None], summaries.altered[heard]], axis=1) / noise[:, None, None]
    full = summaries.ranks[heard] == P
    shaped = bool((null.shape != np.eye(P)).any())
    if shaped:
        lower = np.linalg.cholesky(null.shape)
        A[full] = np.linalg.solve(lower, A[full])
        z[full] = np.linalg.solve(lower, z[full].transpose(0, 2, 1)).transpose(0, 2, 1)
    if information is None or shaped:
        J = A.transpose(0, 2, 1) @ A
    else:
        J = information[heard] * np.square(level / noise)[:, None, None]
    if units is None:
        known = summaries.members.gather(np.diagonal(J, axis1=1, axis2=2))
        typical, largest = np.median(known, axis=0), known.max(axis=0)
        units = level / np.sqrt(np.where(typical > 1e-6 * largest, typical, largest))
    J *= (units / level)[:, None] * (units / level)
    slopes = (z @ A) * (units / level)
    scores = ClientScores(
        slopes=slopes[:, 0],
        information=J,
        squares=np.square(z[:, 0]).sum(axis=1),
        ranks=summaries.ranks[heard].astype(np.float64),
        df=null.df[heard],
        log_det=np.zeros(int(heard.sum())),
        members=summaries.members.of(heard),
        offsets=_offsets(J, slopes[:, 1:-1], full) if summaries.mechanisms else None,
        mean_slopes=_mean_slopes(summaries, heard) * units if summaries.mechanisms else None,
        mechanisms=summaries.mechanisms,
    )
    return scores, units, heard


def _mean_slopes(summaries: Summaries, heard: Mask) -> Array:
    """Return the derivatives of the clients' mean responses (M, P), times the roots of their weights."""
    return np.asarray(np.einsum("mi,mij->mj", summaries.altered[heard, -1], summaries.factors[heard]))


def _offsets(information: Array, slopes: Array, full: Mask) -> Array:
    """Return J_m^+ s for each of the score vectors (M, K, P)."""
    offsets = np.zeros_like(slopes)
    offsets[full] = np.linalg.solve(information[full], slopes[full].transpose(0, 2, 1)).transpose(0, 2, 1)
    if not full.all():
        offsets[~full] = slopes[~full] @ np.linalg.pinv(information[~full], rcond=1e-9, hermitian=True)
    return offsets


def robust_centres(scores: ClientScores) -> Array:
    """Return guesses of the normal clients' deviation (R, P): none, and the median of the clients of full rank."""
    here = np.zeros((1, scores.P))
    full = scores.ranks == scores.P
    if scores.members.count(full) < 3:
        return here
    own = np.linalg.solve(scores.information[full], scores.slopes[full][:, :, None])[:, :, 0]
    return np.vstack([here, np.median(scores.members.gather(own), axis=0)])


def _probabilities(candidates: list[Candidate]) -> Array:
    """Return the probabilities of normal, coherent and gross (M, 3), averaged over the components given the spread.

    Whether there is a minority at all is uncertain too: models with the spread of the best one count by
    exp(-criterion / 2), which is to the posterior probability of a model what Schwarz's criterion is.
    """
    alike = {one.words: one for one in reversed(candidates) if one.words[0] == candidates[0].words[0]}
    weights = np.exp(-0.5 * (np.array([one.criterion for one in alike.values()]) - candidates[0].criterion))
    posterior = sum(
        weight * one.runs.posteriors[:, 0] for weight, one in zip(weights / weights.sum(), alike.values(), strict=True)
    )
    return np.column_stack([posterior[:, NORMAL], posterior[:, COHERENT], posterior[:, GROSS].sum(axis=1)])
