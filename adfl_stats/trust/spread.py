"""The spread T between clients: theta_m = theta + u_m with u_m ~ (0, T), fitted by EM beside the mixture.

T = B D B' + V V', where D is diagonal (one value for all coefficients in units of a typical client's standard error, or
one each for some of them), B lets slopes pivot about the covariates' means (see `pivots`) and the columns of V are
directions in which clients differ: none, diagonal, low-rank or, with enough directions, full.

Beside it scores may be overdispersed: their variance is c times that from independent rows. Where rows of a client
depend on one another (c is the design effect of Kish, 1965, Survey Sampling), or clients differ along directions of
their own covariates, no T that is common to all describes it (multiplicative heterogeneity: Thompson and Sharp, 1999,
Statistics in Medicine 18, 2693-2708).

Where clients are far apart in their covariates, as firms or countries over years are, slopes within clients may vary
without moving the clients' levels. B then pivots about each client's own means (`own_pivots`), and T is T_m.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy import stats

from adfl_stats._algebra import quadratic_forms
from adfl_stats._types import Array, Ints
from adfl_stats.trust.mixture import NORMAL, ClientScores, MixtureRuns, pass_over, standardising

__all__ = ["Spread", "common_excess", "excess", "fit_spread", "inflated", "next_direction", "own_pivots", "pivots"]


# Most steps of EM, and the gain in log-likelihood at which it ends. Ours: criteria of models differ by several units.
MOST_STEPS = 100
SMALL_GAIN = 0.02
# Steps before EM may end because it will not gain enough. Ours: two of the longer steps.
LEAST_STEPS = 6
# Least initial variance, in units of a typical client's sampling variance. Ours: EM is slow upwards from small values.
LEAST_START = 0.5
# Longer steps of EM go on with the cube of a step's factor, of which the further two are within these bounds. Ours: a
# step far from the maximum does not predict the next ones.
LEAST_GROWTH, MOST_GROWTH = 0.3, 3.0
# Least initial variance along a new direction, in units of the sampling variance. Ours: EM does not leave zero.
LEAST_DIRECTION = 0.05
# Degrees of freedom of effects with heavy tails. Ours: the least for which the tests of a spread have a variance.
HEAVY_DF = 5.0
# The median of chi-square with one degree of freedom.
CHI_SQUARE_MEDIAN = 0.455


@dataclass(frozen=True, eq=False)
class Spread:
    """T = B diag(variances) B' + directions directions', with variances zero but for the `active` coefficients.

    `common` says that these have one variance, `heavy` that effects have the tails of t (Pinheiro, Liu and Wu, 2001,
    Journal of Computational and Graphical Statistics 10, 249-276) where a normal law has none, `inflated` that the
    variance of scores is `inflation` times that from independent rows. B is `basis` (P, P), or the identity. With
    `own`, the coefficients of constants, it is that of a typical client only, and slopes pivot about each client's own
    means.
    """

    variances: Array
    active: Ints
    directions: Array
    common: bool = False
    heavy: bool = False
    inflated: bool = False
    inflation: float = 1.0
    basis: Array | None = None
    own: Ints | None = None

    @classmethod
    def of(cls, scores: ClientScores, active: Ints, basis: Array | None = None, *, common: bool = False) -> Spread:
        """Return a spread to begin with: the variances of the active coefficients between the clients' own estimates.

        By the median of their squares, less the sampling variance, and at least half of that of a typical client. EM
        comes down from large variances in a few steps, and hardly up from small ones.
        """
        variances, full, scores = np.zeros(scores.P), scores.ranks == scores.P, scores.turned(basis)
        variances[active] = LEAST_START
        every = scores.members.gather
        if len(active) and scores.members.count(full) >= 3:
            covariances = np.linalg.inv(scores.information[full])
            own = every((covariances @ scores.slopes[full][:, :, None])[:, :, 0])
            between = np.median(np.square(own - np.median(own, axis=0)), axis=0) / CHI_SQUARE_MEDIAN
            within = np.median(every(np.diagonal(covariances, axis1=1, axis2=2)), axis=0)
            # Given the others, a coefficient is estimated more precisely, and less so where clients differ in these.
            known = np.maximum(np.diagonal(scores.information, axis1=1, axis2=2), np.finfo(float).tiny)
            given = every(scores.slopes / known)
            alone = np.median(np.square(given - np.median(given, axis=0)), axis=0) / CHI_SQUARE_MEDIAN
            alone -= np.median(every(1.0 / known), axis=0)
            variances[active] = np.maximum(np.minimum(between - within, alone), LEAST_START)[active]
        if common and len(active):
            variances[active] = np.median(variances[active])
        return cls(variances, active, np.zeros((scores.P, 0)), common, basis=basis)

    @property
    def factor(self) -> Array:
        """F (P, K) with T = F F'."""
        basis = np.eye(len(self.variances)) if self.basis is None else self.basis
        return np.hstack([basis[:, self.active] * np.sqrt(self.variances[self.active]), self.directions])

    def factors(self, scores: ClientScores) -> Array:
        """Return F (P, K), or where slopes pivot about each client's own means the clients' F_m (M, P, K)."""
        if self.own is None:
            return self.factor
        basis = own_pivots(scores, self.own)
        some = basis[:, :, self.active] * np.sqrt(self.variances[self.active])
        return np.concatenate([some, np.broadcast_to(self.directions, (scores.M, *self.directions.shape))], axis=2)

    @property
    def covariance(self) -> Array:
        """T, that of a typical client where slopes pivot about each client's own means."""
        return self.factor @ self.factor.T

    @property
    def n_variances(self) -> int:
        """How many variances were estimated."""
        return self.inflated + (min(1, len(self.active)) if self.common else len(self.active))

    def __bool__(self) -> bool:
        """Whether there is a variance between clients, or scores are overdispersed."""
        return self.name != "none"

    @property
    def n_directions(self) -> int:
        """How many directions were estimated."""
        return self.directions.shape[1]

    @property
    def name(self) -> str:
        """Its parts: "none", "common", "diagonal", "rank k", "inflated" or a sum, their pivots, and heavy tails."""
        words = ["common" if self.common else "diagonal"] if len(self.active) else []
        words = [f"{word} about own means" if self.own is not None else word for word in words]
        words += [f"rank {self.n_directions}"] if self.n_directions else []
        words += ["inflated"] if self.inflated else []
        return (" + ".join(words) or "none") + (", heavy tails" if self.heavy else "")

    def integrated(self, scores: ClientScores) -> ClientScores:
        """Return the scores with u_m integrated out: V_m = c I + A_m T A_m'."""
        return scores.members.together(lambda: _integrate(scores, self)).marginal

    @property
    def df(self) -> float:
        """Degrees of freedom of the effects' law."""
        return HEAVY_DF if self.heavy else np.inf


