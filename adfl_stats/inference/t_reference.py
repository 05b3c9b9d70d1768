"""The t distribution that an estimate over its standard error by client refers to, where clients are few.

Of a contrast let z be the error and b (M,) the clients' contributions to the standard error, so that the statistic is
|z| / |b|. Under the working model both are normal: Var(z) = s, Cov(b, z) = g, Var(b) = G. Satterthwaite's degrees of
freedom take z and b as independent and give |b|^2 the mean and variance of a chi-square. Where one client has much of
the influence this is conservative, as its error is in z and in b alike. Here the statistic's own .95 quantile is
computed, and the degrees of freedom are those at which t has the same.

P(|z| <= c |b|) is that of Q = c^2 b'b - z^2 >= 0. With b = h z / s^(1/2) + r, h = g / s^(1/2), the rest r is
independent of z; w and the coordinates of h belong to the eigenvectors of Var(r) = G - hh'. The characteristic
function of Q is

    f(t) = prod_k (1 - 2itc^2 w_k)^(-1/2) (1 - 2it {c^2 sum_k h_k^2 / (1 - 2itc^2 w_k) - s})^(-1/2),

all factors with positive real parts, and P(Q >= 0) = 1/2 + 1/pi int_0^inf Im f(t) / t dt (Gil-Pelaez 1951; Imhof 1961).
With t = e^x the integrand is analytic for |Im x| < pi / 2 and falls off exponentially, so that the trapezoidal rule
converges geometrically.

Imhof, J. P. (1961). Computing the distribution of quadratic forms in normal variables. Biometrika 48, 419-426.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtridf

from adfl_stats._types import Array

__all__ = ["dependent_df"]


# The level of the intervals that the degrees of freedom are for: the usual one.
COVERAGE = 0.95
# c with t quantiles beyond those of 1 and infinitely many degrees of freedom on both sides; steps to find it, and how
# close the probability has to come. Ours: the method converges superlinearly (Dowell & Jarratt 1971), in far fewer.
LEAST_C, MOST_C, STEPS, CLOSE = 1.0, 40.0, 60, 1e-8
# Ours: the rule begins at this log t, where the integrand is proportional to t to 1e-7, and ends where |f| is below
# this.
FIRST, NEGLIGIBLE = -8.0, 1e-9
# Numbers of one chunk of contrasts. Ours: 8 MB.
ENTRIES = 1 << 20


def dependent_df(own: Array, left: Array, right: Array, shared: Array, variance: Array) -> Array:
    """Return degrees of freedom of contrasts (R,), between 1 and infinity.

    Parameters
    ----------
    own, shared : ndarray (R, m)
        The diagonal of G but for its low-rank part, and g, by client.
    left, right : ndarray (R, m, P)
        G = diag(own) - left right' - right left'.
    variance : ndarray (R,)
        s.
    """
    out = np.empty(len(own))
    size = max(1, ENTRIES // (200 * own.shape[1]))
    for low in range(0, len(own), size):
        at = slice(low, low + size)
        scale = variance[at, None]
        cross = left[at] @ right[at].transpose(0, 2, 1)
        G = -(cross + cross.transpose(0, 2, 1)) / scale[:, :, None]
        diagonal = np.arange(G.shape[1])
        G[:, diagonal, diagonal] += own[at] / scale
        h = shared[at] / scale
        w, U = np.linalg.eigh(G - h[:, :, None] * h[:, None, :])
        along = np.square((U.transpose(0, 2, 1) @ h[:, :, None])[:, :, 0])
        out[at] = _equivalent(_quantiles(np.maximum(w, 0.0), along))
    return out


def _equivalent(quantiles: Array) -> Array:
    """Return the degrees of freedom, between 1 and infinity, at which t has these two-sided quantiles."""
    upper = (1.0 + COVERAGE) / 2.0
    df = np.where(quantiles <= ndtri(upper), np.inf, stdtridf(upper, quantiles))
    return np.maximum(df, 1.0)


def _quantiles(w: Array, along: Array) -> Array:
    """Return c (R,) with P(|z| <= c |b|) = .95, by regula falsi in log c (Illinois), between LEAST_C and MOST_C."""
    nodes = _nodes(w)
    low, high = np.full(len(w), np.log(LEAST_C)), np.full(len(w), np.log(MOST_C))
    below, above = (_coverage(end, w, along, nodes) - COVERAGE for end in (low, high))
    settled = np.where(below >= 0.0, low, np.where(above <= 0.0, high, np.nan))
    for _ in range(STEPS):
        places = np.flatnonzero(np.isnan(settled))
        if not len(places):
            break
        middle = ((low * above - high * below) / (above - below))[places]
        miss = _coverage(middle, w[places], along[places], nodes) - COVERAGE
        up = miss > 0.0
        # The end that stays has half its value, so that both ends move.
        below[places[up]] *= 0.5
        above[places[~up]] *= 0.5
        high[places[up]], above[places[up]] = middle[up], miss[up]
        low[places[~up]], below[places[~up]] = middle[~up], miss[~up]
        done = np.abs(miss) < CLOSE
        settled[places[done]] = middle[done]
    return np.exp(np.where(np.isnan(settled), high, settled))


def _nodes(w: Array) -> Array:
    """Return log t at which f is summed, for eigenvalues (R, m).

    On the line Im x = a the integrand is at most (cos a)^(-m / 2), and the rule with steps h is off by e^(-2 pi a / h)
    of that: the steps leave about 1e-8.
    """
    ends = np.arange(0.0, 24.0)
    size = 0.25 * np.log1p(np.square(2.0 * np.exp(ends)[:, None, None] * w)).sum(axis=2).min(axis=1)
    last = ends[min(np.searchsorted(size, -np.log(NEGLIGIBLE)), len(ends) - 1)]
    return np.arange(FIRST, last, min(0.4, 1.1 / np.sqrt(w.shape[1])))


def _coverage(log_c: Array, w: Array, along: Array, nodes: Array) -> Array:
    """Return P(|z| <= c |b|) (R,) for Var(z) = 1, from the eigenvalues w and the squares h_k^2 (R, m)."""
    # Of Q / c^2, whose scale does not depend on c.
    t, share, step = np.exp(nodes)[None, :], np.exp(-2.0 * log_c)[:, None], nodes[1] - nodes[0]
    y = 2.0 * t[:, :, None] * w[:, None, :]
    # 1 / (1 - iy) = (1 + iy) / (1 + y^2).
    modulus = 1.0 + y * y
    part = along[:, None, :] / modulus
    rest = part.sum(axis=2) + 1j * (part * y).sum(axis=2)
    last = 1.0 - 2.0j * t * (rest - share)
    logs = 0.5 * np.log(modulus).sum(axis=2) - 1j * np.arctan(y).sum(axis=2) + np.log(last)
    f = np.exp(-0.5 * logs).imag
    # To the left the terms are a geometric series.
    return np.asarray(0.5 + step / np.pi * (f.sum(axis=1) + f[:, 0] / np.expm1(step)))
