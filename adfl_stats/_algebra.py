"""Linear algebra that does not mind the units of the columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

__all__ = ["inverse"]


def inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of a symmetric positive definite matrix, brought to unit diagonal on the way.

    Columns in very different units (an income beside a share) make the matrix look singular without.
    """
    size = np.sqrt(np.diag(matrix))
    scale = np.outer(size, size)
    return np.ascontiguousarray(linalg.inv(matrix / scale) / scale)
