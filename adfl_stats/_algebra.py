"""Linear algebra invariant to the units of the columns, on one matrix or on stacks of many small ones."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import blas, lapack

from adfl_stats._types import Array, Ints, Mask

__all__ = [
    "congruences",
    "inverse",
    "joined",
    "lower_solutions",
    "quadratic_forms",
    "root_of_inverse",
    "roots_of_inverses",
    "row_major",
    "row_squares",
    "squares_about",
    "stacked_cholesky",
    "summed_products",
    "unit_diagonal",
    "whitened",
    "whitening",
]


# A unit column adds to the rank where more than this is left of it beside those before it. Ours: its square, 1e-8, is
# half of the digits.
LEAST_PIVOT = 1e-4
# From this dimension on, a call of LAPACK for each matrix costs less than a loop over the columns of all. Ours.
LARGE = 24
# Entries of differences that are held at a time. Ours: 8 MB, so that a copy of the estimates of large networks is not.
BLOCK = 1 << 20


def row_major(values: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy, in memory row by row.

    NumPy and BLAS choose how they add by the strides of an array, those of axes of length one included, and so do the
    last bits of products and sums. Slices of arrays in row-major order have the strides of such arrays by themselves.
    """
    return values if values.strides == _row_strides(values.shape, values.itemsize) else values.copy(order="C")