@dataclass(frozen=True, eq=False)
class _Integrated:
    """Scores per unit of inflated noise; the same with u_m = F f_m, f_m ~ (0, I), integrated out; Cov(f_m); J_m F."""

    scores: ClientScores
    marginal: ClientScores
    covariances: Array
    loadings: Array


def _integrate(scores: ClientScores, spread: Spread) -> _Integrated:
    F, scores = spread.factors(scores), scores.inflated(spread.inflation)
    loadings, K = scores.information @ F, F.shape[-1]
    inner = np.swapaxes(F, -1, -2) @ loadings
    inner[:, np.arange(K), np.arange(K)] += 1.0
    covariances, half = np.asarray(np.linalg.inv(inner), np.float64), np.linalg.cholesky(inner)
    marginal = scores
    if K:
        pulled, along = loadings @ covariances, (scores.slopes[:, None, :] @ F)[:, 0]
        marginal = replace(
            scores,
            slopes=scores.slopes - (pulled @ along[:, :, None])[:, :, 0],
            information=scores.information - pulled @ loadings.transpose(0, 2, 1),
            squares=np.maximum(scores.squares - quadratic_forms(along, covariances), 0.0),
            log_det=scores.log_det + np.log(np.diagonal(half, axis1=1, axis2=2)).sum(axis=1),
        )
    if spread.heavy:
        # The kurtosis 2 / (df - 4) of a sum is that of its parts times the squares of their shares of the variance.
        share = (K - np.trace(covariances, axis1=1, axis2=2)) / np.maximum(scores.ranks, 1.0)
        share = 1.0 - (1.0 - share) / spread.inflation
        kurtosis = 2.0 / np.maximum(scores.df - 4.0, 1e-9) + np.square(share) * 2.0 / (spread.df - 4.0)
        marginal = replace(marginal, df=np.maximum(4.0 + 2.0 / kurtosis, spread.df))
    return _Integrated(scores, marginal, np.asarray(covariances, dtype=np.float64), loadings)


