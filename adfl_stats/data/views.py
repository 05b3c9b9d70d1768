"""Read-only views, and private copies of memory maps."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array

__all__ = ["changeable", "frozen"]


def changeable(array: Array) -> Array:
    """Return a copy; of a memory map a private one, whose pages are copied only where they are written to."""
    root: Any = array
    while isinstance(root, np.ndarray) and not isinstance(root.base, mmap.mmap):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not Path(root.filename).exists():
        return array.copy()
    begin = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    private: Array = np.memmap(root.filename, np.float64, "c", begin, array.shape).view(np.ndarray)
    return private


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view; the user's own array keeps its flags."""
    view = array.view()
    view.flags.writeable = False
    return view
