"""Products of a sparse matrix and its transpose with vectors, quick for large matrices as well."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from adfl_stats._types import Apply, Array

__all__ = ["Products"]


# Longer vectors exceed the processor's caches: at 10^6 clients products in panels of so many columns take half the
# time.
PANEL = 2**19


@dataclass(frozen=True)
class Products:
    """Products of a matrix and of its transpose with vectors.

    Attributes
    ----------
    forward, backward : callable
        ``forward(v)`` is W v, and ``backward(v)`` is W'v.
    n : int
        Rows and columns of W.
    nnz : int
        Its entries.
    """

    forward: Apply
    backward: Apply
    n: int
    nnz: int

    @classmethod
    def of(cls, W: sparse.csr_array, reversible: Array | None = None) -> Products:
        """Prepare the products with W.

        Parameters
        ----------
        W : csr_array
            Any square matrix.
        reversible : ndarray (n,), optional
            Weights with ``pi_m w_mk = pi_k w_km``, all one for a symmetric W. Then ``W' = diag(pi) W diag(1/pi)``,
            and W serves for both directions; otherwise its transpose is copied once that is needed.
        """
        large = W.shape[0] > PANEL
        forward = _product(_column_panels(W) if large else [W])
        if reversible is not None:
            pi = reversible
            return cls(forward, lambda v: pi * forward(v / pi), W.shape[0], W.nnz)

        @functools.cache
        def transposed() -> Apply:
            return _product(_transposed_panels(W) if large else [sparse.csr_array(W.T)])

        return cls(forward, lambda v: transposed()(v), W.shape[0], W.nnz)

    def lazy(self, w: float) -> Products:
        """Return the products with ``(1 - w) W + w I``."""
        return Products(
            lambda v: (1.0 - w) * self.forward(v) + w * v,
            lambda v: (1.0 - w) * self.backward(v) + w * v,
            self.n,
            self.nnz,
        )

    def twice(self) -> Products:
        """Return the products with W^2, which is not formed."""
        return Products(
            lambda v: self.forward(self.forward(v)), lambda v: self.backward(self.backward(v)), self.n, 2 * self.nnz
        )


def _product(panels: list[sparse.csr_array]) -> Apply:
    if len(panels) == 1:
        return panels[0].__matmul__

    def apply(v: Array) -> Array:
        out: Array = panels[0] @ v[:PANEL]
        for k, panel in enumerate(panels[1:], start=1):
            out += panel @ v[k * PANEL : (k + 1) * PANEL]
        return out

    return apply


def _column_panels(W: sparse.csr_array) -> list[sparse.csr_array]:
    """Cut W into panels of PANEL columns."""
    panels = []
    for low in range(0, W.shape[1], PANEL):
        high = min(low + PANEL, W.shape[1])
        inside = np.flatnonzero((W.indices >= low) & (W.indices < high))
        begin = np.searchsorted(inside, W.indptr).astype(W.indices.dtype)
        arrays = (W.data[inside], W.indices[inside] - low, begin)
        panels.append(sparse.csr_array(arrays, shape=(W.shape[0], high - low)))
    return panels


def _transposed_panels(W: sparse.csr_array) -> list[sparse.csr_array]:
    """Cut W' into panels of PANEL columns: the transposes of slices of rows of W."""
    return [sparse.csr_array(W[low : low + PANEL].T) for low in range(0, W.shape[0], PANEL)]
