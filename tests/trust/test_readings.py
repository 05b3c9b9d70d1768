"""Readings of clients by the likelihood of their rows, against quadrature, dense algebra and known truth."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, special

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import EVERYBODY
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.simulate.field_designs import draw
from adfl_stats.trust.comparison import Proposal, best_reading
from adfl_stats.trust.laplace import ClientLikelihoods, expanded
from adfl_stats.trust.reading_fits import fit_reading, probabilities
from adfl_stats.trust.readings import Clients, altered, law_of


def random_effects(family, M, n, sd, constant, seed, flipped=0):
    """Clients with a normal random intercept, the first ones with flipped labels; X, y and the client of each row."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(M), n)
    X = np.column_stack([np.ones(M * n), rng.standard_normal((M * n, 2))])
    eta = X @ np.array([constant, 1.0, -0.5]) + sd * rng.standard_normal(M)[client]
    y = rng.random(M * n) < special.expit(eta) if family == "binomial" else rng.poisson(np.exp(eta))
    return X, np.where(client < flipped, 1.0 - y, y).astype(float), client


def log_likelihoods(family, X, y, thetas):
    """Return the log-likelihoods at some parameters (P, R), up to a term that is free of them."""
    eta = X @ thetas
    return y @ eta - (np.logaddexp(0.0, eta) if family == "binomial" else np.exp(eta)).sum(axis=0)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_integrated_likelihoods_are_those_of_quadrature(family):
    """Laplace's method errs by the order of 1 / n_m; the trapezoidal rule with steps below a standard deviation not."""
    M, n = 4, 60
    X, y, client = random_effects(family, M, n, 0.6, -0.3, 3)
    data, theta = ad.ClientData.from_arrays(X, y, client), np.array([-0.2, 0.9, -0.6])
    F = np.array([[0.8, 0.1], [0.0, 0.4], [0.0, 0.2]])
    likelihoods, factors = ClientLikelihoods(data, Family(family), np.ones(M)), np.broadcast_to(F, (M, 3, 2))
    found = expanded(likelihoods, np.tile(theta, (M, 1)), factors, np.zeros((M, 2))).integrated(factors)
    line = np.arange(-6.0, 6.0, 0.06)
    f = np.stack(np.meshgrid(line, line)).reshape(2, -1)
    prior = -0.5 * np.square(f).sum(axis=0) - np.log(2.0 * np.pi) + 2.0 * np.log(0.06)
    for m in range(M):
        own = X[client == m], y[client == m]
        exact = special.logsumexp(log_likelihoods(family, *own, theta[:, None] + F @ f) + prior)
        free = likelihoods.at(np.tile(theta, (M, 1)))[0][m] - log_likelihoods(family, *own, theta[:, None])[0]
        assert found[m] == pytest.approx(exact + free, abs=0.02)


def test_modes_and_moments_are_those_of_a_normal_model():
    """Where the log-likelihood is quadratic the expansion is exact: generalised least squares with V = I + X T X'."""
    rng = np.random.default_rng(4)
    X, client = rng.standard_normal((60, 2)), np.repeat(np.arange(3), 20)
    y = rng.standard_normal(60)
    data, T = ad.ClientData.from_arrays(X, y, client), np.diag([0.5, 0.2])
    factors, theta = np.broadcast_to(np.sqrt(T), (3, 2, 2)), np.array([0.3, -0.2])
    found = expanded(ClientLikelihoods(data, Family("gaussian"), np.ones(3)), np.tile(theta, (3, 1)), factors,
                     np.zeros((3, 2)))  # fmt: skip
    slopes, information = found.marginal(factors)
    for m in range(3):
        rows = client == m
        V = np.eye(20) + X[rows] @ T @ X[rows].T
        residual = y[rows] - X[rows] @ theta
        assert_allclose(slopes[m], X[rows].T @ np.linalg.solve(V, residual), rtol=1e-8)
        assert_allclose(information[m], X[rows].T @ np.linalg.solve(V, X[rows]), rtol=1e-8)
        value = -0.5 * residual @ np.linalg.solve(V, residual) - 0.5 * np.linalg.slogdet(V)[1]
        assert found.integrated(factors)[m] == pytest.approx(value)


