"""The array types of the package."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Indices", "Ints", "Mask"]

Array: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
# What scipy's sparse matrices index with: int32 or int64.
Indices: TypeAlias = NDArray[np.signedinteger]
