"""Plots of studies: curves over a factor with bands, and efficiencies as a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._arguments import listing, one_of
from adfl_stats.report.plots._axes import axes_for, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.simulate.resumable_study import Study

__all__ = ["CURVES", "efficiency_map", "study_curves"]

# Colours of Okabe and Ito (2008), which colour-blind readers can tell apart, dark enough for paper; markers and dashes
# differ as well, for print in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7F3C8D", "#666666", "#A0522D")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), "-.", ":", "--")
CURVES = tuple(
    {"color": colour, "marker": marker, "linestyle": dashes}
    for colour, marker, dashes in zip(_COLOURS, _MARKERS, _DASHES, strict=True)
)
# Bands are pointwise intervals for the mean over replicates, by Student's t.
_LEVEL = 0.95


def study_curves(
    study: Study | pd.DataFrame,
    value: str = "mse",
    by: str = "share",
    *,
    where: Mapping[str, object] | None = None,
    methods: Sequence[str] | None = None,
    oracle: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Plot a quantity against a factor of a study: one curve for each method, with Monte-Carlo bands.

    Bands are 95 % intervals for the mean over replicates, on the log scale for errors, lengths and times.

    Parameters
    ----------
    study : Study or DataFrame
        A study that was run, or its table.
    value : str
        A column of `Study.to_frame`.
    by : str
        The factor on the horizontal axis: "share", or a size such as "n".
    where : mapping, optional
        Values of other factors, as in ``{"network": "circle-5", "corruption": "BF"}``; needed where the study has
        several. Settings without abnormal clients belong to every corruption.
    methods : list of str, optional
        Which ones, in the order of the legend; all if not given.
    oracle : bool
        Draw the oracle as a dashed line; for "mse" only.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sizes = {"M": 20, "n": 60, "p": 3}
    >>> study = ad.Study(["DFL"], shares=[0, 0.2, 0.4], sizes=sizes, replicates=3, inference=False).run()
    >>> ad.plots.study_curves(study).get_xlabel()
    'share of abnormal clients'
    """
    table = study if isinstance(study, pd.DataFrame) else study.to_frame()
    one_of(value, "value", [name for name in table if f"{name}_se" in table])
    factors = list(table.columns[: list(table.columns).index("method")])
    one_of(by, "by", factors)
    part = _chosen(table, factors, by, dict(where or {}))
    names = list(part["method"].unique()) if methods is None else list(methods)
    for name in names:
        one_of(name, "methods", list(part["method"].unique()))
    ax = axes_for(ax)
    positive = value in ("mse", "oracle_mse", "variance", "length", "length_client", "gap", "consensus", "seconds")
    for name, look in zip(names, _looks(len(names)), strict=True):
        line = part[part["method"] == name].sort_values(by)
        _curve(ax, line, by, value, positive, label=name, ms=5, lw=1.4, **look)
    if oracle and value == "mse":
        line = part[part["method"] == names[0]].sort_values(by)
        own = {"color": "black", "linestyle": "--", "lw": 1.6, "label": "oracle", "zorder": 4}
        _curve(ax, line, by, "oracle_mse", positive, **own)
    if positive:
        ax.set_yscale("log")
    ax.set_xlabel(_WORDS.get(by, by))
    ax.set_ylabel(_WORDS.get(value, value.replace("_", " ")))
    if part[by].nunique() <= 8:
        ax.set_xticks(sorted(part[by].unique()))
    ax.legend(frameon=False, fontsize="small")
    return without_frame(ax)


_WORDS = {
    "share": "share of abnormal clients",
    "mse": "mean squared error",
    "n": "rows per client",
    "M": "clients",
    "p": "covariates",
    "gap": "distance from the oracle, SE",
    "coverage": "coverage of 95 % intervals",
    "fdr": "false discovery rate",
}


def _looks(count: int) -> list[dict[str, Any]]:
    return [CURVES[k % len(CURVES)] for k in range(count)]


