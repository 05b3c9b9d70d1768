"""How a client that follows the model varies: its noise level, the tails of its score, the shape of its variance.

A client's noise level is its own residual variance, moderated towards that of the others as far as noise levels
resemble one another (the empirical Bayes variances of Smyth, 2004, Statistical Applications in Genetics 3:3, with
quartiles in place of moments, so that some abnormal clients do no harm). Residuals are taken about the client's own
estimate: those about the common one would let a shifted client raise its own scale. A client that is noisier than the
law of the others' noise levels allows keeps its own, up to a bound: excess noise alone does not make a client abnormal.

The score statistic Q_m of a client has, in general, the variance

    2 r_m + kappa L_m + 2 r_m^2 / d_m,

with r_m its degrees of freedom, kappa the excess kurtosis of the rows' scores, L_m a sum of squared leverages and d_m
the degrees of freedom of the noise level. Its null distribution is the F distribution (r_m and nu_m degrees of freedom)
of that variance: the score is taken as multivariate t.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from adfl_stats._types import Array, Mask
from adfl_stats.engine.transport import Members
from adfl_stats.trust.summaries import Summaries

__all__ = ["Null", "calibrate"]


# Fewer clients share one noise level. Ours: quartiles of fewer values do not estimate a variance.
LEAST_FOR_LEVELS = 8
# One noise level for all is pooled over clients whose logarithms are this many interquartile ranges or less from the
# median. Ours: of normal values one in 20,000 is beyond (Tukey, 1977, has 1.5 from the quartiles for one in 150).
USUAL_RANGES = 3.0
# Factor of the sampling variance in the shrinkage of the shape (Ledoit and Wolf, 2004, have 1). Ours: the formula for
# that variance takes covariates as normal.
SHRINKAGE_FACTOR = 1.5
# Degrees of freedom from which t is computed as normal. Ours: beyond, t differs from it by
# hardly more than the rounding of log gamma functions.
NORMAL = 1e7
# A client's fourth moment is winsorised at this multiple of the median client's. Ours: bounds the influence of few.
MOST_RATIO = 10.0
# A client's own noise level is at most this many times the typical one. Ours: against masking by large residuals; a
# client with more is far off. Judged by "medpar" of `benchmarks/real_clients.py --real`, where it is 10.
MOST_NOISE = 16.0
# Tail probability over share below which a client's noise level is taken as its own, in part. Ours: of clients with one
# law the smallest such ratio is below it in one data set of twenty. With 1 in its place the noisier half of ordinary
# clients would keep much of their own level, and p-values be too large (.083 below .1 with t errors, and .099 so).
RARE = 0.05


@dataclass(frozen=True, eq=False)
class Null:
    """The null distribution of a client that follows the model.

    Attributes
    ----------
    dispersion : float
        The typical noise level phi; at least one where the family has none to estimate.
    dispersions : ndarray (M,)
        Each client's noise level, moderated.
    prior : float
        Degrees of freedom that the others' noise levels count for; infinite where all clients share one.
    kurtosis : float
        kappa, at least zero.
    df : ndarray (M,)
        nu_m, the degrees of freedom of the clients' t distributions.
    shape : ndarray (P, P)
        The variance of a whitened score over the client's noise level: the identity where the family's variance
        function holds, else as the rows' squared residuals have it, shrunk by its own error.
    """

    dispersion: float
    dispersions: Array
    prior: float
    kurtosis: float
    df: Array
    shape: Array


def calibrate(summaries: Summaries, normal: Mask, *, known: bool, least: float, floor: float = 0.0) -> Null:
    """Find noise levels, kurtosis and degrees of freedom.

    Parameters
    ----------
    summaries : Summaries
        The clients.
    normal : ndarray (M,) of bool
        Those that set the scale.
    known : bool
        Whether the dispersion follows from the mean (labels): all noise levels are then one.
    least : float
        What the dispersion is at least: one for counts, whose variance can only exceed the family's.
    floor : float
        Noise levels below this are rounding.
    """
    M, ranks, members = len(summaries.sizes), np.maximum(summaries.ranks, 1), summaries.members
    # Medians and quartiles of all clients; the result has a row for each of ours.
    every = members.gather
    residual_df = np.maximum(summaries.sizes - ranks, 0.0)
    usable = normal & np.isfinite(summaries.dispersions) & (summaries.dispersions > floor)
    own = np.where(np.isfinite(summaries.dispersions), np.maximum(summaries.dispersions, floor), 0.0)
    some = members.count(usable) > 0
    if known:
        typical, prior = 1.0, np.inf
    elif not some:
        # No client has residual degrees of freedom: only residuals about the common estimate are available.
        use = normal & np.isfinite(summaries.residuals)
        about = every(summaries.residuals[use] * summaries.sizes[use] / stats.chi2.ppf(0.5, summaries.sizes[use]))
        typical = max(float(np.median(about)) if len(about) else 1.0, least, floor, np.finfo(float).tiny)
        prior = np.inf
    else:
        typical, prior = _prior(every(own[usable]), every(residual_df[usable]))
        typical = max(typical, least, floor)
    if np.isinf(prior):
        levels, share = np.full(M, typical), np.zeros(M)
        rows = float(members.sum(np.where(usable, residual_df, 0.0) if some else np.where(normal, summaries.sizes, 0)))
        df = np.full(M, np.inf if known else max(rows, 1.0))
    else:
        # Residuals of an abnormal client may be of any size; unbounded they would mask its shift.
        bounded = np.minimum(own, MOST_NOISE * typical)
        levels = np.maximum((prior * typical + residual_df * bounded) / (prior + residual_df), least)
        share, df = residual_df / (prior + residual_df), prior + residual_df
        # A score over the root of such a level is t with d degrees of freedom, whose variance is d / (d - 2).
        levels = levels * df / np.maximum(df - 2.0, 1.0)
    if some and not known:
        # Some clients are noisier than the law of the others' noise levels allows: theirs is their own.
        alike = _alike(own / typical, residual_df, prior, summaries.ranks > 0, members)
        itself = np.minimum(own, MOST_NOISE * typical) * residual_df / np.maximum(residual_df - 2.0, 1.0)
        levels = alike * levels + (1.0 - alike) * np.maximum(itself, levels)
        share = alike * share + (1.0 - alike)
        df = 1.0 / (alike / df + (1.0 - alike) / np.maximum(residual_df, 1.0))
    kurtosis = _kurtosis(summaries, normal, levels)
    # A score over its own client's noise level has no heavy tails from kurtosis; over the common one it has all.
    heavy = kurtosis * np.square(1.0 - share) * np.nan_to_num(summaries.expected_peaks) / (3.0 * ranks**2)
    excess = heavy + 2.0 / df
    df = np.minimum(4.0 + (2.0 + 4.0 / ranks) / np.maximum(excess, 1e-12), NORMAL)
    return Null(typical, levels, prior, kurtosis, df, _shape(summaries, kurtosis))


def _shape(summaries: Summaries, kurtosis: float) -> Array:
    """Return the shape of the variance, shrunk towards the identity as far as chance explains the difference.

    With whitened normal covariates an entry of the mean of squared residuals times their products has variance
    3 (1 + kappa / 3) / N off the diagonal and 8 (1 + kappa / 2) / N on it; the intensity is Ledoit and Wolf's (2004).
    """
    P = len(summaries.shape)
    apart = summaries.shape - np.eye(P)
    size = float(np.square(apart).sum())
    if summaries.shape_rows <= 0.0 or size == 0.0:
        return np.eye(P)
    chance = (3.0 * P * (P - 1) + 8.0 * P) * (1.0 + kurtosis / 2.0) / summaries.shape_rows
    return np.asarray(np.eye(P) + max(0.0, 1.0 - SHRINKAGE_FACTOR * chance / size) * apart)


def _prior(levels: Array, df: Array) -> tuple[float, float]:
    """Return the typical noise level and the degrees of freedom it counts for, Smyth's s_0^2 and d_0.

    The logarithm of a noise level with d degrees of freedom has variance psi'(d / 2) about the client's own; what
    the noise levels vary beyond that is their spread between clients.
    """
    pooled = float(df @ levels / df.sum())
    logs = np.log(levels) - special.digamma(df / 2.0) + np.log(df / 2.0)
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    spread = ((high - low) / 1.349) ** 2
    beyond = spread - float(np.mean(special.polygamma(1, df / 2.0)))
    # A variance by quartiles of M values has the relative standard error 2.3 / sqrt(M).
    chance = max(2.3 / np.sqrt(len(levels)) * spread, float(special.polygamma(1, NORMAL)))
    if len(levels) < LEAST_FOR_LEVELS or beyond <= chance:
        # One level for all: pooled over the clients in the middle, which abnormal ones do not reach.
        usual = np.abs(logs - middle) <= USUAL_RANGES * max(high - low, 1e-8)
        return float(df[usual] @ levels[usual] / df[usual].sum()) if usual.any() else pooled, np.inf
    half = optimize.brentq(lambda x: float(special.polygamma(1, np.exp(x))) - beyond, -10.0, np.log(NORMAL))
    prior = 2.0 * float(np.exp(half))
    return float(np.exp(middle + special.digamma(prior / 2.0) - np.log(prior / 2.0))), prior


def _alike(ratios: Array, df: Array, prior: float, counted: Mask, members: Members) -> Array:
    """Return the probability (M,) that a client's noise level follows the law of those `counted`.

    The upper tail probability of its ratio to the typical level over the share of clients with as large a ratio,
    monotone (Phipson, Lee, Majewski, Alexander and Smyth, 2016, Annals of Applied Statistics 10, 946-963), and one from
    `RARE` on: the ratio of ordinary clients is one on average only.
    """
    df = np.maximum(df, 1.0)
    tails = stats.chi2.sf(ratios * df, df) if np.isinf(prior) else stats.f.sf(ratios, df, prior)
    every = np.sort(members.gather(tails[counted]))
    shares = (np.arange(len(every)) + 0.5) / max(len(every), 1)
    monotone = np.append(0.0, np.maximum.accumulate(np.minimum(every / shares, 1.0)))
    place = np.searchsorted(every, tails)
    own = np.minimum(tails * max(len(every), 1) / (place + 0.5), 1.0)
    return np.asarray(np.minimum(np.maximum(monotone[place], own) / RARE, 1.0))


def _kurtosis(summaries: Summaries, normal: Mask, levels: Array) -> float:
    """Return the excess kurtosis of the rows' scores over the normal clients; light tails are not counted on."""
    # Squares of tiny levels would underflow.
    use = normal & (levels > 1e-150) & np.isfinite(summaries.peaks) & np.isfinite(summaries.own_peaks)
    use &= summaries.own_peaks > 0.0
    every, expected = summaries.members.gather, summaries.own_peaks[use]
    ratios = every(summaries.peaks[use] / levels[use] / levels[use] / expected)
    if not len(ratios):
        return 0.0
    expected = every(expected)
    # Winsorised against a few clients that the model does not describe.
    ratios = np.minimum(ratios, MOST_RATIO * np.median(ratios))
    return max(3.0 * float(expected @ ratios / expected.sum()) - 3.0, 0.0)
