"""What a user may give as a network, turned into a checked sparse matrix and labels.

Every function returns arrays of its own: the caller's matrix or table is never kept or changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from adfl_stats._arguments import float64_array, labels_as_written, listing, refuse_masked, refuse_other_kinds
from adfl_stats._files import refuse_absent
from adfl_stats._frames import foreign_frame, is_foreign_frame, pandas_columns, plain_column
from adfl_stats._types import Array, Ints, Mask
from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning

if TYPE_CHECKING:
    import networkx

# What a matrix may be given as.
MatrixLike: TypeAlias = "ArrayLike | sparse.sparray | sparse.spmatrix | pd.DataFrame"
# What a list of edges may be given as.
EdgesLike: TypeAlias = "pd.DataFrame | str | os.PathLike[str] | Iterable[Sequence[Any]]"

__all__ = [
    "EdgesLike",
    "MatrixLike",
    "adjacency_matrix",
    "client_labels",
    "edge_file",
    "edge_matrix",
    "edge_table",
    "graph_matrix",
    "label_index",
    "matrix_and_labels",
    "networkx_module",
    "refuse_empty_rows",
    "row_normalised",
    "row_sums",
    "with_own_estimates",
]


def matrix_and_labels(matrix: MatrixLike, labels: Iterable[Any] | None, name: str) -> tuple[sparse.csr_array, pd.Index]:
    """Return `matrix` as a square, finite, non-negative CSR array, and one label per client.

    A DataFrame brings its labels along; its columns may be in another order than its rows.
    """
    if not isinstance(matrix, pd.DataFrame):
        csr = _square_csr(matrix, name)
        return csr, client_labels(labels, csr.shape[0])
    if labels is not None:
        raise ValueError(f"labels were given although {name} is a DataFrame, whose index has the labels; drop one")
    index = client_labels(matrix.index, matrix.shape[0], f"the index of {name}")
    columns = client_labels(matrix.columns, matrix.shape[1], f"the columns of {name}")
    odd = index.symmetric_difference(columns, sort=False)
    if len(odd):
        raise ValueError(
            f"the columns of {name} must name the same clients as its index; "
            f"found on one side only: {listing(odd)}. Rows receive, columns send"
        )
    csr = _square_csr(matrix.iloc[:, columns.get_indexer(index)].to_numpy(), name)
    return csr, index


def _square_csr(matrix: Any, name: str) -> sparse.csr_array:
    """Return a canonical float64 CSR copy without explicit zeros."""
    is_sparse = bool(sparse.issparse(matrix))
    refuse_masked(matrix, name)
    try:
        refuse_other_kinds(matrix.data if is_sparse else matrix, name)
        if is_sparse:
            csr = sparse.csr_array(matrix, dtype=np.float64, copy=True)
        else:
            csr = sparse.csr_array(np.atleast_2d(np.asarray(matrix, dtype=np.float64)))
    except (TypeError, ValueError, OverflowError) as error:
        reason = f": {error}" if "must hold numbers" in str(error) else ""
        raise TypeError(
            f"{name} must be a dense or scipy sparse matrix of numbers, got {type(matrix).__name__}{reason}"
        ) from None
    if csr.ndim != 2 or csr.shape[0] != csr.shape[1] or csr.shape[0] == 0:
        raise ValueError(
            f"{name} has shape {np.shape(matrix)}; it must be square, with one row and one column per client"
        )
    csr.sum_duplicates()
    if not np.isfinite(csr.data).all():
        m, k = _first(csr, ~np.isfinite(csr.data))
        raise ValueError(f"{name} has NaN or infinite entries, the first in row {m}, column {k}; use 0 for no edge")
    if (csr.data < 0).any():
        m, k = _first(csr, csr.data < 0)
        raise ValueError(f"{name} has negative entries, the first in row {m}, column {k}; weights must be at least 0")
    csr.eliminate_zeros()
    return csr


def _first(csr: sparse.csr_array, bad: Mask) -> tuple[int, int]:
    """Return row and column of the first stored entry that is `bad`."""
    at = int(np.argmax(bad))
    return int(np.searchsorted(csr.indptr, at, side="right")) - 1, int(csr.indices[at])


def client_labels(labels: Any, n_clients: int, name: str = "labels") -> pd.Index:
    """Return `labels` as an index of `n_clients` different names; 0, 1, ... when there are none."""
    if labels is None:
        return pd.RangeIndex(n_clients)
    index = label_index(labels, name)
    if len(index) != n_clients:
        raise ValueError(f"{name} has {len(index)} entries for {n_clients} clients; give one label per client")
    return index


def label_index(labels: Iterable[Any], name: str) -> pd.Index:
    """Return `labels` as an index; raise ValueError if labels are missing or occur twice."""
    if isinstance(labels, str):
        raise TypeError(f"{name} is the text {labels!r}; give a list with one label per client")
    index = labels if isinstance(labels, pd.Index) else _index(labels)
    if index.hasnans:
        raise ValueError(f"{name} has missing values; give each client a name")
    if not index.is_unique:
        raise ValueError(f"{name} names clients twice: {listing(index[index.duplicated()].unique())}; use unique names")
    return index


def _index(names: Iterable[Any]) -> pd.Index:
    # Nodes of a grid graph are tuples; without this pandas would make a MultiIndex of them.
    try:
        unchecked = list(names)
        for label in unchecked:
            hash(label)
    except TypeError as error:
        raise TypeError(f"labels must be names of clients, such as text or numbers: {error}") from None
    return pd.Index(unchecked, tupleize_cols=False)


def adjacency_matrix(A: MatrixLike, labels: Iterable[Any] | None) -> tuple[sparse.csr_array, pd.Index]:
    """Return a matrix of 0 and 1 as a CSR array, and the labels of the clients."""
    csr, index = matrix_and_labels(A, labels, "A")
    _refuse_other_than_01(csr, index, "A")
    return csr, index


def _refuse_other_than_01(A: sparse.csr_array, labels: pd.Index, name: str) -> None:
    """Raise ValueError if an adjacency matrix has entries other than 0 and 1."""
    bad = A.data != 1.0
    if bad.any():
        m, k = _first(A, bad)
        raise ValueError(
            f"{name} has entries other than 0 and 1, the first {A.data[np.argmax(bad)]:g} where client "
            f"{listing([labels[m]])} receives from {listing([labels[k]])}; "
            "use Network.from_weights for rows that sum to 1, or Network.from_edges to have weights scaled"
        )


def refuse_empty_rows(A: sparse.csr_array, labels: pd.Index, name: str) -> sparse.csr_array:
    """Return `A`; raise ValueError if some client receives from nobody (the paper assumes d_m > 0)."""
    empty = np.diff(A.indptr) == 0
    if empty.any():
        raise ValueError(
            f"{name} has clients that receive from nobody ({int(empty.sum())} of {len(labels)}): "
            f"{listing(labels[empty])}. Give each an edge into it or a self loop, or leave these clients out"
        )
    return A


def with_own_estimates(A: sparse.csr_array, labels: pd.Index, name: str) -> sparse.csr_array:
    """Return `A` with a self loop for each client that receives from nobody, after a warning that names them."""
    empty = np.diff(A.indptr) == 0
    if not empty.any():
        return A
    warn(
        f"{name} has clients that receive from nobody ({int(empty.sum())} of {len(labels)}): {listing(labels[empty])}. "
        "Each keeps its own estimate (w_mm = 1), an absorbing node",
        NetworkWarning,
    )
    loops = sparse.csr_array(sparse.diags_array(empty.astype(np.float64)))
    loops.eliminate_zeros()
    return sparse.csr_array(A + loops)


def row_sums(A: sparse.csr_array) -> Array:
    """Return the sums of the rows of `A`."""
    return np.asarray(A.sum(axis=1), dtype=np.float64).ravel()


def row_normalised(A: sparse.csr_array) -> sparse.csr_array:
    """Return `A` with each row divided by its sum: ``w_mk = a_mk / d_m``. Rows must not be empty."""
    data = A.data / np.repeat(row_sums(A), np.diff(A.indptr))
    return sparse.csr_array((data, A.indices, A.indptr), shape=A.shape)


def graph_matrix(G: networkx.Graph, weight: str | None) -> tuple[sparse.csr_array, pd.Index]:
    """Return the matrix with entry (v, u) for each edge u -> v of a networkx graph, and the labels."""
    nx = networkx_module()
    index = client_labels(list(G), G.number_of_nodes(), "the nodes of G")
    if not len(index):
        raise ValueError("G has no nodes; a network needs at least one client")
    lacking = [edge for *edge, value in G.edges(data=weight) if value is None] if weight else []
    if lacking:
        raise ValueError(
            f"G has {len(lacking)} edges without the attribute {weight!r}, "
            f"the first {tuple(lacking[0])}; "
            "set it on each edge or use weight=None"
        )
    # The arrow points to the receiver, whereas the row of A is the receiver: hence the transpose.
    A, _ = matrix_and_labels(nx.to_scipy_sparse_array(G, weight=weight, dtype=np.float64).T, None, "G")
    if weight is None:
        A.data[:] = 1.0
    return A, index


def networkx_module() -> Any:
    """Import networkx, which is optional."""
    try:
        import networkx
    except ImportError:
        raise ImportError('this needs networkx: pip install "adfl-stats[network]"') from None
    return networkx


def edge_file(path: str | os.PathLike[str], name: str = "edges") -> pd.DataFrame:
    """Read a CSV file of edges; the ends keep their names as they are written."""
    refuse_absent(path, name)
    # Only an empty field is missing: "NA" and "None" may be names of clients.
    table = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"source": str, "target": str})
    ends = [name for name in ("source", "target") if name in table.columns]
    if len(ends) == 2:
        table[ends] = pd.concat(labels_as_written(*(table[name] for name in ends)), axis=1)
    return table


def edge_table(edges: EdgesLike) -> pd.DataFrame:
    """Return `edges` (a table, a CSV file or pairs) as a table of source, target and perhaps weight."""
    if isinstance(edges, (str, os.PathLike)):
        table = edge_file(edges)
    elif isinstance(edges, pd.DataFrame):
        table = edges
    elif is_foreign_frame(edges):
        opened = foreign_frame(edges, "edges")
        table = pandas_columns(opened, list(opened.columns))
    else:
        table = _table_of_pairs(edges)
    absent = [column for column in ("source", "target") if column not in table.columns]
    if absent:
        raise ValueError(
            f"edges lacks the column {listing(absent)}; found {listing(table.columns)}. "
            "Wanted are source, target and, if edges are weighted, weight"
        )
    if table.empty:
        raise ValueError("edges is empty; give at least one edge into every client")
    table = table[[column for column in ("source", "target", "weight") if column in table.columns]]
    for column in table.columns:
        gaps = np.flatnonzero(table[column].isna())
        if gaps.size:
            raise ValueError(
                f"edges has missing values in column {column!r}, the first in row {gaps[0]}; fill or drop such rows"
            )
    return pd.DataFrame({name: plain_column(table[name]) for name in table.columns}).reset_index(drop=True)


def _table_of_pairs(edges: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """Return pairs (source, target) or triples (source, target, weight) as a table."""
    try:
        rows = [tuple(edge) for edge in edges]
    except TypeError:
        raise TypeError(
            f"edges must be a DataFrame, the path of a CSV file or pairs (source, target), got {type(edges).__name__}"
        ) from None
    lengths = {len(row) for row in rows}
    if lengths and lengths not in ({2}, {3}):
        raise ValueError(
            f"edges has entries of length {listing(sorted(lengths))}; "
            "give pairs (source, target) throughout, or triples (source, target, weight)"
        )
    columns = ["source", "target", "weight"][: max(lengths, default=2)]
    return pd.DataFrame({name: [row[i] for row in rows] for i, name in enumerate(columns)}, columns=columns)


def edge_matrix(table: pd.DataFrame, labels: Iterable[Any] | None) -> tuple[sparse.csr_array, pd.Index]:
    """Return the matrix with entry (target, source) for each edge, and the labels of the clients."""
    ends = [_index(table["source"]), _index(table["target"])]
    index = _names_in_order(ends) if labels is None else label_index(labels, "labels")
    codes = [index.get_indexer(end) for end in ends]
    unknown = [name for end, code in zip(ends, codes, strict=True) for name in end[code < 0]]
    if unknown:
        raise ValueError(
            f"edges names clients that are not in labels: {listing(dict.fromkeys(unknown))}. "
            "Add them to labels or drop their edges; text and number are different names"
        )
    weight = _edge_weights(table)
    keys = codes[1].astype(np.int64) * len(index) + codes[0]
    once = _first_of_each(keys, weight, table)
    shape = (len(index), len(index))
    coo = sparse.coo_array((weight[once], (codes[1][once], codes[0][once])), shape=shape)
    A = sparse.csr_array(coo)
    A.sum_duplicates()
    A.eliminate_zeros()
    return A, index


def _names_in_order(ends: list[pd.Index]) -> pd.Index:
    """Return all names, sorted where they can be compared, else as they first appear."""
    names = list(dict.fromkeys(name for end in ends for name in end))
    try:
        return _index(sorted(names))
    except TypeError:
        return _index(names)


def _edge_weights(table: pd.DataFrame) -> Array:
    """Return the weights of the edges, 1 where the table has none."""
    if "weight" not in table.columns:
        return np.ones(len(table))
    weight = float64_array(table["weight"], "the column 'weight' of edges")
    bad = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if bad.size:
        raise ValueError(
            f"the column 'weight' of edges has {weight[bad[0]]:g} in row {bad[0]}; "
            "weights must be finite and at least 0"
        )
    return weight


def _first_of_each(keys: Ints, weight: Array, table: pd.DataFrame) -> NDArray[np.intp]:
    """Return the rows to keep: one for each edge. Edges stated twice must agree."""
    _, once, back = np.unique(keys, return_index=True, return_inverse=True)
    if len(once) == len(keys):
        return once
    clash = np.flatnonzero(weight != weight[once[back]])
    if clash.size:
        row = table.iloc[clash[0]]
        first, second = weight[once[back[clash[0]]]], weight[clash[0]]
        raise ValueError(
            f"edges states the edge from {listing([row['source']])} to {listing([row['target']])} "
            f"with different weights, {first:g} and {second:g}; keep one of them"
        )
    warn(f"edges states {len(keys) - len(once)} edges more than once; each counts once", NetworkWarning)
    return once
