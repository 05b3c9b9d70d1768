"""Huber's loss: what the user gives, and the formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from adfl_stats._arguments import in_interval
from adfl_stats._types import Array
from adfl_stats.losses.family import Family, composed

__all__ = ["Huber"]


@dataclass(frozen=True)
class Huber:
    """Huber's loss for linear regression, robust to gross responses of single rows.

    With r = y - x'theta and k = c sigma a row's loss is r^2 / 2 for abs(r) <= k and k abs(r) - k^2 / 2 beyond.
    The influence of outlying covariates is not bounded; see `mallows`.

    Parameters
    ----------
    c : float
        In units of sigma. The default has 95 % efficiency under normal errors; a large c is least squares.
    scale : float, optional
        sigma, the standard deviation of normal errors. If not given it is estimated before the fit: the
        median over clients of the normalised median absolute residual (median / 0.6745) around a robust
        preliminary fit, robust to a minority of abnormal clients.

    Notes
    -----
    sigma stays as it was before the fit. Standard errors are the sandwich's, as for every family; those
    of ``cov_params("nonrobust")``, and only those, rely on normal errors in the middle. Observation weights
    multiply a row's loss; k is the same for all rows.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=100, p=3)
    >>> y = sim.y.copy()
    >>> y[::100] += 50.0                                   # one gross row in every client
    >>> data = ad.ClientData.from_arrays(sim.X, y, sim.client)
    >>> net = ad.networks.directed_circle(20, 5)
    >>> res = ad.DecentralizedGLM(data, net, ad.Huber(c=1.345)).fit()
    >>> bool(((res.params - sim.theta0).abs() < 4 * res.bse).all())
    True
    """

    c: float = 1.345
    scale: float | None = None

    def __post_init__(self) -> None:
        _positive(self.c, "c", "the usual value is 1.345; for least squares use family='gaussian'")
        if self.scale is not None:
            _positive(self.scale, "scale", "leave it out to have it estimated")


@composed("huber", identity=6)
class HuberLoss(Family):
    """Squared residuals with linear tails beyond k = `par` = c sigma."""

    @property
    def estimates_scale(self) -> bool:
        """True: the dispersion is estimated."""
        return True

    @property
    def robust(self) -> bool:
        """True: rows beyond k have no curvature, and k comes from the rows of all clients before a fit."""
        return True

    @property
    def additive(self) -> bool:
        """True: the loss is of y - eta alone."""
        return True

    @property
    def has_global_bound(self) -> bool:
        """True: the curvature is at most 1."""
        return True

    @property
    def observed_curvature(self) -> bool:
        """True: rows beyond k have no curvature, so that the observed and the expected one differ."""
        return True

    @property
    def _share_within(self) -> float:
        """P(|r| <= k) for normal errors."""
        return float(special.erf(self.tuning / np.sqrt(2.0)))

    def loss(self, eta: Array, y: Array) -> Array:
        """Return r^2 / 2 for |r| <= k, k |r| - k^2 / 2 beyond."""
        size = np.abs(eta - y)
        within = np.minimum(size, self.par)
        return np.asarray(within * (size - 0.5 * within))

    def residual(self, eta: Array, y: Array) -> Array:
        """Return the residual eta - y, clipped at k."""
        return np.clip(eta - y, -self.par, self.par)

    def curvature(self, eta: Array, y: Array) -> Array:
        """Return one where the loss is quadratic, zero beyond."""
        return (np.abs(eta - y) <= self.par).astype(np.float64)

    def information(self, eta: Array) -> Array:
        """Return the expected curvature under normal errors, P(|r| <= k) = 2 Phi(c) - 1.

        An outlying client has few rows within k, and its observed information would be near zero. The constant cancels
        in score statistics, because `dispersion_terms` are divided by it.
        """
        return np.full_like(eta, self._share_within)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return the global bound 1."""
        return np.ones(len(y))

    @property
    def bounded_derivatives(self) -> bool:
        """Whether `derivative_bounds` hold for every linear predictor: they do, but the second is infinite."""
        return True

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return 1 and infinity: the second derivative jumps at |r| = k."""
        return np.ones(len(y)), np.full(len(y), np.inf)

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        """Return psi^2 / (2 Phi(c) - 1): the variance of a row's score is the dispersion times its information."""
        return np.square(self.residual(eta, y)) / self._share_within

    def log_density(self, eta: Array, y: Array, weight: Array) -> Array:
        """Return the log-density of each observation under Huber's least favourable law.

        Its density is proportional to exp(-loss / sigma^2): normal in the middle, exponential in the tails.
        A weight w multiplies the loss, so that sigma is divided by the root of w and c multiplied by it.
        """
        sigma, c = self.par / self.tuning / np.sqrt(weight), self.tuning * np.sqrt(weight)
        mass = np.sqrt(2.0 * np.pi) * special.erf(c / np.sqrt(2.0)) + 2.0 * np.exp(-0.5 * c**2) / c
        return np.asarray(-self.loss(eta, y) / np.square(sigma) - np.log(sigma * mass))

    def statsmodels(self) -> Any:
        """Raise ValueError: there is no counterpart."""
        raise ValueError("Huber's loss has no statsmodels GLM family; its counterpart is RLM with HuberT")


def _positive(value: Any, name: str, advice: str) -> None:
    try:
        in_interval(value, name, 0.0, np.inf, open_low=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}: {advice}") from None
