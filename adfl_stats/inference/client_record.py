"""The fitted model of clients, without the data: score statistics, spread, deviations, effects.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from adfl_stats._algebra import congruences, inverse, lower_solutions, stacked_cholesky, summed_products
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import client_chunks
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.inference.clustered import LEAST_VARIANCE
from adfl_stats.trust.client_model import ClientModel
from adfl_stats.trust.null import Null
from adfl_stats.trust.summaries import Summaries

__all__ = ["ClientEffects", "ClientRecord", "client_effects", "record_clients"]


# The empirical null (Efron, 2004) needs this many normal clients. Ours: the median of fewer is too variable.
LEAST_FOR_NULL = 20
# Gain in log-likelihood that heavier tails need: half the .95 quantile of chi-square with one df (likelihood ratio
# test).
LEAST_GAIN = 1.92
# Degrees of freedom, beyond 4, that are tried for the tails. Ours: a geometric grid.
TAILS = (np.inf, 200.0, 100.0, 50.0, 25.0, 12.0, 6.0, 3.0)
# A noisy client has at least this residual variance over the typical one, and a Bonferroni test at this level. Ours: in
# large clients less is significant too and hardly matters; the level is the usual one.
NOISY, FAMILY_LEVEL = 2.0, 0.05


@dataclass(frozen=True, eq=False)
class ClientRecord:
    """The model of clients at the estimate.

    Attributes
    ----------
    spread_kind, components : str
        Which parts the model has: spread "none", "common", "diagonal", "rank k", "inflated" or sums of these;
        components "normal", "coherent", "gross".
    candidates : list of [str, str, float]
        Spread, components and criterion of the models that were compared, the best first.
    probabilities : ndarray (M, 3)
        Of being normal, of belonging to a coherent minority, of being gross.
    spread : ndarray (P, P)
        T, the covariance of the normal clients' parameters.
    minority_shift : ndarray (P,)
        Of the coherent minority; NaN where there is none.
    dispersion, prior, kurtosis : float
        The typical noise level, the degrees of freedom it counts for, the excess kurtosis of the rows' scores.
    noise : ndarray (M,)
        Each client's own residual variance over the typical one; NaN where it has too few rows, or labels.
    noisy : ndarray (M,) of bool
        Whether that is beyond chance.
    statistics, ranks, df, p_values : ndarray (M,)
        The score statistic s_m' Var(s_m)^+ s_m at the estimate, its degrees of freedom and those of its tails, and the
        p-value. The variance has the clients' noise levels, the spread T, and what the client's own rows did to the
        estimate; the statistic is divided by the ratio of its median over the normal clients to that of the null,
        as far as this is above one beyond chance.
    precision : ndarray (P, P)
        The mean over the normal clients of (J_m^-1 + T)^-1, J_m the client's information over its noise level: a
        client's information about the mean of the parameters.
    cochran : list of float
        Cochran's Q of the normal clients over all coefficients, its degrees of freedom, and its p-value.
    inflation : float
        Overdispersion of the clients' scores beside the spread: their variance over that from independent rows.
    members : Members
        The clients; those of the rows are ours. A file does not keep it: all clients of a loaded record are ours.
    """

    spread_kind: str
    components: str
    candidates: list[Any]
    probabilities: Array
    spread: Array
    minority_shift: Array
    dispersion: float
    prior: float
    kurtosis: float
    noise: Array
    noisy: Mask
    statistics: Array
    ranks: Ints
    df: Array
    p_values: Array
    cochran: list[float]
    precision: Array
    inflation: float = 1.0
    members: Members = EVERYBODY

    WORDS: ClassVar = (
        *("spread_kind", "components", "candidates", "cochran"),
        *("dispersion", "prior", "kurtosis", "inflation"),
    )

    @property
    def differ(self) -> bool:
        """Whether clients differ."""
        return self.spread_kind != "none"

    @property
    def client_sd(self) -> Array:
        """Standard deviations of a client's own estimate (P,), sampling and spread together.

        Of an average client: one that does not identify a coefficient by itself counts with its information about it.
        """
        size = np.sqrt(np.diag(self.precision))
        if not (size > 0.0).all():
            return np.full(len(size), np.nan)
        return np.sqrt(np.diag(np.linalg.pinv(self.precision / np.outer(size, size), hermitian=True))) / size

    def quantile(self, level: float) -> Array:
        """Return the quantiles (M,) of the statistics of clients that follow the model, at this probability."""
        ranks = np.maximum(self.ranks, 1)
        return np.asarray(ranks * (1.0 - 2.0 / self.df) * stats.f.ppf(level, ranks, self.df))

    def words(self) -> dict[str, Any]:
        """Return what is not an array, for a file."""
        return {name: getattr(self, name) for name in self.WORDS}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, for a file."""
        names = [part.name for part in fields(self) if part.name not in (*self.WORDS, "members")]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class ClientEffects:
    """Deviations of the clients from the estimate.

    Attributes
    ----------
    deviations, errors : ndarray (M, P)
        One scoring step from the estimate to the client's own, and its standard errors (sampling alone); NaN where the
        client does not identify all coefficients.
    effects, effect_errors : ndarray (M, P)
        The deviations shrunk by T (empirical Bayes), and their standard errors; zero where clients do not differ.
    """

    deviations: Array
    errors: Array
    effects: Array
    effect_errors: Array


