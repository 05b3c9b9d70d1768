"""Fits made again on drawn clients, against least squares on the drawn rows, whole fits of fewer clients, and CR2."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad
from adfl_stats.inference import refits as refits_module
from adfl_stats.inference.refits import Refitter
from adfl_stats.inference.sites import on_problem

M, N_ROWS = 24, 30


def clients(seed, tau=0.0, shifted=0, p=2, M=M):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(M), N_ROWS)
    X = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), p - 1))])
    y = X.sum(axis=1) + tau * rng.normal(size=M)[client] + rng.normal(size=len(client)) + 8.0 * (client < shifted)
    return X, y, client


def model_of(X, y, client, labels=None, **words):
    data = ad.ClientData.from_arrays(X, y, client if labels is None else labels[client])
    return ad.DecentralizedGLM(data, ad.networks.complete(data.n_clients, labels=data.labels), **words)


def made_again(res, draws):
    """The refitter of a fit, and its fits on draws of the clients."""
    refits = on_problem(res, "bootstrap()", partial(Refitter.of, res, "bootstrap"))
    return refits, list(refits.each(draws))


def stacked(X, y, client, counts):
    """Least squares on the rows of the drawn clients, copies and all."""
    rows = np.concatenate([np.flatnonzero(client == m) for m in np.repeat(np.arange(len(counts)), counts)])
    return np.linalg.lstsq(X[rows], y[rows])[0]


def test_draws_of_given_weights_are_least_squares():
    X, y, client = clients(1)
    res = model_of(X, y, client).fit(ad.DFL(), heterogeneity="none")
    draws = list(np.random.default_rng(5).multinomial(M, np.full(M, 1 / M), size=40))
    found = [one.theta for one in made_again(res, draws)[1]]
    assert_allclose(found, [stacked(X, y, client, counts) for counts in draws], rtol=1e-9)


def test_draws_decide_anew_who_is_trusted():
    """Clients that are far off lose their weight in every draw: least squares on the drawn normal ones."""
    X, y, client = clients(2, shifted=5)
    res = model_of(X, y, client).fit()
    assert (res.client_weights[:5] < 1e-6).all()
    draws = list(np.random.default_rng(6).multinomial(M, np.full(M, 1 / M), size=12))
    for counts, one in zip(draws, made_again(res, draws)[1], strict=True):
        normal = counts * (np.arange(M) >= 5)
        assert_allclose(one.theta, stacked(X, y, client, normal), atol=2e-3)
        assert (one.weights[counts == 0] == 0.0).all()
        assert (one.weights[:5] < 1e-6).all()


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_client_left_out_is_a_fit_without_it(family):
    X, y, client = clients(3, shifted=4, M=16)
    if family == "binomial":
        y = (np.random.default_rng(4).random(len(y)) < 1 / (1 + np.exp(-X[:, 1] * np.where(client < 4, -1, 1)))) * 1.0
    labels = np.array([f"c{m:02d}" for m in range(16)])
    res = model_of(X, y, client, labels, family=family).fit()
    counts = np.ones(16, dtype=int)
    counts[9] = 0
    refits, (one,) = made_again(res, [counts])
    inside = client != 9
    whole = model_of(X[inside], y[inside], client[inside], labels, family=family).fit(tolerance=0.005)
    assert_allclose(one.theta, whole.params, atol=0.02 * whole.bse.min())
    assert_allclose(np.delete(one.weights, 9), whole.client_weights, atol=0.02)
    for kind in ("CR2", "HC3"):
        errors, df = refits.precision(res.record, one, kind)
        assert_allclose(errors, whole.standard_errors(kind), rtol=0.02)
        assert_allclose(df, whole.degrees_of_freedom(kind), rtol=0.02)


def test_intervals_are_quantiles_and_a_seed_repeats_them():
    X, y, client = clients(4, tau=0.4)
    res = model_of(X, y, client).fit()
    found = res.bootstrap(8, seed=3)
    assert_allclose(res.bootstrap(2, seed=3).estimates, found.estimates[:2], rtol=1e-12)
    draws = found.estimates.to_numpy()
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert_allclose(found.conf_int(0.1), np.column_stack([low, high]))
    basic = np.column_stack([2 * res.params - high, 2 * res.params - low])
    assert_allclose(found.conf_int(0.1, "basic"), basic)
    assert_allclose(found.bse, draws.std(axis=0, ddof=1))
    table = found.to_frame()
    assert_allclose(table["bias"], draws.mean(axis=0) - res.params)
    assert list(table.columns) == ["coef", "se", "bootstrap se", "bias", "lower", "upper"]
    assert "Bootstrap over 24 clients, 8 draws" in str(found)
    assert "<table" in found._repr_html_()
    assert found.trusted.index.equals(res.client_weights.index)


def test_standard_errors_are_those_of_cr2_on_clean_data():
    """400 draws have a relative error of 1 / sqrt(800) = .035; the rest is what 24 clients leave open."""
    X, y, client = clients(7, tau=0.6)
    model = model_of(X, y, client)
    res = model.fit(ad.DFL())
    ratio = res.bootstrap(400, seed=1).bse / res.standard_errors("CR2")
    assert ratio.between(0.85, 1.15).all()
    # Where weights are estimated in each draw, nobody loses any.
    assert (model.fit().bootstrap(5, seed=1).trusted == 1.0).all()


def test_an_interrupt_keeps_the_draws_so_far(monkeypatch):
    X, y, client = clients(8)
    res = model_of(X, y, client).fit(ad.DFL(), heterogeneity="none")
    each = Refitter.each

    def stopped(after):
        def some(self, draws, **words):
            for k, one in enumerate(each(self, draws, **words)):
                if k == after:
                    raise KeyboardInterrupt
                yield one

        return some

    monkeypatch.setattr(refits_module.Refitter, "each", stopped(7))
    with pytest.warns(ad.errors.ConvergenceWarning, match="interrupted after 7 of 50 draws"):
        assert len(res.bootstrap(50).estimates) == 7
    monkeypatch.setattr(refits_module.Refitter, "each", stopped(1))
    with pytest.raises(KeyboardInterrupt):
        res.bootstrap(50)


def test_refusals():
    X, y, client = clients(9)
    model = model_of(X, y, client)
    res = model.fit()
    for B in (1, 2.5):
        with pytest.raises((ValueError, TypeError), match="B"):
            res.bootstrap(B)
    with pytest.raises(ValueError, match="method is 'normal'"):
        res.bootstrap(3).conf_int(method="normal")
    with pytest.raises(ValueError, match=r"aDFL as fitted has others; fit ad.ADFL\(\)"):
        model.fit(ad.ADFL(lam=2.0), rounds=50).bootstrap(5)
    res.remove_data()
    for what in ("bootstrap", "sensitivity", "majority"):
        with pytest.raises(ValueError, match=rf"res.{what}\(\) needs the model.*keep_data=True"):
            getattr(res, what)()
    kept = model.fit(keep_data=True)
    kept.record.at_estimate.parts()
    assert len(kept.bootstrap(3).estimates) == 3


def test_draws_that_identify_too_little_are_left_out():
    """A column that two clients of ten alone identify: draws without them have no estimate."""
    X, y, client = clients(10, M=10)
    X = np.column_stack([X, (client < 2) * np.random.default_rng(1).normal(size=len(y))])
    res = model_of(X, y, client).fit(ad.DFL(), heterogeneity="none")
    found = res.bootstrap(40, seed=2)
    counts = np.random.default_rng(2).multinomial(10, np.full(10, 0.1), size=40)
    assert found.failed == int((counts[:, :2].sum(axis=1) == 0).sum()) > 0
    assert len(found.estimates) == 40 - found.failed
    assert "do not identify all coefficients" in str(found)


def test_random_effects_penalty_and_balance_are_those_of_the_fit():
    X, y, client = clients(11, tau=0.5)
    hub = 0.8 * ad.networks.directed_circle(M, 3).W.toarray()
    hub[:, 0] += 0.2
    data = ad.ClientData.from_arrays(X, y, client)
    for words, method in (
        ({"weighting": "random-effects"}, ad.ADFL(balance=True)),
        ({"penalty": ad.Ridge(0.1)}, ad.ADFL(balance=True)),
        ({}, ad.ADFL()),
    ):
        res = ad.DecentralizedGLM(data, ad.Network.from_weights(hub), **words).fit(method, tolerance=0.005)
        _, (same,) = made_again(res, [np.ones(M, dtype=int)])
        assert_allclose(same.theta, res.params, atol=0.02 * res.bse.min())
        assert_allclose(same.total_weights, res.record.total_weights, rtol=0.02, atol=0.02)


def test_plots():
    X, y, client = clients(12, M=10)
    res = model_of(X, y, client).fit()
    draws = res.bootstrap(6)
    ax = draws.plot()
    assert ax.get_xlabel() in res.params.index
    assert draws.plot("x2", ax).get_xlabel() == "x2"
    with pytest.raises(ValueError, match="coefficient is 'x9'; it is one of 'x1', 'x2'"):
        draws.plot("x9")
    assert isinstance(draws.trusted, pd.Series)
