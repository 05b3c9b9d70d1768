"""What tells models and fits apart: ranks of MPI compare it, and a fit that goes on from a checkpoint."""

from __future__ import annotations

import pickle
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adfl_stats._archives import digest
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.rank_data import RankData
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.methods import Method
from adfl_stats.network.archive import to_arrays
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["facts_of_fit", "facts_of_model"]


class _Model(Protocol):
    """The arguments of a `DecentralizedGLM`, and digests of the rows of all clients (M,)."""

    data: ClientData
    everybody: ClientData | RankData
    row_digests: NDArray[np.uint64]
    network: Network | NetworkSchedule
    family: Family
    weighting: str
    penalty: Ridge | None


def facts_of_model(model: _Model) -> dict[str, str]:
    """Return what identifies a model but for its rows: digests of clients and network, the other arguments in words."""
    whole = model.everybody
    return {
        "the data's rows": f"{whole.n_rows} of {whole.n_clients} clients",
        "the clients": digest(np.array(list(map(str, whole.labels)))),
        "the columns": ", ".join(model.data.names),
        "the network": digest(*to_arrays(model.network)[0].values()),
        "the family": repr(model.family),
        "the weighting": model.weighting,
        "the penalty": repr(model.penalty),
    }


def facts_of_fit(model: _Model, method: Method, plan: Plan) -> dict[str, str]:
    """Return what identifies a fit: the model, its rows, the method and the options."""
    return facts_of_model(model) | {
        "the rows": digest(model.row_digests),
        "the options": repr(plan),
        "the method": digest(np.frombuffer(pickle.dumps(method), dtype=np.uint8)),
    }
