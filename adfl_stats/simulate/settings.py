"""One setting of a study: its data sets, drawn and fitted by every method, and what the fits are worth."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from adfl_stats._threads import one_blas_thread
from adfl_stats._types import Array, Mask
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.pooled import PointEstimate, pooled_estimate
from adfl_stats.errors import AdflWarning, DivergenceError
from adfl_stats.inference.results import Results
from adfl_stats.inference.screening import screen
from adfl_stats.methods import ADFL, DFL, Method
from adfl_stats.model import DecentralizedGLM
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.simulate.composed import Dynamic
from adfl_stats.simulate.contenders import Make, MakeData, Topology
from adfl_stats.simulate.designs import Simulation
from adfl_stats.simulate.specification import digest
from adfl_stats.trust.weights import TRUST

__all__ = ["Q", "Row", "Setting"]

Row: TypeAlias = dict[str, Any]

# The false discovery rate of `screen`. Ours: its default.
Q = 0.1


class DataSet(NamedTuple):
    """A simulated data set, its model, and the mask of abnormal clients in the order of the model's clients."""

    sim: Simulation
    model: DecentralizedGLM
    abnormal: Mask


@dataclass(frozen=True, eq=False)
class Setting:
    """A combination of the factors of a study.

    Parameters
    ----------
    factors : dict
        What tables say of it: network, design, corruption, share and sizes.
    network : Network, NetworkSchedule or function of M
        Who listens to whom.
    design : callable
        Simulates the data: a function of `abnormal`, `corruption`, `seed` and the sizes.
    corruption : corruption, attack, Dynamic or None
        What abnormal clients do.
    share : float
        Of abnormal clients.
    size : dict
        The sizes, as arguments of the design.
    data_key : dict
        What the random numbers depend on. Networks, and all that is not in it, are compared on the same data.
    """

    factors: Mapping[str, Any]
    network: Topology
    design: MakeData
    corruption: Any
    share: float
    size: Mapping[str, Any]
    data_key: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """A short name that no other setting of a study has."""
        return digest({name: str(value) for name, value in self.factors.items()})[:16]

    def topology(self, M: int) -> Network | NetworkSchedule:
        """Return the network of M clients."""
        return self.network if isinstance(self.network, (Network, NetworkSchedule)) else self.network(M)

    def draw(self, replicate: int, seed: int, abnormal: Any = None) -> Simulation:
        """Return the data set of a replicate; other sets of abnormal clients have the same clean rows."""
        words = [int(digest(dict(self.data_key))[k : k + 8], 16) for k in range(0, 32, 8)]
        rng = np.random.default_rng(np.random.SeedSequence([seed, *words, replicate]))
        corruption = self.corruption.of if isinstance(self.corruption, Dynamic) else self.corruption
        if isinstance(corruption, Attack):
            # The rows stay clean; which clients attack is drawn like everything else.
            corruption = _left_alone
        if abnormal is None:
            abnormal = self.share if self.share < 0.5 else self._many(rng)
        sim = self.design(abnormal=abnormal, corruption=corruption if self.share else None, seed=rng, **self.size)
        if not isinstance(sim, Simulation):
            raise TypeError(
                f"design {self.factors['design']!r} returned a {type(sim).__name__}; a Simulation is wanted, as "
                "ad.simulate.glm_design returns it"
            )
        return sim

    def _many(self, rng: np.random.Generator) -> Array:
        """Return a half or more of the clients; designs refuse such shares."""
        M = self.size["M"] if "M" in self.size else self.topology(0).n_clients
        return rng.spawn(1)[0].permutation(M)[: int(np.floor(self.share * M + 1e-9))]

    def rows(
        self, replicate: int, methods: Mapping[str, Make], options: Mapping[str, Any], seed: int, inference: bool
    ) -> list[Row]:
        """Draw one data set and fit it by all methods; return one row for each."""
        # In one BLAS thread throughout: the oracle's last bits would otherwise depend on the number of workers.
        with one_blas_thread(), warnings.catch_warnings():
            # What did not converge is counted.
            warnings.simplefilter("ignore", AdflWarning)
            phases = self._phases(replicate, seed)
            last = phases[-1]
            oracle = _oracle(last)
            rows = []
            for name, make in methods.items():
                began = time.perf_counter()
                try:
                    res = self._fit(phases, make(last.abnormal), options)
                    seconds = time.perf_counter() - began
                    measured = _measured(res, last, oracle) | (_inference(res, last) if inference else {})
                except DivergenceError:
                    seconds = time.perf_counter() - began
                    measured = {"failed": True, "converged": False}
                except ValueError as error:
                    raise ValueError(f"method {name!r} on network {self.factors['network']!r}: {error}") from error
                own = {"oracle_mse": float(np.sum((oracle.params - last.sim.theta0) ** 2)), **measured}
                rows.append({**self.factors, "replicate": replicate, "method": name, **own, "seconds": seconds})
            return rows

    def _phases(self, replicate: int, seed: int) -> list[DataSet]:
        """Return the data sets of a replicate in their order: one, unless corruption is dynamic."""
        whole = self.draw(replicate, seed)
        if not (isinstance(self.corruption, Dynamic) and self.share):
            return [self._data_set(whole)]
        chosen = np.flatnonzero(whole.abnormal)
        parts = [chosen[: round(part * len(chosen))] for part in self.corruption.phases]
        return [self._data_set(self.draw(replicate, seed, part)) for part in parts]

    def _data_set(self, sim: Simulation) -> DataSet:
        network = self.topology(len(sim.labels))
        if network.n_clients != len(sim.labels):
            raise ValueError(
                f"network {self.factors['network']!r} has {network.n_clients} clients, and design "
                f"{self.factors['design']!r} simulates {len(sim.labels)}; give sizes={{'M': {network.n_clients}}}"
            )
        # The user's own network has the user's own labels; the design's k-th client is the network's k-th.
        labels = network.labels
        client = np.asarray(labels)[np.repeat(np.arange(len(labels)), sim.sizes)]
        data = ClientData.from_arrays(sim.X, sim.y, client, names=sim.names)
        abnormal = pd.Series(sim.abnormal, index=labels)[data.labels].to_numpy()
        return DataSet(sim, DecentralizedGLM(data, network, sim.family), abnormal)

    def _fit(self, phases: list[DataSet], method: Method | None, options: Mapping[str, Any]) -> Results:
        first = phases[0]
        if len(phases) == 1:
            attack = None
            if isinstance(self.corruption, Attack) and first.abnormal.any():
                attack = _attack_of(self.corruption, list(first.model.data.labels[first.abnormal]))
            return first.model.fit(method, threads=1, attack=attack, **options)
        each, rest = divmod(options["rounds"], len(phases))
        res = first.model.fit(method, threads=1, **{**options, "rounds": each + rest})
        for later in phases[1:]:
            res = later.model.fit(_continued(method, res), threads=1, **{**options, "rounds": each})
        return res