def test_expected_responses_of_corruptions():
    X, y, client = random_effects("binomial", 3, 8, 0.0, 0.2, 5)
    data, family = ad.ClientData.from_arrays(X, y, client), Family("binomial")
    theta = np.array([0.1, 0.7, -0.4])
    mean = special.expit(X @ theta)
    assert_allclose(altered(data, family, theta, "flipped").y, 1.0 - mean)
    own = [mean[client == m].mean() for m in range(3)]
    assert_allclose(altered(data, family, theta, "shuffled").y, np.repeat(own, 8))


def test_a_law_of_effects_and_a_minority_are_found_at_once():
    """200 clients of 40 labels, effects of sd 1, a fifth flipped: theta, T and the flipped ones come out."""
    X, y, client = random_effects("binomial", 200, 40, 1.0, -1.0, 6, flipped=40)
    data = ad.ClientData.from_arrays(X, y, client)
    problem = Problem(GLM(data, Family("binomial")), ad.networks.complete(200))
    begin = np.array([-0.5, 0.4, -0.2])
    reading = best_reading(problem, begin, {"flipped": Proposal(begin)}, constants=np.array([0]))
    assert reading.minority == "flipped"
    # Conditional on effects of zero; the standard errors are about .09, .04 and .03.
    assert_allclose(reading.theta, [-1.0, 1.0, -0.5], atol=0.25)
    spread = reading.law.columns * reading.law.variances @ reading.law.columns.T
    assert np.sqrt(spread[0, 0]) == pytest.approx(1.0, abs=0.2)
    abnormal = reading.posteriors[:, 1] > 0.5
    assert abnormal[:40].mean() > 0.9
    assert abnormal[40:].mean() < 0.05


@pytest.mark.filterwarnings("ignore::adfl_stats.ConditionWarning")
@pytest.mark.parametrize(
    ("family", "M", "n", "sd", "constant"),
    [("binomial", 100, 10, 2.0, -1.0), ("binomial", 200, 4, 2.5, -3.0), ("poisson", 200, 6, 1.0, 0.0)],
)
def test_random_intercepts_are_no_minority(family, M, n, sd, constant):
    """Ordinary random effects of small clients, whose scores are far from linear in them."""
    X, y, client = random_effects(family, M, n, sd, constant, 1)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.directed_circle(M, 5), family)
    assert (model.fit().client_weights > 0.5).all()


def test_shrunken_effects_are_the_modes_of_penalised_likelihoods():
    """Each client's effect maximises its own log-likelihood less u'T^-1 u / 2, as in a mixed model."""
    X, y, client = random_effects("poisson", 40, 15, 0.7, 0.3, 8)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.directed_circle(40, 5), "poisson")
    res = model.fit(heterogeneity="intercept")
    record, theta = res.record.clients, res.params.to_numpy()
    assert (res.client_weights > 0.5).all()
    effects = res.client_effects()["effect"].xs(res.params.index[0], level=1).to_numpy()
    for m in range(40):
        own = X[client == m], y[client == m]

        def loss(u, own=own):
            there = theta + np.array([u, 0.0, 0.0])
            noise = record.dispersion * record.inflation
            return -log_likelihoods("poisson", *own, there[:, None])[0] / noise + 0.5 * u**2 / record.spread[0, 0]

        assert effects[m] == pytest.approx(optimize.minimize_scalar(loss).x, abs=2e-3)


def test_a_mode_does_not_depend_on_the_other_clients():
    X, y, client = random_effects("poisson", 30, 12, 1.0, 0.5, 9)
    theta, factors = np.array([0.3, 0.8, -0.4]), np.broadcast_to(np.diag([1.0, 0.3, 0.3]), (30, 3, 3))

    def integrated(some):
        rows, M = np.isin(client, some), len(some)
        data = ad.ClientData.from_arrays(X[rows], y[rows], client[rows])
        likelihoods = ClientLikelihoods(data, Family("poisson"), np.ones(M))
        return expanded(likelihoods, np.tile(theta, (M, 1)), factors[:M], np.zeros((M, 3))).integrated(factors[:M])

    together = integrated(np.arange(30))
    assert_allclose([integrated(np.array([m]))[0] for m in range(30)], together, rtol=1e-12)


