"""Corruptions of clients' data for simulation studies.

BF, OOD and MP are those of the paper's section "Simulation Experiments on Synthetic Data"; its Appendix D is not
public, so the others are choices of this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from scipy import stats

from adfl_stats._arguments import one_of, takes
from adfl_stats._types import Array
from adfl_stats.losses.families import Family

__all__ = ["CORRUPTIONS", "ClientDraw", "Corruption", "corrupt", "corruption_kinds", "respond"]

DataCorruption: TypeAlias = Callable[[Array, Array, np.random.Generator], tuple[Any, Any]]

# Ours: counts up to exp(30) = 1e13 are exact in float64.
_MOST_LOG_MEAN = 30.0


@dataclass(frozen=True, eq=False)
class ClientDraw:
    """The clean rows of one abnormal client and how they were drawn: the argument of a corruption.

    Attributes
    ----------
    X, y : ndarray, shapes (n, p) and (n,)
        The clean rows.
    shocks : ndarray (n,)
        The random numbers that made `y` from the linear predictor.
    theta0 : ndarray (p,)
        The parameter.
    family : str
        "gaussian", "binomial" or "poisson".
    noise : float
        Standard deviation of Gaussian errors.
    intercept : bool
        Whether the first column of `X` is constant.
    link : str
        The link; empty for the family's usual one.
    other : tuple of ndarray, or None
        The clean rows (X, y) of a normal client, which copies take; None where no client is normal.

    Examples
    --------
    >>> import numpy as np
    >>> X, shocks = np.ones((3, 1)), np.array([-1.0, 0.0, 1.0])
    >>> draw = ClientDraw(X, 2.0 + shocks, shocks, np.array([2.0]), "gaussian", 1.0, True)
    >>> CORRUPTIONS["BF"](draw, np.random.default_rng(1))[1].tolist()
    [-1.0, -2.0, -3.0]
    """

    X: Array
    y: Array
    shocks: Array
    theta0: Array
    family: str
    noise: float
    intercept: bool
    link: str = ""
    other: tuple[Array, Array] | None = None

    def respond(self, theta: Array) -> Array:
        """Return the responses under another parameter, from the same random numbers.

        Parameters
        ----------
        theta : ndarray (p,)
            The parameter.

        Returns
        -------
        ndarray (n,)
            The responses.
        """
        return respond(self.family, self.X @ theta, self.shocks, self.noise, self.link)


class Corruption(ABC):
    """A corruption of a client's rows that has options: the base of `Shift`, `UnitError`, ..., and of your own.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> class Rounded(ad.simulate.Corruption):
    ...     name = "rounded"
    ...
    ...     def __call__(self, draw, rng):
    ...         return draw.X.round(), draw.y
    >>> sim = ad.simulate.glm_design(M=4, n=5, p=2, abnormal=[0], corruption=Rounded(), seed=1)
    >>> bool((sim.X[:5] == sim.X[:5].round()).all())
    True
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Its label in tables."""

    @abstractmethod
    def __call__(self, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the corrupted X and y of a client."""


Kind: TypeAlias = str | Corruption | DataCorruption


def respond(family: str, eta: Array, shocks: Array, noise: float, link: str = "") -> Array:
    """Turn linear predictors into responses, by inversion, so that row i uses shock i and no other.

    A generator's own Poisson draws consume a varying number of random numbers, and one client's parameter
    would then change the responses of the clients after it.
    """
    mean = Family(family, link=link).mean(_checked(family, eta, link))
    if family == "gaussian":
        return mean + noise * shocks
    if family == "binomial":
        return (shocks < mean).astype(np.float64)
    # The quantile at a shock of exactly zero is -1 by scipy's convention.
    return np.maximum(stats.poisson.ppf(shocks, mean), 0.0)


def _checked(family: str, eta: Array, link: str) -> Array:
    """Return eta, refused where a Poisson mean would overflow or not be positive."""
    logarithm = link in ("", "log")
    if family == "poisson" and logarithm and eta.max() > _MOST_LOG_MEAN:
        raise ValueError(
            f"theta0 gives log means of up to {eta.max():.3g} in a Poisson design; "
            f"make it smaller, so that they stay below {_MOST_LOG_MEAN:g}"
        )
    if family == "poisson" and not logarithm and eta.min() <= 0.0:
        raise ValueError(
            f"theta0 gives linear predictors down to {eta.min():.3g} in a Poisson design with the link {link!r}, "
            "which wants positive ones; use intercept=True and a theta0 with a larger constant"
        )
    return eta


