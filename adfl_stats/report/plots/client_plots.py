"""Plots of clients: their score statistics, screening, differences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats.report.plots._axes import DOUBTED, QUIET, TRUSTED, axes_for, name_rows, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.heterogeneity import Heterogeneity
    from adfl_stats.inference.results import Results
    from adfl_stats.inference.screening import Screening

__all__ = ["clients", "heterogeneity", "screening"]


def clients(res: Results, ax: Axes | None = None, label: int = 5) -> Axes:
    """Plot every client's score statistic, with the down-weighted clients in another colour.

    Clients are in order of the statistic, on a root scale, with the band that a client following
    the model leaves with probability .05, as the p-values of `Results.clients` have it.

    Parameters
    ----------
    res : Results
        A fit.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.
    label : int
        How many of the highest points carry the client's name.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.clients(model.fit()).get_ylabel()
    'root of the score statistic'
    """
    ax = axes_for(ax)
    fit, model = res.record, res.record.clients
    order = np.argsort(model.statistics, kind="stable")
    names, trusted = fit.labels[order], fit.trusted[order]
    place, height = np.arange(len(order)), np.sqrt(model.statistics[order])
    limit = np.sqrt(model.quantile(0.95)[order])
    ax.fill_between(place, 0, limit, color=QUIET, alpha=0.15, lw=0, label="95 % of clients that follow the model")
    for mask, colour, text in ((trusted, TRUSTED, "trusted"), (~trusted, DOUBTED, "down-weighted")):
        ax.scatter(place[mask], height[mask], s=18, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    for k in range(len(order) - 1, max(len(order) - 1 - label, -1), -1):
        ax.annotate(
            str(names[k]), (place[k], height[k]), xytext=(-6, 0), textcoords="offset points", ha="right",
            va="center", fontsize="small",
        )  # fmt: skip
    ax.set(xlabel="clients, by score", ylabel="root of the score statistic", ylim=(0, None))
    ax.legend(frameon=False, loc="upper left")
    return without_frame(ax)


def screening(screened: Screening, ax: Axes | None = None) -> Axes:
    """Plot the clients' statistics, the largest on top.

    A point is the client's score statistic over its mean under the model, on a log scale; the grey line
    behind it is where 95 % of clients that follow the model have theirs. With the mirror statistic, the points
    are that statistic, which such clients have on both sides of zero alike.

    Parameters
    ----------
    screened : Screening
        What ``adfl_stats.screen(res)`` returned.
    ax : matplotlib axes, optional
        Where to draw; without it the figure grows with the clients. Names are left out where they would
        overlap.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.screening(ad.screen(model.fit())).get_xlabel()
    'score statistic / its mean under the model'
    """
    table = screened.to_frame()
    ax = axes_for(ax, (7.0, float(np.clip(1.4 + 0.13 * len(table), 3.0, 14.0))))
    mirror = screened.method == "mirror"
    value = np.asarray(table["mirror"] if mirror else table["statistic"] / np.maximum(table["df"], 1))
    order = np.argsort(value, kind="stable")
    value, flagged, place = value[order], table["flagged"].to_numpy()[order], np.arange(len(table))
    if mirror:
        ax.axvline(0, color=QUIET, lw=0.8)
        ax.set_xscale("symlog", linthresh=float(np.median(np.abs(value))) or 1.0)
        ax.set_xlabel("mirror statistic")
    else:
        mean = np.maximum(screened.clients.ranks, 1)
        low, high = ((screened.clients.quantile(level) / mean)[order] for level in (0.025, 0.975))
        ax.hlines(place, low, high, color=QUIET, alpha=0.45, lw=2.0, label="95 % under the model")
        value = np.maximum(value, 0.5 * low.min())
        ax.set(xscale="log", xlabel="score statistic / its mean under the model")
    for mask, colour, text in (
        (flagged, DOUBTED, f"flagged at q = {screened.q:g}"),
        (~flagged, TRUSTED, "not flagged"),
    ):
        ax.scatter(value[mask], place[mask], s=16, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    name_rows(ax, table.index[order], "clients, by statistic")
    # Above the axes: clients fill the rest from corner to corner.
    columns = 3 if ax.bbox.width / ax.figure.dpi > 5.0 else 1
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize="small")
    return without_frame(ax)


def heterogeneity(found: Heterogeneity, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the clients' deviations from the estimate in one coefficient, raw and shrunken.

    Parameters
    ----------
    found : Heterogeneity
        What ``res.heterogeneity()`` returned.
    coefficient : str, optional
        Which; without it the one with the largest spread in units of a client's standard error.
    ax : matplotlib axes, optional
        Where to draw. Names are left out where they would overlap.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> ax = ad.plots.heterogeneity(res.heterogeneity(), "x1")
    """
    table = found.to_frame()
    if coefficient is None:
        coefficient = str((table["tau"] / table["client se"]).fillna(0.0).idxmax())
    if coefficient not in table.index:
        raise ValueError(f"coefficient is {coefficient!r}; choose one of {listing(table.index)}")
    clients = found.clients.xs(coefficient, level="coefficient").dropna(subset="deviation")
    clients = clients.sort_values("deviation", kind="stable")
    place = np.arange(len(clients))
    ax = axes_for(ax, (7.0, float(np.clip(1.6 + 0.13 * len(clients), 3.0, 14.0))))
    reach = 1.96 * clients["se"].to_numpy()
    raw, shrunken = clients["deviation"].to_numpy(), clients["effect"].to_numpy()
    ax.axvline(0.0, color=QUIET, lw=0.8)
    ax.hlines(place, raw - reach, raw + reach, color=QUIET, alpha=0.45, lw=1.5)
    ax.scatter(raw, place, s=14, facecolors="none", edgecolors=DOUBTED, label="own estimate, 95 % interval", zorder=3)
    ax.scatter(shrunken, place, s=14, color=TRUSTED, label="shrunken (empirical Bayes)", zorder=4)
    tau = table.loc[coefficient, "tau"]
    ax.set(xlabel=f"{coefficient}: deviation from the estimate (tau = {tau:.3g})")
    name_rows(ax, clients.index, "clients, by deviation")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")
    return without_frame(ax)