def record_clients(
    model: ClientModel,
    judging: ClientModel,
    total_weights: Array,
    rows: Array,
    information: Array,
    *,
    known: bool,
    smooth: bool,
) -> ClientRecord:
    """Sum up a model of clients at the estimate.

    Parameters
    ----------
    model : ClientModel
        With summaries at the estimate.
    judging : ClientModel
        The same, expanded about the clients' own effects where the link is not linear.
    total_weights : ndarray (M,)
        The clients' total weights v_m.
    rows : ndarray (M,)
        The clients' total row weights; v_m / (M rows) is what a row counts in the estimating equation.
    information : ndarray (M, P, P)
        Each client's mean information.
    known : bool
        Whether the dispersion follows from the mean, so that no client can be noisy.
    smooth : bool
        Whether the estimate solves that equation; if not it is taken as given.
    """
    summaries, null, members = model.summaries, model.null, model.summaries.members
    M, P = summaries.scores.shape
    informative, everybody = summaries.ranks > 0, members.count(np.ones(M, dtype=bool))
    # A client without information has p-value one, unless its numbers overflow.
    silent = ~informative & (model.probabilities[:, 0] > 0.5)
    alone = total_weights / (everybody * rows) if smooth else np.zeros(M)
    statistics, ranks = _statistics(judging, alone, rows, information)
    inflation, df = _empirical_null(
        statistics, ranks, null.df, (model.probabilities[:, 0] > 0.5) & informative, members
    )
    statistics = statistics / inflation
    with np.errstate(divide="ignore", invalid="ignore"):
        p_values = stats.f.sf(statistics / np.maximum(ranks, 1) / (1.0 - 2.0 / df), np.maximum(ranks, 1), df)
    noise, noisy = _noise(summaries, null, known=known)
    return ClientRecord(
        spread_kind=model.spread_kind,
        components=model.components,
        candidates=[list(one) for one in model.candidates],
        probabilities=model.probabilities,
        spread=model.spread,
        minority_shift=np.full(P, np.nan) if model.minority_shift is None else model.minority_shift,
        dispersion=null.dispersion,
        prior=null.prior,
        kurtosis=null.kurtosis,
        inflation=model.inflation,
        noise=noise,
        noisy=noisy,
        statistics=np.where(informative, statistics, np.where(silent, 0.0, np.inf)),
        ranks=ranks,
        df=df,
        p_values=np.where(informative & (ranks > 0), p_values, np.where(informative | silent, 1.0, 0.0)),
        cochran=model.cochran,
        precision=_precision(model),
        members=members,
    )


def _precision(model: ClientModel) -> Array:
    """Return the mean over the normal clients of (J^-1 + T)^-1 = (I + J T)^-1 J."""
    scores, units = model.scores.inflated(model.inflation), model.units
    P = len(units)
    normal = (model.probabilities[model.summaries.ranks > 0, 0] > 0.5).astype(np.float64)

    def part(at: slice) -> Array:
        J = scores.information[at]
        left = np.linalg.solve(np.eye(P) + J @ model.scored_spread(at), J) if model.differ else J
        return summed_products(normal[at], np.asarray(left, dtype=np.float64))

    count = max(scores.members.count(normal), 1)
    try:
        return scores.members.total(part) / (count * np.outer(units, units))
    except np.linalg.LinAlgError:
        raise ValueError(
            "at this estimate the clients' information and the spread between them cannot be combined: the matrix is "
            "singular, as where rounds with too large a step, or too few, end far from the data. Give a smaller step, "
            "more rounds, or neither"
        ) from None