def _bit_flip(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """BF of the paper, Y -> -Y; for binary responses Y -> 1 - Y (ours)."""
    if draw.family == "poisson":
        raise ValueError("corruption 'BF' would make Poisson counts negative; use 'permute' for counts")
    return draw.X, -draw.y if draw.family == "gaussian" else 1.0 - draw.y


def _label_flip(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """LF, the label flipping of the paper's real-data section, for two classes: Y -> 1 - Y."""
    if draw.family != "binomial":
        raise ValueError(f"corruption 'LF' flips binary labels, but family is {draw.family!r}; use 'permute'")
    return draw.X, 1.0 - draw.y


def _out_of_distribution(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """OOD of the paper, X -> 0.7 X + V with V entries U(0, 1); Y stays as the clean X made it."""
    X = 0.7 * draw.X + rng.random(draw.X.shape)
    if draw.intercept:
        X[:, 0] = draw.X[:, 0]
    return X, draw.y


def _model_parameter(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """MP of the paper: responses from theta_c, which keeps the first floor(0.1 p) slopes of theta0."""
    first = int(draw.intercept)
    kept = (len(draw.theta0) - first) // 10
    theta_c = draw.theta0.copy()
    theta_c[first + kept :] = 0.0
    if np.array_equal(theta_c, draw.theta0):
        raise ValueError(
            f"corruption 'MP' keeps the first {kept} slope(s) of theta0 and the others are zero already, "
            "so nothing changes; give a theta0 with a nonzero slope after these"
        )
    return draw.X, draw.respond(theta_c)


def _permute(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """Responses permuted within the client (ours): the same margins, no regression."""
    return draw.X, rng.permutation(draw.y)


def _heavy_noise(draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """Responses replaced by t noise with 2 degrees of freedom (ours), whose variance is infinite."""
    if draw.family != "gaussian":
        raise ValueError(f"corruption 'noise' makes real responses, but family is {draw.family!r}; use 'permute'")
    return draw.X, rng.standard_t(2.0, size=len(draw.y))


CORRUPTIONS: dict[str, Callable[[ClientDraw, np.random.Generator], tuple[Array, Array]]] = {
    "BF": _bit_flip,
    "OOD": _out_of_distribution,
    "MP": _model_parameter,
    "LF": _label_flip,
    "permute": _permute,
    "noise": _heavy_noise,
}
"""Named corruptions; each takes a `ClientDraw` and a generator and returns the corrupted X and y."""


def corruption_kinds(corruption: Kind | Sequence[Kind] | None, n_abnormal: int) -> list[Kind]:
    """Check the corruption and return it as a list, to be assigned to the abnormal clients in turn."""
    if corruption is None:
        if n_abnormal:
            raise ValueError(
                f"abnormal asks for {n_abnormal} abnormal client(s), but corruption is None; choose one of "
                f"{', '.join(map(repr, CORRUPTIONS))}, or give a function of (X, y, rng)"
            )
        return []
    kinds = list(corruption) if isinstance(corruption, (list, tuple)) and corruption else [corruption]
    return [_usable(kind) for kind in kinds]


def _usable(kind: Any) -> Kind:
    """Return a corruption: one by its name, with options, or a function of rows and random numbers."""
    if not callable(kind):
        return one_of(kind, "corruption", tuple(CORRUPTIONS))
    if not isinstance(kind, Corruption) and not takes(kind, None, None, None):
        raise TypeError(
            f"corruption is {kind!r}; give a function of (X, y, rng), or {', '.join(map(repr, CORRUPTIONS))}"
        )
    return cast("Kind", kind)


def corrupt(kind: Kind, draw: ClientDraw, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return one client's rows as the corruption leaves them."""
    if isinstance(kind, str):
        return CORRUPTIONS[kind](draw, rng)
    made = kind(draw, rng) if isinstance(kind, Corruption) else kind(draw.X.copy(), draw.y.copy(), rng)
    try:
        X, y = (np.asarray(part, dtype=np.float64) for part in made)
    except (TypeError, ValueError):
        raise TypeError(
            f"the corruption function returned a {type(made).__name__}; wanted are X and y, arrays of numbers"
        ) from None
    if X.shape != draw.X.shape or y.shape != draw.y.shape:
        raise ValueError(
            f"the corruption function returned shapes {X.shape} and {y.shape}; "
            f"it must keep {draw.X.shape} and {draw.y.shape}"
        )
    return X, y
