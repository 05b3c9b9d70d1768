"""Theorem 3, Corollary 1 and Condition 7, aDFL's own weights: against dense algebra, and for which fits they are."""

import math

import numpy as np
import pytest
from by_hand import Raw

import adfl_stats as ad
from adfl_stats.theory import bounds

STEP, ROUNDS, LAM, M = 0.05, 60, 1.5, 16
OF_THEOREM = ("omega_A", "Delta_2^2", "1 / omega_G", "bound")


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)


@pytest.fixture(scope="module")
def net():
    return ad.networks.erdos_renyi(M, 0.7, seed=2)


def fitted(sim, net, method, **words):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, net).fit(method, **({"step": STEP, "rounds": ROUNDS, "keep_data": True} | words))


def test_lines_from_standard_dfl(sim, net):
    hand = Raw.of(sim, net)
    plain = fitted(sim, net, ad.DFL()).client_params.to_numpy()
    res = fitted(sim, net, ad.ADFL(lam=LAM, stages=1, init=ad.DFL()))
    report = res.check(sim.abnormal, sim.theta0)
    # Equation (4.4) at each client's own start, over the largest.
    norms = np.array([np.linalg.norm(X.T @ (X @ t - y) / len(y)) for (X, y), t in zip(hand.rows, plain, strict=True)])
    omega = np.exp(-LAM * (norms - norms.min()))
    np.testing.assert_allclose(res.client_weights, omega, rtol=1e-9)
    good, bad, delta = hand.of_weights(omega)
    N, n, away = 960.0, 60.0, np.linalg.norm(hand.pooled - sim.theta0)
    begin = np.linalg.norm(plain.mean(axis=0) - sim.theta0)
    values = {
        "lambda": LAM,
        "omega_A": bad,
        "Delta_2^2": delta**2,
        "1 / omega_G": 1 / good,
        "bound": math.exp(LAM * away) * LAM * away / math.sqrt(N),
        "start: centre": LAM * begin,
        "start: spread": LAM * plain.var(axis=0).sum(),
        "bound from the start": math.exp(LAM * begin) * LAM * begin / math.sqrt(N),
    }
    for name, value in values.items():
        np.testing.assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
        assert report[name].status == "indicative"
    limits = {
        "omega_A": 1 / math.sqrt(N),
        "Delta_2^2": hand.varrho / math.sqrt(N) + LAM * (1 / math.sqrt(n) + away),
        "1 / omega_G": math.exp(LAM * away),
        "bound": 1 / math.sqrt(N),
        "start: spread": 1 / N**2,
    }
    for name, value in limits.items():
        assert f"{value:.4g}" in report[name].bound, name
    assert report["lambda"].bound == f"{math.log(N):.4g} to {math.sqrt(n) * M ** (-1 / 8):.4g}"


def test_pooled_distance_with_wide_abnormal_covariates(net):
    """The bound has the distance of least squares on all rows."""
    sim = ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=60, p=4)
    X = sim.X * np.where(np.asarray(sim.abnormal, bool)[sim.client], 3.0, 1.0)[:, None]
    data = ad.ClientData.from_arrays(X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, net)
    method = ad.ADFL(lam=LAM, stages=1, init=ad.DFL())
    away = np.linalg.norm(np.linalg.lstsq(X, sim.y, rcond=None)[0] - sim.theta0)
    for keep in (True, False):
        report = model.fit(method, step=0.01, rounds=ROUNDS, keep_data=keep).check(sim.abnormal, sim.theta0)
        np.testing.assert_allclose(report["bound"].value, math.exp(LAM * away) * LAM * away / math.sqrt(960), rtol=1e-7)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (ad.ADFL(), "no lambda"),
        (ad.DFL(), "no lambda"),
        (ad.ADFL(lam="cv"), "replaced the weights of lambda by probabilities"),
        (ad.ADFL(lam=2.0, equalise=True), "replaced the weights of lambda by probabilities"),
        (ad.ADFL(lam=2.0, measure="score"), "come from score statistics beyond their 95 % point"),
        (ad.ADFL(lam=2.0, balance=True), "Steps are balanced by influence"),
        (ad.ADFL(lam=0.0), "lambda is 0"),
    ],
    ids=["model", "DFL", "cv", "equalised", "score", "balanced", "zero"],
)
def test_other_weights_are_not_the_theorems(sim, net, method, words):
    report = fitted(sim, net, method).check(sim.abnormal, sim.theta0)
    for name in ("lambda", *OF_THEOREM, "bound from the start", "start: centre", "start: spread"):
        line = report[name]
        assert (line.status, line.value) == ("unknown", None), name
        assert words in line.note
        if not line.place.startswith("Condition 7"):
            assert "those of ad.ADFL(lam=number)" in line.note
    assert not any(entry.startswith("Condition 7") for entry in report.advice)


@pytest.mark.parametrize(
    ("method", "start"),
    [
        (ad.ADFL(lam=LAM, stages=2, init=ad.DFL()), "an earlier stage"),
        (ad.ADFL(lam=LAM, stages=1, init=ad.Bridge("median")), "BRIDGE-M"),
        (ad.ADFL(lam=LAM, stages=1), "trimmed scores"),
    ],
    ids=["stages", "BRIDGE-M", "default"],
)
def test_other_starts_are_those_of_the_corollary(sim, net, method, start):
    report = fitted(sim, net, method).check(sim.abnormal, sim.theta0)
    for name in OF_THEOREM:
        assert report[name].status == "unknown"
        assert f"those of this fit are from {start}: see Corollary 1" in report[name].note
    for name in ("lambda", "bound from the start", "start: centre", "start: spread"):
        assert report[name].status == "indicative"


def test_start_of_the_last_stage_is_what_the_one_before_ended_with(sim, net):
    begin = fitted(sim, net, ad.ADFL(lam=LAM, stages=1, init=ad.DFL())).client_params.to_numpy()
    report = fitted(sim, net, ad.ADFL(lam=LAM, stages=2, init=ad.DFL())).check(sim.abnormal, sim.theta0)
    centre = LAM * np.linalg.norm(begin.mean(axis=0) - sim.theta0)
    np.testing.assert_allclose(report["start: centre"].value, centre, rtol=1e-9)
    np.testing.assert_allclose(report["start: spread"].value, LAM * begin.var(axis=0).sum(), rtol=1e-9)


def test_window_of_lambda_is_empty_at_the_papers_sizes():
    sim = ad.simulate.paper_linear(0.2, "BF", seed=1)
    report = fitted(sim, ad.networks.directed_circle(100, 5), ad.ADFL(lam=2.0, stages=2), step=0.1).check()
    assert report["lambda"].bound == "9.21 to 5.623"
    assert "that is expected" in report["lambda"].note
    np.testing.assert_allclose(report["rho"].value, 0.9921, atol=1e-4)
    wide = ad.simulate.paper_linear(0.0, None, seed=1, M=4, n=400, p=2)
    assert "expected" not in fitted(wide, ad.networks.complete(4), ad.ADFL(lam=8.0)).check()["lambda"].note


def test_huge_lambdas_overflow_nothing():
    assert bounds.adaptive_bound(1e9, 1.0, 100) > 1e300
    assert math.isnan(bounds.adaptive_bound(math.nan, 1.0, 100))
