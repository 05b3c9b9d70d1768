"""Inference about coefficients: covariances, tests, intervals, predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from adfl_stats._arguments import in_interval
from adfl_stats._properties import once
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.detection import limits_of_detection
from adfl_stats.inference.estimates import Estimates
from adfl_stats.inference.prediction import NewDesign, NewRows, Prediction, design_for, mean_at
from adfl_stats.inference.record import FitRecord

if TYPE_CHECKING:
    from statsmodels.stats.contrast import ContrastResults

    from adfl_stats.inference.contrasts import Hypotheses

__all__ = ["CoefficientInference"]


class CoefficientInference(Estimates):
    """The part of `Results` for inference about coefficients."""

    record: FitRecord

    @property
    def cov_type(self) -> str:
        """The covariance that `bse`, `pvalues`, `conf_int()`, `summary()`, ... use unless another is named.

        "CR2" where clients differ: by the model of clients, which a method without one fits only where preliminary
        tests (Cochran's Q, tests by coefficient and by client) reject that they are alike. With 6 to 49 clients also
        where they vary more than their rows explain, Cochran's Q above its degrees of freedom, unless the fit was told
        ``heterogeneity="none"``: a test could miss differences that matter. Otherwise "sandwich", or "HC2" where rows
        are few.
        """
        return self.record.cov_type

    @property
    def use_t(self) -> bool:
        """Whether `pvalues`, `conf_int()` and `summary()` use t and not the normal distribution."""
        return Inference.of(self.record, None).use_t

    def cov_params(self, cov_type: str | None = None) -> pd.DataFrame:
        """Return the covariance matrix of the estimate.

        With v_m the clients' total weights, H the weighted curvature M^-1 sum v_m H_m and B the
        variance of the weighted gradient, it is H^-1 B H^-1.

        Parameters
        ----------
        cov_type : {"sandwich", "nonrobust", "HC1", "HC2", "HC3", "CR1", "CR2", "CR3"}, optional
            `cov_type` if not given. B from the rows' scores ("sandwich", also "HC0": statsmodels' when all
            clients have equal weight); times N / (N - P) ("HC1"); with residuals that allow for leverage,
            unbiased if the model holds ("HC2"), or that are divided by 1 - leverage, which is conservative
            ("HC3", MacKinnon & White 1985); from the information and the dispersion ("nonrobust"); or from
            the clients' scores, for rows that depend on one another within a client and for clients whose
            parameters vary: "CR1" (also "cluster") with statsmodels' correction M / (M - 1) (N - 1) / (N - P),
            where M and N count the clients that carry weight and their rows; "CR2", unbiased if the
            model holds, with few and unequal clients too (Bell & McCaffrey 2002; Pustejovsky & Tipton
            2018); "CR3", the jackknife over clients, which is conservative.

        Returns
        -------
        DataFrame
            P x P. NaN for methods that screen what clients receive (medians, clipping, ...), which solve no such
            equation; with CR2 and CR3 also for a coefficient that one client alone identifies, with HC2 and HC3 for
            one that a single row identifies.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> cov = res.cov_params("HC1")
        >>> cov.shape, bool((cov.to_numpy().diagonal() ** 0.5 == res.standard_errors("HC1")).all())
        ((3, 3), True)
        """
        matrix = Inference.of(self.record, cov_type).covariance()
        return pd.DataFrame(matrix, index=self.record.names, columns=self.record.names)

    @once
    def bse(self) -> pd.Series:
        """Standard errors, by `cov_type`."""
        return self.standard_errors()

    def standard_errors(self, cov_type: str | None = None) -> pd.Series:
        """Return the standard errors of a given kind.

        Parameters
        ----------
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        Series
            One per coefficient.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> bool((res.standard_errors() == res.bse).all()), bool((res.standard_errors("CR3") > res.bse).all())
        (True, True)
        """
        return self._series(np.sqrt(np.diag(Inference.of(self.record, cov_type).covariance())))

    @once
    def tvalues(self) -> pd.Series:
        """Estimates over their standard errors: z or t statistics, see `use_t`."""
        return self.params / self.bse

    @property
    def zvalues(self) -> pd.Series:
        """The same as `tvalues`."""
        return self.tvalues

    @once
    def pvalues(self) -> pd.Series:
        """Two-sided p-values of zero coefficients, by `cov_type`."""
        return self._series(Inference.of(self.record, None).p_values(self.tvalues.to_numpy()))

    def degrees_of_freedom(self, cov_type: str | None = None) -> pd.Series:
        """Return the degrees of freedom of the coefficients' t tests; infinite where these are z tests.

        Parameters
        ----------
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        Series
            CR1 has M - 1, M counting the clients that carry weight; HC1 has N - P, N counting their rows. HC2 and CR2
            have Satterthwaite's (Bell & McCaffrey 2002), which are few where few clients or rows determine a
            coefficient; HC3 and CR3 have the same. With fewer than 50 clients CR2 and CR3 have those at which t has
            the .95 quantile of the estimate over its standard error under the working model: Satterthwaite's take the
            two as independent, and are too few where one client has much of the influence.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.degrees_of_freedom("CR1").tolist(), res.degrees_of_freedom("sandwich").tolist()
        ([15.0, 15.0, 15.0], [inf, inf, inf])
        """
        return self._series(Inference.of(self.record, cov_type).df(np.eye(len(self.record.names))))

    def conf_int(
        self, alpha: float = 0.05, cov_type: str | None = None, *, contamination: float | None = None
    ) -> pd.DataFrame:
        """Return confidence limits at level 1 - alpha; columns 0 and 1 as in statsmodels.

        Parameters
        ----------
        alpha : float
            One minus the level.
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.
        contamination : float, optional
            A share of the clients. Limits then allow for the bias that so many clients, shifted together by as much as
            goes unseen with probability `alpha`, could leave in the coefficient; see `detection_limit`.

        Returns
        -------
        DataFrame
            Lower and upper limits of every coefficient.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> limits = res.conf_int(alpha=0.01, cov_type="sandwich")
        >>> bool((limits[0] < sim.theta0).all() and (sim.theta0 < limits[1]).all())
        True
        """
        in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
        se = self.standard_errors(cov_type)
        reach = Inference.of(self.record, cov_type).reach(alpha, np.eye(len(se))) * se
        if contamination is not None:
            reach = reach + self.detection_limit(contamination, power=1.0 - alpha)["bias"]
        return pd.DataFrame({0: self.params - reach, 1: self.params + reach})

    def tidy(self, alpha: float = 0.05, cov_type: str | None = None) -> pd.DataFrame:
        """Return the coefficients as a table with the columns of R's package broom, for tables of several models.

        Parameters
        ----------
        alpha : float
            One minus the level of the intervals.
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        DataFrame
            term, estimate, std.error, statistic, p.value, conf.low, conf.high: one row per coefficient.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.tidy()[["term", "estimate", "std.error"]].round(2).to_numpy().tolist()
        [['x1', 0.97, 0.04], ['x2', -0.01, 0.03], ['x3', 0.02, 0.05]]
        """
        se, limits = self.standard_errors(cov_type), self.conf_int(alpha, cov_type)
        statistic = self.params / se
        p_values = Inference.of(self.record, cov_type).p_values(statistic.to_numpy())
        columns = {
            "term": self.record.names,
            "estimate": self.params.to_numpy(),
            "std.error": se.to_numpy(),
            "statistic": statistic.to_numpy(),
            "p.value": p_values,
            "conf.low": limits[0].to_numpy(),
            "conf.high": limits[1].to_numpy(),
        }
        return pd.DataFrame(columns)

    def detection_limit(self, share: float = 0.2, power: float = 0.8) -> pd.DataFrame:
        """Return which shift of some clients would be found, and the bias that a smaller one could leave.

        The clients are shifted together, by a parameter of their own (ours; no result of the paper). The shift is that
        at which the model of clients finds them with the given probability; clients are taken to have equal sizes.

        Parameters
        ----------
        share : float
            Share of the clients that are shifted.
        power : float
            Probability of finding them.

        Returns
        -------
        DataFrame
            One row per coefficient. shift : in standard deviations of a client (sampling and spread together); bias :
            how far a shift just below that would move the estimate, in the direction in which it moves this coefficient
            most; bias / se : the same in standard errors.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=40, n=60, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 5)).fit()
        >>> bool((res.detection_limit(0.2)["shift"] > 2.0).all())
        True
        """
        in_interval(share, "share", 0.0, 0.5, open_low=True, open_high=True)
        in_interval(power, "power", 0.0, 1.0, open_low=True, open_high=True)
        limits = limits_of_detection(self.record, share, power)
        columns = {"shift": limits.shift, "bias": limits.bias, "bias / se": limits.bias / limits.se}
        return pd.DataFrame(columns, index=self.params.index)

    def t_test(self, r_matrix: Hypotheses, cov_type: str | None = None) -> ContrastResults:
        """Test linear hypotheses one by one, as statsmodels does.

        Parameters
        ----------
        r_matrix : str, array or tuple
            The hypotheses as in statsmodels: ``"x1 = x2"``, a matrix of contrasts, or a pair (matrix, values).
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        ContrastResults
            As in statsmodels.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> test = res.t_test("x1 = 1, x2 = x3")
        >>> test.effect.round(2).tolist(), bool(test.pvalue[1] > 0.05)
        ([0.97, -0.03], True)
        """
        from adfl_stats.inference.contrasts import t_test

        return t_test(self.params, Inference.of(self.record, cov_type), r_matrix)

    def wald_test(self, r_matrix: Hypotheses, cov_type: str | None = None) -> ContrastResults:
        """Test q linear hypotheses together, as statsmodels does.

        By a chi-square statistic with the sandwich and nonrobust. Otherwise by F: with q and M - 1 degrees of freedom
        for CR1 and q and N - P for HC1, as in statsmodels; with q and the least degrees of freedom of the hypotheses
        for HC2 and HC3; for CR2 and CR3 by the approximate Hotelling test of Pustejovsky & Tipton (2018),
        which for one hypothesis is the t test. Those by client need more than q clients.

        Parameters
        ----------
        r_matrix : str, array or tuple
            The hypotheses, as in `t_test`.
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        ContrastResults
            As in statsmodels.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> bool(res.wald_test("x1 = 0, x2 = 0").pvalue < 0.05), bool(res.wald_test("x2 = x3").pvalue > 0.05)
        (True, True)
        """
        from adfl_stats.inference.contrasts import wald_test

        return wald_test(self.params, Inference.of(self.record, cov_type), r_matrix)

    def predict(
        self, X: NewRows | None = None, *, offset: ArrayLike | None = None, exposure: ArrayLike | None = None
    ) -> pd.Series | pd.DataFrame:
        """Return the mean response at new rows, or at the rows that were fitted.

        Parameters
        ----------
        X : DataFrame or array, optional
            A frame with the formula's variables or the model's columns, or a design matrix. By default the rows of
            the fit, with their offsets, as long as the results hold them (``fit(keep_data=True)``).
        offset, exposure : array, optional
            As in the data.

        Returns
        -------
        Series or DataFrame
            One mean a row; for the multinomial a column of probabilities per class.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
        >>> res.predict(rows).round(2).tolist()
        [0.97, 0.0]
        """
        design = self._rows() if X is None else design_for(X, self.record)
        return mean_at(design, self.record, offset=offset, exposure=exposure)[1]

    def get_prediction(
        self,
        X: NewRows | None = None,
        *,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        cov_type: str | None = None,
    ) -> Prediction:
        """Return predictions with standard errors and intervals.

        Parameters
        ----------
        X : DataFrame or array, optional
            As in `predict`.
        offset, exposure : array, optional
            As in the data.
        cov_type : str, optional
            Of `cov_params`; ``res.cov_type`` if not given.

        Returns
        -------
        Prediction
            Its ``summary_frame(alpha)`` has means and intervals.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> table = res.get_prediction([[1.0, 0.0, 0.0]]).summary_frame(alpha=0.05)
        >>> table[["mean", "mean_ci_lower", "mean_ci_upper"]].round(1).to_numpy().tolist()
        [[1.0, 0.9, 1.1]]
        """
        inference = Inference.of(self.record, cov_type)
        design = self._rows() if X is None else design_for(X, self.record)
        return Prediction.at(design, inference, offset=offset, exposure=exposure)

    def _rows(self) -> NewDesign:
        """Return the rows that were fitted; results that may hold them say how."""
        raise NotImplementedError