def pivots(scores: ClientScores, constants: Ints | None) -> Array | None:
    """Return B (P, P): effects of constants, and of slopes that leave responses at the covariates' means as they are.

    Whether a constant's and slopes' effects are correlated depends on the origin of the covariates. With B that is at
    their means, weighted by the information, and the model does not depend on how covariates were measured. Ours. None,
    for the identity, where there is no constant.
    """
    if constants is None:
        return None
    basis, slopes = np.eye(scores.P), np.setdiff1d(np.arange(scores.P), constants)
    J = scores.members.mean(scores.information)
    inner = np.linalg.pinv(J[np.ix_(constants, constants)], hermitian=True)
    basis[np.ix_(constants, slopes)] = -inner @ J[np.ix_(constants, slopes)]
    return basis


def own_pivots(scores: ClientScores, constants: Ints) -> Array:
    """Return B_m (M, P, P): `pivots` about the means of each client's own covariates (within-client slopes; ours)."""
    basis = np.tile(np.eye(scores.P), (scores.M, 1, 1))
    slopes = np.setdiff1d(np.arange(scores.P), constants)
    J = scores.information
    inner = np.linalg.pinv(J[:, constants[:, None], constants], hermitian=True)
    basis[:, constants[:, None], slopes] = -inner @ J[:, constants[:, None], slopes]
    return basis


def inflated(scores: ClientScores, active: Ints, runs: MixtureRuns, basis: Array | None) -> Spread:
    """Return a spread with inflation to begin with, alone or beside variances of the active coefficients."""
    ratios = scores.statistics(runs.centres)[:, 0] / stats.chi2.ppf(0.5, np.maximum(scores.ranks, 1.0))
    usual = max(float(np.median(scores.members.gather(ratios))), 1.0 + LEAST_START)
    # Beside variances, half of the excess is a start for each.
    factor = 0.5 * (1.0 + usual) if len(active) else usual
    return replace(Spread.of(scores.inflated(factor), active, basis), inflated=True, inflation=factor)


def fit_spread(
    scores: ClientScores, spread: Spread, runs: MixtureRuns, least: float = -np.inf
) -> tuple[Spread, MixtureRuns]:
    """Fit T and the mixture together from given ones, by EM with u_m as latent variables.

    EM ends early where steps like the last few would not bring the log-likelihood to `least`.
    A likelihood of zero is returned where one client's numbers are so far beyond the others' that no spread fits.
    """
    try:
        return _fitted(scores, spread, runs, least)
    except np.linalg.LinAlgError:
        return spread, replace(runs, log_likelihoods=np.full(1, -np.inf))


def _fitted(scores: ClientScores, spread: Spread, runs: MixtureRuns, least: float) -> tuple[Spread, MixtureRuns]:
    before, careful = -np.inf, spread
    gains: list[float] = []
    for k in range(MOST_STEPS):
        integrated = scores.members.together(partial(_integrate, scores, spread))
        ahead = pass_over(integrated.marginal, runs)
        gain = ahead.log_likelihoods[0] - before
        if gain < 0.0 and careful is not spread:
            # The extrapolated step lowered the likelihood; a plain step of EM never does.
            spread = careful
            continue
        runs, before = ahead, ahead.log_likelihoods[0]
        if gain < SMALL_GAIN and k > 2:
            break
        gains.append(float(gain))
        # Gains of EM become smaller; every third step is a longer one.
        if k > LEAST_STEPS and before + (MOST_STEPS - k) * max(gains[-3:]) < least:
            break
        careful = _updated(integrated, spread, runs, extrapolate=False)
        spread = _updated(integrated, spread, runs, extrapolate=True) if k % 3 == 2 else careful
    return spread, runs


