"""A Parquet file of any size as a memory map grouped by client, which is written once and then reused."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._files import force, locked, place_of, size_in_words
from adfl_stats._progress import progress_bar
from adfl_stats._warn import warn
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.columns import coded_response
from adfl_stats.data.conversion import Conversion, Request
from adfl_stats.data.formula import parsed_formula
from adfl_stats.data.map_files import about, check, opened, sealed
from adfl_stats.data.model_matrix import formula_design, formula_response
from adfl_stats.errors import StorageError, StorageWarning

__all__ = ["client_data"]

PARTIAL = "partial-"


def client_data(request: Request, directory: str | PathLike[str] | None, progress: bool) -> ClientData:
    """Return the data on the memory map, converting the file first where that was not done or it has changed."""
    source = request.source
    beside = source.with_name(source.name + ".adfl")
    home = beside if directory is None else place_of(directory, "directory", folder=True)
    folder = home / request.key
    with _opened(request) as file:
        stamp = _stamp(source)
        if folder.is_dir():
            _remove_partial(home)
            with locked(home, exclusive=False), suppress(_NotThere):
                return _read(folder, request, stamp)
        home.mkdir(parents=True, exist_ok=True)
        # Two processes at once: the second waits, and opens what the first has written.
        with locked(home, exclusive=True) as alone:
            if alone:
                _remove(_partial(home))
            try:
                return _read(folder, request, stamp)
            except _NotThere as reason:
                if reason.damage:
                    warn(
                        f"the converted copy of {request.table} in {folder} is damaged: {reason.damage}. It is "
                        "converted again",
                        StorageWarning,
                    )
            with _bar(2 * file.metadata.num_rows, progress) as bar:
                _convert(Conversion(request, file, bar), home, folder, stamp)
            return _read(folder, request, stamp)


class _NotThere(Exception):  # noqa: N818
    """No copy of the file as it is now; with `damage` where one is damaged."""

    def __init__(self, damage: str = "") -> None:
        super().__init__(damage)
        self.damage = damage


def _stamp(source: Path) -> dict[str, int]:
    """Return what tells a changed file: its size, its time, and the CRC-32 of its end, where Parquet has its index."""
    state = source.stat()
    with source.open("rb") as file:
        file.seek(max(0, state.st_size - (1 << 16)))
        return {"size": state.st_size, "modified": state.st_mtime_ns, "end": zlib.crc32(file.read())}


def _convert(conversion: Conversion, home: Path, folder: Path, stamp: dict[str, int]) -> None:
    """Write the copy under another name until it is complete: an interrupted conversion is never taken for one."""
    request = conversion.request
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=PARTIAL, ignore_cleanup_errors=True) as partial:
            done = Path(partial) / "done"
            done.mkdir()
            about = conversion.write(done)
            sealed(done, about | {"stamp": stamp, "request": asdict(request)})
            shutil.rmtree(folder, ignore_errors=True)
            done.rename(folder)
            force(home)
    except OSError as error:
        # Only what was written has an error number: those of the table are errors of values.
        wanted = size_in_words(conversion.n_bytes)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = f"; {size_in_words(shutil.disk_usage(home).free)} are free there" if full else ""
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno) if error.errno else error}: the copy of {request.table} needs {wanted} in "
            f"{str(home)!r}{advice}. Nothing of it was kept; pass another directory=",
        ) from error


def _partial(home: Path) -> list[Path]:
    return list(home.glob(f"{PARTIAL}*"))


def _remove(folders: list[Path]) -> None:
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


def _remove_partial(home: Path) -> None:
    """Remove what killed conversions left behind, unless another process holds the lock."""
    if _partial(home):
        with locked(home, exclusive=True, wait=False) as alone:
            if alone:
                _remove(_partial(home))


@contextmanager
def _opened(request: Request) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError(
            "ClientData.from_parquet needs pyarrow; install it with: pip install 'adfl-stats[parquet]'"
        ) from None
    if not request.source.is_file():
        raise FileNotFoundError(f"path is {request.path!r}; there is no such file")
    try:
        file = pq.ParquetFile(request.source)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{request.table} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    with file:
        if file.metadata.num_rows == 0:
            raise ValueError(f"{request.table} has no rows; at least one is wanted")
        yield file


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Any]:
    if not progress:
        yield None
        return
    with progress_bar(total, "converting", "row", "parquet", unit_scale=True) as bar:
        yield bar


def _read(folder: Path, request: Request, stamp: dict[str, int]) -> ClientData:
    """Return the data of a converted file, read-only; raise `_NotThere` unless all of it is as it was written."""
    if not folder.is_dir():
        raise _NotThere
    try:
        known = about(folder)
        if known["stamp"] != stamp:
            raise _NotThere
        if known["request"] != asdict(request):
            raise StorageError("it is that of other arguments")
        check(folder, known["files"])
    except StorageError as error:
        raise _NotThere(str(error)) from None
    arrays = {name: opened(folder, name) for name in known["arrays"]}
    offsets = np.load(folder / "offsets.npy")
    offsets.flags.writeable = False
    parsed = parsed_formula(request.formula)
    examples = pd.read_parquet(folder / "witnesses.parquet")
    response = formula_response(parsed, examples, request.table)
    # Checked when they were written, and unchanged since.
    return assembled(
        **arrays,
        offsets=offsets,
        labels=pd.Index(pd.read_parquet(folder / "labels.parquet")["label"].rename(None)),
        names=known["names"],
        y_name=str(response.name),
        client_name=request.client,
        classes=coded_response(response)[1] if known["labelled"] else None,
        spec=formula_design(parsed, examples, request.table, "ignore").model_spec,
        formula=parsed,
        n_dropped=known["n_dropped"],
    )
