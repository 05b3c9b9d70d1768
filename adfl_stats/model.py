"""The model: data, network and family put together, and `fit`."""

from __future__ import annotations

from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adfl_stats._arguments import in_interval, one_of
from adfl_stats._model_facts import facts_of_fit
from adfl_stats._model_fitting import Fitting
from adfl_stats._model_rows import examined
from adfl_stats._model_theory import ModelTheory
from adfl_stats._model_warnings import warn_of_network
from adfl_stats._threads import one_blas_thread
from adfl_stats._types import FamilyLike, FrameLike
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.formula import callers_names
from adfl_stats.data.from_table import table_data
from adfl_stats.data.table import rows_and_formula
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.gossip import Gossip
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.rank_data import RankData, ranks_of_fit
from adfl_stats.inference.covariance import COV_TYPES
from adfl_stats.inference.results import Results
from adfl_stats.losses.penalties import Ridge
from adfl_stats.methods import ADFL, Method
from adfl_stats.methods.plans import check_method, plan_of
from adfl_stats.network.matching import as_network, matched
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["DecentralizedGLM"]

WEIGHTINGS = ("sample", "client", "random-effects")


class DecentralizedGLM(ModelTheory):
    """A generalised linear model whose data stay with the clients of a network.

    Parameters
    ----------
    data : ClientData or RankData
        What each client holds; a `RankData` where each rank of MPI holds its own clients.
    network : Network, NetworkSchedule or networkx graph
        Who listens to whom; its labels must be the clients of the data, in any order. In a graph an edge u -> v means
        that v receives from u. A schedule, made by
        ``networks.schedule`` or ``networks.dropout``, changes with the round: fits on it run rounds.
    family : str, statsmodels family instance, Family or Huber
        "gaussian", "binomial", "poisson", "gamma", "inversegaussian", "negativebinomial", "multinomial" or "huber",
        which is ``Huber()``: linear regression robust to outlying rows inside good clients. Other links, and the
        Tweedie family, by `adfl_stats.family` or as statsmodels instances.
    weighting : {"sample", "client", "random-effects"}
        Whether clients count by their rows (the limit of DFL is then the pooled estimate), once each, or, between the
        two, by the information that each has about the mean of clients that differ (random-effects weights, efficient
        where clients differ much and have unequal sizes; `ADFL` with its model of clients only). The paper has
        clients of equal size, where all are the same.
    penalty : Ridge, optional
        Added to the mean loss of every client; see `Ridge`. Standard errors then describe the variance of the
        estimate, and not the bias that the penalty brings.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=5)
    >>> net = ad.networks.directed_circle(20, 5)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, net).fit()
    >>> bool(((res.params - sim.theta0).abs() < 4 * res.bse).all())
    True
    """

    def __init__(
        self,
        data: ClientData | RankData,
        network: Network | NetworkSchedule,
        family: FamilyLike = "gaussian",
        *,
        weighting: str = "sample",
        penalty: Ridge | None = None,
    ) -> None:
        if not isinstance(data, ClientData | RankData):
            raise TypeError(
                f"data is a {type(data).__name__}; build a ClientData with ClientData.from_frame or from_arrays"
            )
        self.everybody = data
        self.weighting = one_of(weighting, "weighting", WEIGHTINGS)
        self.network = matched(as_network(network, "network"), data.labels)
        with one_blas_thread():
            self.rows = examined(data, family, penalty, self.network, self.weighting)
        self.data, self.family, self.penalty = self.rows.data, self.rows.family, self.rows.penalty
        self.said = self.rows.said + warn_of_network(self.network)

    @classmethod
    def from_formula(
        cls,
        formula: str,
        frame: FrameLike | None = None,
        client: str | ArrayLike | None = None,
        network: Network | NetworkSchedule | None = None,
        family: FamilyLike = "gaussian",
        *,
        data: FrameLike | None = None,
        weighting: str = "sample",
        penalty: Ridge | None = None,
        offset: str | ArrayLike | None = None,
        exposure: str | ArrayLike | None = None,
        weights: str | ArrayLike | None = None,
        freq_weights: str | ArrayLike | None = None,
        missing: str = "raise",
    ) -> DecentralizedGLM:
        """Build data and model from a frame and a formula.

        Parameters
        ----------
        formula : str
            A formula of formulaic, such as ``"y ~ x1 + C(group)"``, as in `ClientData.from_frame`. Formula and frame
            may change places.
        frame : DataFrame
            The rows of all clients, in pandas, polars or Arrow.
        client : str or array (N,)
            The column that says which client a row belongs to, or the labels themselves.
        network : Network or NetworkSchedule
            Who listens to whom; its labels are the values of `client`.
        family : str, statsmodels family instance, Family or Huber
            As in `DecentralizedGLM`.
        data : DataFrame, optional
            Another name of `frame`, that of statsmodels.
        weighting : {"sample", "client", "random-effects"}
            As in `DecentralizedGLM`.
        penalty : Ridge, optional
            As in `DecentralizedGLM`.
        offset, exposure, weights, freq_weights : str or array (N,), optional
            Columns of the frame, or one value a row, as in `ClientData.from_frame`.
        missing : {"raise", "drop"}
            What to do with rows that have missing values, as in `ClientData.from_frame`.

        Returns
        -------
        DecentralizedGLM
            The model.

        Examples
        --------
        >>> import numpy as np, pandas as pd
        >>> import adfl_stats as ad
        >>> rng = np.random.default_rng(1)
        >>> frame = pd.DataFrame({"x": rng.normal(size=120), "site": np.repeat(["a", "b", "c"], 40)})
        >>> frame["y"] = 1.0 + 2.0 * frame["x"] + rng.normal(size=120)
        >>> net = ad.networks.complete(3, labels=["a", "b", "c"])
        >>> ad.DecentralizedGLM.from_formula("y ~ x", frame, "site", net).fit().params.round(1).to_dict()
        {'Intercept': 0.9, 'x': 1.9}
        """
        rows, formula = rows_and_formula(frame, formula, data, "from_formula")
        if client is None or network is None:
            lacking = "client" if client is None else "network"
            raise TypeError(f"from_formula lacks {lacking}; call from_formula(formula, frame, client, network)")
        roles = {
            "client": client, "offset": offset, "exposure": exposure, "weights": weights, "freq_weights": freq_weights
        }  # fmt: skip
        held = table_data(rows, formula, roles, missing, callers_names(1))
        return cls(held, network, family, weighting=weighting, penalty=penalty)

    def fit(
        self,
        method: Method | None = None,
        *,
        step: float | str = "auto",
        rounds: int | None = None,
        solver: str = "auto",
        tolerance: float = 0.05,
        max_rounds: int | None = None,
        progress: bool = False,
        threads: int | None = None,
        heterogeneity: str = "auto",
        attack: Attack | None = None,
        keep_data: bool = False,
        cov_type: str | None = None,
        transport: MPI | Gossip | None = None,
        checkpoint: str | PathLike[str] | None = None,
        every: float = 60.0,
    ) -> Results:
        """Estimate the parameters on every client.

        Parameters
        ----------
        method : Method, optional
            `DFL`, `ADFL`, `Bridge`, `ClippedGossip`, ...; ``ADFL(balance=True)`` if not given, or ``ADFL()`` where
            the network changes with the round, as steps cannot be balanced there.
        step : float or "auto"
            The learning rate alpha. With `rounds` it gives exactly the paper's recursion. "auto" is
            one over the largest curvature of any client; without `rounds` it is chosen, and later cut, in
            coordinates in which the pooled bound on the curvature is the identity (``res.step`` then refers to these).
        rounds : int, optional
            Rounds per stage. Without it the run goes on until the numerical error (optimisation plus
            consensus) is below `tolerance` standard errors; with "auto" the step is then cut as needed.
        solver : {"auto", "rounds", "limit"}
            "limit" solves for the limit of the rounds directly, the theta(infinity) of which the theorems
            speak: the same estimates as rounds carried to convergence, from a few dozen passes over the
            data whatever the step; ``res.rounds_needed`` says how many rounds the network would need. Methods without
            a smooth limit (medians) refuse it; as a start of another method they run their rounds. "auto" takes the
            limit where the method has one, and rounds where it has none, where `rounds`, `max_rounds` or `attack` is
            given, or where the network changes with the round.
        tolerance : float
            Wanted numerical error, in standard errors of the estimate: that of the clients' mean, plus the root mean
            square over clients of their distances from it, for the worst coefficient. Single clients may be farther
            away; the summary says how far.
        max_rounds : int, optional
            Rounds per stage after which a run without `rounds` gives up, with a warning; 20,000 if not given.
        progress : bool
            Show a progress bar (tqdm).
        threads : int, optional
            Threads of the kernel; by default the processors at hand, and one inside parallel workers. Never more
            than the machine has processors, or eight.
            Results are the same to the last bit for any number.
        heterogeneity : {"auto", "none", "estimate", "intercept"}
            Whether normal clients may have parameters of their own, theta_m = theta + u_m with u_m ~ (0, T): if
            penalised likelihood chooses it; never, as in the paper; always (which takes four clients); or in the
            intercept alone. Where they differ, weights and flags allow for it, and standard errors are by client
            (``res.cov_type`` is "CR2"). See ``res.heterogeneity()``.
        attack : Attack, optional
            Clients that send false messages, from `attacks`: a stress test, outside aDFL's theory.
        keep_data : bool
            Let the results hold the data (``res.data``) and the model for good, in pickles the data too. Otherwise
            they hold the model (``res.model``) only until all of inference was computed, which is done when it is
            first asked for, or before results are saved, pickled or told to `remove_data`. The data are not copied:
            leave them as they are until then. Over ranks of MPI this is what lets fits be made again (`bootstrap`,
            `sensitivity`, `majority`) and compared (`oracle`, nested tests), by all ranks together: every rank makes
            the call. With data by rank (`RankData`) each rank holds the model with the rows of its own clients, and
            ``res.data`` is None.
        cov_type : str, optional
            The covariance of standard errors, tests and intervals, of `Results.cov_params`. If not given it is by
            client where clients differ or may well, else by row; `Results.cov_type` says how it is chosen.
        transport : MPI or Gossip, optional
            Spread the clients over the ranks of MPI, see `MPI`; every rank calls `fit` alike, and has the results of
            all clients, with all of inference computed; if not given, each process makes the whole fit. Or simulate a
            network without a centre, see `Gossip`.
        checkpoint : str or path, optional
            A folder in which the runs of this fit are kept until it is done. The same call after a crash, on as many
            ranks or others, goes on from them and ends with the same bits: runs that were done are not run again,
            and one with `rounds` given goes on where it was, but for methods whose rounds have a memory (EXTRA,
            gradient tracking, SLBRN, UBAR) and with `attack`, which begin the run again.
        every : float
            Seconds between two checkpoints of a run that goes on where it was.

        Returns
        -------
        Results
            Estimates, inference and diagnostics.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> model.fit().solver, model.fit(ad.DFL(), step=0.05, rounds=100).rounds
        ('limit', 100)
        """
        if method is None:
            method = ADFL(balance=isinstance(self.network, Network))
        check_method(method)
        if not isinstance(transport, MPI | Gossip | None):
            raise TypeError(f"transport is {transport!r}; pass ad.MPI(), ad.Gossip(), or nothing")
        if cov_type is not None:
            one_of(cov_type, "cov_type", COV_TYPES)
        ranks = ranks_of_fit(self.everybody, transport)
        plan = plan_of(
            method,
            self.network,
            self.weighting,
            step=step,
            rounds=rounds,
            solver=solver,
            tolerance=tolerance,
            max_rounds=max_rounds,
            progress=progress,
            heterogeneity=heterogeneity,
            attack=attack,
        )
        journal, kept = None, "none"
        if checkpoint is not None:
            seconds = in_interval(every, "every", 0.0, np.inf)
            # Sums without a centre have other bits; over ranks they have not.
            place = repr(transport) if isinstance(transport, Gossip) else "with a centre"
            facts = facts_of_fit(self, method, plan) | {"the transport": place}
            journal = partial(Journal, Path(checkpoint), facts, seconds)
            kept = f"every {seconds:g} s"
        besides = {"checkpoint": kept, "cov_type": repr(cov_type), "keep_data": repr(keep_data)}
        fitting = Fitting(self, method, plan, threads, journal, besides)
        with one_blas_thread():
            gossip = transport if isinstance(transport, Gossip) else None
            record = fitting.here(gossip) if ranks is None else fitting.over(ranks)
            res = Results(record, *self._kept(method, ranks)) if keep_data else Results(record)
        return res if cov_type is None else res.get_robustcov_results(cov_type)

    def _kept(self, method: Method, ranks: MPI | None) -> tuple[ClientData | None, DecentralizedGLM, MPI | None]:
        """Return what results hold that keep the data: the rows of all clients, if they are here, model and ranks."""
        return None if self.rows.spread is not None else self.rows.data_for(method), self, ranks

    @property
    def formula(self) -> str | None:
        """The formula, where there was one."""
        return None if self.data.formula is None else self.data.formula.text

    @property
    def endog_names(self) -> str:
        """The response; statsmodels' name for it."""
        return self.data.y_name

    @property
    def exog_names(self) -> list[str]:
        """The columns of the design matrix; statsmodels' name for them."""
        return list(self.data.names)

    def __repr__(self) -> str:
        what, whole = self.formula or f"{self.data.y_name} on {len(self.data.names)} columns", self.everybody
        edges = f"{self.network.n_edges} edges" if isinstance(self.network, Network) else "edges that change"
        alpha = f", alpha={self.family.par:.4g}" if self.family.name == "negativebinomial" else ""
        return (
            f"DecentralizedGLM({what}, {self.family.label} ({self.family.link}){alpha}, {whole.n_clients} clients, "
            f"{edges}, N={whole.n_rows})"
        )
