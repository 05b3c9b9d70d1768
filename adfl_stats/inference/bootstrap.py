"""The bootstrap over clients: clients are drawn with replacement, and weights are estimated anew in each draw."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats._text import framed, printable_lines
from adfl_stats._warn import warn
from adfl_stats.errors import ConvergenceWarning
from adfl_stats.inference.refits import Refitter
from adfl_stats.inference.sites import on_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.engine.problem import Problem
    from adfl_stats.inference.results import Results

__all__ = ["Bootstrap", "bootstrap_of"]

INTERVALS = ("percentile", "basic")


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Estimates of a fit on clients drawn with replacement; made by ``res.bootstrap()``.

    Weights are re-estimated in each draw. Standard errors and intervals therefore include the variability of the
    selection of clients; those of the fit are conditional on the final weights.

    Attributes
    ----------
    estimates : DataFrame
        One row a draw, one column a coefficient.
    trusted : Series
        For each client, the share of the draws with it in which it kept its weight.
    failed : int
        Draws whose clients do not identify all coefficients; they are left out.
    params, se : Series
        Estimates and standard errors of the fit itself.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> draws = res.bootstrap(20, seed=1)
    >>> draws.estimates.shape, bool((draws.bse < 3 * res.bse).all())
    ((20, 3), True)
    """

    estimates: pd.DataFrame
    trusted: pd.Series
    failed: int
    params: pd.Series
    se: pd.Series

    @property
    def bse(self) -> pd.Series:
        """Standard deviations over the draws."""
        return self.estimates.std(ddof=1)

    @property
    def bias(self) -> pd.Series:
        """Means over the draws less the estimates."""
        return self.estimates.mean() - self.params

    def conf_int(self, alpha: float = 0.05, method: str = "percentile") -> pd.DataFrame:
        """Return confidence limits at level 1 - alpha; columns 0 and 1 as in statsmodels.

        Parameters
        ----------
        alpha : float
            One minus the level.
        method : {"percentile", "basic"}
            Quantiles of the draws; or the estimate less the quantiles of draw minus estimate.

        Returns
        -------
        DataFrame
            Lower and upper limits of every coefficient.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit(ad.DFL(), keep_data=True)
        >>> draws = res.bootstrap(40, seed=1)
        >>> limits = draws.conf_int(alpha=0.1)
        >>> bool((limits[0] < limits[1]).all())
        True
        """
        in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
        one_of(method, "method", INTERVALS)
        low, high = (self.estimates.quantile(level) for level in (alpha / 2.0, 1.0 - alpha / 2.0))
        if method == "basic":
            low, high = 2.0 * self.params - high, 2.0 * self.params - low
        return pd.DataFrame({0: low, 1: high})

    def to_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """Return one row a coefficient.

        Parameters
        ----------
        alpha : float
            Intervals are at level 1 - alpha.

        Returns
        -------
        DataFrame
            coef, se : of the fit; bootstrap se; bias; lower, upper : percentile limits.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit(ad.DFL(), keep_data=True)
        >>> draws = res.bootstrap(40, seed=1)
        >>> list(draws.to_frame().index)
        ['x1', 'x2']
        """
        limits = self.conf_int(alpha)
        return pd.DataFrame(
            {
                "coef": self.params,
                "se": self.se,
                "bootstrap se": self.bse,
                "bias": self.bias,
                "lower": limits[0],
                "upper": limits[1],
            }
        )

    def plot(self, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw the distribution of one coefficient over the draws, beside the normal law of the fit.

        Parameters
        ----------
        coefficient : str, optional
            Which; without it the one whose bootstrap standard error differs most from the fit's.
        ax : matplotlib axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib axes
            The axes.
        """
        from adfl_stats.report.plots import bootstrap

        return bootstrap(self, coefficient, ax)

    def __str__(self) -> str:
        table = self.to_frame().to_string(float_format=lambda value: f"{value:.4g}")
        return framed(self._title, table, self._notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        table = self.to_frame().to_html(float_format="%.4g")
        return printable_lines(f"<h3>{html.escape(self._title)}</h3>{table}{notes}")

    @property
    def _title(self) -> str:
        return f"Bootstrap over {len(self.trusted)} clients, {len(self.estimates)} draws, weights estimated in each"

    @property
    def _notes(self) -> list[str]:
        undecided = int(((self.trusted > 0.1) & (self.trusted < 0.9)).sum())
        notes = [
            f"{undecided} client(s) keep their weight in 10 to 90 % of the draws with them (see .trusted)."
            if undecided
            else "Every client has the same verdict in at least 90 % of the draws with it.",
            "Bootstrap standard errors and limits include the variability of the weights; se is conditional on them.",
        ]
        if self.failed:
            notes.append(f"{self.failed} draws do not identify all coefficients and were left out.")
        return notes


def bootstrap_of(res: Results, B: int, seed: int, *, progress: bool) -> Bootstrap:
    """Draw clients with replacement and fit again; what was drawn before an interrupt is kept."""
    whole_number(B, "B", 2)
    whole_number(seed, "seed", 0, None)
    call = f"bootstrap({B}, seed={seed})"
    return on_problem(res, call, lambda problem: _drawn(res, problem, B, seed, progress=progress))


def _drawn(res: Results, problem: Problem, B: int, seed: int, *, progress: bool) -> Bootstrap:
    """Make the draws, on all places of the problem together."""
    refits, M, rng = Refitter.of(res, "bootstrap", problem), problem.n_clients, np.random.default_rng(seed)
    counts = rng.multinomial(M, np.full(M, 1.0 / M), size=B)
    thetas, kept, drawn, done, failed = [], np.zeros(M), np.zeros(M), 0, 0
    try:
        for one in refits.each(list(counts), progress=progress, label="draws"):
            done += 1
            if not np.isfinite(one.theta).all():
                failed += 1
                continue
            thetas.append(one.theta)
            inside = one.counts > 0
            drawn += inside
            kept += inside & one.trusted
    except KeyboardInterrupt:
        # Other places would go on without this one.
        if len(thetas) < 2 or not problem.transport.here:
            raise
        warn(f"interrupted after {done} of {B} draws; these are returned", ConvergenceWarning)
    if len(thetas) < 2:
        raise ValueError(
            f"{failed} of {done} draws of clients do not identify all coefficients, which leaves no bootstrap; leave "
            "out coefficients that few clients identify"
        )
    share = np.divide(kept, drawn, out=np.full(M, np.nan), where=drawn > 0)
    trusted = pd.Series(share, index=res.record.labels, name="trusted")
    estimates = pd.DataFrame(np.array(thetas), columns=res.params.index).rename_axis("draw")
    return Bootstrap(estimates, trusted, failed, res.params, res.bse)
