"""Which clients are abnormal: calibrated score tests of all clients, and control of false discoveries.

The statistic of client m is s_m' V_m^+ s_m / phi, Rao's score statistic of its gradient at the estimate with
the variance that the gradient has there (see `evidence`). In the Gaussian model it is chi-square for given
weights and dispersion, however many parameters there are. In general its variance is

    2 r_m + kappa L_m,

where r_m is its degrees of freedom, L_m a sum of squared leverages and kappa the excess kurtosis of the rows'
scores, and the dispersion is estimated besides. The reference is the F distribution with r_m degrees of freedom
whose second degrees of freedom give it that variance: scores of small clients have heavy tails, and so has it.
(A gamma distribution of the same variance is too light beyond its .99 quantile, where flags are decided.)
The dispersion phi and kappa belong to all clients: a client's own residuals must not set its own scale. They
are found over the clients that are not suspicious, starting from medians over clients.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from adfl_stats._validation import in_interval, one_of
from adfl_stats.accuracy import sandwich
from adfl_stats.fit import Fit

__all__ = ["METHODS", "Null", "Screening", "null_of", "screen", "screen_fit"]

Array = NDArray[np.float64]

METHODS = ("score", "mirror")
LEVEL = 0.1
# A printed table has the flagged clients and the next few, up to so many rows.
NEXT_SHOWN, MOST_SHOWN = 5, 60
WIDTH = 78


@dataclass(frozen=True, eq=False)
class Null:
    """What a client that follows the model is held against.

    Attributes
    ----------
    dispersion : float
        phi, over the clients that are not suspicious; at least one where the family has none to estimate.
    kurtosis : float
        kappa, the excess kurtosis of the rows' scores.
    inner, outer : ndarray (M,)
        Degrees of freedom of the F distribution that a statistic over its mean is held against, after it
        has been scaled to mean one.
    p_values : ndarray (M,)
        Of the clients' statistics.
    """

    dispersion: float
    kurtosis: float
    inner: Array
    outer: Array
    p_values: Array

    def quantile(self, level: float) -> Array:
        """Return what a normal client's statistic over its mean stays below with probability `level`, (M,)."""
        return np.asarray(stats.f.ppf(level, self.inner, self.outer) * (1.0 - 2.0 / self.outer))


