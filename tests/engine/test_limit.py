"""The limit, solved for directly, against dense algebra and against rounds carried to convergence."""

import warnings

import numpy as np
import pytest
from scipy import sparse

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine import linearised
from adfl_stats.engine.limit import limits
from adfl_stats.engine.linearised import limit_preconditioner
from adfl_stats.engine.numerical_error import _variances
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange
from adfl_stats.errors import ConvergenceWarning, DivergenceError
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M, P = 12, 4
FAMILIES = ["gaussian", "binomial", "poisson", "gamma", "negativebinomial", "multinomial", "huber"]


def response(family, eta, rng):
    if family in ("gaussian", "huber"):
        return eta + rng.normal(size=len(eta))
    if family == "binomial":
        return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    if family == "gamma":
        return rng.gamma(2.0, np.exp(eta) / 2.0)
    if family == "multinomial":
        return rng.integers(0, 3, len(eta)).astype(float)
    return rng.poisson(np.exp(eta)).astype(float)


def task(family, seed=3, low=15, high=40, network=None, **columns):
    """Unequal clients, one of them corrupted, on a directed unbalanced network."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(low, high, M)
    X = np.column_stack([np.ones(sizes.sum()), rng.normal(size=(sizes.sum(), P - 1))])
    y = response(family, X @ np.array([0.2, 0.5, -0.4, 0.3]), rng)
    if family != "gamma":
        y[: sizes[0]] = rng.permutation(y[: sizes[0]])
    extra = {name: make(rng, len(y)) for name, make in columns.items()}
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), sizes), **extra)
    network = network or ad.networks.erdos_renyi(M, 0.3, seed=5)
    par = {"negativebinomial": 0.5, "huber": 1.345}.get(family, 0.0)
    chosen = Family(family, par=par, outputs=2 if family == "multinomial" else 1)
    return Problem(GLM(data, chosen), network)


def carried_to_rest(problem, steps, step, most=400_000):
    """Rounds until nothing moves any more than rounding."""
    theta = np.zeros((problem.M, 1, problem.P))
    each = np.ascontiguousarray((step * steps.factors)[:, None])
    moved = np.empty((1000, 1))
    for _ in range(most // 1000):
        _kernels.rounds(Exchange(problem).combiner, problem.glm.loss(), theta, each, 1000, moved, np.array([np.inf]), 1)
        if moved[-1, 0] < 1e-14:
            return theta[:, 0]
    raise AssertionError("the rounds did not come to rest")


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("step", [0.3, 0.01])
def test_gaussian_limit_solves_the_stacked_system(step, balance):
    problem = task("gaussian")
    weights = np.linspace(0.1, 1.0, M)
    steps = problem.steps(weights, balance=balance)
    found = limits(problem, np.zeros((M, 1, P)), [steps], step)
    assert found.reached
    data = problem.glm.data
    H, c = np.zeros((M * P, M * P)), np.zeros(M * P)
    for m in range(M):
        rows, at = slice(data.offsets[m], data.offsets[m + 1]), slice(m * P, (m + 1) * P)
        H[at, at] = data.X[rows].T @ data.X[rows] / data.totals[m]
        c[at] = data.X[rows].T @ data.y[rows] / data.totals[m]
    own = np.kron(np.diag(step * steps.factors), np.eye(P))
    mix = np.kron(problem.network.W.toarray(), np.eye(P))
    exact = np.linalg.solve(np.eye(M * P) - (np.eye(M * P) - own @ H) @ mix, own @ c)
    np.testing.assert_allclose(found.theta[:, 0].ravel(), exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_limit_is_where_rounds_come_to_rest(family):
    problem = task(family)
    steps = problem.steps(np.linspace(0.2, 1.0, M))
    found = limits(problem, np.zeros((M, 1, problem.P)), [steps], 0.1)
    assert found.reached
    assert found.passes < 400
    np.testing.assert_allclose(found.theta[:, 0], carried_to_rest(problem, steps, 0.1), atol=1e-8)


@pytest.mark.parametrize(
    "columns",
    [
        {"offset": lambda rng, n: rng.normal(size=n) / 4},
        {"weights": lambda rng, n: rng.uniform(0.5, 2.0, n)},
    ],
    ids=["offset", "weights"],
)
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_offsets_and_weights_take_part(family, columns):
    problem = task(family, **columns)
    steps = problem.steps(np.ones(M))
    found = limits(problem, np.zeros((M, 1, P)), [steps], 0.05)
    assert found.reached
    np.testing.assert_allclose(found.theta[:, 0], carried_to_rest(problem, steps, 0.05), atol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_clients_with_fewer_rows_than_columns(family):
    problem = task(family, low=2, high=4)
    steps = problem.steps(np.ones(M))
    found = limits(problem, np.zeros((M, 1, P)), [steps], 0.1)
    assert found.reached
    np.testing.assert_allclose(found.theta[:, 0], carried_to_rest(problem, steps, 0.1), atol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "multinomial"])
def test_runs_together_are_runs_apart(family):
    problem = task(family)
    trust = [np.ones(M), np.linspace(0.0, 1.0, M), np.where(np.arange(M) == 0, 0.0, 1.0)]
    steps = [problem.steps(weights, balance=k == 1) for k, weights in enumerate(trust)]
    together = limits(problem, np.zeros((M, 3, problem.P)), steps, 0.1)
    assert together.reached
    for k, one in enumerate(steps):
        apart = limits(problem, np.zeros((M, 1, problem.P)), [one], 0.1)
        np.testing.assert_allclose(together.theta[:, k], apart.theta[:, 0], atol=1e-9)


def test_runs_share_the_passes():
    problem = task("gaussian")
    grid = [problem.steps(np.where(np.arange(M) == 0, weight, 1.0)) for weight in np.linspace(0, 1, 8)]
    together = limits(problem, np.zeros((M, 8, P)), grid, 0.05)
    alone = limits(problem, np.zeros((M, 1, P)), grid[:1], 0.05)
    # One by one they would need eight times as many.
    assert together.passes < 2 * alone.passes


def test_large_networks_without_a_dense_matrix():
    network = ad.networks.directed_circle(1500, 4)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500 * 6, 2))
    data = ad.ClientData.from_arrays(X, X @ [1.0, -1.0] + rng.normal(size=len(X)), np.repeat(np.arange(1500), 6))
    problem = Problem(GLM(data, Family("gaussian")), network)
    steps = problem.steps(np.ones(1500))
    found = limits(problem, np.zeros((1500, 1, 2)), [steps], 0.05)
    assert found.reached
    S, b = problem.glm.gram()
    own = sparse.block_diag([0.05 * S[m, :, :2] for m in range(1500)])
    eye = sparse.eye_array(3000)
    system = eye - (eye - own) @ sparse.kron(network.W, np.eye(2))
    left = system @ found.theta[:, 0].ravel() - 0.05 * b.ravel()
    assert np.abs(left).max() < 1e-12


# ---- the user's call ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=2, M=30, n=60, p=5)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(30, 5))


def test_fit_by_limit_is_fit_by_many_rounds(model):
    by_limit = model.fit(ad.DFL(), step=0.05, solver="limit", tolerance=10)
    by_rounds = model.fit(ad.DFL(), step=0.05, rounds=3000)
    np.testing.assert_allclose(by_limit.client_params, by_rounds.client_params, atol=1e-8)
    assert (by_limit.solver, by_rounds.solver) == ("limit", "rounds")
    assert by_limit.rounds < 100
    text = str(by_limit.summary())
    assert "Passes to limit:" in text
    assert "solved for directly" in text


def test_automatic_step_keeps_the_tolerance(model):
    by_limit, by_rounds = model.fit(), model.fit(solver="rounds")
    assert by_limit.converged
    assert float(((by_limit.params - by_rounds.params) / by_rounds.bse).abs().max()) < 0.2
    np.testing.assert_allclose(by_limit.client_weights, by_rounds.client_weights, atol=0.05)


def test_theory_knows_that_no_rounds_were_run(model):
    res = model.fit(ad.DFL(), step=0.05, solver="limit", tolerance=10)
    rates = model.rates(res)
    assert np.isnan(rates.fitted)
    assert "no rounds were run: the limit was solved for directly" in str(rates)
    assert res.check()["Err1"].value == 0.0
    tuned = " ".join(str(model.fit(ad.ADFL(lam="cv"), solver="limit").check()).split())
    assert "replaced the weights of lambda by probabilities" in tuned


def test_limit_survives_saving(model, tmp_path):
    res = model.fit(ad.DFL(), solver="limit")
    res.save(tmp_path / "fit.npz")
    assert ad.load(tmp_path / "fit.npz").solver == "limit"


def test_default_takes_the_limit_where_there_is_one(model):
    assert model.fit().solver == model.fit(ad.DFL(), step=0.05, tolerance=10).solver == "limit"
    in_rounds = [{"rounds": 20}, {"max_rounds": 5000}, {"attack": ad.attacks.SignFlip(clients=[0])}]
    for words in in_rounds:
        res = model.fit(ad.DFL(), tolerance=10, **words)
        assert res.solver == "rounds"
        assert np.isnan(res.rounds_needed)
    assert model.fit(ad.Bridge("median")).solver == "rounds"


@pytest.mark.parametrize("network", [None, ad.networks.directed_circle(M, 2)])
def test_rounds_needed_are_those_that_rounds_take(network):
    """In a Gaussian model with balanced W the mean is a linear recursion of its own, and the count exact."""
    problem = task("gaussian", network=network)
    model = ad.DecentralizedGLM(problem.glm.data, problem.network)
    limit = model.fit(ad.DFL(), step=0.004, tolerance=0.05, solver="limit")

    def off(rounds):
        res = model.fit(ad.DFL(), step=0.004, rounds=rounds)
        return float(((res.params - limit.params) / limit.bse).abs().max())

    count = int(limit.rounds_needed)
    exact = 0 if network is not None else count // 20
    assert off(count + exact) <= 0.05 < off(count - exact - 1)
    text = " ".join(str(limit.summary()).split())
    assert f"would need about {float(f'{count:.2g}'):,.0f} rounds at this step" in text


def test_medians_have_no_limit(model):
    with pytest.raises(ValueError, match="solver='limit': BRIDGE-M has no smooth limit"):
        model.fit(ad.Bridge("median"), solver="limit")
    assert model.fit(ad.DFL(init=ad.Bridge("median")), solver="limit").solver == "limit"


def test_rounds_and_limit_exclude_each_other(model):
    with pytest.raises(ValueError, match="rounds=10 was given with solver='limit'"):
        model.fit(rounds=10, solver="limit")
    with pytest.raises(ValueError, match="solver"):
        model.fit(solver="newton")
    with pytest.raises(ValueError, match="attack was given with solver='limit'"):
        model.fit(solver="limit", attack=ad.attacks.SignFlip(clients=[0]))


def test_unstable_fixed_point_is_not_called_a_limit(model):
    with pytest.warns(ConvergenceWarning, match="no limit was found at step=50"), pytest.raises(DivergenceError):
        model.fit(ad.DFL(), step=50.0, solver="limit")


def test_step_that_leaves_a_bias_is_named(model):
    with pytest.warns(ConvergenceWarning, match="standard errors in the limit, .*the step leaves a bias"):
        model.fit(ad.DFL(), step=0.5, solver="limit")


def test_a_coefficient_that_nobody_identifies_does_not_stop_the_preconditioner():
    sim = ad.simulate.paper_linear(0.0, None, seed=1, M=6, n=20, p=2)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    problem = Problem(GLM(data, Family("gaussian")), ad.networks.complete(6))
    apply = limit_preconditioner(problem, np.diag([0.5, 0.0])[None])
    found = apply(np.ones((6, 1, 2)))
    # Everybody agrees: only the consensus part is left, and there the first coefficient is divided by .5.
    np.testing.assert_allclose(found[:, 0], np.tile([2.0, 0.0], (6, 1)), atol=1e-12)


@pytest.mark.parametrize("dense", [300, 2], ids=["dense", "sparse"])
def test_a_limit_without_influential_weight_is_refused(dense, monkeypatch):
    """All hear client 0 alone, and it has no weight: nothing moves the consensus. SuperLU has an error of its own."""
    monkeypatch.setattr(linearised, "DENSE", dense)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), rng.normal(size=300)
    star = np.zeros((10, 10))
    star[:, 0] = 1.0
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(10), 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ad.DecentralizedGLM(data, ad.Network.from_adjacency(star))
        with pytest.raises(ValueError, match="the network's limit is not determined: no client with weight has influ"):
            model.fit(ad.Oracle([0]))


def test_variances_are_not_negative_by_rounding():
    """A meat of rank one seen through a nearly singular bread: exact by the client's one score."""
    rng = np.random.default_rng(3)
    score, bread = rng.normal(size=4), np.diag([1.0, 1e7, 1e-7, 1.0])
    meat = np.outer(score, score)
    covariance = bread @ meat @ bread
    covariance[2, 2] = -1e-20
    assert _variances(bread, meat, covariance) == pytest.approx((bread @ score) ** 2, rel=1e-6)
    assert np.array_equal(_variances(bread, meat, np.abs(covariance)), np.abs(np.diag(covariance)))
