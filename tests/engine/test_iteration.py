"""Rounds are the recursions of the paper, written out."""

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from rows_by_hand import NETWORKS, OMEGA, M, Rows

import adfl_stats as ad

# ------------------------------------------------------------------ the paper's recursion


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("weighting", ["sample", "client"])
@pytest.mark.parametrize("omega", [None, OMEGA], ids=["DFL", "weighted"])
def test_the_linear_limit_solves_the_stacked_system(network, weighting, omega):
    rows, net = Rows(weighting=weighting), NETWORKS[network]
    # The slowest mode shrinks by a factor of about 1 - .2 x .5 x .5 a round: 600 rounds leave 1e-13.
    res = rows.model(net).fit(ad.DFL(weights=omega), step=0.2, rounds=600)
    expected = rows.limit(net.W.toarray(), 0.2, np.ones(M) if omega is None else omega)
    assert_allclose(res.client_params, expected, rtol=1e-9, atol=1e-9)
    assert_allclose(res.params, expected.mean(axis=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weighting", ["sample", "client"])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("omega", [None, OMEGA], ids=["DFL", "weighted"])
def test_fixed_rounds_are_the_papers_recursion(family, weighting, omega):
    rows, net = Rows(family, weighting=weighting), NETWORKS["erdos-renyi"]
    res = rows.model(net).fit(ad.DFL(weights=omega), step=0.15, rounds=83)
    expected = rows.recursion(net.W.toarray(), np.zeros((M, 3)), 0.15, 83, 1.0 if omega is None else omega)
    assert_allclose(res.client_params, expected, rtol=1e-12, atol=1e-12)
    assert (res.step, res.rounds) == (0.15, 83)


@pytest.mark.filterwarnings("ignore::adfl_stats.ConditionWarning")
def test_clients_with_fewer_rows_than_columns_follow_the_recursion():
    rows, net = Rows(sizes=(2, 5, 1, 9, 3, 4, 8, 2, 5, 6, 3, 7), p=6), NETWORKS["circle"]
    res = rows.model(net).fit(ad.DFL(), step=0.05, rounds=40)
    assert_allclose(
        res.client_params, rows.recursion(net.W.toarray(), np.zeros((M, 6)), 0.05, 40), rtol=1e-12, atol=1e-12
    )


def test_log_links_start_at_the_clients_own_log_means():
    rows, net = Rows("poisson"), NETWORKS["circle"]
    start = np.zeros((M, 3))
    start[:, 0] = [np.log(y.mean()) for _, y in rows.clients]
    res = rows.model(net).fit(ad.DFL(), step=0.05, rounds=25)
    assert_allclose(res.client_params, rows.recursion(net.W.toarray(), start, 0.05, 25), rtol=1e-12, atol=1e-12)


def test_bridge_combines_by_medians_that_include_the_client_itself():
    rows, net = Rows(), NETWORKS["circle"]
    hears = net.W.toarray() + np.eye(M) > 0
    theta = np.zeros((M, 3))
    for _ in range(30):
        at = np.array([np.median(theta[heard], axis=0) for heard in hears])
        theta = at - (0.2 * rows.factors)[:, None] * rows.gradients(at)
    res = rows.model(net).fit(ad.Bridge("median"), step=0.2, rounds=30)
    assert_allclose(res.client_params, theta, rtol=1e-12, atol=1e-12)


def start_values(seed=3):
    return np.random.default_rng(seed).normal(scale=0.3, size=(M, 3))


# ------------------------------------------------------------------ Algorithms 1 and 2


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_adaptive_stages_follow_the_algorithms(family, stages):
    rows, net, theta = Rows(family), NETWORKS["circle"], start_values()
    res = rows.model(net).fit(ad.ADFL(lam=2.0, stages=stages, init=theta), step=0.2, rounds=50)
    for _ in range(stages):
        norms = np.linalg.norm(rows.gradients(theta), axis=1)
        omega = np.exp(-2.0 * (norms - norms.min()))
        theta = rows.recursion(net.W.toarray(), theta, 0.2, 50, omega)
    assert_allclose(res.client_weights, omega, rtol=1e-11)
    assert_allclose(res.client_params, theta, rtol=1e-11, atol=1e-12)
    assert res.method.name == "aDFL"
    assert res.method.details | {"start": "given"} == {
        "start": "given",
        "lam": 2.0,
        "measure": "norm",
        "stages": stages,
        "equalise": False,
        "balance": False,
    }
    assert list(res.trace.groupby("run")["round"].max()) == [50] * stages


def test_a_huge_lambda_does_not_underflow_and_trusts_one_client():
    rows, net = Rows(), NETWORKS["circle"]
    res = rows.model(net).fit(ad.ADFL(lam=1e6, stages=1, init=start_values()), step=0.1, rounds=5)
    assert sorted(res.client_weights)[-2:] == [0.0, 1.0]
    assert res.client_weights.idxmax() == np.argmin(np.linalg.norm(rows.gradients(start_values()), axis=1))


def test_equal_starts_give_equal_fits():
    model = Rows().model(NETWORKS["circle"])
    how = {"step": 0.2, "rounds": 40}
    first = model.fit(ad.DFL(), **how)
    shuffled = first.client_params.sample(frac=1.0, random_state=1)
    assert list(shuffled.index) != list(first.client_params.index)
    fits = {
        "method": model.fit(ad.ADFL(lam=2.0, stages=2, init=ad.DFL()), **how),
        "results": model.fit(ad.ADFL(lam=2.0, stages=2, init=first), **how),
        "frame": model.fit(ad.ADFL(lam=2.0, stages=2, init=shuffled), **how),
        "array": model.fit(ad.ADFL(lam=2.0, stages=2, init=first.client_params.to_numpy()), **how),
    }
    for fit in fits.values():
        assert_array_equal(fit.client_params, fits["array"].client_params)
    assert fits["method"].method.details["start"] == "DFL"
    assert fits["results"].method.details["start"] == "results of DFL"
    # A method that was run first has its rounds in the trace.
    assert (fits["method"].trace["run"].nunique(), fits["array"].trace["run"].nunique()) == (3, 2)


def test_one_row_serves_all_clients():
    model, row = Rows().model(NETWORKS["circle"]), np.array([0.3, -0.2, 0.1])
    how = {"step": 0.2, "rounds": 7}
    for init in (row, pd.Series(row)):
        res = model.fit(ad.ADFL(lam=1.0, stages=1, init=init), **how)
        assert_array_equal(
            res.client_params, model.fit(ad.ADFL(lam=1.0, stages=1, init=np.tile(row, (M, 1))), **how).client_params
        )


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (np.zeros(4), rf"init has shape \(4,\); \(3,\) for all clients or \({M}, 3\) is wanted"),
        (np.zeros((M, 4)), rf"init has shape \({M}, 4\)"),
        (np.full(3, np.nan), "init has NaN or infinite values"),
        (pd.DataFrame(np.zeros((M, 3)), index=range(1, M + 1)), "init has other clients than the data"),
    ],
)
def test_starts_that_do_not_fit_are_refused(init, message):
    model = Rows().model(NETWORKS["circle"])
    for method in (ad.ADFL(init=init), ad.DFL(init=init), ad.Bridge(init=init)):
        with pytest.raises(ValueError, match=message):
            model.fit(method, rounds=3)


