"""Small checks shared by the constructors; every message names the argument, what was found and what is wanted."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._types import Array

__all__ = [
    "finite_float64",
    "flag",
    "float64_array",
    "in_interval",
    "labels_as_written",
    "listing",
    "one_of",
    "refuse_masked",
    "refuse_other_kinds",
    "several",
    "shape_of",
    "takes",
    "whole_number",
]


def listing(items: Iterable[Any], most: int = 5) -> str:
    """Return the first few items as text, with a count of the rest.

    Examples
    --------
    >>> listing(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    entries = list(items)
    head = ", ".join(repr(_plain(item)) for item in entries[:most])
    rest = len(entries) - most
    return f"{head} and {rest} more" if rest > 0 else head


def _plain(item: Any) -> Any:
    """Unwrap NumPy scalars, whose repr would read ``np.int64(3)``."""
    return item.item() if isinstance(item, np.generic) else item


def one_of(value: Any, name: str, options: Sequence[str]) -> str:
    """Return `value` if it is one of `options`; raise ValueError naming them otherwise."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, options))}")
    return value


def flag(value: Any, name: str) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); give True or False")
    return bool(value)


def whole_number(value: Any, name: str, least: int, most: int | None = 2**63 - 1) -> int:
    """Return `value` as an int from `least` to `most`; seeds have no largest (None)."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{name} is {shortened(value)}; it must be at most {most}")
    return int(value)


def shortened(value: Any, most: int = 30) -> str:
    """Return a number for a message: 10**400 has 401 digits, and Python refuses to write one of 5,000."""
    try:
        text = str(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 10]}... ({len(text)} digits)"


def in_interval(
    value: Any, name: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> float:
    """Return `value` as a finite float inside the interval from `low` to `high`."""
    try:
        # float() would read text such as "0.1", True as 1, what is masked as NaN, and drop imaginary parts.
        plain = not isinstance(value, (str, bytes, bool, np.ma.MaskedArray)) and shape_of(value, name) == ()
        number = float(value) if plain and getattr(getattr(value, "dtype", None), "kind", "f") in "fiu" else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    above = number > low if open_low else number >= low
    below = number < high if open_high else number <= high
    if not (np.isfinite(number) and above and below):
        left, right = "(" if open_low else "[", ")" if open_high or np.isinf(high) else "]"
        raise ValueError(f"{name} is {number:g}; it must lie in {left}{low:g}, {high:g}{right}")
    return number


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    """Return the shape of what may be an array; raise TypeError where it is a list of entries of unequal lengths."""
    try:
        return np.shape(value)
    except ValueError:
        raise TypeError(f"{name} must hold numbers, and has entries of different lengths") from None


def takes(function: Any, *places: Any, **names: Any) -> bool:
    """Return whether a function can be called with at least these arguments, as far as that can be known."""
    try:
        inspect.signature(function).bind_partial(*places, **names)
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions do not say.
        return True
    return True


def several(value: Any, name: str, wanted: str) -> list[Any]:
    """Return `value` as a list; raise TypeError, with what its entries should be, where it is none."""
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); give a list of {wanted}") from None


def finite_float64(value: Any, name: str, ndim: int, columns: Sequence[str] = ()) -> Array:
    """Return `value` as a C-contiguous float64 array of finite numbers, without a copy where it already is one.

    Messages name the `columns` of a matrix where they are given.
    """
    array = float64_array(value, name)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    check_finite(array, name, columns)
    return array


def float64_array(value: Any, name: str) -> Array:
    """Return `value` as a C-contiguous float64 array of any shape; raise TypeError where it does not hold numbers.

    What NumPy would convert without a word, and lose something by it, is refused: masked entries, imaginary parts,
    dates, and numbers stored as text.
    """
    refuse_masked(value, name)
    refuse_other_kinds(value, name)
    try:
        return np.asarray(value, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must hold numbers; it could not be converted to float64") from None


def refuse_masked(value: Any, name: str) -> None:
    """Raise ValueError where entries are masked: as a plain array they would count with what is behind the mask."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise ValueError(
            f"{name} is a masked array with {count} masked entries; leave these rows out, or fill them ({name}.filled)"
        )


# What arrays hold, by NumPy's codes, that are no real numbers.
_KINDS = {"c": "complex numbers", "M": "dates", "m": "durations", "U": "text", "S": "bytes", "V": "records"}
_CLASSES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((str, bytes), "text"),
    ((complex, np.complexfloating), "complex numbers"),
    ((datetime.date, datetime.timedelta, np.datetime64, np.timedelta64), "dates"),
)


def refuse_other_kinds(value: Any, name: str) -> None:
    """Raise TypeError where `value` holds something else than real numbers that NumPy could convert to float64."""
    if isinstance(value, pd.DataFrame):
        for column in value.columns:
            refuse_other_kinds(value[column], f"{name}[{column!r}]")
        return
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind in ("f", "i", "u", "b"):
        return
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError(f"{name} must hold numbers, and has entries of different lengths") from None
    what = _KINDS.get(array.dtype.kind, "")
    if array.dtype.kind == "O":
        what = next((word for kinds, word in _CLASSES if any(isinstance(item, kinds) for item in array.flat)), "")
    if what:
        advice = {
            "text": "convert it (pd.to_numeric), or make a factor of it in a formula",
            "dates": "turn them into numbers of days since some day",
        }.get(what, "give real numbers")
        raise TypeError(f"{name} must hold numbers, and holds {what}; {advice}")


def check_finite(array: Array, name: str, columns: Sequence[str] = (), block: int = 1 << 16) -> None:
    """Raise ValueError with the first bad row, and column where these have names, if `array` has NaN or infinities.

    Works through `array` in blocks of rows, so that a memory map is never held in memory at once.
    """
    for low in range(0, len(array), block):
        bad = ~np.isfinite(array[low : low + block])
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            value, named = array[low : low + block][where], len(where) == 2 and where[1] < len(columns)
            column = f", column {columns[where[1]]!r}" if named else ""
            raise ValueError(
                f"{name} has NaN or infinite values; the first is {value} in row {low + where[0]}{column}. "
                "Remove or impute such rows before the fit"
            )


def labels_as_written(*columns: pd.Series) -> list[pd.Series]:
    """Return columns of text from a file as whole numbers where each is written as one, else as the text it is.

    Readers of files make 1 of "01", which then is the same client as "1". Columns are judged together.

    Examples
    --------
    >>> [column.tolist() for column in labels_as_written(pd.Series(["1", "2"]), pd.Series(["2", "3"]))]
    [[1, 2], [2, 3]]
    >>> [column.tolist() for column in labels_as_written(pd.Series(["1", "01"]))]
    [['1', '01']]
    """
    texts = [text for column in columns for text in column.dropna().unique()]
    plain = all(text.isascii() and text.lstrip("-").isdigit() and str(int(text)) == text for text in texts)
    if not texts or not plain or any(column.hasnans or abs(int(text)) >= 2**63 for column in columns for text in texts):
        return list(columns)
    return [column.astype(np.int64) for column in columns]
