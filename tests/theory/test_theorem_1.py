"""Theorem 1, the whole-sample estimator: against dense algebra, and against its distribution in simulations."""

import math

import numpy as np
import pytest
from by_hand import Raw

import adfl_stats as ad
from adfl_stats.data.batches import one_pass
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import sums_at
from adfl_stats.losses.regularity import RegularitySums
from adfl_stats.theory import Constants

M = 12


def wide(family="gaussian", seed=1, n=60, factor=3.0):
    """Abnormal clients with covariates three times as wide, and another parameter."""
    sim = ad.simulate.glm_design(family, M=M, n=n, p=3, seed=seed)
    bad, X, y = np.arange(M) < 3, sim.X.copy(), sim.y.copy()
    rng = np.random.default_rng(seed)
    for k in np.flatnonzero(bad):
        mine = sim.client == k
        X[mine] *= factor
        eta = -(X[mine] @ sim.theta0)
        y[mine] = (
            eta + rng.normal(size=mine.sum())
            if family == "gaussian"
            else rng.random(mine.sum()) < 1 / (1 + np.exp(-eta))
        )
    return _Sim(X, y, sim.client, sim.theta0, bad, family)


class _Sim:
    def __init__(self, X, y, client, theta0, abnormal, family):
        self.X, self.y, self.client, self.theta0, self.abnormal, self.family = X, y, client, theta0, abnormal, family
        self.labels = np.unique(client)


def fitted(sim, network, method=None, **words):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, network, sim.family).fit(method, **words)


