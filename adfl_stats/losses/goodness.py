"""Log-likelihood and deviance, gathered piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np

from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import Batch
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.families import Family
from adfl_stats.losses.huber import HuberLoss

__all__ = ["GoodnessSums", "goodness"]


class GoodnessSums:
    """Log-likelihood and deviance over the rows of the trusted clients of a part, whose pieces it is given.

    As in statsmodels, the Gaussian log-likelihood has its variance profiled out. Huber's is that of his least
    favourable law at the family's own sigma. A likelihood that depends on an estimated dispersion waits for it: the
    linear predictors are kept until then.
    """

    def __init__(self, data: ClientData, family: Family, trusted: Mask, part: slice = slice(None)) -> None:
        self._data, self._family, self._trusted, self._part = data, family, trusted, part
        self._known: Any = None if family.name == "multinomial" or family.robust else family.statsmodels()
        self._waits = family.estimates_scale and not family.quadratic and not family.robust
        self._kept: list[tuple[Array, Array, Array]] = []
        self._llf = self._deviance = 0.0

    def add(self, piece: Batch, eta: Array) -> None:
        """Take in a piece with its linear predictor."""
        data, family, keep = self._data, self._family, piece.spread(self._trusted[piece.clients])
        if not keep.any():
            return
        y, weight, eta = data.y[piece.rows][keep], data.weights_of(piece.rows)[keep], eta[keep]
        if isinstance(family, HuberLoss):
            self._deviance += float(weight @ family.deviance(eta, y))
            self._llf += float(family.log_density(eta, y, weight).sum())
            return
        mu = family.mean(eta)
        if self._known is None:
            self._llf += float(weight @ np.log(mu[np.arange(len(y)), y.astype(int)]))
            return
        self._deviance += float(self._known.deviance(y, mu, var_weights=weight))
        if family.quadratic:
            self._llf += 0.5 * float(np.log(weight).sum())
        elif self._waits:
            self._kept.append((y, mu, weight))
        else:
            self._llf += float(self._known.loglike(y, mu, var_weights=weight, scale=1.0))

    def sums(self, scale: float) -> Array:
        """Return what adds up over clients, given the dispersion: log-likelihood, deviance and rows."""
        late = [float(self._known.loglike(y, mu, var_weights=w, scale=scale)) for y, mu, w in self._kept]
        rows = self._data.sizes[self._part][self._trusted[self._part]].sum()
        return np.array([self._llf + sum(late), self._deviance, float(rows)])


def goodness(family: Family, sums: Array) -> tuple[float, float]:
    """Return log-likelihood and deviance from the sums over all clients."""
    llf, deviance, count = (float(value) for value in sums)
    if family.name == "multinomial":
        return llf, -2.0 * llf
    if not family.quadratic:
        return llf, deviance
    # Logs apart: the ratio of a deviance that is all rounding may underflow to zero.
    spread = np.log(deviance) - np.log(count) if deviance > 0 else -np.inf
    return float(llf - 0.5 * count * (np.log(2.0 * np.pi) + spread + 1.0)), deviance