@lru_cache(maxsize=4096)
def _row_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of a new array in row-major order."""
    strides, each = [], itemsize
    for length in reversed(shape):
        strides.append(each)
        each *= max(length, 1)
    return tuple(reversed(strides))


def row_squares(values: Array, centre: Array | float) -> Array:
    """Return the squared distances (M,) of the rows of values (M, P) from a centre (P,) or from its rows (M, P)."""
    step, rows = max(BLOCK // values.shape[1], 1), np.ndim(centre) == 2
    parts = [slice(low, low + step) for low in range(0, len(values), step)]
    away = (np.sum((values[at] - (centre[at] if rows else centre)) ** 2, axis=1) for at in parts)  # type: ignore[index]
    return np.concatenate(list(away))


def squares_about(values: Array, centre: Array) -> Array:
    """Return the sum (P,) over the rows of values (M, P) of their squared differences from a centre (P,)."""
    if values.size <= BLOCK:
        return np.asarray(row_major((values - centre) ** 2).sum(axis=0))
    total = np.zeros_like(values[0])
    for row in values:
        total += (row - centre) ** 2
    return total


def summed_products(left: Array, right: Array) -> Array:
    """Return the sum over k of left_k right_k, for left (K,) or (K, a) and right (K, ...), as (...) or (a, ...).

    Its bits depend on the values alone, see `row_major`.
    """
    first = row_major(left)
    # One array twice is a symmetric product, at half the cost.
    second = first if right is left else row_major(right)
    out = first.T @ second.reshape(len(second), math.prod(second.shape[1:]))
    return np.asarray(out.reshape(left.shape[1:] + right.shape[1:]))


def quadratic_forms(vectors: Array, matrices: Array) -> Array:
    """Return v_m'A_m v_m (M,), for vectors (M, P) and matrices (M, P, P).

    An `einsum` of all three adds in another order where M is one.
    """
    return np.asarray(np.einsum("mi,mi->m", (vectors[:, None, :] @ matrices)[:, 0], vectors))


def inverse(matrix: Array) -> Array:
    """Return the inverse of a symmetric positive definite matrix, brought to unit diagonal on the way.

    Without scaling, columns in very different units (an income and a share) would look singular. The errors of a
    triangular root leave the directions as they are, which matters for columns with large means.
    """
    scaled, unit = unit_diagonal(matrix[None])
    try:
        root = _triangular_root(scaled[0])
    except linalg.LinAlgError:
        return np.ascontiguousarray(linalg.inv(scaled[0]) * np.outer(unit, unit))
    return np.asarray((root @ root.T) * np.outer(unit, unit))


def root_of_inverse(matrix: Array) -> Array:
    """Return F with FF' the inverse of a symmetric positive definite matrix, brought to unit diagonal on the way.

    Every direction counts, however little the matrix has along it: eigenvalues below rounding are taken as that.
    """
    scaled, unit = unit_diagonal(matrix[None])
    try:
        root = _triangular_root(scaled[0])
    except linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled[0])
        root = vectors / np.sqrt(np.maximum(values, len(values) * np.finfo(np.float64).eps * values[-1]))
    return np.asarray(unit[0][:, None] * root)


def _triangular_root(matrix: Array) -> Array:
    """Return the upper triangle F with FF' the inverse of a positive definite matrix."""
    return np.asarray(lapack.dtrtri(linalg.cholesky(matrix))[0])


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

    NumPy's own gives up on the whole stack where one of its matrices has no factor: those that have none are found
    column by column. The bits of a factor do not depend on the other matrices.
    """
    try:
        factor = np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        factor, definite = _by_columns(matrices, least)
        factor[definite] = _lapack_factors(matrices[definite])
    # A factor with NaN is none either.
    full = np.asarray((np.diagonal(factor, axis1=1, axis2=2) > least).all(axis=1))
    if not full.all():
        factor[~full] = _by_columns(matrices[~full], least)[0]
    return factor, full


def _lapack_factors(matrices: Array) -> Array:
    """Return the Cholesky factors of a stack in which nearly all matrices have one, NaN for others."""
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        if len(matrices) == 1:
            return np.full_like(matrices, np.nan)
        half = len(matrices) // 2
        return np.concatenate([_lapack_factors(matrices[:half]), _lapack_factors(matrices[half:])])


def congruences(factors: Array, middles: Array, *, triangular: bool) -> Array:
    """Return F D F' for stacks (C, P, P) of F and of symmetric D; F may be known to be upper triangles.

    Products with a triangle take half of the operations, which from `LARGE` on is worth a call for each.
    """
    if not triangular or factors.shape[1] < LARGE:
        return np.asarray(factors @ (middles @ factors.transpose(0, 2, 1)))
    out = np.empty_like(middles)
    for k, (upper, middle) in enumerate(zip(factors, middles, strict=True)):
        right = blas.dtrmm(1.0, upper, middle, side=1, trans_a=1, lower=0)
        out[k] = blas.dtrmm(1.0, upper, right, side=0, lower=0, overwrite_b=1)
    return out


def _by_columns(matrices: Array, least: float) -> tuple[Array, Mask]:
    """Return what `stacked_cholesky` does."""
    factor, full = np.zeros_like(matrices), np.ones(len(matrices), dtype=np.bool_)
    for j in range(matrices.shape[1]):
        column = matrices[:, j:, j] - (factor[:, j:, :j] @ factor[:, j, :j, None])[:, :, 0]
        large = column[:, 0] > least**2
        # What follows a small pivot is not used, but must stay finite.
        factor[:, j:, j] = column / np.sqrt(np.where(large, column[:, 0], np.inf))[:, None]
        full &= large
    return factor, full


def lower_solutions(lower: Array, values: Array) -> Array:
    """Return L^-1 v for stacks of lower triangles (C, P, P) and vectors (C, P), by forward substitution."""
    out = np.empty_like(values)
    if values.shape[1] >= LARGE:
        # The transpose of a lower triangle in C's order is an upper one in Fortran's.
        for k, (one, value) in enumerate(zip(lower, values, strict=True)):
            out[k] = lapack.dtrtrs(one.T, value, lower=0, trans=1)[0]
        return out
    for j in range(values.shape[1]):
        known = np.einsum("ij,ij->i", lower[:, j, :j], out[:, :j])
        out[:, j] = (values[:, j] - known) / lower[:, j, j]
    return out


def roots_of_inverses(matrices: Array) -> tuple[Array, Ints]:
    """Return F (C, P, P) with F F' = J^+ on the range of J, for nonnegative definite J (C, P, P), and the ranks of J.

    F'JF is the identity but for zeros in the columns of F that J has no rank for. The columns of J are
    brought to one scale first, or their units would decide about its rank. What is not finite has NaN and rank 0.
    """
    roots, _, ranks = whitening(matrices)
    return roots, ranks


def whitening(matrices: Array) -> tuple[Array, Array, Ints]:
    """Return F of `roots_of_inverses`, the factors F'J (C, P, P), whose squares are J on its range, and the ranks."""
    scaled, unit = unit_diagonal(matrices)
    # The squared pivots are what a unit column has left beside those before it.
    factor, full = stacked_cholesky(scaled, LEAST_PIVOT)
    roots, ranks = _transposed_inverses(factor), np.full(len(matrices), matrices.shape[1])
    factors = _unscaled(factor, unit)
    finite = np.isfinite(scaled).all(axis=(1, 2))
    roots[~finite], factors[~finite], ranks[~finite] = np.nan, np.nan, 0
    short = np.flatnonzero(~full & finite)
    if len(short):
        values, vectors = np.linalg.eigh(scaled[short])
        keep = values > np.maximum(values[:, -1:], 0.0) * values.shape[1] * 1e-12
        roots[short] = vectors * np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)[:, None, :]
        ranks[short] = keep.sum(axis=1)
    roots *= unit[:, :, None]
    factors[short] = roots[short].transpose(0, 2, 1) @ matrices[short]
    return roots, factors, ranks


