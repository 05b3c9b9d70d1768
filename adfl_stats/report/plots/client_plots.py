"""Plots of clients: their score statistics, screening, differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.inference.record import FitRecord
from adfl_stats.report.plots._axes import (
    CROWD,
    DOUBTED,
    QUIET,
    TRUSTED,
    axes_for,
    key,
    name_points,
    name_rows,
    row_points,
    without_frame,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.heterogeneity import Heterogeneity
    from adfl_stats.inference.objective_results import ObjectiveResults
    from adfl_stats.inference.results import Results
    from adfl_stats.inference.screening import Screening

__all__ = ["clients", "heterogeneity", "screening"]

# Names beside crowded rows. Ours.
MOST_NAMED = 12


def clients(res: Results | ObjectiveResults, ax: Axes | None = None, label: int = 5) -> Axes:
    """Plot every client's score statistic, with the down-weighted clients in another colour.

    Clients are in order of the statistic, on a root scale, with the band that a client following
    the model leaves with probability .05, as the p-values of `Results.clients` have it. Of a fit of any loss it is the
    norm of the client's gradient at the estimate, for which there is no such band.

    Parameters
    ----------
    res : Results or ObjectiveResults
        A fit.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.
    label : int
        How many of the highest points carry the client's name, but for names that would overlap.

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
    ax, fit = axes_for(ax), res.record
    judged = fit.clients if isinstance(fit, FitRecord) else None
    heights = res.clients()["gradient"].to_numpy() if judged is None else np.sqrt(judged.statistics)
    order = np.argsort(heights, kind="stable")
    names, trusted = fit.labels[order], fit.trusted[order]
    place, height = np.arange(1, len(order) + 1), heights[order]
    if judged is not None:
        limit = np.sqrt(judged.quantile(0.95)[order])
        ax.fill_between(place, 0, limit, color=QUIET, alpha=0.15, lw=0, label="95 % of clients that follow the model")
    for mask, colour, text in ((trusted, TRUSTED, "trusted"), (~trusted, DOUBTED, "down-weighted")):
        size = float(np.clip(2400.0 / len(order), 5.0, 18.0))
        ax.scatter(place[mask], height[mask], s=size, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    ax.locator_params(axis="x", integer=True)
    measure, by = (
        ("root of the score statistic", "score") if judged is not None else ("norm of the gradient", "gradient")
    )
    ax.set(xlabel=f"clients, by {by}", ylabel=measure, ylim=(0, None))
    key(ax, loc="upper left")
    ax.autoscale_view()
    name_points(ax, place, height, names, range(len(order) - 1, max(len(order) - 1 - label, -1), -1), left=True)
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
        Where to draw; without it the figure grows with the clients. Where names would overlap, only flagged clients
        are named.

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
    ax = axes_for(ax, (7.0, _height(1.4, len(table))))
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
        _intervals(ax, place, low, high, 2.0, "95 % under the model")
        value = np.maximum(value, 0.5 * low.min())
        ax.set(xscale="log", xlabel="score statistic / its mean under the model")
    for mask, colour, text in (
        (flagged, DOUBTED, f"flagged at q = {screened.q:g}"),
        (~flagged, TRUSTED, "not flagged"),
    ):
        size = float(np.clip(2400.0 / len(table), 5.0, 16.0))
        ax.scatter(value[mask], place[mask], s=size, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    # From the top; where rows are crowded only flagged clients are named.
    name_rows(ax, table.index[order], "clients, by statistic", np.flatnonzero(flagged)[::-1][:MOST_NAMED])
    # Above the axes: clients fill the rest from corner to corner.
    columns = 3 if ax.bbox.width / ax.figure.dpi > 5.0 else 1
    key(ax, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize="small")
    return without_frame(ax)


def heterogeneity(report: Heterogeneity, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the clients' deviations from the estimate in one coefficient, raw and shrunken.

    Parameters
    ----------
    report : Heterogeneity
        What ``res.heterogeneity()`` returned.
    coefficient : str, optional
        Which; without it the one with the largest spread in units of a client's standard error.
    ax : matplotlib axes, optional
        Where to draw. Where names would overlap, only the clients farthest off are named.

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
    table = report.to_frame()
    if coefficient is None:
        coefficient = str((table["tau"] / table["client se"]).fillna(0.0).idxmax())
    if coefficient not in table.index:
        raise ValueError(f"coefficient is {coefficient!r}; choose one of {listing(table.index)}")
    clients = report.clients.xs(coefficient, level="coefficient").dropna(subset="deviation")
    clients = clients.sort_values("deviation", kind="stable")
    place = np.arange(len(clients))
    ax = axes_for(ax, (7.0, _height(1.6, len(clients))))
    reach = 1.96 * clients["se"].to_numpy()
    raw, shrunken = clients["deviation"].to_numpy(), clients["effect"].to_numpy()
    ax.axvline(0.0, color=QUIET, lw=0.8)
    ax.set_ylim(-1, len(place))
    _intervals(ax, place, raw - reach, raw + reach, 1.5, "")
    size = float(np.clip(2400.0 / len(place), 3.0, 14.0))
    ax.scatter(raw, place, s=size, facecolors="none", edgecolors=DOUBTED, label="own estimate, 95 % interval", zorder=3)
    ax.scatter(shrunken, place, s=size, color=TRUSTED, label="shrunken (empirical Bayes)", zorder=4)
    tau = table.loc[coefficient, "tau"]
    ax.set(xlabel=f"{coefficient}: deviation from the estimate (tau = {tau:.3g})")
    farthest = np.argsort(-np.abs(raw / np.maximum(reach, np.finfo(float).tiny)), kind="stable")
    name_rows(ax, clients.index, "clients, by deviation", farthest[:MOST_NAMED])
    key(ax, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")
    return without_frame(ax)


def _height(frame: float, rows: int) -> float:
    """Return the height of a figure with so many rows: with a name each, or of one page."""
    tall = frame + 0.13 * rows
    return float(max(tall, 3.0)) if tall <= 15.0 else 7.0


def _intervals(ax: Axes, place: Any, low: Array, high: Array, width: float, label: str) -> None:
    """Draw one interval a row; an area where lines would be too close to be told apart."""
    if row_points(ax, len(place)) >= CROWD:
        ax.hlines(place, low, high, color=QUIET, alpha=0.45, lw=width, label=label)
    else:
        ax.fill_betweenx(place, low, high, step="mid", color=QUIET, alpha=0.3, lw=0, label=label)
