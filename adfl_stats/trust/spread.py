"""The spread T between clients: theta_m = theta + u_m with u_m ~ (0, T), fitted by EM beside the mixture.

T = D + V V', where D is diagonal (one value for all coefficients in units of a typical client's standard error, or
one each for some of them) and the columns of V are directions in which clients differ: none, diagonal, low-rank or,
with enough directions, full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adfl_stats.trust.mixture import ClientScores, Runs, pass_over, standardising

__all__ = ["Spread", "excess", "fit_spread", "next_direction"]

Array = NDArray[np.float64]

MOST_STEPS = 100
SMALL_GAIN = 0.02


@dataclass(frozen=True, eq=False)
class Spread:
    """T = diag(variances) + directions directions', with variances zero but for the `active` coefficients.

    `common` says that these have one variance.
    """

    variances: Array
    active: NDArray[np.int64]
    directions: Array
    common: bool = False

    @classmethod
    def of(cls, P: int, active: NDArray[np.int64], *, common: bool = False) -> Spread:
        """Return a spread to begin with: half of a client's sampling variance in the active coefficients."""
        variances = np.zeros(P)
        variances[active] = 0.5
        return cls(variances, active, np.zeros((P, 0)), common)

    @property
    def factor(self) -> Array:
        """F (P, K) with T = F F'."""
        diagonal = np.zeros((len(self.variances), len(self.active)))
        diagonal[self.active, np.arange(len(self.active))] = np.sqrt(self.variances[self.active])
        return np.hstack([diagonal, self.directions])

    @property
    def covariance(self) -> Array:
        """T."""
        return self.factor @ self.factor.T

    @property
    def n_variances(self) -> int:
        """How many variances were estimated."""
        return min(1, len(self.active)) if self.common else len(self.active)

    @property
    def n_directions(self) -> int:
        """How many directions were estimated."""
        return self.directions.shape[1]

    @property
    def name(self) -> str:
        """In words."""
        words = ["common" if self.common else "diagonal"] if len(self.active) else []
        words += [f"rank {self.n_directions}"] if self.n_directions else []
        return " + ".join(words) or "none"

    def integrated(self, scores: ClientScores) -> ClientScores:
        """Return the scores with u_m integrated out: V_m = I + A_m T A_m'."""
        F = self.factor
        if not F.shape[1]:
            return scores
        lower, solved, along = self._solved(scores, F)
        return replace(
            scores,
            slopes=scores.slopes - np.einsum("mki,mk->mi", solved, along),
            information=scores.information - solved.transpose(0, 2, 1) @ solved,
            squares=np.maximum(scores.squares - np.square(along).sum(axis=1), 0.0),
            log_det=scores.log_det + np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1),
        )

    @staticmethod
    def _solved(scores: ClientScores, F: Array) -> tuple[Array, Array, Array]:
        """Return the Cholesky factors L of I + F'J_mF, L^-1 F'J_m and L^-1 F'A_m'z_m."""
        JF = scores.information @ F
        inner = F.T @ JF
        inner[:, np.arange(F.shape[1]), np.arange(F.shape[1])] += 1.0
        lower = np.linalg.cholesky(inner)
        both = np.concatenate([JF.transpose(0, 2, 1), (scores.slopes @ F)[:, :, None]], axis=2)
        solved = np.linalg.solve(lower, both)
        return lower, solved[:, :, :-1], solved[:, :, -1]


def fit_spread(scores: ClientScores, spread: Spread, runs: Runs) -> tuple[Spread, Runs]:
    """Fit T and the mixture together from given ones, by EM with u_m as latent variables."""
    before = -np.inf
    for k in range(MOST_STEPS):
        marginal = spread.integrated(scores)
        runs = pass_over(marginal, runs)
        gain, before = runs.log_likelihoods[0] - before, runs.log_likelihoods[0]
        if gain < SMALL_GAIN and k > 2:
            break
        spread = _updated(scores, marginal, spread, runs, extrapolate=k % 3 == 2)
    return spread, runs


def _updated(scores: ClientScores, marginal: ClientScores, spread: Spread, runs: Runs, *, extrapolate: bool) -> Spread:
    """Return the spread after one EM step: from the posterior moments of f_m, where u_m = F f_m and f_m ~ (0, I)."""
    F = spread.factor
    K, first = F.shape[1], len(spread.active)
    JF = scores.information @ F
    inner = F.T @ JF
    inner[:, np.arange(K), np.arange(K)] += 1.0
    covariances = np.linalg.inv(inner)
    moments, count = np.zeros((K, K)), 0.0
    lhs, rhs = np.zeros((K - first, scores.P, scores.P)), np.zeros((K - first, scores.P))
    for component, point in runs.groups:
        probability = runs.posteriors[:, 0, component]
        weight = probability * marginal.t_weights(marginal.statistics(point[None]))[:, 0]
        slopes = scores.slopes - scores.information @ point
        means = (covariances @ (slopes @ F)[:, :, None])[:, :, 0]
        each = weight[:, None, None] * means[:, :, None] * means[:, None, :]
        each += probability[:, None, None] * covariances
        moments += each.sum(axis=0)
        count += float(probability.sum())
        for j in range(first, K):
            others = np.arange(K) != j
            lhs[j - first] += np.tensordot(each[:, j, j], scores.information, 1)
            rhs[j - first] += (weight * means[:, j]) @ slopes
            rhs[j - first] -= (JF[:, :, others] @ each[:, others, j][:, :, None]).sum(axis=0)[:, 0]
    growth = np.diag(moments)[:first] / count
    if spread.common and first:
        growth = np.full(first, growth.mean())
    variances = spread.variances.copy()
    # EM moves slowly where the spread is small beside the sampling variance.
    variances[spread.active] *= growth * (np.clip(growth, 0.3, 3.0) ** 2 if extrapolate else 1.0)
    directions = spread.directions.copy()
    for j in range(K - first):
        ridge = 1e-10 * np.trace(lhs[j]) * np.eye(scores.P)
        directions[:, j] = np.linalg.solve(lhs[j] + ridge, rhs[j])
    return replace(spread, variances=variances, directions=directions)


def excess(scores: ClientScores, runs: Runs) -> tuple[Array, Array]:
    """Return score tests of a spread in each coefficient (P,), about N(0, 1) without one, and their matrix (P, P).

    The derivative of the log-likelihood in T at T = 0 is half of sum_m (s_m s_m' - J_m), over the clients that
    share a parameter.
    """
    matrix, variance = np.zeros((scores.P, scores.P)), np.zeros(scores.P)
    fourth = 3.0 * (1.0 + 2.0 / np.maximum(scores.df - 4.0, 1.0)) - 1.0
    for component, point in runs.groups:
        probability = runs.posteriors[:, 0, component]
        slopes = scores.slopes - scores.information @ point
        matrix += (slopes * probability[:, None]).T @ slopes - np.tensordot(probability, scores.information, 1)
        diagonal = np.diagonal(scores.information, axis1=1, axis2=2)
        variance += (probability * fourth) @ np.square(diagonal)
    return np.diag(matrix) / np.sqrt(np.maximum(variance, np.finfo(float).tiny)), matrix


def next_direction(scores: ClientScores, runs: Runs) -> Array:
    """Return a direction (P,) in which the clients differ most beyond what `scores` allow for, to begin with."""
    standard = standardising(scores)
    values, vectors = np.linalg.eigh(standard.T @ excess(scores, runs)[1] @ standard / scores.M)
    return np.asarray(standard @ vectors[:, -1] * np.sqrt(max(values[-1], 0.05)))
