"""Atomic writes: a file is written beside its place, forced to the disk, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["checksums", "force", "locked", "place_of", "refuse_absent", "replacing", "reserve", "size_in_words"]

# Bytes that share a checksum. Ours: small beside memory, and 2 MB of checksums for a terabyte.
BLOCK = 1 << 22
# What file systems answer that cannot reserve or lock: writes then report what goes wrong.
UNABLE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.ENOLCK}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` once the block has ended without an error.

    Whatever happens meanwhile, `path` is what it was or what it is to be.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        # A pipe or a device has no place to be taken.
        with place.open("wb") as direct:
            yield direct
        return
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            if place.exists():
                with suppress(OSError):
                    shutil.copymode(place, beside)
            yield file
            force(file)
        beside.replace(place)
        force(place.parent)
    except OSError as error:
        words = error.strerror or str(error)
        raise type(error)(error.errno, f"{words}; the file was not written", str(path)) from error
    finally:
        beside.unlink(missing_ok=True)


def place_of(path: str | os.PathLike[str], name: str, *, folder: bool = False) -> Path:
    """Return a path; raise an error that names the argument where it is none, or has no name and is no `folder`."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{name} is a {type(path).__name__}; give the name of a file, as text or a pathlib.Path")
    if not folder and not Path(path).name:
        raise IsADirectoryError(f"{name} is {os.fspath(path)!r}, a folder; give a file")
    return Path(path)


def refuse_absent(path: str | os.PathLike[str], name: str) -> None:
    """Raise an OSError that names the argument where its file is not there, or is a folder."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"{name} is {os.fspath(path)!r}: No such file or directory")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{name} is {os.fspath(path)!r}, a folder; give a file")


def force(what: BinaryIO | Path) -> None:
    """Have a file, or the names in a folder, on the disk before going on."""
    if not isinstance(what, Path):
        what.flush()
        os.fsync(what.fileno())
        return
    # Windows has no descriptors of folders, and keeps names by itself.
    with suppress(PermissionError):
        descriptor = os.open(what, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in UNABLE:
                raise
        finally:
            os.close(descriptor)


def reserve(file: BinaryIO, size: int) -> None:
    """Take so many bytes of disk for a file; raise OSError where there are not as many."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in UNABLE:
                raise
    if size > shutil.disk_usage(os.fspath(file.name)).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


def checksums(path: Path) -> list[int]:
    """Return the CRC-32 of each block of a file."""
    sums, buffer = [], bytearray(min(BLOCK, max(1, path.stat().st_size)))
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            # A read may be short before the end of a file.
            while count < len(view) and (more := file.readinto(view[count:])):
                count += more
            sums.append(zlib.crc32(view[:count]))
    return sums


@contextmanager
def locked(folder: Path, *, exclusive: bool, wait: bool = True) -> Iterator[bool]:
    """Yield whether the folder is locked: for us alone (`exclusive`), or together with other readers.

    Other processes wait. The lock ends with the process, however it ends. There is none where another process has
    one and we do not `wait`, and where the system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    kind = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, kind)
            done = True
        except OSError as error:
            if error.errno not in UNABLE | {errno.EWOULDBLOCK}:
                raise
            done = False
        yield done
    finally:
        os.close(descriptor)


def size_in_words(count: float) -> str:
    """Return a number of bytes as text.

    Examples
    --------
    >>> size_in_words(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
