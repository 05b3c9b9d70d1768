"""Degrees of freedom of tests by client: of single contrasts, and of several together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from adfl_stats._algebra import summed_products
from adfl_stats._types import Array, Mask
from adfl_stats.engine.transport import Members
from adfl_stats.inference.clustered import LEAST_SHARE, Clustered
from adfl_stats.inference.t_reference import dependent_df

__all__ = ["FEW_CLIENTS", "contrast_df", "identified", "joint_df", "satterthwaite_df"]


# With fewer clients, degrees of freedom come from the joint distribution of estimate and standard error, and standard
# errors are by client wherever clients vary more than their rows explain. Ours: t with 49 degrees of freedom has 2.5 %
# longer intervals than the normal distribution, so that above it the choice costs little either way.
FEW_CLIENTS = 50


def identified(working: Array, expected: Array, contrasts: Array) -> Mask:
    """Return for which contrasts (R, P) the variance is estimable: more than one client (or row) identifies them.

    `working` and `expected` (P, P) are the variance under the working model and the mean of its estimate there.
    """
    mean, model = (np.einsum("ij,jk,ik->i", contrasts, part, contrasts) for part in (expected, working))
    return np.asarray(mean >= LEAST_SHARE * model)


def contrast_df(record: Clustered, contrasts: Array) -> Array:
    """Return the degrees of freedom of contrasts (R, P), one each.

    With fewer than FEW_CLIENTS those of `dependent_df`, else Satterthwaite's. NaN where one client alone identifies the
    contrast. Where the record does not keep the clients' matrices, a contrast of several coefficients has the bound
    `least_df`.
    """
    shown = identified(record.working, record.expected, contrasts)
    known = np.flatnonzero(shown & contrasts.any(axis=1))
    out = np.where(shown, np.inf, np.nan)
    variance = np.einsum("ij,jk,ik->i", contrasts[known], record.working, contrasts[known])
    # Of variance one: the squares of variances in extreme units would overflow.
    unit = contrasts[known] / np.sqrt(np.where(variance > 0.0, variance, 1.0))[:, None]
    few = record.keeps and record.clients < FEW_CLIENTS
    out[known] = _dependent(record, unit) if few else satterthwaite_df(record, unit)
    return out


def satterthwaite_df(record: Clustered, contrasts: Array) -> Array:
    """Return Satterthwaite's degrees of freedom of contrasts (R, P) that clients identify (Bell & McCaffrey 2002)."""
    out = np.empty(len(contrasts))
    for k, c in enumerate(contrasts):
        if np.count_nonzero(c) == 1:
            out[k] = record.df[np.flatnonzero(c)[0]]
        elif not record.keeps:
            out[k] = record.least_df
        else:
            squares = _products(*_along(record, c[None]), record.members)[0, 0, 0]
            out[k] = max((c @ record.expected @ c) ** 2 / squares, 1.0)
    return out


def _dependent(record: Clustered, contrasts: Array) -> Array:
    """Return the degrees of freedom of contrasts (R, P) by the joint distribution of estimate and standard error.

    A client's contribution and the estimate have the covariance p_m' Omega_m H^-1 c - l_m' S c = r_m' c - l_m' S c / 2.
    """
    if not len(contrasts):
        return np.zeros(0)
    gather = record.members.gather
    own = gather(np.einsum("mri,ri->mr", contrasts @ record.own, contrasts))
    left, right = (gather(np.einsum("mij,rj->mri", part, contrasts)) for part in (record.left, record.right))
    shared = np.einsum("mri,ri->mr", right, contrasts) - 0.5 * np.einsum("mri,ri->mr", left, contrasts @ record.working)
    variance = np.einsum("ri,ij,rj->r", contrasts, record.working, contrasts)
    by_contrast = left.transpose(1, 0, 2), right.transpose(1, 0, 2)
    return dependent_df(own.T, *by_contrast, shared.T, variance)


def joint_df(record: Clustered, contrasts: Array) -> float:
    """Return the degrees of freedom eta of a joint test of contrasts (q, P).

    With D the CR2 covariance of the contrasts in units of its mean under the working model, eta makes the total
    variance of the entries of D that of a Wishart matrix over eta: eta = q (q + 1) / sum_st Var(d_st). The Wald
    statistic Q is then taken as Hotelling's T^2, and (eta - q + 1) / (eta q) Q as F(q, eta - q + 1): the approximate
    Hotelling test of Pustejovsky & Tipton (2018). With one contrast it is the t test.

    NaN where one client alone identifies a combination of the contrasts, or they are linearly dependent.
    """
    q = len(contrasts)
    mean = contrasts @ record.expected @ contrasts.T
    model = contrasts @ record.working @ contrasts.T
    size = np.sqrt(np.diag(model))
    unit = np.outer(size, size)
    if np.linalg.eigvalsh((mean - LEAST_SHARE * model) / unit)[0] <= 0.0:
        return np.nan
    if q == 1:
        return float(contrast_df(record, contrasts)[0])
    if not record.keeps:
        return record.least_df
    white = np.linalg.solve(np.linalg.cholesky(mean), contrasts)
    return q * (q + 1) / float(_products(*_along(record, white), record.members).sum())


def _along(record: Clustered, contrasts: Array) -> tuple[Array, Array, Array]:
    """Return own (m, q, q), and left and right (q, m, P), for contrasts (q, P)."""
    left, right = (
        np.ascontiguousarray((part @ contrasts.T).transpose(2, 0, 1)) for part in (record.left, record.right)
    )
    return contrasts @ record.own @ contrasts.T, left, right


def _products(own: Array, left: Array, right: Array, members: Members) -> Array:
    """Return <G_ss, G_tt> and tr(G_st G_st), (2, q, q), where G_st is the covariance of contrasts s and t by client.

    Their sum is the variance of the sum over clients of the products of their contributions to s and t.
    """
    q = len(left)
    out = np.empty((2, q, q))
    for s in range(q):
        for t in range(s + 1):
            pairs = (left[s], left[t]), (right[s], right[t]), (left[s], right[t]), (right[s], left[t])
            ll, rr, lr, rl = members.total(partial(_grams, pairs))
            low = {
                (i, j): -np.einsum("mp,mp->m", left[i], right[j]) - np.einsum("mp,mp->m", right[i], left[j])
                for i, j in ((s, s), (t, t), (s, t))
            }
            alone = (
                (own[:, s, s], own[:, t, t] + low[t, t]),
                (own[:, t, t], low[s, s]),
                (own[:, s, t], own[:, s, t] + 2.0 * low[s, t]),
            )
            one, other, both = members.total(partial(_grams, alone))
            out[0, s, t] = one + other + 2.0 * ((ll * rr).sum() + (lr * rl).sum())
            out[1, s, t] = both + (lr * lr.T).sum() + (rl * rl.T).sum() + 2.0 * (ll * rr.T).sum()
            out[:, t, s] = out[:, s, t]
    return out


def _grams(pairs: Sequence[tuple[Array, Array]], at: slice) -> Array:
    """Return the sums of a'b over some clients, for pairs of arrays a, b (m, ...)."""
    return np.stack([summed_products(one[at], other[at]) for one, other in pairs])
