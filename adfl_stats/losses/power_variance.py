"""Families whose variance is a power of the mean: Gaussian, Poisson, gamma, inverse Gaussian and Tweedie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from statsmodels.genmod import families

from adfl_stats._types import Array, Mask
from adfl_stats.losses.family import TINY, Family, composed
from adfl_stats.losses.links import LINKS, PowerLink, exponential

__all__: list[str] = []

# Where curvature grows as the mean falls, its bound is for means down to this share of the mean at the start. Ours:
# smaller shares give smaller steps; where one was too large, the run begins again with a fourth of it.
LEAST_SHARE = 0.25


class PowerVariance(Family, ABC):
    """Families whose variance is mu^k, with a power link eta = mu^q or the logarithm (q = 0).

    With s = 1 / q, and 1 for the logarithm, the derivatives of the loss in eta are

        residual     s (mu - y) mu^(1 - k - q),
        information  s^2 mu^(2 - k - 2 q),
        curvature    s^2 ((2 - k - q) mu + (k + q - 1) y) mu^(1 - k - 2 q);

    the loss is convex for all y >= 0 where 1 <= k + q <= 2 (Wedderburn, 1976, Biometrika 63, 27-32).
    """

    @property
    @abstractmethod
    def k(self) -> float:
        """The power of the variance."""

    @property
    def _link(self) -> PowerLink:
        link = LINKS[self.link]
        assert isinstance(link, PowerLink)
        return link

    @property
    def estimates_scale(self) -> bool:
        return True

    @property
    def convex(self) -> bool:
        return 1.0 <= self.k + self._link.q <= 2.0

    @property
    def positive_predictor(self) -> bool:
        return self._link.q != 0.0

    @property
    def observed_curvature(self) -> bool:
        # The canonical link has q = 1 - k.
        return self.k + self._link.q != 1.0

    def loss(self, eta: Array, y: Array) -> Array:
        inside = self.inside(eta)
        at = self._loss_of(inside if self.link == "log" else np.log(inside) / self._link.q, y)
        return at + self.residual(eta, y) * (eta - inside) if self.positive_predictor else at

    def perfect_loss(self, y: Array) -> Array:
        perfect, events = np.zeros_like(y), y > 0.0
        perfect[events] = self._loss_of(np.log(y[events]), y[events])
        return perfect

    def _loss_of(self, log_mean: Array, y: Array) -> Array:
        k, mu = self.k, exponential(log_mean)
        if k == 0.0:
            return np.asarray(0.5 * (mu - y) ** 2)
        if k == 1.0:
            return np.asarray(mu - y * log_mean)
        if k == 2.0:
            return np.asarray(log_mean + y / mu)
        own, other = exponential((2.0 - k) * log_mean), exponential((1.0 - k) * log_mean)
        return np.asarray(own / (2.0 - k) - y * other / (1.0 - k))

    def residual(self, eta: Array, y: Array) -> Array:
        inside, exponent = self.inside(eta), 1.0 - self.k - self._link.q
        # Multiplied out: a product of mu - y with a power of mu may be 0 times infinity.
        observed = y * self._link.power(inside, exponent) if exponent else y
        return _over(self._link.power(inside, exponent + 1.0) - observed, self._link.q)

    def curvature(self, eta: Array, y: Array) -> Array:
        inside, q = self.inside(eta), self._link.q
        slope = 2.0 - self.k - q
        own = self._link.power(inside, 2.0 - self.k - 2.0 * q) if slope else np.zeros_like(inside)
        if slope != 1.0:
            own = slope * own + (1.0 - slope) * y * self._link.power(inside, 1.0 - self.k - 2.0 * q)
        return _over(own, q**2)

    def information(self, eta: Array) -> Array:
        q = self._link.q
        return _over(self._link.power(self.inside(eta), 2.0 - self.k - 2.0 * q), q**2)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        bound, power = self.information(eta), 2.0 - self.k - 2.0 * self._link.q
        if self.observed_curvature:
            bound = np.maximum(bound, np.abs(self.curvature(eta, y)))
        # At the saturated fit, where there is one; no mean falls to nearly zero because one response is.
        saturated = np.maximum(y, LEAST_SHARE * self.mean(eta) if power < 0.0 else 0.0)
        return np.maximum(bound, _over(saturated**power, self._link.q**2))

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return local values: the bound of the curvature, and the third derivative at eta, the slope of the second.

        With s = 1 / q as above it is s^3 ((2 - k - q)(2 - k - 2 q) mu + (k + q - 1)(1 - k - 2 q) y) mu^(1 - k - 3 q).
        """
        inside, q, k = self.inside(eta), self._link.q, self.k
        with np.errstate(over="ignore", invalid="ignore"):
            own = (2.0 - k - q) * (2.0 - k - 2.0 * q) * self._link.power(inside, 2.0 - k - 3.0 * q)
            observed = (k + q - 1.0) * (1.0 - k - 2.0 * q) * y
            third = own + observed * self._link.power(inside, 1.0 - k - 3.0 * q) if np.any(observed) else own
        return self.curvature_bound(eta, y), np.abs(_over(third, q**3))

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return np.square((y - mu) * mu ** (-0.5 * self.k))

    def statsmodels(self) -> Any:
        return self._counterpart(LINKS[self.link].known())

    @abstractmethod
    def _counterpart(self, link: Any) -> Any:
        """Return the statsmodels family with a link of its own kind."""

    @property
    def _domain(self) -> str:
        return "values > 0"

    def _outside(self, y: Array) -> Mask:
        return y <= 0


