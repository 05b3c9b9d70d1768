"""Work on the rows of a fit where they are: in this process, or by all ranks of MPI over which the fit was spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from adfl_stats._archives import digest
from adfl_stats._threads import default_threads, one_blas_thread
from adfl_stats.data.batches import of_clients
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.transport import Local, Members, batch_bounds, cuts_of
from adfl_stats.inference.fitted import ModelNames
from adfl_stats.inference.record import Recipe

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results

__all__ = ["Site", "agree_on", "at_sites", "model_of", "on_problem"]

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """A place that works on the rows of some clients, or of all.

    Attributes
    ----------
    place : Local or Ranks
        Where the clients are, and in which batches their sums are taken.
    n_clients : int
        Of all places.
    """

    place: Local | Ranks
    n_clients: int

    @property
    def members(self) -> Members:
        """All clients; those of this place are ours."""
        return Members(self.place, None if self.place.here else self.place.clients(self.n_clients))

    def ours(self, data: ClientData) -> ClientData:
        """Return the rows of our clients, of rows of all clients or of ours, for passes that begin anew at batches."""
        if isinstance(self.place, Ranks) and data.n_clients == self.n_clients:
            data = of_clients(data, self.place.own)
        return assembled(data, cuts=cuts_of(self.place))


def at_sites(res: Results, call: str, work: Callable[[Site], T]) -> T:
    """Return what `work` returns of the place of our clients; where the fit was over ranks, all of them call this.

    Parameters
    ----------
    res : Results
        The fit.
    call : str
        What is done, in words: ranks must agree on it.
    work : callable
        What it returns is sent to ranks without clients.
    """
    fit = res.record
    M = len(fit.labels)
    with one_blas_thread():
        if res._ranks is None:
            return work(Site(Local(batch_bounds(M, int(fit.sizes.sum()))), M))
        rows = model_of(res, call)[0].rows
        return rows.run(res._ranks, _facts(res, call), lambda place: work(Site(place, M)))


def agree_on(res: Results, call: str, facts: Mapping[str, Any] | None = None) -> None:
    """Raise ValueError where the ranks of a fit make different calls; nothing in one process.

    For calls with arguments that all ranks must have alike, and for those that consist of several fits.

    Parameters
    ----------
    res : Results
        The fit.
    call : str
        What is done, in words.
    facts : mapping, optional
        What the ranks must agree on besides, by name.
    """
    if res._ranks is not None:
        with res._ranks.together():
            res._ranks.agree(_facts(res, call) | dict(facts or {}))


def _facts(res: Results, call: str) -> dict[str, Any]:
    """Return what the ranks of a fit must agree on before they work on its rows."""
    return {"the call": call, "the results": digest(res.record.params, res.record.weights)}


def on_problem(res: Results, call: str, work: Callable[[Problem], T]) -> T:
    """Return what `work` returns of the problem that was fitted, see `at_sites`; ValueError where it is not held."""
    model, recipe = model_of(res, call)
    threads = default_threads() if res._ranks is None else res._ranks.threads_each

    def on(site: Site) -> T:
        glm = model.rows.glm_at(site.place, model.rows.data_for(recipe.method))
        return work(Problem(glm, model.network, model.weighting, threads, site.place))

    return at_sites(res, call, on)


def model_of(res: Results, call: str) -> tuple[Any, Recipe]:
    """Return model and recipe of results; ValueError where they no longer hold them."""
    model, recipe = res.model, res.record.recipe
    if isinstance(model, ModelNames) or recipe is None:
        raise ValueError(
            f"res.{call.partition('(')[0]}() needs the model, and these results do not hold it any more (they were "
            "saved, pickled, loaded, told to remove_data, or all of their inference was computed). Fit again with "
            "keep_data=True"
        )
    return model, recipe
