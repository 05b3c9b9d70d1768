"""Times of the calls that users wait for, to be compared between two states of the code on one machine.

pytest benchmarks/test_regression.py --benchmark-autosave                         # before a change
pytest benchmarks/test_regression.py --benchmark-compare --benchmark-compare-fail=median:20%    # after it
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange
from adfl_stats.engine.rules import Rule
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.point_sums import plain_scores, sums_at

pytest.importorskip("pytest_benchmark")


def problem(family, sizes, p):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((int(sizes.sum()), p))
    eta = X @ np.full(p, 0.5 / np.sqrt(p))
    y = {"gaussian": eta, "binomial": rng.random(len(X)) < 1 / (1 + np.exp(-eta)), "poisson": rng.poisson(np.exp(eta))}
    data = ad.ClientData.from_arrays(X, np.asarray(y[family], dtype=float), np.repeat(np.arange(len(sizes)), sizes))
    return Problem(GLM(data, Family(family)), ad.networks.directed_circle(len(sizes), 5))


EQUAL = np.full(100, 100)
MANY = np.random.default_rng(1).integers(5, 51, 5000)


@pytest.mark.parametrize("runs", [1, 32])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_rounds(benchmark, family, runs):
    task = problem(family, EQUAL, 50)
    loss, steps, moved, limits = (
        task.glm.loss(),
        np.full((100, runs), 0.05),
        np.empty((20, runs)),
        np.full(runs, np.inf),
    )

    def rounds():
        theta = np.zeros((100, runs, 50))
        return _kernels.rounds(task.combiner, loss, theta, steps, 20, moved, limits, 1)

    assert benchmark(rounds) == 20


def test_median_rounds(benchmark):
    task = problem("binomial", EQUAL, 50)
    combiner = Exchange(task, Rule("median")).combiner
    steps, moved, limits = np.full((100, 1), 0.05), np.empty((20, 1)), np.full(1, np.inf)

    def rounds():
        return _kernels.rounds(combiner, task.glm.loss(), np.zeros((100, 1, 50)), steps, 20, moved, limits, 1)

    assert benchmark(rounds) == 20


@pytest.mark.parametrize("sizes", [EQUAL, MANY], ids=["100 clients", "5000 small clients"])
def test_sums_at(benchmark, sizes):
    task = problem("binomial", sizes, 10)
    found = benchmark(sums_at, task.glm.data, task.glm.family, np.zeros(10), np.ones(task.M))
    assert np.isfinite(found.weighted_sums.meat).all()


def test_plain_scores(benchmark):
    task = problem("binomial", MANY, 10)
    scores, _ = benchmark(plain_scores, task.glm.data, task.glm.family, np.zeros((task.M, 10)))
    assert np.isfinite(scores).all()


@pytest.mark.filterwarnings("ignore::adfl_stats.ConditionWarning")
def test_model_of_many_small_clients(benchmark):
    task = problem("binomial", MANY, 10)
    benchmark.pedantic(ad.DecentralizedGLM, (task.glm.data, task.network, "binomial"), rounds=5)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_default_fit(benchmark, family):
    sim = ad.simulate.glm_design(family, M=50, n=100, p=5, seed=1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, ad.networks.directed_circle(50, 5), family)
    assert benchmark.pedantic(model.fit, kwargs={"threads": 1}, rounds=5).converged


def test_check_network(benchmark):
    W = ad.networks.erdos_renyi(2000, 0.01, seed=1).W
    benchmark.pedantic(lambda: ad.check_network(ad.Network.from_weights(W)), rounds=5)
