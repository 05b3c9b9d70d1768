"""Networks and schedules as arrays and words, for files of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from adfl_stats.errors import StorageError
from adfl_stats.network.dropout import Dropout
from adfl_stats.network.network import ROW_SUM_TOLERANCE, Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.network.turns import Turns

__all__ = ["from_arrays", "to_arrays"]

Numbers = NDArray[np.number[Any]]


def to_arrays(given: Network | NetworkSchedule) -> tuple[dict[str, Numbers], dict[str, Any] | None]:
    """Return the arrays and words from which `from_arrays` makes the network or the schedule again."""
    if isinstance(given, Network):
        return _weights(given, "W"), None
    if isinstance(given, Dropout):
        words = {"kind": "dropout", "probability": given.probability, "seed": given.seed, "every": given.every}
        return _weights(given.network, "W"), words
    if isinstance(given, Turns):
        arrays: dict[str, Numbers] = {}
        for k, network in enumerate(given.members):
            arrays |= _weights(network, f"W{k}")
        return arrays, {"kind": "turns", "count": len(given.members), "every": given.every}
    raise ValueError(
        f"the network is a {type(given).__name__}, a schedule of your own, which a file cannot hold; save the parts "
        "that you need, such as res.params, or pickle the results"
    )


def from_arrays(
    arrays: Mapping[str, Numbers], words: Mapping[str, Any] | None, labels: pd.Index
) -> Network | NetworkSchedule:
    """Return the network or the schedule that `to_arrays` took apart."""
    if words is None:
        return _network(arrays, "W", labels)
    if words["kind"] == "dropout":
        return Dropout(_network(arrays, "W", labels), words["probability"], words["seed"], words["every"])
    return Turns(tuple(_network(arrays, f"W{k}", labels) for k in range(words["count"])), words["every"])


def _weights(network: Network, name: str) -> dict[str, Numbers]:
    W = network.W
    return {f"{name}.data": W.data, f"{name}.indices": W.indices, f"{name}.indptr": W.indptr}


def _network(arrays: Mapping[str, Numbers], name: str, labels: pd.Index) -> Network:
    """Return a network from arrays that are checked here: `Network.from_checked` checks nothing."""
    names = [f"{name}.{part}" for part in ("data", "indices", "indptr")]
    if not all(part in arrays for part in names):
        raise StorageError(f"it lacks a part of the network: {', '.join(names)}")
    data, indices, indptr = (arrays[part] for part in names)
    M = len(labels)
    if data.dtype != np.float64 or any(part.dtype.kind not in "iu" for part in (indices, indptr)):
        raise StorageError(f"the parts of the network {name} are of the wrong type")
    if data.ndim != 1 or indices.shape != data.shape or indptr.shape != (M + 1,):
        raise StorageError(f"the parts of the network {name} do not fit {M} clients")
    if indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 1).any():
        raise StorageError(f"{names[2]} does not divide the edges among the clients")
    if indices.min() < 0 or indices.max() >= M:
        raise StorageError(f"{names[1]} names clients beyond the {M} of the file")
    sums = np.add.reduceat(data, indptr[:-1].astype(np.int64))
    if not (np.isfinite(data).all() and (data >= 0.0).all() and (np.abs(sums - 1.0) <= ROW_SUM_TOLERANCE).all()):
        raise StorageError(f"{names[0]} has weights that are negative, not finite, or do not sum to 1")
    return Network.from_checked(sparse.csr_array((data, indices, indptr), shape=(M, M)), labels)
