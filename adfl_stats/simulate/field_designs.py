"""Simulated clients outside the paper's setting: heterogeneous parameters, noise, sizes and counts.

The paper's normal clients share one parameter and one law of noise. Here they differ by about their own standard
errors, their noise is skewed, heavy-tailed or dependent, events are rare, counts overdispersed, clients small or few.
Everything here is a choice of this package. `CELLS` lists the settings by name, `draw` simulates one of them.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import linalg, optimize, signal, special

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.simulate.corruptions import CORRUPTIONS, ClientDraw, respond

__all__ = ["CELLS", "Draw", "FieldCell", "client_covariance", "draw", "target"]


FAMILIES = ("gaussian", "binomial", "poisson")
SPREADS = ("diagonal", "intercept", "correlated")
NOISES = ("normal", "lognormal", "exponential", "t3", "hetero", "client", "gross", "ar")
BAD = ("none", "flip", "permute", "shift", "OOD", "MP", "minority")

# Slopes that give linear predictors of ordinary size; the share of events in rare-event designs; alpha of the negative
# binomial; share and size of gross errors; autocorrelation; standard deviation of the covariates' means. All ours.
_SLOPE = {"gaussian": 1.0, "binomial": 0.7, "poisson": 0.3}
RARE_SHARE = 0.016
NB_ALPHA = 0.5
GROSS_SHARE, GROSS_SIZE = 0.01, 20.0
AR = 0.5
MEAN_SD = 0.5
# Rows that represent the law of the covariates, each with its mirror image, so that odd moments are zero. Ours.
REFERENCE_ROWS = 20_000


@dataclass(frozen=True)
class FieldCell:
    """One setting.

    Attributes
    ----------
    name : str
        Its key in `CELLS`.
    family : {"gaussian", "binomial", "poisson"}
        What is fitted.
    M, p : int
        Clients; covariates, the constant not counted.
    n : int or tuple
        Rows per client; a tuple (low, high) for sizes log-uniform between the two.
    tau : float
        Spread of the clients' parameters: theta_m = theta + u_m with u_mj ~ N(0, (tau se_j)^2), where se_j is the
        model-based standard error of coefficient j in a typical client (see `client_covariance`). Abnormal clients
        have theirs too.
    spread : {"diagonal", "intercept", "correlated"}
        Independent u_mj; only the intercept's; or correlations of .5.
    noise : str
        The law of Gaussian responses about their mean, with mean zero and variance one: "normal", "lognormal" (exp
        of a standard normal), "exponential", "t3", "hetero" (standard deviation proportional to exp(.5 x1)),
        "client" (standard deviation of the client, with .5 as that of its log), "ar" (autocorrelation .5 along the
        client's rows) and "gross" (N(0, 1), and 20 added to or subtracted from 1 % of the rows: the variance is 5).
    counts : {"poisson", "nb"}
        "nb": negative binomial counts, variance mu + .5 mu^2, which are fitted as Poisson.
    rare : bool
        An intercept such that 1.6 % of binary responses are one.
    corruption : str
        What abnormal clients do: "flip" (y -> -y or 1 - y), "permute" (y within the client), "shift" (their parameter
        is moved, all in one direction), "minority" (they share another parameter, in which every second slope has
        the other sign), "OOD" and "MP" as in `simulate.glm_design`, or "none".
    share : float
        Of the clients; floor(share M) of them are abnormal.
    shift : float
        Length of a shift delta in standard errors of a typical client: delta' S^-1 delta = shift^2.
    covariates : {"homogeneous", "heterogeneous"}
        N(0, I), or N(mu_m, I) with mu_m ~ N(0, .25 I).
    intercept : bool
        Whether there is a constant, first.
    slope : float or None
        The first max(2, floor(.2 p)) slopes, the others being zero; by default 1 (gaussian), .7 (binomial) or .3
        (poisson).
    """

    name: str
    family: str = "gaussian"
    M: int = 100
    n: int | tuple[int, int] = 100
    p: int = 4
    tau: float = 0.0
    spread: str = "diagonal"
    noise: str = "normal"
    counts: str = "poisson"
    rare: bool = False
    corruption: str = "none"
    share: float = 0.0
    shift: float = 0.0
    covariates: str = "homogeneous"
    intercept: bool = True
    slope: float | None = None

    def __post_init__(self) -> None:
        one_of(self.family, "family", FAMILIES)
        one_of(self.spread, "spread", SPREADS)
        one_of(self.noise, "noise", NOISES)
        one_of(self.counts, "counts", ("poisson", "nb"))
        one_of(self.corruption, "corruption", BAD)
        one_of(self.covariates, "covariates", ("homogeneous", "heterogeneous"))
        whole_number(self.M, "M", 1)
        whole_number(self.p, "p", 1)
        for size in self.n if isinstance(self.n, tuple) else (self.n,):
            whole_number(size, "n", 1)
        in_interval(self.tau, "tau", 0.0, np.inf, open_high=True)
        in_interval(self.share, "share", 0.0, 0.5, open_high=True)
        if self.family != "gaussian" and self.noise != "normal":
            raise ValueError(f"noise is {self.noise!r}, but the {self.family} family has none; leave it at 'normal'")
        if self.family == "poisson" and self.corruption == "flip":
            raise ValueError("corruption 'flip' would make counts negative; use 'permute'")
        if (self.share > 0.0) != (self.corruption != "none"):
            raise ValueError(f"corruption is {self.corruption!r} and share {self.share:g}; give both or neither")
        if (self.rare or self.spread == "intercept") and not self.intercept:
            raise ValueError("rare=True and spread='intercept' need intercept=True")

    @property
    def P(self) -> int:  # noqa: N802 - the paper's letter
        """Coefficients, with the constant."""
        return self.p + self.intercept

    @property
    def typical_n(self) -> float:
        """Rows of a typical client: the geometric mean of the two ends where sizes differ."""
        return float(np.sqrt(self.n[0] * self.n[1])) if isinstance(self.n, tuple) else float(self.n)


@dataclass(frozen=True, eq=False)
class Draw:
    """One simulated data set and the truth behind it; its arrays are read-only.

    Attributes
    ----------
    X, y, client : ndarray, shapes (N, P), (N,), (N,)
        Rows grouped by client, the constant first; clients are numbered from 0.
    theta0 : ndarray, shape (P,)
        What pooled rows of normal clients estimate; see `target`.
    abnormal, sizes : ndarray, shape (M,)
        Mask of the abnormal clients; rows per client.
    family : str
        What is fitted.
    """

    X: Array
    y: Array
    client: Ints
    theta0: Array
    abnormal: Mask
    family: str
    sizes: Ints

    def __post_init__(self) -> None:
        for array in (self.X, self.y, self.client, self.theta0, self.abnormal, self.sizes):
            array.flags.writeable = False


def draw(cell: FieldCell | str, seed: int) -> Draw:
    """Simulate one data set of a cell, or of the cell of this name.

    Under one seed the rows of normal clients depend neither on the corruption nor on the share.

    Examples
    --------
    >>> data = draw("gaussian-tau1-flip", seed=1)
    >>> data.X.shape, int(data.abnormal.sum()), data.theta0.tolist()
    ((10000, 5), 20, [0.0, 1.0, 1.0, 0.0, 0.0])
    """
    if isinstance(cell, str):
        cell = CELLS[one_of(cell, "cell", tuple(CELLS))]
    aside = ("name", "corruption", "share", "shift")
    words = " ".join(str(value) for name, value in asdict(cell).items() if name not in aside)
    root = np.random.default_rng([whole_number(seed, "seed", 0, None), zlib.crc32(words.encode())])
    sizes_rng, spread_rng, rows_rng, noise_rng, choice_rng, bad_rng = root.spawn(6)

    sizes = _sizes(cell, sizes_rng)
    X = _covariates(cell, sizes, rows_rng)
    parameters = _conditional(cell) + cell.tau * _spread(cell, spread_rng)
    eta = np.einsum("ij,ij->i", X, np.repeat(parameters, sizes, axis=0))
    # The gamma frailty of negative binomial counts belongs to the shocks: a moved parameter leaves it as it is.
    frailty = np.zeros(len(X))
    if cell.counts == "nb":
        frailty = np.log(noise_rng.gamma(1.0 / NB_ALPHA, NB_ALPHA, len(X)))
    shocks = _noise(cell, X, sizes, noise_rng) if cell.family == "gaussian" else noise_rng.random(len(X))
    y = respond(cell.family, eta + frailty, shocks, 1.0)

    chosen = choice_rng.permutation(cell.M)[: int(np.floor(cell.share * cell.M + 1e-9))]
    stop = np.cumsum(sizes)
    rngs = bad_rng.spawn(cell.M)
    for m in chosen:
        rows = slice(stop[m] - sizes[m], stop[m])
        clean = ClientDraw(X[rows], y[rows], shocks[rows], parameters[m], cell.family, 1.0, cell.intercept)
        X[rows], y[rows] = _corrupted(cell, clean, frailty[rows], rngs[m])
    abnormal = np.zeros(cell.M, dtype=np.bool_)
    abnormal[chosen] = True
    return Draw(X, y, np.repeat(np.arange(cell.M), sizes), target(cell).copy(), abnormal, cell.family, sizes)


def client_covariance(cell: FieldCell) -> Array:
    """Return S, the model-based covariance of the estimate of a typical client, at theta and noise variance one.

    It is the inverse of n E(w x x'), with w = 1, mu (1 - mu) or mu.
    """
    rows = _reference_rows(cell)
    weight = _variance(cell.family, rows @ _conditional(cell))
    return np.asarray(linalg.inv(cell.typical_n * (rows.T * weight) @ rows / len(rows)))


@lru_cache(maxsize=256)
def target(cell: FieldCell) -> Array:
    """Return what the pooled rows of many normal clients estimate.

    For Gaussian responses it is the mean theta of the clients' parameters. Logits and logs do not average: where
    parameters spread, theta0 solves E x (mu(x'theta_m) - mu(x'theta0)) = 0 over clients and rows, and differs from
    theta by about as much as the pooled estimate's standard error.
    """
    theta = _conditional(cell)
    if cell.family == "gaussian" or cell.tau == 0.0:
        return theta
    rows = _reference_rows(cell)
    factor = cell.tau * _spread_factor(cell)
    eta, sd = rows @ theta, np.sqrt(((rows @ factor) ** 2).sum(axis=1))
    nodes, weights = special.roots_hermitenorm(31)
    mean = sum(w * _mean(cell.family, eta + sd * z) for z, w in zip(nodes, weights / weights.sum(), strict=True))
    estimate = theta.copy()
    for _ in range(50):
        now = rows @ estimate
        step = linalg.solve((rows.T * _variance(cell.family, now)) @ rows, rows.T @ (mean - _mean(cell.family, now)))
        estimate += step
        if np.abs(step).max() < 1e-10:
            break
    estimate.flags.writeable = False
    return estimate


@lru_cache(maxsize=256)
def _conditional(cell: FieldCell) -> Array:
    """The mean of the clients' parameters."""
    theta = np.zeros(cell.P)
    slope = _SLOPE[cell.family] if cell.slope is None else cell.slope
    theta[cell.intercept : cell.intercept + max(2, cell.p // 5)] = slope
    if cell.rare:
        rows = _reference_rows(cell)
        theta[0] = optimize.brentq(lambda a: special.expit(a + rows @ theta).mean() - RARE_SHARE, -20.0, 5.0)
    theta.flags.writeable = False
    return theta


def _mean(family: str, eta: Array) -> Array:
    return np.asarray(special.expit(eta) if family == "binomial" else np.exp(eta))


def _variance(family: str, eta: Array) -> Array:
    if family == "gaussian":
        return np.ones(len(eta))
    mu = _mean(family, eta)
    return np.asarray(mu * (1.0 - mu) if family == "binomial" else mu)


def _reference_rows(cell: FieldCell) -> Array:
    return _fixed_rows(cell.p, cell.intercept, cell.covariates)


@lru_cache(maxsize=8)
def _fixed_rows(p: int, intercept: bool, covariates: str) -> Array:
    half = np.random.default_rng(20260101).standard_normal((REFERENCE_ROWS, p))
    half /= np.sqrt((half**2).mean(axis=0))
    if covariates == "heterogeneous":
        half *= np.sqrt(1.0 + MEAN_SD**2)
    rows = np.vstack([half, -half])
    return np.column_stack([np.ones(len(rows)), rows]) if intercept else rows


def _sizes(cell: FieldCell, rng: np.random.Generator) -> Ints:
    if isinstance(cell.n, tuple):
        return np.rint(np.exp(rng.uniform(np.log(cell.n[0]), np.log(cell.n[1]), size=cell.M))).astype(np.int64)
    return np.full(cell.M, cell.n, dtype=np.int64)


def _covariates(cell: FieldCell, sizes: Ints, rng: np.random.Generator) -> Array:
    X = rng.standard_normal((int(sizes.sum()), cell.p))
    if cell.covariates == "heterogeneous":
        X += np.repeat(MEAN_SD * rng.standard_normal((cell.M, cell.p)), sizes, axis=0)
    return np.column_stack([np.ones(len(X)), X]) if cell.intercept else X


def _spread_factor(cell: FieldCell) -> Array:
    """A matrix F with covariance F F' of the clients' parameters at tau = 1."""
    se = np.sqrt(np.diag(client_covariance(cell)))
    if cell.spread == "intercept":
        se[1:] = 0.0
    share = 0.5 if cell.spread == "correlated" else 0.0
    correlation = (1.0 - share) * np.eye(cell.P) + share
    return np.asarray(se[:, None] * linalg.cholesky(correlation, lower=True))


def _spread(cell: FieldCell, rng: np.random.Generator) -> Array:
    return rng.standard_normal((cell.M, cell.P)) @ _spread_factor(cell).T


def _noise(cell: FieldCell, X: Array, sizes: Ints, rng: np.random.Generator) -> Array:
    N = len(X)
    if cell.noise == "exponential":
        return rng.standard_exponential(N) - 1.0
    if cell.noise == "t3":
        return rng.standard_t(3.0, N) / np.sqrt(3.0)
    normal = rng.standard_normal(N)
    if cell.noise == "lognormal":
        return (np.exp(normal) - np.exp(0.5)) / np.sqrt(math.e * (math.e - 1.0))
    if cell.noise == "hetero":
        variance = 1.0 + MEAN_SD**2 * (cell.covariates == "heterogeneous")
        return normal * np.exp(0.5 * X[:, int(cell.intercept)] - 0.25 * variance)
    if cell.noise == "client":
        return normal * np.repeat(np.exp(0.5 * rng.standard_normal(cell.M) - 0.25), sizes)
    if cell.noise == "gross":
        return normal + GROSS_SIZE * rng.choice([-1.0, 1.0], N) * (rng.random(N) < GROSS_SHARE)
    if cell.noise == "ar":
        for rows in np.split(np.arange(N), np.cumsum(sizes)[:-1]):
            # The first row has the variance of all others.
            normal[rows[1:]] *= np.sqrt(1.0 - AR**2)
            normal[rows] = signal.lfilter([1.0], [1.0, -AR], normal[rows])
    return normal


def _corrupted(cell: FieldCell, clean: ClientDraw, frailty: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    kind = {"flip": "BF"}.get(cell.corruption, cell.corruption)
    if kind in CORRUPTIONS:
        return CORRUPTIONS[kind](clean, rng)
    moved = _shift(cell) if kind == "shift" else _minority(cell) - _conditional(cell)
    return clean.X, respond(cell.family, clean.X @ (clean.theta0 + moved) + frailty, clean.shocks, 1.0)


@lru_cache(maxsize=256)
def _shift(cell: FieldCell) -> Array:
    """The shift: one direction for all clients and data sets of the cell."""
    direction = np.random.default_rng(7).standard_normal(cell.P)
    return np.asarray(
        cell.shift * linalg.cholesky(client_covariance(cell), lower=True) @ (direction / linalg.norm(direction))
    )


def _minority(cell: FieldCell) -> Array:
    """The parameter of the minority: every second slope of theta has the other sign."""
    theta = _conditional(cell).copy()
    theta[cell.intercept + 1 :: 2] *= -1.0
    return theta


def _cells() -> Iterator[FieldCell]:
    """The settings: no abnormal clients, 20 % flipped or permuted, shifts, the study's designs, few clients."""
    clean = [
        FieldCell("gaussian-tau0"),
        FieldCell("gaussian-tau.5", tau=0.5),
        FieldCell("gaussian-tau1", tau=1.0),
        FieldCell("gaussian-tau2", tau=2.0),
        FieldCell("gaussian-tau2-intercept", tau=2.0, spread="intercept"),
        FieldCell("gaussian-tau1-correlated", tau=1.0, spread="correlated"),
        FieldCell("gaussian-lognormal-n30", n=30, noise="lognormal"),
        *(FieldCell(f"gaussian-{noise}", noise=noise) for noise in NOISES[1:]),
        FieldCell("gaussian-sizes-tau1", n=(10, 1500), tau=1.0),
        FieldCell("binomial-tau0", "binomial"),
        FieldCell("binomial-tau1", "binomial", tau=1.0),
        FieldCell("binomial-rare", "binomial", n=300, rare=True),
        FieldCell("binomial-n15", "binomial", n=15),
        FieldCell("poisson-tau0", "poisson"),
        FieldCell("poisson-tau1", "poisson", tau=1.0),
        FieldCell("poisson-nb", "poisson", counts="nb"),
    ]
    yield from clean
    for cell in clean:
        kind = "permute" if cell.family == "poisson" else "flip"
        yield replace(cell, name=f"{cell.name}-{kind}", corruption=kind, share=0.2)
    for tau, shift in ((0.0, 2.0), (0.0, 3.0), (0.0, 5.0), (1.0, 5.0), (1.0, 10.0)):
        yield FieldCell(f"gaussian-tau{tau:g}-shift{shift:g}", tau=tau, corruption="shift", share=0.2, shift=shift)
    wide: dict[str, Any] = {"n": 200, "p": 10, "intercept": False, "slope": 1.0}
    hard = {
        "binomial": (
            *(("minority", share) for share in (0.4, 0.45)),
            *((kind, share) for kind in ("OOD", "flip") for share in (0.2, 0.4)),
            ("MP", 0.4),
        ),
        "poisson": (*((kind, share) for kind in ("permute", "OOD") for share in (0.2, 0.4)), ("MP", 0.4)),
    }
    for family, kinds in hard.items():
        for kind, share in kinds:
            name = f"{family}-p10-{kind}{share:g}".replace("0.", ".")
            yield FieldCell(name, family, corruption=kind, share=share, **wide)
    for M in (6, 10, 20):
        for tau in (0.0, 1.0):
            yield FieldCell(f"gaussian-M{M}-tau{tau:g}", M=M, tau=tau)
    for M in (10, 20):
        for tau in (0.0, 1.0):
            yield FieldCell(f"gaussian-M{M}-tau{tau:g}-flip", M=M, tau=tau, corruption="flip", share=0.2)


CELLS: dict[str, FieldCell] = {cell.name: cell for cell in _cells()}
"""The settings by name."""
