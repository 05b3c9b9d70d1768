"""Scores of clients per unit of noise, from their summaries at a common point and the null distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from adfl_stats._types import Array, Mask
from adfl_stats.engine.problem import Problem
from adfl_stats.trust.chance import Resample
from adfl_stats.trust.mixture import ClientScores
from adfl_stats.trust.null import Null, calibrate
from adfl_stats.trust.resampling import MOST_ROWS, resampled_scores
from adfl_stats.trust.spread import Spread
from adfl_stats.trust.summaries import Summaries, has_known_dispersion, summarise

__all__ = ["client_scores", "null_of", "resampler", "robust_centres", "summarised"]


def summarised(problem: Problem, theta: Array, counted: Mask | None = None) -> Summaries:
    """Return the clients at theta (P,), with the shape of those `counted` (M,), or of all."""
    return summarise(problem.glm.data, problem.glm.family, theta, counted, problem.members)


def null_of(problem: Problem, summaries: Summaries, normal: Mask) -> Null:
    """Calibrate, with the family's dispersion where it is known, and its bounds."""
    data, family = problem.glm.data, problem.glm.family
    least = 0.0 if family.estimates_scale else 1.0
    known, floor = has_known_dispersion(data, family), problem.rounding_variance
    return calibrate(summaries, normal, known=known, least=least, floor=floor)


def scores_with_weight(
    problem: Problem, summaries: Summaries, counted: Mask, normal: Mask
) -> tuple[Null, ClientScores, Array, Mask]:
    """Return the null of the normal clients, and the `client_scores` of the clients `counted` (M,)."""
    inside = replace(summaries, ranks=np.where(counted, summaries.ranks, 0))
    null = null_of(problem, inside, normal)
    return null, *client_scores(inside, null)


def scores_of_all(scores: ClientScores, units: Array, null: Null, summaries: Summaries, counted: Mask) -> ClientScores:
    """Return the scores of all clients in the units of those that are counted, which are `scores`."""
    return client_scores(summaries, null, units)[0] if summaries.members.count(~counted) else scores


def client_scores(
    summaries: Summaries, null: Null, units: Array | None = None, information: Array | None = None
) -> tuple[ClientScores, Array, Mask]:
    """Return the scores of the clients that have one, per unit of noise, the coefficients' units and the clients.

    `information` (M, P, P), if given, is that behind the summaries, and saves its product from their factors; it is
    overwritten.
    """
    informative = summaries.ranks > 0
    P = summaries.scores.shape[1]
    noise, level = np.sqrt(null.dispersions[informative]), np.sqrt(null.dispersion)
    # Noise relative to its typical level, or data of tiny or huge numbers would overflow; `units` make up for it.
    relative = level / noise
    A = summaries.factors if informative.all() else summaries.factors[informative]
    # The score and its expectations under corruptions of known form.
    z = (
        np.concatenate([summaries.scores[informative, None], summaries.altered[informative]], axis=1)
        / noise[:, None, None]
    )
    full = summaries.ranks[informative] == P
    shaped = bool((null.shape != np.eye(P)).any())
    if information is None or shaped:
        A = A * relative[:, None, None]
        if shaped:
            lower = np.linalg.cholesky(null.shape)
            A[full] = np.linalg.solve(lower, A[full])
            z[full] = np.linalg.solve(lower, z[full].transpose(0, 2, 1)).transpose(0, 2, 1)
        J, slopes = A.transpose(0, 2, 1) @ A, z @ A
    else:
        J = information if informative.all() else information[informative]
        J *= np.square(relative)[:, None, None]
        slopes = (z * relative[:, None, None]) @ A
    if units is None:
        members, known = summaries.members, np.diagonal(J, axis1=1, axis2=2)
        count = members.count(np.ones(len(known), dtype=bool))
        typical, largest = np.concatenate(
            [(np.median(every, axis=0), every.max(axis=0)) for every in members.by_columns(known, count)], axis=1
        )
        units = level / np.sqrt(np.where(typical > 1e-6 * largest, typical, largest))
    J *= (units / level)[:, None] * (units / level)
    slopes *= units / level
    scores = ClientScores(
        slopes=slopes[:, 0],
        information=J,
        squares=np.square(z[:, 0]).sum(axis=1),
        ranks=summaries.ranks[informative].astype(np.float64),
        df=null.df[informative],
        log_det=np.zeros(int(informative.sum())),
        members=summaries.members.of(informative),
        offsets=_offsets(J, slopes[:, 1:-1], full) if summaries.mechanisms else None,
        mean_slopes=_mean_slopes(summaries, informative) * units if summaries.mechanisms else None,
        mechanisms=summaries.mechanisms,
    )
    return scores, units, informative


def _mean_slopes(summaries: Summaries, informative: Mask) -> Array:
    """Return the derivatives of the clients' mean responses (M, P), times the roots of their weights."""
    return np.asarray(np.einsum("mi,mij->mj", summaries.altered[informative, -1], summaries.factors[informative]))


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
    full, members = scores.ranks == scores.P, scores.members
    count = members.count(full)
    if count < 3:
        return here
    own = np.linalg.solve(scores.information[full], scores.slopes[full][:, :, None])[:, :, 0]
    median = np.concatenate([np.median(every, axis=0) for every in members.by_columns(own, count)])
    return np.vstack([here, median])


def resampler(problem: Problem, theta: Array, summaries: Summaries, null: Null, normal: Mask) -> Resample | None:
    """Return how to draw scores of normal clients; None where rows are too many for that."""
    if problem.members.sum(problem.glm.data.sizes) > MOST_ROWS:
        return None

    def resample(spread: Spread) -> Iterator[ClientScores]:
        scores, units, informative = client_scores(summaries, null)
        given = spread.covariance * np.outer(units, units)
        for block in count():
            args = (given, spread.df, spread.inflation, normal, block)
            for drawn in resampled_scores(problem, theta, summaries, null, *args):
                yield _rescored(scores, summaries, null, units, informative, drawn)

    return resample


def _rescored(
    scores: ClientScores, summaries: Summaries, null: Null, units: Array, informative: Mask, drawn: Array
) -> ClientScores:
    """Return the clients' scores with others (M, P) in the place of their own; the information is the same."""
    z = drawn[informative] / np.sqrt(null.dispersions[informative])[:, None]
    full = summaries.ranks[informative] == scores.P
    lower = np.linalg.cholesky(null.shape)
    z[full] = np.linalg.solve(lower, z[full][:, :, None])[:, :, 0]
    back = z.copy()
    back[full] = np.linalg.solve(lower.T, back[full][:, :, None])[:, :, 0]
    back /= np.sqrt(null.dispersions[informative])[:, None]
    slopes = np.einsum("mij,mi->mj", summaries.factors[informative], back) * units
    return replace(scores, slopes=slopes, squares=np.square(z).sum(axis=1))
