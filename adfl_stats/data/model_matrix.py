"""A formula computed on a table: design matrix, response and offset, and columns that it cannot be computed on."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from formulaic.errors import FormulaicError

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.data.formula import Expression, ParsedFormula

__all__ = [
    "check_columns",
    "check_levels",
    "check_terms",
    "evaluated",
    "formula_design",
    "formula_offset",
    "formula_response",
    "text_numbers",
]

# What formulaic says where a term has no value in some rows.
WITHOUT_VALUE = re.compile(r"`([^`]*)` contains null values after evaluation")
# A factor with fewer levels than this may have as many as rows: a model refuses it at once, for its columns. Ours.
MANY_LEVELS = 1000
# What columns may hold that is neither a number nor a level, and what to make of it.
ADVICE = {
    "dates": "Compute a number, as in frame[{0!r}].dt.year, or write C({0}) where they name categories",
    "durations": "Compute a number, as in frame[{0!r}].dt.total_seconds()",
    "lists": "Make a column of each entry",
    "complex numbers": "Take a real part or an absolute value",
}


def check_columns(parsed: ParsedFormula, frame: pd.DataFrame, table: str) -> None:
    """Raise ValueError naming columns of lists, and covariates that are text numbers, dates, durations or complex."""
    for name in frame.columns:
        if len(frame) and pd.api.types.is_object_dtype(frame[name].dtype) and np.ndim(frame[name].iloc[0]):
            raise ValueError(f"the column {name!r} of {table} holds lists or arrays. {ADVICE['lists']}")
    present = {str(column) for column in frame.columns}
    for name in sorted(parsed.numeric_columns & present):
        column = frame[name]
        if pd.api.types.is_string_dtype(column.dtype) and text_numbers(column):
            raise ValueError(
                f"the column {name!r} of {table} holds numbers stored as text, such as {column.iloc[0]!r}. Convert "
                f"them, frame[{name!r}] = pd.to_numeric(frame[{name!r}]), or write C({name}) where they name categories"
            )
    for name in sorted(parsed.bare_columns & present):
        kind = _other_kind(frame[name])
        if kind is not None:
            raise ValueError(f"the column {name!r} of {table} holds {kind}. {ADVICE[kind].format(name)}")


def check_levels(parsed: ParsedFormula, frame: pd.DataFrame, table: str) -> None:
    """Raise ValueError naming a factor of the right-hand side with as many levels as rows, such as an identifier.

    Its columns would be as many as the rows; for some thousand rows computing with them takes minutes, and memory.
    """
    for name in sorted(parsed.covariates & {str(column) for column in frame.columns}):
        levels = frame[name].nunique() if name in parsed.level_columns or not _counts(frame[name]) else 0
        if levels == len(frame) >= MANY_LEVELS:
            raise ValueError(
                f"{name!r} has {levels} levels in the {len(frame)} rows of {table}, one for each: their "
                f"coefficients are not identified. Leave it out of the formula; if its rows belong to clients, name it "
                "as client"
            )


def check_terms(design: Any, parsed: ParsedFormula, frame: pd.DataFrame, table: str) -> None:
    """Raise ValueError naming a factor with a single level where a term of it gives no column, beside the constant."""
    for term, places in design.model_spec.term_indices.items():
        names = {name for factor in term.factors for name in Expression.of(factor).values} if not places else set()
        for name in sorted(names & {str(column) for column in frame.columns}):
            if frame[name].nunique() == 1:
                raise ValueError(
                    f"{name!r} has the single level {listing(frame[name].iloc[:1])} in the rows of {table}, and a "
                    f"factor needs two: the term {str(term)!r} is aliased with the rest of the formula. Leave it out"
                )


def _counts(column: pd.Series) -> bool:
    """Return whether a column is used as numbers where a formula does not say otherwise."""
    return pd.api.types.is_numeric_dtype(column.dtype) or _other_kind(column) is not None


def _other_kind(column: pd.Series) -> str | None:
    """Return what a column holds that formulas cannot use as it is."""
    dtype = column.dtype
    if pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return "dates"
    if pd.api.types.is_object_dtype(dtype) and len(column) and isinstance(column.iloc[0], datetime.date):
        return "dates"
    if pd.api.types.is_timedelta64_dtype(dtype):
        return "durations"
    return "complex numbers" if pd.api.types.is_complex_dtype(dtype) else None


def text_numbers(values: Iterable[Any]) -> bool:
    """Return whether all values are texts that read as numbers."""
    levels = pd.unique(np.asarray(list(values), dtype=object))
    return len(levels) > 0 and all(isinstance(v, str) for v in levels) and _read_as_numbers(levels)


def _read_as_numbers(levels: Any) -> bool:
    # The first tells for most columns; all of them are read only where it is a number.
    return all(bool(pd.to_numeric(pd.Series(part), errors="coerce").notna().all()) for part in (levels[:1], levels))


def evaluated(side: Any, parsed: ParsedFormula, frame: pd.DataFrame, table: str, na_action: str = "raise") -> Any:
    """Return the columns that a side of the formula, or its specification, gives; raise ValueError with the formula."""
    start = f"formula is {parsed.text!r}; it cannot be computed on {table}"
    # Integer powers overflow silently.
    whole = [name for name in parsed.computed_columns if name in frame and frame[name].dtype in (np.int64, np.uint64)]
    frame = frame.astype(dict.fromkeys(whole, np.float64)) if whole else frame
    try:
        # What is infinite or no number is refused by its column's name.
        with np.errstate(all="ignore"):
            matrix = side.get_model_matrix(frame, context=dict(parsed.names), na_action=na_action)
    except FormulaicError as error:
        raise ValueError(f"{start}: {str(error).splitlines()[0]}") from None
    except (TypeError, ValueError) as error:
        if term := WITHOUT_VALUE.search(str(error)):
            why = "" if term[1] in frame else ", as the logarithm of a negative number has none"
            advice = "Impute the values" if term[1] in frame else "Change the term"
            raise ValueError(
                f"{start}: {term[1]} has no value (NaN) in some rows{why}. {advice}, or leave these rows out"
            ) from None
        raise ValueError(f"{start}: {error}") from None
    wrong = [str(name) for name in matrix.columns if pd.api.types.is_complex_dtype(matrix[name].dtype)]
    if wrong:
        raise ValueError(f"{start}: {listing(wrong)} is complex. {ADVICE['complex numbers']}")
    return matrix


def formula_design(parsed: ParsedFormula, frame: pd.DataFrame, table: str, na_action: str = "raise") -> Any:
    """Return the right-hand side's columns, with the specification that makes them; raise ValueError with the term."""
    return evaluated(parsed.rhs, parsed, frame, table, na_action)


def formula_response(parsed: ParsedFormula, frame: pd.DataFrame, table: str) -> pd.Series:
    """Return the response: a column as it is, or what an expression makes of the frame."""
    text = str(parsed.lhs)
    if text in frame.columns:
        return frame[text]
    column = evaluated(parsed.lhs, parsed, frame, table)
    if column.shape[1] != 1:
        raise ValueError(f"the response {text!r} gives {column.shape[1]} columns; one is wanted")
    return pd.Series(np.asarray(column, dtype=np.float64)[:, 0], index=frame.index, name=text)


def formula_offset(parsed: ParsedFormula, frame: pd.DataFrame, table: str) -> Array | None:
    """Return the sum of the formula's ``offset()`` terms in every row; None where it has none."""
    if not parsed.offsets:
        return None
    columns = [evaluated(formula, parsed, frame, table, "ignore") for formula in parsed.offset_formulas]
    for expression, column in zip(parsed.offsets, columns, strict=True):
        if column.shape[1] != 1:
            raise ValueError(f"offset({expression}) gives {column.shape[1]} columns; one number a row is wanted")
    return np.sum([np.asarray(column, dtype=np.float64)[:, 0] for column in columns], axis=0)
