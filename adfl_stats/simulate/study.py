"""Monte-Carlo studies with known truth: efficiency relative to the oracle, coverage, false discoveries, power.

`grid` lists cells, `run` draws data sets in each of them and fits them in parallel, `efficiency` puts the draws
together. The oracle pools the rows of the normal clients (theta_A of the paper's section 4); the efficiency of a
method is the oracle's mean squared error over that of the normal clients' own estimates.
"""

from __future__ import annotations

import itertools
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats._threads import one_blas_thread
from adfl_stats._types import Mask
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.pooled import pooled_estimate
from adfl_stats.errors import AdflWarning
from adfl_stats.inference.results import Results
from adfl_stats.inference.screening import screen
from adfl_stats.methods import DFL, Bridge, ClippedGossip, GeometricMedian, Method, Oracle
from adfl_stats.model import DecentralizedGLM
from adfl_stats.network import generators
from adfl_stats.network.network import Network
from adfl_stats.simulate.designs import CORRUPTIONS, Simulation, glm_design

__all__ = ["DESIGNS", "METHODS", "Cell", "Design", "draw", "efficiency", "grid", "run"]

Make: TypeAlias = Callable[[Mask], Method | None]
Row: TypeAlias = dict[str, Any]

COVARIATES = ("homogeneous", "heterogeneous")
# Ours: a sparse circle, a dense one, and a random network with 10 neighbours on average at M = 100.
NETWORKS = ("circle-5", "circle-30", "erdos-renyi-.1")
# The false discovery rate of `screen`. Ours: its default.
Q = 0.1

METHODS: dict[str, Make] = {
    "fit": lambda abnormal: None,
    "DFL": lambda abnormal: DFL(),
    "BRIDGE-M": lambda abnormal: Bridge("median"),
    "BRIDGE-T": lambda abnormal: Bridge("trimmed", b=1),
    "ClippedGossip": lambda abnormal: ClippedGossip(),
    "GeometricMedian": lambda abnormal: GeometricMedian(),
    "oracle DFL": lambda abnormal: Oracle(abnormal, balance=True),
}
"""Methods by name; each makes its method object, None for the default of `fit`, from the mask of abnormal clients."""


@dataclass(frozen=True)
class Cell:
    """One setting of a study.

    Attributes
    ----------
    family : str
        As in `simulate.glm_design`.
    network : str
        "circle-D" (each client hears the next D), "erdos-renyi-q" (drawn once, with one seed) or "complete".
    covariates, corruption : str
        As in `simulate.glm_design`; the corruption is "none" where the share of abnormal clients is zero.
    share : float
        Share of abnormal clients.
    M, n, p : int
        Clients, rows of each, covariates.
    slope : float or None
        The slopes of the first floor(0.2 p) covariates, the others being zero; None for those of `glm_design`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.study.Cell("gaussian", "circle-5", "homogeneous", "BF", 0.2, M=30, n=60, p=5).slope is None
    True
    """

    family: str
    network: str
    covariates: str
    corruption: str
    share: float
    M: int
    n: int
    p: int
    slope: float | None = None


@dataclass(frozen=True)
class Design:
    """The defaults of `grid` for a family.

    Attributes
    ----------
    corruptions : tuple of str
        Names from `simulate.CORRUPTIONS`.
    shares : tuple of float
        Shares of abnormal clients.
    covariates : tuple of str
        "homogeneous", "heterogeneous".
    n, p, M : int
        Rows of each client, covariates, clients.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.study.DESIGNS["gaussian"].corruptions
    ('BF', 'OOD', 'MP')
    """

    corruptions: tuple[str, ...]
    shares: tuple[float, ...]
    covariates: tuple[str, ...]
    n: int
    p: int
    M: int = 100


DESIGNS = {
    "gaussian": Design(("BF", "OOD", "MP"), (0.0, 0.1, 0.2, 0.3, 0.4), COVARIATES, 100, 50),
    "binomial": Design(("LF", "MP", "OOD"), (0.2, 0.4), COVARIATES[:1], 200, 10),
    "poisson": Design(("permute", "MP", "OOD"), (0.2, 0.4), COVARIATES[:1], 200, 10),
}
"""The full designs: the paper's linear one, and (ours) its logistic and Poisson counterparts."""


