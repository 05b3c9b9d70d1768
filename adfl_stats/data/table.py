"""A table and a formula as users give them, turned into the arrays of `ClientData`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._frames import foreign_frame, pandas_columns, plain_column
from adfl_stats._types import Array
from adfl_stats.data.formula import ParsedFormula, columns_used, parsed_formula, refuse_holes
from adfl_stats.data.model_matrix import (
    check_columns,
    check_levels,
    check_terms,
    formula_design,
    formula_offset,
    formula_response,
)

__all__ = ["Table", "read_table", "rows_and_formula"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows without missing values: design matrix, response, and the columns with a role of their own (or None)."""

    X: Array
    names: list[str]
    y: pd.Series
    roles: dict[str, Any]
    spec: Any
    formula: ParsedFormula
    n_dropped: int


def rows_and_formula(frame: Any, formula: Any, data: Any, call: str) -> tuple[Any, Any]:
    """Return the rows, given once as frame or as data, and the formula; raise TypeError where one lacks."""
    if data is not None and formula is None and isinstance(frame, str):
        frame, formula = None, frame
    if (frame is None) == (data is None):
        raise TypeError(
            f"{call} takes the rows once, as frame or as data, which are the same; got "
            + ("neither" if frame is None else "both")
        )
    if formula is None:
        raise TypeError(f"{call} lacks formula; give one such as 'y ~ x1 + C(group)'")
    return (data if frame is None else frame), formula


def read_table(frame: Any, formula: Any, roles: Mapping[str, Any], missing: str, caller: Mapping[str, Any]) -> Table:
    """Read a table by a formula.

    Parameters
    ----------
    frame, formula : table and str, in either order
        The rows, in pandas, polars or Arrow, and the formula.
    roles : mapping
        For client, offset, exposure, weights and freq_weights a column's name, one value a row, or None.
    missing : {"raise", "drop"}
        What to do with rows that have missing values.
    caller : mapping
        Functions and constants that the formula may use.

    Returns
    -------
    Table
        What `ClientData.from_arrays` wants.
    """
    if isinstance(frame, str) and not isinstance(formula, str):
        frame, formula = formula, frame
    parsed = parsed_formula(formula)
    opened = foreign_frame(frame, "frame")
    parsed = parsed.using(caller, opened.columns, len(opened))
    named = {role: value for role, value in roles.items() if _names_a_column(value, role)}
    given = {role: value for role, value in roles.items() if role not in named}
    index = opened.index.names if isinstance(opened, pd.DataFrame) else ()
    used = columns_used(parsed, named.values(), opened.columns, "the frame", index)
    twice = [name for name in used if list(opened.columns).count(name) > 1]
    if twice:
        raise ValueError(f"the frame has more than one column {listing(twice)}; rename or drop the others")
    rows = pandas_columns(opened, used)
    columns = {role: _one_a_row(value, role, rows.index) for role, value in given.items()}
    holes = pd.concat([rows.isna(), *(c.isna().rename(f"{role}=") for role, c in columns.items())], axis=1)
    bad = holes.any(axis=1)
    if missing == "raise":
        refuse_holes(holes.sum(), int(bad.sum()), "the frame")
    kept = rows.loc[~bad] if bad.any() else rows
    kept = pd.DataFrame({name: _levels_seen(plain_column(kept[name])) for name in kept.columns}, index=kept.index)
    check_columns(parsed, kept, "the frame")
    check_levels(parsed, kept, "the frame")
    design = formula_design(parsed, kept, "the frame")
    check_terms(design, parsed, kept, "the frame")
    parts = {role: None if name is None else kept[name] for role, name in named.items()}
    parts |= {role: plain_column(column.loc[~bad]) for role, column in columns.items()}
    offset = formula_offset(parsed, kept, "the frame")
    if offset is not None:
        parts["offset"] = pd.Series(offset, index=kept.index) + (0.0 if parts["offset"] is None else parts["offset"])
    return Table(
        np.ascontiguousarray(design, dtype=np.float64),
        [str(name) for name in design.columns],
        formula_response(parsed, kept, "the frame"),
        parts,
        design.model_spec,
        parsed,
        int(bad.sum()),
    )


def _levels_seen(column: pd.Series) -> pd.Series:
    """Return a factor without the levels that no row has, as a part of a larger frame keeps them."""
    return column.cat.remove_unused_categories() if isinstance(column.dtype, pd.CategoricalDtype) else column


def _names_a_column(value: Any, role: str) -> bool:
    """Return whether a role is a column's name (or None), and not one value a row."""
    if value is pd.NA or value is pd.NaT:
        raise TypeError(f"{role} is {value}, a missing value; name a column of the frame, or give one value a row")
    try:
        return bool(np.ndim(value) == 0)
    except ValueError:
        raise TypeError(
            f"{role} is a {type(value).__name__} with entries of different lengths; name a column of the frame, or "
            "give one value a row"
        ) from None


def _one_a_row(value: Any, role: str, index: pd.Index) -> pd.Series:
    """Return values that were given beside the frame, in its order of rows."""
    if isinstance(value, pd.Series):
        if not value.index.equals(index):
            raise ValueError(
                f"{role} is a Series with another index than the frame; rows are matched by position, so bring it to "
                "the frame's index (reindex), or name a column of the frame"
            )
        return value
    if np.ndim(value) != 1 or len(value) != len(index):
        raise ValueError(
            f"{role} has shape {np.shape(value)}, the frame {len(index)} rows; name a column of the frame, or give one "
            "value a row"
        )
    return pd.Series(np.asarray(value), index=index, name=role)
