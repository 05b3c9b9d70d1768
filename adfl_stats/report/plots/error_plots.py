"""Optimisation, consensus and statistical error by round, in one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adfl_stats.report.plots._axes import DOUBTED, QUIET, TRUSTED, axes_for, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.theory.rates import Rates

__all__ = ["convergence"]


def convergence(rates: Rates, ax: Axes | None = None, tolerance: float = 0.05) -> Axes:
    """Draw optimisation and consensus error by round beside the statistical error, all in standard errors.

    The optimisation error is how far the clients' mean is from the solution of the weighted estimating equation, the
    consensus error the root mean square distance of the clients from their mean, each for the coefficient where it is
    worst (equation (4.1) at the fit's step, from the usual start). They end where a fixed step ends; rounds beyond the
    point where their sum is small beside 1 gain nothing.

    Parameters
    ----------
    rates : Rates
        What ``model.rates(res)`` returned.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.
    tolerance : float
        The numerical error that is small enough; the round from which on the sum of the two stays below it is marked.

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
    >>> ad.plots.convergence(model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))).get_ylabel()
    'standard errors, worst coefficient'
    """
    ax = axes_for(ax)
    table = rates.distances
    at = table["round"].to_numpy()
    for name, colour, style in (("optimisation", TRUSTED, "-"), ("consensus", DOUBTED, "--")):
        error = table[name].to_numpy()
        # Zeros have no place on a log scale.
        ax.plot(at, np.where(error > 0.0, error, np.nan), color=colour, ls=style, lw=1.8, label=f"{name} error")
    ax.axhline(1.0, color="black", lw=1.2, label="statistical error")
    ax.axhline(tolerance, color=QUIET, lw=1.0, ls=":", label=f"tolerance {tolerance:g}")
    small = (table["optimisation"] + table["consensus"]).to_numpy() <= tolerance
    # The last round above it, of those that were computed.
    above = np.flatnonzero(~small)
    if small[-1:].any():
        reached = int(at[above[-1] + 1]) if above.size else int(at[0])
        ax.axvline(reached, color=QUIET, lw=1.0, ls="-.", label=f"below it from round {reached}")
    ax.set(xlabel="round", ylabel="standard errors, worst coefficient", yscale="log")
    ax.legend(frameon=False, fontsize="small")
    return without_frame(ax)
