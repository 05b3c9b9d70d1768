"""Sensitivity of a fit to its start: the same method from several starts."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TypedDict, Unpack

import numpy as np
import pandas as pd

from adfl_stats._archives import digest
from adfl_stats._types import Array, InitialEstimates, Mask
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.gossip import Gossip
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.transport import Local
from adfl_stats.losses.point_sums import majority_misfits
from adfl_stats.methods import ADFL, DFL, Bridge, Method, TrimmedScores
from adfl_stats.model import DecentralizedGLM
from adfl_stats.trust.weights import smallest_majority

__all__ = ["compare_starts"]


class FitOptions(TypedDict, total=False):
    """The arguments of `DecentralizedGLM.fit` but for the method."""

    step: float | str
    rounds: int | None
    solver: str
    tolerance: float
    max_rounds: int | None
    progress: bool
    threads: int | None
    heterogeneity: str
    attack: Attack | None
    keep_data: bool
    cov_type: str | None
    transport: MPI | Gossip | None
    checkpoint: str | PathLike[str] | None
    every: float


def compare_starts(
    model: DecentralizedGLM,
    starts: Mapping[str, InitialEstimates | None] | None = None,
    method: Method | None = None,
    **how: Unpack[FitOptions],
) -> pd.DataFrame:
    """Fit one method from several starts.

    Parameters
    ----------
    model : DecentralizedGLM
        Data, network and family.
    starts : mapping of names to starts, optional
        Whatever `init` of a method takes. By default plain DFL, BRIDGE-M and `TrimmedScores`.
    method : method with `init`, optional
        ``ADFL(balance=True)`` if not given; its own `init` is replaced.
    **how
        Further arguments of `fit`.

    Returns
    -------
    DataFrame
        One row per start. start distance : of the start from the estimate it led to, over its standard errors (root
        mean square over coefficients); down-weighted : clients without trust; shift : of the estimate from that of
        the row with the best majority, likewise; misfit : by which starts are judged, the
        sum over its majority (the floor(M / 2) + 1 clients with the smallest score statistics) of the deviance beyond
        that at the estimate in the table that suits the client best, over a typical row's deviance; rounds.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.compare_starts(model, solver="limit")["down-weighted"].tolist()
    [4, 4, 4]
    """
    if not isinstance(model, DecentralizedGLM):
        raise TypeError(f"model is a {type(model).__name__}; pass a DecentralizedGLM")
    if starts is None:
        starts = {"DFL": DFL(), "BRIDGE-M": Bridge("median"), "trimmed scores": TrimmedScores()}
    if not isinstance(starts, Mapping) or not starts:
        raise TypeError(f"starts is {starts!r}; pass a dict of names and starts, such as {{'zero': None}}")
    method = ADFL(balance=True) if method is None else method
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}; a method with `init` is wanted, such as ad.ADFL()")
    fits = {name: model.fit(method.starting_from(init), **how) for name, init in starts.items()}
    scores = np.stack([res.clients()["score"].to_numpy() for res in fits.values()], axis=1)
    thetas = np.stack([res.params.to_numpy() for res in fits.values()])
    misfits = _misfits(model, thetas, smallest_majority(scores))
    best = list(fits.values())[int(np.argmin(misfits))]
    rows = {}
    for (name, res), misfit in zip(fits.items(), misfits, strict=True):
        se = res.bse.to_numpy()
        rows[name] = {
            "start distance": _size((res.record.start.centre - res.params.to_numpy()) / se),
            "down-weighted": int((~res.record.trusted).sum()),
            "shift": _size((res.params - best.params).to_numpy() / best.bse.to_numpy()),
            "misfit": misfit,
            "rounds": res.record.total_rounds,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _misfits(model: DecentralizedGLM, thetas: Array, majority: Mask) -> Array:
    """Return the misfits of estimates (R, P) on the majority of each (M, R); with data by rank of all ranks' rows."""
    if model.rows.spread is None:
        return majority_misfits(model.data, model.family, thetas, majority)

    def work(place: Local | Ranks) -> Array:
        ours = majority[place.clients(len(majority))]
        return majority_misfits(model.data, model.family, thetas, ours, place.gather)

    return model.rows.run(model.rows.spread.ranks, {"the estimates": digest(thetas)}, work)


def _size(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
