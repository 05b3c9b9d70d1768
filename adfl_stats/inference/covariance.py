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
from adfl_stats.inference.clustered import contrast_df, identified, joint_df
from adfl_stats.inference.record import FitRecord

__all__ = ["COV_TYPES", "Inference"]


COV_TYPES = ("sandwich", "nonrobust", "cluster", "HC0", "CR1", "CR2", "CR3")
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
        "sandwich", "nonrobust", "CR1", "CR2" or "CR3".
    """

    fit: FitRecord
    cov_type: str

    @classmethod
    def of(cls, fit: FitRecord, cov_type: str | None) -> Inference:
        """Check the name; None stands for the fit's own."""
        name = fit.cov_type if cov_type is None else one_of(cov_type, "cov_type", COV_TYPES)
        found = cls(fit, _ALIASES.get(name, name))
        if found.use_t and fit.smooth and fit.clustered.clients < 2:
            raise ValueError(
                f"cov_type={name!r} compares clients, and needs two that carry weight; there is "
                f"{fit.clustered.clients}. Use cov_type='sandwich'"
            )
        return found

    @property
    def use_t(self) -> bool:
        """Whether tests refer to t and F distributions, and not to the normal and chi-square ones."""
        return self.cov_type.startswith("CR")

    def covariance(self, contrasts: Array | None = None) -> Array:
        """Return the covariance matrix of the estimate (P, P), or of contrasts (q, P) of it.

        It is NaN where the estimate solves no equation, and for CR2 and CR3 where one client alone identifies a
        contrast.
        """
        C = np.eye(len(self.fit.names)) if contrasts is None else contrasts
        found = self._matrix if contrasts is None else C @ self._matrix @ C.T
        unknown = self._unknown(C)
        if unknown.any():
            found = found.copy()
            found[unknown], found[:, unknown] = np.nan, np.nan
        return found

    def standard_errors(self, contrasts: Array) -> Array:
        """Return the standard errors of contrasts (q, P), without the covariances between them."""
        found = np.sqrt(np.einsum("ij,jk,ik->i", contrasts, self._matrix, contrasts))
        found[self._unknown(contrasts)] = np.nan
        return found

    def df(self, contrasts: Array) -> Array:
        """Return the degrees of freedom of the t tests of contrasts (q, P), one each; infinite for z tests."""
        if not self.use_t:
            return np.full(len(contrasts), np.inf)
        if self.cov_type == "CR1":
            return np.full(len(contrasts), self.fit.clustered.clients - 1.0)
        return contrast_df(self.fit.clustered, contrasts)

    def joint(self, statistic: float, contrasts: Array) -> dict[str, Any]:
        """Return the F statistic of a Wald statistic for contrasts (q, P), and its degrees of freedom.

        CR1: Q / q with q and M - 1, as in statsmodels. CR2 and CR3: Hotelling's T^2, see `joint_df`.
        """
        q = len(contrasts)
        if self.cov_type == "CR1":
            return {"F": statistic / q, "df_num": q, "df_denom": self.fit.clustered.clients - 1.0}
        eta = self._joint_df(contrasts)
        return {"F": (eta - q + 1.0) / (eta * q) * statistic, "df_num": q, "df_denom": eta - q + 1.0}

    def check_joint(self, contrasts: Array) -> None:
        """Raise ValueError where the clients cannot test contrasts (q, P) together."""
        if not self.use_t or not self.fit.smooth:
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
            "CR1": "Standard errors are by client (CR1, with statsmodels' correction)",
            "CR2": "Standard errors are by client (CR2 of Bell and McCaffrey)",
            "CR3": "Standard errors are by client (CR3, the jackknife over clients)",
        }[self.cov_type]
        start += ", given the clients' final weights."
        if not self.use_t:
            return (
                f"{start} They assume independent rows and clients that share one parameter once the down-weighted "
                "ones are set aside. Tests and intervals use the normal distribution."
            )
        df = self.df(np.eye(len(self.fit.names)))
        known = df[~np.isnan(df)]
        if not len(known):
            return f"{start} There are none: each coefficient is identified by one client alone."
        low, high = f"{known.min():.1f}", f"{known.max():.1f}"
        how = "clients less 1" if self.cov_type == "CR1" else "Satterthwaite's"
        text = (
            f"{start} They allow for rows that depend on one another within a client, and for clients whose "
            "parameters vary about a common mean. Tests and intervals use the t distribution with "
            f"{low if low == high else f'{low} to {high}'} degrees of freedom ({how})."
        )
        if len(known) < len(df):
            text += " A coefficient that one client alone identifies has none."
        return text

    @once
    def _matrix(self) -> Array:
        """The covariance, before coefficients that one client alone identifies are set aside."""
        seen, P = self.fit.evaluation, len(self.fit.names)
        if not self.fit.smooth:
            return np.full((P, P), np.nan)
        if self.use_t:
            found = self._contributions
            return self.fit.clustered.members.total(lambda at: found[at].T @ found[at])
        if self.cov_type == "nonrobust":
            return sandwich(seen.information, seen.scale * seen.model_meat)[1]
        return self.fit.sandwich

    @once
    def _contributions(self) -> Array:
        """Each client's contribution (M, P); the covariance is the sum of their squares."""
        record, fit = self.fit.clustered, self.fit
        M, N, P = record.clients, record.rows, len(fit.names)
        if self.cov_type == "CR1":
            everybody = record.members.count(np.ones(len(fit.total_weights), dtype=bool))
            scores = fit.evaluation.gradients * (fit.total_weights / everybody)[:, None]
            correction = M / (M - 1) * (N - 1) / max(N - P, 1)
            return np.sqrt(correction) * scores @ inverse(fit.evaluation.hessian)
        return record.cr2 if self.cov_type == "CR2" else np.sqrt((M - 1) / M) * record.cr3

    def _unknown(self, contrasts: Array) -> Mask:
        """Which contrasts have no variance by client, because one client alone identifies them."""
        if self.cov_type not in ("CR2", "CR3"):
            return np.zeros(len(contrasts), dtype=np.bool_)
        return ~identified(self.fit.clustered, contrasts)

    def _joint_df(self, contrasts: Array) -> float:
        return joint_df(self.fit.clustered, contrasts)
