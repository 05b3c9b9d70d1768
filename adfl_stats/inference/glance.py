"""Preliminary tests of whether all clients share one parameter, for methods without a model of clients.

The whole model of clients looks for spreads and for minorities, which takes as long as several fits. Where none of
three quick tests rejects that clients share one parameter, the summary and the choice of the covariance use that model;
`clients()`, `screen` and `heterogeneity()` fit the whole model when they are called.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.inference.client_record import ClientRecord
from adfl_stats.trust import ClientModel
from adfl_stats.trust.mixture import ClientScores
from adfl_stats.trust.scoring import scores_of_all, scores_with_weight
from adfl_stats.trust.summaries import Summaries

__all__ = ["alike", "common_model"]

# Level of each of the three tests. Ours: the usual one; a false alarm costs time only.
ALPHA = 0.05


def common_model(problem: Problem, theta: Array, weights: Array, summaries: Summaries) -> ClientModel | None:
    """Return the model in which all clients share one parameter; None where the numbers of one overflow.

    Parameters
    ----------
    problem : Problem
        Data and family.
    theta : ndarray (P,)
        The estimate.
    weights : ndarray (M,)
        The method's own; clients without weight do not set the noise level.
    summaries : Summaries
        The clients at theta.
    """
    members, counted = problem.members, weights > 0.0
    if members.count(summaries.lost | ~np.asarray(problem.objective.counted)):
        return None
    P = len(theta)
    null, scores, units, _ = scores_with_weight(problem, summaries, counted, counted)
    return ClientModel(
        theta=theta,
        weights=counted.astype(np.float64),
        probabilities=np.column_stack([counted, np.zeros((len(counted), 2))]).astype(np.float64),
        spread=np.zeros((P, P)),
        spread_kind="none",
        components="normal",
        minority_shift=None,
        null=null,
        summaries=summaries,
        scores=scores_of_all(scores, units, null, summaries, counted),
        units=units,
        candidates=[],
    )


def alike(model: ClientModel, record: ClientRecord) -> bool:
    """Return whether no test at level .05 rejects a common parameter: over all, by coefficient, by client.

    Over all coefficients it is Cochran's Q; by client the score test, with Bonferroni's correction.
    """
    counted = model.weights[model.summaries.ranks > 0] > 0.0
    clients = record.members.count(model.weights > 0.0)
    least = float(-record.members.transport.largest(-np.append(record.p_values[model.weights > 0.0], 1.0)))
    differ = (record.cochran[2], clients * least, _by_coefficient(model.scores.of(counted)))
    return min(differ) > ALPHA


def _by_coefficient(scores: ClientScores) -> float:
    """Return the p-value, with Bonferroni's correction, of score tests that one coefficient has no variance.

    Of t = tau_j^2 the log-likelihood has at zero the derivative sum_m (s_mj^2 - J_mjj) / 2 (Liang, 1987, Biometrika
    74:259), s_m and J_m being score and information; sum_m s_mj^2 is referred to the multiple of chi-square that has
    its mean and variance. The variance of s_mj^2 is that of a squared t.
    """
    M, total = scores.n_clients, scores.members.sum
    if M < 2:
        return 1.0
    known = np.diagonal(scores.information, axis1=1, axis2=2)
    heavy = (scores.df - 1.0) / (scores.df - 4.0 + 1e-9)
    mean, variance = total(known), total(2.0 * heavy[:, None] * np.square(known))
    use = mean > 0.0
    # The scores sum to zero at the estimate, which takes a share 1 / M of their squares.
    squares = total(np.square(scores.slopes))[use] * M / (M - 1)
    df = 2.0 * np.square(mean[use]) / variance[use]
    return float(use.sum() * stats.chi2.sf(squares / mean[use] * df, df).min(initial=1.0))
