"""Links g: the mean is mu = g^-1(eta), with eta the linear predictor.

Two kinds. Power links (the logarithm among them) go with variances that are powers of the mean; distribution functions
go with the binomial, and are written by their hazards, which stay finite where probabilities underflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special
from statsmodels.genmod.families import links

from adfl_stats._types import Array

__all__ = ["LINKS", "DistributionLink", "Hazards", "Link", "PowerLink", "exponential", "link_name"]

# Beyond these the exponential overflows or is subnormal.
LOWEST, HIGHEST = -708.0, 709.0
# Below this t the difference in t / (exp(t) - 1) + t - 1 is taken from its series. Ours: cancellation above it costs
# less than two digits.
SMALL_T = 0.1


@dataclass(frozen=True)
class Link:
    """A link, with the statsmodels class of the same name."""

    name: str
    known: Any

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return np.asarray(self.known().inverse(eta))

    def slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta."""
        return np.asarray(self.known().inverse_deriv(eta))

    def of_mean(self, mu: Array | float) -> Array:
        """Return the linear predictor at the mean."""
        return np.asarray(self.known()(mu))


@dataclass(frozen=True)
class PowerLink(Link):
    """eta = mu^q; the logarithm has q = 0. But for the logarithm, eta must be positive where the mean must."""

    q: float

    def power(self, eta: Array, a: float) -> Array:
        """Return mu^a."""
        if a == 0.0:
            return np.ones_like(eta)
        if self.q == 0.0:
            return exponential(eta if a == 1.0 else a * eta)
        return np.asarray(eta if a == self.q else np.power(eta, a / self.q))

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return self.power(eta, 1.0)

    def slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta, mu^(1 - q) / q, and mu for the logarithm."""
        return self.power(eta, 1.0 - self.q) / (self.q or 1.0)


@dataclass(frozen=True)
class Hazards:
    """Derivatives of the logarithms of F and 1 - F, with F the inverse link.

    Attributes
    ----------
    event, none : ndarray (n,)
        F' / F and F' / (1 - F).
    event_curvature, none_curvature : ndarray (n,)
        -(log F)'' and -(log(1 - F))'', nonnegative: all of these links have log-concave F and 1 - F.
    """

    event: Array
    none: Array
    event_curvature: Array
    none_curvature: Array


@dataclass(frozen=True)
class DistributionLink(Link, ABC):
    """The mean is a distribution function F at eta."""

    @abstractmethod
    def hazards(self, eta: Array) -> Hazards:
        """Return the derivatives of log F and log(1 - F)."""

    @abstractmethod
    def logs(self, eta: Array) -> tuple[Array, Array]:
        """Return log F and log(1 - F)."""


class Probit(DistributionLink):
    """The standard normal distribution function."""

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return np.asarray(special.ndtr(eta))

    def slope(self, eta: Array) -> Array:
        """Return the standard normal density."""
        return exponential(-0.5 * np.square(eta)) / np.sqrt(2.0 * np.pi)

    def logs(self, eta: Array) -> tuple[Array, Array]:
        """Return log F and log(1 - F)."""
        return np.asarray(special.log_ndtr(eta)), np.asarray(special.log_ndtr(-eta))

    def hazards(self, eta: Array) -> Hazards:
        """Return the derivatives of log F and log(1 - F); the normal density has F'' = -eta F'."""
        event, none = inverse_mills(eta), inverse_mills(-eta)
        return Hazards(event, none, _tail(eta, event), _tail(-eta, none))


