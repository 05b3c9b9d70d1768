"""How much clients differ: Cochran's Q, I^2, the spread of each coefficient, intervals for the mean and a new client.

Every client's own estimate is one scoring step from the common one, with its sampling variance; what they vary beyond
that is heterogeneity. Q, I^2 (Higgins and Thompson, 2002), tau by Paule and Mandel (1982) and its interval by the
Q-profile method (Viechtbauer, 2007) are those of a random-effects meta-analysis over the clients that the fit
takes as normal.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import optimize, stats

from adfl_stats._arguments import in_interval
from adfl_stats._text import fixed, framed, printable_lines
from adfl_stats._types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.results import Results

__all__ = ["Heterogeneity", "heterogeneity_of", "paule_mandel", "q_profile"]


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """How much clients differ; made by `Results.heterogeneity`.

    Parameters
    ----------
    statistic, df, p_value : float
        Cochran's Q over all coefficients, from the clients' scores: its degrees of freedom, and the p-value of
        clients that share one parameter (scores with heavy tails are allowed for).
    i_squared : float
        max(0, (Q - df) / Q): the share of the variation between clients' estimates that sampling does not explain.
    kind : str
        The spread that the fit's weights and standard errors allow for: "none", "common" (one variance in units of a
        client's standard error), "diagonal", "rank k" (directions in which clients differ), or sums of these; with
        "heavy tails" the clients' effects follow a t distribution with 5 degrees of freedom.
    spread : DataFrame
        T, the covariance of the clients' parameters under that.
    n_clients : int
        Clients that the fit takes as normal and whose rows identify all coefficients.
    _table, _intervals, _clients : DataFrame
        What `to_frame`, `intervals` and `clients` return.
    alpha : float
        One minus the level of the intervals.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> report = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit().heterogeneity()
    >>> report.kind, report.n_clients, list(report.to_frame().columns)[:3]
    ('none', 20, ['tau', 'lower', 'upper'])
    """

    statistic: float
    df: float
    p_value: float
    i_squared: float
    kind: str
    spread: pd.DataFrame
    n_clients: int
    _table: pd.DataFrame
    _intervals: pd.DataFrame
    _clients: pd.DataFrame
    alpha: float

    def to_frame(self) -> pd.DataFrame:
        """Return tau and Cochran's Q of every coefficient.

        Returns
        -------
        DataFrame
            One row per coefficient. tau : standard deviation between clients (Paule and Mandel); lower, upper : its
            interval (Q-profile); Q, p_value, i_squared : of this coefficient alone; client se : a typical client's
            standard error.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> report = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit().heterogeneity()
        >>> report.to_frame().columns.tolist()
        ['tau', 'lower', 'upper', 'Q', 'p_value', 'i_squared', 'client se']
        """
        return self._table.copy()

    def intervals(self) -> pd.DataFrame:
        """Return intervals for the mean over clients and for a new client.

        Returns
        -------
        DataFrame
            One row per coefficient: the estimate with its confidence interval, which is for the mean over clients as
            the fit weighs them, and a prediction interval, which contains the parameter of one more client like these
            with probability 1 - alpha (Higgins, Thompson and Spiegelhalter, 2009): its variance adds T.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> report = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit().heterogeneity()
        >>> report.intervals().columns.tolist()
        ['estimate', 'lower', 'upper', 'new client, lower', 'new client, upper']
        """
        return self._intervals.copy()

    def plot(self, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw the clients' deviations in one coefficient, raw and shrunken.

        Parameters
        ----------
        coefficient : str, optional
            Which; without it the one with the largest spread in units of a client's standard error.
        ax : matplotlib axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib axes
            The axes.
        """
        from adfl_stats.report.plots import heterogeneity

        return heterogeneity(self, coefficient, ax)

    @property
    def clients(self) -> pd.DataFrame:
        """Deviations of every client, raw and shrunken, with standard errors; as `Results.client_effects`."""
        return self._clients.copy()

    def __str__(self) -> str:
        table = self._table.to_string(float_format=lambda value: f"{value:.4g}")
        return framed("Clients that differ", table, self._notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        table = self._table.to_html(float_format="{:.4g}".format)
        return printable_lines(f"<h3>Clients that differ</h3>{table}{notes}")

    @property
    def _notes(self) -> list[str]:
        return [
            f"Cochran's Q = {fixed(self.statistic)} on {self.df:.0f} df, p = {self.p_value:.2g}; "
            f"I^2 = {self.i_squared:.0%}.",
            f"Each tau is from the {self.n_clients} normal clients whose rows identify all coefficients.",
            f"The fit allows for a spread of kind: {self.kind}.",
        ]


def heterogeneity_of(res: Results, alpha: float = 0.05) -> Heterogeneity:
    """Describe how much the clients of a fit differ; see `Results.heterogeneity`."""
    alpha = in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
    fit, clients, own = res.record, res.record.clients, res.record.effects
    use = (clients.probabilities[:, 0] > 0.5) & np.isfinite(own.deviations).all(axis=1)
    names = fit.names
    # Medians and the search for tau take the deviations of all clients.
    deviations, errors = (clients.members.gather(part[use]) for part in (own.deviations, own.errors))
    normal = len(deviations)
    rows = [_coefficient(deviations[:, j].copy(), errors[:, j].copy(), alpha) for j in range(len(names))]
    table = pd.DataFrame(rows, index=names)
    intervals = res.conf_int(alpha)
    intervals.columns = ["lower", "upper"]
    intervals.insert(0, "estimate", res.params)
    df = np.maximum(res.degrees_of_freedom() if res.use_t else max(normal - 1, 1), 1.0)
    # The larger of the two estimates of tau: where the model has none, that of the coefficient alone still counts.
    between = np.fmax(np.diag(clients.spread), np.square(table["tau"].to_numpy()))
    reach = stats.t.isf(alpha / 2.0, df) * np.sqrt(np.square(res.bse) + between)
    intervals["new client, lower"], intervals["new client, upper"] = res.params - reach, res.params + reach
    statistic, df_q, p_value = clients.cochran
    spread = pd.DataFrame(clients.spread, index=names, columns=names)
    return Heterogeneity(
        statistic=statistic,
        df=df_q,
        p_value=p_value,
        i_squared=max(0.0, 1.0 - df_q / statistic) if statistic > 0 else 0.0,
        kind=clients.spread_kind,
        spread=spread,
        n_clients=normal,
        _table=table,
        _intervals=intervals,
        _clients=res.client_effects(),
        alpha=alpha,
    )


def _coefficient(deviations: Array, errors: Array, alpha: float) -> dict[str, float]:
    """Return the meta-analysis of one coefficient."""
    if len(deviations) < 2:
        return dict.fromkeys(("tau", "lower", "upper", "Q", "p_value", "i_squared", "client se"), np.nan)
    variances, df = np.square(errors), len(deviations) - 1
    Q = _q(0.0, deviations, variances)
    lower, upper = q_profile(deviations, variances, alpha)
    return {
        "tau": float(np.sqrt(paule_mandel(deviations, variances))),
        "lower": float(np.sqrt(lower)),
        "upper": float(np.sqrt(upper)),
        "Q": Q,
        "p_value": float(stats.chi2.sf(Q, df)),
        "i_squared": max(0.0, 1.0 - df / Q) if Q > 0 else 0.0,
        "client se": float(np.median(errors)),
    }


def _q(tau2: float, estimates: Array, variances: Array) -> float:
    """Return the generalised Q statistic: squared distances from the weighted mean, with variances plus tau^2."""
    weights = 1.0 / (variances + tau2)
    mean = float(weights @ estimates / weights.sum())
    return float(weights @ np.square(estimates - mean))


def paule_mandel(estimates: Array, variances: Array) -> float:
    """Return tau^2 such that the generalised Q statistic equals its degrees of freedom; zero where it is below.

    Examples
    --------
    >>> round(paule_mandel(np.array([-1.0, 0.0, 1.0]), np.full(3, 0.25)), 6)
    0.75
    """
    return _root(estimates, variances, len(estimates) - 1.0)


def q_profile(estimates: Array, variances: Array, alpha: float) -> tuple[float, float]:
    """Return an interval for tau^2: where the generalised Q statistic lies between quantiles of chi-square."""
    df = len(estimates) - 1
    low, high = stats.chi2.isf(alpha / 2.0, df), stats.chi2.ppf(alpha / 2.0, df)
    return _root(estimates, variances, float(low)), _root(estimates, variances, float(high))


def _root(estimates: Array, variances: Array, value: float) -> float:
    """Return tau^2 at which Q, which falls with it, has this value; zero where it begins below."""
    if _q(0.0, estimates, variances) <= value:
        return 0.0
    top = float(np.square(estimates - np.median(estimates)).sum() / value + variances.max())
    while _q(top, estimates, variances) > value:
        top *= 2.0
    return float(optimize.brentq(lambda tau2: _q(tau2, estimates, variances) - value, 0.0, top, xtol=1e-12 * top))
