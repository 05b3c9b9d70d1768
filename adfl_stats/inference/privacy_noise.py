"""What the noise of private gradients adds to the covariance of the estimate."""

from __future__ import annotations

import numpy as np

from adfl_stats._types import Array
from adfl_stats.engine.problem import ClientSteps, Problem

__all__ = ["noise_covariance"]


def noise_covariance(
    problem: Problem, steps: ClientSteps, step: float, rounds: int, matrices: Array, deviations: Array
) -> Array:
    """Return the covariance (P, P) of the clients' mean that noise of so many rounds leaves.

    To first order a round is x <- (I - alpha F H) W x + e, with e_m of variance (alpha f_m s_m)^2 in each coordinate.
    The mean after T rounds has the weights y_t on the noise of round T - t, with y_0 = 1 / M and
    y_{t+1} = W' (I - alpha F H) y_t.

    Parameters
    ----------
    problem : Problem
        Objective and network.
    steps : ClientSteps
        The clients' factors f_m.
    step : float
        alpha.
    rounds : int
        T.
    matrices : ndarray (M, P, P)
        H_m at the estimate.
    deviations : ndarray (M,)
        s_m.
    """
    M, P = problem.M, problem.P
    back, scale = problem.network.W.T.tocsr(), (step * steps.factors * deviations) ** 2
    weights = np.tile(np.eye(P) / M, (M, 1, 1))
    covariance = np.zeros((P, P))
    for _ in range(rounds):
        covariance += np.einsum("m,mij,mik->jk", scale, weights, weights)
        weights = weights - step * steps.factors[:, None, None] * (matrices @ weights)
        weights = (back @ weights.reshape(M, -1)).reshape(M, P, P)
    return covariance
