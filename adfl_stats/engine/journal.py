"""Runs of a fit kept in a folder, so that a fit that was ended goes on where it was, to the same bits.

A fit is made again from its beginning; a run that is in the journal is not: its estimates are read. A run with a given
number of rounds is kept while it goes on, too. The file has the rows of all clients, so that it does not matter where
they are, now or then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._archives import read_arrays, write_arrays
from adfl_stats._types import Array
from adfl_stats._warn import warn
from adfl_stats.engine.ledger import Counted, Ledger
from adfl_stats.engine.versions import versions_here
from adfl_stats.errors import StorageError, StorageWarning

if TYPE_CHECKING:
    from adfl_stats.engine.plan import Run

__all__ = ["Journal"]

FORMAT = 2
NAME = "checkpoint.npz"
WORDS = ("step", "rounds", "solver", "needed", "trace")


class Journal:
    """The runs of one fit.

    Parameters
    ----------
    folder : path
        Where the file is, or will be.
    facts : mapping of str
        What the fit is of, by name: a journal of another fit is refused.
    every : float
        Seconds between two writes while a run goes on.
    place : Counted
        Where this part of the clients is, and what left a client; the place of the first client reads and writes.
    clients : int
        How many there are in all places.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str], every: float, place: Counted, clients: int) -> None:
        self._path, self._facts, self._every, self._versions = folder / NAME, dict(facts), every, versions_here()
        self._place, self._ledger = place.inner, place.ledger
        self._numbers = place.clients(clients)
        self._first = bool(self._numbers[0] == 0)
        self._entries: list[dict[str, Any]] = self._read()
        self._current, self._inside, self._written = 0, False, time.monotonic()

    def run(self, begun: Callable[[], Run], start: Array, work: Callable[[], Run]) -> Run:
        """Return the next run of the fit: as the journal has it, or by `work`; a run inside of another is its part.

        Parameters
        ----------
        begun : callable
            Returns an empty run, to be filled from the journal.
        start : ndarray (M, P)
            Its initial estimates.
        work : callable
            Does the run.
        """
        if self._inside:
            return work()
        entry = self._entries[self._current] if self._current < len(self._entries) else None
        if entry is not None and entry["complete"]:
            run = self._filled(begun(), entry)
        else:
            self._inside = True
            run = work()
            self._inside = False
            self._keep(run, np.inf, complete=True)
        run.began = start
        self._current += 1
        return run

    def resume(self, run: Run) -> float | None:
        """Bring a run to where it was when it was kept last; return its limit of moves, None where it begins."""
        if self._current >= len(self._entries):
            return None
        entry = self._entries[self._current]
        self._filled(run, entry)
        return float(entry["limit"])

    def keep(self, run: Run, limit: float) -> None:
        """Write a run that goes on, where it is time for that."""
        waited = float(self._place.largest(np.array([time.monotonic() - self._written])))
        if waited >= self._every:
            self._keep(run, limit, complete=False)

    def remove(self) -> None:
        """Remove the file: the fit is done, and an error here would lose it."""
        if not self._first:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            warn(
                f"checkpoint: {self._path} could not be removed ({error.strerror}); the fit is complete. Remove it, as "
                "the same fit would go on from it",
                StorageWarning,
            )

    def _filled(self, run: Run, entry: Mapping[str, Any]) -> Run:
        for name in WORDS:
            setattr(run, name, entry[name])
        run.trace = [dict(line) for line in entry["trace"]]
        run.theta = np.ascontiguousarray(entry["theta"][self._numbers] if self._first else entry["theta"])
        run.metric = entry["metric"]
        self._ledger.entries = Ledger.of_words(entry["ledger"]).entries
        return run

    def _keep(self, run: Run, limit: float, *, complete: bool) -> None:
        theta = self._place.gather(run.theta)
        entry = {name: getattr(run, name) for name in WORDS} | {"metric": run.metric}
        # The place that writes keeps the rows of all; the others need theirs no more, they have the run.
        entry["theta"] = theta.copy() if self._first else None
        entry |= {"trace": [dict(line) for line in run.trace], "limit": limit, "complete": complete}
        entry["ledger"] = self._ledger.words()
        self._entries[self._current :] = [entry]
        self._written = time.monotonic()
        if self._first:
            self._write()

    def _write(self) -> None:
        arrays: dict[str, Any] = {f"theta{k}": entry["theta"] for k, entry in enumerate(self._entries)}
        arrays |= {f"metric{k}": one["metric"] for k, one in enumerate(self._entries) if one["metric"] is not None}
        plain = [{name: entry[name] for name in (*WORDS, "limit", "complete", "ledger")} for entry in self._entries]
        words = {"format": FORMAT, "facts": self._facts, "versions": self._versions, "runs": plain}
        arrays["json"] = np.frombuffer(json.dumps(words).encode(), dtype=np.uint8)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_arrays(self._path, arrays)
        except OSError as error:
            warn(
                f"checkpoint: {self._path} could not be written ({error.strerror}); the fit goes on, and would begin "
                "from the last one that was",
                StorageWarning,
            )

    def _read(self) -> list[dict[str, Any]]:
        """Return the runs of the file, which the first place reads for all; none where there is no file."""
        words, arrays = self._file() if self._first else (b"", {})
        words = self._place.gather(np.frombuffer(words, dtype=np.uint8)).tobytes()
        if not words:
            return []
        entries = self._checked(json.loads(words))
        for k, entry in enumerate(entries):
            theta = self._sent(arrays.get(f"theta{k}"), entry.pop("theta shape"))
            shape = entry.pop("metric shape")
            entry["theta"] = theta if self._first else theta[self._numbers]
            entry["metric"] = None if shape is None else self._sent(arrays.get(f"metric{k}"), shape)
        return entries

    def _sent(self, array: Array | None, shape: list[int]) -> Array:
        """Return an array that the first place has."""
        return self._place.gather(np.zeros((0, *shape[1:])) if array is None else array)

    def _file(self) -> tuple[bytes, dict[str, Array]]:
        """Return the text of the file, as JSON, and its arrays; instead of the text the reason if it is unusable.

        Nothing where there is no file.
        """
        folder = self._path.parent
        if folder.exists() and not folder.is_dir():
            return json.dumps({"no folder": str(folder)}).encode(), {}
        if not self._path.exists():
            return b"", {}
        # What processes that were killed while they wrote have left.
        for part in folder.glob(f".{NAME}.*.part"):
            with suppress(OSError):
                part.unlink(missing_ok=True)
        try:
            arrays = read_arrays(self._path)
            words = json.loads(arrays.pop("json").tobytes())
            for k, entry in enumerate(words["runs"]):
                metric = arrays.get(f"metric{k}")
                entry["theta shape"] = arrays[f"theta{k}"].shape
                entry["metric shape"] = None if metric is None else metric.shape
        except (StorageError, KeyError, ValueError, OSError) as error:
            return json.dumps({"unusable": str(error)}).encode(), {}
        return json.dumps(words).encode(), arrays

    def _checked(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the runs; raise an error, the same in all places, where they are of another fit or unusable."""
        if "no folder" in words:
            raise NotADirectoryError(
                f"checkpoint is {words['no folder']!r}, a file; give a folder, which need not exist"
            )
        if "unusable" in words:
            raise StorageError(
                f"checkpoint: {self._path} cannot be used: {words['unusable']}. Remove it to begin the fit anew"
            )
        if words.get("format") != FORMAT:
            raise StorageError(
                f"checkpoint: {self._path} has format {words.get('format')}, this version writes {FORMAT}; remove it "
                "to begin the fit anew"
            )
        other = [name for name, value in self._facts.items() if words["facts"].get(name) != value]
        if other:
            raise ValueError(
                f"checkpoint: {self._path} is of another fit: {', '.join(other)} differ(s). Give another folder, or "
                "remove the file"
            )
        other = [name for name, value in self._versions.items() if words["versions"].get(name) != value]
        if other:
            before, now = ({name: kept.get(name) for name in other} for kept in (words["versions"], self._versions))
            warn(
                f"checkpoint: {self._path} was written with other versions: {', '.join(other)}: {before} then, {now} "
                "now. The fit goes on from it; its last bits may be others than without an interruption",
                StorageWarning,
            )
        return list(words["runs"])
