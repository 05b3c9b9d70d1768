"""A family composed with a link. Its formulas are in a class per family.

A loss is half the squared error (Gaussian), the same with linear tails (Huber) or the negative
log-likelihood per observation for dispersion one, up to a term free of the parameters (the others), as a function
of the linear predictor eta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from adfl_stats._types import Array, Mask
from adfl_stats.losses.links import LINKS

__all__ = ["TINY", "Family", "composed", "family_names", "supported_links"]

Kind = TypeVar("Kind", bound="type[Family]")

# Lower bound on variances. Ours: with a smaller one a probability is 0 or 1 but for rounding.
TINY = 1e-12
# Where a derivative is taken from differences: central differences of second order have an error of about 1e-8. Ours.
DIFFERENCE = 1e-4
# Rows of y that are checked at a time. Ours: half a megabyte.
CHECK_ROWS = 1 << 16

# The class and the kernel's code (blocks.h) of every family and link; a family's usual link has its lowest code.
_CLASSES: dict[tuple[str, str], type[Family]] = {}
_CODES: dict[tuple[str, str], int] = {}


def composed(name: str, **codes: int) -> Callable[[Kind], Kind]:
    """Enter a class for a family with some links (an underscore stands for a space), with the kernel's codes."""

    def enter(kind: Kind) -> Kind:
        for link, code in codes.items():
            _CLASSES[name, link.replace("_", " ")] = kind
            _CODES[name, link.replace("_", " ")] = code
        return kind

    return enter


def supported_links(name: str) -> list[str]:
    """Return the names of a family's links, the usual one first."""
    return [link for family, link in sorted(_CODES, key=_CODES.__getitem__) if family == name]


def family_names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(dict.fromkeys(name for name, _ in sorted(_CODES, key=_CODES.__getitem__)))