def whitened(matrices: Array, vectors: Array) -> tuple[Array, Array, Ints]:
    """Return F'v of vectors v (C, P), factors and ranks, with F of `whitening`, which is not formed where it can be."""
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    # The factor of a matrix of unit diagonal is that of the matrix but for the rows' units: no scaled copy is needed.
    factor, full = stacked_cholesky(matrices, 0.0)
    pivots = np.diagonal(factor, axis1=1, axis2=2)
    full &= (pivots > LEAST_PIVOT * np.sqrt(diagonal)).all(axis=1) & np.isfinite(diagonal).all(axis=1)
    if full.all():
        return lower_solutions(factor, vectors), factor.transpose(0, 2, 1), np.full(len(full), len(factor[0]))
    out, ranks = np.empty_like(vectors), np.full(len(full), factor.shape[1])
    out[full] = lower_solutions(factor[full], vectors[full])
    roots, factors, ranks[~full] = whitening(matrices[~full])
    out[~full], factor[~full] = (vectors[~full][:, None, :] @ roots)[:, 0], factors.transpose(0, 2, 1)
    return out, factor.transpose(0, 2, 1), ranks


def _unscaled(factor: Array, unit: Array) -> Array:
    """Return the transposed factors of matrices that `unit_diagonal` brought to unit diagonals, in their place."""
    factor *= np.divide(1.0, unit, out=np.zeros_like(unit), where=unit > 0.0)[:, :, None]
    return np.asarray(factor.transpose(0, 2, 1))


def _transposed_inverses(factor: Array) -> Array:
    """Return the inverses of lower triangles (C, P, P), transposed; of no use where a diagonal has a zero."""
    P, regular = factor.shape[1], (np.diagonal(factor, axis1=1, axis2=2) > 0.0).all(axis=1)
    inverses = np.zeros_like(factor)
    if P >= LARGE and regular.any():
        # The transpose of a lower triangle in C's order is an upper one in Fortran's.
        inverses[regular] = [lapack.dtrtri(one.T)[0] for one in factor[regular]]
        if not regular.all():
            inverses[~regular] = _transposed_inverses(factor[~regular])
        return inverses
    for j in range(P):
        diagonal = np.where(factor[:, j, j] > 0.0, factor[:, j, j], np.inf)
        inverses[:, j, j] = 1.0 / diagonal
        inverses[:, :j, j] = (inverses[:, :j, :j] @ factor[:, j, :j, None])[:, :, 0] / -diagonal[:, None]
    return inverses


def joined(parts: list[Array]) -> Array:
    """Return arrays one below the other; a single one as it is, without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
