"""The page of a study: errors and efficiency of methods by setting, with Monte-Carlo errors, slopes, specification."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._text import number
from adfl_stats._types import Array
from adfl_stats.report.pages.charts import Axis, Plot
from adfl_stats.report.pages.markup import Html, joined, paragraphs
from adfl_stats.report.pages.page import Section, page
from adfl_stats.report.pages.tables import client_table, fact_table, glossary, plain_table

__all__ = ["StudyLike", "study_page"]

# Pictures on a page: settings beyond have their numbers in the table. Ours.
MOST_PLOTS = 24
# Styles of lines, in turn; the style sheet has as many.
STYLES = 9
# Of the Monte-Carlo intervals.
COVERAGE = 0.95

COLUMNS = {
    "efficiency": "Mean squared error of the oracle, which knows the abnormal clients, over that of the method.",
    "mse": "Mean over normal clients of the squared distance of their own estimate from the truth.",
    "gap": "Root mean square distance from the oracle, in its standard errors.",
    "coverage": "Share of 95 % intervals that contain the true value.",
    "fdr": "Share of normal clients among the flagged ones.",
    "power": "Share of the abnormal clients that are flagged.",
    "good_aside": "Share of the normal clients with a weight below .1.",
    "seconds": "Time of a fit.",
    "..._se": "Monte-Carlo standard error of the column to its left.",
}
SHOWN = ("efficiency", "mse", "bias2", "variance", "gap", "coverage", "fdr", "power", "good_aside", "seconds")


class StudyLike(Protocol):
    """What a page needs of a study."""

    @property
    def factors(self) -> list[str]:
        """The columns that name a setting."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each setting and method."""

    def slopes(self, by: str = "N", value: str = "mse") -> pd.DataFrame:
        """Return slopes on log scales."""

    def specification(self) -> dict[str, Any]:
        """Return what the study consists of."""


def study_page(study: StudyLike, title: str | None = None) -> Html:
    """Return the page of a study.

    Parameters
    ----------
    study : Study
        Run at least in part.
    title : str, optional
        The heading.
    """
    table = study.to_frame()
    factors = [name for name in study.factors if name in table]
    several = [name for name in factors if table[name].astype(str).nunique() > 1]
    methods = list(dict.fromkeys(table["method"]))
    sections = [
        Section("summary", "Summary", _summary(table, methods)),
        Section("plots", "Errors by setting", _plots(table, factors, methods)),
        Section("table", "All settings", _table(table, several)),
        *_slopes(study, table),
        Section("specification", "Specification", _specification(study, table, factors, several)),
    ]
    return page("Study: methods beside the oracle" if title is None else title, f"{study!r}.", sections)


# ---------------------------------------------------------------------- summary


def _summary(table: pd.DataFrame, methods: list[str]) -> Html:
    """Return the efficiency of each method over all settings, with and without abnormal clients."""
    columns: dict[str, pd.Series] = {}
    groups = {"all settings": table}
    if "share" in table and (table["share"] > 0).any() and (table["share"] == 0).any():
        groups |= {"no abnormal client": table[table["share"] == 0], "with abnormal clients": table[table["share"] > 0]}
    for name, part in groups.items():
        by = part.groupby("method", sort=False)["efficiency"]
        columns[f"{name}: mean"], columns[f"{name}: least"] = by.mean(), by.min()
    frame = pd.DataFrame(columns).reindex(methods)
    words = (
        "Efficiency is the mean squared error of the oracle, which knows the abnormal clients, over that of the "
        "method. Means over settings count each setting once."
    )
    return joined(paragraphs([words]), plain_table(frame, "Efficiency against the oracle.", corner="method"))


# ---------------------------------------------------------------------- plots


def _plots(table: pd.DataFrame, factors: list[str], methods: list[str]) -> Html:
    """Return the errors against the share of abnormal clients, or by method where there is one share."""
    shares = np.unique(table["share"]) if "share" in table else np.zeros(1)
    fixed = [name for name in factors if name not in ("share", "corruption")]
    kinds = [kind for kind in dict.fromkeys(table.get("corruption", ["none"] * len(table))) if kind != "none"] or [
        "none"
    ]
    pictures: list[Html] = []
    left = 0
    for names, part in table.groupby([part.astype(str) for _, part in table[fixed].items()], sort=False):
        for kind in kinds:
            # Settings without abnormal clients belong to every corruption.
            own = part[part["corruption"].isin([kind, "none"])] if "corruption" in part else part
            if len(pictures) >= MOST_PLOTS:
                left += 1
                continue
            said = ", ".join(f"{name} {value}" for name, value in zip(fixed, names, strict=True))
            title = f"{said}; {kind}."
            key = f"plot-{len(pictures)}"
            many = len(shares) > 1 and own["share"].nunique() > 1
            pictures.append(_curves(own, methods, key, title) if many else _dots(own, methods, key, title))
    words = ["Bands and bars are 95 % Monte-Carlo intervals for the means. Point at a mark for its numbers."]
    if left:
        words.append(f"{left} further settings are in the table only.")
    return joined(paragraphs(words), *pictures)