class CLogLog(DistributionLink):
    """Complementary log-log, F = 1 - exp(-t) with t = exp(eta): proportional hazards in grouped time."""

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return np.asarray(-np.expm1(-exponential(eta)))

    def slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta."""
        t = exponential(eta)
        return t * np.exp(-t)

    def logs(self, eta: Array) -> tuple[Array, Array]:
        """Return log F and log(1 - F)."""
        t = exponential(eta)
        return np.log(-np.expm1(-t)), -t

    def hazards(self, eta: Array) -> Hazards:
        """Return the derivatives of log F and log(1 - F): t / (e^t - 1) and t."""
        t = exponential(eta)
        near = np.minimum(t, HIGHEST)
        event = np.where(t < HIGHEST, near / np.expm1(near), 0.0)
        few = np.minimum(t, SMALL_T)
        small = few / 2.0 + few**2 / 12.0 - few**4 / 720.0 + few**6 / 30240.0
        # -(log F)'' = h (h + t - 1) with h the hazard; near zero h + t - 1 is t / 2 + t^2 / 12 - t^4 / 720 + ...
        return Hazards(event, t, event * np.where(t < SMALL_T, small, event + t - 1.0), t)


class LogLog(DistributionLink):
    """Log-log, F = exp(-exp(-eta)): the complementary log-log of the other outcome."""

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return np.asarray(np.exp(-exponential(-eta)))

    def slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta."""
        return _CLOGLOG.slope(-eta)

    def logs(self, eta: Array) -> tuple[Array, Array]:
        """Return log F and log(1 - F)."""
        none, event = _CLOGLOG.logs(-eta)
        return event, none

    def hazards(self, eta: Array) -> Hazards:
        """Return the derivatives of log F and log(1 - F)."""
        other = _CLOGLOG.hazards(-eta)
        return Hazards(other.none, other.event, other.none_curvature, other.event_curvature)


class Logit(Link):
    """The logistic distribution function."""

    def inverse(self, eta: Array) -> Array:
        """Return the mean at eta."""
        return np.asarray(special.expit(np.clip(eta, LOWEST, HIGHEST)))

    def slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta."""
        mean = self.inverse(eta)
        return mean * (1.0 - mean)


def exponential(eta: Array) -> Array:
    """Return exp(eta), cut where it would overflow or be subnormal."""
    return np.asarray(np.exp(np.clip(eta, LOWEST, HIGHEST)))


def inverse_mills(eta: Array) -> Array:
    """Return phi(eta) / Phi(eta), with Phi by the scaled complementary error function in the lower tail."""
    z = np.abs(eta) / np.sqrt(2.0)
    scaled, density = special.erfcx(z), np.exp(-np.square(z))
    return np.sqrt(2.0 / np.pi) * np.where(eta < 0.0, 1.0 / scaled, density / (2.0 - density * scaled))


def _tail(eta: Array, hazard: Array) -> Array:
    """Return -(log Phi)'' = h (eta + h); far below zero, where the sum cancels, it is 1 - 1 / eta^2."""
    far = np.minimum(eta, -1.0)
    return np.where(eta < -1e3, 1.0 - 1.0 / np.square(far), hazard * (eta + hazard))


_CLOGLOG = CLogLog("cloglog", links.CLogLog)

LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        PowerLink("identity", links.Identity, 1.0),
        PowerLink("log", links.Log, 0.0),
        PowerLink("sqrt", links.Sqrt, 0.5),
        PowerLink("inverse", links.InversePower, -1.0),
        PowerLink("inverse squared", links.InverseSquared, -2.0),
        Logit("logit", links.Logit),
        Probit("probit", links.Probit),
        _CLOGLOG,
        LogLog("loglog", links.LogLog),
    )
}


def link_name(link: Any) -> str:
    """Return our name of a link given by name or as a statsmodels instance; of others their own name."""
    if isinstance(link, str):
        plain = "".join(letter for letter in link.lower() if letter.isalnum())
        names = {name.replace(" ", ""): name for name in LINKS} | {"inversepower": "inverse"}
        return names.get(plain, link)
    if isinstance(link, type):
        raise TypeError(f"link is the class {link.__name__}; pass an instance, {link.__name__}(), or its name")
    if isinstance(link, links.Power):
        powers = {known.q: name for name, known in LINKS.items() if isinstance(known, PowerLink) and known.q}
        return powers.get(float(link.power), f"power {link.power:g}")
    # The class itself: a class of a user's that inherits from it may be another link.
    return next((name for name, known in LINKS.items() if type(link) is known.known), type(link).__name__.lower())
