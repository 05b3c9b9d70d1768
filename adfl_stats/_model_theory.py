"""Theory methods of the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from adfl_stats._model_rows import ModelRows
from adfl_stats._threads import one_blas_thread
from adfl_stats.inference.results import Results
from adfl_stats.methods import Method
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network
from adfl_stats.theory.advice import Advice, advisable, advise_on
from adfl_stats.theory.local_updates import local_updates
from adfl_stats.theory.rates import Rates, rates_of

__all__ = ["ModelTheory"]


class ModelTheory:
    """The methods of `DecentralizedGLM` that ask theory; nothing is fitted."""

    rows: ModelRows
    network: Network | NetworkSchedule

    def rates(self, res: Results) -> Rates:
        """Measure how fast a fit of this model by `DFL` or `ADFL` converges, and what rounds cannot remove.

        Parameters
        ----------
        res : Results
            What `fit` returned. The factors are those of its last rounds, at its step and weights.

        Returns
        -------
        Rates
            Contraction factors: exact, observed in the trace, and the paper's bound; the error that is left.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=5)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> rates = model.rates(model.fit(ad.DFL(), step=0.1, rounds=200))
        >>> rates.exact < rates.bound, rates.rounds(1e-3) < rates.rounds(1e-3, "bound")
        (True, True)
        """
        if not isinstance(res, Results):
            raise TypeError(f"res is a {type(res).__name__}; pass the results of a fit of this model")
        network = one_network(self.network, "rates, the eigenvalues of the linearised round,")
        with one_blas_thread():
            data = self.rows.without_overflow if res.record.set_aside.any() else self.rows.data
            return rates_of(self.rows.problem(network, data), res.record)

    def local_updates(
        self,
        res: Results,
        local_steps: Sequence[int] = (1, 2, 5, 10, 20),
        *,
        message: float = 10.0,
        step: float | None = None,
    ) -> pd.DataFrame:
        """Compare numbers of gradient steps between exchanges, ``DFL(local_steps=k)``: their bias and their cost.

        Nothing is run. The bias is by how much the mean over clients of the network's limit differs from that of one
        step between exchanges, to first order in the clients' curvature and exact for linear models.

        Parameters
        ----------
        res : Results
            A fit of this model by `DFL` or `ADFL`, whose weights are taken.
        local_steps : sequence of int
            The numbers to compare.
        message : float
            The cost of an exchange, in gradient steps.
        step : float, optional
            The learning rate; that of the fit if not given.

        Returns
        -------
        DataFrame
            By number of local steps: bias, the largest over coefficients in standard errors, infinite where the step
            is beyond stability; rounds until the start is forgotten to .05 standard errors; cost, rounds times
            (message + local steps); best, whether it is the cheapest of those with a bias of at most .05 standard
            errors.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=5)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> table = model.local_updates(model.fit(ad.DFL(), step=0.02, rounds=10), [1, 5])
        >>> bool(table.loc[1, "bias"] < 1e-9), bool(table.loc[5, "cost"] < 0.4 * table.loc[1, "cost"])
        (True, True)
        """
        network = one_network(self.network, "local_updates, which count rounds,")
        with one_blas_thread():
            data = self.rows.without_overflow if res.record.set_aside.any() else self.rows.data
            return local_updates(self.rows.problem(network, data), res.record, local_steps, message, step)

    def advise(self, tolerance: float = 0.05, method: Method | None = None) -> Advice:
        """Recommend a step and a number of rounds, with the bottleneck and the effect of repairs.

        Nothing is run: the limit of the iteration is solved for directly, at one step after another.

        Parameters
        ----------
        tolerance : float
            Wanted numerical error, in standard errors of the estimate, as in `fit`.
        method : DFL or ADFL, optional
            Its weights and balance; ``DFL()`` if not given. Abnormal clients call for small steps as long as
            they count: after a fit, ``DFL(weights=res.client_weights)`` asks for its own weights.

        Returns
        -------
        Advice
            A report with `step`, `rounds` and the table of repairs.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> advice = model.advise()
        >>> res = model.fit(ad.DFL(), step=advice.step, rounds=int(advice.rounds))
        >>> bool(res.converged)
        True
        """
        method = advisable(method)
        network = one_network(self.network, "advise, which solves for the limit of the rounds,")
        with one_blas_thread():
            return advise_on(partial(self.rows.problem, data=self.rows.data_for(method)), network, method, tolerance)
