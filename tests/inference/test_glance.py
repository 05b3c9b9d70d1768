"""Preliminary tests of clients, for methods that do not model them: as the whole model, and quick."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from places import batches_of, in_places, some_clients
from scipy import stats

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.inference import at_estimate
from adfl_stats.inference.at_estimate import _Source
from adfl_stats.inference.glance import _by_coefficient, common_model
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods import Outcome
from adfl_stats.trust.mixture import ClientScores

M, N, P = 30, 50, 4
THETA = np.array([0.2, 0.5, -0.3, 0.1])


def drawn(seed, family="gaussian", tau=0.0, minority=0, shift=0.0):
    """Clients whose intercepts spread by tau, and a minority that is shifted, in standard errors of a client."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * N), rng.normal(size=(M * N, P - 1))])
    client, unit = np.repeat(np.arange(M), N), 1.0 / np.sqrt(N * (1.0 if family == "gaussian" else 0.22))
    own = np.zeros((M, P))
    own[:, 0] = tau * unit * rng.normal(size=M)
    own[:minority] += shift * unit * np.array([0.5, -0.5, 0.5, -0.5])
    eta = ((THETA + own[client]) * X).sum(axis=1)
    y = eta + rng.normal(size=M * N) if family == "gaussian" else (rng.random(M * N) < 1 / (1 + np.exp(-eta))) * 1.0
    return ad.ClientData.from_arrays(X, y, client)


def fitted(data, family="gaussian", **how):
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 4), family).fit(ad.DFL(), **how)


@pytest.fixture
def models(monkeypatch):
    """Count how often the whole model of clients is fitted."""
    calls, whole = [], at_estimate.model_at

    def counted(*given):
        calls.append(1)
        return whole(*given)

    monkeypatch.setattr(at_estimate, "model_at", counted)
    return calls


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
@pytest.mark.parametrize(("tau", "minority", "shift"), [(0.0, 0, 0.0), (1.0, 0, 0.0), (0.0, 5, 3.0)])
def test_first_look_agrees_with_the_whole_model(family, tau, minority, shift):
    for seed in range(4):
        fit = fitted(drawn(seed, family, tau, minority, shift), family).record
        assert fit.glance.differ == fit.clients.differ
        if fit.glance is not fit.clients:
            assert fit.clients.components == "normal"
            for name in ("statistics", "ranks", "p_values", "noise"):
                assert_allclose(getattr(fit.glance, name), getattr(fit.clients, name), rtol=1e-12, err_msg=name)
            assert_allclose(fit.glance.cochran, fit.clients.cochran, rtol=1e-12)


def test_summary_of_clients_alike_fits_no_model(models):
    res = fitted(drawn(1))
    text = str(res.summary())
    assert res.cov_type == "sandwich"
    assert "found no heterogeneity" in text
    assert not models
    # The whole model is there for those who ask, and does not change the summary.
    res.clients()
    assert len(models) == 1
    assert str(res.summary()) == text


def test_clients_that_differ_are_looked_at_closely(models):
    res = fitted(drawn(1, tau=3.0))
    assert res.cov_type == "CR2"
    assert len(models) == 1
    assert "found no heterogeneity" not in str(res.summary())


def test_a_spread_that_was_asked_for_is_fitted(models):
    assert fitted(drawn(1), heterogeneity="intercept").cov_type == "CR2"
    assert len(models) == 1


def test_files_keep_the_first_look(tmp_path):
    res = fitted(drawn(1))
    text = str(res.summary())
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert str(again.summary()) == text
    assert again.record.glance.candidates == []
    assert again.clients().equals(res.clients())


def test_variances_of_coefficients_are_tested_at_their_level():
    """With unequal informations; 2000 draws of 25 clients, so that the rate has a standard error of .005."""
    rng = np.random.default_rng(3)
    scale = rng.uniform(0.5, 2.0, 25)
    J = scale[:, None, None] * np.array([[1.0, 0.4], [0.4, 2.0]])
    half = np.linalg.cholesky(J)
    draws = (half @ rng.normal(size=(2000, 25, 2, 1)))[..., 0]
    draws -= scale[:, None] / scale.sum() * draws.sum(axis=1, keepdims=True)
    rest = (np.zeros(25), np.full(25, 2.0), np.full(25, 1e7), np.zeros(25))
    p_values = np.array([_by_coefficient(ClientScores(slopes, J, *rest)) for slopes in draws])
    assert 0.03 < np.mean(p_values < 0.05) < 0.07
    # With one coefficient and equal clients it is Cochran's Q, exactly.
    z = rng.normal(size=(25, 1)) * 1.3
    z -= z.mean()
    alone = ClientScores(z, np.ones((25, 1, 1)), *rest)
    expected = stats.chi2.sf(25 / 24 * np.square(z).sum(), 25)
    assert_allclose(_by_coefficient(alone), expected, rtol=1e-6)


def test_places_see_what_one_place_sees():
    """Also where no client of a place has weight."""
    bounds, data = (0, 5, 13, M), drawn(2)
    weights = np.where(np.arange(M) < 5, 0.0, 1.0)

    def look(some, transport):
        problem = Problem(GLM(some, Family("gaussian")), ad.networks.directed_circle(M, 4), **transport)
        theta = np.broadcast_to(THETA + 0.01, (problem.M, P)).copy()
        outcome = Outcome(theta, problem.steps(problem.members.ours(weights)), [])
        source = _Source(None, problem, outcome, "auto")
        assert source.first_look is not None
        model = common_model(problem, source.params, outcome.steps.weights, source.judged[2])
        return source.first_look, _by_coefficient(model.scores)

    places = in_places(bounds, lambda k, place: look(some_clients(data, batches_of(bounds)[k]), {"transport": place}))
    whole, p_value = look(data, {})
    for name in ("statistics", "p_values"):
        joined = np.concatenate([getattr(record, name) for record, _ in places])
        assert_allclose(joined, getattr(whole, name), rtol=1e-8, err_msg=name)
    for record, found in places:
        assert_allclose(record.cochran, whole.cochran, rtol=1e-8)
        assert_allclose(found, p_value, rtol=1e-8)