def test_thinned_rows_and_a_client_that_overflows():
    """A reading of some rows gives probabilities of all; a client without finite numbers is far off, not everybody."""
    X, y, client = random_effects("poisson", 40, 30, 0.5, 0.0, 10)
    X[client == 39, 1] *= 1e3
    data = ad.ClientData.from_arrays(X, y, client)
    likelihoods = ClientLikelihoods(data, Family("poisson"), np.ones(40))
    information = likelihoods.at(np.zeros((40, 3)))[2]
    everybody = Clients(likelihoods, EVERYBODY, np.ones(40, dtype=bool), information, np.full(3, 0.2))
    some = everybody.some(np.arange(40) < 39, 1.0 / 3.0)
    assert some.likelihoods.data.sizes.tolist() == [10] * 39
    law = law_of(0.2 * np.eye(3), np.array([0]))
    reading = fit_reading(some, "", law, np.array([0.0, 0.9, -0.5]))
    # Standard errors of theta from ten rows of each client are about .09, .05 and .05.
    assert_allclose(reading.theta, [0.0, 1.0, -0.5], atol=0.3)
    found = probabilities(everybody, reading).posteriors
    assert_allclose(found.sum(axis=1), 1.0)
    assert (found[:39, 0] == 1.0).all()
    assert found[39, 2] == 1.0


def test_a_spread_that_is_asked_for_stays_after_readings_are_compared():
    X, y, client = random_effects("binomial", 100, 10, 2.0, -1.0, 1)
    data = ad.ClientData.from_arrays(X, y, client)
    with warnings.catch_warnings():
        # Many of these small clients are separated.
        warnings.simplefilter("ignore")
        model = ad.DecentralizedGLM(data, ad.networks.directed_circle(100, 5), "binomial")
        res = model.fit(heterogeneity="intercept")
    assert (res.client_weights > 0.5).all()
    assert res.record.clients.spread[0, 0] > 0.0


def test_a_minority_varies_as_it_does_and_lends_nothing_to_the_law_of_normal_clients():
    """Theta_m = theta + shift + 3^(1/2) J_m^(-1/2) z in the minority: c = 4. Its estimate has about 90 squares of
    effects, and so a standard error of about 4 (2 / 90)^(1/2) = .6."""
    rng = np.random.default_rng(11)
    M, n, theta, shift = 90, 100, np.array([0.3, 0.5, -0.3]), np.array([0.3, -0.5, 0.0])
    client, minority = np.repeat(np.arange(M), n), np.arange(M) >= 60
    X = np.column_stack([np.ones(M * n), rng.standard_normal((M * n, 2))])
    thetas = np.tile(theta, (M, 1))
    for m in np.flatnonzero(minority):
        rows = X[client == m]
        J = (rows.T * np.exp(rows @ (theta + shift))) @ rows
        thetas[m] += shift + np.sqrt(3.0) * np.linalg.solve(np.linalg.cholesky(J).T, rng.standard_normal(3))
    y = rng.poisson(np.exp(np.einsum("ij,ij->i", X, thetas[client]))).astype(float)
    likelihoods = ClientLikelihoods(ad.ClientData.from_arrays(X, y, client), Family("poisson"), np.ones(M))
    information = likelihoods.at(np.tile(theta, (M, 1)))[2]
    clients = Clients(likelihoods, EVERYBODY, np.ones(M, dtype=bool), information, np.full(3, 0.1))
    own, active = 0.1 * np.eye(3), np.arange(3)
    alike = fit_reading(clients, "coherent", law_of(own, active[:0]), theta, shift)
    assert alike.minority_inflation == pytest.approx(4.0, abs=1.8)
    assert ((alike.posteriors[:, 1] > 0.5) == minority).all()
    assert_allclose(alike.theta, theta, atol=0.04)
    # Before the minority had a c of its own, the spread of its effects was taken for one of all clients.
    differing = fit_reading(clients, "coherent", law_of(own, active), theta, shift)
    assert differing.criterion > alike.criterion
    assert differing.law.variances.max() < 0.1


def test_wide_minorities_keep_no_client_among_the_normal_ones():
    sim = draw("poisson-p10-OOD.4", 0)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.directed_circle(100, 5), "poisson").fit()
    assert ((res.client_weights < 0.5).to_numpy() == sim.abnormal).all()
