"""What all results have in common: estimates, weights and the course of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from adfl_stats._arguments import in_interval
from adfl_stats._properties import once
from adfl_stats._types import Array
from adfl_stats.inference.record import RunRecord
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["Estimates", "MethodRecord"]


@dataclass(frozen=True)
class MethodRecord:
    """The method of a fit.

    Attributes
    ----------
    name : str
        Its name, as in summaries.
    details : dict
        What it chose: lambda, measure, stages, start.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> res.method.name, sorted(res.method.details)[:2]
    ('aDFL', ['balance', 'equalise'])
    """

    name: str
    details: dict[str, Any]


class Estimates:
    """Point estimates: means over the clients' own estimates, and what led to them."""

    record: RunRecord

    @once
    def params(self) -> pd.Series:
        """The mean over clients of their estimates."""
        return self._series(self.record.params)

    @once
    def client_params(self) -> pd.DataFrame:
        """Each client's own estimate, one row a client."""
        index = self.record.labels.rename(self.record.client_name)
        return pd.DataFrame(self.record.theta, index=index, columns=self._index)

    @once
    def client_weights(self) -> pd.Series:
        """omega_m of the last stage: 1 for the most trusted client, near 0 for down-weighted ones."""
        return self._by_client(self.record.weights, "weight")

    @property
    def trace(self) -> pd.DataFrame:
        """How the runs went: run, round, step, longest move of a client, spread of the clients."""
        return self.record.trace

    @property
    def method(self) -> MethodRecord:
        """The method, and what it chose."""
        return MethodRecord(self.record.method, self.record.details)

    @property
    def network(self) -> Network | NetworkSchedule:
        """The network, or the schedule of networks, in the data's order of clients."""
        return self.record.network

    @property
    def step(self) -> float:
        """The learning rate of the last rounds."""
        return self.record.step

    @property
    def lambda_path(self) -> pd.DataFrame | None:
        """Cross-validation of each lambda: lam, score, trusted, chosen; None where lambda was given.

        The score is the mean held-out loss of the better half of the clients, `trusted` the number of clients
        with at least a tenth of the largest weight in the first stage.
        """
        path = self.record.details.get("lambda_path")
        return None if path is None else pd.DataFrame(path)

    @property
    def solver(self) -> str:
        """How the last stage was computed: "rounds", or "limit" if that was solved for directly."""
        return self.record.solver

    @property
    def rounds(self) -> int:
        """Rounds of the last stage; passes over the data where `solver` is "limit"."""
        return self.record.rounds

    @property
    def effective_clients(self) -> float:
        """(sum v)^2 / sum v^2 for the clients' total weights v_m (trust x size x influence)."""
        v, members = self.record.total_weights, self.record.members
        return float(members.sum(v) ** 2 / members.sum(v**2))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the results to a NumPy archive without pickle; `adfl_stats.load` reads it back.

        Parameters
        ----------
        path : str or path
            The file; ``.npz`` is added where it has no ending.

        Examples
        --------
        >>> import tempfile
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     res.save(f"{folder}/fit.npz")
        ...     again = ad.load(f"{folder}/fit.npz")
        >>> bool((again.params == res.params).all())
        True
        """
        from adfl_stats.inference.storage import save

        save(self.record, path)

    def report(
        self,
        path: str | PathLike[str],
        *,
        also: Sequence[object] = (),
        title: str | None = None,
        alpha: float = 0.05,
    ) -> Path:
        """Write the fit as one HTML page that loads nothing: to read, to print, to hand to a colleague.

        It has summary, coefficients, clients (to sort and search), the network drawn and coloured by weight,
        differences between clients, the paper's conditions and theorems, the course of the fit and the notes of
        `summary`.

        Parameters
        ----------
        path : str or path
            The file; its name ends in .html.
        also : sequence
            Further results to show, each in a section of its own: ``model.rates(res)``, ``res.sensitivity()``,
            ``res.oracle(...)``, ``res.check(abnormal=...)``, ``screen(res)``, or a DataFrame.
        title : str, optional
            The heading; the response and the method if not given.
        alpha : float
            Intervals are at level 1 - alpha.

        Returns
        -------
        Path
            Where the page is.

        Examples
        --------
        >>> import tempfile
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     res.report(f"{folder}/fit.html", title="A simulated fit").name
        'fit.html'
        """
        from adfl_stats.report.pages.fit_page import fit_page
        from adfl_stats.report.pages.page import write

        alpha = in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
        return write(path, lambda: fit_page(self, also, title, alpha))

    def _series(self, values: Array) -> pd.Series:
        return pd.Series(values, index=self._index)

    @once
    def _index(self) -> pd.Index:
        return pd.Index(list(self.record.names))

    def _by_client(self, values: Array, name: str) -> pd.Series:
        return pd.Series(values, index=self.record.labels.rename(self.record.client_name), name=name)
