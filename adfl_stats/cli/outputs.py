"""Output files and the output stream of a command, checked before the work begins."""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
from pathlib import Path

__all__ = ["figure_file", "output_file", "page_file", "print_any_label", "table_file"]

# What matplotlib's non-interactive backends write.
FIGURES = (".png", ".svg", ".pdf", ".eps", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")


def output_file(text: str) -> str:
    """Return a path that can be written to; a ``type`` of argparse, which then says what is wrong, with status 2.

    Examples
    --------
    >>> output_file("table.csv")
    'table.csv'
    """
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is {'a folder' if text else 'empty'}; name a file to write")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: permission denied")
    return text


def figure_file(text: str) -> str:
    """Return a path of a figure that can be written to; its suffix names the format.

    Examples
    --------
    >>> figure_file("network.png")
    'network.png'
    """
    if Path(text).suffix.lower() not in FIGURES:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in a format of figures: {', '.join(FIGURES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'")
    return output_file(text)


def table_file(text: str) -> str:
    """Return a path of a table that can be written to.

    Examples
    --------
    >>> table_file("table.csv")
    'table.csv'
    """
    suffix = Path(text).suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .csv or .parquet")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise argparse.ArgumentTypeError(
            "Parquet files need pyarrow; install it with: pip install 'adfl-stats[parquet]'"
        )
    return output_file(text)


def page_file(text: str) -> str:
    """Return a path of a page that can be written to.

    Examples
    --------
    >>> page_file("fit.html")
    'fit.html'
    """
    if Path(output_file(text)).suffix.lower() not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .html")
    return text


def print_any_label() -> None:
    """Let standard output escape what its encoding lacks: a label in another script must not end a command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
