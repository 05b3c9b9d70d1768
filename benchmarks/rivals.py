"""The same rounds in other tools, written as well as we could; each is left out where it is not installed.

A rival is a function (task, step, rounds) that returns a call; the call returns theta (M, p) after the rounds. All
have clients of equal size. Gram rivals serve the Gaussian on precomputed X'X and X'y, row rivals the binomial and
the Poisson.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from adfl_stats.engine.problem import Problem

Call = Callable[[], np.ndarray]


def rivals_for(task: Problem, step: float, rounds: int) -> dict[str, Call]:
    """Return the calls of all tools at hand for the problem's family, by name."""
    gram = task.glm.family.name == "gaussian"
    found = {"NumPy Gram" if gram else "NumPy batched": (numpy_gram if gram else numpy_rows)(task, step, rounds)}
    if importlib.util.find_spec("jax"):
        found["JAX jit"] = jax_rounds(task, step, rounds)
    if importlib.util.find_spec("numba"):
        found["numba"] = numba_rounds(task, step, rounds)
    return found


def numpy_gram(task: Problem, step: float, rounds: int) -> Call:
    """Gaussian rounds: batched products of Gram matrices, sparse combine."""
    S, b = _gram(task)
    W = task.network.W

    def call() -> np.ndarray:
        theta = np.zeros((task.M, task.glm.p))
        for _ in range(rounds):
            at = W @ theta
            theta = at - step * (np.matmul(S, at[:, :, None])[:, :, 0] - b)
        return theta

    return call


def numpy_rows(task: Problem, step: float, rounds: int) -> Call:
    """Logistic or Poisson rounds: batched products with the rows, sparse combine."""
    X, y = _cubes(task)
    W, rate, logistic = task.network.W, step / X.shape[1], task.glm.family.name == "binomial"

    def call() -> np.ndarray:
        theta = np.zeros((task.M, task.glm.p))
        for _ in range(rounds):
            at = W @ theta
            eta = np.matmul(X, at[:, :, None])[:, :, 0]
            residual = (1.0 / (1.0 + np.exp(-eta)) if logistic else np.exp(eta)) - y
            theta = at - rate * np.matmul(residual[:, None, :], X)[:, 0]
        return theta

    return call


def jax_rounds(task: Problem, step: float, rounds: int) -> Call:
    """All rounds in one compiled loop; a dense W, whose product is small beside the gradients."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    W = jnp.asarray(task.network.W.toarray())
    kind = task.glm.family.name
    S, b = map(jnp.asarray, _gram(task) if kind == "gaussian" else _cubes(task))

    def gradient(at: Any, S: Any, b: Any) -> Any:
        if kind == "gaussian":
            return jnp.einsum("mij,mj->mi", S, at) - b
        eta = jnp.einsum("mij,mj->mi", S, at)
        residual = (jax.nn.sigmoid(eta) if kind == "binomial" else jnp.exp(eta)) - b
        return jnp.einsum("mij,mi->mj", S, residual) / S.shape[1]

    @jax.jit
    def run(theta: Any, W: Any, S: Any, b: Any) -> Any:
        def body(_: int, theta: Any) -> Any:
            at = W @ theta
            return at - step * gradient(at, S, b)

        return jax.lax.fori_loop(0, rounds, body, theta)

    start = jnp.zeros((task.M, task.glm.p))
    return lambda: np.asarray(run(start, W, S, b))


def numba_rounds(task: Problem, step: float, rounds: int) -> Call:
    """Compiled loops over clients and rows, reassociation allowed so that sums become vector instructions."""
    import numba

    gaussian, logistic = task.glm.family.name == "gaussian", task.glm.family.name == "binomial"
    A, b = _gram(task) if gaussian else _cubes(task)
    W = task.network.W
    indptr, indices, weights = W.indptr, W.indices, W.data

    @numba.njit(fastmath={"reassoc", "contract", "nsz"})
    def run(A, b, indptr, indices, weights):
        M, n, p = A.shape
        theta, new = np.zeros((M, p)), np.zeros((M, p))
        at, eta = np.empty(p), np.empty(n)
        for _ in range(rounds):
            for m in range(M):
                at[:] = 0.0
                for k in range(indptr[m], indptr[m + 1]):
                    for j in range(p):
                        at[j] += weights[k] * theta[indices[k], j]
                for i in range(n):
                    total = 0.0
                    for j in range(p):
                        total += A[m, i, j] * at[j]
                    eta[i] = total
                if gaussian:
                    for j in range(p):
                        new[m, j] = at[j] - step * (eta[j] - b[m, j])
                    continue
                for i in range(n):
                    mean = 1.0 / (1.0 + np.exp(-eta[i])) if logistic else np.exp(eta[i])
                    eta[i] = (mean - b[m, i]) * (step / n)
                for i in range(n):
                    for j in range(p):
                        at[j] -= A[m, i, j] * eta[i]
                new[m] = at
            theta, new = new, theta
        return theta

    return lambda: run(A, b, indptr, indices, weights)


def pooled_glm(task: Problem) -> Call:
    """Return the maximum likelihood estimate on the pooled rows by statsmodels (IRLS)."""
    import statsmodels.api as sm

    model = sm.GLM(task.glm.data.y, task.glm.data.X, task.glm.family.statsmodels())
    return lambda: np.asarray(model.fit(tol=1e-12).params)


def _cubes(task: Problem) -> tuple[np.ndarray, np.ndarray]:
    return task.glm.data.X.reshape(task.M, -1, task.glm.p), task.glm.data.y.reshape(task.M, -1)


def _gram(task: Problem) -> tuple[np.ndarray, np.ndarray]:
    X, y = _cubes(task)
    return np.matmul(X.transpose(0, 2, 1), X) / X.shape[1], np.matmul(y[:, None, :], X)[:, 0] / X.shape[1]
