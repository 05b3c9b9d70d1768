"""What a formula asks of a table: its parts, the columns it needs, and rows where they are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula
from formulaic.errors import FormulaicError

from adfl_stats._arguments import listing

__all__ = ["columns_used", "formula_response", "parsed_formula", "refuse_holes"]


def parsed_formula(formula: str) -> Any:
    """Return the formula with its two sides; raise ValueError where it lacks one or cannot be read."""
    try:
        parsed = Formula(formula)
    except FormulaicError as error:
        # The first line says what is wrong; the rest marks the place with terminal colours.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"formula is {formula!r}; it cannot be read: {reason}. Write it as in 'y ~ x1 + C(group)'"
        ) from None
    if not hasattr(parsed, "lhs"):
        raise ValueError(f"formula is {formula!r}; it needs a response, as in 'y ~ x1 + x2'")
    if isinstance(parsed.rhs, tuple):
        raise ValueError(f"formula is {formula!r}; it must have one right-hand side, without '|'")
    return parsed


def columns_used(parsed: Any, others: Iterable[str | None], available: Iterable[Any], table: str) -> list[str]:
    """Return the columns that the formula and the other arguments name; raise where `table` lacks one."""
    named = {column for column in others if column is not None}
    used = sorted({str(v) for v in parsed.required_variables} | named, key=str)
    present = list(available)
    absent = [column for column in used if column not in present]
    if absent:
        raise ValueError(
            f"{table} has no column {listing(absent)}, named by the formula or as client, offset, exposure "
            f"or weights; its columns are {listing(present, 12)}"
        )
    return used


def refuse_holes(counts: pd.Series, rows: int, table: str) -> None:
    """Raise ValueError naming the columns with missing values, `counts` of them, in so many rows."""
    if rows:
        columns = ", ".join(f"{name!r} ({int(k)})" for name, k in counts[counts > 0].items())
        raise ValueError(
            f"{table} has missing values (NaN) in {columns}: {rows} rows. Impute them, or pass "
            "missing='drop' to leave these rows out"
        )


def formula_response(parsed: Any, frame: pd.DataFrame) -> pd.Series:
    """Return the response: a column as it is, or what an expression makes of the frame."""
    text = str(parsed.lhs)
    if text in frame.columns:
        return frame[text]
    column = parsed.lhs.get_model_matrix(frame, na_action="raise")
    if column.shape[1] != 1:
        raise ValueError(f"the response {text!r} gives {column.shape[1]} columns; one is wanted")
    return pd.Series(np.asarray(column, dtype=np.float64)[:, 0], index=frame.index, name=text)
