"""One Newton for weighted estimating equations, and one linear form of a round."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

import adfl_stats as ad
from adfl_stats.engine.equations import Equations, solve, stacked_solutions
from adfl_stats.engine.limit import limits, settle
from adfl_stats.engine.linearised import Iteration
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M, N, COLUMNS = 7, 30, 3


def drawn(family, seed=0, weights=False):
    """Clients of different sizes, with row weights if asked for."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(M), rng.integers(N // 2, 2 * N, M))
    X = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), COLUMNS - 1))])
    eta = X @ [0.3, 0.7, -0.5]
    if family == "multinomial":
        logits = np.column_stack([np.zeros(len(eta)), eta, X @ [-0.2, 0.1, 0.9]])
        y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(float)
    else:
        draw = {
            "gaussian": lambda: eta + rng.normal(size=len(eta)),
            "binomial": lambda: rng.binomial(1, special.expit(eta)).astype(float),
            "poisson": lambda: rng.poisson(np.exp(eta)).astype(float),
        }
        y = draw[family]()
    extra = {"weights": rng.uniform(0.5, 2.0, len(y))} if weights else {}
    return ad.ClientData.from_arrays(X, y, client, **extra)


def glm_of(family, **options):
    return GLM(drawn(family, **options), Family(family, outputs=2 if family == "multinomial" else 1))


def exact_curvature(data, family, theta, m):
    """Client m's mean Hessian in textbook form."""
    rows = slice(data.offsets[m], data.offsets[m + 1])
    X = data.X[rows]
    w = np.ones(len(X)) if data.row_weights is None else data.row_weights[rows]
    if family == "multinomial":
        share = special.softmax(np.column_stack([np.zeros(len(X)), X @ theta.reshape(2, -1).T]), axis=1)[:, 1:]
        blocks = [np.kron(np.diag(s) - np.outer(s, s), np.outer(x, x)) for s, x in zip(share, X, strict=True)]
        return np.tensordot(w, np.array(blocks), 1) / w.sum()
    mean = {"gaussian": np.ones_like, "binomial": special.expit, "poisson": np.exp}[family](X @ theta)
    variance = mean * (1.0 - mean) if family == "binomial" else mean
    return (X.T * (w * variance)) @ X / w.sum()


@pytest.mark.parametrize("runs", [1, 4])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "multinomial"])
def test_weighted_curvatures_are_sums_of_the_clients(family, runs):
    glm = glm_of(family, weights=True)
    rng = np.random.default_rng(1)
    theta, shares = rng.normal(size=glm.P) / 3, rng.uniform(size=(M, runs))
    shares[[0, 4]] = 0.0
    each = np.array([exact_curvature(glm.data, family, theta, m) for m in range(M)])
    assert_allclose(glm.weighted_curvatures(theta, shares), np.einsum("mr,mij->rij", shares, each), rtol=1e-12)


def test_rows_of_clients_without_a_share_are_not_computed_with():
    data = drawn("poisson")
    X = data.X.copy()
    X[data.offsets[2] : data.offsets[3]] *= 1e100
    client = np.repeat(np.arange(M), data.sizes)
    spoilt = GLM(ad.ClientData.from_arrays(X, data.y, client), Family("poisson"))
    shares = np.where(np.arange(M) == 2, 0.0, 1.0)[:, None]
    plain = solve(Equations(GLM(data, Family("poisson")), shares), np.zeros((1, COLUMNS)))
    with np.errstate(over="raise"):
        curvature = spoilt.weighted_curvatures(np.zeros(COLUMNS), shares)
    assert np.isfinite(curvature).all()
    found = solve(Equations(spoilt, shares), np.zeros((1, COLUMNS)))
    assert found.reached.all()
    assert_allclose(found.theta, plain.theta, rtol=1e-10)


def test_solutions_say_which_were_reached():
    """One set of weights is that of a client whose labels are separated: its loss has no minimum."""
    data = drawn("binomial")
    y = data.y.copy()
    y[: data.offsets[1]] = data.X[: data.offsets[1], 1] > 0.1
    client = np.repeat(np.arange(M), data.sizes)
    problem = Problem(GLM(ad.ClientData.from_arrays(data.X, y, client), Family("binomial")), ad.networks.complete(M))
    weights = np.stack([np.arange(M) == 0, np.arange(M) > 0], axis=1).astype(float)
    found = stacked_solutions(problem, weights * problem.relative_sizes[:, None], np.zeros((2, COLUMNS)))
    assert_array_equal(found.reached, [False, True])
    known = sm.GLM(y[data.offsets[1] :], data.X[data.offsets[1] :], sm.families.Binomial()).fit(tol=1e-14)
    assert_allclose(found.theta[1], known.params, rtol=1e-8)


@pytest.mark.parametrize("rows", ["many", "few"])
@pytest.mark.parametrize("family", ["binomial", "poisson", "multinomial"])
def test_the_linear_form_is_the_derivative_of_a_round(family, rows):
    """Also where the clients stand apart: each client's curvature is then taken where its gradient is."""
    glm = glm_of(family)
    if rows == "few":
        data = glm.data
        keep = np.concatenate([np.arange(low, low + 2) for low in data.offsets[:-1]])
        client = np.repeat(np.arange(M), 2)
        glm = GLM(ad.ClientData.from_arrays(data.X[keep], data.y[keep], client), glm.family)
    problem = Problem(glm, ad.networks.directed_circle(M, 2))
    metric = np.eye(COLUMNS) + 0.1 * np.ones((COLUMNS, COLUMNS))
    runs = Iteration(problem, [problem.steps(np.linspace(0.3, 1.0, M))], 0.4, metric)
    rng = np.random.default_rng(3)
    theta, x = rng.normal(size=(M, 1, glm.P)) / 2, rng.normal(size=(M, 1, glm.P))
    runs.linearise(problem.network.W @ theta[:, 0])
    reach = 1e-5
    slope = (runs.advance(theta + reach * x) - runs.advance(theta - reach * x)) / (2.0 * reach)
    assert_allclose(runs.apply(x), slope, atol=1e-8)
    b = rng.normal(size=x.shape)
    solved = runs.solve(b, 1e-11)
    assert_allclose(solved - runs.apply(solved), b, atol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_a_limit_carried_from_step_to_step_is_the_limit_at_the_last_step(family):
    problem = Problem(glm_of(family), ad.networks.directed_circle(M, 2))
    steps = problem.steps(np.linspace(0.2, 1.0, M))
    start = np.zeros((M, COLUMNS))
    run = settle(problem, start, steps, Plan(solver="limit", tolerance=0.01))
    assert (run.solver, len(run.trace) > 1) == ("limit", True), "more than one step was needed"
    metric, _ = problem.coordinates(start.mean(axis=0), steps.weights)
    fresh = limits(problem, np.zeros((M, 1, COLUMNS)), [steps], run.step, metric)
    assert_allclose(run.theta, fresh.theta[:, 0], atol=1e-10)