def grid(
    family: str = "gaussian",
    *,
    networks: Iterable[str] = NETWORKS,
    corruptions: Iterable[str] | None = None,
    shares: Iterable[float] | None = None,
    covariates: Iterable[str] | None = None,
    M: int | None = None,
    n: int | None = None,
    p: int | None = None,
    slope: float | None = 1.0,
) -> list[Cell]:
    """Return the cells of a family: networks x covariates x corruptions x shares.

    Defaults are those of the family's design in `DESIGNS`. Without abnormal clients one cell serves all
    corruptions.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson"}
        Of the responses.
    networks, corruptions : iterable of str, optional
        The values of the cells; see `Cell`.
    shares : iterable of float, optional
        Shares of abnormal clients.
    covariates : iterable of str, optional
        The values of the cells; see `Cell`.
    M, n, p : int, optional
        Clients, rows of each, covariates.
    slope : float or None
        Strength of the signal, and of the corruptions OOD and MP; see `Cell`. 1 as in the paper.

    Returns
    -------
    list of Cell
        In the order of the networks.

    Examples
    --------
    >>> len(grid()), len(grid("binomial", networks=["circle-5"]))
    (78, 6)
    """
    usual = DESIGNS[one_of(family, "family", tuple(DESIGNS))]
    sizes = {
        name: getattr(usual, name) if value is None else whole_number(value, name, 1)
        for name, value in {"M": M, "n": n, "p": p}.items()
    }
    if slope is not None:
        slope = in_interval(slope, "slope", 0.0, np.inf, open_low=True)
    names = list(networks)
    for name in names:
        _network(name, sizes["M"])
    laws = usual.covariates if covariates is None else covariates
    kinds = usual.corruptions if corruptions is None else corruptions
    parts = usual.shares if shares is None else shares
    values = itertools.product(
        names,
        [one_of(law, "covariates", COVARIATES) for law in laws],
        [_possible(kind, family, sizes["p"]) for kind in kinds],
        [in_interval(share, "shares", 0.0, 0.5, open_high=True) for share in parts],
    )
    cells = (
        Cell(family, network, law, kind if share else "none", share, **sizes, slope=slope)
        for network, law, kind, share in values
    )
    # The cells without abnormal clients are the same for all corruptions.
    return list(dict.fromkeys(cells))


