"""lambda by cross-validation inside the clients, with a criterion that is robust to abnormal clients.

The paper chooses lambda by cross-validation without saying how (its Appendix D is not public); this is ours. The
weights of every lambda on the grid are given; on each fold all of them are fitted at once to the other rows of
every client. The mean held-out loss would be dominated by the abnormal clients: the criterion is the mean over the
half of the clients with the smaller losses.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import batches
from adfl_stats.data.client_data import assembled
from adfl_stats.engine.equations import stacked_solutions
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import predictors_at
from adfl_stats.losses.glm import GLM
from adfl_stats.trust.weights import majority, trusted_by

__all__ = ["GRID", "LambdaPath", "can_tune", "lambda_path"]


# lambda in units of one over the median discrepancy. Ours: from equal weights to where the median client's weight is
# exp(-16) of that of a client without discrepancy, in factors of two.
GRID = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Usual values of K-fold cross-validation are 5 and 10 (Hastie, Tibshirani & Friedman 2009, section 7.10).
FOLDS = 5
# A client with fewer rows has none held out. Ours: two rows in each fold.
LEAST_ROWS = 2 * FOLDS
# Relative tolerance of solutions on a fold. Ours: far below the sampling error of a held-out loss.
ROUGH = 1e-6


@dataclass(frozen=True)
class LambdaPath:
    """The criterion of cross-validation for each lambda.

    Attributes
    ----------
    lams : ndarray (R,)
        The grid.
    scores : ndarray (R,)
        Mean held-out loss of the half of the clients with the smaller ones.
    trusted : ndarray (R,)
        Clients with at least a tenth of the largest weight.
    errors : ndarray (R,)
        Standard errors of the scores, from the spread of these clients' losses; indicative, as the better half is
        chosen by its losses.

    Examples
    --------
    >>> import numpy as np
    >>> from adfl_stats.methods.tuning import LambdaPath
    >>> scores, errors = np.array([1.2, 1.0, 1.1]), np.full(3, 0.1)
    >>> path = LambdaPath(np.array([0.1, 1.0, 10.0]), scores, np.array([20, 18, 9]), errors)
    >>> path.best, path.to_frame()["chosen"].tolist()
    (1, [False, True, False])
    """

    lams: Array
    scores: Array
    trusted: Ints
    errors: Array

    @property
    def best(self) -> int:
        """The place of the smallest score; of equal ones, of the smallest lambda."""
        return int(np.argmin(self.scores))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per lambda.

        Returns
        -------
        DataFrame
            lam, score, se, trusted, and whether it was chosen.
        """
        columns = {"lam": self.lams, "score": self.scores, "se": self.errors, "trusted": self.trusted}
        return pd.DataFrame(columns | {"chosen": np.arange(len(self.lams)) == self.best})


def can_tune(problem: Problem) -> bool:
    """Return whether a majority of the clients have enough rows for cross-validation."""
    return problem.members.count(problem.glm.data.sizes >= LEAST_ROWS) >= majority(problem.n_clients)


def lambda_path(problem: Problem, weights: Array, lams: Array, start: Array, *, balance: bool) -> LambdaPath:
    """Score every lambda of a grid by cross-validation.

    Parameters
    ----------
    problem : Problem
        Data, network and family.
    weights : ndarray (M, R)
        The clients' weights at each lambda.
    lams : ndarray (R,)
        The grid, in increasing order.
    start : ndarray (P,)
        Where to begin.
    balance : bool
        Whether the clients' steps are balanced by influence.
    """
    shares = np.stack([problem.steps(column, balance=balance).total_weights for column in weights.T], axis=1)
    loss, rows = np.zeros(weights.shape), np.zeros(problem.M)
    weight = problem.glm.data.weights_of(slice(0, problem.glm.data.n_rows))
    theta, solutions = np.tile(start, (len(lams), 1)), None
    for fold in range(FOLDS):
        held = _held_out(problem, fold)
        rest = assembled(problem.glm.data, row_weights=np.where(held, 0.0, weight))
        glm = GLM(rest, problem.glm.family, problem.glm.penalty)
        training = Problem(glm, problem.topology, "client", problem.threads, problem.transport)
        # One fold's solutions and curvatures are near the next one's. (A coefficient that the next fold's rows do not
        # identify keeps its value, for all lambdas alike.)
        solutions = stacked_solutions(training, shares, theta, ROUGH, solutions)
        theta = solutions.theta
        for batch in batches(problem.glm.data, problem.P):
            place = np.flatnonzero(held[batch.rows])
            apart = np.zeros((len(held[batch.rows]), len(lams) + 1))
            apart[place] = _losses(problem, theta, batch.rows.start + place)
            sums = batch.sums(apart)
            loss[batch.clients] += sums[:, 1:]
            rows[batch.clients] += sums[:, 0]
    counted = (rows > 0.0) & problem.objective.counted
    each = problem.transport.gather(loss[counted] / rows[counted, None])
    half = np.sort(each, axis=0)[: majority(len(each))]
    trusted = problem.members.sum(trusted_by(weights, problem.members)).astype(np.int64)
    errors = half.std(axis=0, ddof=1) / np.sqrt(len(half)) if len(half) > 1 else np.full(len(lams), np.nan)
    return LambdaPath(lams, half.mean(axis=0), trusted, errors)


def _losses(problem: Problem, theta: Array, rows: Ints) -> Array:
    """Return the weight of each row and its weighted losses at every row of theta (R, P), as (n, 1 + R)."""
    weight, y = problem.glm.data.weights_of(rows), problem.glm.data.y[rows]
    etas = predictors_at(problem.glm.data, problem.glm.family, theta, rows)
    return np.stack([weight, *(weight * problem.glm.family.loss(eta, y) for eta in etas)], axis=1)


def _held_out(problem: Problem, fold: int) -> Mask:
    """Return the rows of a fold: every FOLDS-th of each client that has rows enough, none of a smaller one."""
    data = problem.glm.data
    place = np.arange(data.n_rows) - np.repeat(data.offsets[:-1], data.sizes)
    return (place % FOLDS == fold) & np.repeat(data.sizes >= LEAST_ROWS, data.sizes)
