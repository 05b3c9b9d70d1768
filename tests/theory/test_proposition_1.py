"""Proposition 1, standard DFL: its lines against dense algebra, in the report and in the rates, and what runs do."""

import math

import numpy as np
import pytest
from by_hand import Raw
from scipy import linalg

import adfl_stats as ad

STEP = 0.05


def dense_net(M=16, seed=2):
    """A graph whose columns do not sum to one, yet with rho < 1."""
    net = ad.networks.erdos_renyi(M, 0.7, seed=seed)
    assert net.se > 0.05
    return net


def model_of(sim, net):
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net, sim.family)


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(0.25, "BF", seed=7, M=16, n=60, p=4)


def lines(hand, theta, least, most):
    """Rate, floor, step + SE(W) and the combined bound below the proposition, with delta = .05."""
    share, lam, rho, se, N = hand.varrho, hand.lambda_min(theta), hand.rho, hand.se, hand.sizes.sum()
    n, pull = hand.sizes.mean(), hand.varrho * hand.flat_mean if hand.bad.any() else 0.0
    inside = 1 / ((1 - share) * math.sqrt(n * hand.M)) + pull + math.sqrt(pull) / math.sqrt(N) + 1 / (n * hand.M)
    return {
        "rate": 1 - least * (1 - share) * lam / 8,
        "floor": (most + se) / ((1 - rho) * (1 - share) * lam),
        "step + SE(W)": most + se,
        "step + SE(W) < epsilon": most + se,
        "distance from theta_0": (most + se) / ((1 - rho) * (1 - share)) + inside / math.sqrt(0.05),
    }


def test_lines_in_the_papers_coordinates(sim):
    net = dense_net()
    res = model_of(sim, net).fit(ad.DFL(), step=STEP, rounds=40, keep_data=True)
    report, hand = res.check(sim.abnormal, sim.theta0), Raw.of(sim, net)
    for name, value in lines(hand, res.params.to_numpy(), STEP, STEP).items():
        np.testing.assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
    # The start was zero: at most its distance from the estimate plus that of the estimate from the pooled one.
    away = np.linalg.norm(res.params) + np.linalg.norm(hand.pooled - res.params)
    np.testing.assert_allclose(report["delta_0 < epsilon"].value, away, rtol=1e-8)
    for name in ("step + SE(W) < epsilon", "delta_0 < epsilon"):
        assert report[name].status == "unknown"
        assert "gives no value" in report[name].note


@pytest.mark.parametrize("case", ["gaussian", "rare events"])
def test_steps_of_other_coordinates_are_those_of_the_bound_on_the_curvature(case):
    """A default fit steps with the inverse of the pooled bound on the curvature: X'X / (4 N) for the logit.

    For rare events the Hessian is far smaller, and steps derived from it would be many times too long.
    """
    if case == "gaussian":
        sim, size = ad.simulate.paper_linear(0.0, None, seed=2, M=10, n=80, p=3), 1.0
    else:
        rng = np.random.default_rng(6)
        X = np.column_stack([np.ones(3000), rng.normal(size=(3000, 2))])
        y = (rng.random(3000) < 1 / (1 + np.exp(4.0 - X[:, 1]))).astype(float)
        sim = type("Rare", (), {"X": X, "y": y, "client": np.repeat(np.arange(10), 300), "family": "binomial"})
        sim.labels, sim.abnormal, sim.theta0, size = np.arange(10), np.zeros(10), np.array([-4.0, 1.0, 0.0]), 0.25
    net = dense_net(10, 1)
    model = model_of(sim, net)
    res = model.fit(ad.DFL(), solver="rounds")
    bound = np.linalg.eigvalsh(size * sim.X.T @ sim.X / len(sim.X))
    least, most = res.step / bound[-1], res.step / bound[0]
    report, hand = res.check([], sim.theta0), Raw.of(sim, net)
    for name, value in lines(hand, res.params.to_numpy(), least, most).items():
        np.testing.assert_allclose(report[name].value, value, rtol=1e-7, err_msg=name)
    assert f"{least:.4g} to {most:.4g} by direction" in report["rate"].note
    # The run itself: a client's step is -alpha (n_m / n-bar) Q grad L_m, with Q the inverse of that bound.
    metric = np.linalg.inv(size * sim.X.T @ sim.X / len(sim.X))
    np.testing.assert_allclose(res.record.metric, metric, rtol=1e-9)


