"""Tables of a page: with captions and headers that a screen reader can follow; sortable ones with a search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._text import number
from adfl_stats._types import Mask
from adfl_stats.report.pages.markup import Html, joined, tag
from adfl_stats.theory.checks import Check

__all__ = [
    "VERDICTS",
    "advice_list",
    "cell_text",
    "check_table",
    "client_table",
    "fact_table",
    "glossary",
    "plain_table",
]

# Rows of the largest table, which keep a page below a megabyte. Ours.
MOST_ROWS = 2000
# Letters of a label that stays in one line. Ours.
SHORT = 20

VERDICTS = (
    "Verdicts: holds and fails are decided; indicative is a statement of order, whose constants the theory leaves "
    "open; unknown is what data cannot decide."
)


def cell_text(value: Any, digits: int = 4) -> str:
    """Return what a cell shows: whole numbers in full, others with some significant digits, a dash for none."""
    if value is None or value is pd.NA or value is pd.NaT:
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return str(value)
    if isinstance(value, Real):
        known = float(value)
        return "-" if np.isnan(known) else f"{known:.{digits}g}"
    return str(value)


# Texts that are numbers, such as "< 0.001", stand to the right like numbers.
_NUMBER = re.compile(r"[<>]?\s*[-+]?[\d.]+(e[-+]?\d+)?")


def _cell(value: Any, digits: int = 4) -> Html:
    wordy = not isinstance(value, Real) or isinstance(value, (bool, np.bool_))
    text = cell_text(value, digits)
    return tag("td", text, class_="t" if wordy and text != "-" and not _NUMBER.fullmatch(text) else None)


def _side(column: pd.Series) -> str | None:
    """Return the class of a header: that of the column's texts, or none above numbers."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return None
    texts = [cell_text(value) for value in column]
    return None if all(text == "-" or _NUMBER.fullmatch(text) for text in texts) else "t"


def plain_table(frame: pd.DataFrame, caption: str, *, corner: str = "") -> Html:
    """Return a small table: the index as row headers, a caption."""
    heads = tag(
        "tr",
        tag("th", corner, scope="col"),
        *(tag("th", name, scope="col", class_=_side(frame.iloc[:, k])) for k, name in enumerate(frame.columns)),
    )
    rows = [
        tag("tr", tag("th", _label(name), scope="row"), *(_cell(value) for value in values))
        for name, values in zip(frame.index, frame.astype(object).itertuples(index=False), strict=True)
    ]
    body = (tag("caption", caption), tag("thead", heads), tag("tbody", *rows))
    return _framed(tag("table", *body, class_=_width(frame.index) or None), caption)


def fact_table(facts: Sequence[tuple[str, Any]], caption: str) -> Html:
    """Return names and values, one pair a row."""
    rows = [tag("tr", tag("th", name, scope="row"), tag("td", cell_text(value), class_="t")) for name, value in facts]
    return tag("table", tag("caption", caption), tag("tbody", *rows), class_="facts")


def check_table(checks: Sequence[Check], caption: str) -> Html:
    """Return checks with their verdicts; a note stands below its line."""
    heads = tag("tr", *(tag("th", word, scope="col") for word in ("check", "verdict", "value", "wanted", "paper")))
    rows = []
    for check in checks:
        name = joined(check.name, tag("small", check.note)) if check.note else check.name
        verdict = tag("span", check.status, class_=f"status {check.status}")
        rows.append(
            tag(
                "tr",
                tag("th", name, scope="row"),
                tag("td", verdict, class_="t"),
                tag("td", number(check.value)),
                tag("td", check.bound, class_="t"),
                tag("td", check.place, class_="t"),
            )
        )
    table = tag("table", tag("caption", caption), tag("thead", heads), tag("tbody", *rows), class_="checks")
    return _framed(table, caption)


def client_table(
    frame: pd.DataFrame, caption: str, *, key: str, marks: Mapping[str, Mask], order: Sequence[int]
) -> Html:
    """Return the table of clients: sorted by a click on a header, searched by name, filtered by marks.

    Parameters
    ----------
    frame : DataFrame
        One row a client.
    caption : str
        What the table shows.
    key : str
        Prefix of the identifiers on the page; row m has ``{key}-m``.
    marks : mapping of str to ndarray (M,) of bool
        Kinds of clients that can be shown alone.
    order : sequence of int
        The rows in the order of the page; those beyond `MOST_ROWS` are left out, and the caption says so.
    """
    shown = list(order)[:MOST_ROWS]
    if len(shown) < len(frame):
        caption = f"{caption} The first {len(shown):,} of {len(frame):,} are listed."
    corner = str(frame.index.name or "client")
    sides = ["t", *(_side(frame.iloc[:, k]) for k in range(frame.shape[1]))]
    heads = [
        tag("th", tag("button", name, type="button"), scope="col", aria_sort="none", class_=side)
        for name, side in zip((corner, *map(str, frame.columns)), sides, strict=True)
    ]
    columns = [frame[name].tolist() for name in frame.columns]
    kinds = {f"k{k}": (name, mask) for k, (name, mask) in enumerate(marks.items())}
    rows = []
    for m in shown:
        classes = " ".join(code for code, (_, mask) in kinds.items() if mask[m])
        cells = (_cell(column[m], 3) for column in columns)
        label = tag("th", _label(frame.index[m]), scope="row")
        rows.append(tag("tr", label, *cells, id=f"{key}-{m}", class_=classes or None))
    choices = [tag("option", f"all ({len(shown)})", value="")]
    choices += [tag("option", f"{name} ({int(mask[shown].sum())})", value=code) for code, (name, mask) in kinds.items()]
    tools = tag(
        "p",
        tag("label", "Search ", for_=f"{key}-search"),
        tag("input", type="search", id=f"{key}-search", aria_controls=f"{key}-table"),
        tag("label", " Show ", for_=f"{key}-show"),
        tag("select", *choices, id=f"{key}-show", aria_controls=f"{key}-table"),
        tag("output", id=f"{key}-count", role="status"),
        class_="tools",
        hidden=True,
        data_for=key,
    )
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        id=f"{key}-table",
        class_=f"clients {_width(frame.index)}".strip(),
    )
    return joined(tools, _framed(table, caption, class_="scroll tall"))


def advice_list(advice: Sequence[str]) -> Html:
    """Return what to do, one sentence an entry."""
    return tag("ul", *(tag("li", entry) for entry in advice), class_="notes")


def glossary(words: Mapping[str, str], summary: str) -> Html:
    """Return words and their meanings, folded away."""
    pairs = [joined(tag("dt", name), tag("dd", meaning)) for name, meaning in words.items()]
    return tag("details", tag("summary", summary), tag("dl", *pairs))


def _framed(table: Html, name: str, class_: str = "scroll") -> Html:
    """Return a table in a frame that scrolls where the page is narrow, by keyboard too."""
    return tag("div", table, class_=class_, tabindex="0", role="region", aria_label=name)


def _width(labels: pd.Index) -> str:
    """Return the class of a table whose labels are short: "BRIDGE-M" stays in one line, an address does not."""
    return "short" if all(len(_label(label)) <= SHORT for label in labels) else ""


def _label(label: Any) -> str:
    return ", ".join(map(str, label)) if isinstance(label, tuple) else str(label)