@dataclass(frozen=True, eq=False)
class Screening:
    """The verdict on every client; made by `screen`.

    Attributes
    ----------
    q : float
        The false discovery rate that the flags allow.
    method : {"score", "mirror"}
        What the flags go by.
    null : Null
        What the clients were held against: dispersion, kurtosis, degrees of freedom.
    shifts : DataFrame
        How each coefficient would move if the client were left out (clients x coefficients): one Newton
        step from the estimate, exact in the Gaussian model. Clients without weight move nothing.
    """

    q: float
    method: str
    null: Null
    shifts: pd.DataFrame
    _table: pd.DataFrame

    @property
    def flagged(self) -> pd.Index:
        """The labels of the flagged clients, in the order of the data."""
        return self._table.index[self._table["flagged"]]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per client, in the order of the data.

        n : rows; statistic, df : the score statistic and its mean under the model; p_value : of it;
        adjusted : the smallest false discovery rate at which Benjamini and Hochberg's rule would flag the
        client; mirror : the split-sample statistic, about symmetric around zero under the model; flagged;
        weight : omega_m of the fit; shift : the largest move of a coefficient, in standard errors, if the
        client were left out.
        """
        return self._table.copy()

    def plot(self, ax: Any = None) -> Any:
        """Draw the clients one above the other: their statistics, where these usually lie, and the flags."""
        from adfl_stats.plots import screening

        return screening(self, ax)

    def __str__(self) -> str:
        order = ["flagged", *(["mirror"] if self.method == "mirror" else []), "p_value", "statistic"]
        table = self._table.sort_values(order, ascending=[name == "p_value" for name in order], kind="stable")
        shown = table.head(min(len(self.flagged) + NEXT_SHOWN, MOST_SHOWN))
        lines = [self._title.center(WIDTH).rstrip(), "=" * WIDTH]
        lines += shown.rename(columns=_SHORT).to_string(formatters=_FORMATS, index_names=False).splitlines()
        lines.append("=" * WIDTH)
        if len(table) > len(shown):
            lines.append(f"The {len(shown)} most suspicious of {len(table)} clients; to_frame() has all.")
        return "\n".join([*lines, *self._notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._table.rename(columns=_SHORT).to_html(formatters=_FORMATS, max_rows=None)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        return f"<h3>{html.escape(self._title)}</h3>{table}{notes}"

    @property
    def _title(self) -> str:
        rule = "score test" if self.method == "score" else "mirror statistic"
        return f"{len(self.flagged)} of {len(self._table)} clients flagged by the {rule} at q = {self.q:g}"

    @property
    def _notes(self) -> list[str]:
        return [
            f"Held against dispersion {self.null.dispersion:.4g} and excess kurtosis {self.null.kurtosis:.2f} of the "
            "other clients.",
            "Flags are about the estimate at hand; where the fit is not robust they mislead.",
        ]


def screen(res: Any, q: float = LEVEL, *, method: str = "score") -> Screening:
    """Say which clients of a fit are abnormal, with at most a share `q` of false flags on average.

    Parameters
    ----------
    res : Results
        A robust fit. At an estimate that the abnormal clients have bent (as plain DFL's is), the gradients
        of normal clients are not zero in the mean either, and flags mean nothing.
    q : float
        False discovery rate: the expected share of normal clients among the flagged ones.
    method : {"score", "mirror"}
        "score": Benjamini and Hochberg's rule on the p-values of the score statistics. "mirror": the
        split-sample rule of ByMI (Qian, Wang, Ren and Zou, 2024), which needs no reference distribution
        but symmetry: with W_m the product of the scores of two halves of the client's rows, flag W_m >= L
        for the smallest L with (1 + #{W <= -L}) / #{W >= L} <= q. It flags nobody where fewer than 1 / q
        clients are abnormal, and wants rows in an order that means nothing, or halves alike.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=5)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> set(ad.screen(res).flagged) >= set(sim.abnormal_labels)
    True
    """
    fit = getattr(res, "_fit", None)
    if not isinstance(fit, Fit):
        raise TypeError(f"res is a {type(res).__name__}; pass the results of a fit, as in ad.screen(model.fit())")
    return screen_fit(fit, q, method)


def screen_fit(fit: Fit, q: float = LEVEL, method: str = "score") -> Screening:
    """Screen the clients of a `Fit`; see `screen`."""
    q = in_interval(q, "q", 0.0, 1.0, open_low=True, open_high=True)
    one_of(method, "method", METHODS)
    found, null = fit.evidence, null_of(fit)
    mirror = found.mirror / null.dispersion - found.mirror_mean
    adjusted = stats.false_discovery_control(null.p_values)
    flagged = adjusted <= q if method == "score" else mirror >= _mirror_limit(mirror, q)
    se = np.sqrt(np.diag(sandwich(fit.evaluation.hessian, fit.evaluation.meat)[1]))
    # Data without noise have standard errors of zero, and shifts that are rounding.
    se = np.maximum(se, 1e-10 * (1.0 + np.abs(fit.theta.mean(axis=0))))
    index = fit.labels.rename(fit.client_name)
    table = pd.DataFrame(
        {
            "n": fit.sizes,
            "statistic": found.statistic / null.dispersion,
            "df": found.rank,
            "p_value": null.p_values,
            "adjusted": adjusted,
            "mirror": mirror,
            "flagged": flagged,
            "weight": fit.weights,
            "shift": np.max(np.abs(found.shift) / se, axis=1),
        },
        index=index,
    )
    shifts = pd.DataFrame(found.shift, index=index, columns=fit.names)
    return Screening(q, method, null, shifts, table)


def null_of(fit: Fit) -> Null:
    """Find dispersion, kurtosis and p-values together: those who set the scale are not suspicious by it."""
    found = fit.evidence
    # Medians survive any minority; they are too large by what the abnormal clients displace, which costs
    # some power in this first round only.
    ratio = np.divide(found.peak, found.expected_peak, out=np.ones(len(found.peak)), where=found.expected_peak > 0)
    scale = float(np.median(found.dispersion))
    null = _null(fit, scale, float(np.median(ratio)), float(fit.sizes.sum()))
    clean = np.zeros(len(fit.sizes), dtype=bool)
    for _ in range(20):
        before, clean = clean, stats.false_discovery_control(null.p_values) > LEVEL
        if not clean.any() or np.array_equal(before, clean):
            break
        rows = float(fit.sizes[clean].sum())
        df = max(rows - len(fit.names), 1.0)
        scale = float(fit.sizes[clean] @ found.dispersion[clean]) / df
        expected = found.expected_peak[clean].sum()
        null = _null(fit, scale, float(found.peak[clean].sum() / expected) if expected > 0 else 1.0, df)
    return null


def _null(fit: Fit, scale: float, peak: float, df: float) -> Null:
    """Return p-values at a given mean squared residual and peak (the mean of e_i^2 over its normal value)."""
    found = fit.evidence
    # The floor serves data without noise; where the dispersion should be one, more of it is allowed for.
    dispersion = max(scale, 1e-100 if fit.family.estimates_scale else 1.0)
    # Kurtosis is at least -2. A normal e_i has E e_i^2 = 3, of which the excess is one third.
    kurtosis = max(3.0 * peak / max(dispersion, scale) ** 2 - 3.0, -2.0)
    rank = np.maximum(found.rank, 1)
    # Light tails are not counted on: the statistic's own are then not as light as its variance says.
    heavy = max(kurtosis, 0.0)
    excess = heavy * found.expected_peak / (3.0 * rank**2) + fit.family.estimates_scale * (2.0 + heavy) / df
    # F with r and d degrees of freedom, scaled to mean one, has variance 2 / r + excess for this d.
    outer = 4.0 + (2.0 * rank + 4.0) / np.maximum(rank * excess, 1e-8)
    p_values = stats.f.sf(found.statistic / (dispersion * rank) / (1.0 - 2.0 / outer), rank, outer)
    return Null(dispersion, kurtosis, rank, outer, np.where(found.rank > 0, p_values, 1.0))


def _mirror_limit(mirror: Array, q: float) -> float:
    """Return ByMI's limit L, infinite where no limit keeps the estimated share of false flags below q."""
    for limit in np.sort(np.abs(mirror)):
        if 1 + np.sum(mirror <= -limit) <= q * max(np.sum(mirror >= limit), 1):
            return float(limit)
    return np.inf


_SHORT = {"statistic": "score", "p_value": "p", "adjusted": "adj. p", "shift": "shift, SE"}
_FORMATS = {
    "score": "{:.1f}".format,
    "p": "{:.2g}".format,
    "adj. p": "{:.2g}".format,
    "mirror": "{:.1f}".format,
    "flagged": lambda value: "yes" if value else "",
    "weight": "{:.2g}".format,
    "shift, SE": "{:.3f}".format,
}
