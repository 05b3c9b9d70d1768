"""The rows of a command's data: from a text file, a Parquet file, or a folder or pattern of Parquet files."""

from __future__ import annotations

import errno
import glob
import os
from pathlib import Path

import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats.data.parquet_parts import part_files

__all__ = ["read_rows", "read_whole"]

PARQUET = (".parquet", ".pq")


def read_whole(data: str, client: str) -> bool:
    """Return whether each rank of MPI reads all rows: of text files.

    Also where clients are numbers in a Parquet file, whose names are text only once they are read.
    """
    path = Path(data)
    if path.is_dir() or (glob.has_magic(data) and not path.is_file()):
        return False
    # Of a file that is not there `read_rows` says so.
    if path.suffix.lower() not in PARQUET or not path.is_file():
        return True
    try:
        from pyarrow import parquet, types
    except ImportError:
        # Of which `read_rows` says what to do.
        return True
    schema = parquet.read_schema(path)
    if client not in schema.names:
        return True
    kind = schema.field(client).type
    return not (types.is_string(kind) or types.is_large_string(kind))


def read_rows(path: str, client: str, sep: str | None = None) -> pd.DataFrame:
    """Return the rows of one file or several, one after the other; the IDs of clients are text, as they are written."""
    parts = [] if Path(path).is_file() else part_files(path)
    if not parts and (Path(path).is_dir() or glob.has_magic(path)) and not Path(path).is_file():
        raise FileNotFoundError(f"no Parquet file is found at {path}; give a file, a folder of .parquet or a pattern")
    suffix = Path(path).suffix.lower()
    try:
        if parts:
            frame = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
        else:
            frame = pd.read_parquet(path) if suffix in PARQUET else _text(path, suffix, client, sep)
    except ImportError:
        raise ImportError("Parquet files need pyarrow; install it with: pip install 'adfl-stats[parquet]'") from None
    except FileNotFoundError:
        # pandas says the name alone.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    if client not in frame:
        raise ValueError(
            f"{path} has no column {client!r}, which --client names; its columns are {listing(frame.columns, 12)}"
        )
    return frame.assign(**{client: frame[client].map(str, na_action="ignore")})


def _text(path: str, suffix: str, client: str, sep: str | None) -> pd.DataFrame:
    # Only an empty field of the IDs is missing: "NA" may be the name of a client.
    separator = sep or ("\t" if suffix in (".tsv", ".tab") else ",")
    frame = pd.read_csv(path, sep=separator, dtype={client: str}, keep_default_na=True)
    if client in frame:
        ids = pd.read_csv(path, sep=separator, usecols=[client], dtype=str, keep_default_na=False)[client]
        frame[client] = ids.where(ids != "")
    return frame
