"""Tables as text: one width, one frame."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable

__all__ = [
    "WIDTH", "counted", "factor_text", "fixed", "framed", "number", "printable", "printable_lines", "rule", "titled",
    "wrapped",
]  # fmt: skip


# That of statsmodels' summaries.
WIDTH = 78
CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")
# What no HTML document may hold besides.
NO_CHARACTERS = "\ufffe\uffff"


def printable(text: str) -> str:
    """Return a line with control characters written out: names of users must not command a terminal.

    Examples
    --------
    >>> len(printable(chr(27)))
    4
    """
    if text.isprintable():
        return text
    # Cc: control; Cf: among them the marks that reverse the order of what follows; Cs: halves of characters.
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in CONTROLS or character in NO_CHARACTERS
        else character
        for character in text
    )


def printable_lines(text: str) -> str:
    r"""Return a text of several lines with all other control characters written out, as `printable` does.

    Examples
    --------
    >>> printable_lines("one" + chr(10) + "two" + chr(7))
    'one\ntwo\\x07'
    """
    return "\n".join(map(printable, text.split("\n")))


def rule(mark: str = "=") -> str:
    """Return a line across the page."""
    return mark * WIDTH


def titled(title: str) -> str:
    """Return a title in the middle of the page."""
    return printable(title).center(WIDTH).rstrip()


def wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    """Return a text in lines that fit the page, with indents of the first and the later ones."""
    return textwrap.wrap(printable(text), WIDTH, initial_indent=first, subsequent_indent=later)


def fixed(value: float, decimals: int = 1) -> str:
    """Return a number with so many decimals, or three digits where that would be too wide for a table.

    Examples
    --------
    >>> fixed(1234.56), fixed(-3e5, 3), fixed(4.2e180)
    ('1234.6', '-300000.000', '4.2e+180')
    """
    return f"{value:.{decimals}f}" if abs(value) < 1e6 else f"{value:.3g}"


def counted(number: int, verb: str = "", verbs: str = "") -> str:
    """Return "1 client" or "2 clients", with the verb that goes with it.

    Examples
    --------
    >>> counted(1, "has", "have"), counted(3)
    ('1 client has', '3 clients')
    """
    noun, form = ("client", verb) if number == 1 else ("clients", verbs)
    return f"{number} {noun} {form}".rstrip()


def framed(title: str, table: str, notes: Iterable[str] = ()) -> str:
    """Return a table between rules, with a title above and notes below."""
    body = (line.rstrip() for line in printable_lines(table).split("\n"))
    lines = [titled(title), rule(), *body, rule()]
    return "\n".join([*lines, *(line for note in notes for line in wrapped(note))])


def number(value: float | None) -> str:
    """Return a number with four significant digits, or as a whole one up to a million; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


def factor_text(value: float) -> str:
    """Return a factor with enough digits to differ from 1."""
    return f"1 - {1.0 - value:.2g}" if 0.999 < value < 1.0 - 1e-12 else number(value)