def _updated(seen: _Integrated, spread: Spread, runs: MixtureRuns, *, extrapolate: bool) -> Spread:
    """Return the spread after one EM step, from the posterior moments of f_m."""
    scores, members = seen.scores, seen.scores.members
    F, covariances, marginal = spread.factors(scores), seen.covariances, seen.marginal
    K, first = F.shape[-1], len(spread.active)
    probability, point = runs.posteriors[:, 0, NORMAL], runs.centres[0]
    weight = probability * marginal.t_weights(marginal.statistics(point[None]))[:, 0]
    slopes = scores.slopes - scores.information @ point
    means = (covariances @ (slopes[:, None, :] @ F)[:, 0, :, None])[:, :, 0]
    moments = weight[:, None, None] * means[:, :, None] * means[:, None, :]
    moments += probability[:, None, None] * covariances
    growth = np.diag(members.sum(moments))[:first] / members.sum(probability)
    if spread.common and first:
        growth = np.full(first, growth.mean())
    variances = spread.variances.copy()
    variances[spread.active] *= growth * (_further(growth) if extrapolate else 1.0)
    directions = spread.directions.copy()
    for j in range(first, K):
        square, along, others = moments[:, j, j], weight * means[:, j], np.arange(K) != j
        lhs = members.sum_products(square, scores.information)
        rhs = members.sum_products(along, slopes)
        rhs = rhs - members.sum(seen.loadings[:, :, others] @ moments[:, others, j][:, :, None])[:, 0]
        directions[:, j - first] = np.linalg.solve(lhs + 1e-10 * np.trace(lhs) * np.eye(scores.P), rhs)
    inflation = spread.inflation
    if spread.inflated:
        # What is left of a score beside the client's own effect, squared: twice its expectation given the score.
        rest = weight * scores.statistics_at(point + (F @ means[:, :, None])[:, :, 0])
        # The trace of F'J_m F Cov(f_m), as Cov(f_m)^-1 = I + F'J_m F.
        rest += probability * (K - np.trace(covariances, axis1=1, axis2=2))
        larger = float(members.sum(rest) / members.sum(probability * scores.ranks))
        inflation = max(1.0, inflation * larger * (float(_further(larger)) if extrapolate else 1.0))
    return replace(spread, variances=variances, directions=directions, inflation=inflation)


def _further(growth: Array | float) -> Array:
    """Return the factor of two more steps like one: EM moves slowly where the spread is small beside sampling error."""
    return np.asarray(np.clip(growth, LEAST_GROWTH, MOST_GROWTH) ** 2)


def excess(scores: ClientScores, runs: MixtureRuns, basis: Array | None = None) -> tuple[Array, Array]:
    """Return score tests of a spread in each coefficient (P,), about N(0, 1) without one, and their matrix (P, P).

    The derivative of the log-likelihood in T at T = 0 is half of sum_m (s_m s_m' - J_m), over the normal clients. With
    `basis` (P, P) coefficients are those of its columns.
    """
    probability = runs.posteriors[:, 0, NORMAL]
    slopes = scores.slopes - scores.information @ runs.centres[0]
    if basis is not None:
        slopes, scores = scores.members.products(slopes, basis), scores.turned(basis)
    weighted, information = slopes * probability[:, None], scores.information
    squares = scores.members.sum_products(weighted, slopes)
    matrix = squares - scores.members.sum_products(probability, information)
    weight, known = probability * _fourth(scores), np.square(np.diagonal(information, axis1=1, axis2=2))
    variance = scores.members.sum_products(weight, known)
    return np.diag(matrix) / np.sqrt(np.maximum(variance, np.finfo(float).tiny)), matrix


def common_excess(scores: ClientScores, runs: MixtureRuns, basis: Array | None = None) -> float:
    """Return the score test of one variance of all coefficients, about N(0, 1) without a spread: the trace of `excess`.

    The variance of s_m's_m is twice the squared norm of J_m where scores are normal.
    """
    weight = runs.posteriors[:, 0, NORMAL] * _fourth(scores)
    known = np.square(scores.turned(basis).information).sum(axis=(1, 2))
    variance = float(scores.members.sum_products(weight, known))
    return float(np.trace(excess(scores, runs, basis)[1])) / max(variance, np.finfo(float).tiny) ** 0.5


def _fourth(scores: ClientScores) -> Array:
    """Return the variances of squared scores over their squared variances, by client (M,): 2 where they are normal."""
    return np.asarray(3.0 * (1.0 + 2.0 / np.maximum(scores.df - 4.0, 1.0)) - 1.0)


def next_direction(scores: ClientScores, runs: MixtureRuns) -> tuple[Array, float]:
    """Return the direction (P,) in which normal clients differ most beyond what `scores` allow for, and how much.

    The second is the largest eigenvalue of their excess variance, in units of their sampling variance.
    """
    normal = runs.posteriors[:, 0, NORMAL]
    standard = standardising(scores, normal)
    beyond = standard.T @ excess(scores, runs)[1] @ standard / scores.members.sum(normal)
    values, vectors = np.linalg.eigh(beyond)
    return standard @ vectors[:, -1] * np.sqrt(max(values[-1], LEAST_DIRECTION)), float(values[-1])
