"""What tells models and fits apart: ranks of MPI compare it, and a fit that goes on from a checkpoint."""

from __future__ import annotations

import pickle
from typing import Protocol

import numpy as np

from adfl_stats._archives import digest
from adfl_stats._model_rows import ModelRows
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.rank_data import RankData
from adfl_stats.methods import Method
from adfl_stats.network.archive import to_arrays

__all__ = ["facts_of_fit", "facts_of_model"]


class _Model(Protocol):
    """What a `DecentralizedGLM` was given, and its rows."""

    rows: ModelRows
    everybody: ClientData | RankData


def facts_of_model(model: _Model) -> dict[str, str]:
    """Return what identifies a model but for its rows: digests of clients and network, the other arguments in words."""
    whole, rows = model.everybody, model.rows
    return {
        "the data's rows": f"{whole.n_rows} of {whole.n_clients} clients",
        "the clients": digest(np.array(list(map(str, whole.labels)))),
        "the columns": ", ".join(rows.data.names),
        "the network": digest(*to_arrays(rows.network)[0].values()),
        "the family": repr(rows.family),
        "the weighting": rows.weighting,
        "the penalty": repr(rows.penalty),
    }


def facts_of_fit(model: _Model, method: Method, plan: Plan) -> dict[str, str]:
    """Return what identifies a fit: the model, its rows, the method and the options."""
    return facts_of_model(model) | {
        "the rows": digest(model.rows.digests),
        "the options": repr(plan),
        "the method": digest(np.frombuffer(pickle.dumps(method), dtype=np.uint8)),
    }
