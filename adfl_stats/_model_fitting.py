"""A fit of a model where its clients are: in one place, over the ranks of MPI, or in a network without a centre."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adfl_stats._model_facts import facts_of_fit
from adfl_stats._model_warnings import warn_of_error, warn_of_overflow
from adfl_stats._threads import team_of
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.whole import Whole
from adfl_stats.engine.gossip import Gossip
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.ledger import Counted, phase
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.transport import Local, Transport
from adfl_stats.inference.joined import whole_record
from adfl_stats.inference.record import FitRecord, fit_record
from adfl_stats.losses.design_checks import warn_of_domain
from adfl_stats.losses.glm import GLM
from adfl_stats.methods import Method, check_needs, checked_outcome
from adfl_stats.network.schedule import one_network
from adfl_stats.trust import differing_coefficients
from adfl_stats.trust.weights import trusted_by

if TYPE_CHECKING:
    from adfl_stats.model import DecentralizedGLM

__all__ = ["Fitting"]


@dataclass(frozen=True)
class Fitting:
    """A fit that was asked for; each method carries it out in another kind of place.

    Attributes
    ----------
    model : DecentralizedGLM
        What is fitted.
    method : Method
        By what.
    plan : Plan
        How.
    threads : int or None
        Those of the kernel, where they were given.
    journal : callable or None
        Makes the journal of a checkpoint from the transport and the number of clients.
    besides : dict of str
        Options that are no part of the estimation, on which ranks must agree too, by name.
    """

    model: DecentralizedGLM
    method: Method
    plan: Plan
    threads: int | None
    journal: Callable[[Counted, int], Journal] | None
    besides: dict[str, str]

    def here(self, gossip: Gossip | None) -> FitRecord:
        """Return the record of a fit in this process, which has all clients."""
        rows = self.model.rows
        place = rows.here[0].inner
        if gossip is not None:
            place = gossip.on(one_network(self.model.network, "ad.Gossip()"))
        data = rows.data_for(self.method)
        return self._finished(*self._record(data, rows.glm(data), place, team_of(self.threads)))

    def over(self, ranks: MPI) -> FitRecord:
        """Return the record of a fit over ranks; it has all clients on every rank."""
        rows = self.model.rows
        team = ranks.threads_each if self.threads is None else team_of(self.threads)

        def work(place: Local | Ranks) -> FitRecord:
            data = rows.data_for(self.method)
            return self._finished(*self._record(data, rows.glm_at(place, data), place, team))

        return rows.run(ranks, self._facts, work)

    @property
    def _facts(self) -> dict[str, str]:
        facts = facts_of_fit(self.model, self.method, self.plan)
        return facts | self.besides

    def _finished(self, record: FitRecord, journal: Journal | None) -> FitRecord:
        """Return the record of all clients; nothing has to be made again then."""
        whole = whole_record(record, Local(self.model.rows.bounds))
        if journal is not None:
            journal.remove()
        return whole

    def _record(self, data: ClientData, glm: GLM, place: Transport, threads: int) -> tuple[FitRecord, Journal | None]:
        """Return the record of a fit where some clients of the data, those of `glm`, are in this place."""
        model, method, rows = self.model, self.method, self.model.rows
        # Ranks may hold all rows and work on some of them.
        whole = Whole.here(data) if data.n_clients == model.everybody.n_clients else rows.here[1]
        said = model.said + (warn_of_overflow(model.everybody.labels[rows.overflowing]) if method.sets_aside else [])
        counted = Counted(place, before=rows.sent_before(method))
        whole = replace(whole, told=counted.told)
        journal = None if self.journal is None else self.journal(counted, model.everybody.n_clients)
        plan = replace(self.plan, journal=journal)
        with phase(counted, "start"):
            problem = Problem(glm, model.network, model.weighting, threads, counted)
            differing_coefficients(problem, plan.heterogeneity)
            check_needs(method, problem, plan)
        with phase(counted, "rounds"):
            outcome = checked_outcome(method, problem, method.estimate(problem, plan))
        with phase(counted, "inference"):
            params, trusted = problem.mean(outcome.theta), trusted_by(outcome.steps.weights, problem.members)
            if whole.alone and not place.here:
                # Every place has the rows of all clients; in a network, a client knows its own weight.
                trusted = place.gather(trusted)
            said = said + warn_of_domain(data, rows.family, params, trusted, whole)
            outcome.details.update(rows.constants)
            record = fit_record(model, problem, method, outcome, plan, said)
        if plan.rounds is None and outcome.smooth and record.error.total > plan.tolerance:
            warn_of_error(record.error, plan, outcome.runs[-1])
        return record, journal
