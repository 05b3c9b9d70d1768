"""Which clients do not fit the majority: score tests of all clients, and control of false discoveries.

The statistic of client m is s_m' Var(s_m)^+ s_m, Rao's score statistic of its gradient at the estimate. The variance,
and the F distribution of the statistic, are those of the fit's model of clients (`trust`): the
client's noise level, the spread between clients, heavy tails, and what the client's own rows did to the estimate. The
weights of the fit come from the same model. They differ in meaning: a weight is the probability of being normal
given all clients at once, where a coherent minority is detected although no single member of it is; a flag is a test of
one client.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._arguments import in_interval, one_of
from adfl_stats._text import fixed, framed, printable_lines
from adfl_stats._types import Array
from adfl_stats.inference.client_record import ClientRecord
from adfl_stats.inference.record import FitRecord
from adfl_stats.losses.design_checks import too_few_to_judge
from adfl_stats.trust.weights import trusted_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.results import Results

__all__ = ["METHODS", "Screening", "screen", "screen_fit", "verdicts"]


METHODS = ("score", "mirror")
# The default false discovery rate. Ours: the level that `benchmarks/real_clients.py` checks.
FDR = 0.1
# A printed table has the flagged clients and the next few, up to so many rows.
NEXT_SHOWN, MOST_SHOWN = 5, 60


@dataclass(frozen=True, eq=False)
class Screening:
    """Tests of all clients and the flags they give; made by `screen`.

    Parameters
    ----------
    q : float
        The false discovery rate that the flags allow.
    method : {"score", "mirror"}
        What the flags go by.
    clients : ClientRecord
        The null model of the tests: noise levels, spread, tails.
    shifts : DataFrame
        How each coefficient would move if the client were left out (clients x coefficients): one Newton
        step from the estimate, exact in the Gaussian model. Clients without weight move nothing.
    _table : DataFrame
        What `to_frame` returns.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=5)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> screening = ad.screen(ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit())
    >>> screening.q, screening.method, set(screening.flagged) >= set(sim.abnormal_labels)
    (0.1, 'score', True)
    """

    q: float
    method: str
    clients: ClientRecord
    shifts: pd.DataFrame
    _table: pd.DataFrame

    @property
    def flagged(self) -> pd.Index:
        """The labels of the flagged clients, in the order of the data."""
        return self._table.index[self._table["flagged"]]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per client, in the order of the data.

        Returns
        -------
        DataFrame
            n : rows; statistic, df : the score statistic and its mean under the model; p_value : of it;
            adjusted : the smallest false discovery rate at which Benjamini and Hochberg's rule would flag the
            client; mirror : the split-sample statistic, about symmetric around zero under the model; flagged;
            weight : omega_m of the fit; verdict : how the model of clients classifies it (see `Results.clients`);
            shift : the largest move of a coefficient, in standard errors, if the client were left out.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> table = ad.screen(res).to_frame()
        >>> bool(table.loc[sim.abnormal_labels, "flagged"].all())
        True
        """
        return self._table.copy()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw every client's statistic, its usual range under the model, and the flags.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib axes
            The axes.
        """
        from adfl_stats.report.plots import screening

        return screening(self, ax)

    def __str__(self) -> str:
        order = ["flagged", *(["mirror"] if self.method == "mirror" else []), "p_value", "statistic"]
        table = self._table.sort_values(order, ascending=[name == "p_value" for name in order], kind="stable")
        shown = table.head(min(len(self.flagged) + NEXT_SHOWN, MOST_SHOWN))
        shown = shown.drop(columns=[] if self.method == "mirror" else "mirror")
        text = shown.rename(columns=_SHORT).to_string(formatters=_FORMATS, index_names=False)
        left = [f"The {len(shown)} clients with the smallest p-values, of {len(table)}; to_frame() has all."]
        return framed(self._title, text, [*(left if len(table) > len(shown) else []), *self._notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._table.rename(columns=_SHORT).to_html(formatters=_FORMATS, max_rows=None)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        return printable_lines(f"<h3>{html.escape(self._title)}</h3>{table}{notes}")

    @property
    def _title(self) -> str:
        rule = "score test" if self.method == "score" else "mirror statistic"
        return f"{len(self.flagged)} of {len(self._table)} clients flagged by the {rule} at q = {self.q:g}"

    @property
    def _notes(self) -> list[str]:
        held = f"dispersion {self.clients.dispersion:.4g} and excess kurtosis {self.clients.kurtosis:.2f}"
        held += ", and the spread between clients" if self.clients.differ else ""
        return [
            f"Null distribution with {held}.",
            "A flag means that a client does not fit the majority, not that its data are corrupt.",
            "A flag tests one client; a weight is its probability of being normal given all of them.",
            *self._disagreements,
            "Flags are valid at a robust estimate only.",
        ]

    @property
    def _disagreements(self) -> list[str]:
        """Say where flags and weights differ, and why they may."""
        flagged, trusted = self._table["flagged"].to_numpy(), trusted_by(self._table["weight"].to_numpy())
        kept, only = int((flagged & trusted).sum()), int((~flagged & ~trusted).sum())
        notes = []
        if kept:
            notes.append(f"{kept} flagged client(s) keep their weight: up to a share q of the flags is false.")
        if only:
            notes.append(f"{only} client(s) are down-weighted and not flagged: no single test rejects at this level.")
        return notes


def screen(res: Results, q: float = FDR, *, method: str = "score") -> Screening:
    """Flag abnormal clients of a fit, with at most a share `q` of false flags on average.

    Parameters
    ----------
    res : Results
        A robust fit. At an estimate that is biased by the abnormal clients (as plain DFL's is), the gradients
        of normal clients are not zero in the mean either, and flags are not valid (masking and swamping).
    q : float
        False discovery rate: the expected share of normal clients among the flagged ones.
    method : {"score", "mirror"}
        "score": Benjamini and Hochberg's rule on the p-values of the score statistics. "mirror": the
        split-sample rule of ByMI (Qian, Wang, Ren and Zou, 2024), which needs no reference distribution
        but symmetry: with W_m the product of the scores of two halves of the client's rows, flag W_m >= L
        for the smallest L with (1 + #{W <= -L}) / #{W >= L} <= q. It flags nobody where fewer than 1 / q
        clients are abnormal, and needs rows in an order without meaning.

    Returns
    -------
    Screening
        Flags, statistics and p-values of all clients.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=5)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> set(ad.screen(res).flagged) >= set(sim.abnormal_labels)
    True
    """
    fit = getattr(res, "record", None)
    if not isinstance(fit, FitRecord):
        raise TypeError(
            f"res is a {type(res).__name__}; pass the results of a fit of a generalised linear model: tests of clients "
            "need the scores and curvatures of one"
        )
    _check_rows(fit)
    return screen_fit(fit, q, method)


def _check_rows(fit: FitRecord) -> None:
    """Refuse clients that cannot be judged by their scores."""
    reason = too_few_to_judge(fit.family, fit.clients.members.gather(fit.sizes), len(fit.names))
    if reason:
        raise ValueError(f"res has {reason}. Take fewer columns or classes, or larger clients, or ad.DFL()")


def adjusted_p_values(clients: ClientRecord) -> Array:
    """Return the p-values of our clients, adjusted for false discoveries among all (Benjamini & Hochberg 1995)."""
    return np.asarray(clients.members.ours(stats.false_discovery_control(clients.members.gather(clients.p_values))))


def screen_fit(fit: FitRecord, q: float = FDR, method: str = "score") -> Screening:
    """Screen the clients of a `FitRecord`; see `screen`."""
    q = in_interval(q, "q", 0.0, 1.0, open_low=True, open_high=True)
    one_of(method, "method", METHODS)
    diagnostics, clients, members = fit.diagnostics, fit.clients, fit.clients.members
    if method == "mirror" and clients.differ:
        raise ValueError(
            "method='mirror' takes clients that share one parameter; here they differ (see res.heterogeneity()), and "
            "the two halves of a client's rows share its deviation. Use method='score'"
        )
    mirror = diagnostics.mirror / max(clients.dispersion, np.finfo(float).tiny) - diagnostics.mirror_mean
    # Both rules order all clients; the table has a row for each of ours.
    adjusted = adjusted_p_values(clients)
    flagged = adjusted <= q if method == "score" else mirror >= _mirror_limit(members.gather(mirror), q)
    se = np.sqrt(np.diag(fit.sandwich))
    # Data without noise have standard errors of zero, and shifts that are rounding.
    se = np.maximum(se, 1e-10 * (1.0 + np.abs(members.mean(fit.theta))))
    index = fit.labels.rename(fit.client_name)
    table = pd.DataFrame(
        {
            "n": fit.sizes,
            "statistic": clients.statistics,
            "df": clients.ranks,
            "p_value": clients.p_values,
            "adjusted": adjusted,
            "mirror": mirror,
            "flagged": flagged,
            "weight": fit.weights,
            "verdict": verdicts(clients),
            "shift": np.max(np.abs(diagnostics.deletion_shift) / se, axis=1),
        },
        index=index,
    )
    shifts = pd.DataFrame(diagnostics.deletion_shift, index=index, columns=fit.names)
    return Screening(q, method, clients, shifts, table)


def verdicts(clients: ClientRecord) -> list[str]:
    """Return how the model classifies each client: "", "noisy", "coherent" (off together with others) or "far off"."""
    normal, coherent, gross = clients.probabilities.T
    words = np.where(coherent > gross, "coherent", "far off")
    words = np.where(normal > 0.5, np.where(clients.noisy, "noisy", ""), words)
    # Clients without weight of their own have no part in the model.
    words = np.where(clients.probabilities.any(axis=1), words, "")
    return [str(word) for word in words]


def _mirror_limit(mirror: Array, q: float) -> float:
    """Return ByMI's limit L, infinite where no limit keeps the estimated share of false flags below q."""
    for limit in np.sort(np.abs(mirror)):
        if 1 + np.sum(mirror <= -limit) <= q * max(np.sum(mirror >= limit), 1):
            return float(limit)
    return np.inf


_SHORT = {"statistic": "score", "p_value": "p", "adjusted": "adj. p", "shift": "shift, SE"}
_FORMATS = {
    "score": fixed,
    "p": "{:.2g}".format,
    "adj. p": "{:.2g}".format,
    "mirror": fixed,
    "flagged": lambda value: "yes" if value else "",
    "weight": "{:.2g}".format,
    "shift, SE": partial(fixed, decimals=3),
}
