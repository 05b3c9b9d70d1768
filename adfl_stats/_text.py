"""Tables as text: one width, one frame."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

__all__ = ["WIDTH", "framed", "rule", "titled", "wrapped"]


# That of statsmodels' summaries.
WIDTH = 78


def rule(mark: str = "=") -> str:
    """Return a line across the page."""
    return mark * WIDTH


def titled(title: str) -> str:
    """Return a title in the middle of the page."""
    return title.center(WIDTH).rstrip()


def wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    """Return a text in lines that fit the page, with indents of the first and the later ones."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later)


def framed(title: str, table: str, notes: Iterable[str] = ()) -> str:
    """Return a table between rules, with a title above and notes below."""
    lines = [titled(title), rule(), *table.splitlines(), rule()]
    return "\n".join([*lines, *(line for note in notes for line in wrapped(note))])
