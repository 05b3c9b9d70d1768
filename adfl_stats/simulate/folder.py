"""The folder of a study: one file for each finished data set, written at once or not at all."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adfl_stats._files import place_of, replacing
from adfl_stats.simulate.specification import differences, digest

__all__ = ["Folder", "write_whole"]

NAME = "study.json"
# Bytes that a data set's file may take for each method: 30 numbers and the estimate's error, 20 characters each.
_NUMBERS, _DIGITS = 30, 20
# Seconds after which a file that is being written has been left behind; the file of a data set takes milliseconds.
_STALE = 3600.0


class Folder:
    """Where a study keeps its finished data sets; opening it refuses another study's folder.

    Parameters
    ----------
    path : path
        A new or empty folder, or that of the same study, which is then resumed.
    specification : dict
        What the study consists of, as `specification.described` returns it, and the version of the package.
    """

    def __init__(self, path: str | Path, specification: dict[str, Any]) -> None:
        self.path, self.specification = place_of(path, "out", folder=True), specification
        self._claim()

    def _claim(self) -> None:
        """Make the folder this study's, or refuse it."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out is {str(self.path)!r}, which is a file; give a folder")
        about = self.path / NAME
        if about.exists():
            self._compare(about)
        elif self.path.exists() and any(not self._left_by_a_claim(entry) for entry in self.path.iterdir()):
            raise ValueError(
                f"out is {str(self.path)!r}, a folder with other files and no study in it; give a new or empty folder"
            )
        try:
            self.path.joinpath("cells").mkdir(parents=True, exist_ok=True)
            # Written again where it is there already: a folder that cannot be written to must fail now.
            write_whole(about, json.dumps({"digest": self.digest, **self.specification}, indent=1))
            self._remove_parts()
        except OSError as error:
            raise OSError(
                f"out is {str(self.path)!r}, which cannot be written to ({error.strerror}); give another folder"
            ) from None

    @staticmethod
    def _left_by_a_claim(entry: Path) -> bool:
        """Return whether a run that was killed as it began leaves this behind: it is no file of somebody else's."""
        part = entry.name.startswith(f".{NAME}.") and entry.suffix == ".part"
        return part or (entry.name == "cells" and entry.is_dir() and not any(entry.iterdir()))

    def _remove_parts(self) -> None:
        """Remove what runs that were killed had begun to write; another that is running now is not disturbed."""
        for part in self.path.rglob(".*.part"):
            if part.stat().st_mtime < time.time() - _STALE:
                part.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        """The hash of the specification."""
        return digest(self.specification)

    def _compare(self, about: Path) -> None:
        try:
            there = json.loads(about.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"out is {str(self.path)!r}, whose {NAME} cannot be read ({error}); give a new folder"
            ) from None
        earlier = there.pop("digest", "")
        if earlier != self.digest:
            other = differences(there, json.loads(json.dumps(self.specification)))
            raise ValueError(
                f"out is {str(self.path)!r}, which holds another study; they differ in {', '.join(other)}. "
                "Give a new folder, or run the study that is there"
            )

    def check_space(self, files: int, methods: int, coefficients: int) -> None:
        """Raise OSError before the work where the disk cannot hold the results."""
        wanted = files * (4096 + methods * (_NUMBERS + coefficients) * _DIGITS)
        free = shutil.disk_usage(self.path).free
        if free < wanted:
            raise OSError(
                f"out is {str(self.path)!r}, whose disk has {free / 1e6:.3g} MB left; the study may need "
                f"{wanted / 1e6:.3g} MB. Free some space, or give a folder elsewhere"
            )

    def _file(self, cell: str, replicate: int) -> Path:
        return self.path / "cells" / cell / f"{replicate}.json"

    def save(self, cell: str, replicate: int, rows: list[dict[str, Any]]) -> None:
        """Write the rows of one data set: a reader sees all of them or none, also after a crash."""
        path = self._file(cell, replicate)
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, json.dumps(rows))
        except OSError as error:
            raise OSError(
                f"out is {str(self.path)!r}, which could not be written to ({error.strerror}). What was finished "
                "before is kept: run the study again to go on"
            ) from error

    def saved(self, tasks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return the rows of the data sets that are done, by cell and replicate."""
        done = {}
        for cell, replicate in tasks:
            try:
                done[cell, replicate] = json.loads(self._file(cell, replicate).read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                # Missing or damaged: it is computed again.
                continue
        return done


def write_whole(path: Path, text: str) -> None:
    """Write a file of text, which is whole or not there at any moment."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