def test_report_and_rates_have_one_floor_and_one_lambda_min():
    sim = ad.simulate.paper_linear(0.25, "BF", seed=3, M=16, n=(30, 90), p=4)
    for method in (ad.DFL(), ad.ADFL(), ad.ADFL(lam=2.0, balance=True)):
        model = model_of(sim, dense_net())
        res = model.fit(method)
        report, rates = res.check(), model.rates(res)
        np.testing.assert_allclose(rates.paper_floor, report["floor"].value)
        np.testing.assert_allclose(rates.lambda_min, report["lambda_min"].value)
        if rates.place == "Proposition 1":
            np.testing.assert_allclose(rates.bound, report["rate"].value)


def two_communities(link):
    W = np.kron(np.eye(2), np.full((8, 8), 1 / 8))
    W[0, :8] *= 1 - link
    W[8, 8:] *= 1 - link
    W[0, 8] = W[8, 0] = link
    return ad.Network.from_weights(W)


def test_a_run_that_is_slower_than_the_bound_says_so(sim):
    """Two communities, of which one takes no steps: it follows the other at the pace of their link."""
    model, net = model_of(sim, two_communities(1e-3)), two_communities(1e-3)
    omega = np.repeat([1.0, 0.0], 8)
    rates = model.rates(model.fit(ad.DFL(weights=omega), step=STEP, rounds=100))
    inside = np.eye(64) - STEP * np.kron(np.diag(omega), np.eye(4)) @ linalg.block_diag(
        *Raw.of(sim, net).hessians(np.zeros(4))
    )
    exact = np.abs(np.linalg.eigvals(inside @ np.kron(net.W.toarray(), np.eye(4)))).max()
    np.testing.assert_allclose(rates.exact, exact, rtol=1e-9)
    assert rates.bound < rates.exact < 1.0
    note = rates.to_frame().loc["bound", "note"]
    assert "this run is slower: step and start are not below epsilon, or it is below the floor already" in note
    assert "below an epsilon that the paper does not give" in note
    assert "slower" not in model.rates(model.fit(ad.DFL(), step=STEP, rounds=100)).bound_note


def test_no_bound_where_condition_5_fails(sim):
    model = model_of(sim, ad.networks.central_client(16))
    res = model.fit(ad.DFL(), step=STEP, rounds=40)
    rates, report = model.rates(res), res.check()
    assert math.isnan(rates.bound)
    assert rates.paper_floor == math.inf
    assert "no bound: Condition 5 fails" in str(rates)
    assert "up to its constant: none" in str(rates)
    assert not any("nan" in line.get_label() for line in ad.plots.rates(rates).lines)
    for line in report.checks:
        if line.place.startswith(("Proposition", "Theorem 2", "Theorem 3", "Corollary")):
            assert (line.value, line.status, line.bound) == (None, "unknown", "-"), line.name
    assert "inf" not in str(report)


def test_floor_is_linear_in_the_step(sim):
    net = ad.networks.directed_circle(16, 3)
    whole = Raw.of(sim, net).pooled
    steps, observed, told = np.array([0.005, 0.01, 0.02, 0.04]), [], []
    for step in steps:
        res = model_of(sim, net).fit(ad.DFL(), step=step, rounds=round(40 / step))
        observed.append(np.linalg.norm(res.client_params - whole) / 4)
        told.append(res.check(sim.abnormal, sim.theta0)["floor"].value)
    slopes = [np.polyfit(np.log(steps), np.log(values), 1)[0] for values in (observed, told)]
    assert abs(slopes[0] - 1) < 0.1
    np.testing.assert_allclose(slopes[1], 1.0, atol=1e-9)
    # The constant that the paper leaves open may be 1 here.
    assert (np.array(observed) <= told).all()


def test_summary_has_the_steps_of_the_coefficients_and_the_farthest_client():
    sim = ad.simulate.glm_design("binomial", M=12, n=80, p=3, seed=5)
    net = ad.networks.directed_circle(12, 3)
    res = model_of(sim, net).fit(ad.DFL())
    notes = " ".join(str(res.summary()).split())
    bound = np.linalg.eigvalsh(0.25 * sim.X.T @ sim.X / len(sim.X))
    assert f"it is {res.step / bound[-1]:.3g} to {res.step / bound[0]:.3g} by direction" in notes
    assert f"Prop. 1: step+SE(W) {res.step / bound[0]:.3g}" in notes
    # Consensus is a root mean square over clients; the farthest is beyond it.
    apart = np.abs(res.client_params - res.params) / res.bse
    assert f"the farthest client is at {apart.to_numpy().max():.3f}" in notes
    spread = np.sqrt((apart**2).mean(axis=0)).max()
    assert f"consensus {spread:.3f} standard errors" in notes
    assert apart.to_numpy().max() > 1.3 * spread
