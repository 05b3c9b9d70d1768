"""Parquet files in parts, each read where it is needed: places agree on levels and clients, and read some of these."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._types import Array, Ints
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.conversion import Conversion, Request, Survey

__all__ = ["FILE", "Part", "PartConversion", "part_files", "parts_of"]

# The column of clients where each file is one.
FILE = "file"


@dataclass(frozen=True)
class Part:
    """A file, or one row group of it.

    Attributes
    ----------
    path : Path
        The file.
    group : int or None
        The row group; None for all of them.
    by_file : bool
        Whether the file's name is its client.
    """

    path: Path
    group: int | None
    by_file: bool

    @cached_property
    def file(self) -> Any:
        """The file, opened; with a message that names it where that fails."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(
                f"the file {str(self.path)!r} cannot be read as Parquet: {str(error).splitlines()[0]}"
            ) from None

    @property
    def schema_arrow(self) -> Any:
        """Names and types of the columns."""
        import pyarrow as pa

        schema = self.file.schema_arrow
        return schema.append(pa.field(FILE, pa.string())) if self.by_file else schema

    @property
    def num_row_groups(self) -> int:
        """How many row groups this part has."""
        return int(self.file.num_row_groups) if self.group is None else 1

    def read_row_group(self, group: int, columns: list[str]) -> Any:
        """Return a table of one of the row groups."""
        import pyarrow as pa

        read = [name for name in columns if not (self.by_file and name == FILE)]
        table = self.file.read_row_group(group if self.group is None else self.group, columns=read)
        if self.by_file:
            table = table.append_column(FILE, pa.array([self.path.stem] * len(table), pa.string()))
        return table.select(columns)


def part_files(path: str) -> list[Path]:
    """Return the files of a path, a folder or a pattern, in the order of their names; none where there are none."""
    if Path(path).is_dir():
        return sorted(Path(path).rglob("*.parquet"))
    return sorted(Path(found) for found in glob.glob(path, recursive=True) if Path(found).is_file())


def parts_of(paths: Sequence[Path], by_file: bool) -> list[Part]:
    """Return the parts of files: the row groups of a single one, else whole files."""
    if len(paths) == 1 and not by_file:
        whole = Part(paths[0], None, by_file)
        return [Part(paths[0], group, by_file) for group in range(whole.num_row_groups)]
    return [Part(path, None, by_file) for path in paths]