def client_effects(model: ClientModel) -> ClientEffects:
    """Return the clients' deviations from the estimate, raw and shrunk (empirical Bayes)."""
    summaries = model.summaries
    M, P = summaries.scores.shape
    informative, full = summaries.ranks > 0, summaries.ranks == P
    deviations, errors = np.full((M, P), np.nan), np.full((M, P), np.nan)
    deviations[full] = np.linalg.solve(summaries.factors[full], summaries.scores[full][:, :, None])[:, :, 0]
    effects, effect_errors = np.zeros((M, P)), np.zeros((M, P))
    errors[informative], effects[informative], effect_errors[informative] = _effects(model)
    errors[~full] = np.nan
    return ClientEffects(deviations, errors, effects, effect_errors)


def _statistics(model: ClientModel, alone: Array, rows: Array, information: Array) -> tuple[Array, Ints]:
    """Return s_m' Var(s_m)^+ s_m and its rank, in coordinates in which the client's information is the identity.

    With W_m the variance of the whitened score z_m (noise level times shape, plus L_m'T L_m) and a_m what a row of the
    client counts, the estimate moves z_m by L_m'H^-1 sum_k a_k L_k z_k, H = sum_k a_k J_k, and its variance to

        W_m - a_m (W_m G_m + G_m W_m) + L_m' S L_m,   G_m = L_m'H^-1 L_m,   S = H^-1 (sum_k a_k^2 L_k W_k L_k') H^-1.

    Where W_m = phi_m I this is phi_m I + L_m' (S - 2 a_m phi_m H^-1) L_m.
    """
    summaries, noise = model.summaries, model.null.dispersions
    factors, P = summaries.factors, summaries.factors.shape[1]
    plain = not model.differ and bool((model.null.shape == np.eye(P)).all())
    informative, members = summaries.ranks > 0, summaries.members
    bread = S = np.zeros((P, P))

    def summed(share: Array, at: slice) -> Array:
        use, each = informative[at], share[at] * rows[at]
        # Without a copy of the matrices where there is no need of one.
        return summed_products(each[use], information[at] if use.all() else information[at][use])

    if members.count(alone):
        bread = inverse(members.total(partial(summed, alone)))
        outer = members.total(partial(summed, alone**2 * noise) if plain else partial(_outer, model, alone))
        S = bread @ outer @ bread
    statistics, ranks = np.empty(len(factors)), summaries.ranks.copy()
    scales = np.maximum(noise, np.finfo(float).tiny)
    for at in client_chunks(len(factors), P):
        L, scale, diagonal = factors[at], scales[at], np.arange(P)
        if plain:
            middle = S - 2.0 * (alone[at] * scale)[:, None, None] * bread
            W = congruences(L, middle, triangular=bool((ranks[at] == P).all()))
            W[:, diagonal, diagonal] += scale[:, None]
        else:
            W, flipped = _variances(model, at), L.transpose(0, 2, 1)
            cross = alone[at, None, None] * (W @ (L @ bread @ flipped))
            W += L @ S @ flipped - cross - cross.transpose(0, 2, 1)
        W /= scale[:, None, None]
        # Beyond a client's rank the score is zero; a unit variance there changes nothing.
        short = np.flatnonzero(ranks[at] < P)
        beyond = np.square(L[short]).sum(axis=2) == 0.0
        W[short] = np.where(beyond[:, :, None] | beyond[:, None, :], 0.0, W[short])
        W[short[:, None], diagonal, diagonal] += beyond
        statistics[at], less = _quadratic_forms(W, summaries.scores[at] / np.sqrt(scale)[:, None])
        ranks[at] -= less
    return statistics, np.maximum(ranks, 0)


def _outer(model: ClientModel, alone: Array, part: slice) -> Array:
    """Return the sum of a_k^2 L_k W_k L_k' over a part of the clients."""
    factors = model.summaries.factors
    M, P, _ = factors.shape
    outer = np.zeros((P, P))
    for at in client_chunks(M, P, part):
        L = alone[at, None, None] * factors[at]
        outer += (L.transpose(0, 2, 1) @ _variances(model, at) @ L).sum(axis=0)
    return outer


def _variances(model: ClientModel, at: slice) -> Array:
    """Return W_m of some clients: noise level times inflation and shape, plus L_m'T L_m."""
    factors, P = model.summaries.factors[at], model.summaries.factors.shape[1]
    full = (model.summaries.ranks[at] == P)[:, None, None]
    shape = np.where(full, model.null.shape, np.eye(P))
    W = model.inflation * model.null.dispersions[at, None, None] * shape
    return W + factors @ model.spread_of(at) @ factors.transpose(0, 2, 1) if model.differ else W


