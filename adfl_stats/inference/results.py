"""Results: estimates, inference and diagnostics, in pandas with the user's labels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from adfl_stats._types import ClientSet, NumbersByName
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.mpi import MPI
from adfl_stats.inference.client_table import client_columns
from adfl_stats.inference.communication import Communication, communication_of
from adfl_stats.inference.covariance import COV_TYPES, Inference
from adfl_stats.inference.fitted import FittedRows
from adfl_stats.inference.heterogeneity import Heterogeneity, heterogeneity_of
from adfl_stats.inference.oracle import OracleComparison, oracle_of
from adfl_stats.inference.reanalysis import Reanalysis
from adfl_stats.inference.record import FitRecord
from adfl_stats.inference.screening import screen_fit
from adfl_stats.inference.statsmodels_twin import twin
from adfl_stats.losses.families import Family

if TYPE_CHECKING:
    from statsmodels.genmod.generalized_linear_model import GLMResultsWrapper
    from statsmodels.iolib.summary import Summary

    from adfl_stats.model import DecentralizedGLM
    from adfl_stats.theory import Report

__all__ = ["COV_TYPES", "Results"]


class Results(FittedRows, Reanalysis):
    """Estimates, inference and diagnostics of a fit; made by `DecentralizedGLM.fit`, or read by `adfl_stats.load`.

    Point estimates are means over the clients' own estimates. Inference conditions on the clients'
    final weights and is about the parameter that the trusted clients share. Standard errors, tests and
    intervals are by `cov_type` unless another is named: with the normal distribution (sandwich, nonrobust), or with
    t and F where leverage of rows (HC1, HC2, HC3) or clients (CR1, CR2, CR3) are allowed for.

    Parameters
    ----------
    fit : FitRecord
        What the fit left.
    data : ClientData, optional
        The data, where the fit was to keep them.
    model : DecentralizedGLM, optional
        The model, where the fit was to keep it.
    ranks : MPI, optional
        Over which the fit was spread, where it was to keep the model.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> bool(res.conf_int()[0].le(res.params).all()), res.cov_type
    (True, 'CR2')
    >>> int((res.client_weights < 0.1).sum()), sim.abnormal.sum().item()
    (4, 4)
    >>> bool(res.t_test("x1 = x2").pvalue < 0.05)
    True
    """

    def __init__(
        self,
        fit: FitRecord,
        data: ClientData | None = None,
        model: DecentralizedGLM | None = None,
        ranks: MPI | None = None,
    ) -> None:
        self.record: FitRecord = fit
        self.data, self._model, self._ranks = data, model, ranks

    def remove_data(self) -> None:
        """Compute what is left of inference, then drop model and data; `oracle` needs the data given afterwards.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit(keep_data=True)
        >>> res.remove_data()
        >>> res.data is None, len(res.bse)
        (True, 2)
        """
        self.record.at_estimate.parts()
        self.data = self._model = self._ranks = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None, "_ranks": None}

    @property
    def family(self) -> Family:
        """The family."""
        return self.record.family

    @property
    def penalty(self) -> pd.Series | None:
        """The penalty c_j of each coefficient, beside the mean loss; None without one."""
        return None if self.record.penalty is None else self._series(self.record.penalty.strengths)

    @property
    def rounds_needed(self) -> float:
        """About how many rounds at `step` would lead from the model's own start to the limit that was solved for.

        To within the fit's tolerance, with the weights of its last stage; NaN after a fit in rounds.
        """
        return self.record.rounds_needed

    @property
    def converged(self) -> bool:
        """Whether the numerical error is within the tolerance."""
        return self.numerical_error["total"] <= self.record.tolerance

    @property
    def numerical_error(self) -> pd.Series:
        """Optimisation error, consensus error and their sum, in standard errors of the estimate.

        The first is how far `params` are from the solution of the weighted estimating equation, the
        second the root mean square distance of the clients from `params`; both for the coefficient
        where they are worst.
        """
        error = self.record.error
        return pd.Series(
            {"optimisation": error.optimisation, "consensus": error.consensus, "total": error.total},
            name="SE units",
        )

    def get_robustcov_results(self, cov_type: str) -> Results:
        """Return the same results with another `cov_type` as the default, for `pvalues` and `summary()` too.

        Parameters
        ----------
        cov_type : str
            Of `cov_params`.

        Returns
        -------
        Results
            With that default.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> by_client = res.get_robustcov_results("CR2")
        >>> by_client.cov_type, bool((by_client.bse == res.standard_errors("CR2")).all())
        ('CR2', True)
        """
        record = replace(self.record, chosen_cov_type=Inference.of(self.record, cov_type).cov_type)
        return Results(record, self.data, self._model, self._ranks)

    def to_statsmodels(self, frame: pd.DataFrame) -> GLMResultsWrapper:
        """Return the estimate and its covariance as results of statsmodels' GLM, for tools that take those.

        Such tools are marginaleffects and stargazer. A client can so average marginal effects over its own rows.

        Parameters
        ----------
        frame : DataFrame
            Rows with the formula's columns and the response: a client's own, or all where they may be pooled. They
            change neither the coefficients nor their covariance.

        Returns
        -------
        statsmodels GLMResultsWrapper
            With `params`, `cov_params()`, `bse` and the number of rows of this fit. Tests have t with the smallest of
            `degrees_of_freedom()` where these are finite. Likelihood and residuals are of the rows given.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.hospitals(seed=1)
        >>> frame, net = sim.frame(), ad.networks.directed_circle(100, 5, labels=sim.labels)
        >>> model = ad.DecentralizedGLM.from_formula(
        ...     "readmitted ~ age", frame, client="hospital", network=net, family="binomial"
        ... )
        >>> res = model.fit(ad.DFL())
        >>> own = frame[frame["hospital"] == sim.labels[0]]
        >>> bool((res.to_statsmodels(own).bse - res.bse).abs().max() < 1e-12)
        True
        """
        return twin(self, frame)

    @property
    def scale(self) -> float:
        """Dispersion, estimated over the weighted clients; 1 where the mean decides the variance (labels, counts)."""
        return self.record.weighted_sums.scale

    @property
    def llf(self) -> float:
        """Log-likelihood of the trusted clients' rows at `params`; for Huber's loss under his least favourable law.

        Comparable, as are `aic` and `bic`, between fits in which the same clients are trusted; see `nobs_used`.
        """
        return self.record.at_estimate.goodness.llf

    @property
    def deviance(self) -> float:
        """Deviance of the trusted clients' rows at `params`."""
        return self.record.at_estimate.goodness.deviance

    @property
    def aic(self) -> float:
        """Akaike's criterion over the trusted clients; a penalised fit counts its effective parameters."""
        return -2.0 * self.llf + 2.0 * self.record.effective_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion over the trusted clients; a penalised fit counts its effective parameters."""
        fit = self.record
        rows = float(fit.members.sum(np.where(fit.trusted, fit.sizes, 0)))
        return float(-2.0 * self.llf + np.log(rows) * fit.effective_parameters)

    def clients(self) -> pd.DataFrame:
        """Return one row per client, in the order of the data.

        A flag tests one client. A weight (with `ADFL`, the probability of being normal) and the verdict are about all
        clients at once: with many clients a flag in ten may be false and keep its weight, and a member of a coherent
        minority may lose it without a flag. The summary names the clients about which they differ.

        Returns
        -------
        DataFrame
            n : rows; gradient : norm of its gradient at `params`; score, df : the score statistic there, with the
            variance that the model of clients gives it, and its mean for a client that follows the model; p_value : of
            it (see `adfl_stats.screen`); flagged : whether that test flags the client at a false discovery rate of .1;
            discrepancy : with ``ADFL(lam=)`` s_m of equation (4.4), from which the weights come; weight : omega_m;
            verdict : how the model of clients classifies it: "" if it follows the majority, "noisy" if it does with a
            larger residual variance, "coherent" if it is off together with others, "far off" if it is off by itself
            (none of these means corrupt); noise : its residual variance over the typical one; shift : how
            far the estimate would move without the client, for the coefficient that moves most, in standard errors;
            influence : share of the network's consensus, M pi_m; distance : root mean square distance of its estimate
            from `params`, in standard errors.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> table = res.clients()
        >>> bool(table.loc[sim.abnormal_labels, "weight"].max() < 0.1), table["flagged"].sum().item() >= 4
        (True, True)
        """
        fit, columns = self.record, client_columns(self.record, self.record.clients)
        screened = screen_fit(fit).to_frame()
        parts = columns | {name: screened[name].to_numpy() for name in ("flagged", "verdict", "shift")}
        order = ("n", "gradient", "score", "df", "p_value", "flagged", *fit.discrepancy_column)
        order += ("weight", "verdict", "noise", "shift", "influence", "distance")
        table = {name: parts[name] for name in order}
        return pd.DataFrame(table, index=fit.labels.rename(fit.client_name))

    def heterogeneity(self, alpha: float = 0.05) -> Heterogeneity:
        """Return how much the clients differ: Cochran's Q, I^2, tau of each coefficient, intervals for a new client.

        Parameters
        ----------
        alpha : float
            Intervals are at level 1 - alpha.

        Returns
        -------
        Heterogeneity
            Tests, spread and intervals.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> report = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit().heterogeneity()
        >>> report.kind, report.p_value > 0.05
        ('none', True)
        """
        return heterogeneity_of(self, alpha)

    def client_effects(self) -> pd.DataFrame:
        """Return each client's deviation from `params`: its own, and shrunk towards zero (empirical Bayes).

        Returns
        -------
        DataFrame
            One row a client and coefficient. deviation, se : of the client's own estimate (one scoring step), with its
            sampling error; effect, effect_se : E(u_m | data) under u_m ~ N(0, T) and its standard deviation, both zero
            where the fit found no spread. ``params + effect`` is the empirical Bayes estimate of the client's
            parameter.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> effects = res.client_effects()
        >>> effects.loc[0].round(1).to_dict("index")["x1"]
        {'deviation': -1.9, 'se': 0.1, 'effect': 0.0, 'effect_se': 0.0}
        """
        fit, own = self.record, self.record.effects
        index = pd.MultiIndex.from_product([fit.labels, fit.names], names=[fit.client_name, "coefficient"])
        columns = {
            "deviation": own.deviations,
            "se": own.errors,
            "effect": own.effects,
            "effect_se": own.effect_errors,
        }
        return pd.DataFrame({name: value.ravel() for name, value in columns.items()}, index=index)

    def communication(self) -> Communication:
        """Return what each client sent in this fit: how many numbers, in which phase, to whom.

        Sums, maxima and rows over all clients are what the method and its inference took from the whole network. Where
        the limit of the rounds was solved for, messages to neighbours are those of the solution, beside the rounds
        that the network would need. What is counted does not depend on where the clients are. Checks of the rows when
        the model was built are in the phase `model`; what is asked of the results later is not counted.

        Returns
        -------
        Communication
            A table, and the numbers of one Newton step through a hub to compare with.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
        >>> sent = model.fit(ad.DFL(), step=0.1, rounds=100).communication().to_frame()
        >>> sent.loc[sent["to"] == "each neighbour", ["phase", "messages", "numbers"]].to_numpy().tolist()
        [['rounds', 100, 200]]
        """
        return communication_of(self.record)

    def check(self, abnormal: ClientSet | None = None, theta0: NumbersByName | None = None) -> Report:
        """Compare this fit with the paper's theory: Conditions 1 to 7, Theorems 1 to 3 and what follows from them.

        Each line has the value here, what is wanted, and one of four words: holds, fails, indicative
        (a statement of order, whose constants the paper leaves open) or unknown (the data cannot decide). The advice
        names what fails, the clients or the network property behind it, and the repair.

        Parameters
        ----------
        abnormal : labels, indices or boolean mask, optional
            The set A of abnormal clients, as a list, set, array or Series. Labels that are numbers are
            taken as labels. Without it the down-weighted clients are used, and the lines say so.
        theta0 : array (P,), or Series or dict by name, optional
            The true parameter of the normal clients. Without it the estimate is used.

        Returns
        -------
        Report
            One check a line, and advice.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> report = res.check(abnormal=sim.abnormal, theta0=sim.theta0)
        >>> report["rho"].status, report["varrho"].value
        ('holds', 0.2)
        """
        from adfl_stats.theory.audit import audit

        return audit(self.record, self.data, abnormal, theta0)

    def oracle(self, abnormal: ClientSet, *, data: ClientData | None = None) -> OracleComparison:
        """Compare this fit with the oracle, the pooled and the local estimates.

        Parameters
        ----------
        abnormal : labels, indices or boolean mask
            The set A of abnormal clients, as in `check`. The oracle pools the rows of all others.
        data : ClientData, optional
            ``model.data``; not needed where the fit kept them (``keep_data=True``), which over ranks of MPI makes the
            comparison one of all ranks together.

        Returns
        -------
        OracleComparison
            Distances from the oracle and efficiencies.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.oracle(sim.abnormal, data=data).efficiency > 0.9
        True
        """
        return oracle_of(self, data, abnormal)

    def summary(self, alpha: float = 0.05, cov_type: str | None = None) -> Summary:
        """Return coefficients, clients, network, theory and notes as one text.

        Parameters
        ----------
        alpha : float
            Confidence limits are at level 1 - alpha.
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        statsmodels Summary
            Text, HTML, LaTeX and CSV.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> "Clients: 4 of 20 down-weighted" in str(res.summary(alpha=0.1))
        True
        """
        from adfl_stats.report.summary import summarize

        return summarize(self if cov_type is None else self.get_robustcov_results(cov_type), alpha)

    def __repr__(self) -> str:
        fit = self.record
        return f"Results({fit.method}, {fit.family.name}, {len(fit.labels)} clients, N={self.nobs}, P={len(fit.names)})"

    def _repr_html_(self) -> str:
        return str(self.summary().as_html())
