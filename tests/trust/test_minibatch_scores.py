"""Discrepancies from minibatch gradients: its level, its power, and the known moments of normal gradients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.trust.minibatch_scores import MINIBATCHES, minibatch_excess, spread_of


def means(y, batch):
    """The losses ||theta - y_i||^2 / 2 of rows y (M, n, P)."""

    def gradient(m, theta, rng):
        rows = y[m] if rng is None else y[m][rng.choice(y.shape[1], batch, replace=False)]
        return theta - rows.mean(axis=0)

    return ad.Losses(gradient, np.full(len(y), y.shape[1]), np.zeros(y.shape[2]), batch=batch)


def excess(losses, quantile=0.95):
    problem = Problem(losses, ad.networks.complete(losses.M))
    return minibatch_excess(problem, losses.start(), quantile)


@pytest.mark.parametrize("scales", [[1.0], [1.0, 1.0, 1.0, 1.0], [3.0, 1.0, 0.3]])
def test_normal_clients_exceed_the_quantile_as_often_as_they_should(scales):
    """1,000 clients whose rows have mean zero: 5 % beyond the 95 % point, but for sampling (0.7 %)."""
    y = np.random.default_rng(1).normal(size=(1000, 60, len(scales))) * scales
    beyond = np.mean(excess(means(y, 20)) > 0.0)
    assert 0.03 < beyond < 0.07


def test_in_one_dimension_it_is_a_t_statistic():
    """With n large against b, sqrt(d) sqrt(R) is |mean| over its standard error, up to that of the minibatches."""
    y = np.random.default_rng(2).normal(size=(300, 400, 1)) + 0.5
    found = excess(means(y, 10))
    t = np.abs(y.mean(axis=1)[:, 0]) / (y.std(axis=1, ddof=1)[:, 0] / np.sqrt(400))
    wanted = t - np.sqrt(stats.f.ppf(0.95, 1, MINIBATCHES - 1))
    # A standard error from 20 minibatches has a relative error of 1 / sqrt(38).
    assert_allclose(np.median(found / wanted), 1.0, atol=0.06)


def test_moments_of_normal_gradients():
    """tr S and (tr S)^2 / tr S^2 of a known covariance, means over many draws."""
    scales = np.array([2.0, 1.0, 1.0, 0.5])
    rng = np.random.default_rng(3)
    traces = [spread_of(rng.normal(size=(MINIBATCHES, 4)) * scales)[0] for _ in range(4000)]
    assert_allclose(np.mean(traces), np.sum(scales**2), rtol=0.02)
    many = spread_of(rng.normal(size=(4000, 4)) * scales)
    assert_allclose(many[1], np.sum(scales**2) ** 2 / np.sum(scales**4), rtol=0.05)


def test_adfl_finds_the_client_that_differs():
    rng = np.random.default_rng(4)
    y = rng.normal(size=(12, 80, 3)) * rng.uniform(0.3, 3.0, size=12)[:, None, None]
    # A quiet client that is off by less than the means of noisy ones scatter: the norm does not find it.
    y[5] = 0.2 * rng.normal(size=(80, 3)) + 0.2
    model = ad.DecentralizedModel(means(y, 20), ad.networks.complete(12))
    how, start = {"step": 0.2, "rounds": 60}, ad.Bridge("median")
    by_score = model.fit(ad.ADFL(lam=2.0, measure="score", init=start), **how).client_weights
    by_norm = model.fit(ad.ADFL(lam=2.0, measure="norm", init=start), **how).client_weights
    assert by_score.argmin() == 5
    assert by_score[5] < 0.01
    assert by_score.drop(5).min() > 0.1
    assert by_norm.argmin() != 5


def test_what_scores_refuse():
    rng = np.random.default_rng(5)
    y = rng.normal(size=(4, 20, 2))
    method, net = ad.ADFL(lam=1.0, measure="score"), ad.networks.complete(4)
    with pytest.raises(ValueError, match=r"minibatches of 20 rows with all rows of a client, and client\(s\) 0, 1"):
        ad.DecentralizedModel(means(y, 20), net).fit(method, step=0.1, rounds=2)
    bare = ad.Losses(lambda m, theta, rng: theta, np.ones(4), np.ones(2))
    with pytest.raises(ValueError, match=r"minibatches of a known size \(Losses\(batch=...\)\)"):
        ad.DecentralizedModel(bare, net).fit(method, step=0.1, rounds=2)
