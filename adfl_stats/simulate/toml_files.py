"""Studies in TOML files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from adfl_stats._arguments import one_of

__all__ = ["read_study"]

Made = TypeVar("Made")

KEYS = (
    "methods", "networks", "designs", "corruptions", "shares", "sizes", "replicates", "seed", "fit", "inference",
)  # fmt: skip


def read_study(path: Path, make: Callable[..., Made]) -> Made:
    """Return what `make` makes of the arguments in a file; messages name the file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}; give a TOML file that can be read") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8, which TOML files are in") from None
    try:
        spec = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path}: {error}{_key_near(text, str(error))}. See the TOML example of: adfl-stats study --help"
        ) from None
    for key in spec:
        if key not in KEYS:
            try:
                one_of(key, "key", KEYS)
            except ValueError as error:
                raise ValueError(f"{path}, line {_line(text, key)}: {error}") from None
    for label, table in spec.get("networks", {}).items() if isinstance(spec.get("networks"), dict) else ():
        if isinstance(table, dict) and isinstance(table.get("file"), str):
            # A file beside the specification is found from everywhere.
            spec["networks"][label] = table | {"file": str(path.parent / table["file"])}
    try:
        return make(**spec)
    except (ValueError, TypeError, OSError) as error:
        # Messages begin with the argument ("methods") or the one of its values that is meant ("method 'mine'").
        at = next((f", line {_line(text, key)}" for key in spec if str(error).startswith(key.removesuffix("s"))), "")
        kind = type(error) if type(error) in (ValueError, TypeError) else ValueError
        raise kind(f"{path}{at}: {error}") from error


def _line(text: str, key: str) -> int:
    """Return the line on which a key is first set, from 1."""
    wanted = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(key)}[\"']?\s*[=\].]")
    return next((k for k, line in enumerate(text.splitlines(), start=1) if wanted.match(line)), 1)


def _key_near(text: str, message: str) -> str:
    """Return the key that was being read where the parser gave up."""
    at = re.search(r"line (\d+)", message)
    lines = text.splitlines()
    for line in reversed(lines[: int(at[1]) if at else len(lines)]):
        if key := re.match(r"\s*\[*\s*([\w.\"'-]+)\s*[=\]]?", line):
            return f", near the key {key[1]!r}"
    return ""
