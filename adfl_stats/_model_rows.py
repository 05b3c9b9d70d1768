"""The rows of a model: checked together with those of other ranks, and in the forms that fits need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adfl_stats._threads import default_threads
from adfl_stats._types import FamilyLike, Ints, Mask
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.whole import DATA, Whole
from adfl_stats.engine.ledger import Counted, Ledger, phase
from adfl_stats.engine.mpi import MPI
from adfl_stats.engine.overdispersion import estimated_alpha
from adfl_stats.engine.overflow import overflowing_clients
from adfl_stats.engine.problem import Problem, overflow_error
from adfl_stats.engine.rank_data import RankData, without_rows
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.transport import Local, Transport, batch_bounds, cuts_of
from adfl_stats.losses import design_checks
from adfl_stats.losses.collinearity import check_design
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.initial_values import with_constants
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.response import with_family
from adfl_stats.losses.robust_scale import robust_regression, sampled_numbers
from adfl_stats.methods import Method
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["ModelRows", "examined"]

T = TypeVar("T")


@dataclass(eq=False)
class ModelRows:
    """The rows of a model that are in this place, as they were found, and the problems that fits make of them.

    Attributes
    ----------
    data : ClientData
        The rows; none on a rank without clients.
    family : Family
        With its constants.
    penalty : Ridge or None
        With one number for each coefficient.
    network, weighting
        Those of the model.
    extremes : Extremes
        The largest and smallest values by client.
    digests : ndarray (M,) of uint64
        Of the rows of all clients.
    constants, said : dict, list
        What summaries and fits say of estimated constants and of clients that hold the same rows.
    place : Counted or None
        Where the clients are, and what left them when the model was built; None on a rank without clients.
    whole : Whole or None
        The clients of all places; None on a rank without clients.
    spread : RankData or None
        The rows of all ranks, where each has those of its own clients.
    """

    data: ClientData
    family: Family
    penalty: Ridge | None
    network: Network | NetworkSchedule
    weighting: str
    extremes: design_checks.Extremes
    digests: NDArray[np.uint64]
    constants: dict[str, str]
    said: list[str]
    place: Counted | None
    whole: Whole | None
    spread: RankData | None = None

    def told(self) -> ModelRows:
        """Return the same without rows and clients, for a rank that has none."""
        return replace(self, data=without_rows(self.data), place=None, whole=None)

    @property
    def here(self) -> tuple[Counted, Whole]:
        """Where the clients are, and those of all places; not for a rank without clients."""
        assert self.place is not None
        assert self.whole is not None
        return self.place, self.whole

    @property
    def bounds(self) -> Ints:
        """The batches of all clients, see `batch_bounds`."""
        return batch_bounds(self.data.n_clients, self.data.n_rows) if self.spread is None else self.spread.bounds

    def run(self, ranks: MPI, facts: Mapping[str, Any], work: Callable[[Local | Ranks], T]) -> T:
        """Return what `work` returns of the place of our clients; all ranks call this together.

        Parameters
        ----------
        ranks : MPI
            Over which a fit of rows is spread that all of them have; those of data by rank.
        facts : mapping
            What all ranks must agree on, by name.
        work : callable
            Of the place; what it returns is sent to ranks without clients.
        """
        bounds = self.bounds

        def ours(place: Ranks) -> T:
            return work(Local(bounds) if place.here else place)

        if self.spread is not None:
            return self.spread.run(facts, ours)
        return ranks.run(bounds, facts, ours)

    @cached_property
    def overflowing(self) -> Mask:
        """Those of all clients whose numbers overflow at the estimate of the others; computed on first use."""
        (_, whole), searched = self.here, self._searched
        with phase(searched, "model"):
            problem = Problem(self.glm(self.data), self.network, self.weighting, default_threads(), searched)
            found = overflowing_clients(problem, self.extremes)
            return replace(whole, told=searched.told).gather(found)

    @cached_property
    def _searched(self) -> Counted:
        # Apart from the checks that every model makes: not all methods ask for it.
        return Counted(self.here[0].inner)

    def sent_before(self, method: Method) -> Ledger:
        """Return what left the clients before a fit by a method."""
        place, _ = self.here
        return place.ledger if self._needed_by(method).all() else place.ledger + self._searched.ledger

    def _needed_by(self, method: Method) -> Mask:
        """Return which of all clients a method cannot do without, whatever their numbers are."""
        labels = self.here[1].labels
        weights = np.zeros(len(labels)) if method.sets_aside else method.known_weights(labels)
        return np.ones(len(labels), dtype=bool) if weights is None else np.asarray(weights > 0.0)

    @cached_property
    def without_overflow(self) -> ClientData:
        """The data without the clients whose numbers overflow, here or elsewhere."""
        if not self.overflowing.any():
            return self.data
        first = self.here[1].first
        return self.data.setting_aside(self.overflowing[first : first + self.data.n_clients])

    def data_for(self, method: Method) -> ClientData:
        """Return the data that a method works on: without clients whose numbers overflow, if it can do without them."""
        (_, whole), needed = self.here, self._needed_by(method)
        if not needed.all() and not (self.overflowing & needed).any():
            return self.without_overflow
        if len(vast := whole.named(self.extremes.vast)):
            raise overflow_error(vast)
        return self.data

    def problem(self, network: Network | NetworkSchedule, data: ClientData) -> Problem:
        """Return the problem of all rows, or of those without overflow, on a network.

        Raises
        ------
        ValueError
            Where ranks hold the rows of their own clients alone.
        """
        if self.whole is None or not self.whole.alone:
            raise ValueError(
                "this needs the rows of all clients in one place, and the model's data are by rank (RankData); fit and "
                "what its results say work by rank, for the rest build the model on a ClientData"
            )
        return Problem(self.glm(data), network, self.weighting, default_threads(), self.here[0])

    def glm(self, data: ClientData) -> GLM:
        """Return the objective of all rows, or of those without overflow; one serves all fits."""
        return self._objective if data is self.data else self._objective_without_overflow

    def glm_at(self, place: Local | Ranks, data: ClientData) -> GLM:
        """Return the objective of the clients of a place, which may have some of those whose rows are here."""
        glm = self.glm(data)
        return glm.share(place.own) if isinstance(place, Ranks) and self.spread is None else glm

    @cached_property
    def _objective(self) -> GLM:
        return self._placed(self.data)

    @cached_property
    def _objective_without_overflow(self) -> GLM:
        return self._placed(self.without_overflow)

    def _placed(self, data: ClientData) -> GLM:
        place, whole = self.here
        glm = GLM(assembled(data, cuts=cuts_of(place)), self.family, self.penalty)
        if self.family.robust and not whole.alone:
            return glm.beginning_at(robust_regression(data, whole).theta)
        return glm


def examined(
    data: ClientData | RankData,
    family: FamilyLike,
    penalty: Ridge | None,
    network: Network | NetworkSchedule,
    weighting: str,
) -> ModelRows:
    """Return the rows of a model, checked; those of other ranks are checked with them."""
    if not isinstance(data, RankData):
        place = Counted(Local(batch_bounds(data.n_clients, data.n_rows)))
        with phase(place, "model"):
            return _examined(data, family, penalty, network, weighting, place, Whole.here(data))
    own: list[ModelRows] = []

    def examine(ranks: Ranks) -> ModelRows:
        place = Counted(ranks)
        with phase(place, "model"):
            own.append(_examined(data.own, family, penalty, network, weighting, place, data.whole))
        return own[0].told()

    given = {"the weighting": weighting, "the family": repr(family), "the penalty": repr(penalty)}
    told = data.run(given, examine)
    return replace(own[0] if own else told, spread=data)


def _examined(
    data: ClientData,
    family: FamilyLike,
    penalty: Ridge | None,
    network: Network | NetworkSchedule,
    weighting: str,
    place: Counted,
    whole: Whole,
) -> ModelRows:
    """Examine the rows in a place; what clients tell each other is counted."""
    whole = replace(whole, told=place.told)
    data, composed = with_family(data, family, whole)
    surveyed = design_checks.survey(data, whole)
    extremes = surveyed.extremes
    check_design(data, surveyed.gram, extremes.vast, whole, penalised=penalty is not None)
    extremes.refuse_tiny()
    held = assembled(data, cuts=cuts_of(place))
    composed, constants = with_constants(composed, held, whole), dict[str, str]()
    if composed.robust:
        # For the scale, and where fits begin.
        whole.told(DATA, sampled_numbers(whole, data.X.shape[1]))
    if composed.name == "negativebinomial" and not composed.par:
        estimate = estimated_alpha(held, composed, network, extremes.vast, default_threads(), place)
        composed, constants["alpha"] = replace(composed, par=estimate.alpha), estimate.in_words()
    design_checks.warn_of_clients(data, composed, extremes, whole)
    said = design_checks.warn_of_copies(whole, surveyed.hashes)
    full, digests = _full(penalty, data, composed, place), surveyed.hashes.digests
    return ModelRows(data, composed, full, network, weighting, extremes, digests, constants, said, place, whole)


def _full(penalty: Ridge | None, data: ClientData, family: Family, place: Transport) -> Ridge | None:
    """Return the penalty with one number for each coefficient; none where all are zero."""
    if penalty is None:
        return None
    if not isinstance(penalty, Ridge):
        raise TypeError(f"penalty is {penalty!r}; pass a penalty such as ad.Ridge(0.1), or None")
    glm = GLM(data, family, total=place.total, gather=place.gather)
    full = penalty.on(glm.names, glm.constant_coefficients)
    return full if full.strengths.any() else None
