"""Plots of how a fit went: trace of the runs, lambdas tried, rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adfl_stats.report.plots._axes import DOUBTED, QUIET, TRUSTED, axes_for, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.results import Results
    from adfl_stats.theory.rates import Rates

__all__ = ["lambda_path", "rates", "trace"]

# Points of a line that are marked. Ours.
MOST_MARKED = 80


def trace(res: Results, ax: Axes | None = None) -> Axes:
    """Plot how far clients move in a round, and how far apart they are, over all rounds of the fit.

    Where the limit was solved for there are no rounds: the axis counts the solver's passes over the data, and a move is
    that of an iteration.

    Parameters
    ----------
    res : Results
        A fit.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

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
    >>> ad.plots.trace(model.fit(ad.DFL(), step=0.1, rounds=50)).get_xlabel()
    'round'
    """
    ax = axes_for(ax)
    table = res.trace
    lengths = table.groupby("run")["round"].max()
    begin = lengths.cumsum().shift(fill_value=0)
    at = table["round"] + table["run"].map(begin)
    step, axis = (
        ("a round", "round") if res.solver == "rounds" else ("an iteration", "pass of the solver over the data")
    )
    values = table[["moved", "consensus"]].to_numpy()
    positive = values[np.isfinite(values) & (values > 0.0)]
    # A log scale has no zero: clients that agree exactly are drawn below all others, and said to be so.
    least = 0.1 * float(positive.min()) if positive.size else 1e-16
    lines = (("moved", TRUSTED, f"longest move of a client in {step}"), ("consensus", DOUBTED, "spread of the clients"))
    for name, colour, text in lines:
        for k, (_, rows) in enumerate(table.groupby("run")):
            # One line a run: between two of them the estimates do not move.
            height = np.maximum(rows[name].to_numpy(), least)
            # A run of one check is a point.
            size = 3.0 if len(table) <= MOST_MARKED or len(rows) == 1 else 0.0
            ax.plot(at[rows.index], height, "o-", ms=size, color=colour, lw=1.2, label=text if k == 0 else None)
    zero = (values == 0.0).any()
    for k, edge in enumerate(begin.iloc[1:]):
        ax.axvline(edge, color=QUIET, lw=0.8, ls=":", label="next run" if k == 0 else None)
    ax.set(xlabel=axis, ylabel="distance between estimates" + (" (lowest: 0)" if zero else ""), yscale="log")
    ax.legend(frameon=False)
    return without_frame(ax)


def lambda_path(res: Results, ax: Axes | None = None) -> Axes:
    """Plot the cross-validation score of each lambda with its standard error, and how many clients it trusts.

    The title says where the choice is at the grid's edge.

    Parameters
    ----------
    res : Results
        A fit by ``ADFL(lam="cv")``, or by several lambdas.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

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
    >>> ax = ad.plots.lambda_path(model.fit(ad.ADFL(lam=[1.0, 4.0]), step=0.1, rounds=50))
    >>> ax.get_xlabel()
    'lambda'
    """
    table = res.lambda_path
    if table is None:
        raise ValueError("res has no lambda_path: its lambda was given; fit with ADFL(lam='cv') or several lam")
    ax = axes_for(ax)
    at = np.arange(len(table))
    ax.errorbar(
        at, table["score"], table["se"], fmt="o-", color=TRUSTED, lw=1.2, capsize=3.0,
        label="held-out loss, better half of the clients, +- 1 SE",
    )  # fmt: skip
    best = int(np.argmax(table["chosen"]))
    ax.plot(best, table["score"][best], "o", ms=10, mfc="none", color=DOUBTED, label="chosen")
    ax.set_xticks(at, [f"{lam:.3g}" for lam in table["lam"]])
    ax.set_xlabel("lambda")
    ax.set_ylabel("score")
    other = ax.twinx()
    other.plot(at, table["trusted"], ":", color=QUIET, lw=1.2)
    other.locator_params(axis="y", integer=True)
    other.set_ylabel("trusted clients (dotted)", color=QUIET)
    if len(table) > 1 and best in (0, len(table) - 1):
        end = "smallest" if best == 0 else "largest"
        ax.set_title(f"The {end} lambda was chosen, at the grid's edge: others may be better", fontsize="medium")
    ax.legend(frameon=False, loc="best")
    return ax


def rates(rates: Rates, ax: Axes | None = None) -> Axes:
    """Draw the clients' distance from their limit by round, beside the exact and fitted factors and the paper's bound.

    The line of the exact factor ends where the distances end; it agrees with them once faster modes have decayed. The
    factor fitted to the fit's own trace, where it was seen at the same step, is drawn up to the end of that trace. The
    bound starts where the distances start, and its constant is open.

    Parameters
    ----------
    rates : Rates
        What ``model.rates(res)`` returned.
    ax : matplotlib axes, optional
        Where to draw.

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
    >>> ad.plots.rates(model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))).get_xlabel()
    'round'
    """
    ax = axes_for(ax)
    at, distance = rates.distances["round"].to_numpy(), rates.distances["distance"].to_numpy()
    ax.plot(at, distance, color=TRUSTED, lw=1.8, label="distance from the limit")
    # Where rounding has not yet taken over.
    seen = np.flatnonzero(distance > 1e-12 * distance[0])
    last = int(seen[-1]) if seen.size else 0
    factors = [("exact", rates.exact, "black", "--", last)]
    if rates.fitted_step == rates.step:
        traced = int(np.searchsorted(at, rates.fitted_last, side="right")) - 1
        factors.append(("fitted", rates.fitted, "#2e8b57", "-.", max(min(traced, last), 0)))
    for name, factor, colour, style, end in factors:
        if np.isfinite(factor):
            rounds = at if name == "exact" else at[: end + 1]
            back = distance[end] * factor ** (rounds - at[end])
            ax.plot(rounds, back, color=colour, lw=1.0, ls=style, label=f"{name} factor {factor:.5g}")
    # Where Condition 5 fails, the paper has no bound.
    if np.isfinite(rates.bound):
        bound = distance[0] * rates.bound**at
        ax.plot(at, bound, color=DOUBTED, lw=1.0, label=f"{rates.place}: {rates.bound:.5g}")
    ax.set(xlabel="round", ylabel="root mean square distance", yscale="log")
    ax.legend(frameon=False)
    return without_frame(ax)
