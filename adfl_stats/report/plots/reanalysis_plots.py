"""Plots of a fit made again: under other choices, and on clients drawn anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._arguments import listing
from adfl_stats.report.plots._axes import DOUBTED, QUIET, TRUSTED, axes_for, name_rows, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.bootstrap import Bootstrap
    from adfl_stats.inference.sensitivity import Sensitivity

__all__ = ["bootstrap", "sensitivity"]

# Clients left out that are drawn: those that move the estimate most.
MOST_DRAWN = 10


def sensitivity(report: Sensitivity, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
    """Plot one coefficient under every choice, with the 95 % interval of each fit.

    Parameters
    ----------
    report : Sensitivity
        What ``res.sensitivity()`` returned.
    coefficient : str, optional
        Which; without it the one that moves most.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=8, n=40, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(8, 3)).fit(heterogeneity="none")
    >>> ad.plots.sensitivity(res.sensitivity(clients=False), "x1").get_xlabel()
    'x1'
    """
    name = _checked(coefficient, report.params.columns, report.shift.abs().max())
    table = report.to_frame(name)
    left = table.index.get_level_values(0) == "without"
    most = table[left].sort_values("shift", key=np.abs, ascending=False).index[:MOST_DRAWN]
    table = pd.concat([table[~left], table.loc[most]])[::-1]
    ax = axes_for(ax, (7.0, 1.0 + 0.22 * len(table)))
    place = np.arange(len(table))
    reach, base = stats.t.isf(0.025, table["df"]) * table["se"].to_numpy(), table.iloc[-1]
    ax.axvspan(base["coef"] - reach[-1], base["coef"] + reach[-1], color=QUIET, alpha=0.15, lw=0)
    colours = [TRUSTED if abs(shift) < 1.0 else DOUBTED for shift in table["shift"]]
    ax.hlines(place, table["coef"] - reach, table["coef"] + reach, color=colours, lw=1.0)
    ax.scatter(table["coef"], place, s=16, c=colours, zorder=3)
    name_rows(ax, [f"{what} {value}".strip() for what, value in table.index], "choices", longest=30)
    ax.set_xlabel(name)
    ax.set_title("grey: this fit\nred: moved by more than one standard error", fontsize="medium")
    return without_frame(ax)


def bootstrap(report: Bootstrap, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
    """Plot the draws of one coefficient, beside the normal law with the standard error of the fit.

    Parameters
    ----------
    report : Bootstrap
        What ``res.bootstrap()`` returned.
    coefficient : str, optional
        Which; without it the one whose bootstrap standard error differs most from the fit's.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> ad.plots.bootstrap(res.bootstrap(20), "x1").get_xlabel()
    'x1'
    """
    name = _checked(coefficient, report.params.index, np.log(report.bse / report.se).abs())
    ax = axes_for(ax)
    draws, centre, se = report.estimates[name], report.params[name], report.se[name]
    bins = int(np.clip(2.0 * np.sqrt(len(draws)), 8, 30))
    ax.hist(draws, bins=bins, density=True, color=TRUSTED, alpha=0.5, label=f"{len(draws)} draws")
    low, high = report.conf_int().loc[name]
    for limit, text in ((low, "95 % interval by the draws"), (high, None)):
        ax.axvline(limit, color=TRUSTED, lw=1.0, ls="--", label=text)
    grid = np.linspace(min(draws.min(), centre - 3.5 * se), max(draws.max(), centre + 3.5 * se), 200)
    ax.plot(grid, stats.norm.pdf(grid, centre, se), color=DOUBTED, lw=1.5, label="normal, given the final weights")
    ax.axvline(centre, color="black", lw=1.0, label="estimate")
    ax.set(xlabel=name, ylabel="density")
    # Above the axes: inside, limits and bars may be anywhere.
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return without_frame(ax)


def _checked(coefficient: str | None, names: pd.Index, size: pd.Series) -> str:
    """Return the name of a coefficient: the one given, or that with the largest size."""
    if coefficient is None:
        return str(size.idxmax())
    if coefficient not in names:
        raise ValueError(f"coefficient is {coefficient!r}; it is one of {listing(names)}")
    return coefficient
