"""The designs of two nested models, where their rows are: one column space within the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.data.client_data import ClientData
from adfl_stats.inference.embedding import check_same_clients, check_same_rows, embedding
from adfl_stats.inference.fitted import ModelNames
from adfl_stats.inference.sites import Site

if TYPE_CHECKING:
    from adfl_stats.inference.record import FitRecord
    from adfl_stats.inference.results import Results

__all__ = ["NestedDesigns", "check_places", "rows_of_fit", "rows_of_model"]

# Finds rows: which clients of a model have numbers that overflow is found by all of its ranks together.
Rows = Callable[[], ClientData]


@dataclass(frozen=True)
class NestedDesigns:
    """A smaller and a larger design, and what they are called in errors."""

    small: Rows
    large: Rows
    names: tuple[str, str]

    def at(self, site: Site) -> tuple[ClientData, Array]:
        """Return the larger design of our clients and B with X_small = X_large B; ValueError where there is none."""
        small, large, members = site.ours(self.small()), site.ours(self.large()), site.members
        check_same_clients(small, large, self.names, members)
        small, large = _set_aside_alike(small, large)
        check_same_rows(small, large, self.names, members)
        if len(small.names) >= len(large.names):
            raise ValueError(
                f"{self.names[0]} has the columns {listing(small.names)}, {self.names[1]} {listing(large.names)}; the "
                "second must have more of them"
            )
        return large, embedding(small, large, self.names, members)


def _set_aside_alike(small: ClientData, large: ClientData) -> tuple[ClientData, ClientData]:
    """Return two designs without the clients that either sets aside, as their numbers overflow in one of them."""
    aside = ~(small.counted & large.counted)
    if not aside.any():
        return small, large
    return small.setting_aside(aside), large.setting_aside(aside)


def check_places(res: Results, model: Any, name: str) -> None:
    """Raise ValueError where a model has its rows by rank, and the fit has all rows in each place."""
    theirs, ours = (getattr(getattr(one, "rows", None), "spread", None) for one in (model, res.model))
    if theirs is not None and ours is None and theirs.ranks.size > 1:
        raise ValueError(
            f"{name} has its rows by rank (RankData), and this fit has all rows in one place; build both models on the "
            "same RankData, or both on a ClientData"
        )


def rows_of_fit(res: Any, name: str) -> Rows:
    """Return how to find the rows of a fit that are here; ValueError where it no longer holds them."""
    if not isinstance(res.model, ModelNames):
        return rows_of_model(res.model, res.record)
    data = res.data
    if data is None:
        raise ValueError(
            f"whether the models are nested is checked on the rows, and {name} no longer holds them; fit it with "
            "keep_data=True"
        )
    return lambda: data


def rows_of_model(model: Any, fit: FitRecord) -> Rows:
    """Return how to find the rows of a model that the method of a fit works on: without numbers that overflow."""
    recipe = fit.recipe
    assert recipe is not None, "fits that hold rows know their method"
    return lambda: model.rows.data_for(recipe.method)
