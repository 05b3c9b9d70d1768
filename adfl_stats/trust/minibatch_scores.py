"""Discrepancy from minibatch gradients: the norm of a client's gradient in units of its sampling error.

For losses without curvature. At the majority's parameters the gradient of a normal client's n rows has mean zero, and
E ||g||^2 is tr V, V = S / n being the covariance of a mean of its rows. Minibatches of b rows, drawn without
replacement, scatter about the whole gradient with covariance S (1 / b - 1 / n), so that b / (n - b) times their
covariance is an estimate of V.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem

__all__ = ["minibatch_excess", "spread_of"]

# Minibatches by which a client is tested. Ours: the trace of V then has a relative error of a third at most, of 1 /
# sqrt(10 d) with d effective dimensions.
MINIBATCHES = 20
TINY = float(np.finfo(float).tiny)


def minibatch_excess(problem: Problem, theta: Array, quantile: float) -> Array:
    """Return by how much the clients' gradients at their rows of theta (M, P) exceed their sampling error.

    ||g||^2 / tr V is compared with F(d, d (K - 1)) for K minibatches and d = (tr V)^2 / tr V^2 (Satterthwaite). The
    excess is that of sqrt(d ||g||^2 / tr V) over its quantile, and zero below: in one dimension that of a t statistic.
    """
    objective: Any = problem.objective
    sizes, batch = objective.totals, objective.batch
    small = problem.labels[sizes <= batch]
    if len(small):
        raise ValueError(
            f"measure='score' compares minibatches of {batch} rows with all rows of a client, and client(s) "
            f"{listing(small)} have no more than that; make batch smaller, or use measure='norm'"
        )
    whole = objective.whole_gradients(theta, problem.threads)
    spreads = objective.of_minibatches(theta, MINIBATCHES, spread_of, problem.threads)
    trace, dimension = np.array(spreads).T
    squares = np.sum(np.square(whole, dtype=np.float64), axis=1)
    ratio = squares / np.maximum(trace * batch / (sizes - batch), TINY)
    usual = stats.f.ppf(quantile, dimension, dimension * (MINIBATCHES - 1))
    return np.sqrt(dimension) * np.maximum(np.sqrt(ratio) - np.sqrt(usual), 0.0)


def spread_of(gradients: Array) -> tuple[float, float]:
    """Return the trace of the covariance of gradients (K, P), and its effective dimension (tr S)^2 / tr S^2.

    tr S^2 is estimated without bias under normality (Bai & Saranadasa 1996).
    """
    K, P = gradients.shape
    centred = gradients.astype(np.float64) - gradients.mean(axis=0, dtype=np.float64)
    product = centred @ centred.T / (K - 1.0)
    trace, squares = float(np.trace(product)), float(np.sum(product**2))
    exact = (K - 1.0) ** 2 / ((K - 2.0) * (K + 1.0)) * (squares - trace**2 / (K - 1.0))
    return trace, float(np.clip(trace**2 / max(exact, TINY), 1.0, P))
