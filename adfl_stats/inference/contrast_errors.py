"""Standard errors of linear combinations of many parameters, from Hessian products by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from adfl_stats._arguments import float64_array
from adfl_stats._types import Array
from adfl_stats.inference.objective_results import ObjectiveResults

__all__ = ["contrast_table"]

# Residual of the linear system, relative to the contrast, and the most products. Ours: far below sampling error.
TOLERANCE, MOST_PRODUCTS = 1e-8, 1000


def contrast_table(
    res: ObjectiveResults, products: Callable[[Array, Array], Array], contrasts: ArrayLike, alpha: float
) -> pd.DataFrame:
    """Return estimates and standard errors of c' theta; see `DecentralizedModel.contrasts`."""
    fit, P = res.record, len(res.record.names)
    rows = np.atleast_2d(float64_array(contrasts, "contrasts"))
    if rows.shape[1] != P:
        raise ValueError(f"contrasts has {rows.shape[1]} columns; one for each of the {P} parameters is wanted")
    if not fit.smooth:
        raise ValueError(f"{fit.method} solves no common estimating equation, so that its contrasts have no errors")
    # Those that the standard errors of all parameters count, where there are such.
    counted = res.df + 1.0
    if counted < 2.0:
        raise ValueError("fewer than two clients carry weight; standard errors compare clients")
    share = fit.total_weights / len(fit.theta)

    def hessian(vector: Array) -> Array:
        return np.asarray(share @ products(fit.params, vector))

    lines = []
    reach = stats.t.isf(alpha / 2.0, counted - 1.0)
    for row in rows:
        estimate = float(row @ fit.params)
        parts = share * (fit.gradients @ _solved(hessian, row))
        se = float(np.sqrt(counted / (counted - 1.0) * np.sum(parts**2)))
        lines.append({"estimate": estimate, "se": se, "lower": estimate - reach * se, "upper": estimate + reach * se})
    return pd.DataFrame(lines)


def _solved(product: Callable[[Array], Array], right: Array) -> Array:
    """Return H^-1 right by conjugate gradients; H that is not positive definite is refused."""
    solution, left = np.zeros_like(right), right.copy()
    along, size = left.copy(), float(left @ left)
    wanted = TOLERANCE**2 * size
    for _ in range(MOST_PRODUCTS):
        if size <= wanted:
            return solution
        image = product(along)
        curvature = float(along @ image)
        if not curvature > 0.0:
            raise ValueError(
                "the Hessian at the estimate is not positive definite, as in networks whose parameters are not "
                "identified or before a minimum; there are no standard errors"
            )
        solution, left = solution + size / curvature * along, left - size / curvature * image
        before, size = size, float(left @ left)
        along = left + size / before * along
    raise ValueError(
        f"{MOST_PRODUCTS} Hessian products did not solve for the contrast: the Hessian is nearly singular in its "
        "direction"
    )
