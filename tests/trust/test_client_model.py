"""The model of clients on simulated data with known truth: who keeps its weight, and which spread is found."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.inference.client_record import client_effects
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.simulate.field_designs import FieldCell, draw
from adfl_stats.trust import fit_client_model, model_at


def fitted(cell, seed, heterogeneity="auto"):
    """Return the model of clients from the pooled start, and which clients are abnormal."""
    sim = draw(cell, seed)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    problem = Problem(GLM(data, Family(cell.family)), ad.networks.complete(cell.M))
    pooled = weighted_solution(problem, problem.relative_sizes, np.zeros(cell.P))
    return fit_client_model(problem, pooled, heterogeneity), sim


SETS = 6


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0])
def test_nobody_bad(tau):
    """600 normal clients: all keep their weight, whether or not they differ."""
    kinds = []
    for seed in range(SETS):
        model, _ = fitted(FieldCell("clean", tau=tau), seed)
        assert model.weights.min() > 0.1
        kinds.append(model.spread_kind)
        assert model.differ == (model.spread.any())
    if tau == 0.0:
        # What equal clients cost by chance: a variance is paid for by log M, about one data set in thirty.
        assert kinds.count("none") >= SETS - 1
    else:
        assert "none" not in kinds


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_spread_is_that_of_the_truth(tau):
    """Mean over the data sets of T / (tau se)^2, which is the identity."""
    ratios = []
    for seed in range(SETS):
        model, _ = fitted(FieldCell("clean", tau=tau), seed)
        ratios.append(model.spread / np.outer(model.units, model.units) / tau**2)
    mean = np.mean(ratios, axis=0)
    # A variance from 100 clients with sampling variance 1 has relative error (1 + 1 / tau^2) sqrt(2 / 100); the mean
    # over six data sets and five coefficients has less than a fifth of it.
    assert np.diag(mean).mean() == pytest.approx(1.0, abs=4 * (1 + tau**-2) * np.sqrt(0.02 / (SETS * 5)))
    assert_allclose(mean, np.eye(5), atol=4 * (1 + tau**-2) * np.sqrt(0.02 / SETS))


@pytest.mark.parametrize(
    "cell",
    [
        FieldCell("flip", tau=0.0, corruption="flip", share=0.2),
        FieldCell("flip", tau=1.0, corruption="flip", share=0.2),
        FieldCell("flip", "binomial", tau=1.0, corruption="flip", share=0.2),
        FieldCell("permute", "poisson", corruption="permute", share=0.2, slope=0.5),
        FieldCell("shift", corruption="shift", shift=5.0, share=0.2),
        FieldCell("shift", tau=1.0, corruption="shift", shift=10.0, share=0.2),
    ],
    ids=lambda cell: f"{cell.name} {cell.family} {cell.tau:g}",
)
def test_abnormal_clients_are_found(cell):
    lost, kept = [], []
    for seed in range(SETS):
        model, sim = fitted(cell, seed)
        lost.append((model.weights[~sim.abnormal] < 0.1).mean())
        kept.append((model.weights[sim.abnormal] > 0.1).mean())
    assert np.mean(lost) <= 0.02
    # Of 120 abnormal clients none where they are far off. A shift of five standard errors, or flipped labels of clients
    # that differ, are not beyond what every normal client has: 5 %.
    far = cell.family == "gaussian" and cell.shift != 5.0
    assert np.mean(kept) <= (0.0 if far else 0.05)


def test_correlated_effects_are_no_minority():
    """Correlations of .5 between the effects: one direction has most of the spread, and nobody is off."""
    for seed in range(SETS):
        model, _ = fitted(FieldCell("correlated", tau=2.0, spread="correlated"), seed)
        assert model.minority_shift is None or "coherent" not in model.components
        assert model.weights.min() > 0.1
        assert model.differ
        unit = np.sqrt(np.diag(model.spread))
        correlation = (model.spread / np.outer(unit, unit))[np.triu_indices(5, 1)].mean()
        # The mean of ten correlations from 100 clients with a quarter of sampling variance: standard error about .06.
        assert correlation == pytest.approx(0.5, abs=0.24)


@pytest.mark.parametrize("scale", [0.15, 0.5])
def test_effects_with_heavy_tails_set_nobody_aside(scale):
    """Effects of t with 3 df; of the sixth whose responses are mirrored all are found."""
    rng = np.random.default_rng(0)
    M, n = 90, 60
    client = np.repeat(np.arange(M), n)
    X = np.column_stack([np.ones(M * n), rng.standard_normal((M * n, 2))])
    effects = rng.standard_normal((M, 3)) / np.sqrt(rng.chisquare(3, M) / 3)[:, None]
    own = np.array([1.0, 2.0, -2.0]) + scale * effects
    y = np.einsum("ij,ij->i", X, own[client]) + rng.standard_normal(M * n)
    for bad in (0, 15):
        for m in range(bad):
            rows = client == m
            y[rows] = 2.0 * y[rows].mean() - y[rows]
        data = ad.ClientData.from_arrays(X, y, client)
        res = ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 5)).fit(solver="limit")
        aside = res.client_weights.to_numpy() < 0.5
        assert aside[:bad].all()
        assert aside[bad:].mean() <= 0.03


def test_rows_that_depend_on_one_another_set_nobody_aside():
    """Groups of rows within clients share an error: scores vary five times as much as rows say, along no common T."""
    rng = np.random.default_rng(1)
    M, n = 80, 100
    client, group = np.repeat(np.arange(M), n), np.repeat(np.arange(M * n // 10), 10)
    scales = np.exp(rng.standard_normal((M, 2)))
    X = np.column_stack([np.ones(M * n), scales[client] * rng.standard_normal((M * n // 10, 2))[group]])
    noise = 0.7 * rng.standard_normal(M * n // 10)[group] + 0.7 * rng.standard_normal(M * n)
    y = X @ np.array([1.0, 2.0, -2.0]) + noise
    for bad in (0, 16):
        for m in range(bad):
            rows = client == m
            y[rows] = 2.0 * y[rows].mean() - y[rows]
        res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.directed_circle(M, 5)).fit()
        aside = res.client_weights.to_numpy() < 0.5
        assert aside[:bad].all()
        assert not aside[bad:].any()
        # Kish's design effect, 1 + 9 times the share of the shared error's variance, over what residuals have left of
        # the variance, with the standard error of a variance from M P scores.
        effect = 5.5 * (n - 3) / (n - 3 * 5.5)
        error = effect * np.sqrt(2.0 / (3 * (M - bad)))
        assert res.record.clients.inflation == pytest.approx(effect, abs=3.0 * error)


def firms(seed, M=100, n=8, off=0, level=1.0, noise=0.08):
    """Clients far apart in two covariates, each with a level and slopes of its own about its own means.

    The slopes of the first `off` clients within are moved by -8, ten standard deviations.
    """
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(M), n)
    columns, y = [np.ones(M * n)], level * rng.normal(size=M)[client] + noise * rng.normal(size=M * n)
    for _ in range(2):
        own = 0.3 * rng.normal(size=M * n)
        own -= (np.bincount(client, own) / n)[client]
        centre = 1.5 * rng.normal(size=M)[client]
        y += 0.8 * centre + (0.8 + 0.8 * rng.normal(size=M)[client] - 8.0 * (client < off)) * own
        columns.append(centre + own)
    return ad.ClientData.from_arrays(np.column_stack(columns), y, client)


def model_of_firms(data):
    problem = Problem(GLM(data, Family("gaussian")), ad.networks.complete(data.n_clients))
    pooled = weighted_solution(problem, problem.relative_sizes, np.zeros(3))
    return problem, fit_client_model(problem, pooled)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_about_own_means_set_nobody_aside(seed):
    """Slopes that vary within clients without moving their levels: no T that is common to all describes it."""
    _, model = model_of_firms(firms(seed))
    assert model.weights.min() > 0.5


def test_clients_apart_from_slopes_about_own_means_are_found():
    """15 of 100 clients."""
    problem, model = model_of_firms(firms(1, off=15))
    assert "own means" in model.spread_kind
    assert (model.weights[:15] < 0.5).all()
    assert (model.weights[15:] > 0.5).mean() >= 0.97
    # E(u_m | rows) of a normal client, by dense algebra with its own T_m.
    data, m = problem.glm.data, 50
    X, y = data.X[data.offsets[m] : data.offsets[m + 1]], data.y[data.offsets[m] : data.offsets[m + 1]]
    T, noise = model.spread_of(np.array([m]))[0], model.inflation * model.null.dispersions[m]
    known = T @ X.T @ np.linalg.solve(X @ T @ X.T + noise * np.eye(len(y)), y - X @ model.theta)
    assert_allclose(client_effects(model).effects[m], known, rtol=1e-6)
    # The effect of the slope leaves the client's mean response where it was: T_m is about its own mean.
    assert_allclose(X.mean(axis=0) @ T[:, 1:], 0.0, atol=1e-9 * np.abs(T).max() * np.abs(X).max())


def test_the_origin_of_covariates_does_not_matter():
    """Years from 0 and from 2000: the same spread, the same weights."""
    rng = np.random.default_rng(2)
    M, n = 40, 20
    client, year = np.repeat(np.arange(M), n), np.tile(np.arange(n), M)
    own = rng.standard_normal((M, 2)) * [2.0, 0.1]
    y = own[client, 0] + (1.0 + own[client, 1]) * (year - 9.5) + rng.standard_normal(M * n)
    weights = []
    for origin in (0.0, 2000.0):
        X = np.column_stack([np.ones(M * n), origin + year])
        res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(M)).fit()
        weights.append(res.client_weights.to_numpy())
        assert res.record.clients.spread[1, 1] ** 0.5 == pytest.approx(0.1, rel=0.3)
    assert_allclose(*weights, atol=0.02)
    assert min(weights[0]) > 0.9


def test_spread_of_the_intercept_alone():
    model, _ = fitted(FieldCell("intercept", tau=2.0, spread="intercept"), 1)
    T = np.diag(model.spread) / model.units**2
    assert T[0] == pytest.approx(4.0, abs=4 * 5 * np.sqrt(2 / 100))
    assert T[1:].max() < 0.5


@pytest.mark.parametrize("heterogeneity", ["none", "estimate"])
def test_spread_on_demand(heterogeneity):
    differ = [fitted(FieldCell("clean", tau=tau), 2, heterogeneity)[0] for tau in (0.0, 2.0)]
    assert [model.differ for model in differ] == [heterogeneity == "estimate"] * 2
    if heterogeneity == "none":
        assert not differ[1].spread.any()
    else:
        unit = np.diag(differ[0].spread) / differ[0].units ** 2
        assert unit.max() < 0.5
        assert differ[0].weights.min() > 0.1


def test_best_candidate_first():
    model, _ = fitted(FieldCell("clean", tau=1.0), 3)
    criteria = [one[2] for one in model.candidates]
    assert criteria == sorted(criteria)
    assert model.candidates[0][:2] == (model.spread_kind, model.components)
    assert ("none", "normal") in [one[:2] for one in model.candidates]


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize("M", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("heterogeneity", ["auto", "none", "estimate"])
def test_few_clients(M, family, heterogeneity):
    model, _ = fitted(FieldCell("few", family, M=M, n=100), 1, heterogeneity)
    assert model.weights.shape == (M,)
    assert (model.weights > 0.1).all()
    assert model.spread_kind == "none" or M >= 4


def test_weights_do_not_depend_on_order_or_units():
    cell = FieldCell("flip", tau=1.0, corruption="flip", share=0.2, M=40)
    sim = draw(cell, 4)
    order = np.argsort(-sim.client, kind="stable")
    unit = np.array([1.0, 1e6, 1e-5, 1.0, 30.0])
    found = []
    for X, y, client in (
        (sim.X, sim.y, sim.client),
        (sim.X[order], sim.y[order], 39 - sim.client[order]),
        (sim.X * unit, 1e4 * sim.y, sim.client),
    ):
        problem = Problem(GLM(ad.ClientData.from_arrays(X, y, client), Family("gaussian")), ad.networks.complete(40))
        found.append(fit_client_model(problem, np.linalg.lstsq(X, y)[0]))
    plain, turned, scaled = found
    assert_allclose(turned.weights, plain.weights[::-1], atol=1e-5)
    assert_allclose(scaled.weights, plain.weights, atol=1e-5)
    assert_allclose(scaled.spread * np.outer(unit, unit) / 1e8, plain.spread, rtol=1e-3, atol=1e-3 * plain.spread.max())


def test_spread_among_given_clients():
    """At the estimate of a method with weights of its own: the flipped clients are seen, and the others do differ."""
    cell = FieldCell("flip", tau=2.0, corruption="flip", share=0.2)
    sim = draw(cell, 5)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    problem = Problem(GLM(data, Family("gaussian")), ad.networks.complete(100))
    rows = ~sim.abnormal[sim.client]
    theta = np.linalg.lstsq(sim.X[rows], sim.y[rows])[0]
    model = model_at(problem, theta, np.ones(100))
    assert ((model.weights > 0.5) == ~sim.abnormal).all()
    T = np.diag(model.spread) / model.units**2
    assert T.mean() == pytest.approx(4.0, abs=4 * 5 * np.sqrt(2 / 80 / 5))


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
@pytest.mark.parametrize(("n", "p"), [(1, 3), (2, 5), (5, 5), (30, 60)])
def test_clients_without_rows_to_spare(n, p):
    """No client knows its own noise level. All follow the model: they keep their weight, and hardly one is flagged."""
    rng = np.random.default_rng(2)
    M = 300 // n
    X, y = rng.normal(size=(300, p)), rng.normal(size=300)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), ad.networks.complete(M))
    table = model.fit(solver="limit").clients()
    assert table["weight"].min() > 0.1
    # At a false discovery rate of .1 there is one data set in ten with a flag.
    assert table["flagged"].sum() <= 1


def test_labels_with_weights():
    """Multinomial rows with weights have a dispersion of their own."""
    rng = np.random.default_rng(7)
    X, y = np.column_stack([np.ones(1200), rng.normal(size=(1200, 2))]), rng.integers(0, 3, 1200)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(20), 60), weights=rng.uniform(0.5, 2.0, 1200))
    res = ad.DecentralizedGLM(data, ad.networks.complete(20), "multinomial").fit(solver="limit")
    assert res.client_weights.min() > 0.1


@pytest.mark.parametrize("times", [2.0, 10.0, 100.0])
def test_counts_in_other_units_do_not_excuse_themselves(times):
    """The scoring step to the client's own estimate goes too far here; that must not raise everybody's variance."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(1800), rng.normal(size=(1800, 3))])
    client = np.repeat(np.arange(30), 60)
    y = rng.poisson(np.exp(X @ [1.0, 0.3, -0.3, 0.2])) * np.where(np.isin(client, (10, 11, 12)), times, 1.0)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(30), "poisson")
    weights = model.fit(solver="limit").client_weights
    assert weights.index[weights < 0.1].tolist() == [10, 11, 12]
