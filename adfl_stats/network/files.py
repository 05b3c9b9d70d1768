"""Networks in files: edge lists, matrices and graphs, told apart by the ending."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from adfl_stats._archives import array_of, check_expansion
from adfl_stats._arguments import listing
from adfl_stats._files import place_of, refuse_absent
from adfl_stats.errors import StorageError
from adfl_stats.network.inputs import edge_file
from adfl_stats.network.matrix_market import read_matrix_market

__all__ = ["Content", "read"]


@dataclass(frozen=True)
class Content:
    """What a file holds: `kind` is "edges", "matrix" or "graph"; `remark` is on weights that were guessed."""

    kind: str
    value: Any
    has_weights: bool
    remark: str = ""


def read(path: str | os.PathLike[str]) -> Content:
    """Return the content of a file, not yet checked as a network."""
    place = place_of(path, "path")
    if place.suffix.lower() not in READERS:
        raise ValueError(
            f"path is {str(place)!r}, whose ending {place.suffix!r} is not known; "
            f"it must be one of {', '.join(READERS)}. Save the network in one of these formats"
        )
    reader, wanted = READERS[place.suffix.lower()]
    refuse_absent(place, "path")
    with place.open("rb") as file:
        empty = not file.read(1)
    if empty:
        raise ValueError(f"path is {str(place)!r}, a file without content; wanted is {wanted}")
    try:
        return reader(place)
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        # What the readers of six formats raise for garbage depends on where it is.
        reason = " ".join(str(error).split()) or type(error).__name__
        # NumPy takes an unknown file for a pickle, and would run it.
        if "pickle" in reason:
            reason = "it is no NumPy file, or holds objects instead of numbers"
        raise StorageError(
            f"path is {str(place)!r}, which cannot be read as {place.suffix.lower()}: {reason}. Wanted is {wanted}"
        ) from None


def _edges(path: Path) -> Content:
    table = edge_file(path)
    if not {"source", "target"} <= set(table.columns):
        raise ValueError(f"its columns are {listing(table.columns)}")
    return Content("edges", table, "weight" in table.columns)


def _matrix(value: Any) -> Content:
    # As a plain bool, which type checkers do not draw conclusions from.
    is_sparse = bool(sparse.issparse(value))
    entries = value.tocoo().data if is_sparse else np.asarray(value)
    if entries.dtype.kind not in "biuf":
        raise ValueError(f"it holds {entries.dtype} instead of real numbers")
    return Content("matrix", value, not bool(np.isin(entries, (0, 1)).all()))


def _npy(path: Path) -> Content:
    with path.open("rb") as file:
        return _matrix(array_of(file, path.stat().st_size))


def _npz(path: Path) -> Content:
    check_expansion(path)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        names = list(arrays)
        if "format" in names:
            return _matrix(_sparse(path))
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} arrays ({listing(names)})")
        return _matrix(arrays[names[0]])


def _sparse(path: Path) -> Any:
    """Return a sparse matrix whose indices are checked: SciPy does not check them, and a file may be damaged."""
    matrix = sparse.load_npz(path)
    if max(matrix.shape) > max(1, matrix.nnz):
        raise ValueError(f"it has shape {matrix.shape} and {matrix.nnz} entries; every client needs one in its row")
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


def _mtx(path: Path) -> Content:
    return _matrix(read_matrix_market(path))


def _graphml(path: Path) -> Content:
    try:
        import networkx
    except ImportError:
        raise ImportError('GraphML files need networkx: pip install "adfl-stats[network]"') from None
    try:
        graph = networkx.read_graphml(path)
    except networkx.NetworkXError as error:
        raise ValueError(str(error)) from None
    given = [value is not None for *_, value in graph.edges(data="weight")]
    return Content("graph", graph, bool(given) and all(given), _remark(graph, given))


def _remark(graph: Any, given: list[bool]) -> str:
    """Return the note on a graph's weights: nothing where equal weights would be the same network."""
    if not any(given):
        return ""
    if not all(given):
        return (
            f"{sum(given)} of {len(given)} edges of the graph have the attribute 'weight'; it is not used, and each "
            "client takes the plain mean over its in-neighbours. Set it on each edge, or drop it"
        )
    first: dict[Any, float] = {}
    for sender, receiver, weight in graph.edges(data="weight"):
        for client in (receiver,) if graph.is_directed() else (sender, receiver):
            if abs(first.setdefault(client, weight) - weight) > 1e-12 * abs(weight):
                return (
                    "all edges of the graph have the attribute 'weight', and clients weight their in-neighbours by it, "
                    "scaled to sum 1; for plain means pass weights=False (--no-weights)"
                )
    return ""


READERS: dict[str, tuple[Callable[[Path], Content], str]] = {
    ".csv": (_edges, "a table with columns source, target and, if edges are weighted, weight"),
    ".npy": (_npy, "a square array of numbers"),
    ".npz": (_npz, "one square array, or a sparse matrix written by scipy.sparse.save_npz"),
    ".mtx": (_mtx, "a square matrix in Matrix Market format"),
    ".graphml": (_graphml, "a graph in GraphML format"),
}
