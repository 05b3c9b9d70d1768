"""Data by rank: each rank of MPI holds the rows of its own clients, and no rank holds them all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing, one_of
from adfl_stats._files import place_of
from adfl_stats._types import Ints
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.conversion import Request, Survey
from adfl_stats.data.parquet_parts import FILE, PartConversion, part_files, parts_of
from adfl_stats.data.whole import Whole
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.ranks import Ranks, shares
from adfl_stats.engine.transport import batch_bounds

__all__ = ["RankData", "ranks_of_fit", "without_rows"]

T = TypeVar("T")


class RankData:
    """The rows of this rank's clients, and the names and sizes of all; built by `from_parquet` or `of`.

    A model takes it in the place of a `ClientData`, and its fits are over the ranks. Every rank makes the same calls.

    Parameters
    ----------
    ranks : MPI
        Where the clients are.
    own : ClientData
        Those of this rank; it may have none.
    labels : pandas.Index
        All clients.
    sizes : ndarray (M,) of int64
        Their numbers of rows.
    bounds : ndarray (B + 1,) of int
        The batches of all clients, see `batch_bounds`.
    first : ndarray (size + 1,) of int
        The batches at which the ranks' shares begin, and their number.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ranks = ad.MPI()  # doctest: +SKIP
    >>> data = ad.RankData.from_parquet("stays/*.parquet", "died ~ age", "hospital", ranks)  # doctest: +SKIP
    >>> data  # doctest: +SKIP
    RankData(50 of 200 clients, 61203 of 243377 rows)
    """

    def __init__(self, ranks: MPI, own: ClientData, labels: pd.Index, sizes: Ints, bounds: Ints, first: Ints) -> None:
        self.ranks, self.own, self.labels, self.sizes = ranks, own, labels, sizes
        self.bounds, self._first = bounds, first
        working = first[:-1] < first[1:]
        self.root = int(np.argmax(working))
        team = ranks.team(first)
        # The ranks that have clients, in their order.
        held = np.append(first[:-1][working], first[-1])
        self.place = Ranks(team, bounds, held) if working[ranks.rank] else None

    @classmethod
    def of(cls, data: ClientData | None, ranks: MPI) -> RankData:
        """Build from what each rank holds: its own clients, with all of their rows, or None.

        Clients are in the order of the ranks. Columns must be the same on all ranks: levels of factors have to be
        known before, as in ``C(ward, levels=[...])``.

        Parameters
        ----------
        data : ClientData or None
            The clients of this rank. A slice of a memory map is fine: `ClientData.from_arrays` of the rows of one
            rank reads these alone. Batches of sums begin where ranks do, wherever these begin.
        ranks : MPI
            The ranks.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
        >>> ranks = ad.MPI()  # doctest: +SKIP
        >>> mine = sim.client % ranks.size == ranks.rank  # doctest: +SKIP
        >>> data = ad.ClientData.from_arrays(sim.X[mine], sim.y[mine], sim.client[mine])  # doctest: +SKIP
        >>> model = ad.DecentralizedGLM(ad.RankData.of(data, ranks), ad.networks.complete(20))  # doctest: +SKIP
        """
        if not isinstance(ranks, MPI):
            raise TypeError(f"ranks is a {type(ranks).__name__}; pass ad.MPI()")
        with ranks.together():
            if data is not None and not isinstance(data, ClientData):
                raise TypeError(f"data is a {type(data).__name__}; pass the ClientData of this rank's clients, or None")
            ranks.agree({})
            return spread_data(ranks, data)

    @classmethod
    def from_parquet(
        cls,
        path: str | PathLike[str],
        formula: str,
        client: str | None,
        ranks: MPI,
        *,
        offset: str | None = None,
        exposure: str | None = None,
        weights: str | None = None,
        freq_weights: str | None = None,
        missing: str = "raise",
        order: Iterable[Hashable] | None = None,
    ) -> RankData:
        """Build from a Parquet file, a folder of them, or files named by a pattern; no rank reads all rows twice.

        Where all ranks see the same files, each of them counts the rows of some row groups, all agree on clients,
        sizes and levels of factors, and each rank reads the row groups that have rows of its own clients. Clients and
        columns are then those of `ClientData.from_frame` on all files one after the other, and the bits of fits are
        those of such data. Where ranks see different files, as on machines with disks of their own, a rank's
        clients are those of its files, and clients are in the order of the ranks.

        Parameters
        ----------
        path : str or path
            A file, a folder (its files that end with ``.parquet``, also in folders inside), or a pattern such as
            ``"stays/*.parquet"``. Files are taken in the order of their names.
        formula : str
            As in `ClientData.from_parquet`.
        client : str or None
            The column that says which client a row belongs to. None: each file is a client, named by the file's name
            without its ending.
        ranks : MPI
            The ranks.
        offset, exposure, weights, freq_weights : str, optional
            As in `ClientData.from_parquet`.
        missing : {"raise", "drop"}
            As in `ClientData.from_frame`.
        order : iterable, optional
            The clients in the order that is wanted, as `networks.near_order` has it; for ranks that see the same files.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> ranks = ad.MPI()  # doctest: +SKIP
        >>> data = ad.RankData.from_parquet("stays/*.parquet", "died ~ age", "hospital", ranks)  # doctest: +SKIP
        """
        if not isinstance(ranks, MPI):
            raise TypeError(f"ranks is a {type(ranks).__name__}; pass ad.MPI()")
        one_of(missing, "missing", ("raise", "drop"))
        with ranks.together():
            pattern, wanted = str(place_of(path, "path")), None if order is None else pd.Index(order)
            request = Request(pattern, formula, client or FILE, offset, exposure, weights, freq_weights, missing)
            # Each rank may have a folder of its own.
            given = {name: value for name, value in vars(request).items() if name != "path"} | {"client": client}
            ranks.agree(given | {"order": None if wanted is None else wanted.to_list()})
            return read_files(ranks, request, by_file=client is None, order=wanted)

    @property
    def n_clients(self) -> int:
        """Number of the clients of all ranks."""
        return len(self.labels)

    @property
    def n_rows(self) -> int:
        """Number of the rows of all ranks."""
        return int(self.sizes.sum())

    @cached_property
    def whole(self) -> Whole:
        """All clients, seen from a rank that has some."""
        assert self.place is not None
        return Whole(self.labels, self.sizes, self.place.own.start, self.place.gather)

    def run(self, facts: Mapping[str, Any], work: Callable[[Ranks], T]) -> T:
        """Return what `work` returns on each rank that has clients; the others return that of the first which has.

        Parameters
        ----------
        facts : mapping
            What all ranks must agree on, by name.
        work : callable
            Of a `Transport`.

        Returns
        -------
        object
            What `work` returned.
        """
        return self.ranks.work_at(self.place, self.root, facts, work)

    def __repr__(self) -> str:
        return f"RankData({self.own.n_clients} of {self.n_clients} clients, {self.own.n_rows} of {self.n_rows} rows)"


def ranks_of_fit(data: Any, transport: Any) -> MPI | None:
    """Return the ranks that a fit is spread over, those of the data where these are by rank; None for one process.

    Raises
    ------
    ValueError
        For a transport that data by rank cannot serve.
    """
    if not isinstance(data, RankData):
        return transport if isinstance(transport, MPI) else None
    if transport is not None and not isinstance(transport, MPI):
        raise ValueError(
            f"transport is a {type(transport).__name__}, and the model's data are by rank (RankData); leave it out, or "
            "build the model on a ClientData"
        )
    if transport is not None and not transport.has_ranks_of(data.ranks):
        raise ValueError(
            "transport has other ranks than the model's data, which are by rank (RankData); leave it out, or pass the "
            "ad.MPI() of the data"
        )
    return data.ranks


def spread_data(ranks: MPI, own: ClientData | None) -> RankData:
    """Return the data of ranks each of which has the rows of its own clients, or None; see `MPI.data`."""
    parts = ranks.exchanged(None if own is None else _about(own))
    holders = [part for part in parts if part is not None]
    if not holders:
        raise ValueError("data is None on every rank; at least one of them must have clients")
    for name in ("columns", "the name of the response", "the classes of the response", "offset", "weights"):
        for rank, part in enumerate(parts):
            if part is not None and part[name] != holders[0][name]:
                raise ValueError(
                    f"the ranks disagree about {name}: {holders[0][name]!r} and, on rank {rank}, {part[name]!r}. "
                    "All must have the same; RankData.from_parquet agrees on levels of factors"
                )
    labels = [pd.Index([]) if part is None else part["labels"] for part in parts]
    _refuse_twice(labels)
    everybody = holders[0]["labels"].append([part["labels"] for part in holders[1:]])
    sizes = np.concatenate([part["sizes"] for part in holders])
    ends = np.cumsum([0, *map(len, labels)])
    # Batches begin where they would anywhere, and where ranks do.
    bounds = np.union1d(batch_bounds(len(everybody), int(sizes.sum())), ends)
    template = next(part["template"] for part in holders)
    return RankData(ranks, template if own is None else own, everybody, sizes, bounds, np.searchsorted(bounds, ends))


def read_files(ranks: MPI, request: Request, *, by_file: bool, order: pd.Index | None) -> RankData:
    """Return the data of Parquet files, see `RankData.from_parquet`."""
    paths = part_files(request.path)
    listed = ranks.exchanged([(path.name, path.stat().st_size) for path in paths])
    if not any(listed):
        raise FileNotFoundError(f"path is {request.path!r}; no rank finds a Parquet file there")
    shared = all(files == listed[0] for files in listed)
    if order is not None and not shared:
        raise ValueError(
            f"order was given, and the ranks see different files at {request.path!r}: where clients are, and so their "
            "order, is then given by the files. Leave it out"
        )
    if not paths:
        # The others agree on levels, sizes and columns: as often as in `PartConversion`, and once more below.
        ranks.exchanged([])
        ranks.exchanged(Survey.nothing([]))
        ranks.exchanged([])
        return spread_data(ranks, None)
    parts = parts_of(paths, by_file)
    low, high = ((np.arange(2) + ranks.rank) * len(parts) // ranks.size).tolist() if shared else (0, len(parts))
    scanned = PartConversion(request, parts, slice(low, high), ranks.exchanged, shared=shared, order=order)
    if not shared:
        return spread_data(ranks, scanned.data(slice(None)))
    bounds, first, own = agreed_shares(ranks, scanned.sizes)
    return RankData(ranks, scanned.data(own), scanned.labels, scanned.sizes, bounds, first)


def agreed_shares(ranks: MPI, sizes: Ints) -> tuple[Ints, Ints, slice]:
    """Return batches, the batches at which ranks begin, and the clients of this rank, where all see all clients."""
    bounds = batch_bounds(len(sizes), int(sizes.sum()))
    first = shares(len(bounds) - 1, ranks.size)
    low, high = bounds[first[ranks.rank : ranks.rank + 2]]
    return bounds, first, slice(int(low), int(high))


def _about(own: ClientData) -> dict[str, Any]:
    """Return what ranks exchange about their data."""
    return {
        "columns": list(own.names),
        "the name of the response": own.y_name,
        "the classes of the response": own.classes,
        "offset": own.linear_offset is not None,
        "weights": own.row_weights is not None,
        "labels": own.labels,
        "sizes": own.sizes,
        "template": without_rows(own),
    }


def without_rows(data: ClientData) -> ClientData:
    """Return the columns, names and formula of data, without clients."""
    return assembled(
        data,
        X=np.zeros((0, data.X.shape[1])),
        y=np.zeros(0),
        offsets=np.zeros(1, dtype=np.int64),
        labels=data.labels[:0],
        linear_offset=None if data.linear_offset is None else np.zeros(0),
        row_weights=None if data.row_weights is None else np.zeros(0),
        row_labels=None,
        row_order=None,
        cuts=None,
    )


def _refuse_twice(labels: list[pd.Index]) -> None:
    """Raise ValueError where a client is on two ranks."""
    seen: dict[Any, int] = {}
    twice: dict[Any, tuple[int, int]] = {}
    for rank, own in enumerate(labels):
        for label in own:
            if label in seen:
                twice[label] = (seen[label], rank)
            seen[label] = rank
    if twice:
        label, (one, other) = next(iter(twice.items()))
        raise ValueError(
            f"{len(twice)} client(s) have rows on two ranks: {listing(twice)} ({label!r} on ranks {one} and {other}). "
            "A client's rows must be on one rank; bring them together, or give clients names of their own"
        )
