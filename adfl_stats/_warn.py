"""Warnings that name the user's own line, however deep in the package they are issued."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from types import FrameType

__all__ = ["warn"]

PACKAGE = str(Path(__file__).parent)


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the nearest line outside of the package among those that led here."""
    level = 1
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of the package, or code that a dataclass of it has generated."""
    file = frame.f_code.co_filename
    return file.startswith(PACKAGE) or (
        file == "<string>" and str(frame.f_globals.get("__name__")).startswith("adfl_stats.")
    )
