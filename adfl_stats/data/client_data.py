"""The clients' data, checked once when they enter the package."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from adfl_stats._arguments import finite_float64, flag, one_of
from adfl_stats._files import place_of
from adfl_stats._frames import foreign_frame, is_foreign_frame, pandas_columns
from adfl_stats._types import Array, FrameLike, Ints, Mask
from adfl_stats.data.columns import (
    check_alignment,
    coded_response,
    column_names,
    counts,
    given_names,
    numbered_clients,
    offset_and_exposure,
    positive,
)
from adfl_stats.data.formula import ParsedFormula, callers_names
from adfl_stats.data.parts import check_parts
from adfl_stats.data.table import rows_and_formula
from adfl_stats.data.views import frozen

if TYPE_CHECKING:
    from formulaic import ModelSpec

__all__ = ["ClientData", "assembled"]

# Rows in one piece. Ours: with 50 columns 3 MB, of the order of a processor's cache.
BLOCK_ROWS = 8192


@dataclass(frozen=True, eq=False, repr=False)
class ClientData:
    """Rows of all clients, grouped by client; built by `from_frame`, `from_arrays` or `from_parquet`.

    Attributes
    ----------
    X : ndarray (N, p)
        Design matrix, C order, float64, a read-only view of the user's array where possible.
    y : ndarray (N,)
        Response; class codes 0, 1, ... where `classes` is given.
    offsets : ndarray (M + 1,) of int64
        Client m holds rows ``offsets[m]:offsets[m + 1]``.
    labels : pandas.Index
        The clients' names, in the order of their rows.
    names : list of str
        The columns of `X`.
    y_name, client_name : str
        Names of the response and of the column of clients.
    linear_offset : ndarray (N,) or None
        Offset plus log exposure, added to the linear predictor.
    row_weights : ndarray (N,) or None
        Observation weights, one over the variance of a row; a client's loss is its weighted mean.
    classes : tuple or None
        The levels of a categorical response, the first being the reference.
    spec : formulaic ModelSpec or None
        How a frame becomes `X`, for predictions.
    formula : ParsedFormula or None
        The formula, with its ``offset()`` terms and the functions of the calling code that it uses.
    n_dropped : int
        Rows left out because of missing values (``missing="drop"``).
    row_labels : pandas.Index or None
        The index of the rows as they came in.
    row_order : ndarray (N,) of int64 or None
        The place that each row had then; None if they are in that order.
    set_aside : ndarray (M,) of bool or None
        Clients whose rows are zeros here and have no weight; see `setting_aside`.
    cuts : ndarray (k,) of int64 or None
        Clients, in increasing order, at which passes over the rows begin a new batch. A model sets them, so that the
        last bits of sums do not depend on which clients are elsewhere.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.hospitals(seed=1, M=30, abnormal=6)
    >>> data = ad.ClientData.from_frame(sim.frame(), "readmitted ~ age + severity", "hospital")
    >>> data.n_clients, data.names
    (30, ['Intercept', 'age', 'severity'])
    """

    X: Array
    y: Array
    offsets: Ints
    labels: pd.Index
    names: list[str]
    y_name: str = "y"
    client_name: str = "client"
    linear_offset: Array | None = None
    row_weights: Array | None = None
    classes: tuple[Hashable, ...] | None = None
    spec: ModelSpec | None = None
    formula: ParsedFormula | None = None
    n_dropped: int = 0
    row_labels: pd.Index | None = None
    row_order: Ints | None = None
    set_aside: Mask | None = None
    cuts: Ints | None = None

    def __post_init__(self) -> None:
        check_parts(vars(self))

    @classmethod
    def from_arrays(
        cls,
        X: ArrayLike | pd.DataFrame,
        y: ArrayLike,
        client: ArrayLike,
        names: Sequence[str] | None = None,
        *,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        freq_weights: ArrayLike | None = None,
    ) -> ClientData:
        """Build from arrays with one client label per row.

        No copy of `X` is made when it is C-contiguous float64 with the rows of each client together;
        read-only arrays and memory maps are fine.

        Parameters
        ----------
        X : array (N, p) or DataFrame
            Design matrix, with its constant column if there is to be one; a frame of pandas, polars or Arrow.
        y : array (N,)
            Response: numbers, or labels of classes.
        client : array (N,)
            The client each row belongs to.
        names : sequence of str, optional
            Names of the columns; by default those of the frame, or x1, x2, ...
        offset, exposure : array (N,), optional
            Added to the linear predictor, `exposure` in logs.
        weights : array (N,), optional
            Observation weights, positive. They are variance weights, `var_weights` of statsmodels: the variance of a
            row is the dispersion over its weight, and a row of weight 2 is one row, not two.
        freq_weights : array (N,) of whole numbers, optional
            How many like rows a row stands for, `freq_weights` of statsmodels: it is entered so many times.

        Examples
        --------
        >>> import numpy as np
        >>> X, y = np.arange(8.0).reshape(4, 2), np.array([1.0, 0.0, 2.0, 1.0])
        >>> ClientData.from_arrays(X, y, client=["a", "b", "a", "b"])
        ClientData(2 clients, 2 rows each, 2 columns)
        """
        X = pandas_columns(opened := foreign_frame(X, "X"), list(opened.columns)) if is_foreign_frame(X) else X
        check_alignment(
            X=X, y=y, client=client, offset=offset, exposure=exposure, weights=weights, freq_weights=freq_weights
        )
        columns = column_names(X) if names is None else given_names(names)
        matrix = finite_float64(X, "X", 2, columns)
        n, p = matrix.shape
        if p == 0 or n == 0:
            raise ValueError(f"X has shape {matrix.shape}; at least one row and one column are wanted")
        if len(columns) != p or len(set(columns)) != p:
            raise ValueError(f"names has {len(set(columns))} distinct entries for {p} columns of X")
        response, classes = coded_response(y)
        codes, labels = numbered_clients(client)
        linear_offset = offset_and_exposure(offset, exposure, n)
        row_weights = None if weights is None else positive(weights, "weights", n)
        for name, part in (("y", response), ("client", codes)):
            if len(part) != n:
                raise ValueError(f"{name} has {len(part)} entries, X has {n} rows; they must agree")
        row_labels = next((part.index for part in (X, y) if isinstance(part, pd.DataFrame | pd.Series)), None)
        if freq_weights is not None:
            copies = np.repeat(np.arange(n), counts(freq_weights, "freq_weights", n))
            matrix, response, codes = matrix[copies], response[copies], codes[copies]
            linear_offset = None if linear_offset is None else linear_offset[copies]
            row_weights = None if row_weights is None else row_weights[copies]
            row_labels = None if row_labels is None else row_labels[copies]
        order: Ints | None = None
        if (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes, kind="stable")
            matrix, response, codes = matrix[order], response[order], codes[order]
            linear_offset = None if linear_offset is None else linear_offset[order]
            row_weights = None if row_weights is None else row_weights[order]
        offsets = np.searchsorted(codes, np.arange(len(labels) + 1)).astype(np.int64)
        return assembled(
            X=frozen(matrix),
            y=frozen(response),
            offsets=frozen(offsets),
            labels=labels,
            names=[str(name) for name in columns],
            y_name=str(getattr(y, "name", None) or "y"),
            client_name=str(getattr(client, "name", None) or "client"),
            linear_offset=None if linear_offset is None else frozen(linear_offset),
            row_weights=None if row_weights is None else frozen(row_weights),
            classes=classes,
            row_labels=row_labels,
            row_order=None if order is None else frozen(order),
        )

    @classmethod
    def from_frame(
        cls,
        frame: FrameLike | None = None,
        formula: str | None = None,
        client: str | ArrayLike | None = None,
        *,
        data: FrameLike | None = None,
        offset: str | ArrayLike | None = None,
        exposure: str | ArrayLike | None = None,
        weights: str | ArrayLike | None = None,
        freq_weights: str | ArrayLike | None = None,
        missing: str = "raise",
    ) -> ClientData:
        """Build from a table, a formula and the name of the client column.

        The specification is built once on all rows, so a client that lacks a level of a factor, or
        whose covariate is centred by the formula, still has the columns of all the others.

        Parameters
        ----------
        frame : DataFrame
            The rows, in pandas (nullable dtypes too), polars or Arrow. Frame and formula may change places.
        formula : str
            For example ``"y ~ x1 + C(group)"``; a constant is included unless ``- 1`` is written. ``offset(z)`` adds z
            to the linear predictor. Functions and constants of the calling code may be used, inside calls and
            expressions; names of formulaic's own functions mean those.
        client : str or array (N,)
            The column that says which client holds the row, or the labels themselves.
        data : DataFrame, optional
            Another name of `frame`, that of statsmodels.
        offset, exposure, weights, freq_weights : str or array (N,), optional
            Columns, or one value a row, as in `from_arrays`.
        missing : {"raise", "drop"}
            What to do with rows that have missing values in a column that is used.

        Examples
        --------
        >>> frame = pd.DataFrame({"site": list("aabb"), "y": [1.0, 0.0, 2.0, 1.0], "arm": list("xyxx")})
        >>> ClientData.from_frame(frame, "y ~ arm", "site").names
        ['Intercept', 'arm[T.y]']
        """
        from adfl_stats.data.from_table import table_data

        rows, text = rows_and_formula(frame, formula, data, "from_frame")
        if client is None:
            raise TypeError("from_frame lacks client; call from_frame(frame, formula, client)")
        roles = {
            "client": client, "offset": offset, "exposure": exposure, "weights": weights, "freq_weights": freq_weights
        }  # fmt: skip
        return table_data(rows, text, roles, missing, callers_names(1))

    @classmethod
    def from_parquet(
        cls,
        path: str | PathLike[str],
        formula: str,
        client: str,
        *,
        offset: str | None = None,
        exposure: str | None = None,
        weights: str | None = None,
        freq_weights: str | None = None,
        missing: str = "raise",
        directory: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> ClientData:
        """Build from a Parquet file of any size, which need not fit into memory.

        The file is read twice, batch by batch: once to count the clients' rows and to learn the levels
        of factors, once to write every row to its client's place in a memory map. Memory is bounded by a
        row group of the file. The next call with the same arguments and an unchanged file opens
        what the first one wrote. Rows, columns and labels are those of `from_frame` on the whole file.

        Parameters
        ----------
        path : str or path
            The file.
        formula, client : str
            As in `from_frame`. Terms whose value in a row depends on other rows (``center``, ``scale``,
            ``poly``, ...) are refused: compute them in the file.
        offset, exposure, weights, freq_weights : str, optional
            As in `from_frame`; a row that stands for several is written so many times.
        missing : {"raise", "drop"}
            As in `from_frame`.
        directory : str or path, optional
            Where to keep what is written, 8 bytes a number; by default beside the file, in a folder of its
            name with ``.adfl`` added. It may be deleted once the data are no longer in use.
        progress : bool
            Show a progress bar (tqdm).

        Examples
        --------
        >>> import tempfile
        >>> frame = pd.DataFrame({"site": list("abab"), "y": [1.0, 0.0, 2.0, 1.0], "x": [1.0, 2.0, 3.0, 5.0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame.to_parquet(f"{folder}/rows.parquet")
        ...     data = ClientData.from_parquet(f"{folder}/rows.parquet", "y ~ x", "site")
        ...     print(data)
        ...     del data
        ClientData(2 clients, 2 rows each, 2 columns)
        """
        from adfl_stats.data.conversion import Request
        from adfl_stats.data.parquet import client_data

        one_of(missing, "missing", ("raise", "drop"))
        source = str(place_of(path, "path").resolve())
        request = Request(source, formula, client, offset, exposure, weights, freq_weights, missing)
        return client_data(request, directory, flag(progress, "progress"))

    @property
    def n_clients(self) -> int:
        """Number of clients M."""
        return len(self.labels)

    @property
    def n_rows(self) -> int:
        """Number of rows N over all clients."""
        return len(self.y)

    @cached_property
    def sizes(self) -> Ints:
        """Rows per client, n_m."""
        return np.diff(self.offsets)

    @cached_property
    def totals(self) -> Array:
        """Sum of the observation weights per client (n_m without weights), the divisor of its loss."""
        if self.row_weights is None:
            return self.sizes.astype(np.float64)
        return np.add.reduceat(self.row_weights, self.offsets[:-1])

    def weights_of(self, rows: slice | Ints) -> Array:
        """Return the observation weights of some rows.

        Parameters
        ----------
        rows : slice or ndarray of int64
            The rows.

        Returns
        -------
        ndarray
            The weights; ones where none were given.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> data = ad.ClientData.from_arrays(np.ones((3, 1)), np.arange(3.0), ["a", "a", "b"], weights=[1.0, 2.0, 1.0])
        >>> data.weights_of(slice(0, 2)).tolist()
        [1.0, 2.0]
        """
        return np.ones_like(self.y[rows]) if self.row_weights is None else self.row_weights[rows]

    @cached_property
    def counted(self) -> Mask:
        """The clients that are not set aside."""
        return np.ones(self.n_clients, dtype=bool) if self.set_aside is None else ~self.set_aside

    def setting_aside(self, clients: Mask) -> ClientData:
        """Return the same data with zeros for the rows of some clients, whose numbers overflow.

        Their gradients and curvatures are then zero, and every pass over the data has finite numbers. X is copied;
        a memory map is opened anew instead, and only the pages of these clients take memory.

        Parameters
        ----------
        clients : ndarray (M,) of bool
            The clients.

        Returns
        -------
        ClientData
            With `set_aside`.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> data = ad.ClientData.from_arrays(np.ones((4, 1)), np.arange(4.0), ["a", "a", "b", "b"])
        >>> data.setting_aside(np.array([False, True])).X.ravel().tolist()
        [1.0, 1.0, 0.0, 0.0]
        """
        from adfl_stats.data.rearranged import with_zeros

        return with_zeros(self, clients)

    def in_order(self, labels: Iterable[Hashable]) -> ClientData:
        """Return the same data with the clients in another order; rows are copied.

        Parameters
        ----------
        labels : iterable
            The clients, each once, for example from `networks.near_order`.

        Returns
        -------
        ClientData
            Estimates on it are the same but for rounding: sums over clients are taken in this order.

        Examples
        --------
        >>> data = ClientData.from_arrays(np.arange(6.0).reshape(3, 2), np.arange(3.0), ["a", "b", "b"])
        >>> data.in_order(["b", "a"]).y.tolist()
        [1.0, 2.0, 0.0]
        """
        from adfl_stats.data.rearranged import reordered

        return reordered(self, labels)

    def blocks(self, m: int) -> Iterator[slice]:
        """Yield slices of a client's rows, small enough for temporary arrays beside a memory map.

        Parameters
        ----------
        m : int
            The client's index.

        Yields
        ------
        slice
            At most `BLOCK_ROWS` rows.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> data = ad.ClientData.from_arrays(np.ones((4, 1)), np.arange(4.0), ["a", "a", "b", "b"])
        >>> list(data.blocks(1))
        [slice(2, 4, None)]
        """
        for low in range(int(self.offsets[m]), int(self.offsets[m + 1]), BLOCK_ROWS):
            yield slice(low, min(low + BLOCK_ROWS, int(self.offsets[m + 1])))

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        rows = f"{low}" if low == high else f"{low} to {high}"
        return f"ClientData({self.n_clients} clients, {rows} rows each, {len(self.names)} columns)"


def assembled(base: ClientData | None = None, /, **parts: Any) -> ClientData:
    """Return data of parts that are known to be fine, the others being those of `base`: nothing is checked again."""
    data = object.__new__(ClientData)
    for field in fields(ClientData):
        before = field.default if base is None else getattr(base, field.name)
        object.__setattr__(data, field.name, parts.get(field.name, before))
    return data
