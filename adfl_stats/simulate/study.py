"""Presets of studies: the settings of the paper and their counterparts in other families, cell by cell.

`grid` lists cells, `run` draws data sets in each of them and fits them in parallel, `efficiency` puts the draws
together; `preset` is the same as a `Study`, which can be interrupted and resumed. The oracle pools the rows of the
normal clients (theta_A of the paper's section 4); the efficiency of a method is the oracle's mean squared error over
that of the normal clients' own estimates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats.simulate.contenders import (
    METHODS,
    CorruptionLike,
    Make,
    MethodLike,
    NamedDesign,
    NetworkLike,
    Several,
    chosen_methods,
    network_by_name,
)
from adfl_stats.simulate.designs import CORRUPTIONS, Simulation, glm_design
from adfl_stats.simulate.monte_carlo import table_of
from adfl_stats.simulate.resumable_study import Study
from adfl_stats.simulate.runner import Done, run_settings
from adfl_stats.simulate.settings import Setting

__all__ = ["DESIGNS", "METHODS", "Cell", "Design", "draw", "efficiency", "grid", "preset", "run"]

COVARIATES = ("homogeneous", "heterogeneous")
# Ours: a sparse circle, a dense one, and a random network with 10 neighbours on average at M = 100.
NETWORKS = ("circle-5", "circle-30", "erdos-renyi-.1")
# What `adfl-stats efficiency --rivals` compares with.
RIVALS = ("fit", "DFL", "BRIDGE-M", "BRIDGE-T", "ClippedGossip", "GeometricMedian", "oracle DFL")


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
        network_by_name(name)(sizes["M"])
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
    return _setting(cell).draw(replicate, whole_number(seed, "seed", 0, None))


def _setting(cell: Cell) -> Setting:
    about = asdict(cell)
    size = {name: about[name] for name in ("M", "n", "p")}
    # Slopes and networks share their random numbers, so that a comparison of two has less noise.
    data_key = {name: value for name, value in about.items() if name not in ("slope", "network")}
    return Setting(
        about,
        network_by_name(cell.network),
        NamedDesign(cell.family, {"covariates": cell.covariates}, cell.slope),
        cell.corruption if cell.share else None,
        cell.share,
        size,
        data_key,
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
        One row per cell, replicate and method, with the columns of `Study.draws`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> cells = ad.study.grid(networks=["circle-5"], corruptions=["BF"], shares=[0.2], M=20, n=60, p=3)
    >>> draws = ad.study.run(cells, ["fit", "DFL"], replicates=2)
    >>> draws.groupby("method", sort=False)["power"].mean().tolist()[0]
    1.0
    """
    chosen = chosen_methods(methods)
    whole_number(replicates, "replicates", 1)
    whole_number(jobs, "jobs", 1)
    whole_number(seed, "seed", 0, None)
    one_of(solver, "solver", ("auto", "rounds", "limit"))
    settings = [_setting(cell) for cell in cells]
    if not settings:
        raise ValueError("cells is empty; give at least one, as grid() returns them")
    done: Done = {}
    run_settings(
        settings,
        chosen,
        replicates=replicates,
        seed=seed,
        options={"solver": "rounds" if solver == "rounds" else "auto"},
        inference=True,
        jobs=jobs,
        done=done,
        folder=None,
        progress=progress,
    )
    rows = itertools.chain.from_iterable(done[setting.key, k] for setting in settings for k in range(replicates))
    return pd.DataFrame(rows).drop(columns="error", errors="ignore")


def preset(
    family: str = "gaussian",
    methods: Several[MethodLike] = ("fit",),
    *,
    networks: Several[NetworkLike] = NETWORKS,
    corruptions: Several[CorruptionLike] = None,
    shares: Iterable[float] | None = None,
    covariates: Iterable[str] | None = None,
    M: int | None = None,
    n: int | None = None,
    p: int | None = None,
    slope: float | None = 1.0,
    replicates: int = 20,
    seed: int = 1,
    solver: str = "auto",
) -> Study:
    """Return the study of ``adfl-stats efficiency``: the full design of a family in `DESIGNS`, or a part of it.

    Parameters
    ----------
    family : {"gaussian", "binomial", "poisson"}
        Of the responses.
    methods : list or mapping
        As in `Study`.
    networks, corruptions : list or mapping, optional
        As in `Study`.
    shares : iterable of float, optional
        Shares of abnormal clients.
    covariates : iterable of str, optional
        "homogeneous", "heterogeneous": the labels of the study's designs.
    M, n, p : int, optional
        Clients, rows of each, covariates.
    slope : float or None
        Strength of the signal; see `Cell`.
    replicates : int
        Data sets in a setting.
    seed : int
        Another one gives other data.
    solver : {"auto", "rounds", "limit"}
        As in `run`.

    Returns
    -------
    Study
        Not yet run.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.study.preset()
    Study: 78 settings x 20 replicates x 1 methods (0 of 1560 data sets done)
    """
    usual = DESIGNS[one_of(family, "family", tuple(DESIGNS))]
    laws = usual.covariates if covariates is None else covariates
    if slope is not None:
        slope = in_interval(slope, "slope", 0.0, np.inf, open_low=True)
    designs = {one_of(law, "covariates", COVARIATES): NamedDesign(family, {"covariates": law}, slope) for law in laws}
    sizes = {name: getattr(usual, name) if value is None else value for name, value in {"M": M, "n": n, "p": p}.items()}
    return Study(
        methods,
        networks,
        designs,
        usual.corruptions if corruptions is None else corruptions,
        [
            in_interval(share, "shares", 0.0, 0.5, open_high=True)
            for share in (usual.shares if shares is None else shares)
        ],
        sizes,
        replicates=replicates,
        seed=seed,
        fit={"solver": solver},
    )


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
        Monte-Carlo standard error by the delta method (NaN for one replicate); mse, oracle_mse : the two means; the
        means of the other columns; with `_se` added their standard errors; any_flag : share of the data sets with
        a flag.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> design = {"networks": ["circle-5"], "covariates": ["homogeneous"], "corruptions": ["BF"], "shares": [0.2]}
    >>> cells = ad.study.grid(**design, M=20, n=60, p=3)
    >>> table = ad.study.efficiency(ad.study.run(cells, ["fit", "DFL"], replicates=2)).set_index("method")
    >>> bool(table.loc["fit", "efficiency"] > table.loc["DFL", "efficiency"])
    True
    """
    table = table_of(draws, [field.name for field in fields(Cell)])
    return table.assign(se=table["efficiency_se"])


def _possible(kind: str, family: str, p: int) -> str:
    """Refuse a corruption that the family does not allow, before any fit."""
    one_of(kind, "corruptions", tuple(CORRUPTIONS))
    glm_design(family, 1, 1, p, abnormal=[0], corruption=kind, seed=0)
    return kind
