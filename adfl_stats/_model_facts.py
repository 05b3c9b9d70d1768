"""Facts that identify a model and a fit: compared between ranks of MPI, and with those of a checkpoint."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from adfl_stats._archives import digest
from adfl_stats._model_rows import ModelRows
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.rank_data import RankData
from adfl_stats.methods import Method
from adfl_stats.network.archive import to_arrays

__all__ = ["facts_of_fit"]


class _Model(Protocol):
    """What a `DecentralizedGLM` was given, and its rows."""

    rows: ModelRows
    everybody: ClientData | RankData


def facts_of_fit(model: _Model, method: Method, plan: Plan) -> dict[str, str]:
    """Return what identifies a fit: digests of clients, rows and network, the other arguments in words.

    Whether it shows a bar is no part of it.
    """
    whole, rows = model.everybody, model.rows
    return {
        "the data's size": f"{whole.n_rows} rows of {whole.n_clients} clients",
        "the clients": digest(np.array(list(map(str, whole.labels)))),
        "the columns": ", ".join(rows.data.names),
        "the rows": digest(rows.digests),
        "the network": digest(*to_arrays(rows.network)[0].values()),
        "the family": repr(rows.family),
        "the weighting": rows.weighting,
        "the penalty": repr(rows.penalty),
        "the method": _in_words(method),
        **{
            f"the option {part.name}": _in_words(getattr(plan, part.name))
            for part in fields(plan)
            if part.name not in ("progress", "journal")
        },
    }


def _in_words(value: Any) -> str:
    """Return what a value is: as its repr, but with digests of arrays, which that cuts short, and without addresses."""
    if isinstance(value, np.ndarray | pd.Index):
        array = np.asarray(value)
        return digest(array if array.dtype != object else np.array(list(map(repr, array.ravel()))))
    if isinstance(value, pd.Series | pd.DataFrame):
        return " ".join(map(_in_words, (*value.axes, value.to_numpy())))
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.repr}
    elif callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    elif type(value).__repr__ is object.__repr__:
        parts = vars(value)
    else:
        return repr(value)
    return f"{type(value).__name__}({', '.join(f'{name}={_in_words(part)}' for name, part in parts.items())})"