def _curves(table: pd.DataFrame, methods: list[str], key: str, title: str) -> Html:
    parts = {name: table[table["method"] == name].sort_values("share") for name in methods}
    oracle = table.drop_duplicates("share").sort_values("share")
    known = [*table["mse"], *oracle["oracle_mse"]]
    x = Axis.of(table["share"], "share of abnormal clients", zero=True)
    plot = Plot(x, Axis.of(known, "mean squared error", log=True), 360)
    for k, (name, part) in enumerate(parts.items()):
        share, mse, se = (part[column].to_numpy(dtype=float) for column in ("share", "mse", "mse_se"))
        factor = _factor(part)
        plot.band(share, mse / factor, mse * factor, f"m{k % STYLES}")
        plot.line(share, mse, f"m{k % STYLES}", name)
        tips = [
            f"{name}, share {a:g}: MSE {number(b)} (se {number(c)})\nefficiency {number(e)}"
            for a, b, c, e in zip(share, mse, se, part["efficiency"], strict=True)
        ]
        plot.points(share, mse, f"m{k % STYLES}", tips, size=3.4)
    # Above the methods that reach it.
    plot.line(oracle["share"], oracle["oracle_mse"], "oracle", "oracle")
    return plot.figure(key, title, "Mean squared error of the normal clients' estimates, log scale.")


def _factor(part: pd.DataFrame) -> Array:
    """Return how far Student's intervals reach on the log scale, as factors of the mean; 1 for one replicate."""
    degrees = np.maximum(part["replicates"].to_numpy(dtype=float) - 1.0, 1.0)
    relative = (part["mse_se"] / part["mse"]).to_numpy(dtype=float)
    return np.asarray(np.exp(np.nan_to_num(stats.t.ppf(0.5 + COVERAGE / 2, degrees) * relative)))


def _dots(table: pd.DataFrame, methods: list[str], key: str, title: str) -> Html:
    part = table.set_index("method").reindex(methods)
    mse, se, efficiency = (part[name].to_numpy(dtype=float) for name in ("mse", "mse_se", "efficiency"))
    factor, at = _factor(part), np.arange(len(methods))
    x = Axis.of([*(mse / factor), *(mse * factor), *part["oracle_mse"]], "mean squared error", log=True)
    plot = Plot(x, Axis(-0.6, len(methods) - 0.4, "", names=methods), 76 + 26 * len(methods))
    plot.rule(x=float(part["oracle_mse"].mean()), kind="quiet dotted", label="oracle")
    plot.bars(mse / factor, mse * factor, at, "good", "95 % Monte-Carlo interval")
    tips = [
        f"{name}: MSE {number(a)} (se {number(b)})\nefficiency {number(c)}"
        for name, a, b, c in zip(methods, mse, se, efficiency, strict=True)
    ]
    plot.points(mse, at, "w4", tips, size=4.4)
    return plot.figure(key, title, "Mean squared error of the normal clients' estimates, log scale.")


# ---------------------------------------------------------------------- tables


def _table(table: pd.DataFrame, several: list[str]) -> Html:
    shown = [name for name in SHOWN if name in table and table[name].notna().any()]
    columns = [pair for name in shown for pair in (name, f"{name}_se") if pair in table]
    frame = table[["method", *several, *columns]].set_index("method")
    marks = {"efficiency below .9": (table["efficiency"] < 0.9).to_numpy()}
    caption = "Means over the replicates, with Monte-Carlo standard errors."
    order = list(range(len(frame)))
    listed = client_table(frame, caption, key="setting", marks=marks, order=order)
    return joined(listed, glossary(COLUMNS, "What the columns mean"))


def _slopes(study: StudyLike, table: pd.DataFrame) -> list[Section]:
    """Return the rates in the share and in the rows, where the study has at least two of them."""
    parts = []
    if "share" in table and table.loc[table["share"] > 0, "share"].nunique() > 1:
        parts.append(("share", "Slope of the log mean squared error on the log share of abnormal clients."))
    if {"M", "n"} <= set(table.columns) and table[["M", "n"]].astype(str).drop_duplicates().shape[0] > 1:
        parts.append(("N", "Slope of the log mean squared error on log N."))
    if not parts:
        return []
    words = "Fitted on log scales with Monte-Carlo errors, 95 % limits, beside the slope that the paper's theory gives."
    tables = [plain_table(study.slopes(by).set_index("method"), caption, corner="method") for by, caption in parts]
    return [Section("slopes", "Slopes", joined(paragraphs([words]), *tables))]


def _specification(study: StudyLike, table: pd.DataFrame, factors: list[str], several: list[str]) -> Html:
    facts = [(name, table[name].iloc[0]) for name in factors if name not in several]
    low, high = table["replicates"].min(), table["replicates"].max()
    facts.append(("replicates", f"{low}" if low == high else f"{low} to {high}"))
    stated = [(name, _short(value)) for name, value in study.specification().items()]
    return joined(
        fact_table(facts, "The same in all settings."),
        fact_table(stated, "As the study was given; functions and arrays by their hash."),
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 600 else f"{text[:600]}…"
