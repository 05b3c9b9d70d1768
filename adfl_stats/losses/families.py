"""Losses: what each family needs of y, its derivatives, and its statsmodels counterpart.

A loss is half the squared error (Gaussian), the same with linear tails (Huber) or the negative
log-likelihood per observation up to a term free of the parameters (the others), as a function of the
linear predictor eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special
from statsmodels.genmod import families
from statsmodels.robust import norms

from adfl_stats._arguments import in_interval
from adfl_stats._types import Array, Mask

__all__ = ["FAMILY_NAMES", "Family", "Huber", "resolve_family"]


# Codes and order are those of the kernel (blocks.h).
_CODES = {
    "gaussian": 0,
    "binomial": 1,
    "poisson": 2,
    "gamma": 3,
    "negativebinomial": 4,
    "multinomial": 5,
    "huber": 6,
}
_LINKS = {
    "gaussian": "identity",
    "binomial": "logit",
    "poisson": "log",
    "gamma": "log",
    "negativebinomial": "log",
    "multinomial": "logit",
    "huber": "identity",
}
FAMILY_NAMES = tuple(_CODES)
# Below this a variance is rounding: a probability that has run to 0 or 1.
TINY = 1e-12

# Rows of y that are checked at a time.
CHECK_ROWS = 1 << 16


@dataclass(frozen=True)
class Family:
    """A family with its canonical or usual link.

    Attributes
    ----------
    name : str
        One of `FAMILY_NAMES`.
    par : float
        The negative binomial's alpha (variance mu + alpha mu^2); Huber's k = c sigma, the residual beyond
        which the loss is linear (zero until sigma is estimated); zero elsewhere.
    outputs : int
        Linear predictors per observation: classes minus one for the multinomial, else 1.
    tuning : float
        Huber's c; zero elsewhere.
    """

    name: str
    par: float = 0.0
    outputs: int = 1
    tuning: float = 0.0

    @property
    def code(self) -> int:
        """The kernel's number of this family."""
        return _CODES[self.name]

    @property
    def link(self) -> str:
        """Name of the link."""
        return _LINKS[self.name]

    @property
    def estimates_scale(self) -> bool:
        """Whether the dispersion is estimated (Gaussian, Huber, gamma) or known to be one."""
        return self.name in ("gaussian", "huber", "gamma")

    @property
    def has_global_bound(self) -> bool:
        """Whether `curvature_bound` is the same along every run."""
        return self.name in ("gaussian", "huber", "binomial", "multinomial")

    @property
    def observed_curvature(self) -> bool:
        """Whether `curvature` depends on y, so that it differs from `information`."""
        return self.name in ("gamma", "negativebinomial", "huber")

    def coefficient_names(self, columns: list[str], classes: tuple[Any, ...] | None) -> list[str]:
        """Return the names of the coefficients: the columns, for the multinomial once per class after the first."""
        if self.name != "multinomial" or classes is None:
            return columns
        return [f"{level}: {name}" for level in classes[1:] for name in columns]

    def mean(self, eta: Array) -> Array:
        """Return E(y) at the linear predictor; for the multinomial all classes, shape (n, q + 1)."""
        if self.link == "identity":
            return eta
        if self.name == "binomial":
            return _logistic(eta)
        if self.name == "multinomial":
            return _softmax(eta)
        return np.exp(np.clip(eta, -708.0, 709.0))

    def loss(self, eta: Array, y: Array) -> Array:
        """Return each observation's loss, up to a term free of eta."""
        if self.name == "gaussian":
            return np.asarray(0.5 * (eta - y) ** 2)
        if self.name == "huber":
            # r^2 / 2 for |r| <= k, k |r| - k^2 / 2 beyond.
            size = np.abs(eta - y)
            within = np.minimum(size, self.par)
            return np.asarray(within * (size - 0.5 * within))
        if self.name == "binomial":
            return np.asarray(np.logaddexp(0.0, eta) - y * eta)
        if self.name == "multinomial":
            levels = np.column_stack([np.zeros(len(y)), eta])
            return np.asarray(special.logsumexp(levels, axis=1) - levels[np.arange(len(y)), y.astype(int)])
        mu = self.mean(eta)
        if self.name == "poisson":
            return np.asarray(mu - y * eta)
        if self.name == "gamma":
            return np.asarray(eta + y / mu)
        return np.asarray((y + 1.0 / self.par) * np.log1p(self.par * mu) - y * eta)

    def deviance(self, eta: Array, y: Array) -> Array:
        """Return each observation's deviance: twice its loss beyond that of a perfect fit."""
        perfect = np.zeros_like(y)
        if self.name == "binomial":
            perfect = -special.xlogy(y, y) - special.xlogy(1.0 - y, 1.0 - y)
        if self.link == "log":
            events = y > 0.0
            perfect[events] = self.loss(np.log(y[events]), y[events])
        return np.asarray(2.0 * (self.loss(eta, y) - perfect))

    def residual(self, eta: Array, y: Array) -> Array:
        """Return the derivative of the loss in eta, the score with its sign changed."""
        mu = self.mean(eta)
        if self.name == "huber":
            return np.clip(mu - y, -self.par, self.par)
        if self.name == "gamma":
            return 1.0 - y / mu
        if self.name == "negativebinomial":
            return (mu - y) / (1.0 + self.par * mu)
        if self.name == "multinomial":
            return mu[:, 1:] - (y[:, None] == np.arange(1, self.outputs + 1))
        return mu - y

    def curvature(self, eta: Array, y: Array) -> Array:
        """Return the second derivative of the loss in eta; (n, q, q) for the multinomial.

        This is the observed curvature, as in the paper's Omega_m; it depends on y for the gamma, the
        negative binomial and Huber's loss (one where the loss is quadratic, zero beyond).
        """
        mu = self.mean(eta)
        if self.name == "gaussian":
            return np.ones_like(mu)
        if self.name == "huber":
            return (np.abs(mu - y) <= self.par).astype(np.float64)
        if self.name == "binomial":
            return mu * (1.0 - mu)
        if self.name == "poisson":
            return mu
        if self.name == "gamma":
            return y / mu
        if self.name == "negativebinomial":
            return mu / (1.0 + self.par * mu) * ((1.0 + self.par * y) / (1.0 + self.par * mu))
        probability = mu[:, 1:]
        outer = -probability[:, :, None] * probability[:, None, :]
        diagonal = np.arange(self.outputs)
        outer[:, diagonal, diagonal] += probability
        return outer

    def information(self, eta: Array) -> Array:
        """Return the expected curvature.

        For Huber's loss it is that under normal errors, P(|r| <= k) = 2 Phi(c) - 1: a client far from the
        others has hardly a row within k, and would seem to know nothing. The constant cancels in score
        statistics, because `dispersion_terms` are divided by it.
        """
        mu = self.mean(eta)
        if self.name == "huber":
            return np.full_like(mu, self._share_within)
        if self.name == "gamma":
            return np.ones_like(mu)
        if self.name == "negativebinomial":
            return mu / (1.0 + self.par * mu)
        return self.curvature(eta, mu)

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return, per observation, a bound on the curvature along a run that starts at eta.

        Global for the Gaussian and Huber (1), binomial (1/4) and multinomial (1/2). The Poisson and the gamma
        have none: the larger of the value at eta and at the saturated fit mu = y stands in, and for the
        negative binomial the smaller of that and its global bound (1 + alpha y) / (4 alpha).
        """
        if self.name == "multinomial":
            return np.full(len(y), 0.5)
        if self.name in ("gaussian", "huber", "binomial"):
            return np.full(len(y), 0.25 if self.name == "binomial" else 1.0)
        if self.name == "gamma":
            return np.maximum(self.curvature(eta, y), 1.0)
        start = np.maximum(self.mean(eta), y)
        if self.name == "poisson":
            return start
        return np.minimum((1.0 + self.par * y) / (4.0 * self.par), np.maximum(start, 1.0))

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        """Return the squared Pearson residuals (over q for q outputs), whose mean estimates the dispersion.

        For Huber's loss psi^2 / (2 Phi(c) - 1): the variance of a row's score is the dispersion times its
        information, as elsewhere.
        """
        mu = self.mean(eta)
        if self.name == "huber":
            return np.square(self.residual(eta, y)) / self._share_within
        if self.name == "multinomial":
            hit = y[:, None] == np.arange(self.outputs + 1)
            return np.asarray(((hit - mu) ** 2 / np.maximum(mu, TINY)).sum(axis=1) / self.outputs)
        if self.name == "gamma":
            return (y / mu - 1.0) ** 2
        variance = {
            "gaussian": np.ones_like(mu),
            "binomial": mu * (1.0 - mu),
            "poisson": mu,
            "negativebinomial": mu * (1.0 + self.par * mu),
        }[self.name]
        return (y - mu) ** 2 / np.maximum(variance, TINY)

    def statsmodels(self) -> Any:
        """Return the statsmodels family instance, for log-likelihoods, deviances and oracles."""
        if self.name == "gamma":
            return families.Gamma(link=families.links.Log())
        if self.name == "negativebinomial":
            return families.NegativeBinomial(alpha=self.par)
        if self.name == "huber":
            raise ValueError("Huber's loss has no statsmodels GLM family; its counterpart is RLM with HuberT")
        simple = {"gaussian": families.Gaussian, "binomial": families.Binomial, "poisson": families.Poisson}
        if self.name not in simple:
            raise ValueError("the multinomial has no statsmodels GLM family; its counterpart is MNLogit")
        return simple[self.name]()

    def log_density(self, eta: Array, y: Array, weight: Array) -> Array:
        """Return the log-density of each observation under Huber's least favourable law.

        Its density is proportional to exp(-loss / sigma^2): normal in the middle, exponential in the tails.
        A weight w multiplies the loss, so that sigma is divided by the root of w and c multiplied by it.
        """
        sigma, c = self.par / self.tuning / np.sqrt(weight), self.tuning * np.sqrt(weight)
        mass = np.sqrt(2.0 * np.pi) * special.erf(c / np.sqrt(2.0)) + 2.0 * np.exp(-0.5 * c**2) / c
        return np.asarray(-self.loss(eta, y) / np.square(sigma) - np.log(sigma * mass))

    @property
    def _share_within(self) -> float:
        """P(|r| <= k) for normal errors."""
        return float(special.erf(self.tuning / np.sqrt(2.0)))

    def check_response(self, y: Array) -> None:
        """Raise ValueError where y lies outside the family's domain."""
        # In blocks: y may be a memory map, and a condition on all of it an array of its length.
        parts = [y[low : low + CHECK_ROWS] for low in range(0, len(y), CHECK_ROWS)]
        bad = [np.flatnonzero(self._outside(part)) for part in parts]
        if any(map(len, bad)):
            block = next(k for k, found in enumerate(bad) if len(found))
            first = block * CHECK_ROWS + int(bad[block][0])
            raise ValueError(
                f"y is outside the domain of family {self.name!r}: {sum(map(len, bad))} value(s), the first is "
                f"{y[first]:g} in row {first}. {self.name!r} wants {self._domain}; recode y or choose another family"
            )
        if len(y) and y.min() == y.max():
            raise ValueError(
                f"y takes the single value {y[0]:g} in all {len(y)} rows: there is nothing to estimate. "
                "Check the response column"
            )

    @property
    def _domain(self) -> str:
        return {
            "gaussian": "real numbers",
            "huber": "real numbers",
            "binomial": "values in [0, 1] (0/1, or shares of successes with weights=)",
            "gamma": "values > 0",
            "multinomial": f"class codes 0..{self.outputs}",
        }.get(self.name, "counts, that is values >= 0")

    def _outside(self, y: Array) -> Mask:
        if self.link == "identity":
            return np.zeros(len(y), dtype=bool)
        if self.name == "gamma":
            return y <= 0
        if self.name == "binomial":
            return (y < 0) | (y > 1)
        if self.name == "multinomial":
            return (y < 0) | (y > self.outputs) | (y != np.rint(y))
        return y < 0


