"""What was followed during the rounds, by client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adfl_stats.report.plots._axes import DOUBTED, TRUSTED, axes_for, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.objective_results import ObjectiveResults

__all__ = ["history"]


def history(res: ObjectiveResults, name: str = "loss", ax: Axes | None = None) -> Axes:
    """Draw a loss or metric over the rounds of the last run, a line for each client.

    Clients that are down-weighted have another colour.

    Parameters
    ----------
    res : ObjectiveResults
        A fit of `Losses` with a loss or metrics.
    name : str
        "loss", or one of the metrics.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> def loss(m, theta):
    ...     return float(np.sum((theta - m) ** 2) / 2)
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1), loss=loss)
    >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=20)
    >>> ad.plots.history(res).get_ylabel()
    'loss'
    """
    ax = axes_for(ax)
    lines = res.history(name)
    last = lines.loc[lines.index.get_level_values("run").max()]
    trusted = res.record.trusted
    for chosen, colour, label in ((trusted, TRUSTED, "clients with weight"), (~trusted, DOUBTED, "down-weighted")):
        for k, column in enumerate(np.flatnonzero(chosen)):
            ax.plot(last.index, last.iloc[:, column], color=colour, lw=1.0, alpha=0.6, label=label if k == 0 else None)
    ax.set(xlabel="round", ylabel=name)
    ax.legend(frameon=False, fontsize="small")
    return without_frame(ax)
