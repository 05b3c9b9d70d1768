"""The same rounds in good NumPy: batched matrix products, sparse combine, no Python loop over clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adfl_stats.problem import Problem


def numpy_gram(task: Problem, step: float, rounds: int) -> Callable[[], np.ndarray]:
    """Gaussian rounds on precomputed Gram matrices."""
    X, y = _cubes(task)
    n = X.shape[1]
    S, b = np.matmul(X.transpose(0, 2, 1), X) / n, np.matmul(y[:, None, :], X)[:, 0] / n
    W = task.network.W

    def call() -> np.ndarray:
        theta = np.zeros((task.M, task.p))
        for _ in range(rounds):
            at = W @ theta
            theta = at - step * (np.matmul(S, at[:, :, None])[:, :, 0] - b)
        return theta

    return call


def numpy_logistic(task: Problem, step: float, rounds: int) -> Callable[[], np.ndarray]:
    """Logistic rounds on the rows."""
    X, y = _cubes(task)
    W, rate = task.network.W, step / X.shape[1]

    def call() -> np.ndarray:
        theta = np.zeros((task.M, task.p))
        for _ in range(rounds):
            at = W @ theta
            residual = 1.0 / (1.0 + np.exp(-np.matmul(X, at[:, :, None])[:, :, 0])) - y
            theta = at - rate * np.matmul(residual[:, None, :], X)[:, 0]
        return theta

    return call


def _cubes(task: Problem) -> tuple[np.ndarray, np.ndarray]:
    return task.data.X.reshape(task.M, -1, task.p), task.data.y.reshape(task.M, -1)
