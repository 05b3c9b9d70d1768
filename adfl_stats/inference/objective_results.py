"""Results for losses that are no generalised linear model: estimates, and standard errors where there is curvature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats._algebra import inverse, row_squares, squares_about
from adfl_stats._arguments import in_interval, one_of
from adfl_stats._properties import once
from adfl_stats._types import Array
from adfl_stats.engine.plan import Run
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.inference.clustered import carry_weight
from adfl_stats.inference.communication import Communication, before_inference
from adfl_stats.inference.estimates import Estimates
from adfl_stats.inference.privacy_noise import noise_covariance
from adfl_stats.inference.record import RunRecord

if TYPE_CHECKING:
    from statsmodels.iolib.summary import Summary

__all__ = ["ObjectiveRecord", "ObjectiveResults", "at_params"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ObjectiveRecord(RunRecord):
    """The state of an `ObjectiveResults`.

    Attributes
    ----------
    totals : ndarray (M,)
        Sum of row weights of each client.
    gradients : ndarray (M, P)
        The clients' gradients at the estimate.
    hessian : ndarray (P, P), or (0, 0)
        M^-1 sum_m v_m H_m there; empty where the objective gives gradients only.
    noise : ndarray (P, P), or (0, 0)
        The covariance that noise of private gradients adds; empty without such noise.
    history : dict of ndarray (lines, M)
        What the objective followed during the rounds, for each line of the trace.
    """

    totals: Array
    gradients: Array
    hessian: Array
    noise: Array = field(default_factory=lambda: np.zeros((0, 0)))
    history: dict[str, Array] = field(default_factory=dict)


def at_params(problem: Problem, params: Array, steps: ClientSteps, run: Run, *, weighted: bool) -> dict[str, Array]:
    """Return what an `ObjectiveRecord` has of the objective at the estimate (P,), after the last run."""
    objective, shape = problem.objective, (problem.M, problem.P, problem.P)
    hessian, noise = np.zeros((0, 0)), np.zeros((0, 0))
    if (curvature := getattr(objective, "curvature", None)) is not None:
        matrices = np.asarray(curvature(params), dtype=np.float64)
        if matrices.shape != shape:
            raise ValueError(
                f"{type(objective).__name__}.curvature(theta) has shape {matrices.shape}; {shape} is wanted, the "
                "Hessian of each client's loss at theta (P,)"
            )
        share = steps.total_weights / problem.n_clients
        hessian = problem.transport.total(lambda at: np.tensordot(share[at], matrices[at], 1))
        if weighted and (deviations := getattr(objective, "noise_sd", None)) is not None:
            noise = noise_covariance(problem, steps, run.step, run.rounds, matrices, deviations)
    exact = getattr(objective, "exact_gradients", None)
    gradients = (
        problem.whole_gradients(np.broadcast_to(params, (problem.M, problem.P))) if exact is None else exact(params)
    )
    totals = np.asarray(objective.totals, dtype=np.float64)
    return {"totals": totals, "gradients": np.asarray(gradients), "hessian": hessian, "noise": noise}


class ObjectiveResults(Estimates):
    """Estimates of a fit of any objective; made by `DecentralizedModel.fit`, or read by `adfl_stats.load`.

    With the clients' gradients g_m and a Hessian H = M^-1 sum_m v_m H_m at the estimate, the covariance is by client,

        M / (M - 1) H^-1 (M^-2 sum_m v_m^2 g_m g_m') H^-1,

    M counting the clients that carry weight (CR1 without the correction for rows, which an objective does not have);
    tests and intervals use t with M - 1 degrees of freedom. Without a Hessian it is NaN. With private gradients
    (`losses.PrivateGLM`) the covariance that their noise leaves is added.

    Parameters
    ----------
    record : ObjectiveRecord
        What the fit left.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import adfl_stats as ad
    >>> class Means:
    ...     M, P, labels, names = 4, 1, pd.RangeIndex(4), ["mean"]
    ...     totals, counted = np.ones(4), np.ones(4, dtype=bool)
    ...     y = np.array([1.0, 2.0, 3.0, 6.0])
    ...     def start(self):
    ...         return np.zeros((4, 1))
    ...     def gradients(self, theta, threads=1):
    ...         return theta - self.y[:, None, None]
    ...     def curvature(self, theta):
    ...         return np.ones((4, 1, 1))
    >>> res = ad.DecentralizedModel(Means(), ad.networks.complete(4)).fit(step=0.1, rounds=200)
    >>> se = np.std(Means.y, ddof=1) / np.sqrt(4)
    >>> bool(np.isclose(res.bse["mean"], se))
    True
    """

    def __init__(self, record: ObjectiveRecord) -> None:
        self.record: ObjectiveRecord = record

    @property
    def consensus(self) -> pd.Series:
        """Root mean square distance of the clients' estimates from `params`, for each parameter."""
        return self._series(self._spreads)

    @property
    def gradient(self) -> pd.Series:
        """What is left of the estimating equation at `params`: M^-1 sum_m v_m g_m."""
        return self._series(self._left)

    @property
    def largest_spread(self) -> float:
        """The largest of `consensus`, without the names of all parameters, which for a large network take gigabytes."""
        return float(self._spreads.max())

    @property
    def gradient_norm(self) -> float:
        """The norm of `gradient`, without the names of all parameters."""
        return float(np.linalg.norm(self._left))

    @property
    def without_errors(self) -> str:
        """Why there are no standard errors; empty where there are."""
        fit = self.record
        if not len(fit.hessian):
            return fit.details.get("no_hessian", "not available, the objective gives gradients only")
        if "epsilon" in fit.details and not fit.weighted:
            return "not available, what the noise of private gradients leaves is known for plain rounds only"
        if not fit.smooth:
            return f"not available, {fit.method} solves no common estimating equation"
        if self._clients < 2:
            return "not available, they compare clients, and fewer than two carry weight"
        if not np.isfinite(fit.hessian).all():
            return "not available, the Hessian at the estimate is not finite"
        values = np.linalg.eigvalsh(fit.hessian)
        if not values[0] > 1e-13 * abs(values[-1]):
            return "not available, the Hessian at the estimate is not positive definite"
        return ""

    @property
    def df(self) -> float:
        """Degrees of freedom of tests and intervals: clients that carry weight, less 1."""
        return self._clients - 1.0

    def cov_params(self) -> pd.DataFrame:
        """Return the covariance matrix of the estimate, by client.

        Returns
        -------
        DataFrame
            P x P; NaN where `without_errors` has a reason.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> gradient = lambda m, theta, rng: theta - m
        >>> losses = ad.Losses(gradient, np.ones(4), np.zeros(1), curvature=lambda m, theta: np.eye(1))
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=150, threads=1)
        >>> bool(np.isclose(res.cov_params().loc["p0", "p0"], np.var(range(4), ddof=1) / 4))
        True
        """
        return pd.DataFrame(self._covariance, index=self._index, columns=self._index)

    @once
    def bse(self) -> pd.Series:
        """Standard errors by client; NaN where `without_errors` has a reason."""
        if self.without_errors:
            return self._series(np.full(len(self.record.names), np.nan))
        return self._series(np.sqrt(np.diag(self._covariance)))

    @once
    def tvalues(self) -> pd.Series:
        """Estimates over their standard errors."""
        return self.params / self.bse

    @once
    def pvalues(self) -> pd.Series:
        """Two-sided p-values of zero parameters."""
        return self._series(2.0 * stats.t.sf(np.abs(self.tvalues), max(self.df, 1.0)))

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Return confidence limits at level 1 - alpha; columns 0 and 1 as in statsmodels.

        Parameters
        ----------
        alpha : float
            One minus the level.

        Returns
        -------
        DataFrame
            Lower and upper limits of every parameter.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> gradient = lambda m, theta, rng: theta - m
        >>> losses = ad.Losses(gradient, np.ones(4), np.zeros(1), curvature=lambda m, theta: np.eye(1))
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=150, threads=1)
        >>> res.conf_int().round(1).to_numpy().tolist()
        [[-0.6, 3.6]]
        """
        in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
        reach = stats.t.isf(alpha / 2.0, max(self.df, 1.0)) * self.bse
        return pd.DataFrame({0: self.params - reach, 1: self.params + reach})

    def history(self, name: str = "loss") -> pd.DataFrame:
        """Return what was followed during the rounds, by client.

        Parameters
        ----------
        name : str
            "loss", or one of the objective's metrics.

        Returns
        -------
        DataFrame
            One row for each line of the trace (run and round), one column a client.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> gradient = lambda m, theta, rng: theta - m
        >>> losses = ad.Losses(gradient, np.ones(4), np.zeros(1), loss=lambda m, theta: (theta[0] - m) ** 2 / 2)
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=100, threads=1)
        >>> bool(res.history("loss").iloc[-1].sum() < res.history("loss").iloc[0].sum())
        True
        """
        one_of(name, "name", tuple(self.record.history) or ("(nothing was followed)",))
        lines = pd.MultiIndex.from_frame(self.trace[["run", "round"]])
        return pd.DataFrame(self.record.history[name], index=lines, columns=self.record.labels)

    def clients(self) -> pd.DataFrame:
        """Return one row per client.

        Returns
        -------
        DataFrame
            total; gradient : its norm at `params`; flagged : whether its weight is below a tenth of the largest, a
            threshold and no test; discrepancy : with ``ADFL(lam=)``, s_m from which the weights come; weight;
            influence : M pi_m; distance : of its estimate from `params`.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> gradient = lambda m, theta, rng: theta - m
        >>> losses = ad.Losses(gradient, np.ones(4), np.zeros(1), curvature=lambda m, theta: np.eye(1))
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=150, threads=1)
        >>> res.clients().columns.tolist()
        ['total', 'gradient', 'flagged', 'weight', 'influence', 'distance']
        """
        fit = self.record
        columns = {
            "total": fit.totals,
            "gradient": np.sqrt(row_squares(fit.gradients, 0.0)),
            "flagged": ~fit.trusted,
            **fit.discrepancy_column,
            "weight": fit.weights,
            "influence": fit.influence,
            "distance": np.sqrt(row_squares(fit.theta, fit.params)),
        }
        return pd.DataFrame(columns, index=fit.labels.rename(fit.client_name))

    def communication(self) -> Communication:
        """Return what each client sent until inference: how many numbers, in which phase, to whom.

        Returns
        -------
        Communication
            As for `Results`; an exchange counts once however many local steps go before it.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(2))
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(ad.DFL(local_steps=5), step=0.1, rounds=30)
        >>> sent = res.communication().to_frame()
        >>> sent.loc[sent["to"] == "each neighbour", ["messages", "numbers"]].to_numpy().tolist()
        [[30, 60]]
        """
        return before_inference(self.record)

    def summary(self, alpha: float = 0.05) -> Summary:
        """Return parameters, clients, network and notes as one text.

        Parameters
        ----------
        alpha : float
            Confidence limits are at level 1 - alpha.

        Returns
        -------
        statsmodels Summary
            Text, HTML, LaTeX and CSV.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> gradient = lambda m, theta, rng: theta - m
        >>> losses = ad.Losses(gradient, np.ones(4), np.zeros(1), curvature=lambda m, theta: np.eye(1))
        >>> res = ad.DecentralizedModel(losses, ad.networks.complete(4)).fit(step=0.1, rounds=150, threads=1)
        >>> "Clients" in str(res.summary())
        True
        """
        from adfl_stats.report.objective_summary import summarize_objective

        return summarize_objective(self, alpha)

    def __repr__(self) -> str:
        return f"ObjectiveResults({self.record.method}, {len(self.record.labels)} clients, P={len(self.record.names)})"

    def _repr_html_(self) -> str:
        return str(self.summary().as_html())

    @property
    def _clients(self) -> int:
        """Clients that carry weight."""
        fit = self.record
        return fit.members.count(carry_weight(fit.total_weights, fit.totals, fit.members))

    @property
    def _all(self) -> int:
        """All clients."""
        return self.record.members.count(np.ones(len(self.record.theta)))

    @once
    def _spreads(self) -> Array:
        """`consensus` without the parameters' names."""
        fit = self.record
        return np.sqrt(fit.members.total(lambda at: squares_about(fit.theta[at], fit.params)) / self._all)

    @once
    def _left(self) -> Array:
        """`gradient` without the parameters' names."""
        fit = self.record
        shares = fit.total_weights.astype(fit.gradients.dtype)
        return np.asarray(fit.members.total(lambda at: shares[at] @ fit.gradients[at]) / self._all)

    @once
    def _covariance(self) -> Array:
        fit, P = self.record, len(self.record.names)
        if self.without_errors:
            return np.full((P, P), np.nan)
        contributions = fit.gradients * (fit.total_weights / self._all)[:, None] @ inverse(fit.hessian)
        squares = fit.members.total(lambda at: contributions[at].T @ contributions[at])
        sampling = self._clients / (self._clients - 1.0) * squares
        return np.asarray(sampling + fit.noise if len(fit.noise) else sampling)
