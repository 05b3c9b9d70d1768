"""The fit compared with the oracle, the pooled and the local estimates."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._algebra import inverse, quadratic_forms
from adfl_stats._archives import digest
from adfl_stats._arguments import listing
from adfl_stats._client_sets import abnormal_mask
from adfl_stats._text import framed, printable_lines
from adfl_stats._types import Array, ClientSet, Mask
from adfl_stats.data.batches import batches
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.pooled import PointEstimate, local_estimates, pooled_estimate
from adfl_stats.engine.rank_data import RankData
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.inference.joined import own_record
from adfl_stats.inference.record import FitRecord
from adfl_stats.inference.sites import Site, at_sites
from adfl_stats.losses.families import Family

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results

__all__ = ["OracleComparison", "oracle_of"]


@dataclass(frozen=True, eq=False)
class OracleComparison:
    """The oracle estimate, theta_A of the paper's section 4, and the distance of other estimates from it.

    The oracle pools the rows of the normal clients; "pooled" those of all clients (the limit of DFL with equal
    influence); "local" is each normal client alone; "clients" is each normal client's own estimate in this fit.

    Parameters
    ----------
    coefficients : DataFrame
        One row per coefficient: this fit, the oracle and the pooled estimate with their standard errors
        (sandwich), and the distance of the fit from the oracle in the oracle's standard errors.
    local : DataFrame
        The normal clients' local estimates; NaN where a client has none of its own (too few rows,
        separated labels).
    _table : DataFrame
        What `to_frame` returns.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> comparison = res.oracle(sim.abnormal, data=data)
    >>> comparison.efficiency > 0.9, float(comparison.to_frame().loc["pooled", "efficiency"]) < 0.1
    (True, True)
    """

    coefficients: pd.DataFrame
    local: pd.DataFrame
    _table: pd.DataFrame

    @property
    def efficiency(self) -> float:
        """Efficiency of this fit, as in `to_frame`."""
        return float(self._table["efficiency"].to_numpy()[0])

    def to_frame(self) -> pd.DataFrame:
        """Return one row per estimate: fit, clients, oracle, pooled, local.

        Let d be the estimate less the oracle, V the oracle's covariance, P the number of coefficients. For clients and
        local estimates d' V^-1 d and the squared distances are means over the normal clients that have one.

        Returns
        -------
        DataFrame
            clients, rows : how many the estimate uses; for this fit, those it trusts.
            distance : root mean square over the coefficients of d in the oracle's standard errors.
            worst : the largest of them in absolute value.
            variance_ratio : mean over the coefficients of the oracle's variance over the estimate's own: below
            one for estimates that leave normal clients out; it does not include bias, and may exceed one where
            abnormal clients are counted in. With a penalty it leaves out coefficients of which a client's rows say
            nothing (a column of zeros).
            efficiency : P / (P + d' V^-1 d), an estimate from this one data set of the oracle's mean squared
            error over the estimate's, both in the metric of V. The oracle's error and d are uncorrelated for
            any consistent estimate, because the oracle is efficient, so their squares add up; bias counts in
            d. It is one for the oracle and about n_m / N for a local estimate.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> table = res.oracle(sim.abnormal, data=data).to_frame()
        >>> table["clients"].tolist(), bool(table.loc["pooled", "efficiency"] < 0.1)
        ([16.0, 16.0, 16.0, 20.0, 1.0], True)
        """
        return self._table.copy()

    def __str__(self) -> str:
        text = self._table.rename(index=_NAMES, columns=_SHORT).to_string(formatters=_FORMATS, na_rep="-")
        gap = self.coefficients["distance"].to_numpy()
        worst = int(np.argmax(np.abs(gap)))
        notes = [f"Farthest from it: {self.coefficients.index[worst]}, by {gap[worst]:.3g} standard errors."]
        missing = int(self.local.isna().any(axis=1).sum())
        if missing:
            notes.append(f"{missing} normal clients have no local estimate: too few rows, or separated labels.")
        return framed(_TITLE, text, notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._table.rename(index=_NAMES, columns=_SHORT).to_html(formatters=_FORMATS, na_rep="-")
        coefficients = self.coefficients.to_html(float_format="{:.4g}".format)
        return printable_lines(f"<h3>{html.escape(_TITLE)}</h3>{table}{coefficients}")


def oracle_of(res: Results, data: ClientData | None, abnormal: ClientSet) -> OracleComparison:
    """Compare a fit with the oracle: of data that are given here, of those that the fit kept where they are."""
    fit = res.record
    if data is not None:
        return compare_with_oracle(fit, _checked(fit, data), abnormal)
    held = res.data if res.data is not None else getattr(res._model, "data", None)
    if held is None:
        raise ValueError(
            "these results hold no data, and the oracle needs them; pass data=model.data, or fit with keep_data=True, "
            "which data by rank (RankData) need"
        )
    chosen = abnormal_mask(abnormal, fit.all_labels)

    def work(site: Site) -> OracleComparison:
        return compare_with_oracle(own_record(fit, site.members), site.ours(held), chosen)

    return at_sites(res, f"oracle({digest(chosen)})", work)


def compare_with_oracle(fit: FitRecord, data: ClientData, abnormal: ClientSet) -> OracleComparison:
    """Compare a fit with the oracle, on the rows of the record's own clients; see `Results.oracle`."""
    if fit.set_aside.any() and data.set_aside is None:
        # Numbers that overflow count for no estimate.
        data = data.setting_aside(fit.set_aside)
    params, family, penalty, members = fit.params, fit.family, fit.penalty, fit.members
    normal = members.ours(~abnormal_mask(abnormal, fit.all_labels))
    oracle = pooled_estimate(data, family, normal, params, penalty, members)
    said = _said(data, family)

    def somewhere(some: Mask) -> Mask:
        return np.asarray(members.sum(said & some[:, None]) > 0)

    # A penalty gives an estimate also to a coefficient of which these rows say nothing.
    if oracle is None or not somewhere(normal).all():
        raise ValueError(
            f"the rows of the {members.count(normal)} clients outside abnormal do not determine all "
            f"{len(fit.names)} coefficients; leave coefficients out, or name fewer clients in abnormal"
        )
    everybody = np.ones(len(normal), dtype=bool)
    pooled = pooled_estimate(data, family, everybody, oracle.params, penalty, members) or _absent(len(params))
    here = PointEstimate(params, fit.sandwich if fit.smooth else np.full_like(oracle.covariance, np.nan))
    own, variances = _local(data, fit, normal, oracle.params)
    variances = np.where(said[normal], variances, 0.0)
    known: Mask = np.asarray(np.isfinite(own).all(axis=1))
    theta = fit.theta[normal]

    def counts(some: Mask) -> tuple[int, float]:
        return members.count(some), float(members.sum(np.where(some, fit.sizes, 0)))

    trusted, rows = counts(fit.trusted), counts(normal)
    table = pd.DataFrame(
        {
            "fit": _line(
                params[None], np.where(somewhere(fit.trusted), np.diag(here.covariance), 0.0)[None], oracle, *trusted
            ),
            "clients": _line(theta, np.full_like(theta, np.nan), oracle, *trusted, members.of(normal)),
            "oracle": _line(*_alone(oracle), oracle, *rows),
            "pooled": _line(*_alone(pooled), oracle, *counts(everybody)),
            "local": _line(own[known], variances[known], oracle, 1, rows[1] / rows[0], members.of(normal).of(known)),
        }
    ).T
    index = fit.all_labels[members.gather(normal)].rename(fit.client_name)
    return OracleComparison(
        _coefficients(fit.names, here, oracle, pooled),
        pd.DataFrame(members.gather(own), index=index, columns=fit.names),
        table,
    )


def _said(data: ClientData, family: Family) -> Mask:
    """Return of which coefficients the rows of our clients say something, (m, P): not of those of columns of zeros."""
    said = np.zeros((data.n_clients, data.X.shape[1]), dtype=bool)
    for batch in batches(data, 1):
        said[batch.clients] |= batch.sums(np.abs(data.X[batch.rows])) > 0.0
    return np.tile(said, family.outputs)


def _local(data: ClientData, fit: FitRecord, normal: Mask, start: Array) -> tuple[Array, Array]:
    """Return the own estimates of our normal clients and their variances, (k, P); NaN where a client has none."""
    found = local_estimates(data, fit.family, normal, start, fit.penalty, fit.members)
    own, variances = np.full((2, len(found), len(start)), np.nan)
    for k, one in enumerate(found.values()):
        if one is not None:
            own[k], variances[k] = one.params, np.diag(one.covariance)
    return own, variances


def _line(
    params: Array, variances: Array, oracle: PointEstimate, clients: float, rows: float, members: Members = EVERYBODY
) -> dict[str, float]:
    """Return a row of the table for estimates (k, P) and their variances: one, or those of our clients."""
    words = {"clients": float(clients), "rows": float(rows)}
    if not members.count(np.ones(len(params))):
        return words | dict.fromkeys(("distance", "worst", "variance_ratio", "efficiency"), np.nan)
    expected = np.diag(oracle.covariance)
    apart = params - oracle.params
    distances = np.abs(apart) / np.sqrt(expected)
    squared = float(members.mean(quadratic_forms(apart, inverse(oracle.covariance)[None])))
    return words | {
        "distance": float(np.sqrt(members.mean(np.square(distances)).mean())),
        "worst": float(members.transport.largest(distances).max()),
        "variance_ratio": _variance_ratio(expected, variances, members),
        "efficiency": len(expected) / (len(expected) + squared),
    }


def _variance_ratio(expected: Array, variances: Array, members: Members) -> float:
    """Return the mean over the coefficients of an expected variance (P,) over those of estimates (k, P).

    There is no ratio to a variance of zero: of a coefficient that a client has by a penalty alone.
    """
    without = variances == 0.0
    ratios = members.sum(np.where(without, 0.0, expected / np.where(without, 1.0, variances)))
    counts = members.sum(np.where(without, 0.0, 1.0))
    return float((ratios[counts > 0.0] / counts[counts > 0.0]).mean())


def _alone(estimate: PointEstimate) -> tuple[Array, Array]:
    return estimate.params[None], np.diag(estimate.covariance)[None]


def _coefficients(
    names: Sequence[str], here: PointEstimate, oracle: PointEstimate, pooled: PointEstimate
) -> pd.DataFrame:
    columns: dict[str, Array] = {}
    for name, estimate in {"fit": here, "oracle": oracle, "pooled": pooled}.items():
        columns |= {name: estimate.params, f"{name}_se": np.sqrt(np.diag(estimate.covariance))}
    table = pd.DataFrame(columns, index=names)
    return table.assign(distance=(table["fit"] - table["oracle"]) / table["oracle_se"])


def _absent(P: int) -> PointEstimate:
    return PointEstimate(np.full(P, np.nan), np.full((P, P), np.nan))


def _checked(fit: FitRecord, data: ClientData) -> ClientData:
    """Return the data if they are those of the fit, as far as it can tell."""
    if not isinstance(data, ClientData):
        if isinstance(data, RankData):
            raise TypeError(
                "data is a RankData, of which each rank has the rows of its own clients; fit with keep_data=True, and "
                "leave data out"
            )
        raise TypeError(f"data is a {type(data).__name__}; pass the model's data, data=model.data")
    same = data.labels.equals(fit.labels) and list(data.names) == fit.columns and data.classes == fit.classes
    if not same or not np.array_equal(data.sizes, fit.sizes):
        raise ValueError(
            f"data are not those of the fit: they have {data.n_rows} rows of {data.n_clients} clients and the columns "
            f"{listing(data.names)}; the fit had {int(fit.sizes.sum())} rows of {len(fit.labels)} clients and "
            f"{listing(fit.columns)}. Pass the model's own, data=model.data; with data by rank (RankData) fit with "
            "keep_data=True instead"
        )
    return data


_TITLE = "This fit compared with the oracle"
_NAMES = {
    "fit": "this fit",
    "clients": "its clients, each",
    "oracle": "oracle",
    "pooled": "all clients pooled",
    "local": "local, each",
}
_SHORT = {"distance": "distance, SE", "worst": "worst, SE", "variance_ratio": "var. ratio"}
_FORMATS = {
    "clients": "{:.0f}".format,
    "rows": "{:.0f}".format,
    "distance, SE": "{:.3f}".format,
    "worst, SE": "{:.3f}".format,
    "var. ratio": "{:.3f}".format,
    "efficiency": "{:.3f}".format,
}
