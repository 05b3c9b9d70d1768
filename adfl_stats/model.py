"""The model: data, network and family put together, and `fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adfl_stats._arguments import in_interval, one_of
from adfl_stats._model_facts import facts_of_fit, facts_of_model
from adfl_stats._model_theory import ModelTheory
from adfl_stats._model_warnings import warn_of_error, warn_of_network, warn_of_overflow
from adfl_stats._threads import default_threads, one_blas_thread, team_of
from adfl_stats._types import FamilyLike, FrameLike, Mask
from adfl_stats.data.client_data import ClientData, assembled, table_data
from adfl_stats.data.formula import callers_names
from adfl_stats.data.whole import Whole
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.gossip import Gossip
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.ledger import Counted, phase
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.overdispersion import estimated_alpha
from adfl_stats.engine.overflow import overflowing_clients
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem, overflow_error
from adfl_stats.engine.rank_data import RankData, check_spread, without_rows
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.transport import Local, Transport, batch_bounds
from adfl_stats.inference.covariance import COV_TYPES
from adfl_stats.inference.joined import whole_record
from adfl_stats.inference.record import FitRecord, fit_record
from adfl_stats.inference.results import Results
from adfl_stats.losses import design_checks
from adfl_stats.losses.collinearity import check_design
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.response import with_family
from adfl_stats.losses.robust_scale import robust_regression
from adfl_stats.losses.starts import with_constants
from adfl_stats.methods import ADFL, Method, check_needs, checked_outcome
from adfl_stats.methods.plans import check_method, plan_of
from adfl_stats.network.matching import as_network, matched
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network
from adfl_stats.trust import differing_coefficients
from adfl_stats.trust.weights import trusted_by

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
            if isinstance(data, RankData):
                given = {"the weighting": weighting, "the family": repr(family), "the penalty": repr(penalty)}
                known = data.run(given, lambda place: self._examine(data.own, family, penalty, place))
                # A rank without clients is told what the others found.
                vars(self).update(known if data.place is None else {})
            else:
                self._examine(data, family, penalty, Local(batch_bounds(data.n_clients, data.n_rows)))
        self._said += warn_of_network(self.network)

    def _examine(
        self, data: ClientData, family: FamilyLike, penalty: Ridge | None, place: Local | Ranks
    ) -> dict[str, Any]:
        """Check the rows at hand, with those elsewhere; return what was found of all, for ranks without clients."""
        whole = self.everybody.whole if isinstance(self.everybody, RankData) else Whole.here(data)
        self._place, self._whole = place, whole
        self.data, self.family = with_family(data, family, whole.gather)
        surveyed = design_checks.survey(self.data, whole)
        check_design(self.data, surveyed.gram, surveyed.extremes.vast, whole, penalised=penalty is not None)
        surveyed.extremes.refuse_tiny()
        held = assembled(self.data, cuts=place.cuts)
        self.family = with_constants(self.family, held, whole)
        self._constants = self._estimate_alpha(held, surveyed.extremes.vast, place)
        design_checks.warn_of_clients(self.data, self.family, surveyed.extremes, whole)
        self._said = design_checks.warn_of_copies(whole, surveyed.hashes)
        self.penalty = self._penalty(penalty)
        self._extremes, self.row_digests = surveyed.extremes, surveyed.hashes.digests
        return {
            "data": without_rows(self.data),
            **{name: vars(self)[name] for name in ("family", "penalty", "row_digests", "_constants", "_said")},
        }

    def _estimate_alpha(self, data: ClientData, vast: Mask, place: Local | Ranks) -> dict[str, str]:
        """Estimate the negative binomial's alpha where it was not given; return what the summary says."""
        if self.family.name != "negativebinomial" or self.family.par:
            return {}
        estimate = estimated_alpha(data, self.family, self.network, vast, default_threads(), place)
        self.family = replace(self.family, par=estimate.alpha)
        return {"alpha": estimate.in_words()}

    def _penalty(self, penalty: Ridge | None) -> Ridge | None:
        """Return the penalty with one number for each coefficient; none where all are zero."""
        if penalty is None:
            return None
        if not isinstance(penalty, Ridge):
            raise TypeError(f"penalty is {penalty!r}; pass a penalty such as ad.Ridge(0.1), or None")
        glm = GLM(self.data, self.family, total=self._place.total, gather=self._place.gather)
        full = penalty.on(glm.names, glm.constant_coefficients)
        return full if full.strengths.any() else None

    @cached_property
    def _overflowing(self) -> Mask:
        """The clients whose numbers overflow at the estimate of the others; computed on first use."""
        return overflowing_clients(self._problem_here(self.network, self.data), self._extremes)

    @cached_property
    def _without_overflow(self) -> ClientData:
        return self.data.setting_aside(self._overflowing) if self._overflowing.any() else self.data

    def _data_for(self, method: Method) -> ClientData:
        """Return the data that a method works on: without clients whose numbers overflow, if it can do without them."""
        if method.sets_aside:
            return self._without_overflow
        weights = method.known_weights(self.everybody.labels)
        if weights is not None and not weights.all():
            counted = self._whole.gather(self._overflowing) & (weights > 0.0)
            if not counted.any():
                return self._without_overflow
        if len(vast := self._whole.named(self._extremes.vast)):
            raise overflow_error(vast)
        return self.data

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
        if (frame is None) == (data is None):
            raise TypeError(
                "from_formula takes the rows once, as frame or as data, which are the same; got "
                + ("neither" if frame is None else "both")
            )
        if client is None or network is None:
            lacking = "client" if client is None else "network"
            raise TypeError(f"from_formula lacks {lacking}; call from_formula(formula, frame, client, network)")
        rows = frame if data is None else data
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
            Whether normal clients may have parameters of their own, theta_m = theta + u_m with u_m ~ (0, T): where the
            data say so; never, as in the paper; always (which takes four clients); or in the intercept alone. Where
            they differ, weights and flags allow for it, and standard errors are by client (``res.cov_type`` is "CR2").
            See ``res.heterogeneity()``.
        attack : Attack, optional
            Clients that send false messages, from `attacks`: a stress test, outside aDFL's theory.
        keep_data : bool
            Let the results hold the data (``res.data``) and the model for good, in pickles the data too. Otherwise
            they hold the model (``res.model``) only until all of inference was computed, which is done when it is
            first asked for, or before results are saved, pickled or told to `remove_data`. The data are not copied:
            leave them as they are until then.
        cov_type : str, optional
            The covariance of standard errors, tests and intervals, of `Results.cov_params`. If not given it is by
            client where clients differ or may well, else by row; `Results.cov_type` says how it is chosen.
        transport : MPI or Gossip, optional
            Spread the clients over the ranks of MPI, see `MPI`; every rank calls `fit` alike, and has the results of
            all clients, with all of inference computed. Or simulate a network without a centre, see `Gossip`.
        checkpoint : str or path, optional
            A folder in which the runs of this fit are kept until it is done. The same call after a crash, on as many
            ranks or others, goes on from them and ends with the same bits: runs that were done are not run again,
            and one of the kernel's rounds with `rounds` given goes on where it was.
        every : float
            Seconds between two checkpoints of a run that goes on.

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
        spread = self.everybody if isinstance(self.everybody, RankData) else None
        if spread is not None:
            check_spread(transport, keep_data=keep_data)
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
        journal = None
        if checkpoint is not None:
            seconds = in_interval(every, "every", 0.0, np.inf)
            journal = partial(Journal, Path(checkpoint), facts_of_fit(self, method, plan), seconds)
        with one_blas_thread():
            if spread is not None:
                record = self._fitted_by_rank(method, plan, spread, threads, journal)
                res = Results(record)
                return res if cov_type is None else res.get_robustcov_results(cov_type)
            data = self._data_for(method)
            if isinstance(transport, MPI):
                record = self._fitted_on_ranks(method, plan, data, transport, threads, journal)
            else:
                place = self._place if transport is None else transport.on(one_network(self.network, "ad.Gossip()"))
                record = self._fitted(method, plan, data, self._glm(data), place, team_of(threads), journal)
        res = Results(record, *((data, self) if keep_data else ()))
        return res if cov_type is None else res.get_robustcov_results(cov_type)

    def _fitted(
        self,
        method: Method,
        plan: Plan,
        data: ClientData,
        glm: GLM,
        place: Transport,
        threads: int,
        journal_at: Callable[[Counted, int], Journal] | None,
    ) -> FitRecord:
        """Return the record of a fit, where some clients of the data, those of `glm`, are in this place."""
        # Ranks may hold all rows and work on some of them.
        whole = Whole.here(data) if data.n_clients == self.everybody.n_clients else self._whole
        said = self._said + (warn_of_overflow(data, whole) if method.sets_aside else [])
        counted = Counted(place)
        journal = None if journal_at is None else journal_at(counted, self.everybody.n_clients)
        plan = replace(plan, journal=journal)
        problem = Problem(glm, self.network, self.weighting, threads, counted)
        differing_coefficients(problem, plan.heterogeneity)
        check_needs(method, problem, plan)
        with phase(problem.transport, "rounds"):
            outcome = checked_outcome(method, problem, method.estimate(problem, plan))
        params, trusted = problem.mean(outcome.theta), trusted_by(outcome.steps.weights, problem.members)
        if whole.alone:
            trusted = problem.members.gather(trusted)
        said = said + design_checks.warn_of_domain(data, self.family, params, trusted, whole)
        outcome.details.update(self._constants)
        record = fit_record(self, problem, method, outcome, plan, said)
        if plan.rounds is None and outcome.smooth and record.error.total > plan.tolerance:
            warn_of_error(record.error, plan, outcome.runs[-1])
        if journal is not None:
            journal.remove()
        return record

    def _fitted_on_ranks(
        self,
        method: Method,
        plan: Plan,
        data: ClientData,
        ranks: MPI,
        threads: int | None,
        journal: Callable[[Counted, int], Journal] | None,
    ) -> FitRecord:
        """Return the record of a fit over the ranks of MPI; it has all clients on every rank."""
        team = max(1, default_threads() // ranks.ranks_here) if threads is None else team_of(threads)
        bounds = batch_bounds(self.data.n_clients, self.data.n_rows)

        def work(place: Ranks) -> FitRecord:
            if place.here:
                return self._fitted(method, plan, data, self._glm(data), self._place, team, journal)
            glm = self._glm(data).share(place.own)
            return whole_record(self._fitted(method, plan, data, glm, place, team, journal), Local(bounds))

        facts = {"the method": repr(method), "the options": repr(plan), **facts_of_model(self)}
        return ranks.run(bounds, facts, work)

    def _fitted_by_rank(
        self,
        method: Method,
        plan: Plan,
        spread: RankData,
        threads: int | None,
        journal: Callable[[Counted, int], Journal] | None,
    ) -> FitRecord:
        """Return the record of a fit of data by rank; it has all clients on every rank, and no rows."""
        team = max(1, default_threads() // spread.ranks.ranks_here) if threads is None else team_of(threads)

        def work(place: Ranks) -> FitRecord:
            data, here = self._data_for(method), Local(spread.bounds)
            at = here if place.here else place
            return whole_record(self._fitted(method, plan, data, self._glm(data), at, team, journal), here)

        facts = {"the method": repr(method), "the options": repr(plan), **facts_of_model(self)}
        return spread.run(facts, work)

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

    def _problem(self, network: Network | NetworkSchedule, data: ClientData | None = None) -> Problem:
        if isinstance(self.everybody, RankData):
            raise ValueError(
                "this needs the rows of all clients in one place, and the model's data are by rank (RankData); fit and "
                "what its results say work by rank, for the rest build the model on a ClientData"
            )
        return self._problem_here(network, self.data if data is None else data)

    def _problem_here(self, network: Network | NetworkSchedule, data: ClientData) -> Problem:
        return Problem(self._glm(data), network, self.weighting, default_threads(), self._place)

    def _glm(self, data: ClientData) -> GLM:
        """Return the objective; one serves all fits, with what it computes of the data."""
        if data is not self.data:
            return self._objective_without_overflow
        return self._objective

    @cached_property
    def _objective(self) -> GLM:
        return self._placed(self.data)

    @cached_property
    def _objective_without_overflow(self) -> GLM:
        return self._placed(self._without_overflow)

    def _placed(self, data: ClientData) -> GLM:
        glm = GLM(assembled(data, cuts=self._place.cuts), self.family, self.penalty)
        if self.family.name == "huber" and not self._whole.alone:
            return glm.beginning_at(robust_regression(data, self._whole).theta)
        return glm
