"""Likelihoods of clients whose parameters differ, integrated over the clients' effects by Laplace's method.

Where a link is not linear, the score of a client at a common parameter is linear in the client's own effect to first
order only: log-normal effects on counts have skewed scores, and that of a client without an event is bounded. Here a
client's log-likelihood l_m is expanded to second order about the mode of its own effect,

    l_m(c_m + u) = h_m + b_m'u - u'J_m u / 2,    u = F_m f,    f ~ N(0, I),

which integrates to h_m + b_m'F_m (I + F_m'J_m F_m)^-1 F_m'b_m / 2 - log det(I + F_m'J_m F_m) / 2 (Breslow and Clayton,
1993, Journal of the American Statistical Association 88, 9-25; J_m is the expected information).

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adfl_stats._types import Array
from adfl_stats.data.batches import Batch, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import client_sums_of
from adfl_stats.losses.families import Family

__all__ = ["SMALL_STEP", "ClientLikelihoods", "Expansion", "expanded"]


# Newton steps to a mode, and the step of standardised effects at which they end. Ours: each step is a pass over the
# data, and modes of the step before are where the next ones begin.
MOST_STEPS, SMALL_STEP = 8, 0.01
# Times that a step is shortened, and the factor. Ours: 4 times .25 reach from a step of 100 standard deviations to .4.
SHORTER, FACTOR = 4, 0.25
# Relative ridge of the precisions of effects. Ours: a thousand times the rounding of a double.
RIDGE = 1e-13


@dataclass(frozen=True, eq=False)
class ClientLikelihoods:
    """Log-likelihoods of clients, each at a parameter of its own, per unit of the client's noise level (M,)."""

    data: ClientData
    family: Family
    dispersions: Array

    def at(self, thetas: Array) -> tuple[Array, Array, Array]:
        """Return the values (M,), scores (M, P) and information (M, P, P) at `thetas` (M, P), in a pass over the data.

        Where numbers overflow the value is -inf, and the others are zero.
        """
        M, P = thetas.shape
        values, scores, information = np.zeros(M), np.empty((M, P)), np.empty((M, P, P))
        data, family = self.data, self.family

        def add(piece: Batch, eta: Array, residual: Array) -> None:
            rows = piece.rows
            values[piece.clients] -= piece.sums(data.weights_of(rows) * family.loss(eta, data.y[rows]))

        for pieces in whole_clients(data, P):
            at, total = pieces[0].clients, data.totals[pieces[0].clients]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                sums = client_sums_of(data, family, thetas[at], pieces, add)
            scores[at] = -total[:, None] * sums.gradient
            information[at] = total[:, None, None] * sums.information
        level = self.dispersions
        lost = ~(np.isfinite(values) & np.isfinite(scores).all(axis=1) & np.isfinite(information).all(axis=(1, 2)))
        values[lost], scores[lost], information[lost] = -np.inf, 0.0, 0.0
        return values / level, scores / level[:, None], information / level[:, None, None]


@dataclass(frozen=True, eq=False)
class Expansion:
    """Log-likelihoods to second order in u, and the standardised effects f (M, K) at whose modes they were taken."""

    heights: Array
    slopes: Array
    information: Array
    effects: Array
    _kept: list[Any] = field(default_factory=list, repr=False)

    def integrated(self, factors: Array) -> Array:
        """Return the logarithms (M,) of the likelihoods integrated over u = F_m f, `factors` (M, P, K) being F_m."""
        along = np.einsum("mpk,mp->mk", factors, self.slopes)
        means, _, log_det = self._solved(factors)
        return np.asarray(self.heights + 0.5 * np.einsum("mk,mk->m", along, means) - 0.5 * log_det)

    def effect_squares(self, factors: Array) -> Array:
        """Return E(f_k^2) (M, K) given the clients' rows."""
        means, covariances, _ = self._solved(factors)
        return np.asarray(np.square(means) + np.diagonal(covariances, axis1=1, axis2=2))

    def marginal(self, factors: Array) -> tuple[Array, Array]:
        """Return slopes (M, P) and information (M, P, P) about the common parameter, with u integrated out."""
        loadings = self.information @ factors
        means, covariances, _ = self._solved(factors)
        slopes = self.slopes - (loadings @ means[:, :, None])[:, :, 0]
        return slopes, self.information - loadings @ covariances @ loadings.transpose(0, 2, 1)

    def _solved(self, factors: Array) -> tuple[Array, Array, Array]:
        """Return means (M, K) and covariances (M, K, K) of f, and log det(I + F'JF); kept for the last factors."""
        if self._kept and self._kept[0] is factors:
            return self._kept[1]
        self._kept[:] = factors, self._solve(factors)
        return self._kept[1]

    def _solve(self, factors: Array) -> tuple[Array, Array, Array]:
        inner = _precisions(factors, self.information)
        covariances = np.linalg.inv(inner)
        along = np.einsum("mpk,mp->mk", factors, self.slopes)
        return (covariances @ along[:, :, None])[:, :, 0], np.asarray(covariances, float), np.linalg.slogdet(inner)[1]


def _precisions(factors: Array, information: Array) -> Array:
    """Return I + F'JF (M, K, K); what is added beyond rounding keeps it invertible where entries are huge."""
    inner = factors.transpose(0, 2, 1) @ information @ factors
    diagonal = np.arange(inner.shape[1])
    inner[:, diagonal, diagonal] += 1.0 + RIDGE * np.trace(inner, axis1=1, axis2=2)[:, None]
    return np.asarray(inner)


def expanded(
    likelihoods: ClientLikelihoods, centres: Array, factors: Array, effects: Array, small: float | None = None
) -> Expansion:
    """Expand about the modes of l_m(c_m + F_m f) - f'f / 2, by Newton steps that never lower it.

    Parameters
    ----------
    likelihoods : ClientLikelihoods
        Of the clients.
    centres, factors, effects : ndarray (M, P), (M, P, K), (M, K)
        c_m, F_m, and f to begin with.
    small : float, optional
        The step of f at which they end; by default `SMALL_STEP`.
    """
    small = SMALL_STEP if small is None else small

    def seen(some: Array) -> tuple[Array, Array, Array, Array]:
        value, score, information = likelihoods.at(centres + np.einsum("mpk,mk->mp", factors, some))
        return value - 0.5 * np.square(some).sum(axis=1), value, score, information

    goal, value, score, information = seen(effects)
    stuck = np.zeros(len(effects), dtype=bool)
    for _ in range(MOST_STEPS if factors.shape[2] else 0):
        gradient = np.einsum("mpk,mp->mk", factors, score) - effects
        step = np.linalg.solve(_precisions(factors, information), gradient[:, :, None])[:, :, 0]
        # Each client by itself: its mode must not depend on who else is here.
        step[stuck | (np.abs(step).max(axis=1) < small)] = 0.0
        if not step.any():
            break
        for shortened in range(SHORTER + 1):
            there = seen(effects + step)
            worse = there[0] < goal - np.where(np.isfinite(goal), 1e-9 * np.abs(goal), 0.0)
            if not worse.any():
                break
            step[worse] *= FACTOR if shortened < SHORTER else 0.0
        stuck |= worse
        effects = effects + step
        goal, value, score, information = seen(effects) if worse.any() else there
    u = np.einsum("mpk,mk->mp", factors, effects)
    pulled = (information @ u[:, :, None])[:, :, 0]
    heights = value - ((score + 0.5 * pulled) * u).sum(axis=1)
    return Expansion(heights, score + pulled, information, effects)
