"""Means over replicates with their Monte-Carlo standard errors, and slopes on log scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from adfl_stats._types import Array

__all__ = ["MEANS", "slope_of_logs", "table_of"]

# Quantities of a fit that are averaged over replicates.
MEANS = (
    "mse",
    "oracle_mse",
    "gap",
    "coverage",
    "coverage_sandwich",
    "coverage_client",
    "length",
    "length_sandwich",
    "length_client",
    "fdr",
    "power",
    "any_flag",
    "good_aside",
    "consensus",
    "rounds",
    "seconds",
    "converged",
    "failed",
)


def table_of(rows: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """Return one line for each setting and method from the rows of all data sets, in their order.

    Every quantity has a column of its own and one, with `_se` added, for its Monte-Carlo standard error: of a mean, of
    a ratio of means by the delta method, of squared bias and variance by the jackknife over replicates.
    """
    if "flags" in rows:
        rows = rows.assign(any_flag=(rows["flags"] > 0).astype(float).where(rows["flags"].notna()))
    keys = [*factors, "method"]
    lines = []
    for values, part in rows.groupby(keys, sort=False, dropna=False):
        line: dict[str, Any] = dict(zip(keys, values, strict=True)) | {"replicates": len(part)}
        line["efficiency"], line["efficiency_se"] = _ratio(part["oracle_mse"], part.get("mse"))
        if "error" in part:
            line |= _bias_and_variance(part["error"])
        for name in MEANS:
            if name in part:
                numbers = part[name].to_numpy(dtype=float)
                line[name] = numbers.mean()
                line[f"{name}_se"] = _standard_error(numbers)
        lines.append(line)
    return pd.DataFrame(lines)


def _standard_error(numbers: Array) -> float:
    return float(numbers.std(ddof=1) / np.sqrt(len(numbers))) if len(numbers) > 1 else np.nan


def _ratio(above: pd.Series, below: pd.Series | None) -> tuple[float, float]:
    """Return a ratio of means and its standard error by the delta method."""
    if below is None:
        return np.nan, np.nan
    a, b = above.to_numpy(dtype=float), below.to_numpy(dtype=float)
    ratio = float(a.mean() / b.mean())
    return ratio, ratio * _standard_error(a / a.mean() - b / b.mean())


def _bias_and_variance(errors: pd.Series) -> dict[str, float]:
    """Return the squared bias and the variance of the network's estimate, summed over the coefficients.

    The squared length of the mean error exceeds the squared bias by variance / replicates, which is taken off; the
    estimate may therefore be negative.
    """
    names = ("bias2", "variance")
    if errors.map(lambda value: isinstance(value, list)).all() and len(errors) > 1:
        matrix = np.array(errors.tolist())
        whole = _moments(matrix)
        # A variance needs two replicates after one was left out.
        if len(matrix) > 2:
            without = np.array([_moments(np.delete(matrix, k, axis=0)) for k in range(len(matrix))])
            se = np.sqrt((len(matrix) - 1) * without.var(axis=0))
        else:
            se = np.full(2, np.nan)
    else:
        whole, se = (np.nan, np.nan), np.full(2, np.nan)
    summary: dict[str, float] = {}
    for name, value, spread in zip(names, whole, se, strict=True):
        summary |= {name: float(value), f"{name}_se": float(spread)}
    return summary


def _moments(matrix: Array) -> tuple[float, float]:
    variance = float(matrix.var(axis=0, ddof=1).sum())
    return float((matrix.mean(axis=0) ** 2).sum() - variance / len(matrix)), variance


def slope_of_logs(
    x: Array, y: Array, y_se: Array, replicates: ArrayLike = np.inf, level: float = 0.95
) -> tuple[float, float, float, float]:
    """Return the slope of log y on log x, its standard error and interval.

    Least squares; the standard error comes from the Monte-Carlo errors of y (delta method), which are independent. The
    interval has Student's t with Satterthwaite's degrees of freedom: `replicates` say how well each error is known.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 4.0])
    >>> [round(number, 3) for number in slope_of_logs(x, 3 / x, 0.03 / x)]
    [-1.0, 0.01, -1.02, -0.98]
    >>> [round(number, 3) for number in slope_of_logs(x, 3 / x, 0.03 / x, replicates=3)]
    [-1.0, 0.01, -1.028, -0.972]
    """
    t = np.log(x) - np.log(x).mean()
    share = t / np.sum(t**2)
    slope = float(share @ np.log(y))
    parts = (share * y_se / y) ** 2
    se = float(np.sqrt(parts.sum()))
    known = np.broadcast_to(np.asarray(replicates, dtype=float), np.shape(y)) - 1.0
    lost = float(np.sum(parts[parts > 0] ** 2 / known[parts > 0]))
    degrees = float(parts.sum()) ** 2 / lost if lost > 0 else np.inf
    margin = float(stats.t.ppf(0.5 + level / 2, degrees)) * se
    return slope, se, slope - margin, slope + margin
