"""Tables of other packages as pandas frames, and columns with dtypes that every formula can use."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["foreign_frame", "is_foreign_frame", "pandas_columns", "plain_column", "widened"]


def is_foreign_frame(value: Any) -> bool:
    """Return whether a value is a table of another package than pandas: polars, Arrow, or one that narwhals knows."""
    if isinstance(value, (pd.DataFrame, np.ndarray, list, tuple)):
        return False
    import narwhals as nw

    stream = hasattr(value, "__arrow_c_stream__") and hasattr(value, "schema")
    return stream or isinstance(nw.from_native(value, pass_through=True), (nw.DataFrame, nw.LazyFrame))


def foreign_frame(table: Any, name: str) -> Any:
    """Return a table as something with columns that `pandas_columns` can take; raise TypeError where it is none.

    Parameters
    ----------
    table : pandas, polars or modin DataFrame, polars LazyFrame, pyarrow Table or RecordBatch, ...
        Anything that narwhals reads, or that exports Arrow streams.
    name : str
        The argument, for messages.

    Returns
    -------
    pandas.DataFrame or narwhals.DataFrame
        The same rows, not yet copied.
    """
    if isinstance(table, pd.DataFrame):
        return table
    import narwhals as nw

    opened = nw.from_native(table, pass_through=True)
    if isinstance(opened, nw.LazyFrame):
        opened = opened.collect()
    if not isinstance(opened, nw.DataFrame) and hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        # A column exports a stream, too, and is no table.
        with suppress(pa.ArrowInvalid):
            opened = nw.from_native(pa.table(table))
    if not isinstance(opened, nw.DataFrame):
        raise TypeError(f"{name} is a {type(table).__name__}; pass a pandas, polars or Arrow table")
    if opened.implementation.is_polars():
        # The order of their levels is that in which this process has first seen them.
        texts = [column for column, kind in opened.schema.items() if kind == nw.Categorical]
        opened = opened.with_columns(nw.col(texts).cast(nw.String)) if texts else opened
    return opened


def pandas_columns(frame: Any, columns: list[Any]) -> pd.DataFrame:
    """Return some columns of what `foreign_frame` returned, as a pandas frame."""
    if isinstance(frame, pd.DataFrame):
        return frame[columns]
    try:
        return frame.select(*columns).to_pandas()
    except ImportError as error:
        raise ImportError(
            f"tables of {frame.implementation} go through pyarrow ({error}); install it with: "
            "pip install 'adfl-stats[parquet]'"
        ) from None


def plain_column(column: pd.Series) -> pd.Series:
    """Return a column without missing values in a dtype that NumPy has, or a categorical one.

    Nullable numbers become int64, float64 and bool, ``string`` becomes object, Arrow's dictionaries become
    categories; numbers in an object column become float64, and short ones as `widened` makes them.

    Examples
    --------
    >>> plain_column(pd.Series([1, 2], dtype="Int64")).dtype, plain_column(pd.Series(["a"], dtype="string")).dtype
    (dtype('int64'), dtype('O'))
    """
    dtype = column.dtype
    if (
        pd.api.types.is_object_dtype(dtype)
        and len(column)
        and all(isinstance(value, Real | Decimal) for value in column)
    ):
        kinds = {type(value) for value in column}
        return column.astype(bool) if kinds <= {bool, np.bool_} else column.astype(np.float64)
    if isinstance(dtype, np.dtype | pd.CategoricalDtype):
        return widened(column)
    if pd.api.types.is_bool_dtype(dtype):
        return column.astype(bool)
    if pd.api.types.is_integer_dtype(dtype):
        return widened(column.astype(np.uint64 if pd.api.types.is_unsigned_integer_dtype(dtype) else np.int64))
    if pd.api.types.is_numeric_dtype(dtype):
        return column.astype(np.float64)
    if isinstance(dtype, pd.StringDtype):
        # The dtype of texts in pandas 3 is one that formulas read.
        return column if str(dtype) == "str" else column.astype(object)
    if isinstance(dtype, pd.ArrowDtype):
        return _plain_arrow(column)
    return column


def widened(column: pd.Series) -> pd.Series:
    """Return short numbers as int64 and float64, in which a formula's squares and differences do not wrap around.

    Examples
    --------
    >>> (widened(pd.Series([100, 3], dtype="int8")) ** 2).tolist()
    [10000, 9]
    """
    dtype = column.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iuf" or dtype in (np.int64, np.float64):
        return column
    if dtype.kind == "f":
        return column.astype(np.float64) if dtype.itemsize < 8 else column
    fits = dtype.itemsize < 8 or not len(column) or column.max() <= np.iinfo(np.int64).max
    return column.astype(np.int64) if fits else column


def _plain_arrow(column: pd.Series) -> pd.Series:
    kind = column.dtype.type
    if kind is str:
        return column.astype(object)
    if "dictionary" in str(column.dtype):
        return column.astype(object).astype("category")
    return widened(pd.Series(column.to_numpy(), index=column.index, name=column.name))