@pytest.mark.parametrize("sizes", [60, (30, 90)], ids=["equal", "unequal"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_variance_bias_and_bounds(family, sizes):
    sim, net = wide(family, n=sizes), ad.networks.directed_circle(M, 4)
    hand = Raw.of(sim, net)
    # Trusted clients only carry weight: the whole-sample estimator must not see that.
    res = fitted(sim, net, ad.DFL(weights=1.0 - sim.abnormal), step=0.02, rounds=50, keep_data=True)
    report, theta = res.check(sim.abnormal, sim.theta0), res.params.to_numpy()
    N, lam, share = hand.sizes.sum(), hand.lambda_min(theta), hand.varrho
    np.testing.assert_allclose(report["V"].value, hand.pooled_variance, rtol=1e-8)
    np.testing.assert_allclose(report["||flat_A|| B"].value, hand.pooled_bias**2, rtol=1e-8)
    np.testing.assert_allclose(report["MSE"].value, hand.pooled_variance + hand.pooled_bias**2, rtol=1e-8)
    np.testing.assert_allclose(report["varrho^2"].value, share**2)
    assert report["V"].bound == f"<~ {hand.L_max**2 / (((1 - share) * lam) ** 2 * N):.4g}"
    assert report["||flat_A|| B"].bound == f">~ {share**2 * hand.flat_mean**2 / hand.L_max**2:.4g}"
    assert f"varrho^2 ||flat_A||^2 = {share**2 * hand.flat_mean**2:.4g}" in report["||flat_A|| B"].note
    assert f"it is {N * share**2:.4g}." in report["varrho^2"].note
    error = Constants.of(res.record, res.data, sim.abnormal, sim.theta0).pooled_error
    np.testing.assert_allclose(error, np.linalg.norm(hand.pooled - sim.theta0), rtol=1e-8)
    assert report["varrho < epsilon"].status == "unknown"


def test_wide_abnormal_covariates_count_in_the_pooled_hessian():
    """The bias is that of least squares on all rows; with the normal clients' Hessian it would be far larger."""
    sim, net = wide(), ad.networks.complete(M)
    res = fitted(sim, net, keep_data=True)
    pulled = np.linalg.lstsq(sim.X, sim.y, rcond=None)[0] - sim.theta0
    found = res.check(sim.abnormal, sim.theta0)["||flat_A|| B"].value
    # Apart from noise of the size of a standard error these are the same.
    assert math.sqrt(found) == pytest.approx(np.linalg.norm(pulled), rel=0.05)
    normal = sim.X[~sim.abnormal[sim.client]]
    own = np.linalg.solve(normal.T @ normal / len(normal), 0.25 * Raw.of(sim, net).flat.mean(axis=0))
    assert np.linalg.norm(own) > 2.5 * math.sqrt(found)


def test_without_data_the_estimator_is_exact_for_least_squares():
    sim, net = wide(), ad.networks.complete(M)
    lean, full = (fitted(sim, net, keep_data=keep) for keep in (False, True))
    one, other = (Constants.of(res.record, res.data, sim.abnormal) for res in (lean, full))
    np.testing.assert_allclose(one.pooled_shift, other.pooled_shift, rtol=1e-8)
    np.testing.assert_allclose(one.pooled_bias, other.pooled_bias, rtol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_variance_is_that_of_repeated_samples(family):
    """V over 60 samples against the variance of the estimator over these: its relative error is about 2^1/2 / 13."""
    estimates, told = [], []
    for seed in range(60):
        # The same truth, other samples.
        sim = wide(family, seed=seed, n=40, factor=1.5)
        hand = Raw.of(sim, ad.networks.complete(M))
        estimates.append(hand.pooled)
        told.append(hand.pooled_variance)
    observed = np.var(estimates, axis=0, ddof=1).sum()
    assert np.mean(told) == pytest.approx(observed, rel=0.3)


def test_no_abnormal_clients_no_bias():
    sim = ad.simulate.paper_linear(0.0, None, seed=3, M=12, n=80, p=3)
    report = fitted(sim, ad.networks.complete(12), ad.DFL(), step=0.1, rounds=200).check([], sim.theta0)
    assert report["||flat_A|| B"].value == 0.0
    assert report["MSE"].value == report["V"].value


def slope(x, y):
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def test_pooled_bias_grows_like_the_share():
    shares, observed, told = [0.05, 0.1, 0.2, 0.4], [], []
    for share in shares:
        sim = ad.simulate.paper_linear(share, "BF", seed=1, M=20, n=400, p=5)
        res = fitted(sim, ad.networks.complete(20), ad.DFL(), step=0.2, rounds=150, keep_data=True)
        observed.append(np.linalg.norm(res.params - sim.theta0))
        found = Constants.of(res.record, res.data, sim.abnormal, sim.theta0)
        told.append(found.pooled_bias)
        np.testing.assert_allclose(found.pooled_bias, observed[-1], rtol=0.1, atol=0.05)
        report = res.check(sim.abnormal, sim.theta0)
        assert (
            report["||flat_A|| B"].value / found.L_max**2 <= observed[-1] ** 2 <= report["V"].value + 2 * told[-1] ** 2
        )
    assert abs(slope(shares, observed) - 1) < 0.15
    assert abs(slope(shares, told) - 1) < 0.15


def test_error_on_clean_data_falls_like_the_root_of_rows():
    sizes, errors, told = [40, 80, 160, 320], [], []
    for n in sizes:
        squared, variances = [], []
        for seed in range(8):
            sim = ad.simulate.paper_linear(0.0, None, seed=seed, M=20, n=n, p=8)
            res = fitted(sim, ad.networks.complete(20), ad.DFL(), step=0.3, rounds=150)
            squared.append(np.sum((res.params - sim.theta0) ** 2))
            variances.append(res.check([], sim.theta0)["V"].value)
        errors.append(np.sqrt(np.mean(squared)))
        told.append(np.sqrt(np.mean(variances)))
    rows = 20 * np.array(sizes)
    assert abs(slope(rows, errors) + 0.5) < 0.1
    assert abs(slope(rows, told) + 0.5) < 0.05
    np.testing.assert_allclose(errors, told, rtol=0.25)


def test_mean_squared_error_is_in_units_of_the_parameters():
    """Ten times larger covariates have ten times smaller coefficients, and a hundredth of the squared error."""
    sim, found = ad.simulate.paper_linear(0.25, "BF", seed=7, M=16, n=60, p=4), {}
    for size in (1.0, 10.0):
        data = ad.ClientData.from_arrays(sim.X * size, sim.y, sim.client)
        res = ad.DecentralizedGLM(data, ad.networks.complete(16)).fit(ad.ADFL())
        found[size] = res.check(abnormal=sim.abnormal, theta0=sim.theta0 / size)
    for name in ("V", "||flat_A|| B", "MSE"):
        np.testing.assert_allclose(found[10.0][name].value, found[1.0][name].value / 100, rtol=0.02)


def test_bias_of_the_pooled_estimator_counts_rows():
    # One abnormal client with a tenth of the rows of all: exact least squares against the line's prediction.
    rng = np.random.default_rng(4)
    sizes = np.array([200] + [100] * 18)
    X = rng.normal(size=(sizes.sum(), 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=len(X))
    y[:200] += X[:200] @ [0.3, 0.0, 0.0]
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(19), sizes))
    res = ad.DecentralizedGLM(data, ad.networks.complete(19)).fit(
        ad.DFL(weights=[0.0] + [1.0] * 18), step=0.1, rounds=300, keep_data=True
    )
    clean, whole = (np.linalg.lstsq(X[rows:], y[rows:])[0] for rows in (200, 0))
    bias = float(np.linalg.norm(whole - clean))
    found = math.sqrt(res.check(abnormal=[0], theta0=clean)["||flat_A|| B"].value)
    assert found == pytest.approx(bias, rel=1e-9)


def test_sums_over_all_rows_come_in_parts():
    """Places that hold some of the clients add up their parts: the same Hessian, meat and shares, with row weights."""
    sim = wide(n=(30, 90))
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(sim.y))
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client, weights=w)
    theta, family, parts = np.array([0.5, -0.2, 0.1]), Family("gaussian"), [slice(0, 5), slice(5, M)]
    clients = sums_at(data, family, theta, np.ones(M)).clients
    by_parts = RegularitySums(data, family, theta, clients, None, lambda part: sum(part(at) for at in parts), parts)
    whole, split = one_pass(data, RegularitySums(data, family, theta, clients), by_parts)
    for name in ("hessian", "meat", "shares"):
        np.testing.assert_allclose(getattr(split, name), getattr(whole, name), rtol=1e-12)
    # By hand: weighted scores less the weighted mean of their client.
    scores, meat = sim.X * (sim.X @ theta - sim.y)[:, None], np.zeros((3, 3))
    for k in range(M):
        mine = sim.client == k
        apart = (scores[mine] - np.average(scores[mine], axis=0, weights=w[mine])) * w[mine, None]
        meat += apart.T @ apart
    np.testing.assert_allclose(whole.meat, meat / w.sum() ** 2, rtol=1e-10)
    np.testing.assert_allclose(whole.hessian, (sim.X.T * w) @ sim.X / w.sum(), rtol=1e-10)
