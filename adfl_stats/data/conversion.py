"""The conversion of a Parquet file: two passes over its rows, batch by batch.

The first counts the clients' rows and keeps a few rows, the examples, that show every level of every
factor: the formula's specification is built on these. The second applies it to one batch after another
and writes the rows to their clients' places in the files that are mapped into memory later. They are written as
files, in space that was reserved: a disk that is full or fails then raises, where a memory map would end the process.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from adfl_stats._arguments import float64_array, listing
from adfl_stats._frames import widened
from adfl_stats._types import Array, Ints
from adfl_stats.data.columns import coded_response, offset_and_exposure
from adfl_stats.data.formula import columns_used, parsed_formula, refuse_holes
from adfl_stats.data.map_files import MapFile
from adfl_stats.data.model_matrix import (
    check_columns,
    check_terms,
    evaluated,
    formula_design,
    formula_offset,
    formula_response,
)

__all__ = ["Conversion", "Request"]


# Rows in one piece, and rows that show the levels of factors, which are held in memory. Ours: some 25 MB each with 50
# columns.
BATCH_ROWS = 1 << 16
MOST_WITNESSES = 100_000
# Raised when the files that are written change their meaning.
LAYOUT = 4


@dataclass(frozen=True)
class Request:
    """The arguments of `ClientData.from_parquet` that decide what is written."""

    path: str
    formula: str
    client: str
    offset: str | None
    exposure: str | None
    weights: str | None
    freq_weights: str | None
    missing: str

    @property
    def source(self) -> Path:
        """The file."""
        return Path(self.path)

    @property
    def table(self) -> str:
        """How messages call the file."""
        return f"the file {self.source.name!r}"

    @property
    def key(self) -> str:
        """A name for these arguments; the same arguments have the same."""
        return hashlib.sha256(json.dumps([LAYOUT, asdict(self)]).encode()).hexdigest()[:16]


@dataclass
class Survey:
    """What a pass over rows finds: clients and their rows, levels of factors, rows that show them, missing values."""

    labels: pd.Index | None
    counts: Ints
    levels: dict[str, pd.Index]
    examples: pd.DataFrame | None
    holes: pd.Series
    dropped: int

    @classmethod
    def nothing(cls, columns: list[Any]) -> Survey:
        """Return the survey of no rows with these columns."""
        return cls(None, np.zeros(0, dtype=np.int64), {}, None, pd.Series(0, index=columns), 0)

    def count(self, clients: pd.Index, counts: Ints) -> None:
        """Add rows of clients, in the order of their first appearance."""
        known = clients[:0] if self.labels is None else self.labels
        self.labels = clients if self.labels is None else known.append(clients.difference(known, sort=False))
        self.counts = np.concatenate([self.counts, np.zeros(len(self.labels) - len(self.counts), dtype=np.int64)])
        self.counts[self.labels.get_indexer(clients)] += counts

    def learn(self, column: str, levels: pd.Index) -> None:
        """Add levels of a factor, in their order."""
        known = self.levels.get(column)
        self.levels[column] = levels if known is None else known.append(levels.difference(known, sort=False))


class RowFile(Protocol):
    """Where rows are written to their places: a file, or memory."""

    def write(self, place: Ints, rows: Array) -> None:
        """Write rows to their places."""


class Conversion:
    """What the first pass learns about the file, and the second writes."""

    def __init__(self, request: Request, file: Any, bar: Any) -> None:
        self.request, self.file, self.bar = request, file, bar
        self.parsed = parsed_formula(request.formula)
        self.schema = file.schema_arrow
        others = (request.client, request.offset, request.exposure, request.weights, request.freq_weights)
        self.used = columns_used(self.parsed, others, self.schema.names, request.table)
        self.varying = self._varying_columns()
        self._settle(self._scan())
        design = formula_design(self.parsed, self.examples, request.table, "ignore")
        check_terms(design, self.parsed, self.examples, request.table)
        self.spec = design.model_spec
        self.names = [str(name) for name in self.spec.column_names]
        self.classes = coded_response(formula_response(self.parsed, self.examples, request.table))[1]

    def _varying_columns(self) -> list[str]:
        """Return the columns whose levels matter; refuse terms that need all rows at once."""
        head = self._head()
        check_columns(self.parsed, head, self.request.table)
        spec = formula_design(self.parsed, head, self.request.table, "ignore").model_spec
        if spec.transform_state:
            self._refuse_terms(map(str, spec.transform_state))
        # The same rows without those before them: a lag or a mean in the formula gives other values.
        half = head.iloc[len(head) // 2 :]
        among, alone = (spec.get_model_matrix(rows, na_action="ignore").loc[half.index] for rows in (head, half))
        same = ((among == alone) | (among.isna() & alone.isna())).all(axis=0)
        if not same.all():
            self._refuse_terms(map(str, same.index[~same]))
        factors = {f for f, (kind, _) in spec.encoder_state.items() if kind.value == "categorical"}
        varying = {v for f, names in spec.factor_variables.items() if f.expr in factors for v in map(str, names)}
        response = str(self.parsed.lhs)
        if response in self.schema.names and not pd.api.types.is_numeric_dtype(head[response].dtype):
            varying.add(response)
        return sorted(varying & set(self.used))

    def _head(self) -> pd.DataFrame:
        """Return some of the first rows without missing values, with all columns."""
        for frame in self._frames(self.schema.names, count=False):
            head = frame.dropna(subset=self.used).iloc[:1000]
            if len(head):
                return head
        raise ValueError(f"{self.request.table} has missing values in every row; no row is left to fit")

    def _refuse_terms(self, terms: Iterable[str]) -> None:
        # In an order of their own: all ranks say the same.
        raise ValueError(
            f"the terms {listing(sorted(terms))} of the formula have values that depend on other rows; from_parquet "
            "sees one batch of rows at a time. Compute them in the file, or use from_frame"
        )

    # ---- first pass ------------------------------------------------------------------------------

    def _scan(self) -> Survey:
        """Return what one pass over the rows finds."""
        survey = Survey.nothing(self.used)
        for frame in self._frames(self.used):
            missing = frame.isna()
            bad = missing.any(axis=1)
            survey.holes, survey.dropped = survey.holes + missing.sum(), survey.dropped + int(bad.sum())
            kept = _without(frame, bad)
            if not len(kept):
                continue
            codes, seen = pd.factorize(kept[self.request.client])
            survey.count(pd.Index(seen), np.bincount(codes, self._copies(kept)).astype(np.int64))
            for column in self.varying:
                if isinstance(kept[column].dtype, pd.CategoricalDtype):
                    survey.learn(column, kept[column].cat.categories)
            survey.examples = self._examples(survey.examples, kept)
        return survey

    def _settle(self, survey: Survey) -> None:
        """Take over what was found in all rows."""
        if self.request.missing == "raise":
            refuse_holes(survey.holes, survey.dropped, self.request.table)
        assert survey.labels is not None  # `_head` found a row
        assert survey.examples is not None
        # A whole column with holes is read as floats, so its levels are named 1.0, not 1.
        types = {name: np.float64 for name in self.used if survey.holes[name] and self._is_integer(name)}
        # Levels that no row has would be columns of zeros.
        seen = {name: categories[categories.isin(survey.examples[name])] for name, categories in survey.levels.items()}
        self.dtypes = types | {name: pd.CategoricalDtype(categories) for name, categories in seen.items()}
        self.labels = survey.labels.astype(np.float64) if self.request.client in types else survey.labels
        self.sizes, self.n_dropped = survey.counts, survey.dropped
        self.examples = self._typed(survey.examples.reset_index(drop=True))

    def _examples(self, before: pd.DataFrame | None, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the examples so far with those rows of a batch that show a level for the first time."""
        plain = _as_types(frame, {name: object for name in self.varying})
        known = plain.iloc[:1] if before is None else before
        first = pd.Series(False, index=frame.index)
        for column in self.varying:
            first |= ~plain[column].duplicated() & ~plain[column].isin(known[column])
        shown = pd.concat([known, plain.loc[first]])
        if len(shown) > MOST_WITNESSES:
            worst = max(self.varying, key=lambda column: shown[column].nunique())
            raise ValueError(
                f"the column {worst!r} is used as a factor and has more than {MOST_WITNESSES} levels; use it as a "
                "number, or group its levels"
            )
        return shown

    def _is_integer(self, name: str) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_integer(self.schema.field(name).type))

    def _typed(self, frame: pd.DataFrame) -> pd.DataFrame:
        inferred = {name: values.infer_objects().dtype for name, values in frame.items() if values.dtype == object}
        return _as_types(frame, inferred | {name: kind for name, kind in self.dtypes.items() if name in frame})

    # ---- second pass -----------------------------------------------------------------------------

    @property
    def n_bytes(self) -> int:
        """About how many bytes are written."""
        request, columns = self.request, len(self.names) + 1
        columns += request.offset is not None or request.exposure is not None
        columns += request.weights is not None
        return 8 * columns * int(self.sizes.sum())

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the arrays and tables, and return what else is to be known of them."""
        offsets, shapes = np.concatenate([[0], np.cumsum(self.sizes)]), self.shapes(int(self.sizes.sum()))
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(closing(MapFile(folder / f"{name}.npy", shape)))
                for name, shape in shapes.items()
            }
            self._scatter(files, offsets)
        np.save(folder / "offsets.npy", offsets.astype(np.int64))
        self.labels.to_frame(index=False, name="label").to_parquet(folder / "labels.parquet")
        self.examples.to_parquet(folder / "witnesses.parquet")
        labelled = self.classes is not None
        return {"names": self.names, "arrays": list(shapes), "n_dropped": self.n_dropped, "labelled": labelled}

    def shapes(self, n: int) -> dict[str, tuple[int, ...]]:
        """Return the arrays of n rows that the arguments ask for."""
        shapes: dict[str, tuple[int, ...]] = {"X": (n, len(self.names)), "y": (n,)}
        if self.request.offset is not None or self.request.exposure is not None or self.parsed.offsets:
            shapes["linear_offset"] = (n,)
        if self.request.weights is not None:
            shapes["row_weights"] = (n,)
        return shapes

    def _scatter(self, files: Mapping[str, RowFile], offsets: Ints) -> None:
        """Write every row to its client's place."""
        following = offsets[:-1].copy()
        for frame in self._frames(self.used):
            kept = self._typed(_without(frame, frame.isna().any(axis=1)))
            if not len(kept):
                continue
            for rows in self._pieces(kept):
                codes = self.labels.get_indexer(pd.Index(rows[self.request.client]))
                order = np.argsort(codes, kind="stable")
                order = np.repeat(order, self._copies(rows)[order])
                clients, starts, counts = np.unique(codes[order], return_index=True, return_counts=True)
                place = np.repeat(following[clients] - starts, counts) + np.arange(len(order))
                following[clients] += counts
                for name, values in self._arrays(rows).items():
                    files[name].write(place, values[order])

    def _pieces(self, frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """Yield the rows of a batch, so many at a time that their copies are about a batch."""
        if self.request.freq_weights is None:
            yield frame
            return
        piece = np.cumsum(self._copies(frame)) // BATCH_ROWS
        for number in np.unique(piece):
            yield frame.loc[piece == number]

    def _copies(self, frame: pd.DataFrame) -> Ints:
        """Return how many like rows each row stands for."""
        name = self.request.freq_weights
        if name is None:
            return np.ones(len(frame), dtype=np.int64)
        values = self._checked(frame, name)
        wrong = (values < 1.0) | (values != np.rint(values))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"the column {name!r} must be whole numbers of at least 1, as it counts like rows; row "
                f"{frame.index[row]} of {self.request.table} has {values[row]:g}. Leave out rows that count zero "
                "times; for other weights use weights="
            )
        return np.asarray(values, dtype=np.int64)

    def _arrays(self, frame: pd.DataFrame) -> dict[str, Array]:
        """Return a batch's share of the arrays, in the file's order of rows."""
        request, rows = self.request, frame.index
        design = evaluated(self.spec, self.parsed, frame, request.table, "ignore")
        out = {
            "X": np.asarray(design, dtype=np.float64),
            "y": self._coded(formula_response(self.parsed, frame, request.table)),
        }
        for column_name, values in zip(self.names, out["X"].T, strict=True):
            self._check(values, column_name, rows)
        self._check(out["y"], str(self.parsed.lhs), rows)
        column = {name: self._checked(frame, name) for name in (request.offset, request.exposure, request.weights)}
        for name in filter(None, (request.exposure, request.weights)):
            if (column[name] <= 0.0).any():
                row = int(np.argmax(column[name] <= 0.0))
                value = column[name][row]
                raise ValueError(
                    f"the column {name!r} must be positive; row {rows[row]} of {request.table} has {value:g}"
                )
        linear_offset = self._linear_offset(frame, column[request.offset], column[request.exposure])
        optional = {"linear_offset": linear_offset, "row_weights": column[request.weights]}
        return out | {name: values for name, values in optional.items() if values is not None}

    def _linear_offset(self, frame: pd.DataFrame, offset: Any, exposure: Any) -> Array | None:
        """Return offset, exposure and the formula's ``offset()`` terms together."""
        by_formula = formula_offset(self.parsed, frame, self.request.table)
        if by_formula is None:
            return offset_and_exposure(offset, exposure, len(frame))
        self._check(by_formula, "offset()", frame.index)
        return offset_and_exposure(by_formula + (0.0 if offset is None else offset), exposure, len(frame))

    def _coded(self, response: pd.Series) -> Array:
        if self.classes is None:
            return float64_array(response, str(self.parsed.lhs))
        return pd.Categorical(response, categories=self.classes).codes.astype(np.float64)

    def _checked(self, frame: pd.DataFrame, name: str | None) -> Any:
        if name is None:
            return None
        values = float64_array(frame[name], f"the column {name!r}")
        self._check(values, name, frame.index)
        return values

    def _check(self, values: Array, name: str, rows: pd.Index) -> None:
        bad = ~np.isfinite(values)
        if bad.any():
            first = int(np.argmax(bad))
            raise ValueError(
                f"the column {name!r} has NaN or infinite values; the first is {values[first]} in row {rows[first]} "
                f"of {self.request.table}. Remove or impute such rows before the fit"
            )

    # ---- both ------------------------------------------------------------------------------------

    def _frames(self, columns: list[str], count: bool = True) -> Iterator[pd.DataFrame]:
        """Yield the file's rows in batches, with their numbers in the file as index."""
        import pyarrow as pa

        decimals = [name for name in columns if pa.types.is_decimal(self.schema.field(name).type)]
        first = 0
        for batch in self._tables(columns):
            frame = batch.to_pandas(ignore_metadata=True)
            frame.index = pd.RangeIndex(first, first + len(frame))
            first += len(frame)
            client = frame[self.request.client]
            if isinstance(client.dtype, pd.CategoricalDtype):
                frame[self.request.client] = client.astype(client.cat.categories.dtype)
            for name in columns:
                # In its place, without a copy of the others.
                if (wide := widened(frame[name])).dtype != frame[name].dtype:
                    frame[name] = wide
            yield _as_types(frame, dict.fromkeys(decimals, np.float64))
            if count and self.bar is not None:
                self.bar.update(len(frame))

    def _tables(self, columns: list[str]) -> Iterator[Any]:
        """Yield the row groups in slices; `iter_batches` would hold on to the groups it has left behind."""
        import pyarrow as pa

        for group in range(self.file.num_row_groups):
            table = self.file.read_row_group(group, columns=columns).select(columns)
            for low in range(0, len(table), BATCH_ROWS):
                yield table.slice(low, BATCH_ROWS)
                # Functions inside formulaic refer to themselves and to their rows, which would stay until Python next
                # looks for such circles.
                gc.collect(1)
            del table
            # The pool would keep what the groups leave behind.
            pa.default_memory_pool().release_unused()


# Pandas before 3 copies a frame also where nothing changes, and a batch would be in memory many times.


def _without(frame: pd.DataFrame, bad: pd.Series) -> pd.DataFrame:
    """Return the rows that are not bad."""
    return frame.loc[~bad] if bad.any() else frame


def _as_types(frame: pd.DataFrame, types: dict[str, Any]) -> pd.DataFrame:
    """Return the frame with columns of other types."""
    return frame.astype(types) if any(frame[name].dtype != kind for name, kind in types.items()) else frame
