"""Pooled estimates: the estimating equations of some clients' rows together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import batches, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.equations import Equations, solve
from adfl_stats.engine.numerical_error import sandwich, summed_curvature_and_meat
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.losses.client_sums import column_squares, own_predictor, scaled
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.penalties import Ridge

__all__ = ["PointEstimate", "local_estimates", "pooled_estimate"]


@dataclass(frozen=True, eq=False)
class PointEstimate:
    """An estimate (P,) and its sandwich covariance (P, P), statsmodels' HC0."""

    params: Array
    covariance: Array


def pooled_estimate(
    data: ClientData,
    family: Family,
    clients: Mask,
    start: Array,
    penalty: Ridge | None = None,
    members: Members = EVERYBODY,
) -> PointEstimate | None:
    """Return the maximum likelihood estimate on the pooled rows of some clients, None where there is none.

    Parameters
    ----------
    data, family
        What the clients hold.
    clients : ndarray (M,) of bool
        Whose rows count.
    start : ndarray (P,)
        Where to begin.
    penalty : Ridge, optional
        Beside the mean loss of these rows.
    members : Members
        The clients; those of the data are ours.
    """
    glm, everybody = _placed(data, family, penalty, members), members.count(np.ones(data.n_clients))
    # With these total weights the means over clients are sums over rows.
    weights = np.where(clients, everybody * data.totals, 0.0)
    solution = solve(Equations(glm, weights[:, None], transport=members.transport), start[None])
    theta = solution.theta[0]
    if not solution.reached[0]:
        return None
    hessian, meat = summed_curvature_and_meat(glm, theta, weights, everybody, members.transport)
    # Few rows, or separated labels: the loss has no single minimum.
    if roots_of_inverses(hessian[None])[1][0] < len(theta):
        return None
    return PointEstimate(theta, sandwich(hessian, meat)[1])


def _placed(data: ClientData, family: Family, penalty: Ridge | None, members: Members) -> GLM:
    """Return the losses of our clients, which know those of all others by sums."""
    transport = members.transport
    glm = GLM(data, family, penalty).placed(transport.total, transport.gather, transport.batches())
    # How curvature is computed is decided by all places together, though some may have none of the clients wanted.
    glm.gram()
    return glm


def local_estimates(
    data: ClientData,
    family: Family,
    clients: Mask,
    start: Array,
    penalty: Ridge | None = None,
    members: Members = EVERYBODY,
) -> dict[int, PointEstimate | None]:
    """Return the own estimates of some clients (M,), all at once.

    None stands for a client whose loss has no single minimum (few rows, separated labels). With `members` the clients
    of the data are ours, and all places call this together.
    """
    estimates: dict[int, PointEstimate | None] = {}
    glm = _placed(data, family, penalty, members)
    for pieces in whole_clients(glm.data, len(start)):
        at = pieces[0].clients
        if clients[at].any():
            own = _own_estimates(glm.of(at), start)
            estimates |= {m: own[m - at.start] for m in range(at.start, at.stop) if clients[m]}
    return estimates


class _OwnEquations:
    """The equations grad L_m(theta_m) = 0 of M clients, each in its own parameters."""

    def __init__(self, glm: GLM) -> None:
        self.glm, self.quadratic = glm, glm.quadratic
        # Of the columns of these clients alone: others may be elsewhere.
        squares = column_squares(glm.data, slice(None))
        self.unit = np.tile(np.sqrt(squares[1:] / squares[0]), glm.family.outputs)

    def slopes(self, theta: Array) -> Array:
        return self.glm.gradients(theta[:, None])[:, 0]

    def hessians_at(self, points: Array, which: Mask) -> Array:
        return np.concatenate([matrices[which[clients]] for clients, matrices in self.glm.newton_curvature(points)])


def _own_estimates(glm: GLM, start: Array) -> list[PointEstimate | None]:
    """Return every client's own estimate, or None."""
    data, family, equations = glm.data, glm.family, _OwnEquations(glm)
    M, P = glm.M, glm.P
    solutions = solve(equations, np.tile(start, (M, 1)))
    curvature = np.concatenate([matrices for _, matrices in glm.curvature(solutions.theta)])
    roots, ranks = roots_of_inverses(curvature * data.totals[:, None, None])
    meats = np.zeros((M, P, P))
    for batch in batches(data, P):
        residual = family.residual(
            own_predictor(data, family, solutions.theta[batch.clients], batch), data.y[batch.rows]
        )
        weighted = scaled(residual, data.weights_of(batch.rows)).reshape(len(residual), -1, 1)
        scores = (weighted * data.X[batch.rows][:, None, :]).reshape(len(residual), -1)
        meats[batch.clients] += batch.cross(scores, scores)
    bread = roots @ roots.transpose(0, 2, 1)
    covariances = bread @ meats @ bread
    known = solutions.reached & (ranks == P) & (data.sizes >= data.X.shape[1])
    return [PointEstimate(solutions.theta[m], covariances[m]) if known[m] else None for m in range(M)]
