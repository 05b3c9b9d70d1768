"""Families of labels and of overdispersed counts: binomial, multinomial, negative binomial."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special
from statsmodels.genmod import families

from adfl_stats._types import Array, Mask
from adfl_stats.losses.family import TINY, Family, composed
from adfl_stats.losses.links import LINKS, DistributionLink

__all__: list[str] = []

# The largest information of the log-log links, t^2 / (e^t - 1) at its maximum t = 1.594.
LARGEST_LOGLOG = 0.6477
# The largest |p (1 - p) (1 - 2 p)|, the third cumulant of a label, at p = (1 +- 3^-1/2) / 2.
LARGEST_THIRD = 1.0 / (6.0 * np.sqrt(3.0))
# The largest size of the third derivative of -log Phi, .2957188 at 1.0024 (by a search over the line), rounded up.
LARGEST_PROBIT = 0.29572


@composed("binomial", probit=7, cloglog=8, loglog=9)
class Binomial(Family):
    """Labels, or shares of successes, with a distribution function F as inverse link.

    The loss -y log F - (1 - y) log(1 - F) is convex, as F and 1 - F are log-concave.
    """

    @property
    def _link(self) -> DistributionLink:
        link = LINKS[self.link]
        assert isinstance(link, DistributionLink)
        return link

    @property
    def observed_curvature(self) -> bool:
        return True

    @property
    def has_global_bound(self) -> bool:
        return self.link == "probit"

    def loss(self, eta: Array, y: Array) -> Array:
        event, none = self._link.logs(eta)
        return np.asarray(-y * event - (1.0 - y) * none)

    def perfect_loss(self, y: Array) -> Array:
        return np.asarray(-special.xlogy(y, y) - special.xlogy(1.0 - y, 1.0 - y))

    def residual(self, eta: Array, y: Array) -> Array:
        hazards = self._link.hazards(eta)
        return (1.0 - y) * hazards.none - y * hazards.event

    def curvature(self, eta: Array, y: Array) -> Array:
        hazards = self._link.hazards(eta)
        return y * hazards.event_curvature + (1.0 - y) * hazards.none_curvature

    def information(self, eta: Array) -> Array:
        # F'^2 / (F (1 - F)), as a product of two hazards: no probability is divided by.
        hazards = self._link.hazards(eta)
        return hazards.event * hazards.none

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return a bound on the curvature: 1 for the probit, a local one for the log-log links.

        For these it is the larger of the value at eta and of the largest information.
        """
        if self.link == "probit":
            return np.ones(len(y))
        return np.maximum(self.curvature(eta, y), LARGEST_LOGLOG)

    @property
    def bounded_derivatives(self) -> bool:
        return self.link == "probit"

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return 1 and the largest third derivative of -log Phi for the probit; local values for the log-log links."""
        if self.link == "probit":
            return np.ones(len(y)), np.full(len(y), LARGEST_PROBIT)
        return super().derivative_bounds(eta, y)

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return (y - mu) ** 2 / np.maximum(mu * (1.0 - mu), TINY)

    def statsmodels(self) -> Any:
        return families.Binomial(link=LINKS[self.link].known())

    @property
    def _domain(self) -> str:
        return "values in [0, 1] (0/1, or shares of successes with weights=)"

    def _outside(self, y: Array) -> Mask:
        return (y < 0) | (y > 1)


@composed("binomial", logit=1)
class Logistic(Binomial):
    """The canonical link."""

    @property
    def observed_curvature(self) -> bool:
        return False

    @property
    def has_global_bound(self) -> bool:
        return True

    def loss(self, eta: Array, y: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, eta) - y * eta)

    def residual(self, eta: Array, y: Array) -> Array:
        return self.mean(eta) - y

    def curvature(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return mu * (1.0 - mu)

    def information(self, eta: Array) -> Array:
        return self.mean_slope(eta)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return the global bound 1/4."""
        return np.full(len(y), 0.25)

    @property
    def bounded_derivatives(self) -> bool:
        return True

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return 1/4 and 3^-1/2 / 6."""
        return np.full(len(y), 0.25), np.full(len(y), LARGEST_THIRD)


@composed("multinomial", logit=5)
class Multinomial(Family):
    """Classes, with the first as reference."""

    @property
    def has_global_bound(self) -> bool:
        return True

    def coefficient_names(self, columns: list[str], classes: tuple[Any, ...] | None) -> list[str]:
        if classes is None:
            return columns
        return [f"{level}: {name}" for level in classes[1:] for name in columns]

    def mean(self, eta: Array) -> Array:
        """Return the probabilities of all classes, shape (n, q + 1)."""
        full = np.column_stack([np.zeros(len(eta)), eta])
        full -= full.max(axis=1, keepdims=True)
        np.exp(full, out=full)
        return full / full.sum(axis=1, keepdims=True)

    def loss(self, eta: Array, y: Array) -> Array:
        levels = np.column_stack([np.zeros(len(y)), eta])
        return np.asarray(special.logsumexp(levels, axis=1) - levels[np.arange(len(y)), y.astype(int)])

    def residual(self, eta: Array, y: Array) -> Array:
        return self.mean(eta)[:, 1:] - (y[:, None] == np.arange(1, self.outputs + 1))

    def curvature(self, eta: Array, y: Array) -> Array:
        probability = self.mean(eta)[:, 1:]
        outer = -probability[:, :, None] * probability[:, None, :]
        diagonal = np.arange(self.outputs)
        outer[:, diagonal, diagonal] += probability
        return outer

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return the global bound 1/2."""
        return np.full(len(y), 0.5)

    @property
    def bounded_derivatives(self) -> bool:
        return True

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return bounds on the norms of the second and third derivative.

        Along a unit vector u these are cumulants of the u_k of a random class k, whose range is 1 for one output and
        at most 2^1/2 for several: at most range^2 / 4 and range^3 3^-1/2 / 6.
        """
        spread = 1.0 if self.outputs == 1 else np.sqrt(2.0)
        return np.full(len(y), spread**2 / 4.0), np.full(len(y), spread**3 * LARGEST_THIRD)

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        hit = y[:, None] == np.arange(self.outputs + 1)
        return np.asarray(((hit - mu) ** 2 / np.maximum(mu, TINY)).sum(axis=1) / self.outputs)

    def statsmodels(self) -> Any:
        raise ValueError("the multinomial has no statsmodels GLM family; its counterpart is MNLogit")

    @property
    def _domain(self) -> str:
        return f"class codes 0..{self.outputs}"

    def _outside(self, y: Array) -> Mask:
        return (y < 0) | (y > self.outputs) | (y != np.rint(y))


@composed("negativebinomial", log=4)
class NegativeBinomial(Family):
    """Counts with variance mu + alpha mu^2, alpha given or estimated before the fit."""

    @property
    def observed_curvature(self) -> bool:
        return True

    def loss(self, eta: Array, y: Array) -> Array:
        return np.asarray((y + 1.0 / self.par) * np.log1p(self.par * self.mean(eta)) - y * eta)

    def perfect_loss(self, y: Array) -> Array:
        perfect, events = np.zeros_like(y), y > 0.0
        perfect[events] = self.loss(np.log(y[events]), y[events])
        return perfect

    def residual(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return (mu - y) / (1.0 + self.par * mu)

    def curvature(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return mu / (1.0 + self.par * mu) * ((1.0 + self.par * y) / (1.0 + self.par * mu))

    def information(self, eta: Array) -> Array:
        mu = self.mean(eta)
        return mu / (1.0 + self.par * mu)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return the smaller of the local bound (value at eta, saturated fit) and (1 + alpha y) / (4 alpha)."""
        start = np.maximum(self.mean(eta), y)
        return np.minimum((1.0 + self.par * y) / (4.0 * self.par), np.maximum(start, 1.0))

    @property
    def bounded_derivatives(self) -> bool:
        return True

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return those of the logit times y + 1 / alpha: the loss is that multiple of log(1 + exp(.)), less y eta."""
        times = y + 1.0 / self.par
        return times / 4.0, times * LARGEST_THIRD

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        mu = self.mean(eta)
        return (y - mu) ** 2 / np.maximum(mu * (1.0 + self.par * mu), TINY)

    def statsmodels(self) -> Any:
        return families.NegativeBinomial(alpha=self.par)

    @property
    def _domain(self) -> str:
        return "counts, that is values >= 0"

    def _outside(self, y: Array) -> Mask:
        return y < 0
