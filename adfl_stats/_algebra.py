"""Linear algebra that does not mind the units of the columns, on one matrix or on stacks of many small ones."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from adfl_stats._types import Array, Ints, Mask

__all__ = ["inverse", "roots_of_inverses", "stacked_cholesky", "unit_diagonal"]


def inverse(matrix: Array) -> Array:
    """Return the inverse of a symmetric positive definite matrix, brought to unit diagonal on the way.

    Columns in very different units (an income beside a share) make the matrix look singular without.
    """
    size = np.sqrt(np.diag(matrix))
    scale = np.outer(size, size)
    return np.ascontiguousarray(linalg.inv(matrix / scale) / scale)


def unit_diagonal(matrices: Array) -> tuple[Array, Array]:
    """Return nonnegative definite matrices (C, P, P) scaled to unit diagonals, and the scales (C, P).

    A column of zeros stays one, and has scale zero.
    """
    size = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    unit = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0.0)
    scaled = matrices * unit[:, :, None]
    scaled *= unit[:, None, :]
    return scaled, unit


def stacked_cholesky(matrices: Array, least: float) -> tuple[Array, Mask]:
    """Return the Cholesky factors of a stack (C, P, P), and which matrices have one with a diagonal above `least`.

    NumPy's own gives up on the whole stack where one of its matrices has no factor.
    """
    factor, full = np.zeros_like(matrices), np.ones(len(matrices), dtype=np.bool_)
    for j in range(matrices.shape[1]):
        column = matrices[:, j:, j] - (factor[:, j:, :j] @ factor[:, j, :j, None])[:, :, 0]
        large = column[:, 0] > least**2
        # What follows a small pivot is not used, but must stay finite.
        factor[:, j:, j] = column / np.sqrt(np.where(large, column[:, 0], np.inf))[:, None]
        full &= large
    return factor, full


def roots_of_inverses(matrices: Array) -> tuple[Array, Ints]:
    """Return F (C, P, P) with F F' = J^+ on the range of J, for nonnegative definite J (C, P, P), and the ranks of J.

    F'JF is the identity but for zeros in the columns of F that J has no rank for. The columns of J are
    brought to one scale first, or their units would decide about its rank. What is not finite has NaN and rank 0.
    """
    scaled, unit = unit_diagonal(matrices)
    # The squared pivots are what a unit column has left beside those before it.
    factor, full = stacked_cholesky(scaled, 1e-4)
    roots, ranks = _transposed_inverses(factor), np.full(len(matrices), matrices.shape[1])
    finite = np.isfinite(scaled).all(axis=(1, 2))
    roots[~finite], ranks[~finite] = np.nan, 0
    if len(short := np.flatnonzero(~full & finite)):
        values, vectors = np.linalg.eigh(scaled[short])
        keep = values > np.maximum(values[:, -1:], 0.0) * values.shape[1] * 1e-12
        roots[short] = vectors * np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)[:, None, :]
        ranks[short] = keep.sum(axis=1)
    roots *= unit[:, :, None]
    return roots, ranks


def _transposed_inverses(factor: Array) -> Array:
    """Return the inverses of lower triangles (C, P, P), transposed; of no use where a diagonal has a zero."""
    found = np.zeros_like(factor)
    for j in range(factor.shape[1]):
        diagonal = np.where(factor[:, j, j] > 0.0, factor[:, j, j], np.inf)
        found[:, j, j] = 1.0 / diagonal
        found[:, :j, j] = (found[:, :j, :j] @ factor[:, j, :j, None])[:, :, 0] / -diagonal[:, None]
    return found