class PartConversion(Conversion):
    """Levels and clients of all parts, from a pass over some of them here and over others elsewhere.

    Parameters
    ----------
    request : Request
        The arguments.
    parts : sequence of Part
        All parts that can be read here.
    scanned : slice
        Those of them that are counted here.
    allgather : callable
        From what one place brings to what all bring, in their order.
    shared : bool
        Whether all places can read the same parts: clients are then those of all places, else those of ours.
    order : pandas.Index, optional
        The clients of all places in the order that is wanted, where all can read the same parts.
    """

    def __init__(
        self,
        request: Request,
        parts: Sequence[Part],
        scanned: slice,
        allgather: Callable[[Any], list[Any]],
        *,
        shared: bool,
        order: pd.Index | None = None,
    ) -> None:
        self._order = order
        self._parts, self._scanned, self._allgather, self._shared = parts, parts[scanned], allgather, shared
        self._wanted: pd.Index | None = None
        super().__init__(request, parts[0], None)

    def _varying_columns(self) -> list[str]:
        """Return the columns whose levels matter to any place."""
        return sorted({name for names in self._allgather(super()._varying_columns()) for name in names})

    def _scan(self) -> Survey:
        """Return what all places find; rows of clients and their numbers are those of all, or of ours."""
        clients, mine = [], Survey.nothing(self.used)
        for part in self._scanned:
            self._check_types(part)
            self.file = part
            one = super()._scan()
            clients.append(one.labels)
            self._add(mine, one)
        survey, places = Survey.nothing(self.used), self._allgather(mine)
        for one in places:
            self._add(survey, one)
        if not self._shared:
            survey.labels, survey.counts = mine.labels, mine.counts
        if survey.labels is None:
            raise ValueError(f"{self.request.table} has no rows without missing values; no row is left to fit")
        if self._order is not None:
            self._reorder(survey, self._order)
        self._ranges = self._allgather([_range(survey.labels, labels) for labels in clients])
        return survey

    def _reorder(self, survey: Survey, order: pd.Index) -> None:
        """Bring the clients into another order; raise ValueError where it is not of these clients."""
        assert survey.labels is not None
        places = survey.labels.get_indexer(order)
        if len(order) != len(survey.labels) or (np.sort(places) != np.arange(len(order))).any():
            raise ValueError(
                f"order must be the {len(survey.labels)} clients of {self.request.table}, each once; found are "
                f"{len(order)}, of which the data have {len(np.unique(places[places >= 0]))}"
            )
        survey.labels, survey.counts = survey.labels[places], survey.counts[places]

    def _add(self, survey: Survey, other: Survey) -> None:
        """Add what was found in rows behind those before."""
        if other.labels is not None:
            survey.count(other.labels, other.counts)
        for column, levels in other.levels.items():
            survey.learn(column, levels)
        if other.examples is not None:
            survey.examples = self._examples(survey.examples, other.examples)
        survey.holes, survey.dropped = survey.holes + other.holes, survey.dropped + other.dropped

    def _check_types(self, part: Part) -> None:
        """Raise ValueError, which names the file, where columns are not those of the first file."""
        schema = part.schema_arrow
        other = [
            name
            for name in self.used
            if name not in schema.names or schema.field(name).type != self.schema.field(name).type
        ]
        if other:
            raise ValueError(
                f"the file {part.path.name!r} has no column {listing(other)}, or with another type than in "
                f"{self._parts[0].path.name!r}; all files must have the same columns"
            )

    def data(self, own: slice) -> ClientData:
        """Return the rows of some consecutive clients, from the parts that have them."""
        ranges = [pair for place in self._ranges for pair in place] if self._shared else self._ranges_here()
        low, high, _ = own.indices(len(self.labels))
        labels, sizes = self.labels[own], self.sizes[own]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        arrays = {name: _Rows(np.zeros(shape)) for name, shape in self.shapes(int(offsets[-1])).items()}
        everybody, self.labels, self._wanted = self.labels, labels, labels
        self.file = _Several(
            [part for part, (least, most) in zip(self._parts, ranges, strict=True) if least < high and most >= low]
        )
        self._scatter(arrays, offsets)
        self.labels, self._wanted = everybody, None
        for rows in arrays.values():
            rows.values.flags.writeable = False
        return assembled(
            **{name: rows.values for name, rows in arrays.items()},
            offsets=offsets,
            labels=labels,
            names=self.names,
            y_name=str(self.parsed.lhs),
            client_name=self.request.client,
            classes=self.classes,
            spec=self.spec,
            formula=self.parsed,
            n_dropped=self.n_dropped,
        )

    def _ranges_here(self) -> list[tuple[int, int]]:
        return [(0, len(self.labels))] * len(self._parts)

    def _frames(self, columns: list[str], count: bool = True) -> Iterator[pd.DataFrame]:
        """Yield rows; in the second pass those of the wanted clients."""
        for frame in super()._frames(columns, count):
            yield frame if self._wanted is None else frame.loc[frame[self.request.client].isin(self._wanted)]


class _Several:
    """Parts that are read one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._groups = [(part, group) for part in parts for group in range(part.num_row_groups)]

    @property
    def num_row_groups(self) -> int:
        """How many row groups the parts have."""
        return len(self._groups)

    def read_row_group(self, group: int, columns: list[str]) -> Any:
        """Return a table of one of the row groups."""
        part, own = self._groups[group]
        return part.read_row_group(own, columns)


class _Rows:
    """Rows in memory that are written as those of a `MapFile` are."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def write(self, place: Ints, rows: Array) -> None:
        """Write rows to their places."""
        self.values[place] = rows


def _range(labels: pd.Index, some: pd.Index | None) -> tuple[int, int]:
    """Return the least and the largest place of some clients; a range without clients where there are none."""
    if some is None:
        return len(labels), -1
    places = labels.get_indexer(some)
    return int(places.min()), int(places.max())
