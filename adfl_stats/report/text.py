"""Tables as statsmodels has them: text that fits the page, HTML, LaTeX and CSV."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from statsmodels.iolib.summary import Summary
from statsmodels.iolib.table import SimpleTable

from adfl_stats._text import printable, printable_lines, wrapped
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.theory.condition_5 import condition_5

__all__ = ["STUB", "Cells", "TextSummary", "network_cells", "notes_as_text", "number", "pairs", "shortened", "z_value"]

# Characters of a name before the numbers of a row: those of statsmodels' tables. Longer ones are shortened.
STUB = 20


class TextSummary(Summary):
    """A statsmodels `Summary` whose text fits 80 columns; the other formats have all names in full."""

    def __init__(self, header: SimpleTable, cells: list[Cells], notes: list[str]) -> None:
        super().__init__()
        self.tables = [header, *(part.table(STUB) for part in cells)]
        self.add_extra_txt(notes_as_text(notes))
        self._full = Summary()
        self._full.tables = [header, *(part.table(None) for part in cells)]
        self._full.extra_txt = self.extra_txt

    def as_text(self) -> str:
        """Return text; control characters in names are written out."""
        return printable_lines(str(super().as_text()))

    def as_html(self) -> str:
        """Return HTML, in which names are text."""
        return _rendered(self._full, Summary.as_html, {mark: html.escape(mark) for mark in "<>&\"'"})

    def as_latex(self) -> str:
        """Return LaTeX, in which names are text."""
        return _rendered(self._full, Summary.as_latex, LATEX)

    def as_csv(self) -> str:
        """Return comma-separated values."""
        return _rendered(self._full, Summary.as_csv, {})


# What LaTeX reads as commands.
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
}  # fmt: skip
# Characters without a meaning stand for those marks while statsmodels, which escapes some of them, makes its tables.
PRIVATE = 0xE000


def _rendered(summary: Summary, render: Callable[[Summary], str], marks: Mapping[str, str]) -> str:
    """Return a summary in a format in which some marks of names are written otherwise."""
    hidden = str.maketrans({mark: chr(PRIVATE + k) for k, mark in enumerate(marks)})
    copy = Summary()
    copy.tables = [_with_text(table, hidden) for table in summary.tables]
    copy.extra_txt = printable_lines(summary.extra_txt or "").translate(hidden)
    text = str(render(copy))
    return text.translate({PRIVATE + k: written for k, written in enumerate(marks.values())})


def _with_text(table: SimpleTable, hidden: dict[int, str]) -> SimpleTable:
    table = deepcopy(table)
    table.title = None if table.title is None else printable(str(table.title)).translate(hidden)
    for row in table:
        for cell in row:
            cell.data = printable(cell.data).translate(hidden) if isinstance(cell.data, str) else cell.data
    return table


@dataclass(frozen=True)
class Cells:
    """A table of text cells, from which one with short names and one with names in full are made."""

    rows: list[list[str]]
    headers: list[str]
    stubs: list[str] | None
    title: str | None
    widths: list[int]

    def table(self, width: int | None) -> SimpleTable:
        """Return the table with names of at most `width` characters."""
        stubs = None if self.stubs is None else shortened(self.stubs, width)
        layout = _layout(self.widths, "r" * len(self.headers))
        return SimpleTable(self.rows, headers=self.headers, stubs=stubs, title=self.title, txt_fmt=layout)


def pairs(cells: list[tuple[str, str]], title: str | None, widths: list[int]) -> SimpleTable:
    """Return a table of names and values."""
    return SimpleTable(
        [[value] for _, value in cells], stubs=[name for name, _ in cells], title=title, txt_fmt=_layout(widths, "r")
    )


def notes_as_text(notes: list[str]) -> list[str]:
    """Return numbered notes in lines that fit the page."""
    lines = ["Notes:"]
    for k, note in enumerate(notes, start=1):
        lines += wrapped(f"[{k}] {note}", later="    ")
    return lines


def _layout(widths: list[int], aligns: str) -> dict[str, Any]:
    """Return a text format with columns of given widths (the stub first) that fill the page."""
    return {
        "data_fmts": ["%s"],
        "empty_cell": "",
        "colwidths": widths,
        "colsep": " ",
        "row_pre": "",
        "row_post": "",
        "table_dec_above": "=",
        "table_dec_below": "=",
        "header_dec_below": "-",
        "header_fmt": "%s",
        "stub_fmt": "%s",
        "title_align": "c",
        "header_align": "r",
        "data_aligns": aligns,
        "stubs_align": "l",
        "fmt": "txt",
    }


def number(value: float) -> str:
    """Four decimals, or three significant digits where that would be all zeros or too wide."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def z_value(coef: float, se: float) -> str:
    """Return an estimate over its standard error."""
    value = coef / se if se > 0 else np.nan
    return f"{value:.3f}" if not abs(value) >= 1e3 else f"{value:.3g}"


def shortened(names: list[str], width: int | None) -> list[str]:
    """Cut names in the middle, where levels of a factor differ least, and number those that become alike."""
    if width is None:
        return names
    half = width // 2
    cut = [name if len(name) <= width else f"{name[: half - 1]}~{name[-(width - half) :]}" for name in names]
    return [text if cut.count(text) == 1 else f"{text[: width - 4]}~{k + 1}" for k, text in enumerate(cut)]


def network_cells(net: Network | NetworkSchedule) -> dict[str, str]:
    """Return the description of the network in the header."""
    if isinstance(net, NetworkSchedule):
        return dict.fromkeys(("edges", "SE(W)", "rho"), "changes")
    return {"edges": f"{net.n_edges}", "SE(W)": f"{net.se:.4g}", "rho": condition_5(net).rho_text}
