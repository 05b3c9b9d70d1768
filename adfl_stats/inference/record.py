"""What a fit leaves behind: plain arrays and words, without the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._algebra import inverse
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import row_blocks, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.numerical_error import NumericalError
from adfl_stats.inference.client_record import ClientRecord
from adfl_stats.inference.clustered import Clustered
from adfl_stats.inference.evidence import Evidence
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.evaluation import Evaluation
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.trust.weights import trusted_by

__all__ = ["FitRecord", "Start", "goodness"]


@dataclass(frozen=True, eq=False)
class Start:
    """The initial estimates of the last stage, in as few numbers as Condition 7 and Theorem 2 need.

    Attributes
    ----------
    centre : ndarray (P,)
        Their mean over the clients; NaN where a method has no initial estimates.
    spread : float
        The mean of their squared distances from it.
    reach : float
        The largest distance of one of them from the final estimate.
    """

    centre: Array
    spread: float
    reach: float

    @classmethod
    def of(cls, initial: Array | None, params: Array) -> Start:
        """Sum up initial estimates (M, P) beside the final one (P,)."""
        if initial is None:
            return cls(np.full(len(params), np.nan), np.nan, np.nan)
        centre = initial.mean(axis=0)
        spread = float(np.mean(np.sum((initial - centre) ** 2, axis=1)))
        return cls(centre, spread, float(np.max(np.linalg.norm(initial - params, axis=1))))


@dataclass(frozen=True, eq=False)
class FitRecord:
    """The state of a `Results`; see there for the meaning of each."""

    method: str
    # Whether a round was a weighted mean of honest messages and a gradient step, equation (4.1).
    weighted: bool
    details: dict[str, Any]
    family: Family
    network: Network | NetworkSchedule
    theta: Array
    weights: Array
    total_weights: Array
    evaluation: Evaluation
    evidence: Evidence
    clients: ClientRecord
    clustered: Clustered
    error: NumericalError
    tolerance: float
    trace: pd.DataFrame
    start: Start
    preconditioned: bool
    smooth: bool
    n_dropped: int
    solver: str
    step: float
    rounds: int
    total_rounds: int
    sizes: Ints
    labels: pd.Index
    columns: list[str]
    classes: tuple[Any, ...] | None
    y_name: str
    client_name: str
    llf: float
    deviance: float
    spec: Any = None
    cov_type: str = "sandwich"
    weighting: str = "sample"
    rounds_needed: float = np.nan
    penalty: Ridge | None = None

    @property
    def names(self) -> list[str]:
        """The coefficients: columns of X, for the multinomial once per class after the first."""
        return self.family.coefficient_names(self.columns, self.classes)

    @property
    def effective_parameters(self) -> float:
        """P, or with a penalty of curvature C the effective number tr (I + C)^-1 I (Hastie & Tibshirani 1990)."""
        if self.penalty is None:
            return float(len(self.names))
        penalised = self.evaluation.information
        rows = penalised - self.total_weights.mean() * np.diag(self.penalty.c)
        return float(np.trace(inverse(penalised) @ rows))

    @property
    def set_aside(self) -> Mask:
        """The clients whose numbers overflow, and which have no weight."""
        return np.asarray(np.isinf(self.evaluation.scores) & (self.weights == 0.0))

    @property
    def trusted(self) -> Mask:
        """The clients that are not down-weighted."""
        return trusted_by(self.weights)


def goodness(data: ClientData, family: Family, params: Array, weights: Array, scale: float) -> tuple[float, float]:
    """Return log-likelihood and deviance over the rows of the trusted clients.

    As in statsmodels, the Gaussian log-likelihood has its variance profiled out. Huber's is that of his least
    favourable law at the family's own sigma.
    """
    trusted = trusted_by(weights)
    known = None if family.name in ("multinomial", "huber") else family.statsmodels()
    llf = deviance = 0.0
    for rows in row_blocks(data):
        keep = trusted[row_clients(data, rows)]
        if not keep.any():
            continue
        y, weight = data.y[rows][keep], data.weights_of(rows)[keep]
        eta = linear_predictor(data, family, params, rows)[keep]
        mu = family.mean(eta)
        if family.name == "huber":
            deviance += float(weight @ family.deviance(eta, y))
            llf += float(family.log_density(eta, y, weight).sum())
            continue
        if known is None:
            llf += float(weight @ np.log(mu[np.arange(len(y)), y.astype(int)]))
            continue
        deviance += float(known.deviance(y, mu, var_weights=weight))
        if family.quadratic:
            llf += 0.5 * float(np.log(weight).sum())
        else:
            llf += float(known.loglike(y, mu, var_weights=weight, scale=scale))
    if family.name == "multinomial":
        return llf, -2.0 * llf
    if family.quadratic:
        count = float(data.sizes[trusted].sum())
        # Logs apart: the ratio of a deviance that is all rounding may underflow to zero.
        spread = np.log(deviance) - np.log(count) if deviance > 0 else -np.inf
        llf -= 0.5 * count * (np.log(2.0 * np.pi) + spread + 1.0)
    return llf, deviance
