"""A Parquet file of any size becomes a memory map grouped by client, once: what was written is opened again."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats.data.client_data import ClientData
from adfl_stats.data.columns import coded_response
from adfl_stats.data.conversion import Conversion, Request
from adfl_stats.data.formula import formula_response, parsed_formula

__all__ = ["client_data"]


def client_data(request: Request, directory: str | PathLike[str] | None, progress: bool) -> ClientData:
    """Return the data on the memory map, converting the file first where that was not done or it has changed."""
    source = request.source
    home = Path(directory) if directory is not None else source.with_name(source.name + ".adfl")
    folder = home / request.key
    with _opened(request) as file:
        state = source.stat()
        stamp = {"size": state.st_size, "modified": state.st_mtime_ns}
        if not _is_current(folder, stamp):
            home.mkdir(parents=True, exist_ok=True)
            # Under another name until it is complete: an interrupted conversion is never taken for one.
            with tempfile.TemporaryDirectory(dir=home, prefix="partial-") as partial:
                with _bar(2 * file.metadata.num_rows, progress) as bar:
                    Conversion(request, file, bar).write(Path(partial) / "done", stamp)
                shutil.rmtree(folder, ignore_errors=True)
                (Path(partial) / "done").rename(folder)
    return _read(folder, request)


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
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm; install it with: pip install 'adfl-stats[parquet]'") from None
    with tqdm(total=total, desc="converting", unit="row", unit_scale=True, leave=False) as bar:
        yield bar


def _is_current(folder: Path, stamp: dict[str, int]) -> bool:
    try:
        return bool(json.loads((folder / "about.json").read_text())["stamp"] == stamp)
    except FileNotFoundError:
        return False


def _read(folder: Path, request: Request) -> ClientData:
    """Return the data of a converted file, read-only."""
    about = json.loads((folder / "about.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in about["arrays"]}
    offsets = np.load(folder / "offsets.npy")
    offsets.flags.writeable = False
    parsed = parsed_formula(request.formula)
    witnesses = pd.read_parquet(folder / "witnesses.parquet")
    response = formula_response(parsed, witnesses)
    return ClientData(
        **arrays,
        offsets=offsets,
        labels=pd.Index(pd.read_parquet(folder / "labels.parquet")["label"].rename(None)),
        names=about["names"],
        y_name=str(response.name),
        client_name=request.client,
        classes=coded_response(response)[1] if about["labelled"] else None,
        spec=parsed.rhs.get_model_matrix(witnesses, na_action="ignore").model_spec,
        n_dropped=about["n_dropped"],
    )
