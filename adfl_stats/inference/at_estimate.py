"""The parts of inference at the estimate: one pass over the data, each part computed when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from adfl_stats._properties import once
from adfl_stats._threads import one_blas_thread
from adfl_stats._types import Array
from adfl_stats.data.batches import one_pass
from adfl_stats.engine.ledger import phase
from adfl_stats.engine.numerical_error import (
    NumericalError,
    StandardErrors,
    consensus_error,
    numerical_error,
    standard_errors_from,
)
from adfl_stats.engine.problem import Problem
from adfl_stats.errors import DivergenceError
from adfl_stats.inference.by_row import ByRow, ByRowSums
from adfl_stats.inference.client_diagnostics import ClientDiagnostics, gather_diagnostics
from adfl_stats.inference.client_record import ClientEffects, ClientRecord, client_effects, record_clients
from adfl_stats.inference.clustered import Clustered, gather_clustered
from adfl_stats.inference.glance import alike, common_model
from adfl_stats.inference.judging import judging_point
from adfl_stats.losses.point_sums import PointSums, WeightedSums, sums_at
from adfl_stats.losses.regularity import Regularity, RegularitySums
from adfl_stats.methods import Outcome
from adfl_stats.trust import ClientModel, has_known_dispersion, model_at
from adfl_stats.trust.summaries import Summaries, Summariser
from adfl_stats.trust.weights import trusted_by

__all__ = ["PARTS", "AtEstimate", "Goodness"]


PARTS = (
    "weighted_sums",
    "error",
    "goodness",
    "glance",
    "clients",
    "effects",
    "clustered",
    "by_row",
    "diagnostics",
    "regularity",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Goodness:
    """Log-likelihood and deviance over the rows of the trusted clients."""

    llf: float
    deviance: float


@dataclass(frozen=True, eq=False)
class _Source:
    """Model, problem and outcome, from which the parts are computed."""

    model: Any
    problem: Problem
    outcome: Outcome
    heterogeneity: str

    @once
    def params(self) -> Array:
        """The estimate (P,)."""
        return self.problem.mean(self.outcome.theta)

    @once
    def seen(self) -> tuple[PointSums, Summaries | None]:
        """The pass over the data."""
        penalty = self.problem.glm.penalty
        return self._pass(self.params, None if penalty is None else penalty.gradient(self.params))

    def _pass(self, theta: Array, slope: Array | None = None) -> tuple[PointSums, Summaries | None]:
        """Return the sums over rows at theta (P,); rows' scores include `slope`, the penalty's gradient.

        For a method without a model of clients the same pass collects the summaries from which one is fitted later.
        """
        glm, steps, members = self.problem.glm, self.outcome.steps, self.problem.members
        summariser = None
        if self.outcome.clients is None:
            summariser = Summariser(glm.data, glm.family, theta, steps.weights > 0.0, members)
        trusted, visit = trusted_by(steps.weights, members), None if summariser is None else summariser.add
        parts = members.transport.batches()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            point = sums_at(
                glm.data, glm.family, theta, steps.total_weights, trusted, visit, members.total, parts, slope
            )
        seen = point.weighted_sums
        if not (np.isfinite(seen.hessian).all() and np.isfinite(seen.meat).all()):
            raise DivergenceError(
                "at this estimate the clients' scores overflow, so that it has no standard errors: rounds with a step "
                "that is too large end so far from the data. Give a smaller step, or none"
            )
        return point, None if summariser is None else summariser.summaries()

    @once
    def point(self) -> PointSums:
        """The sums at the estimate, with the penalty if there is one."""
        weight = float(self.problem.mean(self.outcome.steps.total_weights))
        return self.seen[0].penalised(self.problem.glm.penalty, self.params, weight)

    @once
    def judged(self) -> tuple[Array, PointSums, Summaries | None]:
        """The point at which the clients are tested, and the sums over their rows there.

        With a penalty it takes another pass, and where the loss is not quadratic some for slopes before it.
        """
        if self.problem.glm.penalty is None:
            return self.params, *self.seen
        weights, sums, smooth = self.outcome.steps.total_weights, self.seen[0].weighted_sums, self.outcome.smooth
        where = judging_point(self.problem, self.params, weights, sums, smooth=smooth)
        return where, *self._pass(where)

    @once
    def unit(self) -> StandardErrors:
        """Standard errors by the sandwich; raises ValueError where the clients do not identify all coefficients."""
        seen = self.point.weighted_sums
        return standard_errors_from(self.problem, seen.hessian, seen.meat)

    @property
    def row_sums(self) -> ByRowSums:
        """The sums for inference by row, for a pass over the data."""
        problem, outcome, penalty = self.problem, self.outcome, self.problem.glm.penalty
        return ByRowSums(
            problem.glm.data,
            problem.glm.family,
            self.params,
            outcome.steps.total_weights,
            self.point.weighted_sums,
            smooth=outcome.smooth,
            slope=None if penalty is None else penalty.gradient(self.params),
            members=problem.members,
        )

    @property
    def regularity_sums(self) -> RegularitySums:
        """The sums for Conditions 3 and 4 (curvatures, moments), for a pass over the data."""
        glm, members = self.problem.glm, self.problem.members
        clients, parts = self.seen[0].clients, members.transport.batches()
        return RegularitySums(glm.data, glm.family, self.params, clients, glm.penalty, members.total, parts)

    @once
    def client_model(self) -> ClientModel:
        """The model of clients, with scores at the point of the tests."""
        (where, point, summaries), model = self.judged, self.outcome.clients
        if model is None:
            weights = self.outcome.steps.weights
            model = model_at(self.problem.unpenalised, where, weights, self.heterogeneity, summaries)
        return model.at(self.problem.unpenalised, where, point.clients)

    @once
    def expanded_model(self) -> ClientModel:
        """The model of clients by which each of them is tested."""
        return self.client_model.expanded(self.problem.unpenalised)

    @once
    def first_look(self) -> ClientRecord | None:
        """The clients under one common parameter; None if a test rejects it or the full model has been fitted."""
        where, _, summaries = self.judged
        # A spread that the user wants is fitted whatever the tests' result.
        if summaries is None or self.heterogeneity not in ("auto", "none"):
            return None
        model = common_model(self.problem.unpenalised, where, self.outcome.steps.weights, summaries)
        if model is None:
            return None
        record = self.recorded(model, model)
        return record if alike(model, record) else None

    def recorded(self, model: ClientModel, judging: ClientModel) -> ClientRecord:
        """Return the record of a model of clients, with the statistics of the model by which each is tested."""
        glm = self.problem.glm
        return record_clients(
            model,
            judging,
            self.outcome.steps.total_weights,
            glm.totals,
            self.judged[1].clients.information,
            known=has_known_dispersion(glm.data, glm.family),
            smooth=self.outcome.smooth,
        )


class _Part(once[T]):
    """A part that is computed once; the data are dropped with the last one."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        source = instance._source
        counted = nullcontext() if source is None else phase(source.problem.transport, "inference")
        with one_blas_thread(), counted:
            value = super().__get__(instance, owner)
        instance.release()
        return value


