"""Designs and corruptions for simulation studies.

The linear design and the corruptions BF, OOD and MP are those of the paper's section "Simulation Experiments
on Synthetic Data". Its Appendix D is not public, so the heterogeneous covariates, the binomial and Poisson
counterparts, the other corruptions and the hospital data are choices of this package, and are marked as such
below.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from adfl_stats._arguments import in_interval, listing, one_of, shape_of, whole_number
from adfl_stats._files import size_in_words
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.losses.families import family as make_family
from adfl_stats.simulate.corruptions import CORRUPTIONS, ClientDraw, Kind, corrupt, corruption_kinds, respond

__all__ = ["CORRUPTIONS", "ClientDraw", "Simulation", "glm_design", "hospitals", "paper_linear"]

# Most clients, and most columns. Ours: what a machine holds.
LARGEST_SIZE = 10**8
# Standard deviations of the linear predictor. Ours: probabilities mostly in .1 to .9, means mostly in .4 to 2.7.
_ETA_SD = {"binomial": 1.0, "poisson": 0.5}


@dataclass(frozen=True, eq=False)
class Simulation:
    """Simulated rows of all clients together with the truth behind them; its arrays are read-only.

    Attributes
    ----------
    X, y : ndarray, shapes (N, p) and (N,)
        Covariates and responses, rows grouped by client, corruptions applied.
    client : ndarray, shape (N,)
        The label of each row's client.
    sizes, labels, abnormal : ndarray, shape (M,)
        Rows per client, client labels, and the mask of the abnormal set.
    theta0 : ndarray, shape (p,)
        The parameter of the normal clients.
    names : list of str
        Names of the columns of `X`.
    family : str
        "gaussian", "binomial" or "poisson".
    client_name, y_name : str
        Names of the client and response columns in `frame`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=10, n=20, p=3)
    >>> sim.X.shape, sim.abnormal_labels, sim.theta0.tolist()
    ((200, 3), [5, 9], [1.0, 0.0, 0.0])
    """

    X: Array
    y: Array
    client: NDArray[Any]
    sizes: Ints
    theta0: Array
    abnormal: Mask
    labels: NDArray[Any]
    names: list[str]
    family: str
    client_name: str = "client"
    y_name: str = "y"

    def __post_init__(self) -> None:
        for array in (self.X, self.y, self.client, self.sizes, self.theta0, self.abnormal, self.labels):
            array.flags.writeable = False

    def __repr__(self) -> str:
        return (
            f"Simulation({self.family}, {len(self.labels)} clients, {int(self.abnormal.sum())} abnormal, "
            f"{len(self.y)} rows, {self.X.shape[1]} columns)"
        )

    @property
    def abnormal_labels(self) -> list[Hashable]:
        """The labels of the abnormal clients."""
        return list(self.labels[self.abnormal].tolist())

    def frame(self) -> pd.DataFrame:
        """Return the rows as a new DataFrame.

        Returns
        -------
        DataFrame
            Client, response, then the covariates.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.hospitals(seed=1)
        >>> sim.frame().columns.tolist()
        ['hospital', 'readmitted', 'age', 'severity', 'comorbid', 'treated']
        """
        frame = pd.DataFrame(self.X, columns=self.names, copy=True)
        frame.insert(0, self.client_name, self.client.copy())
        frame.insert(1, self.y_name, self.y.copy())
        return frame


class _Streams(NamedTuple):
    """One generator per purpose: clean rows depend on neither the abnormal set nor the corruption."""

    sizes: np.random.Generator
    clients: np.random.Generator
    covariates: np.random.Generator
    response: np.random.Generator
    choice: np.random.Generator
    corruption: np.random.Generator


def _streams(seed: Any) -> _Streams:
    if not isinstance(seed, np.random.Generator):
        seed = np.random.default_rng(whole_number(seed, "seed", 0, None))
    return _Streams(*seed.spawn(len(_Streams._fields)))


def _client_sizes(n: Any, M: int, p: int, rng: np.random.Generator) -> Ints:
    """Rows per client from one size, a tuple (low, high) or M sizes; with p numbers each they must fit into memory."""
    sizes = _given_sizes(n, M, rng)
    # In floating point, where no sum is too large.
    needed = 8.0 * p * float(sizes.sum(dtype=np.float64))
    if hasattr(os, "sysconf") and needed > float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"):
        raise MemoryError(f"n is {n!r}: {M} clients and {p} columns take {size_in_words(needed)}, more than the memory")
    return sizes


def _given_sizes(n: Any, M: int, rng: np.random.Generator) -> Ints:
    if isinstance(n, tuple) and len(n) == 2:
        low, high = whole_number(n[0], "n[0]", 1), whole_number(n[1], "n[1]", 1)
        if low > high:
            raise ValueError(f"n is {n}; the first of (low, high) must not exceed the second")
        return rng.integers(low, high, size=M, endpoint=True)
    if shape_of(n, "n") == ():
        return np.full(M, whole_number(n, "n", 1), dtype=np.int64)
    sizes = np.asarray(n)
    if sizes.shape != (M,) or not np.issubdtype(sizes.dtype, np.integer) or sizes.min() < 1:
        raise ValueError(
            f"n has shape {sizes.shape} and type {sizes.dtype}; give one size, a tuple (low, high), "
            f"or {M} whole numbers of at least 1"
        )
    return sizes.astype(np.int64)


def _abnormal_clients(abnormal: Any, M: int, rng: np.random.Generator) -> Ints:
    """Indices of the abnormal clients; the sets of growing shares are nested under one seed."""
    if shape_of(abnormal, "abnormal") == ():
        share = in_interval(abnormal, "abnormal", 0.0, 0.5, open_high=True)
        # 0.29 * 100 is 28.999999999999996 in floating point, and 29 clients are meant.
        return rng.permutation(M)[: int(np.floor(share * M + 1e-9))]
    chosen = np.asarray(abnormal)
    if chosen.dtype == np.bool_ and chosen.shape == (M,):
        return np.flatnonzero(chosen)
    if chosen.size == 0:
        return np.empty(0, dtype=np.int64)
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(
            f"abnormal has shape {chosen.shape} and type {chosen.dtype}; "
            f"give a share, client indices or a mask of {M} clients"
        )
    outside = chosen[(chosen < 0) | (chosen >= M)]
    if outside.size:
        raise ValueError(f"abnormal has indices outside 0..{M - 1}: {listing(outside)}")
    if np.unique(chosen).size != chosen.size:
        raise ValueError("abnormal names some client twice; give each index once")
    return chosen.astype(np.int64)


def _assemble(
    X: Array,
    sizes: Ints,
    theta0: Array,
    family: str,
    chosen: Ints,
    kinds: list[Kind],
    streams: _Streams,
    *,
    noise: float = 1.0,
    intercept: bool = False,
    link: str = "",
    **words: Any,
) -> Simulation:
    """Draw the responses and corrupt the chosen clients in place; `words` holds the labels and names."""
    N, M = len(X), len(sizes)
    shocks = streams.response.standard_normal(N) if family == "gaussian" else streams.response.random(N)
    y = respond(family, X @ theta0, shocks, noise, link)
    stop = np.cumsum(sizes)
    # One generator per client: what happens to one does not depend on which others are abnormal.
    rngs = streams.corruption.spawn(M) if chosen.size else []
    other = _normal_rows(X, y, sizes, stop, chosen)
    for turn, m in enumerate(chosen):
        rows = slice(stop[m] - sizes[m], stop[m])
        draw = ClientDraw(X[rows], y[rows], shocks[rows], theta0, family, noise, intercept, link, other)
        X[rows], y[rows] = corrupt(kinds[turn % len(kinds)], draw, rngs[m])
    abnormal = np.zeros(M, dtype=np.bool_)
    abnormal[chosen] = True
    client = np.repeat(words["labels"], sizes)
    return Simulation(X=X, y=y, client=client, sizes=sizes, theta0=theta0, abnormal=abnormal, family=family, **words)


def _normal_rows(X: Array, y: Array, sizes: Ints, stop: Ints, chosen: Ints) -> tuple[Array, Array] | None:
    """Return the rows of the first normal client; None where there is none."""
    normal = np.setdiff1d(np.arange(len(sizes)), chosen)
    if not normal.size:
        return None
    rows = slice(stop[normal[0]] - sizes[normal[0]], stop[normal[0]])
    return X[rows], y[rows]


def _covariates(kind: str, sizes: Ints, p: int, streams: _Streams) -> Array:
    """Rows of N(0, I), or of N(mu_m, Sigma_m) with an AR(1) correlation matrix Sigma_m per client."""
    X = streams.covariates.standard_normal((int(sizes.sum()), p))
    if kind == "heterogeneous":
        mu = 0.5 * streams.clients.standard_normal((len(sizes), p))
        r = np.repeat(streams.clients.uniform(0.0, 0.5, len(sizes)), sizes)
        innovation = np.sqrt(1.0 - r**2)
        # The recursion costs O(N p); a Cholesky factor per client would cost O(M p^3 + N p^2).
        for j in range(1, p):
            X[:, j] = r * X[:, j - 1] + innovation * X[:, j]
        X += np.repeat(mu, sizes, axis=0)
    return X


def _truth(theta0: Any, family: str, p: int, intercept: bool) -> Array:
    """The given parameter, checked, or the default one of the family."""
    width = p + intercept
    if theta0 is None:
        s = max(1, p // 5)
        truth = np.zeros(width)
        truth[intercept : intercept + s] = _ETA_SD[family] / np.sqrt(s) if family in _ETA_SD else 1.0
        return truth
    try:
        truth = np.array(theta0, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("theta0 must hold numbers; it could not be converted to float64") from None
    if truth.shape != (width,) or not np.isfinite(truth).all():
        first = ", the intercept first" if intercept else ""
        raise ValueError(f"theta0 has shape {truth.shape}; it must be {width} finite number(s){first}")
    return truth


def glm_design(
    family: str = "gaussian",
    M: int = 100,
    n: int | tuple[int, int] | ArrayLike = 100,
    p: int = 50,
    *,
    abnormal: float | ArrayLike = 0.0,
    corruption: Kind | Sequence[Kind] | None = None,
    covariates: str = "homogeneous",
    intercept: bool = False,
    theta0: ArrayLike | None = None,
    noise: float = 1.0,
    link: str | None = None,
    seed: int | np.random.Generator,
) -> Simulation:
    """Simulate the linear design of the paper's "Simulation Experiments on Synthetic Data" or a GLM counterpart.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson"}
        Y = X'theta0 + eps with eps ~ N(0, noise^2) as in the paper, or (ours) the logit and log-linear
        models.
    M : int
        Number of clients.
    n : int, tuple or array_like
        Rows per client: one number, a tuple (low, high) for sizes uniform on low..high, or M sizes.
    p : int
        Number of covariates, the constant not counted.
    abnormal : float or array_like
        A share in [0, 1/2), of which floor(share * M) clients are chosen at random as in the paper, or the
        abnormal clients' indices or mask, of any number. The sets of growing shares are nested under one
        seed.
    corruption : str, callable or sequence of these, optional
        From the paper: "BF", Y -> -Y; "OOD", X -> 0.7 X + V with V entries U(0, 1), one draw per row and
        column (the paper leaves that open), Y and the constant as they were; "MP", Y from theta_c, which
        keeps the first floor(0.1 p) slopes of `theta0` and loses the others. Ours: "BF" as Y -> 1 - Y for
        binary responses, "LF" the same by its own name, "permute" (Y permuted within the client) and "noise"
        (Y replaced by t noise with 2 degrees of freedom). Those with options are objects: `PartialRows`, `HeavyTails`,
        `UnitError`, `SwappedColumns`, `Shift`, `Copies`, and `Composed` for several on one client. A callable maps
        (X, y, rng) of a client to its new (X, y). A list is assigned to the abnormal clients in turn.
    covariates : {"homogeneous", "heterogeneous"}
        X ~ N(0, I); or (ours) X ~ N(mu_m, Sigma_m) on client m, where mu_m ~ N(0, 0.25 I), Sigma_m has
        entries r_m^|j-k| and r_m ~ U(0, 0.5). The law of Y given X is common to all normal clients.
    intercept : bool
        Put a column "const" of ones first; its default coefficient is 0.
    theta0 : array_like, optional
        The truth. The default is the paper's (1_s, 0) with s = floor(0.2 p), at least 1; (ours) times 1 /
        sqrt(s) for binomial and 0.5 / sqrt(s) for Poisson, so that homogeneous linear predictors have
        standard deviation 1 and 0.5, whatever p.
    noise : float
        Standard deviation of the Gaussian errors.
    link : str, optional
        Another link than the family's usual one, as in `adfl_stats.family`. Poisson designs with "identity" or "sqrt"
        need a `theta0` with positive linear predictors.
    seed : int or numpy.random.Generator
        Children of a generator are made by ``spawn``, so a second call with it gives new data.

    Returns
    -------
    Simulation
        Under one seed the rows of normal clients do not depend on `abnormal` or `corruption`.

    Examples
    --------
    >>> sim = glm_design(M=10, n=20, p=5, abnormal=0.2, corruption="BF", seed=1)
    >>> sim.X.shape, int(sim.abnormal.sum()), sim.theta0.tolist()
    ((200, 5), 2, [1.0, 0.0, 0.0, 0.0, 0.0])
    """
    one_of(family, "family", ("gaussian", "binomial", "poisson"))
    one_of(covariates, "covariates", ("homogeneous", "heterogeneous"))
    M, p = whole_number(M, "M", 1, LARGEST_SIZE), whole_number(p, "p", 1, LARGEST_SIZE)
    noise = in_interval(noise, "noise", 0.0, np.inf, open_high=True)
    if family != "gaussian" and noise != 1.0:
        raise ValueError(f"noise is {noise:g}, but the {family} family has no noise scale; leave it at 1")
    truth, composed = _truth(theta0, family, p, bool(intercept)), make_family(family, link)
    streams = _streams(seed)
    sizes = _client_sizes(n, M, p, streams.sizes)
    chosen = _abnormal_clients(abnormal, M, streams.choice)
    kinds = corruption_kinds(corruption, chosen.size)
    X = _covariates(covariates, sizes, p, streams)
    names = [f"x{j}" for j in range(1, p + 1)]
    if intercept:
        X, names = np.column_stack([np.ones(len(X)), X]), ["const", *names]
    words: dict[str, Any] = {"names": names, "labels": np.arange(M), "link": composed.link}
    return _assemble(X, sizes, truth, family, chosen, kinds, streams, noise=noise, intercept=bool(intercept), **words)


def paper_linear(
    abnormal: float | ArrayLike,
    corruption: Kind | Sequence[Kind] | None,
    seed: int | np.random.Generator,
    covariates: str = "homogeneous",
    M: int = 100,
    n: int | tuple[int, int] | ArrayLike = 100,
    p: int = 50,
) -> Simulation:
    """Simulate the linear model of the paper's section "Simulation Experiments on Synthetic Data".

    Its sizes M = n = 100 and p = 50 are the defaults. Heterogeneous covariates are our choice, because the paper
    describes its own in Appendix D, which is not public.

    Parameters
    ----------
    abnormal : float or array_like
        Share, indices or mask of the abnormal clients, as in `glm_design`.
    corruption : str, callable or sequence of these, or None
        As in `glm_design`; the paper's are "BF", "OOD" and "MP".
    seed : int or numpy.random.Generator
        As in `glm_design`.
    covariates : {"homogeneous", "heterogeneous"}
        As in `glm_design`.
    M : int
        Number of clients.
    n : int, tuple or array_like
        Rows per client, as in `glm_design`.
    p : int
        Number of covariates.

    Returns
    -------
    Simulation
        Rows and truth.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="MP", seed=1)
    >>> sim.X.shape, int(sim.abnormal.sum()), int(sim.theta0.sum())
    ((10000, 50), 20, 10)
    """
    return glm_design("gaussian", M, n, p, abnormal=abnormal, corruption=corruption, covariates=covariates, seed=seed)


def hospitals(
    seed: int | np.random.Generator,
    M: int = 100,
    abnormal: int = 20,
    n: int | tuple[int, int] | ArrayLike = (60, 240),
) -> Simulation:
    """Simulate readmission of high-risk patients in `M` hospitals, `abnormal` of which keep faulty records.

    The data are invented (ours, not the paper's). Readmission follows a logit model without a constant: age
    in decades about its centre 0.3, severity score 0.7, number of comorbidities 0.3, treated -0.8. Case mix
    differs between hospitals and sicker patients are treated more often, but readmission given the covariates
    follows the same law in all normal hospitals. The faulty ones, in turn, have flipped outcome codes ("LF")
    or outcomes of another model ("MP", where all slopes are zero, like outcomes linked to the wrong
    patients). About half of the patients are readmitted, so that flipped codes do not change the rates much.

    Parameters
    ----------
    seed : int or numpy.random.Generator
        As in `glm_design`.
    M : int
        Number of hospitals, labelled "H001", "H002" and so on.
    abnormal : int
        Number of hospitals with faulty records, fewer than half.
    n : int, tuple or array_like
        Patients per hospital, as in `glm_design`.

    Returns
    -------
    Simulation
        Rows and truth.

    Examples
    --------
    >>> hospitals(seed=1).frame().columns.tolist()
    ['hospital', 'readmitted', 'age', 'severity', 'comorbid', 'treated']
    """
    M, abnormal = whole_number(M, "M", 1, LARGEST_SIZE), whole_number(abnormal, "abnormal", 0)
    if 2 * abnormal >= M:
        raise ValueError(f"abnormal is {abnormal} of {M} hospitals; it must be fewer than half of them")
    streams = _streams(seed)
    sizes = _client_sizes(n, M, 5, streams.sizes)
    N, rng = int(sizes.sum()), streams.covariates
    mix = np.repeat(streams.clients.standard_normal((M, 3)), sizes, axis=0)
    age = 0.3 * mix[:, 0] + 1.2 * rng.standard_normal(N)
    severity = 0.4 * mix[:, 1] + 0.25 * age + rng.standard_normal(N)
    comorbid = rng.poisson(np.exp(-0.3 + 0.2 * mix[:, 2] + 0.15 * age)).astype(np.float64)
    treated = (rng.random(N) < special.expit(0.6 * severity)).astype(np.float64)
    width = max(3, len(str(M)))
    return _assemble(
        np.column_stack([age, severity, comorbid, treated]),
        sizes,
        np.array([0.3, 0.7, 0.3, -0.8]),
        "binomial",
        streams.choice.permutation(M)[:abnormal],
        ["LF", "MP"],
        streams,
        names=["age", "severity", "comorbid", "treated"],
        labels=np.array([f"H{m:0{width}d}" for m in range(1, M + 1)]),
        client_name="hospital",
        y_name="readmitted",
    )
