"""Data from a table and a formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adfl_stats._arguments import one_of
from adfl_stats._types import FrameLike
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.table import read_table

__all__ = ["table_data"]


def table_data(
    frame: FrameLike, formula: str, roles: Mapping[str, Any], missing: str, caller: Mapping[str, Any]
) -> ClientData:
    """Return the data of a table and a formula, which may use functions and constants of the calling code."""
    one_of(missing, "missing", ("raise", "drop"))
    table = read_table(frame, formula, roles, missing, caller)
    data = ClientData.from_arrays(table.X, table.y, names=table.names, **table.roles)
    return assembled(data, spec=table.spec, formula=table.formula, n_dropped=table.n_dropped)
