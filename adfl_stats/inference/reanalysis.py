"""Fits made again: under other choices, without some clients, and on resampled clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pandas as pd

from adfl_stats._arguments import flag
from adfl_stats.inference.bootstrap import Bootstrap, bootstrap_of
from adfl_stats.inference.coefficients import CoefficientInference
from adfl_stats.inference.majority import Majority, majority_of
from adfl_stats.inference.nested import goodness_by_client, likelihood_ratio_test, score_test
from adfl_stats.inference.sensitivity import Sensitivity, sensitivity_of

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results
    from adfl_stats.model import DecentralizedGLM

__all__ = ["Reanalysis"]


class Reanalysis(CoefficientInference):
    """Methods of `Results` that fit the model again; they need it (``res.model``).

    After a fit over the ranks of MPI (with ``keep_data=True``) all ranks make these calls together, each with the rows
    of its own clients: a call on one rank alone waits for the others.
    """

    def sensitivity(self, *, clients: bool = True, progress: bool = False) -> Sensitivity:
        """Fit again under other choices: starts, lambda, weights, flags, balance, heterogeneity, clients left out.

        Where the fit was over ranks of MPI, all of them make this call together.

        Parameters
        ----------
        clients : bool
            Also leave out each client in turn, with the weights of the others estimated anew.
        progress : bool
            Show a progress bar (tqdm) for the clients left out.

        Returns
        -------
        Sensitivity
            Estimate, standard error and number of trusted clients under each choice: a table and a plot.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=8, n=40, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(8, 3)).fit(heterogeneity="none")
        >>> table = res.sensitivity().to_frame("x1")
        >>> bool(table.loc["start", "shift"].abs().max() < 0.1), len(table.loc["without"])
        (True, 8)
        """
        return sensitivity_of(
            cast("Results", self), clients=flag(clients, "clients"), progress=flag(progress, "progress")
        )

    def bootstrap(self, B: int = 400, *, seed: int = 0, progress: bool = False) -> Bootstrap:
        """Draw clients with replacement and fit again, the choice of trusted clients included.

        For ``ADFL`` with its model of clients, and for methods with given weights. The estimate of a draw is the
        network's limit, in which a client has the influence of its place. Who is trusted, and how much clients differ,
        is estimated anew; whether they differ is as in the fit. The draws are solved several at a time.
        Ctrl-C ends the drawing and returns the draws so far, with a warning. Where the fit was over ranks of MPI, all
        of them make this call together.

        Parameters
        ----------
        B : int
            Number of draws.
        seed : int
            Seed of the draws.
        progress : bool
            Show a progress bar (tqdm).

        Returns
        -------
        Bootstrap
            Estimates of the draws, standard errors, intervals, and how often each client kept its weight.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> ratio = res.bootstrap(50).bse / res.standard_errors("CR2")
        >>> bool(((ratio > 0.6) & (ratio < 1.4)).all())
        True
        """
        return bootstrap_of(cast("Results", self), B, seed, progress=flag(progress, "progress"))

    def majority(self) -> Majority:
        """Return how firmly the majority is identified: the best rival half, and how many clients decide.

        Where the fit was over ranks of MPI, all of them make this call together.

        Returns
        -------
        Majority
            How much worse a rival half fits, how many clients would have to change before it fits better, and for each
            client how many others its verdict depends on.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.majority().rival is None
        True
        """
        return majority_of(cast("Results", self))

    def compare_lr_test(self, restricted: Results) -> tuple[float, float, float]:
        """Test a restricted model against this one by their likelihood ratio, as statsmodels does.

        Over the rows of the trusted clients, which must be the same in both fits. It takes rows as independent and
        clients as sharing one parameter; otherwise use `wald_test`. A client whose numbers overflow in either model is
        in neither. Where this fit was over ranks of MPI, all of them make this call together.

        Parameters
        ----------
        restricted : Results
            A fit of the same rows whose columns are combinations of this fit's: fewer of them, whatever their names
            or units. Both fits have to hold their rows (``fit(keep_data=True)``).

        Returns
        -------
        tuple of float
            The statistic 2 (llf - llf of the restricted fit), its p-value, and its degrees of freedom.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=50, p=3)
        >>> net = ad.networks.complete(10)
        >>> rows = {"y": sim.y, "client": sim.client}
        >>> full = ad.ClientData.from_arrays(sim.X, **rows)
        >>> less = ad.ClientData.from_arrays(sim.X[:, 1:], **rows, names=full.names[1:])
        >>> res, small = (ad.DecentralizedGLM(data, net).fit(ad.DFL()) for data in (full, less))
        >>> statistic, p_value, df = res.compare_lr_test(small)
        >>> statistic > 0.0, p_value < 0.05, df
        (True, True, 1.0)
        """
        return likelihood_ratio_test(cast("Results", self), restricted)

    def score_test(self, larger: DecentralizedGLM, cov_type: str | None = None) -> tuple[float, float, float]:
        """Test further columns by their score at this fit, without fitting the larger model.

        Rao's test with the weights of this fit, as ``GLM.score_test`` of statsmodels. A client whose numbers overflow
        in either model is in neither; a method that sets no client aside names it. Where this fit was over ranks of
        MPI, all of them make this call together.

        Parameters
        ----------
        larger : DecentralizedGLM
            A model of the same rows with more columns, of which those of this fit are combinations, whatever their
            names or units. This fit has to hold its rows (``fit(keep_data=True)``).
        cov_type : {"sandwich", "nonrobust", "cluster"}, optional
            Variance of the score: from the rows, from the model, or from the clients; if not given, from the clients
            where ``res.cov_type`` is by client, else from the rows.

        Returns
        -------
        tuple of float
            The statistic, its p-value (chi-square), and its degrees of freedom.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=50, p=3)
        >>> net = ad.networks.complete(10)
        >>> rows = {"y": sim.y, "client": sim.client}
        >>> full = ad.ClientData.from_arrays(sim.X, **rows)
        >>> less = ad.ClientData.from_arrays(sim.X[:, 1:], **rows, names=full.names[1:])
        >>> res = ad.DecentralizedGLM(less, net).fit(ad.DFL())
        >>> statistic, p_value, df = res.score_test(ad.DecentralizedGLM(full, net))
        >>> p_value < 0.05, df
        (True, 1.0)
        """
        return score_test(cast("Results", self), larger, cov_type)

    def goodness_of_fit(self) -> pd.DataFrame:
        """Return the deviance and Pearson's chi-square of each client at the estimate.

        A small p-value says that the client's residuals are larger than those of the trusted clients' rows: more noise,
        or a shift. The reference is a scaled chi-square with mean and variance of the trusted clients' squared Pearson
        residuals, so that it holds for counts and labels too; of labels, whose squares have little information, it has
        little power. Deviances of labels depend on the covariates more than on the fit, and have no p-value. Where the
        fit was over ranks of MPI, all of them make this call together.

        Returns
        -------
        DataFrame
            One row a client: n; deviance; pearson, the sum of squared Pearson residuals, and over n; p_value of it.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> fit = res.goodness_of_fit()
        >>> bool((fit.loc[sim.abnormal_labels, "p_value"] < 0.01).all())
        True
        """
        return goodness_by_client(cast("Results", self))