@dataclass(frozen=True)
class Family:
    """A family with a link; ``Family(name, link=...)`` is an instance of that family's own class.

    Users make one with `adfl_stats.family`. Its methods are formulas by row, of responses `y` (n,) and linear
    predictors `eta` (n,), or (n, outputs) where there are several.

    Attributes
    ----------
    name : str
        One of `FAMILY_NAMES`.
    par : float
        The negative binomial's alpha (variance mu + alpha mu^2); Tweedie's power p (variance mu^p); Huber's
        k = c sigma, the residual beyond which the loss is linear (zero until sigma is estimated); for links that want
        a positive linear predictor its lower limit (zero until the data are known), see `inside`; zero elsewhere.
    outputs : int
        Linear predictors per observation: classes minus one for the multinomial, else 1.
    tuning : float
        Huber's c; zero elsewhere.
    link : str
        One of `supported_links`; the usual one where it is not given.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> poisson = ad.family("poisson")
    >>> poisson.link, poisson.mean(np.array([0.0])).tolist()
    ('log', [1.0])
    """

    name: str
    par: float = 0.0
    outputs: int = 1
    tuning: float = 0.0
    link: str = field(default="", kw_only=True)

    def __new__(cls, name: str = "", *args: Any, link: str = "", **words: Any) -> Any:
        """Return an instance of the class for this family and link."""
        return object.__new__(_class_of(name, link) if cls is Family else cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "link", self.link or supported_links(self.name)[0])

    @classmethod
    def of_code(cls, code: int, par: float, outputs: int) -> Family:
        """Return the family and link that have this code in the kernel."""
        name, link = next(kind for kind, known in _CODES.items() if known == code)
        return cls(name, par, outputs, link=link)

    @property
    def code(self) -> int:
        """The kernel's number of this family and link."""
        return _CODES[self.name, self.link]

    @property
    def label(self) -> str:
        """The name, with what else the user gave."""
        return self.name

    @property
    def estimates_scale(self) -> bool:
        """Whether the dispersion is estimated or known to be one."""
        return False

    @property
    def additive(self) -> bool:
        """Whether the dispersion has the unit of y squared (Gaussian, Huber)."""
        return False

    @property
    def linear(self) -> bool:
        """Whether the mean is linear in the parameters and the information the same everywhere."""
        return self.additive and self.link == "identity"

    @property
    def quadratic(self) -> bool:
        """Whether the loss is quadratic in the parameters."""
        return False

    @property
    def convex(self) -> bool:
        """Whether the loss is convex in eta whatever y; where it is not, `information` serves Newton's method."""
        return True

    @property
    def positive_predictor(self) -> bool:
        """Whether the link needs a positive linear predictor."""
        return False

    @property
    def exponential(self) -> bool:
        """Whether the loss grows exponentially in eta."""
        return self.link in ("log", "cloglog", "loglog")

    @property
    def has_global_bound(self) -> bool:
        """Whether `curvature_bound` is the same along every run."""
        return False

    @property
    def robust(self) -> bool:
        """Whether a row's loss grows linearly in its tails, beyond a scale that comes from the rows before a fit."""
        return False

    @property
    def observed_curvature(self) -> bool:
        """Whether `curvature` depends on y, so that it differs from `information`."""
        return False

    def coefficient_names(self, columns: list[str], classes: tuple[Any, ...] | None) -> list[str]:
        """Return the names of the coefficients: the columns, for the multinomial once per class after the first."""
        return columns

    def inside(self, eta: Array) -> Array:
        """Return the nearest linear predictor that the link allows.

        Below the limit `par` the loss goes on along its tangent and the mean stays: gradients are finite wherever a
        run may come, and push it back.
        """
        return np.maximum(eta, self.par) if self.positive_predictor else eta

    def mean(self, eta: Array) -> Array:
        """Return E(y) at the linear predictor; for the multinomial all classes, shape (n, q + 1)."""
        return LINKS[self.link].inverse(self.inside(eta))

    def mean_slope(self, eta: Array) -> Array:
        """Return the derivative of the mean in eta."""
        return LINKS[self.link].slope(self.inside(eta))

    def loss(self, eta: Array, y: Array) -> Array:
        """Return each observation's loss, up to a term free of eta."""
        raise NotImplementedError

    def perfect_loss(self, y: Array) -> Array:
        """Return the loss of a perfect fit, with mean y."""
        return np.zeros_like(y)

    def deviance(self, eta: Array, y: Array) -> Array:
        """Return each observation's deviance: twice its loss beyond that of a perfect fit."""
        return np.asarray(2.0 * (self.loss(eta, y) - self.perfect_loss(y)))

    def residual(self, eta: Array, y: Array) -> Array:
        """Return the derivative of the loss in eta, the score with its sign changed."""
        raise NotImplementedError

    def curvature(self, eta: Array, y: Array) -> Array:
        """Return the second derivative of the loss in eta; (n, q, q) for the multinomial.

        This is the observed curvature, as in the paper's Omega_m; it depends on y but for canonical links.
        """
        raise NotImplementedError

    def newton_curvature(self, eta: Array, y: Array) -> Array:
        """Return the curvature by which equations are solved: the expected one where losses are not convex."""
        return self.curvature(eta, y) if self.convex else self.information(eta)

    def information(self, eta: Array) -> Array:
        """Return the expected curvature, Fisher's information for dispersion one."""
        return self.curvature(eta, self.mean(eta))

    def curvature_bound(self, eta: Array, y: Array) -> Array:
        """Return, per observation, a bound on the curvature along a run that starts at eta.

        Where the curvature has no bound, a local one: the larger of the value at eta and at the saturated fit mu = y.
        """
        raise NotImplementedError

    @property
    def bounded_derivatives(self) -> bool:
        """Whether `derivative_bounds` hold for every linear predictor, as Condition 4 asks over all of Theta."""
        return False

    def derivative_bounds(self, eta: Array, y: Array) -> tuple[Array, Array]:
        """Return, per observation, bounds on the second and third derivative of the loss in eta, over all eta.

        Where there are none (see `bounded_derivatives`): `curvature_bound`, which is local, and the size of the third
        derivative at eta itself, from differences of the second.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            third = (self.curvature(eta + DIFFERENCE, y) - self.curvature(eta - DIFFERENCE, y)) / (2.0 * DIFFERENCE)
        return self.curvature_bound(eta, y), np.abs(third)

    def dispersion_terms(self, eta: Array, y: Array) -> Array:
        """Return the squared Pearson residuals (over q for q outputs), whose mean estimates the dispersion."""
        raise NotImplementedError

    def statsmodels(self) -> Any:
        """Return the statsmodels family instance, for log-likelihoods, deviances and oracles."""
        raise NotImplementedError

    def check_response(self, y: Array) -> None:
        """Raise ValueError where y lies outside the family's domain."""
        # In blocks: y may be a memory map, and a condition on all of it an array of its length.
        parts = [y[low : low + CHECK_ROWS] for low in range(0, len(y), CHECK_ROWS)]
        bad = [np.flatnonzero(self._outside(part)) for part in parts]
        if any(map(len, bad)):
            block = next(k for k, rows in enumerate(bad) if len(rows))
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
        return "real numbers"

    def _outside(self, y: Array) -> Mask:
        return np.zeros(len(y), dtype=bool)


def _class_of(name: str, link: str) -> type[Family]:
    usual = supported_links(name)
    if not usual:
        raise ValueError(f"family is {name!r}; choose one of {', '.join(map(repr, family_names()))}")
    if link and link not in usual:
        raise ValueError(
            f"family {name!r} with the link {link!r} is not available; its links are: {', '.join(map(repr, usual))}"
        )
    return _CLASSES[name, link or usual[0]]