@dataclass(frozen=True)
class Huber:
    """Huber's loss for linear regression, which a few gross rows inside good clients cannot spoil.

    With r = y - x'theta and k = c sigma a row's loss is r^2 / 2 for abs(r) <= k and k abs(r) - k^2 / 2 beyond.
    Rows with outlying covariates keep their influence: the loss bounds residuals alone.

    Parameters
    ----------
    c : float
        In units of sigma. The default has 95 % efficiency under normal errors; a large c is least squares.
    scale : float, optional
        sigma, the standard deviation of normal errors. If not given it is estimated before the fit: the
        median over clients of the normalised median absolute residual (median / 0.6745) around a robust
        preliminary fit, which a minority of bad clients cannot spoil.

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


def resolve_family(family: Any, classes: int = 0) -> Family:
    """Turn a name, a statsmodels family instance or a `Family` into a `Family`.

    Parameters
    ----------
    family : str, statsmodels family instance, Huber, statsmodels HuberT or Family
        Strings are the names in `FAMILY_NAMES`; ``"negativebinomial"`` by name has alpha = 1, as in
        statsmodels. Huber's loss without a scale has par = 0, to be filled in.
    classes : int
        Number of classes of y; used by the multinomial.
    """
    if isinstance(family, Family):
        return family
    if isinstance(family, norms.HuberT):
        family = Huber(c=family.t)
    if isinstance(family, Huber):
        return Family("huber", par=family.c * (family.scale or 0.0), tuning=family.c)
    if isinstance(family, str):
        name = family.lower().replace("_", "").replace(" ", "")
        if name not in _CODES:
            raise ValueError(f"family is {family!r}; choose one of {', '.join(map(repr, FAMILY_NAMES))}")
        if name == "multinomial":
            if classes < 2:
                raise ValueError(f"family 'multinomial' needs y with at least 2 classes, found {classes}")
            return Family(name, outputs=classes - 1)
        if name == "huber":
            return resolve_family(Huber())
        return Family(name, par=1.0 if name == "negativebinomial" else 0.0)
    if isinstance(family, type) and issubclass(family, (families.Family, Huber, norms.HuberT)):
        raise TypeError(f"family is the class {family.__name__}; pass an instance, {family.__name__}()")
    name = type(family).__name__.lower()
    if not isinstance(family, families.Family) or name not in _CODES:
        raise ValueError(f"family is {family!r}; choose one of {', '.join(map(repr, FAMILY_NAMES))}")
    link = type(family.link).__name__.lower()
    if link != _LINKS[name]:
        have = ", ".join(f"{key} ({value})" for key, value in _LINKS.items())
        raise ValueError(f"family {name!r} with the link {link!r} is not available; these are: {have}")
    par = in_interval(family.alpha, "alpha", 0.0, np.inf, open_low=True) if name == "negativebinomial" else 0.0
    return Family(name, par=par)


def _positive(value: Any, name: str, advice: str) -> None:
    try:
        in_interval(value, name, 0.0, np.inf, open_low=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}: {advice}") from None


def _logistic(eta: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-np.clip(eta, -708.0, 709.0)))


def _softmax(eta: Array) -> Array:
    full = np.column_stack([np.zeros(len(eta)), eta])
    full -= full.max(axis=1, keepdims=True)
    np.exp(full, out=full)
    return full / full.sum(axis=1, keepdims=True)
