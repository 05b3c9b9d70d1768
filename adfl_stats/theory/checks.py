"""Checks and reports: a condition or bound of the paper, its value here, and whether it holds.

A check has one of four words. ``holds`` and ``fails`` are for what can be decided; ``indicative`` for
statements of order, whose constants the theory leaves open; ``unknown`` for what the data cannot decide.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import pandas as pd

from adfl_stats._arguments import one_of
from adfl_stats._files import place_of
from adfl_stats._text import factor_text, number, printable_lines, rule, titled, wrapped
from adfl_stats.network.network import Network

__all__ = ["FAILS", "HOLDS", "INDICATIVE", "STATUSES", "UNKNOWN", "Check", "Report", "decided"]

HOLDS, FAILS, INDICATIVE, UNKNOWN = "holds", "fails", "indicative", "unknown"
STATUSES = (HOLDS, FAILS, INDICATIVE, UNKNOWN)


@dataclass(frozen=True)
class Check:
    """One line of a report.

    Parameters
    ----------
    name : str
        What is looked at.
    place : str
        Where it stands in the paper, or "" for what is ours.
    value : float or None
        Its value here.
    bound : str
        What is wanted of the value.
    status : {"holds", "fails", "indicative", "unknown"}
        The verdict.
    note : str
        What it means.

    Examples
    --------
    >>> Check("rho", "Condition 5", 0.8, "< 1", "holds").status
    'holds'
    """

    name: str
    place: str
    value: float | None
    bound: str
    status: str
    note: str = ""

    def __post_init__(self) -> None:
        one_of(self.status, "status", STATUSES)


def decided(condition: bool) -> str:
    """Return "holds" or "fails"."""
    return HOLDS if condition else FAILS


@dataclass(frozen=True)
class Report:
    """Checks under a title, with advice and further tables.

    Parameters
    ----------
    title : str
        Of what this is the report.
    checks : tuple of Check
        In the order of the paper.
    advice : tuple of str
        What to do, one sentence an entry.
    tables : mapping of str to DataFrame
        Numbers behind the advice, by their heading.
    network : Network, optional
        What the report is about, where it is a network.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> report = ad.check_network(ad.networks.directed_circle(10, 3))
    >>> report["rho"].status, [check.name for check in report.failed]
    ('holds', [])
    """

    title: str
    checks: tuple[Check, ...]
    advice: tuple[str, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    network: Network | None = None

    @property
    def failed(self) -> list[Check]:
        """The checks that fail."""
        return [check for check in self.checks if check.status == FAILS]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"the report has no check {name!r}; it has {', '.join(c.name for c in self.checks)}")

    def to_frame(self) -> pd.DataFrame:
        """Return the checks as a frame.

        Returns
        -------
        DataFrame
            One row per check: place, value, bound, status, note.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> report = ad.check_network(ad.networks.directed_circle(10, 3))
        >>> report.to_frame().loc["rho", "status"]
        'holds'
        """
        columns = ["name", "place", "value", "bound", "status", "note"]
        rows = [[getattr(check, column) for column in columns] for check in self.checks]
        return pd.DataFrame(rows, columns=columns).set_index("name")

    def to_json(self) -> str:
        """Return everything as JSON.

        Returns
        -------
        str
            Numbers that are not finite are null or text.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> report = ad.check_network(ad.networks.directed_circle(10, 3))
        >>> import json
        >>> sorted(json.loads(report.to_json()))
        ['advice', 'checks', 'tables', 'title']
        """
        content = {
            "title": self.title,
            "checks": [
                {"name": c.name, "place": c.place, "value": _json_number(c.value), "bound": c.bound}
                | {"status": c.status, "note": c.note}
                for c in self.checks
            ],
            "advice": list(self.advice),
            "tables": {name: json.loads(table.to_json(orient="split")) for name, table in self.tables.items()},
        }
        return json.dumps(content, indent=1)

    def save(self, path: str | Path) -> None:
        """Write the report to a file.

        Parameters
        ----------
        path : str or path
            Its ending decides the format: .json, .html (the page of `report`), .csv (the checks) or text.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import adfl_stats as ad
        >>> report = ad.check_network(ad.networks.directed_circle(10, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.save(f"{folder}/network.csv")
        ...     pathlib.Path(folder, "network.csv").read_text().split(",")[:2]
        ['name', 'place']
        """
        target = place_of(path, "path")
        if target.suffix == ".html":
            self.report(target)
            return
        written = {".json": self.to_json, ".csv": lambda: self.to_frame().to_csv()}
        target.write_text(written.get(target.suffix, self.__str__)(), encoding="utf-8")

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> Path:
        """Write the report as one HTML page that loads nothing: to read, to print, to hand to a colleague.

        Parameters
        ----------
        path : str or path
            The file; its name ends in .html.
        title : str, optional
            The heading; that of the report if not given.

        Returns
        -------
        Path
            Where the page is.

        Examples
        --------
        >>> import tempfile
        >>> import adfl_stats as ad
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ad.check_network(ad.networks.directed_circle(10, 3)).report(f"{folder}/network.html").name
        'network.html'
        """
        from adfl_stats.report.pages.check_page import check_page
        from adfl_stats.report.pages.page import write

        return write(path, lambda: check_page(self, title))

    def __str__(self) -> str:
        lines = [titled(self.title), rule(), _row("", "value", "wanted", "status"), rule("-")]
        following = [check.note for check in self.checks[1:]]
        for check, after in zip(self.checks, [*following, None], strict=True):
            name = f"{check.place}: {check.name}" if check.place else check.name
            head, *rest = textwrap.wrap(name, 34) or [""]
            lines.append(_row(head, _shown(check.value), check.bound, check.status))
            lines += [f"  {line}" for line in rest]
            # A note that several lines in a row share stands below the last of them.
            lines += wrapped(check.note, "    ", "    ") if check.note != after else []
        lines.append(rule())
        for name, table in self.tables.items():
            # Words stand below the numbers, so that the page is wide enough.
            numbers = table.drop(columns="note", errors="ignore")
            lines += ["", name, _dashed(numbers).to_string(float_format=_shown)]
            for row, note in table.get("note", pd.Series(dtype=str)).items():
                lines += wrapped(f"{row}: {note}", later="  ") if note else []
            lines.append("")
        if self.advice:
            lines.append("Advice:")
            for entry in self.advice:
                lines += wrapped(f"- {entry}", later="  ")
        return "\n".join(lines)

    __repr__ = __str__

    def to_html(self) -> str:
        """Return the report as an HTML fragment.

        Returns
        -------
        str
            A heading, the checks, the tables and the advice.
        """
        colour = {HOLDS: "#1e8449", FAILS: "#c0392b", INDICATIVE: "#9a7d0a", UNKNOWN: "#7f8c8d"}
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(c.name)}</th><td>{html.escape(c.place)}</td>"
            f"<td style='text-align:right'>{html.escape(_shown(c.value))}</td><td>{html.escape(c.bound)}</td>"
            f"<td style='color:{colour[c.status]};font-weight:bold'>{c.status}</td>"
            f"<td style='text-align:left'>{html.escape(c.note)}</td></tr>"
            for c in self.checks
        )
        head = "".join(f"<th>{word}</th>" for word in ("", "paper", "value", "wanted", "status", "note"))
        tables = "".join(
            f"<h4>{html.escape(name)}</h4>{_dashed(table).to_html(float_format=_shown)}"
            for name, table in self.tables.items()
        )
        advice = "".join(f"<li>{html.escape(entry)}</li>" for entry in self.advice)
        return printable_lines(
            f"<h3>{html.escape(self.title)}</h3><table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
            f"{tables}" + (f"<h4>Advice</h4><ul>{advice}</ul>" if advice else "")
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def _shown(value: float | None) -> str:
    """Return a number as notes and advice have it; one just below 1 must not look like 1."""
    return number(value) if value is None else factor_text(value)


def _dashed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table to show, with a dash where there is no value."""
    return table.astype(object).where(table.notna(), "-")


def _row(name: str, value: str, bound: str, status: str) -> str:
    return f"{name:<34} {value:>11}  {bound:<18} {status:>10}"


def _json_number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return None if value is None else float(value)
    return None if math.isnan(value) else str(value)
