"""Rates of a study's tables in the number of rows and in the share of abnormal clients, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import one_of
from adfl_stats._types import Array
from adfl_stats.simulate.monte_carlo import slope_of_logs

__all__ = ["study_slopes"]

# Methods that reach the oracle where their conditions hold (Theorem 3), and the one whose bias is known (Theorem 1).
ORACLE_LIKE, UNDEFENDED = ("fit", "oracle", "oracle DFL", "aDFL", "aDFL (paper)"), "DFL"


def study_slopes(table: pd.DataFrame, factors: Sequence[str], by: str, value: str) -> pd.DataFrame:
    """Return the slopes of `Study.slopes` from the table of a study."""
    sizes = [name for name in factors if name not in ("network", "design", "corruption", "share")]
    one_of(by, "by", ["N", "share", *sizes])
    one_of(value, "value", [name for name in table if f"{name}_se" in table])
    varied = ("M", "n") if by == "N" else (by,)
    fixed = [name for name in [*factors, "method"] if name not in varied]
    oracle = table.drop_duplicates(list(factors)).assign(
        method="oracle", mse=lambda frame: frame["oracle_mse"], mse_se=lambda frame: frame["oracle_mse_se"]
    )
    whole = pd.concat([table, oracle]) if value == "mse" else table
    lines = []
    for values, part in whole.groupby(fixed, sort=False, dropna=False):
        x = (part["M"] * part["n"] if by == "N" else part[by]).to_numpy(dtype=float)
        y, se = part[value].to_numpy(dtype=float), part[f"{value}_se"].to_numpy(dtype=float)
        usable = (x > 0) & (y > 0)
        if len(np.unique(x[usable])) < 2:
            continue
        about: dict[str, Any] = dict(zip(fixed, values, strict=True))
        replicates = part["replicates"].to_numpy()[usable]
        numbers = slope_of_logs(x[usable], y[usable], se[usable], replicates)
        lines.append(about | dict(zip(("slope", "se", "lower", "upper"), numbers, strict=True)))
        lines[-1]["theory"] = _theory(about, by, x[usable]) if value == "mse" else np.nan
    if not lines:
        raise ValueError(f"by is {by!r}, which has fewer than two positive values in this study; give it several")
    return pd.DataFrame(lines)


def _theory(about: dict[str, Any], by: str, x: Array) -> float:
    """Return the slope of the mean squared error that the paper's theory gives, NaN where it gives none."""
    abnormal = about.get("corruption", "none") != "none"
    method = about["method"]
    if by in ("N", "n", "M"):
        if method in ORACLE_LIKE or (method == UNDEFENDED and not abnormal):
            return -1.0
        return 0.0 if method == UNDEFENDED else np.nan
    if by == "share":
        # The oracle has (1 - share) N rows, and an error in proportion to 1 / (1 - share).
        exact = slope_of_logs(x, 1.0 / (1.0 - x), np.zeros(len(x)))[0] if method in ORACLE_LIKE else np.nan
        return 2.0 if method == UNDEFENDED else exact
    return np.nan
