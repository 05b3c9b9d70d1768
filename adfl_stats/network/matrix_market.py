"""Matrix Market files, read with every index checked: SciPy's reader ends the process on some damaged files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from adfl_stats._types import Array, Ints

__all__ = ["read_matrix_market"]

# Numbers in a line of a coordinate file, by the field that its header names.
FIELDS = {"real": 3, "integer": 3, "double": 3, "pattern": 2}
SYMMETRIES = ("general", "symmetric", "skew-symmetric")


def read_matrix_market(path: Path) -> Any:
    """Return the matrix, sparse or dense; raise ValueError, which says why, where the file does not hold one."""
    with path.open(encoding="utf-8") as file:
        words = file.readline().lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            raise ValueError("its first line is not that of a Matrix Market file")
        layout, field, symmetry = words[2:]
        if layout not in ("coordinate", "array") or field not in FIELDS or symmetry not in SYMMETRIES:
            raise ValueError(f"its header asks for {layout} {field} {symmetry}; wanted are real numbers")
        lines = (line for line in file if line.strip() and not line.startswith("%"))
        shape = [int(word) for word in next(lines, "").split()]
        if len(shape) != (3 if layout == "coordinate" else 2) or min(shape) < 1 or shape[0] != shape[1]:
            raise ValueError(f"its size is {shape}; wanted is as many rows as columns")
        if layout == "array":
            return _dense(_numbers(lines, 1)[:, 0], shape[0], symmetry)
        return _sparse(_numbers(lines, FIELDS[field]), shape, field, symmetry)


def _numbers(lines: Iterable[str], width: int) -> Array:
    rows = [line.split() for line in lines]
    if any(len(row) != width for row in rows):
        raise ValueError(f"its lines do not all have {width} numbers")
    return np.array(rows, dtype=np.float64).reshape(-1, width)


def _dense(values: Array, M: int, symmetry: str) -> Array:
    """Return the matrix of an array file, whose numbers go down the columns, with symmetry from the diagonal on."""
    if symmetry != "general":
        raise ValueError(f"its header asks for an array that is {symmetry}; write a general one, or coordinates")
    if len(values) != M * M:
        raise ValueError(f"it has {len(values)} numbers for {M} rows and columns")
    return values.reshape(M, M, order="F")


def _sparse(entries: Array, shape: list[int], field: str, symmetry: str) -> sparse.csr_array:
    M, _, count = shape
    if len(entries) != count:
        raise ValueError(f"it announces {count} entries and has {len(entries)}")
    if 2 * count < M:
        raise ValueError(f"it announces {M} rows and {count} entries, which leave clients without an entry")
    places: Ints = entries[:, :2].astype(np.int64)
    if (places != entries[:, :2]).any() or places.min(initial=1) < 1 or places.max(initial=1) > M:
        raise ValueError(f"its entries name rows or columns beyond 1 to {M}")
    rows, columns = places.T - 1
    values = np.ones(count) if field == "pattern" else entries[:, 2]
    if symmetry != "general":
        off = rows != columns
        sign = -1.0 if symmetry == "skew-symmetric" else 1.0
        rows, columns, values = (
            np.concatenate([rows, columns[off]]),
            np.concatenate([columns, rows[off]]),
            np.concatenate([values, sign * values[off]]),
        )
    return sparse.csr_array(sparse.coo_array((values, (rows, columns)), shape=(M, M)))