def _chosen(table: pd.DataFrame, factors: list[str], by: str, where: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of some values of the factors, refused where two of them would be one point."""
    part = table
    for name, wanted in where.items():
        one_of(name, "where", factors)
        known = list(table[name].unique())
        if wanted not in known:
            raise ValueError(f"where[{name!r}] is {wanted!r}; the study has {listing(known, 12)}")
        kept = part[name] == wanted
        part = part[kept | (part[name] == "none")] if name == "corruption" else part[kept]
    double = part.duplicated(["method", by], keep=False)
    if double.any():
        open_factors = [name for name in factors if name != by and part.loc[double, name].nunique() > 1]
        choices = "; ".join(f"{name}: {listing(part.loc[double, name].unique())}" for name in open_factors)
        raise ValueError(f"the study has several settings for one point; choose some by where= ({choices})")
    return part


def _curve(ax: Axes, line: pd.DataFrame, by: str, value: str, positive: bool, **look: Any) -> None:
    columns = (by, value, f"{value}_se", "replicates")
    at, mean, se, replicates = (line[name].to_numpy(dtype=float) for name in columns)
    ax.plot(at, mean, **look)
    known = np.isfinite(se) & np.isfinite(mean)
    if not known.any():
        return
    at, mean = at[known], mean[known]
    spread = stats.t.ppf(0.5 + _LEVEL / 2, replicates[known] - 1.0) * se[known]
    if positive:
        factor = np.exp(spread / mean)
        low, high = mean / factor, mean * factor
    else:
        low, high = mean - spread, mean + spread
    ax.fill_between(at, low, high, color=look["color"], alpha=0.14, lw=0)


def _with_clean(table: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of each corruption, those without abnormal clients among them."""
    kinds = [kind for kind in table["corruption"].unique() if kind != "none"]
    clean = table["corruption"] == "none"
    if not kinds or not clean.any():
        return table
    parts = [table[~clean], *(table[clean].assign(corruption=kind) for kind in kinds)]
    # Stable: settings stay in the order of the study.
    return pd.concat(parts).sort_index(kind="stable")


def efficiency_map(
    study: Study | pd.DataFrame, method: str = "fit", value: str = "efficiency", ax: Axes | None = None
) -> Axes:
    """Draw a quantity of one method in all settings of a study as a map: settings by shares of abnormal clients.

    Parameters
    ----------
    study : Study or DataFrame
        A study that was run, or its table.
    method : str
        Which one.
    value : str
        A column of `Study.to_frame` between 0 and 1: efficiency, coverage, power, ...
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sizes = {"M": 20, "n": 60, "p": 3}
    >>> study = ad.Study(["DFL"], shares=[0, 0.2], sizes=sizes, replicates=3, inference=False).run()
    >>> ad.plots.efficiency_map(study, "DFL").get_title()
    'efficiency of DFL'
    """
    table = study if isinstance(study, pd.DataFrame) else study.to_frame()
    one_of(method, "method", list(table["method"].unique()))
    one_of(value, "value", [name for name in table if f"{name}_se" in table])
    factors = [name for name in table.columns[: list(table.columns).index("method")] if name != "share"]
    part = _with_clean(table[table["method"] == method])
    varied = [name for name in factors if part[name].nunique() > 1]
    rows = part[varied].astype(str).agg(", ".join, axis=1) if varied else pd.Series("all", index=part.index)
    grid = part.assign(row=rows).pivot(index="row", columns="share", values=value).reindex(rows.unique())
    ax = axes_for(ax, (1.6 + 0.8 * grid.shape[1] + 0.08 * rows.str.len().max(), 1.2 + 0.36 * len(grid)))
    # Cividis is read alike with and without colour vision, and its lightness grows evenly.
    drawn = ax.imshow(grid.to_numpy(), cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    for (i, j), number in np.ndenumerate(grid.to_numpy()):
        if np.isfinite(number):
            # White on the dark half of the colours.
            ink = "white" if number < 0.5 else "black"
            ax.text(j, i, f"{number:.2f}", ha="center", va="center", color=ink, fontsize="small")
    ax.set_xticks(range(grid.shape[1]), [f"{share:g}" for share in grid.columns])
    ax.set_yticks(range(len(grid)), list(grid.index))
    ax.set(xlabel=_WORDS["share"], title=f"{value} of {method}")
    ax.tick_params(length=0)
    ax.figure.colorbar(drawn, ax=ax, pad=0.02).outline.set_visible(False)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax
