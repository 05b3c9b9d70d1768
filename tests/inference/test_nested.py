"""Likelihood ratio and score tests against statsmodels, goodness of fit against sums over each client's rows."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy import special, stats

import adfl_stats as ad

M, N_ROWS = 12, 40
CLIENT = np.repeat(np.arange(M), N_ROWS)


def rows(family, seed=1):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(len(CLIENT)), rng.normal(size=(len(CLIENT), 3))])
    eta = X @ [0.2, 0.5, 0.1, 0.0]
    if family == "binomial":
        return X, (rng.random(len(eta)) < special.expit(eta)).astype(float)
    return X, rng.poisson(np.exp(eta)).astype(float) if family == "poisson" else eta + rng.normal(size=len(eta))


def model_of(X, y, family):
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, CLIENT), ad.networks.complete(M), family)


def fit(X, y, family):
    return model_of(X, y, family).fit(ad.DFL(), heterogeneity="none", tolerance=0.001)


KINDS = {"gaussian": sm.families.Gaussian(), "binomial": sm.families.Binomial(), "poisson": sm.families.Poisson()}


@pytest.mark.parametrize("family", KINDS)
def test_tests_are_those_of_statsmodels(family):
    X, y = rows(family)
    large, small = fit(X, y, family), fit(X[:, :2], y, family)
    known = [sm.GLM(y, part, KINDS[family]).fit(tol=1e-12) for part in (X, X[:, :2])]
    statistic, p_value, df = large.compare_lr_test(small)
    if family == "gaussian":
        known = [sm.OLS(y, part).fit() for part in (X, X[:, :2])]
        assert_allclose((statistic, p_value, df), known[0].compare_lr_test(known[1]), rtol=1e-3)
    wanted = 2 * (known[0].llf - known[1].llf)
    assert_allclose((statistic, p_value, df), (wanted, stats.chi2.sf(wanted, 2), 2), rtol=1e-3)
    found = small.score_test(model_of(X, y, family), "nonrobust")
    if family != "gaussian":
        theirs = sm.GLM(y, X[:, :2], KINDS[family]).score_test(known[1].params, exog_extra=X[:, 2:])
        assert_allclose(found, [float(np.squeeze(part)) for part in theirs], rtol=2e-3)
    robust = small.score_test(model_of(X, y, family))
    assert_allclose(robust, by_hand(X, y, family, known[1].params, clusters=False), rtol=2e-3)
    clustered = small.score_test(model_of(X, y, family), "cluster")
    assert_allclose(clustered, by_hand(X, y, family, known[1].params, clusters=True), rtol=2e-3)


def by_hand(X, y, family, params, *, clusters):
    """Rao's test with the empirical variance of the efficient score, of rows or of clients."""
    eta = X[:, :2] @ params
    mean = {"gaussian": eta, "binomial": special.expit(eta), "poisson": np.exp(eta)}[family]
    slope = {"gaussian": np.ones_like(eta), "binomial": mean * (1 - mean), "poisson": mean}[family]
    H = (X.T * slope) @ X
    C = np.column_stack([-H[2:, :2] @ np.linalg.inv(H[:2, :2]), np.eye(2)])
    scores = (X * (mean - y)[:, None]) @ C.T
    if clusters:
        scores = np.array([scores[m == CLIENT].sum(axis=0) for m in range(M)])
    total = scores.sum(axis=0)
    statistic = total @ np.linalg.solve(scores.T @ scores, total)
    return statistic, stats.chi2.sf(statistic, 2), 2


def test_columns_may_come_in_any_order_and_by_name():
    X, y = rows("poisson")
    names = ["const", "a", "b", "c"]
    less = ad.ClientData.from_arrays(X[:, :2], y, CLIENT, names=names[:2])
    more = ad.ClientData.from_arrays(X[:, [3, 1, 0, 2]], y, CLIENT, names=["c", "a", "const", "b"])
    net = ad.networks.complete(M)
    res = ad.DecentralizedGLM(less, net, "poisson").fit(ad.DFL(), heterogeneity="none", tolerance=0.001)
    found = res.score_test(ad.DecentralizedGLM(more, net, "poisson"))
    assert_allclose(found, fit(X[:, :2], y, "poisson").score_test(model_of(X, y, "poisson")), rtol=1e-6)


def test_clients_that_are_set_aside_have_no_part():
    X, y = rows("gaussian", 2)
    y = y + 6.0 * (CLIENT < 2)
    weights = (CLIENT[::N_ROWS] >= 2).astype(float)
    keep = CLIENT >= 2
    large, small = (model_of(part, y, "gaussian").fit(ad.DFL(weights), tolerance=0.001) for part in (X, X[:, :2]))
    known = [sm.OLS(y[keep], part[keep]).fit() for part in (X, X[:, :2])]
    assert_allclose(large.compare_lr_test(small), known[0].compare_lr_test(known[1]), rtol=1e-3)


OVERFLOWS = CLIENT == 5


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
@pytest.mark.parametrize("keep_data", [False, True])
@pytest.mark.parametrize("column", [1, 3])
def test_a_client_whose_numbers_overflow_is_in_neither_model(family, keep_data, column):
    """In a column that both models have, or the larger one alone: the tests are those of data without the client."""
    X, y = rows(family, 4)
    vast, rest = X.copy(), ~OVERFLOWS
    vast[OVERFLOWS, column] *= 1e200
    pairs = []
    for design, keep in ((vast, slice(None)), (X, rest)):
        net = ad.networks.complete(len(np.unique(CLIENT[keep])), labels=np.unique(CLIENT[keep]))
        large, small = (
            ad.DecentralizedGLM(ad.ClientData.from_arrays(design[keep][:, :p], y[keep], CLIENT[keep]), net, family)
            for p in (4, 2)
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*client.* set aside")
            res = large.fit(heterogeneity="none", tolerance=0.001, keep_data=keep_data)
            weights = ad.DFL(weights=(res.client_weights > 0.1).astype(float))
            pairs.append((large, *(one.fit(weights, tolerance=0.001, keep_data=keep_data) for one in (large, small))))
    (large, res, restricted), (alike, others, fewer) = pairs
    assert res.client_weights[5] == 0.0
    assert (others.client_weights == 1.0).all()
    assert_allclose(res.compare_lr_test(restricted), others.compare_lr_test(fewer), rtol=1e-9)
    for kind in ("sandwich", "nonrobust", "cluster"):
        assert_allclose(restricted.score_test(large, kind), fewer.score_test(alike, kind), rtol=1e-9)


def test_a_score_test_leaves_a_client_out_that_overflows_in_the_larger_model_alone():
    """This fit counts it; without its row the efficient score is still one of the others' rows, at this estimate."""
    X, y = rows("gaussian", 4)
    vast = X.copy()
    vast[OVERFLOWS, 3] *= 1e200
    small = model_of(X[:, :2], y, "gaussian").fit(heterogeneity="none")
    assert small.client_weights[5] > 0.99
    without = small.score_test(model_of(vast, y, "gaussian"))
    assert_allclose(without[0], small.score_test(model_of(X, y, "gaussian"))[0], rtol=0.5)
    trusting = model_of(X[:, :2], y, "gaussian").fit(ad.DFL())
    with pytest.raises(ValueError, match=r"numbers of 1 client\(s\) overflow where the others agree: 5"):
        trusting.score_test(model_of(vast, y, "gaussian"))


def named(X, y, names, **words):
    data = ad.ClientData.from_arrays(X, y, CLIENT, names=names, **words)
    return ad.DecentralizedGLM(data, ad.networks.complete(M), "poisson")


def test_other_units_and_codings_are_the_same_model():
    """Celsius and Fahrenheit, a factor coded by its levels or by contrasts: nested by values, whatever the names."""
    X, y = rows("poisson")
    group = np.arange(len(y)) % 3
    levels, contrasts = np.eye(3)[group], np.array([[1.0, 1, 1], [1, -1, 0], [1, 0, -2]])[group]
    fits = {"heterogeneity": "none", "tolerance": 0.001}
    plain = named(np.c_[X[:, :2], X[:, 2]], y, ["const", "a", "b"]).fit(ad.DFL(), **fits)
    large = named(np.c_[levels, 32 + 1.8 * X[:, 1], X[:, 2]], y, ["u", "v", "w", "f", "b"])
    known = fit(X[:, :3], y, "poisson").score_test(model_of(np.c_[X[:, :3], levels[:, 1:]], y, "poisson"))
    assert_allclose(plain.score_test(large), known, rtol=1e-6)
    eta = sm.GLM(y, X[:, :3], sm.families.Poisson()).fit(tol=1e-12)
    both = sm.GLM(y, np.c_[X[:, 1:3], contrasts], sm.families.Poisson()).fit(tol=1e-12)
    statistic = 2 * (both.llf - eta.llf)
    assert_allclose(large.fit(ad.DFL(), **fits).compare_lr_test(plain)[0], statistic, rtol=1e-3)


def test_one_name_for_two_columns_is_refused():
    X, y = rows("poisson")
    large = named(X, y, ["const", "a", "b", "c"])
    other = named(np.c_[X[:, 0], X[:, 1] ** 2], y, ["const", "a"])
    res, square = large.fit(ad.DFL()), other.fit(ad.DFL())
    words = "not nested: .* has 'a', no linear combination of the .*; 'a' is there by name, with other values"
    with pytest.raises(ValueError, match=words):
        res.compare_lr_test(square)
    with pytest.raises(ValueError, match=words):
        square.score_test(large)
    shifted = named(X[:, :2], y, ["const", "a"], offset=X[:, 2]).fit(ad.DFL())
    with pytest.raises(ValueError, match="restricted has other offsets than this fit, row by row"):
        res.compare_lr_test(shifted)
    counts = named(X[:, :2], y[::-1].copy(), ["const", "a"]).fit(ad.DFL())
    with pytest.raises(ValueError, match="restricted has other responses than this fit"):
        res.compare_lr_test(counts)


def test_fits_without_their_rows_are_refused():
    X, y = rows("poisson")
    large, small = fit(X, y, "poisson"), fit(X[:, :2], y, "poisson")
    small.remove_data()
    with pytest.raises(ValueError, match="restricted no longer holds them; fit it with keep_data=True"):
        large.compare_lr_test(small)


def test_refusals():
    X, y = rows("poisson")
    large, small = fit(X, y, "poisson"), fit(X[:, :2], y, "poisson")
    with pytest.raises(ValueError, match="the second must have more of them"):
        small.compare_lr_test(large)
    with pytest.raises(TypeError, match="restricted is a int"):
        large.compare_lr_test(3)
    with pytest.raises(ValueError, match="the families differ: restricted has 'gaussian' and this fit 'poisson'"):
        large.compare_lr_test(fit(X[:, :2], y, "gaussian"))
    own = [fit(columns, 5.0 * y, "negativebinomial") for columns in (X, X[:, :2])]
    with pytest.raises(ValueError, match=r"another alpha, .* the same, ad.family\('negativebinomial', alpha=...\)"):
        own[0].compare_lr_test(own[1])
    weights = np.r_[0.0, np.ones(M - 1)]
    other = model_of(X[:, :2], y, "poisson").fit(ad.DFL(weights), heterogeneity="none")
    with pytest.raises(ValueError, match="trust different clients"):
        large.compare_lr_test(other)
    with pytest.raises(TypeError, match="larger is a Results"):
        small.score_test(large)
    with pytest.raises(ValueError, match="the second must have more of them"):
        large.score_test(model_of(X[:, :2], y, "poisson"))
    with pytest.raises(ValueError, match="cov_type is 'HC3'"):
        small.score_test(model_of(X, y, "poisson"), "HC3")


def test_goodness_of_fit_needs_the_model():
    X, y = rows("poisson", 3)
    res = fit(X, y, "poisson")
    res.remove_data()
    with pytest.raises(ValueError, match=r"res.goodness_of_fit\(\) needs the model.*keep_data=True"):
        res.goodness_of_fit()


def test_goodness_of_fit_is_a_sum_over_rows():
    X, y = rows("poisson", 3)
    res = fit(X, y, "poisson")
    table = res.goodness_of_fit()
    mean = np.exp(X @ res.params.to_numpy())
    pearson = (y - mean) ** 2 / mean
    deviance = sm.families.Poisson().resid_dev(y, mean) ** 2
    for m in (0, 7):
        assert_allclose(table.loc[m, "pearson"], pearson[m == CLIENT].sum(), rtol=1e-9)
        assert_allclose(table.loc[m, "deviance"], deviance[m == CLIENT].sum(), rtol=1e-9)
    assert_allclose(table["deviance"].sum(), res.deviance, rtol=1e-9)


def test_p_values_of_clients_that_fit_are_uniform():
    """Of 20 x 12 clients that follow the model about a tenth has p < .1: standard error .02."""
    found = []
    for seed in range(20):
        X, y = rows("poisson", 100 + seed)
        found.append(fit(X, y, "poisson").goodness_of_fit()["p_value"].to_numpy())
    share = np.mean(np.concatenate(found) < 0.1)
    assert 0.03 < share < 0.17
