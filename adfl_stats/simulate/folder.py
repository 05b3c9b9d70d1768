"""The folder of a study: one file for each finished data set, written at once or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adfl_stats.simulate.specification import differences, digest

__all__ = ["Folder", "write_whole"]

NAME = "study.json"
# Bytes that a data set's file may take for each method: 30 numbers and the estimate's error, 20 characters each.
_NUMBERS, _DIGITS = 30, 20


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
        self.path, self.specification = Path(path), specification
        self._claim()

    def _claim(self) -> None:
        """Make the folder this study's, or refuse it."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out is {str(self.path)!r}, which is a file; give a folder")
        about = self.path / NAME
        if about.exists():
            self._compare(about)
        elif self.path.exists() and any(self.path.iterdir()):
            raise ValueError(
                f"out is {str(self.path)!r}, a folder with other files and no study in it; give a new or empty folder"
            )
        try:
            self.path.joinpath("cells").mkdir(parents=True, exist_ok=True)
            # Written again where it is there already: a folder that cannot be written to must fail now.
            write_whole(about, json.dumps({"digest": self.digest, **self.specification}, indent=1))
        except OSError as error:
            raise OSError(
                f"out is {str(self.path)!r}, which cannot be written to ({error.strerror}); give another folder"
            ) from None

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
        found = there.pop("digest", "")
        if found != self.digest:
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
                f"out is {str(self.path)!r}, whose disk has {free / 1e6:.0f} MB left; the study may need "
                f"{wanted / 1e6:.0f} MB. Free some space, or give a folder elsewhere"
            )

    def _file(self, cell: str, replicate: int) -> Path:
        return self.path / "cells" / cell / f"{replicate}.json"

    def save(self, cell: str, replicate: int, rows: list[dict[str, Any]]) -> None:
        """Write the rows of one data set: a reader sees all of them or none, also after a crash."""
        path = self._file(cell, replicate)
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(rows))

    def saved(self, tasks: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """Return the rows of the data sets that are done, by cell and replicate."""
        done = {}
        for cell, replicate in tasks:
            try:
                done[cell, replicate] = json.loads(self._file(cell, replicate).read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                # Not there, or spoilt by something else than us: it is computed again.
                continue
        return done


def write_whole(path: Path, text: str) -> None:
    """Write a file under another name, wait until the disk has it, then give it its own name.

    Renaming replaces a file at once (POSIX), so that no moment exists at which half of it is there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
