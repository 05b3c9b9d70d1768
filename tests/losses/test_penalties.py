"""Ridge: closed forms, scipy's minima, statsmodels, and what it leaves alone."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg, optimize, special

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.penalties import Lasso
from adfl_stats.methods.ubar import client_losses

M = 10
SIZES = np.array([30, 55, 24, 80, 41, 33, 60, 28, 37, 52])
NET = ad.networks.erdos_renyi(M, 0.5, seed=5).metropolis()
CIRCLE = ad.networks.directed_circle(M, 4)
FINE = {"solver": "limit", "tolerance": 1e-5, "heterogeneity": "none"}


def design(family, p=3, sizes=SIZES, seed=0):
    return ad.simulate.glm_design(family, M=M, n=list(sizes), p=p, intercept=True, seed=seed)


def model_of(sim, penalty, network=NET, family="gaussian", **options):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, network, family, penalty=penalty, **options)


def by_hand(sim, c, weights=None):
    """The minimum of the weighted mean of half the squared residuals, plus c theta^2 / 2."""
    w = np.ones(len(sim.y)) if weights is None else weights[sim.client]
    return np.linalg.solve((sim.X.T * w) @ sim.X / w.sum() + np.diag(c), (sim.X.T * w) @ sim.y / w.sum())


# ------------------------------------------------------------------ estimates


@pytest.mark.parametrize("solver", ["limit", "rounds"])
def test_gaussian_ridge_has_its_closed_form(solver):
    sim = design("gaussian")
    res = model_of(sim, ad.Ridge(0.3)).fit(
        ad.Extra() if solver == "rounds" else ad.DFL(), **(FINE | {"solver": solver, "tolerance": 1e-6})
    )
    # The constant is free.
    assert_allclose(res.params, by_hand(sim, [0.0, 0.3, 0.3, 0.3]), rtol=0, atol=1e-6)
    assert res.converged


@pytest.mark.parametrize("network", [NET, CIRCLE])
def test_weights_keep_the_penalty_beside_the_mean_loss(network):
    sim, c, omega = design("gaussian"), np.array([0.1, 0.0, 0.5, 0.2]), np.linspace(0.1, 1.0, M)
    res = model_of(sim, ad.Ridge(c), network).fit(ad.DFL(weights=omega), **FINE)
    assert_allclose(res.params, by_hand(sim, c, omega), rtol=0, atol=1e-6)


def test_clients_that_count_once_share_it_too():
    sim, c = design("gaussian"), np.full(4, 0.2)
    res = model_of(sim, ad.Ridge(c), weighting="client").fit(ad.DFL(), **FINE)
    assert_allclose(res.params, by_hand(sim, c, 1.0 / SIZES), rtol=0, atol=1e-6)


LOSSES = {
    "binomial": lambda eta, y: np.logaddexp(0.0, eta) - y * eta,
    "poisson": lambda eta, y: np.exp(eta) - y * eta,
}


@pytest.mark.parametrize("family", LOSSES)
def test_minima_are_those_of_scipy(family):
    sim, c = design(family), np.array([0.05, 0.1, 0.0, 0.4])

    def value(theta):
        return LOSSES[family](sim.X @ theta, sim.y).mean() + 0.5 * (c * theta**2).sum()

    best = optimize.minimize(value, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    res = model_of(sim, ad.Ridge(c), family=family).fit(ad.DFL(), **FINE)
    assert_allclose(res.params, best.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_it_is_the_alpha_of_statsmodels(family):
    sim, c = design(family), np.array([0.0, 0.1, 0.1, 0.1])
    res = model_of(sim, ad.Ridge(0.1), family=family).fit(ad.DFL(), **FINE)
    if family == "gaussian":
        theirs = sm.OLS(sim.y, sim.X).fit_regularized(alpha=c, L1_wt=0.0)
    else:
        kind = {"binomial": sm.families.Binomial, "poisson": sm.families.Poisson}[family]
        theirs = sm.GLM(sim.y, sim.X, kind()).fit_regularized(alpha=c, L1_wt=0.0, opt_method="Newton-CG")
    assert_allclose(res.params, theirs.params, rtol=0, atol=1e-6)


def test_multinomial_classes_are_penalised_alike_and_their_constants_free():
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(SIZES.sum()), rng.normal(size=(SIZES.sum(), 2))])
    y = rng.integers(0, 3, size=len(X))
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), SIZES))
    res = ad.DecentralizedGLM(data, NET, "multinomial", penalty=ad.Ridge(0.2)).fit(ad.DFL(), **FINE)
    c = np.array([0.0, 0.2, 0.2, 0.0, 0.2, 0.2])
    assert_array_equal(res.penalty, c)

    def value(theta):
        eta = np.column_stack([np.zeros(len(X)), X @ theta.reshape(2, 3).T])
        return (special.logsumexp(eta, axis=1) - eta[np.arange(len(X)), y]).mean() + 0.5 * (c * theta**2).sum()

    best = optimize.minimize(value, np.zeros(6), method="BFGS", options={"gtol": 1e-9})
    assert_allclose(res.params, best.x, rtol=0, atol=1e-6)


# By Gram matrices, by rows (more columns than rows a client), and by the family's own residuals.
@pytest.mark.parametrize(("family", "p", "n"), [("gaussian", 3, 40), ("gaussian", 12, 8), ("binomial", 3, 40)])
@pytest.mark.parametrize("method", [ad.DFL(), ad.Bridge("median")], ids=["DFL", "BRIDGE-M"])
@pytest.mark.filterwarnings("ignore:10 client.s. have fewer rows")
def test_rounds_are_those_written_out(family, p, n, method):
    sim = design(family, p=p, sizes=[n] * M)
    c = np.linspace(0.0, 0.5, p + 1)
    res = model_of(sim, ad.Ridge(c), CIRCLE, family).fit(method, step=0.05, rounds=30)
    X, y = sim.X.reshape(M, n, -1), sim.y.reshape(M, n)
    W, mean = CIRCLE.W.toarray(), special.expit if family == "binomial" else lambda eta: eta
    pools = [np.concatenate([[m], np.flatnonzero((W[m] > 0) & (np.arange(M) != m))]) for m in range(M)]
    theta = np.zeros((M, p + 1))
    for _ in range(30):
        at = W @ theta if method.name == "DFL" else np.stack([np.median(theta[pool], axis=0) for pool in pools])
        slope = np.einsum("mij,mi->mj", X, mean(np.einsum("mij,mj->mi", X, at)) - y) / n + c * at
        theta = at - 0.05 * slope
    assert_allclose(res.client_params, theta, rtol=1e-9, atol=1e-12)


def test_no_penalty_is_none_to_the_bit():
    sim = design("binomial")
    plain = model_of(sim, None, family="binomial").fit(ad.DFL(), step=0.1, rounds=40)
    zero = model_of(sim, ad.Ridge(0.0), family="binomial").fit(ad.DFL(), step=0.1, rounds=40)
    assert_array_equal(zero.client_params, plain.client_params)
    assert_array_equal(zero.bse, plain.bse)
    assert zero.penalty is None


def test_a_formula_names_its_coefficients():
    sim = design("gaussian")
    frame = sim.frame().drop(columns="const")
    make = ad.DecentralizedGLM.from_formula
    res = make("y ~ x1 + x2 + x3", frame, "client", NET, penalty=ad.Ridge({"x2": 0.7})).fit(ad.DFL(), **FINE)
    assert res.penalty.to_dict() == {"Intercept": 0.0, "x1": 0.0, "x2": 0.7, "x3": 0.0}
    assert_allclose(res.params, by_hand(sim, [0.0, 0.0, 0.7, 0.0]), rtol=0, atol=1e-6)
    free = make("y ~ x1 + x2 + x3", frame, "client", NET, penalty=ad.Ridge(0.3)).fit(ad.DFL(), **FINE)
    assert free.penalty["Intercept"] == 0.0


# ------------------------------------------------------------------ inference


@pytest.fixture(scope="module")
def gaussian():
    return design("gaussian")


@pytest.fixture(scope="module")
def ridge(gaussian):
    return model_of(gaussian, ad.Ridge(0.3)).fit(ad.DFL(), **FINE)


C = np.diag([0.0, 0.3, 0.3, 0.3])


def test_standard_errors_are_the_sandwich_of_the_penalised_curvature(gaussian, ridge):
    X, N = gaussian.X, len(gaussian.y)
    residual = gaussian.y - X @ by_hand(gaussian, np.diag(C))
    bread = np.linalg.inv(X.T @ X / N + C)
    # Each row has its share of the penalty, so that the scores add up to zero at the estimate.
    rows = C @ by_hand(gaussian, np.diag(C)) - X * residual[:, None]
    assert_allclose(rows.sum(axis=0), 0.0, atol=1e-8)
    meat = rows.T @ rows / N**2
    assert_allclose(ridge.cov_params(cov_type="sandwich"), bread @ meat @ bread, rtol=1e-5)
    scale = residual @ residual / (N - 4)
    model = scale * bread @ (X.T @ X / N**2) @ bread
    assert_allclose(ridge.cov_params(cov_type="nonrobust"), model, rtol=1e-5)
    scores = np.stack(
        [X[gaussian.client == m].T @ residual[gaussian.client == m] - SIZES[m] * C @ ridge.params for m in range(M)]
    )
    correction = M / (M - 1) * (N - 1) / (N - 4)
    by_client = correction * bread @ (scores.T @ scores) @ bread / N**2
    assert_allclose(ridge.cov_params(cov_type="CR1"), by_client, rtol=1e-5)


def test_logistic_standard_errors_are_written_out():
    sim, c = design("binomial"), 0.05
    res = model_of(sim, ad.Ridge(c), family="binomial").fit(ad.DFL(), **FINE)
    mu = special.expit(sim.X @ res.params.to_numpy())
    N = len(mu)
    bread = np.linalg.inv((sim.X.T * (mu * (1 - mu))) @ sim.X / N + np.diag([0.0, c, c, c]))
    rows = np.array([0.0, c, c, c]) * res.params.to_numpy() - sim.X * (sim.y - mu)[:, None]
    meat = rows.T @ rows / N**2
    assert_allclose(res.cov_params(cov_type="sandwich"), bread @ meat @ bread, rtol=1e-5)


def test_the_jackknife_refits_without_each_client(gaussian, ridge):
    rest = [by_hand(gaussian, np.diag(C), (np.arange(M) != m).astype(float)) for m in range(M)]
    apart = np.array(rest) - ridge.params.to_numpy()
    assert_allclose(ridge.cov_params(cov_type="CR3"), (M - 1) / M * apart.T @ apart, rtol=1e-4)


def test_cr2_is_unbiased_where_there_is_no_bias_of_the_estimate():
    """With theta_0 = 0 and unit noise, the mean of the CR2 covariance is that of the estimate, B B' for theta = B y.

    Both are quadratic in y: the mean is the sum over unit vectors in the place of y.
    """
    rng = np.random.default_rng(2)
    sizes = [4, 6, 5, 8, 7]
    N, client = sum(sizes), np.repeat(np.arange(5), sizes)
    X, c = rng.normal(size=(N, 2)), np.array([0.4, 0.1])
    net = ad.networks.complete(5)
    mean = np.zeros((2, 2))
    for j in range(N):
        data = ad.ClientData.from_arrays(X, np.eye(N)[j], client)
        res = ad.DecentralizedGLM(data, net, penalty=ad.Ridge(c)).fit(ad.DFL(), **(FINE | {"tolerance": 1e-4}))
        mean += res.cov_params(cov_type="CR2").to_numpy()
    B = np.linalg.solve(X.T @ X / N + np.diag(c), X.T / N)
    assert_allclose(mean, B @ B.T, rtol=1e-3)


def test_effective_parameters_count_in_the_criteria(gaussian, ridge):
    G = gaussian.X.T @ gaussian.X / len(gaussian.y)
    effective = np.trace(np.linalg.solve(G + C, G))
    assert_allclose(ridge.aic, -2.0 * ridge.llf + 2.0 * effective, rtol=1e-8)
    assert_allclose(ridge.bic, -2.0 * ridge.llf + np.log(SIZES.sum()) * effective, rtol=1e-8)
    text = " ".join(ridge.summary().as_text().split())
    assert f"c = 0.3, none for 'x1'; {effective:.1f} of 4 parameters are left in effect" in text
    assert "not its bias towards zero" in text


def test_the_oracle_is_penalised_alike():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=M, n=50, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, NET, penalty=ad.Ridge(np.full(3, 0.4))).fit(ad.Oracle(sim.abnormal), **FINE)
    told = res.oracle(sim.abnormal, data=data)
    assert_allclose(told.coefficients["oracle"], by_hand(sim, np.full(3, 0.4), 1.0 - sim.abnormal), atol=1e-8)
    assert abs(told.coefficients["distance"]).max() < 1e-5


# ------------------------------------------------------------------ clients


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_clients_are_judged_without_it(family):
    """Whatever the penalty, weights and p-values are those of the model without it."""
    sim = design(family, sizes=[300] * M, seed=4)
    y = sim.y.copy()
    y[sim.client == 3] = 1.0 - y[sim.client == 3] if family == "binomial" else -y[sim.client == 3] + 5.0
    data = ad.ClientData.from_arrays(sim.X, y, sim.client)
    plain, strong = (
        ad.DecentralizedGLM(data, NET, family, penalty=penalty).fit(ad.ADFL(), **FINE)
        for penalty in (None, ad.Ridge(1.0))
    )
    assert np.linalg.norm(strong.params) < 0.8 * np.linalg.norm(plain.params)
    assert_array_equal(plain.client_weights < 0.5, np.arange(M) == 3)
    assert_allclose(strong.client_weights, plain.client_weights, atol=1e-8)
    theirs, ours = (ad.screen(res).to_frame() for res in (plain, strong))
    assert_allclose(ours["p_value"], theirs["p_value"], rtol=1e-3, atol=1e-12)
    assert_allclose(ours["mirror"], theirs["mirror"], rtol=1e-3, atol=1e-3)


def test_the_norm_of_the_paper_is_that_of_the_penalised_loss():
    sim, c, lam = design("gaussian"), np.full(4, 0.5), 3.0
    start = np.array([0.2, -0.1, 0.3, 0.0])
    res = model_of(sim, ad.Ridge(c)).fit(ad.ADFL(lam=lam, stages=1, init=start), step=0.1, rounds=5)
    slopes = [
        sim.X[sim.client == m].T @ (sim.X[sim.client == m] @ start - sim.y[sim.client == m]) / SIZES[m] + c * start
        for m in range(M)
    ]
    weights = np.exp(-lam * np.linalg.norm(slopes, axis=1))
    assert_allclose(res.client_weights, weights / weights.max(), rtol=1e-9)


@pytest.mark.parametrize("method", [ad.TrimmedScores(), ad.ADFL(lam="cv", equalise=False), ad.UBAR(), ad.Bridge()])
def test_other_methods_run_with_it(method):
    sim = design("binomial")
    res = model_of(sim, ad.Ridge(0.5), family="binomial").fit(method, step=0.2, rounds=200)
    plain = model_of(sim, None, family="binomial").fit(method, step=0.2, rounds=200)
    assert np.linalg.norm(res.params[1:]) < 0.8 * np.linalg.norm(plain.params[1:])
    assert len(ad.screen(res).to_frame()) == M


def test_values_and_gradients_of_the_losses_agree():
    sim = design("binomial")
    model = model_of(sim, ad.Ridge(0.4), family="binomial")
    problem = Problem(GLM(model.data, model.family, model.penalty), NET)
    theta = np.array([0.3, -0.2, 0.5, 0.1])
    for m in (0, 4):
        moved = optimize.approx_fprime(theta, lambda x, m=m: client_losses(problem, m, x[None])[0], 1e-7)
        assert_allclose(moved, problem.gradients(np.tile(theta, (M, 1)))[m], atol=1e-6)


# ------------------------------------------------------------------ theory and files


def test_rates_are_those_of_the_penalised_recursion():
    sim = design("gaussian", sizes=[40] * M)
    c = np.array([0.0, 0.3, 0.3, 0.3])
    model = model_of(sim, ad.Ridge(c), CIRCLE)
    res = model.fit(ad.DFL(), step=0.1, rounds=100)
    X = sim.X.reshape(M, 40, 4)
    blocks = linalg.block_diag(*(np.eye(4) - 0.1 * (x.T @ x / 40 + np.diag(c)) for x in X))
    A = blocks @ np.kron(CIRCLE.W.toarray(), np.eye(4))
    assert_allclose(model.rates(res).exact, np.abs(np.linalg.eigvals(A)).max(), rtol=1e-6)
    assert len(res.check().checks) > 5
    assert np.isfinite(model.advise().step)


def test_files_keep_it(tmp_path, ridge):
    ridge.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit.npz")
    assert_array_equal(again.penalty, ridge.penalty)
    assert_array_equal(again.cov_params(cov_type="CR2"), ridge.cov_params(cov_type="CR2"))
    assert again.aic == ridge.aic
    assert str(again.summary()) == str(ridge.summary())


# ------------------------------------------------------------------ the penalty itself


def test_prox_of_the_lasso_minimises():
    """Coordinate by coordinate on a grid: a kink has no gradient that a minimiser could follow."""
    penalty, theta, step = Lasso(0.5), np.array([1.0, -2.0, 0.3, -0.2]), 0.7
    grid = np.linspace(-3.0, 3.0, 60_001)
    values = 0.5 * np.abs(grid) + (grid - theta[:, None]) ** 2 / (2.0 * step)
    assert_allclose(penalty.prox(theta, step), grid[values.argmin(axis=1)], atol=1e-4)
    assert penalty.prox(theta, step)[2] == 0.0
    assert_allclose(penalty.gradient(theta), optimize.approx_fprime(theta, penalty.value, 1e-7), atol=1e-5)
    assert not penalty.curvature(theta).any()


def test_prox_minimises():
    penalty, theta, step = ad.Ridge(np.array([0.0, 0.5, 2.0])), np.array([1.0, -2.0, 3.0]), 0.7

    def value(x):
        return penalty.value(x) + ((x - theta) ** 2).sum() / (2.0 * step)

    best = optimize.minimize(value, theta, options={"gtol": 1e-9})
    assert_allclose(penalty.prox(theta, step), best.x, atol=1e-6)
    assert_allclose(penalty.gradient(theta), optimize.approx_fprime(theta, penalty.value, 1e-7), atol=1e-5)
    assert_array_equal(penalty.curvature(theta), [0.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("c", "kind", "what"),
    [
        (-0.1, ValueError, r"c is -0.1; it must lie in \[0, inf\)"),
        (np.inf, ValueError, "c is inf"),
        ("0.1", TypeError, "c must be a number, got '0.1'"),
        ([0.1, -1.0], ValueError, "c holds -1.0; penalties are finite and at least zero"),
        ({"x1": np.nan}, ValueError, "c holds nan"),
        (np.ones((2, 2)), ValueError, r"c has shape \(2, 2\); one number for each coefficient"),
        (["a", "b"], TypeError, "c must hold numbers"),
    ],
)
def test_wrong_numbers_are_refused(c, kind, what):
    with pytest.raises(kind, match=what):
        ad.Ridge(c)


@pytest.mark.parametrize(
    ("penalty", "kind", "what"),
    [
        (ad.Ridge([0.1, 0.2]), ValueError, "penalty has 2 numbers; one, or one for each of the 4 coefficients 'x1'"),
        (ad.Ridge({"x1": 0.1, "age": 0.2}), ValueError, "penalty names 'age'; the coefficients are 'x1', 'x2'"),
        (ad.Ridge(pd.Series([0.1, 0.2], ["x1", "x1"])), ValueError, "penalty names 'x1' twice"),
        (0.1, TypeError, r"penalty is 0.1; pass a penalty such as ad.Ridge\(0.1\)"),
        (ad.Ridge, TypeError, "penalty is <class"),
    ],
)
def test_penalties_that_do_not_suit_the_model_are_refused(penalty, kind, what):
    with pytest.raises(kind, match=what):
        model_of(design("gaussian"), penalty)


def test_ridge_is_finite_where_covariates_separate_the_responses():
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(320), rng.normal(size=(320, 2))])
    y, c = (X[:, 1] > 0.0).astype(float), np.array([0.0, 0.1, 0.1])
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(8), 40))
    with pytest.warns(ad.ConditionWarning, match="separate perfectly"):
        model = ad.DecentralizedGLM(data, ad.networks.directed_circle(8, 3), "binomial", penalty=ad.Ridge(0.1))
    res = model.fit()

    def loss(theta):
        eta = X @ theta
        return np.mean(np.logaddexp(0.0, eta) - y * eta) + 0.5 * c @ theta**2

    wanted = optimize.minimize(loss, np.zeros(3), tol=1e-10).x
    assert (np.abs(res.params - wanted) < 0.1 * res.bse).all()


@pytest.mark.parametrize("wide", [False, True], ids=["a column twice", "more columns than rows"])
def test_columns_that_only_a_penalty_identifies_are_refused_with_the_reason(wide):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 50 if wide else 3))
    X[:, 2] = X[:, 1]
    data = ad.ClientData.from_arrays(X, rng.normal(size=40), np.repeat(np.arange(M), 4))
    with pytest.raises(ValueError, match=r"linearly dependent .* Leave out one of each such set of columns$"):
        ad.DecentralizedGLM(data, CIRCLE)
    with pytest.raises(ValueError, match=r"the penalty does not replace them, as clients are tested .* without it"):
        ad.DecentralizedGLM(data, CIRCLE, penalty=ad.Ridge(1.0))
