"""Arrays in files: NumPy's formats, read without pickle and without memory beyond what a file can hold."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from adfl_stats._files import replacing, size_in_words
from adfl_stats.errors import StorageError

__all__ = ["array_of", "check_expansion", "read_arrays", "write_arrays"]

Arrays = dict[str, NDArray[Any]]

# Behind the archive stands, as its comment, this word and the SHA-256 of everything before the digest.
MARK = b"adfl_stats sha256 "
DIGEST = 64
# Bytes that a compressed file may become. Ours: a dense matrix of 11,500 clients.
MOST_EXPANDED = 1 << 30
# Headers are short; NumPy parses them as Python literals.
LONGEST_HEADER = 10_000
NO_NUMBERS = "it is no NumPy file, or holds objects instead of numbers"
# The same moment in every archive, so that the same results are the same file.
MOMENT = (1980, 1, 1, 0, 0, 0)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an archive of arrays with its digest; the file is whole, or what it was before."""
    buffer = io.BytesIO()
    # Not compressed: numbers hardly shrink, and a reader knows from the file's size what it will hold.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            part = io.BytesIO()
            npy.write_array(part, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", MOMENT), part.getvalue())
        archive.comment = MARK + b"0" * DIGEST
    content = buffer.getbuffer()[:-DIGEST]
    with replacing(path) as file:
        file.write(content)
        file.write(hashlib.sha256(content).hexdigest().encode())


def read_arrays(path: Path | bytes) -> Arrays:
    """Read an archive written by `write_arrays`, or its content.

    Raise StorageError, without its name, unless it is unchanged.
    """
    content = path if isinstance(path, bytes) else path.read_bytes()
    body, digest = content[:-DIGEST], content[-DIGEST:]
    if not body.endswith(MARK):
        raise StorageError("it does not end with the digest of such a file: another kind of file, or cut off")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise StorageError("its content differs from its digest: it was damaged, or changed")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos = archive.infolist()
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise StorageError("it has compressed parts")
            if sum(info.file_size for info in infos) > len(content):
                raise StorageError("its parts are larger than the file")
            return {info.filename.removesuffix(".npy"): _member(archive, info) for info in infos}
    except StorageError:
        raise
    except Exception as error:
        # What zipfile raises for garbage depends on where it is.
        raise StorageError(f"its archive cannot be read ({type(error).__name__})") from error


def digest(*arrays: NDArray[Any]) -> str:
    """Return a few hexadecimal digits that tell other content, shapes or types apart."""
    summed = hashlib.sha256()
    for array in arrays:
        summed.update(f"{array.dtype} {array.shape} ".encode())
        summed.update(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    return summed.hexdigest()[:16]


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        return array_of(file, info.file_size)


def array_of(file: Any, size: int) -> NDArray[Any]:
    """Read an array in NumPy's format that takes `size` bytes with its header; raise StorageError if it is not one."""
    shape, fortran, dtype = _header(file)
    count = 1
    for length in shape:
        count *= int(length)
    left = size - file.tell()
    if dtype.hasobject:
        raise StorageError(NO_NUMBERS)
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise StorageError(f"it announces an array of shape {shape} and type {dtype}, and has {left} bytes for it")
    values = np.frombuffer(file.read(left), dtype, count).reshape(shape, order="F" if fortran else "C")
    return values.copy()


def _header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        header: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file, max_header_size=LONGEST_HEADER)
        return header
    except Exception as error:
        # Headers are Python literals; garbage raises whatever the parser does.
        raise StorageError(NO_NUMBERS) from error


def check_expansion(path: Path) -> None:
    """Raise StorageError where a compressed archive would become larger than `MOST_EXPANDED`."""
    if not zipfile.is_zipfile(path):
        raise StorageError(NO_NUMBERS)
    with zipfile.ZipFile(path) as archive:
        packed = [info for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
        total = sum(info.file_size for info in packed)
    if total > MOST_EXPANDED:
        raise StorageError(
            f"its compressed parts would take {size_in_words(total)} of memory; the most is "
            f"{size_in_words(MOST_EXPANDED)}. Save a sparse matrix (scipy.sparse.save_npz), or do not compress"
        )
