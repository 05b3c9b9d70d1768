"""Coefficients of several fits side by side (forest plot)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adfl_stats._arguments import in_interval, listing
from adfl_stats._types import NumbersByName
from adfl_stats.report.plots._axes import QUIET, axes_for, without_frame
from adfl_stats.report.plots.study_plots import CURVES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.results import Results

__all__ = ["coefficients"]


def coefficients(
    fits: Mapping[str, Results] | Sequence[Results],
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
    *,
    alpha: float = 0.05,
    theta0: NumbersByName | None = None,
) -> Axes:
    """Draw the coefficients of several fits with their confidence intervals, one below the other.

    Methods without standard errors (medians, clipping, ...) have points without an interval.

    Parameters
    ----------
    fits : mapping of str to Results, or sequence of Results
        The fits by name; in a sequence their methods are the names.
    names : sequence of str, optional
        The coefficients to draw; all if not given. Coefficients of very different size are best drawn apart.
    ax : matplotlib axes, optional
        Where to draw; a new figure, which grows with the rows, if not given.
    alpha : float
        Intervals are at level 1 - alpha.
    theta0 : Series, dict or array, optional
        True values, drawn as vertical lines; an array is in the order of the first fit's coefficients.

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
    >>> ax = ad.plots.coefficients([model.fit(), model.fit(ad.DFL())], theta0=sim.theta0)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['aDFL', 'DFL', 'true value']
    """
    from adfl_stats.theory.truth import true_parameter

    named = _named(fits)
    in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
    known = list(dict.fromkeys(name for res in named.values() for name in res.params.index))
    chosen = known if names is None else [names] if isinstance(names, str) else list(names)
    if strange := [name for name in chosen if name not in known]:
        raise ValueError(f"names has {listing(strange)}; the fits have the coefficients {listing(known)}")
    ax = axes_for(ax, (7.0, float(np.clip(1.2 + len(chosen) * (0.22 + 0.16 * len(named)), 2.5, 14.0))))
    ax.axvline(0.0, color=QUIET, lw=0.8)
    places = np.arange(len(chosen))[::-1]
    offsets = np.linspace(0.3, -0.3, len(named)) if len(named) > 1 else np.zeros(1)
    for k, (name, res) in enumerate(named.items()):
        estimate = res.params.reindex(chosen).to_numpy()
        reach = res.conf_int(alpha)[1].reindex(chosen).to_numpy() - estimate
        colour, mark = (CURVES[k % len(CURVES)][part] for part in ("color", "marker"))
        at = places + offsets[k]
        ax.hlines(at, estimate - reach, estimate + reach, color=colour, lw=1.4)
        ax.plot(estimate, at, ls="none", ms=5, label=name, color=colour, marker=mark)
    if theta0 is not None:
        first = next(iter(named.values()))
        truth = dict(zip(first.params.index, true_parameter(theta0, list(first.params.index)), strict=True))
        there = [k for k, name in enumerate(chosen) if name in truth]
        values = [truth[chosen[k]] for k in there]
        ax.vlines(values, places[there] - 0.42, places[there] + 0.42, color="black", lw=1.2, label="true value")
    ax.set_yticks(places, chosen)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(-0.6, len(chosen) - 0.4), xlabel=f"coefficient, {100 * (1 - alpha):.4g} % interval")
    ax.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(len(named) + 1, 4), fontsize="small"
    )
    return without_frame(ax)


def _named(fits: Mapping[str, Results] | Sequence[Results]) -> dict[str, Results]:
    """Return the fits by name; those of one method are numbered."""
    if isinstance(fits, Mapping):
        named = {str(name): res for name, res in fits.items()}
    else:
        several = list(fits) if isinstance(fits, Sequence) else [fits]
        methods = [getattr(getattr(res, "record", None), "method", type(res).__name__) for res in several]
        named = {
            method if methods.count(method) == 1 else f"{method} ({methods[:k].count(method) + 1})": res
            for k, (method, res) in enumerate(zip(methods, several, strict=True))
        }
    if not named:
        raise ValueError("fits is empty; give at least one fit")
    for name, res in named.items():
        if not hasattr(res, "conf_int"):
            raise TypeError(
                f"fits[{name!r}] is a {type(res).__name__}; wanted are results of a fit, by name or in a list"
            )
    return named
