"""The true parameter as an array, from an array, Series or dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from adfl_stats._arguments import finite_float64, listing
from adfl_stats._types import Array, NumbersByName

__all__ = ["true_parameter"]


def true_parameter(theta0: NumbersByName, names: Sequence[str]) -> Array:
    """Return theta0 as an array in the order of the coefficients; a Series or a dict is matched by name."""
    if isinstance(theta0, Mapping):
        theta0 = pd.Series(theta0)
    if isinstance(theta0, pd.Series):
        absent = [name for name in names if name not in theta0.index]
        if absent or len(theta0) != len(names):
            raise ValueError(
                f"theta0 has {len(theta0)} entries named {listing(theta0.index)}; the {len(names)} coefficients "
                f"{listing(names)} are wanted. Name its entries like res.params, or pass an array in that order"
            )
        theta0 = theta0.loc[names]
    values = finite_float64(theta0, "theta0", 1)
    if len(values) != len(names):
        raise ValueError(
            f"theta0 has {len(values)} entries; the model has {len(names)} coefficients ({listing(names)}). "
            "Give one value for each, in that order"
        )
    return values
