"""Theorem 2, weighted DFL: Err1 to Err3 and equation (4.3) against dense algebra, and the distance of runs."""

import math

import numpy as np
import pytest
from by_hand import Raw

import adfl_stats as ad
from adfl_stats.theory import Constants, bounds

STEP, ROUNDS, LAM, M = 0.05, 40, 1.5, 16


def model_of(sim, net):
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net, sim.family)


def lines(hand, res, omega, *, balance, reach, step=STEP, rounds=ROUNDS):
    """The theorem's lines with the factors of the run's steps; omega_m in [0, 1] makes it multiply the step."""
    theta = res.params.to_numpy()
    factors = hand.factors(omega, balance)
    largest = max(1.0, factors.max())
    alpha, (good, bad, delta) = step * largest, hand.of_weights(factors / largest)
    N, n, share, L, lam = hand.sizes.sum(), hand.sizes.mean(), hand.varrho, hand.L_max, hand.lambda_min(theta)
    away = np.linalg.norm(theta - hand.theta0)
    err1 = (1 - alpha * good * lam / 8) ** rounds * reach
    err2 = (alpha * L + hand.se) / ((1 - hand.rho) * lam * good)
    err2 *= math.sqrt(math.log(n) / n) * L + math.sqrt(share) * hand.flat_rms
    err3 = share * hand.flat_rms * bad + delta * (math.sqrt(math.log(N) / N) + L * away)
    err3 /= good * lam
    first = (alpha + hand.se) * (1 / math.sqrt(n) + math.sqrt(share)) / good
    return {
        "Err1": err1,
        "Err2": err2,
        "Err3": err3,
        "Err1 + Err2 + Err3": err1 + err2 + err3,
        "limit": first + (share * bad + delta / math.sqrt(N)) / good,
        "oracle (1)": first,
        "oracle (2)": bad / good,
        "oracle (3)": delta / good,
        "M / n^4": hand.M / n**4,
    }


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("sizes", [60, (30, 90)], ids=["equal", "unequal"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_lines(family, sizes, balance):
    if family == "gaussian":
        sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=sizes, p=4)
    else:
        sim = ad.simulate.glm_design(family, abnormal=0.25, corruption="BF", M=M, n=sizes, p=4, seed=7)
    net = ad.networks.erdos_renyi(M, 0.7, seed=2)
    hand, rng = Raw.of(sim, net), np.random.default_rng(5)
    start, omega = sim.theta0 + 0.3 * rng.normal(size=(M, 4)), rng.uniform(0.1, 1.0, M)
    method = ad.DFL(weights=omega, balance=balance, init=start)
    model = model_of(sim, net)
    res = model.fit(method, step=STEP, rounds=ROUNDS, keep_data=True)
    away = np.linalg.norm(start - res.params.to_numpy(), axis=1)
    report = res.check(sim.abnormal, sim.theta0)
    for name, value in lines(hand, res, omega, balance=balance, reach=away.max()).items():
        np.testing.assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
    np.testing.assert_allclose(report["||theta*(0) - I* theta_A|| <= epsilon"].value, np.linalg.norm(away), rtol=1e-8)
    # The rates have the same factor, with the down-weighted clients in the place of A.
    rates, factors = model.rates(res), hand.factors(omega, balance)
    trusted = omega >= 0.1 * omega.max()
    good = factors[trusted].sum() / M
    np.testing.assert_allclose(rates.omega_good, good)
    np.testing.assert_allclose(rates.bound, 1 - STEP * good * hand.lambda_min(res.params.to_numpy()) / 8)
    assert rates.place == "Theorem 2"


def test_err1_is_about_the_run_that_has_the_weights():
    """Stages by lambda, then one with probabilities: its own start and its own rounds count."""
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    net, words = ad.networks.directed_circle(M, 5), {"step": STEP, "rounds": ROUNDS}
    far = np.full(4, 3.0)
    staged = model_of(sim, net).fit(ad.ADFL(lam=LAM, stages=1, init=far), **words)
    both = model_of(sim, net).fit(ad.ADFL(lam=LAM, stages=1, init=far, equalise=True), **words)
    began = staged.client_params.to_numpy()
    away = np.linalg.norm(began - both.params.to_numpy(), axis=1)
    found = Constants.of(both.record)
    np.testing.assert_allclose([found.start_reach, found.start_stacked], [away.max(), np.linalg.norm(away)], rtol=1e-9)
    assert found.rounds == ROUNDS
    # Condition 7 is about the start that the weights of lambda came from.
    np.testing.assert_allclose(found.start_distance**2 - found.variance, np.sum((far - both.params) ** 2), rtol=1e-9)


def test_contraction_follows_the_phases_of_a_run():
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    net = ad.networks.erdos_renyi(M, 0.7, seed=2)
    res = model_of(sim, net).fit(ad.ADFL(lam="cv", balance=True), solver="rounds")
    found = Constants.of(res.record, None, sim.abnormal, sim.theta0)
    trace = res.trace[res.trace["run"] == res.trace["run"].max()]
    largest = np.linalg.eigvalsh(sim.X.T @ sim.X / len(sim.X))[-1]
    wanted, before = 1.0, 0
    for t, step in zip(trace["round"], trace["step"], strict=True):
        wanted *= (1 - step / largest * found.largest * found.omega_good * found.lambda_min / 8) ** (t - before)
        before = t
    assert before == res.rounds
    np.testing.assert_allclose(found.contracted, wanted)


def test_a_limit_has_no_optimisation_error():
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    report = model_of(sim, ad.networks.directed_circle(M, 5)).fit(solver="limit").check()
    assert report["Err1"].value == 0.0
    assert "t is infinite" in report["Err1"].note
    assert "the limit of this fit was solved for" in report["rate"].note


def test_balanced_fits_are_not_told_to_balance():
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    net = ad.networks.erdos_renyi(M, 0.7, seed=2)
    res = model_of(sim, net).fit()
    assert res.record.details["balance"]
    note = res.check()["oracle (1)"].note
    assert "SE(W) is the larger part; that steps are balanced by influence does not count in the theorem" in note
    assert not any("balance" in entry for entry in res.check().advice)


def test_bounds_say_nothing_where_a_divisor_vanishes():
    assert bounds.dfl_floor(0.1, 0.0, 1.0, 0.0, 1.0) == math.inf
    assert bounds.dfl_floor(0.1, 0.0, 1.3, 0.0, 1.0) == math.inf
    assert bounds.variance_bound(1.0, 0.0, 0.0, 10) == math.inf
    assert bounds.err2(0.1, 0.0, 1.2, 1.0, 1.0, 1.0, 50, 0.0, 0.0) == math.inf
    assert bounds.err3(0.0, 1.0, 1.0, 0.0, 0.1, 100, 0.0, 0.0, 0.0) == math.inf
    # The oracle's weights leave nothing of Err3, whatever the curvature.
    assert bounds.err3(0.0, 1.0, 0.8, 0.0, 0.0, 100, 0.2, 1.0, 0.1) == 0.0
    assert bounds.oracle_requirements(0.1, 0.0, 50, 1000, 0.0, 1.0, 0.0, 0.0)[1] == (0.0, math.inf)
    assert bounds.limit_bound(0.1, 0.0, 50, 1000, 0.0, 0.0, 0.0, 0.0) == math.inf
    assert bounds.combined_bound(0.1, 0.0, 1.0, 0.0, 0.0, 50, 10, 0.05) == math.inf
    assert bounds.contraction([100.0], [2], 1.0, 1.0) == 0.0
    np.testing.assert_allclose(bounds.contraction([0.4, 0.1], [3, 5], 0.5, 2.0), 0.95**3 * 0.9875**5)


@pytest.mark.parametrize("corruption", ["BF", "OOD", "MP"])
@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("neighbours", [4, 15])
def test_distance_from_the_oracle_is_within_the_bound(corruption, share, neighbours):
    """The constants that the paper leaves open are taken as 1, and that is enough: no fit of the grid needs more."""
    sim = ad.simulate.paper_linear(share, corruption, seed=neighbours, M=20, n=80, p=5)
    net = ad.networks.directed_circle(20, neighbours)
    res = model_of(sim, net).fit(ad.ADFL(lam=2.0, stages=2), step=0.05, rounds=150, keep_data=True)
    oracle = Raw.of(sim, net).solution((~np.asarray(sim.abnormal, bool)).astype(float))
    error = np.linalg.norm(res.client_params - oracle) / np.sqrt(20)
    assert error <= res.check(sim.abnormal, sim.theta0)["Err1 + Err2 + Err3"].value


def test_optimisation_error_contracts_at_least_as_told():
    # On the complete network the clients agree after a round, and nothing but Err1 is left of Theorem 2.
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    net, weights = ad.networks.complete(M), 1.0 - np.asarray(sim.abnormal, float)
    oracle, before = Raw.of(sim, net).solution(weights), np.inf
    for rounds in (1, 10, 40, 160):
        start = np.full(4, 5.0)
        res = model_of(sim, net).fit(ad.DFL(weights=weights, init=start), step=0.02, rounds=rounds)
        left = Constants.of(res.record, None, sim.abnormal, sim.theta0).contracted
        assert np.linalg.norm(res.params - oracle) <= left * np.linalg.norm(start - oracle)
        assert 0 < left < before
        before = left
