"""Columns of X that are combinations of others, exactly or nearly: from X'X where that is clear, else from X itself.

X'X has the square of X's condition number: an intercept beside a column with mean 3e5 and standard deviation 1 looks
dependent there, and is not. In doubt the triangle of X's QR decomposition, updated by one block of rows after another,
has the condition number itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import linalg

from adfl_stats._arguments import listing
from adfl_stats._types import Array, Ints, Mask
from adfl_stats._warn import warn
from adfl_stats.data.batches import row_blocks, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.whole import ROW, Whole
from adfl_stats.errors import ConditionWarning

__all__ = ["check_design"]

# Squared distances of unit columns from the span of others that X'X shows beyond doubt: rounding is some 1e-15.
CLEAR = 1e-10
# Distances at which a column is a combination of others, but for the rounding of its numbers. Ours: 1e4 roundings.
DEPENDENT = 1e-12
# Estimates and variances come from matrices with the squared condition number: from the first on standard errors have
# four to five correct digits, beyond the second fewer than three. Ours, measured beside statsmodels on centred columns.
ILL_CONDITIONED, SINGULAR = 1e5, 2e6
# Shares in a combination, of columns of one length, that are rounding; dependent columns that a message names. Ours.
NEGLIGIBLE, MOST_SAID = 1e-9, 3


def check_design(data: ClientData, gram: Array, vast: Mask, whole: Whole, *, penalised: bool = False) -> None:
    """Raise ValueError or warn, naming the columns of X that are combinations of others, or nearly so.

    Also where a penalty would identify the estimate: clients are tested at the estimate without it.

    Parameters
    ----------
    data : ClientData
        The rows.
    gram : ndarray (p, p)
        X'X, over all clients but those with vast numbers.
    vast : ndarray (M,) of bool
        These clients, among those of the data.
    whole : Whole
        All clients.
    penalised : bool
        Whether there is a penalty.
    """
    if not np.isfinite(gram).all():
        raise ValueError(
            f"the numbers in X overflow on all clients: the largest is {max(abs(data.X.min()), data.X.max()):.3g}. "
            "Bring the columns to smaller units"
        )
    besides = "; the penalty does not replace them, as clients are tested at the estimate without it"
    besides = besides if penalised else ""
    norms = np.sqrt(np.diag(gram))
    if (norms == 0).any():
        _refuse_zero(data, np.flatnonzero(norms == 0))
    if whole.n_rows < len(norms):
        raise ValueError(
            f"the columns of X are linearly dependent over all {whole.n_rows} rows: there are {len(norms)} of them, "
            f"and any {whole.n_rows + 1} depend on one another. Merge levels of factors that few rows have. "
            f"Leave out one of each such set of columns{besides}"
        )
    # The diagonal of R is the squared distance of a unit column from the span of those before it.
    triangle, pivots = linalg.qr(gram / np.outer(norms, norms), mode="r", pivoting=True)
    if np.abs(np.diag(triangle)).min() > CLEAR:
        return
    # One triangle below the other, and those of other places: R of all rows.
    whole.told(ROW, gram.size)
    rows = whole.joined(_triangle(data, norms, vast))
    triangle, pivots = linalg.qr(rows, mode="r", pivoting=True)
    distance = np.abs(np.diag(triangle))
    dependent = distance < DEPENDENT
    if dependent.any():
        raise ValueError(
            f"the columns of X are linearly dependent over all {whole.n_rows} rows: "
            f"{_dependence(data.names, triangle, pivots, dependent)}. "
            f"Leave out one of each such set of columns{besides}"
        )
    condition = float(np.linalg.cond(triangle))
    name = _nearest(data.names, triangle, pivots)
    near = f"the column {name!r} of X is nearly a linear combination of the others: the condition"
    if condition > SINGULAR:
        raise ValueError(
            f"{near} number of the scaled columns is {condition:.2g}, and beyond {SINGULAR:.2g} standard errors "
            "have hardly a correct digit. Subtract a constant from covariates with a large mean, or leave it out"
        )
    if condition > ILL_CONDITIONED:
        warn(
            f"{near} number of the scaled columns is {condition:.2g}. Estimates lose digits; subtract a constant from "
            "covariates with a large mean, or leave the column out",
            ConditionWarning,
        )


def _nearest(names: Sequence[str], triangle: Array, pivots: Ints) -> str:
    """Return the column nearest to the span of the others; for a formula's constant, what is nearest to it."""
    last = int(pivots[-1])
    if names[last] != "Intercept" or len(pivots) == 1:
        return names[last]
    shares = linalg.solve_triangular(triangle[:-1, :-1], triangle[:-1, -1])
    return names[int(pivots[np.abs(shares).argmax()])]


def _dependence(names: Sequence[str], triangle: Array, pivots: Ints, dependent: Mask) -> str:
    """Return in words which columns are combinations of which others, for the first few.

    `triangle` (r, p) and `pivots` (p,) are of a QR decomposition with pivoting, whose last columns are dependent.
    """
    rank, said = int((~dependent).sum()), []
    for k in range(rank, len(pivots)):
        shares = linalg.solve_triangular(triangle[:rank, :rank], triangle[:rank, k])
        others = [names[pivots[j]] for j in np.flatnonzero(np.abs(shares) > NEGLIGIBLE * np.abs(shares).max())]
        said.append(f"{names[pivots[k]]!r} is a linear combination of {listing(others)}")
    more = f", and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
    return "; ".join(said[:MOST_SAID]) + more


def _refuse_zero(data: ClientData, columns: Ints) -> None:
    zero = [data.names[k] for k in columns if not data.X[:, k].any()]
    if zero:
        raise ValueError(f"the columns {listing(zero)} of X are zero in every row; leave them out")
    largest = float(np.abs(data.X[:, columns]).max())
    raise ValueError(
        f"the numbers in the columns {listing(data.names[k] for k in columns)} of X are so small that their squares "
        f"are zero: the largest is {largest:.3g}. Bring the columns to larger units"
    )


def _triangle(data: ClientData, norms: Array, vast: Mask) -> Array:
    """Return R of X = QR with columns of unit length, in one pass over blocks of rows."""
    triangle = np.zeros((0, len(norms)))
    for rows in row_blocks(data):
        block = data.X[rows]
        if vast.any():
            block = block[~vast[row_clients(data, rows)]]
        triangle = linalg.qr(np.concatenate([triangle, block / norms]), mode="r")[0][: len(norms)]
    return triangle