def _over(value: Array, q: float) -> Array:
    """Return value / q; the logarithm, with q = 0, has the factor one."""
    return value if q in (0.0, 1.0) else value / q


@composed("gaussian", log=12)
class Gaussian(PowerVariance):
    """Constant variance."""

    k = 0.0

    @property
    def additive(self) -> bool:
        return True

    @property
    def positive_predictor(self) -> bool:
        return False

    def perfect_loss(self, y: Array) -> Array:
        return np.zeros_like(y)

    def _counterpart(self, link: Any) -> Any:
        return families.Gaussian(link=link)

    @property
    def _domain(self) -> str:
        return "real numbers"

    def _outside(self, y: Array) -> Mask:
        return np.zeros(len(y), dtype=bool)


@composed("gaussian", identity=0)
class LinearGaussian(Gaussian):
    """Least squares."""

    @property
    def quadratic(self) -> bool:
        return True

    @property
    def has_global_bound(self) -> bool:
        return True

    def loss(self, eta: Array, y: Array) -> Array:
        return np.asarray(0.5 * (eta - y) ** 2)

    def residual(self, eta: Array, y: Array) -> Array:
        return eta - y

    def curvature(self, eta: Array, y: Array) -> Array:
        return np.ones_like(eta)

    def information(self, eta: Array) -> Array:
        return np.ones_like(eta)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        return np.ones(len(y))

    @property
    def bounded_derivatives(self) -> bool:
        return True

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return 1 and 0."""
        return np.ones(len(y)), np.zeros(len(y))

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        return (y - eta) ** 2


@composed("poisson", log=2, identity=10, sqrt=11)
class Poisson(PowerVariance):
    """Counts."""

    k = 1.0

    @property
    def estimates_scale(self) -> bool:
        return False

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return (y - mu) ** 2 / np.maximum(mu, TINY)

    def _counterpart(self, link: Any) -> Any:
        return families.Poisson(link=link)

    @property
    def _domain(self) -> str:
        return "counts, that is values >= 0"

    def _outside(self, y: Array) -> Mask:
        return y < 0


@composed("gamma", inverse=13, identity=14)
class Gamma(PowerVariance):
    """Constant coefficient of variation."""

    k = 2.0

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        return (y / self.mean(eta) - 1.0) ** 2

    def _counterpart(self, link: Any) -> Any:
        return families.Gamma(link=link)


@composed("gamma", log=3)
class LogGamma(Gamma):
    """The gamma with a logarithm, where the mean is a factor."""

    def residual(self, eta: Array, y: Array) -> Array:
        return 1.0 - y / self.mean(eta)

    def curvature(self, eta: Array, y: Array) -> Array:
        return y / self.mean(eta)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        return np.maximum(self.curvature(eta, y), 1.0)


@composed("inversegaussian", log=15, inverse_squared=16)
class InverseGaussian(PowerVariance):
    """First passage times: variance mu^3."""

    k = 3.0

    def _counterpart(self, link: Any) -> Any:
        return families.InverseGaussian(link=link)


@composed("tweedie", log=17)
class Tweedie(PowerVariance):
    """Compound Poisson sums of gamma claims: zeros and positive values, variance mu^p with 1 < p < 2."""

    @property
    def k(self) -> float:
        return self.par

    @property
    def label(self) -> str:
        return f"tweedie, power {self.par:g}"

    def _counterpart(self, link: Any) -> Any:
        return families.Tweedie(link=link, var_power=self.par)

    @property
    def _domain(self) -> str:
        return "values >= 0"

    def _outside(self, y: Array) -> Mask:
        return y < 0