def _left_alone(X: Array, y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """The corruption of clients that attack messages: their rows are clean."""
    return X, y


def _attack_of(attack: Attack, clients: list[Any]) -> Attack:
    """Return the attack with the data set's abnormal clients as attackers."""
    if is_dataclass(attack):
        return replace(attack, clients=clients)
    other = copy(attack)
    other.clients = clients
    return other


def _continued(method: Method | None, res: Results) -> Method:
    """Return the method that goes on from a fit: with weights measured anew by `refresh`, otherwise as they are."""
    if isinstance(method, ADFL) and method.refresh is not None:
        return method.starting_from(res.client_params)
    if method is None or isinstance(method, ADFL):
        balance = True if method is None else method.balance
        return DFL(weights=res.client_weights, balance=balance, init=res.client_params)
    return method.starting_from(res.client_params)


def _oracle(last: DataSet) -> PointEstimate:
    truth = last.sim.theta0
    estimate = pooled_estimate(last.model.data, last.model.family, ~last.abnormal, np.zeros(len(truth)))
    if estimate is None:
        raise ValueError(
            f"the {int((~last.abnormal).sum())} normal clients' rows do not determine all {len(truth)} "
            "coefficients, so that there is no oracle; give more rows n or clients M, or fewer covariates p"
        )
    return estimate


def _measured(res: Results, last: DataSet, oracle: PointEstimate) -> Row:
    """Return the errors of one fit."""
    normal, truth = ~last.abnormal, last.sim.theta0
    own = res.client_params.to_numpy()[normal]
    params = res.params.to_numpy()
    weights = res.client_weights.to_numpy()[normal]
    return {
        "mse": float(((own - truth) ** 2).sum(axis=1).mean()),
        "error": (params - truth).tolist(),
        "gap": float(np.sqrt(np.mean((params - oracle.params) ** 2 / np.diag(oracle.covariance)))),
        "consensus": float(np.sqrt(((own - own.mean(axis=0)) ** 2).sum(axis=1).mean())),
        "good_aside": float((weights < TRUST).mean()),
        "rounds": float(res.rounds_needed if res.solver == "limit" else res.record.total_rounds),
        "converged": bool(res.converged),
        "failed": False,
    }


def _inference(res: Results, last: DataSet) -> Row:
    """Return what intervals and flags of one fit are worth; NaN without standard errors."""
    normal, truth = ~last.abnormal, last.sim.theta0
    flagged = screen(res, Q).to_frame()["flagged"].to_numpy()
    row: Row = {
        "flags": int(flagged.sum()),
        "fdr": float(flagged[normal].sum() / max(flagged.sum(), 1)),
        "power": float(flagged[last.abnormal].mean()) if last.abnormal.any() else np.nan,
    }
    exists = bool(np.isfinite(res.bse).all())
    for suffix, kind in (("", None), ("_sandwich", "sandwich"), ("_client", "CR2")):
        limits = res.conf_int(cov_type=kind).to_numpy() if exists else np.full((len(truth), 2), np.nan)
        inside = (limits[:, 0] <= truth) & (truth <= limits[:, 1])
        finite = bool(np.isfinite(limits).all())
        row[f"coverage{suffix}"] = float(inside.mean()) if finite else np.nan
        row[f"length{suffix}"] = float((limits[:, 1] - limits[:, 0]).mean()) if finite else np.nan
    return row