class AtEstimate:
    """The parts of inference at an estimate: computed from the model, or read from a file.

    Parameters
    ----------
    model, problem, outcome, heterogeneity
        What was fitted, on what, what was found, and whether clients may differ. The model's data are read when a part
        is first used; changing them in place before that changes the inference. The reference is dropped
        with the last part.
    """

    def __init__(self, model: Any, problem: Problem, outcome: Outcome, heterogeneity: str) -> None:
        self._source: _Source | None = _Source(model, problem, outcome, heterogeneity)

    @classmethod
    def of_parts(cls, parts: Mapping[str, Any]) -> AtEstimate:
        """Return an object that has its parts already."""
        complete = cls.__new__(cls)
        complete.__setstate__({name: parts[name] for name in PARTS})
        return complete

    @property
    def model(self) -> Any:
        """The model, until the last part was computed."""
        return None if self._source is None else self._source.model

    def parts(self) -> dict[str, Any]:
        """Return all parts, computed where need be: in two passes over the data.

        With a penalty clients are tested elsewhere (`judging_point`), which takes a third pass, and where the loss is
        not quadratic some for slopes. A spread of the clients that is estimated under a link that is not linear takes
        those of `trust.laplace`.
        """
        return {name: getattr(self, name) for name in PARTS}

    def __getstate__(self) -> dict[str, Any]:
        return self.parts()

    def __setstate__(self, parts: dict[str, Any]) -> None:
        self.__dict__.update(parts, _source=None)

    def release(self) -> None:
        """Drop the data where nothing is left to be computed."""
        if all(name in self.__dict__ for name in PARTS):
            self._source = None

    @property
    def _from(self) -> _Source:
        assert self._source is not None, "a part was not computed before its data were dropped"
        # Coefficients that the clients do not identify are named before anything is inverted.
        _ = self._source.unit
        return self._source

    @_Part
    def weighted_sums(self) -> WeightedSums:
        """Gradients, curvature and meat."""
        return self._from.point.weighted_sums

    @_Part
    def error(self) -> NumericalError:
        """The numerical error, in standard errors."""
        source = self._from
        theta, steps = source.outcome.theta, source.outcome.steps
        if not source.outcome.smooth:
            return NumericalError(np.nan, consensus_error(theta, source.unit.se, source.problem.transport))
        gradients = self.weighted_sums.gradients
        return numerical_error(source.problem, theta, steps.total_weights, source.unit, gradients)

    @_Part
    def goodness(self) -> Goodness:
        """Log-likelihood and deviance."""
        point = self._from.seen[0]
        return Goodness(point.llf, point.deviance)

    @_Part
    def glance(self) -> ClientRecord:
        """The clients as the summary shows them: `first_look` where tests find no heterogeneity, else `clients`."""
        look = self._from.first_look
        return self.clients if look is None else look

    @_Part
    def clients(self) -> ClientRecord:
        """The model of clients: score statistics, spread."""
        source = self._from
        return source.recorded(source.client_model, source.expanded_model)

    @_Part
    def effects(self) -> ClientEffects:
        """Deviations of the clients."""
        return client_effects(self._from.expanded_model)

    @_Part
    def clustered(self) -> Clustered:
        """Inference by client."""
        source, clients = self._from, self.glance
        return gather_clustered(
            source.problem.glm.data,
            source.outcome.steps.total_weights,
            source.point,
            smooth=source.outcome.smooth,
            spread=clients.spread if clients.differ else None,
            dispersion=clients.dispersion,
            ridge=source.problem.glm.ridge,
            members=source.problem.members,
        )

    @_Part
    def by_row(self) -> ByRow:
        """Inference by row with leverages; takes a second pass over the data, which serves `regularity` as well."""
        source = self._from
        if "regularity" in self.__dict__:
            (by_row,) = one_pass(source.problem.glm.data, source.row_sums)
            return by_row
        by_row, self.__dict__["regularity"] = one_pass(source.problem.glm.data, source.row_sums, source.regularity_sums)
        return by_row

    @_Part
    def diagnostics(self) -> ClientDiagnostics:
        """Split-sample statistics, and what the estimate would be without each client."""
        source = self._from
        data, total_weights, smooth = source.problem.glm.data, source.outcome.steps.total_weights, source.outcome.smooth
        gathered = partial(gather_diagnostics, data, total_weights, smooth=smooth, members=source.problem.members)
        diagnostics = gathered(source.point)
        if source.problem.glm.penalty is None:
            return diagnostics
        return replace(gathered(source.judged[1]), deletion_shift=diagnostics.deletion_shift)

    @_Part
    def regularity(self) -> Regularity:
        """Curvatures and moments of Conditions 3 and 4; takes a second pass over the data."""
        (regularity,) = one_pass(self._from.problem.glm.data, self._from.regularity_sums)
        return regularity