def draw(cell: Cell, replicate: int, seed: int = 1) -> Simulation:
    """Return the data set of one replicate of a cell, as `run` draws it under the same seed.

    Parameters
    ----------
    cell : Cell
        The setting.
    replicate : int
        Its number, from zero.
    seed : int
        Seed of the study.

    Returns
    -------
    Simulation
        Rows and truth.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> cell = ad.study.grid(networks=["circle-5"], shares=[0.2], M=30, n=60, p=5)[0]
    >>> ad.study.draw(cell, 0).X.shape
    (1800, 5)
    """
    # Slopes share their random numbers, so that a comparison of two has less noise.
    words = " ".join(str(value) for name, value in asdict(cell).items() if name != "slope")
    theta0 = None if cell.slope is None else cell.slope * (np.arange(cell.p) < max(1, cell.p // 5))
    return glm_design(
        cell.family,
        cell.M,
        cell.n,
        cell.p,
        abnormal=cell.share,
        corruption=cell.corruption if cell.share else None,
        covariates=cell.covariates,
        theta0=theta0,
        seed=np.random.default_rng([seed, zlib.crc32(words.encode()), replicate]),
    )


def run(
    cells: Sequence[Cell],
    methods: Iterable[str] | Mapping[str, Make] = ("fit",),
    *,
    replicates: int = 20,
    jobs: int = 1,
    solver: str = "auto",
    seed: int = 1,
    progress: bool = False,
) -> pd.DataFrame:
    """Draw data sets in every cell, fit each by every method, and compare the fits with the truth.

    Methods see the same data. Every cell and replicate has a seed of its own, so that results depend neither on
    the number of workers nor on which other cells are in the study.

    Parameters
    ----------
    cells : sequence of Cell
        From `grid`, or your own.
    methods : names or mapping
        Names from `METHODS`; or functions by name that make a method from the mask of abnormal clients.
    replicates : int
        Data sets in a cell.
    jobs : int
        Parallel processes; each fit has one thread.
    solver : {"auto", "rounds", "limit"}
        As in `DecentralizedGLM.fit`; methods without a limit run their rounds also where "limit" is asked for.
    seed : int
        Another one gives other data.
    progress : bool
        Show a progress bar over the data sets.

    Returns
    -------
    DataFrame
        One row per cell, replicate and method. mse : mean over normal clients of the squared distance between
        their own estimate and the truth; oracle_mse : that of the oracle; coverage : share of the coefficients
        whose 95 % interval has the truth (NaN for methods without standard errors); flags, fdr, power : of
        `screen` at q = .1, fdr being the share of normal clients among the flagged ones, 0 if there are
        none, and power NaN where no client is abnormal; converged.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> cells = ad.study.grid(networks=["circle-5"], corruptions=["BF"], shares=[0.2], M=20, n=60, p=3)
    >>> draws = ad.study.run(cells, ["fit", "DFL"], replicates=2)
    >>> draws.groupby("method", sort=False)["power"].mean().tolist()[0]
    1.0
    """
    chosen = _chosen(methods)
    whole_number(replicates, "replicates", 1)
    whole_number(jobs, "jobs", 1)
    whole_number(seed, "seed", 0)
    one_of(solver, "solver", ("auto", "rounds", "limit"))
    tasks = [(cell, k) for cell in cells for k in range(replicates)]
    if not tasks:
        raise ValueError("cells is empty; give at least one, as grid() returns them")
    try:
        from joblib import Parallel, delayed
    except ImportError:
        raise ImportError("studies need joblib; install it with: pip install 'adfl-stats[study]'") from None
    watched = _bar(len(tasks)) if progress else iter
    parts = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_replicate)(cell, k, chosen, solver, seed) for cell, k in tasks
    )
    return pd.DataFrame(itertools.chain.from_iterable(watched(parts)))


