"""Scores that normal clients would have: resampled rows, for prices that hold in small, sparse and skewed clients.

A coherent minority is accepted where the likelihood gains more than it would among normal clients. What it gains there
by chance is known for normal scores; scores of small clients are skewed where responses are rare or noise is, and
gain more. A parametric bootstrap (McLachlan, 1987, Applied Statistics 36, 318-324) shows how much: labels are drawn
from the model, other responses get residuals drawn from those of the normal clients about their own estimates.

Clients are drawn batch by batch, each batch from its own residuals: rows do not leave their place, and the draws do not
depend on where a batch is. All places see the same gain in likelihood, which is a sum over clients.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import batches
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import linear_predictor, own_predictor, scaled
from adfl_stats.losses.glm import GLM
from adfl_stats.trust.null import Null
from adfl_stats.trust.summaries import Summaries, has_known_dispersion

__all__ = ["MOST_ROWS", "resampled_scores"]


# Above this many rows there is no bootstrap. Ours: bounds the time; scores of so many rows are close to normal.
MOST_ROWS = 2_000_000
# Sets that are drawn together. Ours: a pass over the data serves them all, and the last ones may not be needed.
BLOCK = 4
# Most residuals to draw from. Ours: bounds the memory.
POOL = 200_000


def resampled_scores(
    problem: Problem,
    theta: Array,
    summaries: Summaries,
    null: Null,
    spread: Array,
    df: float,
    inflation: float,
    normal: Mask,
    block: int,
) -> Array:
    """Return some sets of whitened scores (`BLOCK`, M, P) of clients that are all normal.

    Parameters
    ----------
    problem : Problem
        Data and family.
    theta : ndarray (P,)
        The common parameter.
    summaries, null
        The clients at theta, and their null distribution.
    spread : ndarray (P, P)
        T: every client gets its own parameter, theta + u_m, to first order.
    df : float
        Degrees of freedom of the law of u_m, a t; infinite where it is normal.
    inflation : float
        The variance of scores over that from independent rows (design effect).
    normal : ndarray (M,) of bool
        The clients whose residuals are drawn from.
    block : int
        Which sets: another number gives others.
    """
    numbers, scores = problem.transport.clients(problem.n_clients), np.empty((BLOCK, problem.M, problem.P))
    for at in problem.transport.batches():
        # Other numbers in every batch, the same wherever it is: the first of its clients is a part of the seed.
        rng = np.random.default_rng((20_260_101, numbers[at][0], block))
        some = _Part(problem.glm.of(at), null.dispersions[at], summaries.factors[at], summaries.ranks[at])
        pool = None
        if not has_known_dispersion(problem.glm.data, problem.glm.family):
            pool = _residuals(some, theta, summaries.scores[at], normal[at])
        scores[:, at] = _drawn(some, theta, pool, rng)
        scores[:, at] += _effects(some, spread, df, inflation, rng)
    return scores


@dataclass(frozen=True)
class _Part:
    """The clients of a batch: their rows, and their noise levels and information at the estimate."""

    glm: GLM
    dispersions: Array
    factors: Array
    ranks: Ints


def _drawn(some: _Part, theta: Array, pool: Array | None, rng: np.random.Generator) -> Array:
    """Draw whitened scores (BLOCK, m, P) at theta (P,): labels from the model, or residuals from the pool."""
    data, family, P = some.glm.data, some.glm.family, some.glm.P
    sums = np.zeros((BLOCK, some.glm.M, P))
    for batch in batches(data, P):
        rows = batch.rows
        X, weight = data.X[rows], data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        mean = family.mean(eta)
        noise = batch.spread(np.sqrt(some.dispersions[batch.clients])) / np.sqrt(weight)
        for k in range(BLOCK):
            if pool is None:
                residual = family.residual(eta, _labels(mean, rng))
            else:
                residual = noise * np.sqrt(family.information(eta)) * pool[rng.integers(len(pool), size=len(X))]
            along = batch.cross(scaled(residual, weight).reshape(len(X), -1), X)
            sums[k, batch.clients] -= along.reshape(len(along), -1)
    full = some.ranks == P
    whitened = np.zeros_like(sums)
    L = some.factors.transpose(0, 2, 1)
    whitened[:, full] = np.linalg.solve(L[full], sums[:, full].transpose(1, 2, 0)).transpose(2, 0, 1)
    if not full.all():
        short = np.linalg.pinv(L[~full], rcond=1e-9)
        whitened[:, ~full] = (short @ sums[:, ~full].transpose(1, 2, 0)).transpose(2, 0, 1)
    return whitened


def _effects(some: _Part, spread: Array, df: float, inflation: float, rng: np.random.Generator) -> Array:
    """Draw what the clients' own parameters u_m, and inflation, add to whitened scores, (BLOCK, m, P).

    Scores are linear in u_m, as in the model that T was estimated by: exponentials of effects as large as T allows
    would be of another size altogether.
    """
    values, vectors = np.linalg.eigh(spread)
    own = rng.standard_normal((BLOCK, *some.factors.shape[:2])) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    added = np.einsum("mij,kmj->kmi", some.factors, own)
    if inflation > 1.0:
        beyond = np.sqrt((inflation - 1.0) * some.dispersions)[:, None] * rng.standard_normal(own.shape)
        # Beyond a client's rank scores are zero.
        added += beyond * some.factors.any(axis=2)
    if np.isfinite(df):
        added *= np.sqrt((df - 2.0) / rng.chisquare(df, (BLOCK, len(some.factors), 1)))
    return np.asarray(added)


def _labels(mean: Array, rng: np.random.Generator) -> Array:
    """Draw labels with these means (n,), or classes with these probabilities (n, q + 1)."""
    if mean.ndim == 1:
        return (rng.random(len(mean)) < mean).astype(np.float64)
    return np.asarray((rng.random((len(mean), 1)) > np.cumsum(mean, axis=1)[:, :-1]).sum(axis=1), dtype=np.float64)


def _residuals(some: _Part, theta: Array, scores: Array, normal: Mask) -> Array:
    """Return residuals of the normal clients' rows about their own estimates, per unit of noise, with mean zero."""
    data, family, P = some.glm.data, some.glm.family, some.glm.P
    # A batch without a normal client uses the residuals of all its clients.
    normal = normal if normal.any() else np.ones_like(normal)
    deviation = np.zeros((some.glm.M, P))
    full = normal & (some.ranks == P)
    deviation[full] = np.linalg.solve(some.factors[full], scores[full][:, :, None])[:, :, 0]
    parts = []
    for batch in batches(data, P):
        rows = batch.rows
        use = batch.spread(normal[batch.clients])
        eta = own_predictor(data, family, theta + deviation[batch.clients], batch)
        noise = batch.spread(some.dispersions[batch.clients]) * family.information(eta)
        unit = np.sqrt(noise / data.weights_of(rows))
        parts.append((family.residual(eta, data.y[rows]) / np.maximum(unit, np.finfo(float).tiny))[use])
    pool = np.concatenate(parts)
    pool = pool[:: max(1, len(pool) // POOL)]
    pool = pool - pool.mean()
    return np.asarray(pool / max(float(pool.std()), np.finfo(float).tiny))
