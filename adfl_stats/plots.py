"""Pictures; each takes `ax`, draws there or on a new figure, and returns the axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from adfl_stats.results import Results

__all__ = ["clients", "trace"]

TRUSTED, DOUBTED, QUIET = "#2b6ca3", "#c0392b", "#8a8a8a"


def clients(res: Results, ax: Any = None, label: int = 5) -> Any:
    """Draw every client's score statistic against its weight's verdict.

    Clients stand in order of the statistic, on a root scale, with the band that a client following
    the model leaves with probability .05. Colour says who was down-weighted.

    Parameters
    ----------
    res : Results
        A fit.
    ax : matplotlib axes, optional
        Where to draw.
    label : int
        How many of the highest points carry the client's name.
    """
    ax = _axes(ax)
    table = res.clients()
    order = np.argsort(table["score"].to_numpy(), kind="stable")
    table = table.iloc[order]
    trusted = res._fit.trusted[order]
    place, height = np.arange(len(table)), np.sqrt(table["score"].to_numpy())
    limit = np.sqrt(stats.chi2.ppf(0.95, table["df"].to_numpy()))
    ax.fill_between(place, 0, limit, color=QUIET, alpha=0.15, lw=0, label="95 % of clients that follow the model")
    for mask, colour, text in ((trusted, TRUSTED, "trusted"), (~trusted, DOUBTED, "down-weighted")):
        ax.scatter(place[mask], height[mask], s=18, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    for k in range(len(table) - 1, max(len(table) - 1 - label, -1), -1):
        ax.annotate(
            str(table.index[k]), (place[k], height[k]), xytext=(-6, 0), textcoords="offset points", ha="right",
            va="center", fontsize="small",
        )  # fmt: skip
    ax.set(xlabel="clients, by score", ylabel="root of the score statistic", ylim=(0, None))
    ax.legend(frameon=False, loc="upper left")
    return _plain(ax)


def trace(res: Results, ax: Any = None) -> Any:
    """Draw how far clients move in a round, and how far apart they are, over all rounds of the fit."""
    ax = _axes(ax)
    table = res.trace
    lengths = table.groupby("run")["round"].max()
    begin = lengths.cumsum().shift(fill_value=0)
    at = table["round"] + table["run"].map(begin)
    ax.plot(at, table["moved"], color=TRUSTED, lw=1.2, label="longest move of a client in a round")
    ax.plot(at, table["consensus"], color=DOUBTED, lw=1.2, label="spread of the clients")
    for edge in begin.iloc[1:]:
        ax.axvline(edge, color=QUIET, lw=0.8, ls=":")
    ax.set(xlabel="round", yscale="log")
    ax.legend(frameon=False)
    return _plain(ax)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'") from None
    return pyplot.subplots(figsize=(7, 4), layout="constrained")[1]


def _plain(ax: Any) -> Any:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
