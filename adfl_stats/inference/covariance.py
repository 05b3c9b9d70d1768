"""The covariance of the estimate, and the distribution that tests and intervals refer to, for each `cov_type`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from adfl_stats._algebra import inverse
from adfl_stats._arguments import one_of
from adfl_stats._properties import once
from adfl_stats._types import Array, Mask
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.inference.axes import Axes
from adfl_stats.inference.by_row import ByRow, row_contrast_df
from adfl_stats.inference.client_contrasts import FEW_CLIENTS, contrast_df, identified, joint_df
from adfl_stats.inference.clustered import Clustered
from adfl_stats.inference.record import FitRecord

__all__ = ["COV_TYPES", "Inference"]


COV_TYPES = ("sandwich", "nonrobust", "cluster", "HC0", "HC1", "HC2", "HC3", "CR1", "CR2", "CR3")
# Names of statsmodels.
_ALIASES = {"HC0": "sandwich", "cluster": "CR1"}


@dataclass(frozen=True, eq=False)
class Inference:
    """A fit seen through one kind of covariance.

    Attributes
    ----------
    fit : FitRecord
        The fit.
    cov_type : str
        "sandwich", "nonrobust", "HC1", "HC2", "HC3", "CR1", "CR2" or "CR3".
    """

    fit: FitRecord
    cov_type: str

    @classmethod
    def of(cls, fit: FitRecord, cov_type: str | None) -> Inference:
        """Check the name; None stands for the fit's own."""
        name = fit.cov_type if cov_type is None else one_of(cov_type, "cov_type", COV_TYPES)
        view = cls(fit, _ALIASES.get(name, name))
        if view.by_client and fit.smooth and fit.clustered.clients < 2:
            raise ValueError(
                f"cov_type={name!r} compares clients, and needs two that carry weight; there is "
                f"{fit.clustered.clients}. Use cov_type='sandwich'"
            )
        if name == "HC1" and fit.by_row.rows <= len(fit.names):
            raise ValueError(
                f"cov_type='HC1' divides by the rows that carry weight less the coefficients; there are "
                f"{fit.by_row.rows} and {len(fit.names)}. Use cov_type='sandwich'"
            )
        return view

    @property
    def by_client(self) -> bool:
        """Whether clients, and not rows, are taken as independent."""
        return self.cov_type.startswith("CR")

    @property
    def use_t(self) -> bool:
        """Whether tests refer to t and F distributions, and not to the normal and chi-square ones."""
        return self.cov_type not in ("sandwich", "nonrobust")

    def covariance(self, contrasts: Array | None = None) -> Array:
        """Return the covariance matrix of the estimate (P, P), or of contrasts (q, P) of it.

        It is NaN where the estimate solves no equation, and where one client (CR2, CR3) or one row (HC2, HC3) alone
        identifies a contrast.
        """
        C = np.eye(len(self.fit.names)) if contrasts is None else contrasts
        matrix = self._matrix if contrasts is None else C @ self._matrix @ C.T
        unknown = self._unknown(C)
        if unknown.any():
            matrix = matrix.copy()
            matrix[unknown], matrix[:, unknown] = np.nan, np.nan
        return matrix

    def standard_errors(self, contrasts: Array) -> Array:
        """Return the standard errors of contrasts (q, P), without the covariances between them."""
        errors = np.sqrt(np.einsum("ij,jk,ik->i", contrasts, self._matrix, contrasts))
        errors[self._unknown(contrasts)] = np.nan
        return errors

    def df(self, contrasts: Array) -> Array:
        """Return the degrees of freedom of the t tests of contrasts (q, P), one each; infinite for z tests."""
        if not self.use_t:
            return np.full(len(contrasts), np.inf)
        if self.cov_type in ("CR1", "HC1"):
            return np.full(len(contrasts), self._residual_df)
        if self.by_client:
            return contrast_df(self.fit.clustered, contrasts)
        seen = self.fit.weighted_sums
        df = row_contrast_df(self.fit.by_row, Axes.of(seen.information, seen.model_meat), contrasts)
        return np.where(self._unknown(contrasts), np.nan, df)

    def joint(self, statistic: float, contrasts: Array) -> dict[str, Any]:
        """Return the F statistic of a Wald statistic for contrasts (q, P), and its degrees of freedom.

        CR1: Q / q with q and M - 1, as in statsmodels; HC1: with q and N - P, likewise; HC2 and HC3: with q and the
        least of the contrasts' own degrees of freedom. CR2 and CR3: Hotelling's T^2, see `joint_df`.
        """
        q = len(contrasts)
        if self.cov_type not in ("CR2", "CR3"):
            return {"F": statistic / q, "df_num": q, "df_denom": float(np.min(self.df(contrasts)))}
        eta = self._joint_df(contrasts)
        return {"F": (eta - q + 1.0) / (eta * q) * statistic, "df_num": q, "df_denom": eta - q + 1.0}

    def check_joint(self, contrasts: Array) -> None:
        """Raise ValueError where the clients cannot test contrasts (q, P) together."""
        if not self.by_client or not self.fit.smooth:
            return
        q, clients = len(contrasts), self.fit.clustered.clients
        advice = "Test them one by one with t_test, or use cov_type='sandwich'"
        if q >= clients:
            raise ValueError(
                f"cov_type={self.cov_type!r} tests fewer hypotheses together than there are clients that carry weight; "
                f"there are {q} and {clients}. {advice}"
            )
        if self.cov_type == "CR1":
            return
        eta = self._joint_df(contrasts)
        if np.isnan(eta):
            raise ValueError(
                f"cov_type={self.cov_type!r} cannot test these {q} hypotheses together: they depend on one another, or "
                f"one client alone identifies one of them. {advice}"
            )
        if eta <= q - 1.0:
            raise ValueError(
                f"the clients leave {eta:.1f} degrees of freedom to {q} hypotheses tested together; more than {q - 1} "
                f"are needed. {advice}"
            )

    def reach(self, alpha: float, contrasts: Array) -> Array:
        """Return the quantiles that two-sided intervals of contrasts (q, P) use, at level 1 - alpha."""
        if not self.use_t:
            return np.full(len(contrasts), stats.norm.isf(alpha / 2.0))
        return np.asarray(stats.t.isf(alpha / 2.0, self.df(contrasts)))

    def p_values(self, statistics: Array) -> Array:
        """Return the two-sided p-values of the coefficients' statistics (P,)."""
        if not self.use_t:
            return np.asarray(2.0 * stats.norm.sf(np.abs(statistics)))
        return np.asarray(2.0 * stats.t.sf(np.abs(statistics), self.df(np.eye(len(statistics)))))

    def in_words(self) -> str:
        """Return what the standard errors are, what they assume, and what tests refer to."""
        start = {
            "sandwich": "Standard errors are the sandwich at the weighted estimate (HC0)",
            "nonrobust": "Standard errors are those of the model, by its information and dispersion (nonrobust)",
            "HC1": "Standard errors are the sandwich with N / (N - P) (HC1)",
            "HC2": "Standard errors are the sandwich with residuals that allow for leverage (HC2)",
            "HC3": "Standard errors are the sandwich with residuals over 1 - leverage (HC3, about a jackknife)",
            "CR1": "Standard errors are by client (CR1, with statsmodels' correction)",
            "CR2": "Standard errors are by client (CR2 of Bell and McCaffrey)",
            "CR3": "Standard errors are by client (CR3, the jackknife over clients)",
        }[self.cov_type]
        start += ", given the clients' final weights."
        if self.by_client:
            assumed = (
                "They allow for rows that depend on one another within a client, and for clients whose parameters "
                "vary about a common mean"
            )
        else:
            assumed = (
                "They assume independent rows and clients that share one parameter once the down-weighted ones are set "
                "aside"
            )
        if not self.use_t:
            return f"{start} {assumed}. Tests and intervals use the normal distribution."
        df, unit = self.df(np.eye(len(self.fit.names))), "client" if self.by_client else "row"
        known = df[~np.isnan(df)]
        if not len(known):
            return f"{start} There are none: each coefficient is identified by one {unit} alone."
        low, high = f"{known.min():.1f}", f"{known.max():.1f}"
        few = self.by_client and self.fit.clustered.clients < FEW_CLIENTS
        how = {"CR1": "clients less 1", "HC1": "rows less coefficients"}.get(
            self.cov_type, "those of few clients" if few else "Satterthwaite's"
        )
        text = (
            f"{start} {assumed}. Tests and intervals use the t distribution with "
            f"{low if low == high else f'{low} to {high}'} degrees of freedom ({how})."
        )
        if len(known) < len(df):
            text += f" A coefficient that one {unit} alone identifies has none."
        return text

    @property
    def _residual_df(self) -> float:
        """Degrees of freedom of CR1 and HC1: clients less 1, rows less coefficients, of those that carry weight."""
        if self.by_client:
            return self.fit.clustered.clients - 1.0
        return self.fit.by_row.rows - float(len(self.fit.names))

    @once
    def _matrix(self) -> Array:
        """The covariance, before coefficients that one client alone identifies are set aside."""
        seen, P = self.fit.weighted_sums, len(self.fit.names)
        if not self.fit.smooth:
            return np.full((P, P), np.nan)
        if self.by_client:
            rows = self._contributions
            return self.fit.clustered.members.sum_products(rows, rows)
        if self.cov_type == "nonrobust":
            return sandwich(seen.information, seen.scale * seen.model_meat)[1]
        if self.cov_type == "HC1":
            return self.fit.sandwich * (self.fit.by_row.rows / self._residual_df)
        if self.use_t:
            return self.fit.by_row.hc2 if self.cov_type == "HC2" else self.fit.by_row.hc3
        return self.fit.sandwich

    @once
    def _contributions(self) -> Array:
        """Each client's contribution (M, P); the covariance is the sum of their squares."""
        record, fit = self.fit.clustered, self.fit
        M, N, P = record.clients, record.rows, len(fit.names)
        if self.cov_type == "CR1":
            everybody = record.members.count(np.ones(len(fit.total_weights), dtype=bool))
            scores = fit.weighted_sums.gradients * (fit.total_weights / everybody)[:, None]
            correction = M / (M - 1) * (N - 1) / max(N - P, 1)
            return record.members.products(np.sqrt(correction) * scores, inverse(fit.weighted_sums.hessian))
        return record.cr2 if self.cov_type == "CR2" else np.sqrt((M - 1) / M) * record.cr3

    def _unknown(self, contrasts: Array) -> Mask:
        """Which contrasts have no variance, because one client (CR2, CR3) or row (HC2, HC3) alone identifies them."""
        if self.cov_type[1:] not in ("R2", "R3", "C2", "C3"):
            return np.zeros(len(contrasts), dtype=np.bool_)
        record: Clustered | ByRow = self.fit.clustered if self.by_client else self.fit.by_row
        return ~identified(record.working, record.expected, contrasts)

    def _joint_df(self, contrasts: Array) -> float:
        return joint_df(self.fit.clustered, contrasts)
