"""Speed of the robust rules, as ratios against batched NumPy (sorted pools, Gram matrices).

    python benchmarks/rules.py [--repeats 7] [--markdown] [--output FILE]

One thread; results must agree before a time counts. ByzFL's aggregators, called client by client in the
same loop, stand beside them where the package is installed.
"""

from __future__ import annotations

import run  # first: it pins the threads before NumPy is loaded

# isort: split
import importlib.util
from collections.abc import Callable

import numpy as np
from report import Row, options_of, publish, row

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange
from adfl_stats.engine.rules import Rule
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M, P, STEP, ROUNDS = run.M, run.P, run.STEP, run.ROUNDS
WANTED = {5: 3.0, 30: 1.5}
Combine = Callable[[np.ndarray], np.ndarray]


def problem(D: int) -> Problem:
    """Return the Gaussian problem of `run` on a circle of in-degree D."""
    base = run.problem("gaussian", np.full(M, run.N_ROWS))
    return Problem(GLM(base.glm.data, Family("gaussian")), ad.networks.directed_circle(M, D), "client")


def ours(task: Problem, rule: Rule) -> Callable[[], np.ndarray]:
    """Return a call that does ROUNDS rounds in the kernel."""
    loss, combiner, steps = task.glm.loss(), Exchange(task, rule).combiner, np.full((M, 1), STEP)

    def call() -> np.ndarray:
        theta = np.zeros((M, 1, P))
        _kernels.rounds(combiner, loss, theta, steps, ROUNDS, np.empty((ROUNDS, 1)), np.array([np.inf]), 1)
        return theta[:, 0]

    return call


def in_numpy(task: Problem, combine: Combine) -> Callable[[], np.ndarray]:
    """Return a call that does the same rounds with a given combine and batched Gram products."""
    X, y = task.glm.data.X.reshape(M, -1, P), task.glm.data.y.reshape(M, -1)
    S, b = np.matmul(X.transpose(0, 2, 1), X) / X.shape[1], np.matmul(y[:, None, :], X)[:, 0] / X.shape[1]

    def call() -> np.ndarray:
        theta = np.zeros((M, P))
        for _ in range(ROUNDS):
            at = combine(theta)
            theta = at - STEP * (np.matmul(S, at[:, :, None])[:, :, 0] - b)
        return theta

    return call


def sorted_pools(pools: np.ndarray, rule: Rule) -> Combine:
    """Return the rule on pools (M, D + 1) of equal size, by sorting them all at once."""
    D = pools.shape[1] - 1

    def median(theta: np.ndarray) -> np.ndarray:
        pool = np.sort(theta[pools], axis=1)
        return 0.5 * (pool[:, D // 2] + pool[:, (D + 1) // 2])

    def trimmed(theta: np.ndarray) -> np.ndarray:
        kept = np.sort(theta[pools[:, 1:]], axis=1)[:, rule.count : D - rule.count]
        return (theta + kept.sum(axis=1)) / (1 + kept.shape[1])

    return median if rule.name == "median" else trimmed


def byzfl(pools: np.ndarray, rule: Rule) -> Combine | None:
    """Return ByzFL's aggregator, one call a client; None where the package is missing."""
    if importlib.util.find_spec("byzfl") is None:
        return None
    from byzfl import Median, TrMean

    if rule.name == "median":
        each = Median()
        return lambda theta: np.stack([each(theta[pool]) for pool in pools])
    each, kept = TrMean(rule.count), pools.shape[1] - 1 - 2 * rule.count
    return lambda theta: np.stack([(theta[pool[0]] + kept * each(theta[pool[1:]])) / (1 + kept) for pool in pools])


def ratio_table(repeats: int) -> list[Row]:
    """Measure every rule and in-degree; a row for each rival."""
    rows: list[Row] = []
    for D, rule in [(degree, Rule(name, degree // 5)) for degree in WANTED for name in ("median", "trimmed")]:
        task = problem(D)
        pools = Exchange(task, rule).indices.reshape(M, D + 1)
        calls = {"ours": ours(task, rule), "NumPy": in_numpy(task, sorted_pools(pools, rule))}
        other = byzfl(pools, rule)
        if other is not None:
            calls["ByzFL"] = in_numpy(task, other)
        for call in calls.values():
            np.testing.assert_allclose(call(), calls["ours"](), rtol=1e-8, atol=1e-10)
        seconds = run.seconds(calls, repeats)
        for name in list(calls)[1:]:
            ratio = float(np.median(seconds[name] / seconds["ours"]))
            wanted = f">= {WANTED[D]:g}" if name == "NumPy" else ""
            rows.append(row(f"{rule.name}, D = {D}: {name} / ours", ratio, wanted))
    return rows


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    title = f"M = n = {M}, p = {P}, Gram matrices, one thread, median of {options.repeats}"
    publish(title, ratio_table(options.repeats), options)


if __name__ == "__main__":
    main()
