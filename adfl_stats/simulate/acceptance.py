"""Acceptance bounds of studies of the default fit: efficiency, coverage, flags and power."""

from __future__ import annotations

import pandas as pd

__all__ = ["COVERAGE", "MOST_FLAGS", "POWER", "all_met", "family_means", "judged"]

# Bounds on efficiency in the full designs: in every Gaussian cell; of the mean over the other families' cells; and in
# those with many OOD clients, which hardly differ from normal ones. Ours: required of the default fit.
CELL_BOUND = 0.98
MEAN_BOUNDS = {"binomial": 0.95, "poisson": 0.97}
HARD_BOUNDS = {"binomial": 0.85, "poisson": 0.95}
# Coverage of 95 % intervals up to Monte-Carlo error; data sets with a false flag; power. Ours.
COVERAGE, MOST_FLAGS, POWER = (0.93, 0.965), 0.15, 0.98


def judged(table: pd.DataFrame, *, bounds: bool = True) -> pd.DataFrame:
    """Add the bounds to the table of `study.efficiency`: `wanted` of the default fit's cells, and whether `met`.

    Gaussian cells have a bound each. In the other families one bound is on the mean over the cells: `wanted` is
    NaN, and `counted` says which cells it is over. OOD at shares above .2 hardly changes the law of labels and
    counts; it is not counted, and has a bound of its own.
    """
    ours = bounds & (table["method"] == "fit")
    gaussian = table["family"] == "gaussian"
    hard = ~gaussian & (table["corruption"] == "OOD") & (table["share"] > 0.2)
    wanted = table["family"].map(HARD_BOUNDS).where(hard).mask(gaussian, CELL_BOUND).where(ours)
    met = (table["efficiency"] >= wanted).astype(object).where(wanted.notna(), None)
    return table.assign(wanted=wanted, met=met, counted=ours & ~gaussian & ~hard)


def all_met(table: pd.DataFrame) -> bool:
    """Return whether a table of `judged` meets all of its bounds."""
    return bool(table["met"].dropna().all()) and all(mean >= bound for mean, bound, _ in family_means(table))


def family_means(table: pd.DataFrame) -> list[tuple[float, float, int]]:
    """Return mean efficiency, its bound and the number of cells, where the family has such a bound."""
    counted = table[table["counted"]]
    return [
        (float(part["efficiency"].mean()), MEAN_BOUNDS[str(family)], len(part))
        for family, part in counted.groupby("family")
    ]
