"""When runs stop, and what they say of their error."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from rows_by_hand import NETWORKS, SIZES, M, Rows
from scipy import special

import adfl_stats as ad

# ------------------------------------------------------------------ stopping


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("network", NETWORKS)
def test_by_default_the_numerical_error_is_small_beside_the_standard_error(family, network):
    rows, net = Rows(family), NETWORKS[network]
    res = rows.model(net).fit(ad.DFL(), solver="rounds")
    # As the step vanishes the network solves the equation with weights n_m x influence.
    weight = np.repeat(M * net.influence.to_numpy(), SIZES)
    kinds = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
    pooled = sm.GLM(rows.y, rows.X, kinds[family](), var_weights=weight).fit(cov_type="HC0", tol=1e-12)
    assert res.converged
    assert res.numerical_error["total"] < 0.05
    assert_allclose(res.standard_errors("HC0"), pooled.bse, rtol=0.01)
    off = np.abs(res.params - pooled.params) / pooled.bse
    assert off.max() < 0.05
    spread = np.sqrt(((res.client_params - res.params) ** 2).mean()) / pooled.bse
    assert spread.max() < 0.05
    # What is reported is what there is: a Newton step is exact to second order, and bse differ by 1 % at most.
    assert_allclose(res.numerical_error["optimisation"], off.max(), rtol=0.03, atol=1e-5)
    assert_allclose(res.numerical_error["consensus"], spread.max(), rtol=0.02)
    assert_allclose(res.numerical_error["total"], res.numerical_error[["optimisation", "consensus"]].sum())


@pytest.mark.parametrize("tolerance", [2e-3, 5e-4])
def test_a_smaller_tolerance_is_met(tolerance):
    rows, net = Rows(), NETWORKS["circle"]
    res = rows.model(net).fit(ad.DFL(), tolerance=tolerance, max_rounds=100_000)
    pooled = sm.OLS(rows.y, rows.X).fit(cov_type="HC0")
    assert res.converged
    assert np.all(np.abs(res.params - pooled.params) < tolerance * pooled.bse)
    # The bias is proportional to the step: one that is much smaller than it need be wastes rounds.
    assert res.rounds < 20 / tolerance


def test_rare_events_converge_although_their_curvature_is_far_below_its_bound():
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(300 * M), rng.normal(size=(300 * M, 2))])
    y = (rng.random(len(X)) < special.expit(X @ [-4.0, 0.5, 0.0])).astype(float)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), 300))
    res = ad.DecentralizedGLM(data, NETWORKS["circle"], "binomial").fit(ad.DFL(), solver="rounds")
    pooled = sm.GLM(y, X, sm.families.Binomial()).fit(cov_type="HC0")
    assert y.mean() < 0.03
    assert res.converged
    assert np.all(np.abs(res.params - pooled.params) < 0.05 * pooled.bse)


def test_adaptive_defaults_converge_and_find_the_abnormal_clients():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=2, M=20, n=60, p=5)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 6)).fit(solver="rounds")
    assert res.converged
    assert res.client_weights[sim.abnormal].max() < 0.1
    normal = ~np.repeat(sim.abnormal, sim.sizes)
    oracle = sm.OLS(sim.y[normal], sim.X[normal]).fit(cov_type="HC0")
    # Weights within the normal clients differ a little, which moves the estimate by a fraction of its error.
    assert np.all(np.abs(res.params - oracle.params) < oracle.bse)


def test_too_few_rounds_are_reported():
    model = Rows().model(NETWORKS["circle"])
    with pytest.warns(ad.ConvergenceWarning, match=r"after 12 rounds, above tolerance=0\.05 .*: raise max_rounds"):
        res = model.fit(ad.DFL(), max_rounds=12)
    assert not res.converged
    assert res.rounds == 12


def test_the_bias_of_a_large_step_is_reported():
    model = Rows().model(NETWORKS["circle"])
    with pytest.warns(ad.ConvergenceWarning, match="the step leaves a bias; pass a smaller one or step='auto'") as seen:
        res = model.fit(ad.DFL(), step=0.3, solver="rounds")
    assert not res.converged
    assert len(seen) == 1
    assert f"{res.numerical_error['total']:.3g} standard errors" in str(seen[0].message)
    # It stopped because rounds no longer help, far from the limit on their number.
    assert res.rounds < 5000


def test_a_small_step_without_rounds_stops_when_the_error_is_small():
    res = Rows().model(NETWORKS["circle"]).fit(ad.DFL(), step=0.004, solver="rounds")
    assert res.converged
    assert res.step == 0.004
    assert res.rounds < 20_000


def test_the_trace_tells_how_the_run_went():
    rows, net = Rows(), NETWORKS["circle"]
    res = rows.model(net).fit(ad.DFL(), step=0.2, rounds=250)
    trace = res.trace
    assert list(trace.columns) == ["run", "round", "step", "moved", "consensus"]
    assert set(trace["run"]) == {0}
    assert set(trace["step"]) == {0.2}
    assert list(trace["round"]) == list(range(2, 251, 2))
    W = net.W.toarray()
    for line in (0, 15):
        done = int(trace["round"][line])
        before = rows.recursion(W, np.zeros((M, 3)), 0.2, done - 1)
        after = rows.recursion(W, before, 0.2, 1)
        assert_allclose(trace["moved"][line], np.linalg.norm(after - before, axis=1).max(), rtol=1e-9)
        assert_allclose(trace["consensus"][line], np.sqrt(after.var(axis=0).sum()), rtol=1e-9)


def test_constant_and_cut_only_ever_cuts():
    trace = Rows().model(NETWORKS["circle"]).fit(ad.DFL(), solver="rounds").trace
    assert (np.diff(trace["round"]) > 0).all()
    assert (np.diff(trace["step"]) <= 0).all()
    assert trace["step"].iloc[-1] < trace["step"].iloc[0]
