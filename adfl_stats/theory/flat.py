"""The bias flat_m = E_m grad l(theta_0) of the abnormal clients, and whether it is distinguished from noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._properties import once
from adfl_stats._types import Array, Mask
from adfl_stats.data.client_data import ClientData
from adfl_stats.inference.record import FitRecord
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import client_gradients, plain_scores

__all__ = ["ALPHA", "Flat", "flat", "p_values_at_truth"]


# Level of the tests that Condition 6 is judged by. Ours: the usual one.
ALPHA = 0.05


@dataclass(frozen=True, eq=False)
class Flat:
    """What is said of flat_m over the abnormal clients A.

    Attributes
    ----------
    mean, rms, least : float
        Norm of the mean over A; root mean square norm; smallest norm (NaN if A is empty).
    noise : float
        Standard error of the gradient of the client with the smallest norm.
    pooled : ndarray (P,)
        The sum of flat_m over A, each times the client's share of all rows: varrho flat_A where sizes are equal.
    labels : Index
        All clients.
    abnormal, outside : ndarray (M,) of bool
        A, and the clients that are neither in A nor set aside.
    test : callable
        Returns each client's p-value; called when a verdict is asked for, as it may fit the model of clients.
    """

    mean: float
    rms: float
    least: float
    noise: float
    pooled: Array
    labels: pd.Index
    abnormal: Mask
    outside: Mask
    test: Callable[[], Array]

    @once
    def _p_values(self) -> Array:
        return self.test()

    @property
    def hidden(self) -> tuple[Hashable, ...]:
        """Labels of the clients in A whose test does not reject flat_m = 0 at the level .05 / |A| (Bonferroni)."""
        # Not below the level, or without a test.
        below = self._p_values < ALPHA / max(int(self.abnormal.sum()), 1)
        return tuple(self.labels[self.abnormal & ~below])

    @property
    def n_rejected(self) -> int:
        """Number of clients outside A whose test rejects it at the level .05."""
        return int((self.outside & (self._p_values < ALPHA)).sum())


def flat(fit: FitRecord, data: ClientData | None, abnormal: Mask, truth: Array | None, hessian: Array) -> Flat:
    """Estimate flat_m of the abnormal clients and test it.

    With `data` and `truth` gradients and tests are those at theta_0 (`p_values_at_truth`). Else the tests are those of
    `adfl_stats.screen`, at the fit's estimate, and with `truth` alone gradients are moved there with the mean Hessian
    `hessian` of all rows.
    """
    # A client whose numbers overflow has none.
    inside, outside = abnormal & ~fit.set_aside, ~abnormal & ~fit.set_aside
    gradients = fit.weighted_sums.gradients
    if truth is not None and data is not None:
        gradients = client_gradients(data, fit.family, truth)
        if fit.penalty is not None:
            gradients = gradients + fit.penalty.gradient(truth)
    elif truth is not None:
        gradients = gradients + (truth - fit.theta.mean(axis=0)) @ hessian
    tests = (fit.labels, abnormal, outside, partial(_tests, fit, data, truth))
    if not inside.any():
        return Flat(0.0, 0.0, math.nan, math.nan, np.zeros(gradients.shape[1]), *tests)
    own = gradients[inside]
    norms = np.linalg.norm(own, axis=1)
    weakest = int(np.argmin(norms))
    return Flat(
        float(np.linalg.norm(own.mean(axis=0))),
        float(np.sqrt(np.mean(norms**2))),
        float(norms[weakest]),
        float(fit.regularity.gradient_noise[inside][weakest]),
        fit.regularity.shares[inside] @ own,
        *tests,
    )


def _tests(fit: FitRecord, data: ClientData | None, truth: Array | None) -> Array:
    """Return each client's p-value, at theta_0 where that is given with the data."""
    if truth is None or data is None:
        return fit.clients.p_values
    return p_values_at_truth(data, fit.family, truth)


def p_values_at_truth(data: ClientData, family: Family, theta: Array) -> Array:
    """Return each client's p-value for a mean score of zero at theta (P,): the larger one of two tests.

    These are not the tests of `adfl_stats.screen`, whose null says that a client is like the other normal ones: it has
    their spread, noise levels and tails, and is about an estimate of them. Condition 6 is about flat_m = 0 at theta_0
    whatever the other clients are, which asks for a null of the client's own rows.

    Hotelling's asks for no model: T^2 = g' V^-1 g with V the variance of the mean score g from the client's own rows,
    and (n - r) / (r (n - 1)) T^2 is F(r, n - r) for normal scores, r being the rank of V; it rejects too often where
    scores are skewed. Rao's takes V from the model and one dispersion for all clients, and rejects too often where the
    client's rows vary more than that. NaN for clients whose rows are so few that they determine the rank, r = n - 1.
    """
    statistics, df = plain_scores(data, family, theta[None])
    out = np.full(data.n_clients, np.nan)
    for m in np.flatnonzero(data.counted):
        rows = slice(int(data.offsets[m]), int(data.offsets[m + 1]))
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        residual = family.residual(linear_predictor(data, family, theta, rows), y).reshape(len(y), -1, 1)
        scores, n = (residual * X[:, None, :]).reshape(len(y), -1), len(y)
        mean = weight @ scores / weight.sum()
        apart = (scores - mean) * (weight / weight.sum())[:, None]
        roots, ranks = roots_of_inverses((apart.T @ apart)[None])
        r = int(ranks[0])
        if 0 < r < n - 1:
            squared = float(np.square(mean @ roots[0]).sum()) * (n - 1.0) / n
            hotelling = stats.f.sf(squared * (n - r) / (r * (n - 1.0)), r, n - r)
            out[m] = float(max(hotelling, stats.chi2.sf(statistics[m], df[m])))
    return out
