"""The table of a study as text, LaTeX and HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from statsmodels.iolib.summary import Summary

from adfl_stats.report.text import Cells, notes_as_text, pairs

if TYPE_CHECKING:
    from adfl_stats.simulate.resumable_study import Study

__all__ = ["efficiency_report"]

# Column, its heading, digits; with its Monte-Carlo standard error in parentheses where there is room for one.
_COLUMNS = (
    ("efficiency", "efficiency", 3, True),
    ("mse", "mse", 4, True),
    ("gap", "gap, SE", 2, False),
    ("coverage", "cover", 3, True),
    ("fdr", "FDR", 3, False),
    ("power", "power", 3, False),
    ("good_aside", "aside", 3, False),
)


def efficiency_report(study: Study) -> Summary:
    """Return how close each method comes to the oracle in each setting of a study.

    Parameters
    ----------
    study : Study
        A study that was run, in part or in full.

    Returns
    -------
    statsmodels Summary
        ``as_text()`` (which printing shows), ``as_latex()``, ``as_html()`` and ``as_csv()``. Parentheses hold
        Monte-Carlo standard errors, in units of the last digit shown.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sizes = {"M": 20, "n": 60, "p": 3}
    >>> study = ad.Study(["fit", "DFL"], shares=[0.2], sizes=sizes, replicates=3).run()
    >>> print(ad.efficiency_report(study).as_text().splitlines()[0].strip())
    Efficiency against the oracle
    """
    table = study.to_frame()
    factors = study.factors
    varied = [name for name in factors if table[name].nunique(dropna=False) > 1]
    fixed = {name: table[name].iloc[0] for name in factors if name not in varied}
    present = [entry for entry in _COLUMNS if entry[0] in table and table[entry[0]].notna().any()]
    rows = [
        [
            *(_plain(line[name]) for name in varied),
            *(
                _with_error(line[name], line[f"{name}_se"] if shown else np.nan, digits)
                for name, _, digits, shown in present
            ),
        ]
        for _, line in table.iterrows()
    ]
    headers = [*varied, *(heading for _, heading, _, _ in present)]
    stubs = [str(name) for name in table["method"]]
    widths = [max(map(len, stubs)), *(max(len(text) for text in column) for column in zip(headers, *rows, strict=True))]
    summary = Summary()
    width = sum(widths) + len(widths) - 1
    title = "Efficiency against the oracle"
    about = [
        *((f"{name}:", _plain(value)) for name, value in fixed.items()),
        ("data sets a setting:", _replicates(table)),
        ("settings:", f"{len(study.settings)}"),
        ("seed:", f"{study.seed}"),
    ]
    left = max(len(name) for name, _ in about)
    summary.tables = [
        pairs(about, title, [left, max(width - left - 1, 1)]),
        Cells(rows, headers, stubs, None, widths).table(None),
    ]
    summary.add_extra_txt(notes_as_text(_notes(study, table)))
    return summary


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)


def _replicates(table: pd.DataFrame) -> str:
    low, high = int(table["replicates"].min()), int(table["replicates"].max())
    return f"{low}" if low == high else f"{low} to {high}"


def _with_error(value: float, se: float, digits: int) -> str:
    """Return a number with its standard error in units of the last digit, as in 0.951(12)."""
    if not np.isfinite(value):
        return "-"
    if abs(value) >= 1e4 or (digits > 3 and 0 < abs(value) < 10.0**-digits):
        return f"{value:.1e}"
    # Three digits of an error are enough.
    while np.isfinite(se) and digits > 0 and round(se * 10**digits) >= 1000:
        digits -= 1
    text = f"{value:.{digits}f}"
    return f"{text}({round(se * 10**digits)})" if np.isfinite(se) else text


def _notes(study: Study, table: pd.DataFrame) -> list[str]:
    notes = [
        "Efficiency: the oracle's mean squared error over the method's, both over the replicates; the oracle pools "
        "the rows of the normal clients. mse: of the normal clients' own estimates. gap: distance of the estimate "
        "from the oracle, in the oracle's standard errors.",
        "In parentheses: Monte-Carlo standard errors, in units of the last digit.",
    ]
    if "coverage" in table:
        notes.append(
            "cover: of 95 % intervals. FDR, power: of the flags at q = .1. aside: normal clients with a weight below "
            ".1."
        )
    if "failed" in table and table["failed"].gt(0).any():
        worst = table.groupby("method", sort=False)["failed"].mean()
        text = ", ".join(f"{name} {share:.0%}" for name, share in worst[worst > 0].items())
        notes.append(f"Fits that diverged have no numbers: {text}.")
    if not study.complete:
        notes.append("The study is not complete; run it again to go on.")
    return notes