def efficiency(draws: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell and method from the draws of `run`, in their order.

    Parameters
    ----------
    draws : DataFrame
        From `run`.

    Returns
    -------
    DataFrame
        efficiency : mean of the oracle's squared error over the mean of the method's, over replicates; se : its
        Monte-Carlo standard error by the delta method (NaN for one replicate); mse, oracle_mse : the two means;
        coverage, fdr, power, converged : means; fdr_se : standard error of the mean; any_flag : share of the data
        sets with a flag.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> design = {"networks": ["circle-5"], "covariates": ["homogeneous"], "corruptions": ["BF"], "shares": [0.2]}
    >>> cells = ad.study.grid(**design, M=20, n=60, p=3)
    >>> table = ad.study.efficiency(ad.study.run(cells, ["fit", "DFL"], replicates=2)).set_index("method")
    >>> bool(table.loc["fit", "efficiency"] > table.loc["DFL", "efficiency"])
    True
    """
    keys = [*(field.name for field in fields(Cell)), "method"]
    rows = []
    for values, part in draws.groupby(keys, sort=False, dropna=False):
        ratio = part["oracle_mse"].mean() / part["mse"].mean()
        apart = part["oracle_mse"] / part["oracle_mse"].mean() - part["mse"] / part["mse"].mean()
        line = {"replicates": len(part), "efficiency": ratio, "se": ratio * apart.std() / np.sqrt(len(part))}
        means = ("mse", "oracle_mse", "coverage", "fdr", "power", "converged")
        line |= {name: part[name].mean() for name in means} | {"any_flag": (part["flags"] > 0).mean()}
        line["fdr_se"] = part["fdr"].std() / np.sqrt(len(part))
        rows.append(dict(zip(keys, values, strict=True)) | line)
    return pd.DataFrame(rows)


def _chosen(methods: Iterable[str] | Mapping[str, Make]) -> dict[str, Make]:
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str):
        raise TypeError(f"methods is {methods!r}; give a list of names, as in methods=[{methods!r}]")
    return {name: METHODS[one_of(name, "methods", tuple(METHODS))] for name in methods}


def _possible(kind: str, family: str, p: int) -> str:
    """Refuse a corruption that the family does not allow, before any fit."""
    one_of(kind, "corruptions", tuple(CORRUPTIONS))
    glm_design(family, 1, 1, p, abnormal=[0], corruption=kind, seed=0)
    return kind


@lru_cache(maxsize=16)
def _network(name: str, M: int) -> Network:
    """Return the network of a name; random ones are drawn with one seed, so that all replicates share them."""
    if name == "complete":
        return generators.complete(M)
    if circle := re.fullmatch(r"circle-(\d+)", name):
        return generators.directed_circle(M, int(circle[1]))
    if random := re.fullmatch(r"erdos-renyi-(0?\.\d+)", name):
        return generators.erdos_renyi(M, float(random[1]), seed=1)
    raise ValueError(
        f"networks has {name!r}; choose circle-D, erdos-renyi-q or complete, as in 'circle-5' or 'erdos-renyi-.1'"
    )


def _replicate(cell: Cell, k: int, methods: dict[str, Make], solver: str, seed: int) -> list[Row]:
    """Draw one data set and fit it by all methods."""
    # In one BLAS thread throughout: the oracle's last bits would otherwise depend on the number of workers.
    with one_blas_thread(), warnings.catch_warnings():
        # What did not converge is counted.
        warnings.simplefilter("ignore", AdflWarning)
        sim = draw(cell, k, seed)
        model = DecentralizedGLM(
            ClientData.from_arrays(sim.X, sim.y, sim.client), _network(cell.network, cell.M), cell.family
        )
        oracle = _oracle_error(model, sim)
        rows = []
        for name, make in methods.items():
            res = model.fit(make(sim.abnormal), solver="rounds" if solver == "rounds" else "auto", threads=1)
            about = asdict(cell) | {"replicate": k, "method": name, "oracle_mse": oracle}
            rows.append(about | _measured(res, sim))
        return rows


def _oracle_error(model: DecentralizedGLM, sim: Simulation) -> float:
    estimate = pooled_estimate(model.data, model.family, ~sim.abnormal, np.zeros(len(sim.theta0)))
    if estimate is None:
        raise ValueError(
            f"the {int((~sim.abnormal).sum())} normal clients' rows do not determine all {len(sim.theta0)} "
            "coefficients, so that there is no oracle; give more rows n or clients M, or fewer covariates p"
        )
    return float(np.sum((estimate.params - sim.theta0) ** 2))


def _measured(res: Results, sim: Simulation) -> Row:
    """Hold one fit against the truth."""
    normal = ~sim.abnormal
    limits = res.conf_int().to_numpy()
    inside = (limits[:, 0] <= sim.theta0) & (sim.theta0 <= limits[:, 1])
    flagged = screen(res, Q).to_frame()["flagged"].to_numpy()
    return {
        "mse": float(((res.client_params.to_numpy()[normal] - sim.theta0) ** 2).sum(axis=1).mean()),
        "coverage": float(inside.mean()) if np.isfinite(limits).all() else np.nan,
        "flags": int(flagged.sum()),
        "fdr": float(flagged[normal].sum() / max(flagged.sum(), 1)),
        "power": float(flagged[sim.abnormal].mean()) if sim.abnormal.any() else np.nan,
        "converged": bool(res.converged),
    }


def _bar(total: int) -> Callable[[Iterable[list[Row]]], Iterable[list[Row]]]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm; install it with: pip install 'adfl-stats[study]'") from None
    return partial(tqdm, total=total, desc="data sets", unit="set", mininterval=0.0, leave=False)
