"""Files of numbers that are written in pieces, checked by blocks, and mapped into memory when they are read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from adfl_stats._files import BLOCK, checksums, force, reserve
from adfl_stats._types import Array, Ints
from adfl_stats.errors import StorageError

__all__ = ["MapFile", "about", "check", "opened", "sealed"]

ABOUT = "about.json"


class MapFile:
    """A file in NumPy's format for float64 rows that come in any order; the space for all of them is taken first."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self._width = 8 * int(np.prod(shape[1:]))
        self._file = path.open("xb", buffering=0)
        try:
            npy.write_array_header_1_0(self._file, {"descr": "<f8", "fortran_order": False, "shape": shape})
            self._first = self._file.tell()
            reserve(self._file, self._first + shape[0] * self._width)
        except BaseException:
            self._file.close()
            raise

    def write(self, place: Ints, rows: Array) -> None:
        """Write rows to their places, neighbours in one piece."""
        data = np.ascontiguousarray(rows, dtype="<f8").data.cast("B")
        ends = np.concatenate([np.flatnonzero(np.diff(place) != 1) + 1, [len(place)]])
        low = 0
        for high in ends.tolist():
            self._file.seek(self._first + int(place[low]) * self._width)
            piece = data[low * self._width : high * self._width]
            while piece:
                piece = piece[self._file.write(piece) :]
            low = high

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def sealed(folder: Path, known: dict[str, Any]) -> None:
    """Have a folder's files on the disk, and write what is known about them, with sizes and checksums."""
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb+") as file:
            force(file)
        files[path.name] = {"size": path.stat().st_size, "crc": checksums(path)}
    text = json.dumps(known | {"files": files})
    with (folder / ABOUT).open("xb") as file:
        file.write(json.dumps({"about": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode())
        force(file)
    force(folder)


def about(folder: Path) -> dict[str, Any]:
    """Return what is known about a folder's files; raise StorageError unless it is as it was written."""
    try:
        outer = json.loads((folder / ABOUT).read_bytes())
        text = outer["about"]
        if hashlib.sha256(text.encode()).hexdigest() != outer["sha256"]:
            raise StorageError(f"{ABOUT} differs from its checksum")
        known: dict[str, Any] = json.loads(text)
        return known
    except StorageError:
        raise
    except FileNotFoundError:
        raise StorageError(f"{ABOUT} is missing") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StorageError(f"{ABOUT} cannot be read") from None


def check(folder: Path, files: dict[str, Any]) -> None:
    """Raise StorageError, which names the file and the place, unless every file has its size and checksums."""
    for name, wanted in files.items():
        try:
            size = (folder / name).stat().st_size
        except FileNotFoundError:
            raise StorageError(f"{name} is missing") from None
        if size != wanted["size"]:
            raise StorageError(f"{name} has {size} bytes, {wanted['size']} were written")
        pairs = zip(checksums(folder / name), wanted["crc"], strict=True)
        block = next((k for k, (now, then) in enumerate(pairs) if now != then), None)
        if block is not None:
            last = min((block + 1) * BLOCK, size)
            raise StorageError(f"{name} differs from its checksum between the bytes {block * BLOCK} and {last}")


def opened(folder: Path, name: str) -> Array:
    """Return an array on a memory map, read-only."""
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray))