# ------------------------------------------------------------------ divergence


@pytest.mark.parametrize("rounds", [None, 500], ids=["until small", "fixed"])
@pytest.mark.parametrize(("family", "step"), [("gaussian", 5.0), ("gaussian", 1e200), ("poisson", 3.0)])
def test_a_step_too_large_is_named_beside_a_safe_one(family, step, rounds):
    model = Rows(family).model(NETWORKS["circle"])
    with pytest.raises(ad.DivergenceError, match=re.escape(f"at step={step:.4g}")) as caught:
        model.fit(ad.DFL(), step=step, rounds=rounds)
    words = re.search(r"diverged in round (\d+) at .*; steps up to (\S+) are safe", str(caught.value))
    assert int(words[1]) <= 36
    safe = float(words[2])
    assert safe < step
    res = model.fit(ad.DFL(), step=safe, rounds=400)
    pooled = sm.GLM(model.data.y, model.data.X, model.family.statsmodels()).fit(cov_type="HC0")
    # A constant step leaves a bias, which is far below what a run that oscillates or creeps would show.
    assert np.all(np.abs(res.params - pooled.params) < 2.0 * pooled.bse)


def test_a_run_from_afar_does_not_ask_for_a_step_that_it_had():
    """The curvature of counts grows with their means, so that a step that is safe at the start is not safe afar."""
    model = Rows("poisson").model(NETWORKS["circle"])
    far = np.full(model.data.X.shape[1], 3.0)
    with pytest.raises(ad.DivergenceError, match=r"although steps up to (\S+) are safe from the default.*ad.DFL\(clip"):
        model.fit(ad.DFL(init=far), step=0.02, rounds=50)
    assert np.isfinite(model.fit(ad.DFL(init=far, clip=1.0), step=0.02, rounds=50).params).all()
