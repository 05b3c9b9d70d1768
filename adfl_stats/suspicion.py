"""How suspicious a client is, and what weight that leaves it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adfl_stats.evaluation import majority_misfits, score_statistics
from adfl_stats.problem import Problem
from adfl_stats.solutions import weighted_solution

__all__ = [
    "CLEAR",
    "MEASURES",
    "abnormal_probabilities",
    "adaptive_weights",
    "advantage",
    "agree_on_trust",
    "disputed",
    "flags",
    "majority",
    "smallest_majority",
    "suspicion_unit",
    "suspicions",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

MEASURES = ("norm", "score")
# A client with less than this share of the largest weight counts as down-weighted.
TRUST = 0.1
# A client that follows the model has a score statistic beyond this quantile with probability .05.
LEVEL = 0.95
# A client whose p-value, times the number of clients, is below this is flagged whatever the others do.
FAMILY_LEVEL = 0.05
# A client with a larger p-value keeps its weight, whatever the others make it look like.
DOUBT = 0.02
# Abnormal clients' scores are these multiples of a chi-square variable, in unknown shares. Smaller ones would
# take heavy tails for abnormal clients.
SCALES = 2.0 ** (np.arange(3, 25) / 2.0)
# A client that makes up nearly all of the trusted rows has no score left to speak of.
LEAST_SHARE = 0.1
# Twice the gain in log-likelihood that makes abnormal clients believable: beyond what heavy tails would bring.
BELIEVABLE = 15.0
MIXTURE_STEPS = 300
MOST_REFITS = 10
# Two sets of flags disagree where they differ about more than this share of the clients.
DISAGREEMENT = 0.05
# One estimate's advantage over another that is more than leaving out a few normal clients brings: in simulations of
# clean data (3 to 50 coefficients, counts with extra variance among them) that was 2.7 at the most.
CLEAR = 3.0

# Suspicion and score of a client whose numbers overflow: finite, so that zero times it is zero.
LARGEST = 1e150


def suspicions(problem: Problem, theta: Array, measure: str) -> Array:
    """Return every client's suspicion at its own estimate, a row of theta (M, P).

    "norm" is the norm of its gradient, as in equation (4.3); "score" by how much the square root of Rao's
    score statistic exceeds that of its chi-square 95 % point, and zero below.
    """
    if measure == "norm":
        norms = np.linalg.norm(problem.gradients(theta), axis=1)
        return np.where(problem.data.counted, norms, LARGEST)
    scores, ranks = score_statistics(problem.data, problem.family, theta)
    # A client whose rows say nothing of any parameter has rank zero and score zero.
    usual = np.sqrt(stats.chi2.ppf(LEVEL, np.maximum(ranks, 1)))
    return np.clip(np.sqrt(scores) - usual, 0.0, LARGEST)


def suspicion_unit(suspicion: Array, measure: str) -> float:
    """Return what lambda is counted in one over: the median suspicion.

    The excess score has a scale of its own, below which its median does not count.
    """
    return max(float(np.median(suspicion)), 1.0 if measure == "score" else np.finfo(float).tiny)


def adaptive_weights(suspicion: Array, lam: float) -> Array:
    """Return exp(-lam s_m) over its largest value.

    Examples
    --------
    >>> adaptive_weights(np.array([1.0, 2.0]), 1e4).tolist()
    [1.0, 0.0]
    """
    return np.exp(-lam * (suspicion - suspicion.min()))


def trusted_by(weights: Array) -> Mask:
    """Return which clients are not down-weighted; weights (M,) or (M, R)."""
    return np.asarray(weights >= TRUST * weights.max(axis=0))


def majority(M: int) -> int:
    """Return how many of M clients are the least to trust: floor(M / 2) + 1."""
    return min(M, M // 2 + 1)


def smallest_majority(scores: Array) -> Mask:
    """Return which clients have the floor(M / 2) + 1 smallest of the scores (M, R), in each column."""
    chosen = np.zeros(scores.shape, dtype=bool)
    order = np.argsort(scores, axis=0, kind="stable")[: majority(len(scores))]
    np.put_along_axis(chosen, order, True, axis=0)
    return chosen


def flags(problem: Problem, theta: Array, trusted: Mask, before: Mask | None = None) -> Mask:
    """Return the clients (M,) whose score does not fit the model at theta (P,), the estimate of the `trusted`.

    Flagged are clients that are more probably abnormal than not, given all score statistics, and are beyond the
    98 % point of their own; and those beyond what chance would bring in any of M clients. A majority is never flagged.
    Clients flagged `before` stay so while they are beyond the 95 % point: abnormal clients that were let in pull the
    estimate their way, and would make the others of their kind look well.
    """
    # The dispersion is that of all clients: were it that of the unflagged, flags would breed flags.
    scores, ranks = score_statistics(problem.data, problem.family, theta[None])
    ranks = np.maximum(ranks, 1)
    # A client's own rows pulled the estimate its way; to the others the estimate has an error of its own.
    share = problem.sizes / problem.sizes[trusted].sum()
    scores = scores / np.where(trusted, np.maximum(1.0 - share, LEAST_SHARE), 1.0 + share)
    p_values = stats.chi2.sf(scores, ranks)
    found: Mask = (abnormal_probabilities(scores, ranks) > 0.5) & (p_values <= DOUBT)
    found |= problem.M * p_values <= FAMILY_LEVEL
    if before is not None:
        found |= before & (p_values <= 1.0 - LEVEL)
    found[np.argsort(-p_values, kind="stable")[: majority(problem.M)]] = False
    return found


def abnormal_probabilities(scores: Array, ranks: NDArray[np.int64]) -> Array:
    """Return each client's probability of being abnormal, given the score statistics of all (M,).

    A two-groups model: a normal client's statistic is chi-square with its rank, an abnormal one's a multiple of such
    a variable, with a distribution of multiples that maximises the likelihood (by EM on a grid; normal clients are
    at least half). Where that gains too little over normal clients alone, all probabilities are zero. Unlike a rule
    that controls false discoveries it weighs a normal client lost against an abnormal one kept.
    """
    scores = np.minimum(scores, LARGEST)
    under = np.column_stack(
        [stats.chi2.logpdf(scores, ranks), *(stats.chi2.logpdf(scores / s, ranks) - np.log(s) for s in SCALES)]
    )
    top = under.max(axis=1, keepdims=True)
    # A score of zero has no density worth the name; it is normal.
    likelihood = np.where(np.isfinite(top), np.exp(under - np.where(np.isfinite(top), top, 0.0)), 1.0)
    shares = np.full(likelihood.shape[1], 0.2 / len(SCALES))
    shares[0] = 0.8
    for _ in range(MIXTURE_STEPS):
        posterior = likelihood * shares
        posterior /= posterior.sum(axis=1, keepdims=True)
        shares = posterior.mean(axis=0)
        if shares[0] < 0.5:
            shares[1:] *= 0.5 / shares[1:].sum()
            shares[0] = 0.5
    gain = np.log((likelihood * shares).sum(axis=1)) - np.log(np.maximum(likelihood[:, 0], np.finfo(float).tiny))
    if 2.0 * float(gain.sum()) <= BELIEVABLE:
        return np.zeros(len(scores))
    return np.asarray(1.0 - posterior[:, 0])


def agree_on_trust(problem: Problem, theta: Array, trusted: Mask) -> tuple[Mask, Array]:
    """Flag clients and refit without them until the flags stay.

    Parameters
    ----------
    theta : ndarray (P,)
        Where to begin.
    trusted : ndarray (M,) of bool
        The clients that it comes from.

    Returns
    -------
    flagged : ndarray (M,) of bool
        The clients that lose their weight.
    theta : ndarray (P,)
        The estimate of the others.
    """
    seen: list[Mask] = []
    found = flags(problem, theta, trusted)
    for _ in range(MOST_REFITS):
        seen.append(found)
        theta = weighted_solution(problem, np.where(found, 0.0, problem.sizes), theta)
        found = flags(problem, theta, ~found, found)
        if any((found == other).all() for other in seen):
            break
    return found, theta


def advantage(problem: Problem, theta: Array, other: Array) -> float:
    """Return by how much theta (P,) suits its majority better than the other estimate suits its own.

    Majorities are the floor(M / 2) + 1 smallest scores. The unit is that of twice a log-likelihood; see `CLEAR`.
    """
    thetas = np.stack([theta, other])
    scores = [score_statistics(problem.data, problem.family, one[None])[0] for one in thetas]
    mine, its = majority_misfits(problem.data, problem.family, thetas, smallest_majority(np.stack(scores, axis=1)))
    return float(its - mine)


def disputed(flagged: Mask, other: Mask) -> int:
    """Return about how many clients two sets of flags differ, and zero where these are few."""
    apart = int((flagged != other).sum())
    return apart if apart > max(2.0, DISAGREEMENT * len(flagged)) else 0