def _quadratic_forms(variance: Array, along: Array) -> tuple[Array, Ints]:
    """Return z'V^+ z for stacks V (C, P, P) and z (C, P), and how much rank V lacks."""
    lower, full = stacked_cholesky(variance, np.sqrt(LEAST_VARIANCE))
    statistics, less = np.empty(len(along)), np.zeros(len(along), dtype=np.int64)
    statistics[full] = np.square(lower_solutions(lower[full], along[full])).sum(axis=1)
    if full.all():
        return statistics, less
    values, vectors = np.linalg.eigh(variance[~full])
    keep = values > LEAST_VARIANCE
    squares = np.square((vectors.transpose(0, 2, 1) @ along[~full][:, :, None])[:, :, 0])
    statistics[~full] = np.divide(squares, values, out=np.zeros_like(values), where=keep).sum(axis=1)
    less[~full] = (~keep).sum(axis=1)
    return statistics, less


def _empirical_null(statistics: Array, ranks: Ints, df: Array, normal: Mask, members: Members) -> tuple[float, Array]:
    """Return a factor of the statistics, and degrees of freedom, estimated from the normal clients themselves.

    Efron's (2004) empirical null: a spread too small to be estimated, or tails heavier than the kurtosis implies,
    inflate the statistics of the normal clients. The factor compares medians, the tails are the most likely of a few;
    both only make flags rarer.
    """
    use = normal & (ranks > 0)
    if members.count(use) < LEAST_FOR_NULL:
        return 1.0, df
    Q, r, nu = (members.gather(values[use]) for values in (statistics, ranks.astype(np.float64), df))
    expected = stats.f.ppf(0.5, r, nu) * r * (1.0 - 2.0 / nu)
    # A median over M clients has the standard error 1.25 / sqrt(M) times that of one; so much is not counted.
    error = 1.25 * float(np.mean(np.sqrt(2.0 / r))) / np.sqrt(len(Q))
    inflation = max(1.0, float(np.median(Q / expected)) - error)
    fits = []
    for most in TAILS:
        tail = np.minimum(nu, 4.0 + most)
        scale = 1.0 - 2.0 / tail
        fits.append(float((stats.f.logpdf(Q / (inflation * r * scale), r, tail) - np.log(scale)).sum()))
    best = int(np.argmax(fits))
    return inflation, np.minimum(df, 4.0 + TAILS[best if fits[best] - fits[0] > LEAST_GAIN else 0])


def _noise(summaries: Summaries, null: Null, *, known: bool) -> tuple[Array, Mask]:
    """Return each client's residual variance over the typical one, and whether it is beyond chance.

    A variance of n rows with d degrees of freedom varies as one of 2 / (2 / d + kappa / n) normal rows would.
    """
    M, typical = len(summaries.sizes), null.dispersion
    everybody = summaries.members.count(np.ones(M, dtype=bool))
    if known or not typical > 0.0:
        return np.full(M, np.nan), np.zeros(M, dtype=bool)
    noise = summaries.dispersions / typical
    residual_df = np.maximum(summaries.sizes - summaries.ranks, 1.0)
    df = 2.0 / (2.0 / residual_df + null.kurtosis / np.maximum(summaries.sizes, 1.0))
    with np.errstate(invalid="ignore"):
        beyond = stats.chi2.sf(noise * df, df) * everybody < FAMILY_LEVEL
    return noise, np.isfinite(noise) & beyond & (noise > NOISY) & (summaries.ranks > 0)


def _effects(model: ClientModel) -> tuple[Array, Array, Array]:
    """Return the standard errors of the clients' own estimates, E(u_m | scores) and its standard deviation.

    For the clients that have a score, at the estimate.
    """
    scores, units = model.scores, model.units
    noisy = scores.inflated(model.inflation)
    P = len(units)
    errors, effects, spreads = (np.zeros((scores.M, P)) for _ in range(3))
    for at in client_chunks(scores.M, P):
        J, full = scores.information[at], scores.ranks[at] == P
        part = np.full((len(J), P), np.nan)
        part[full] = np.sqrt(np.diagonal(np.linalg.inv(J[full]), axis1=1, axis2=2))
        errors[at] = part * units
        if model.differ:
            T = model.scored_spread(at)
            # T (I + J T)^-1 = T - T J_T T without an inverse of T, which may be singular.
            posterior = np.linalg.solve(np.eye(P) + T @ noisy.information[at], np.broadcast_to(T, J.shape))
            effects[at] = (posterior @ noisy.slopes[at][:, :, None])[:, :, 0] * units
            spreads[at] = np.sqrt(np.maximum(np.diagonal(posterior, axis1=1, axis2=2), 0.0)) * units
    return errors, effects, spreads
