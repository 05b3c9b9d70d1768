"""What `Results` says when the fit is made again: under other choices, without clients, on clients drawn anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from adfl_stats.inference.bootstrap import Bootstrap, bootstrap_of
from adfl_stats.inference.coefficients import CoefficientInference
from adfl_stats.inference.majority import Majority, majority_of
from adfl_stats.inference.sensitivity import Sensitivity, sensitivity_of

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results

__all__ = ["Reanalysis"]


class Reanalysis(CoefficientInference):
    """Methods of `Results` that fit the model again; they need it (``res.model``)."""

    def sensitivity(self, *, clients: bool = True, progress: bool = False) -> Sensitivity:
        """Fit again under other choices: starts, lambda, weights, flags, balance, heterogeneity, clients left out.

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
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=10, n=60, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit()
        >>> table = res.sensitivity().to_frame("x1")
        >>> bool(table.loc["start", "shift"].abs().max() < 0.1), len(table.loc["without"])
        (True, 10)
        """
        return sensitivity_of(cast("Results", self), clients=clients, progress=progress)

    def bootstrap(self, B: int = 400, *, seed: int = 0, progress: bool = False) -> Bootstrap:
        """Draw clients with replacement and fit again, the choice of trusted clients included.

        For ``ADFL`` with its model of clients, and for methods with given weights. The estimate of a draw is the
        network's limit, in which a client has the influence of its place. Who is trusted, and how much clients differ,
        is estimated anew; whether they differ is as in the fit. The draws are solved several at a time.
        Ctrl-C ends the drawing and returns the draws so far, with a warning.

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
        >>> ratio = res.bootstrap(100).bse / res.standard_errors("CR2")
        >>> bool(((ratio > 0.6) & (ratio < 1.4)).all())
        True
        """
        return bootstrap_of(cast("Results", self), B, seed, progress=progress)

    def majority(self) -> Majority:
        """Return how firmly the majority is identified: the best rival half, and how many clients decide.

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
