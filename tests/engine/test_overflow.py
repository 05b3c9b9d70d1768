"""Clients whose numbers overflow where the others agree: set aside and named, and the others fitted."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.glm import GLM

M, N = 30, 60
MESSAGE = (
    r"1 client\(s\) were set aside with weight 0, because their numbers overflow where the others agree: 7\. "
    r".*bring them to the same units, or leave these clients out"
)
KNOWN = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
    "negativebinomial": sm.families.NegativeBinomial(alpha=1.0),
}


def rows(family, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * N), rng.normal(size=(M * N, 3))])
    eta = X @ [1.0, 0.3, -0.3, 0.2]
    mean = np.exp(eta)
    y = {
        "gaussian": lambda: eta + rng.normal(size=M * N),
        "binomial": lambda: (rng.random(M * N) < mean / (1.0 + mean)) * 1.0,
        "poisson": lambda: rng.poisson(mean) * 1.0,
        "gamma": lambda: rng.gamma(2.0, mean / 2.0),
        "negativebinomial": lambda: rng.poisson(mean * rng.gamma(1.0, 1.0, M * N)) * 1.0,
    }[family]()
    return X, y, np.repeat(np.arange(M), N)


def enlarged(family, column=1.0, response=1.0, clients=(7,)):
    """The rows with a covariate, or the response, of some clients multiplied."""
    X, y, client = rows(family)
    odd = np.isin(client, clients)
    X[odd, 2] *= column
    return X, np.where(odd, y * response, y), client


def model(X, y, client, family, **parts):
    # Without alpha it would be estimated; the peer's is 1.
    family = KNOWN[family] if family == "negativebinomial" else family
    return ad.DecentralizedGLM(
        ad.ClientData.from_arrays(X, y, client, **parts), ad.networks.directed_circle(M, 5), family
    )


@pytest.fixture(scope="module")
def poisson():
    return model(*enlarged("poisson", 1000.0), "poisson")


@pytest.fixture(scope="module")
def res(poisson):
    with pytest.warns(ad.ConditionWarning, match=MESSAGE):
        return poisson.fit()


CASES = [
    ("poisson", 1e3, 1.0),
    ("poisson", 1e200, 1.0),
    ("gamma", 1e3, 1.0),
    ("gamma", 1.0, 1e200),
    ("negativebinomial", 1e3, 1.0),
    ("gaussian", 1e20, 1.0),
    ("gaussian", 1e200, 1.0),
    ("gaussian", 1.0, 1e200),
    ("binomial", 1e200, 1.0),
]


@pytest.mark.parametrize("solver", ["rounds", "limit"])
@pytest.mark.parametrize(("family", "column", "response"), CASES)
def test_the_others_are_fitted_as_if_it_were_not_there(family, column, response, solver):
    X, y, client = enlarged(family, column, response)
    found = model(X, y, client, family)
    with pytest.warns(ad.ConditionWarning, match=MESSAGE) as record:
        res = found.fit(solver=solver, tolerance=1e-4 if solver == "limit" else 0.05)
    assert len(record) == 1
    others = client != 7
    weights = res.client_weights
    assert res.converged
    assert weights[7] == 0.0
    assert (weights.drop(7) > 0.9).all()
    plain = sm.GLM(y[others], X[others], KNOWN[family]).fit(tol=1e-14, maxiter=200, cov_type="HC0")
    # With the probabilities of the others as weights.
    rows_count = weights.to_numpy()[client[others]]
    known = sm.GLM(y[others], X[others], KNOWN[family], freq_weights=rows_count).fit(tol=1e-14, maxiter=200)
    assert np.abs((res.params - known.params) / plain.bse).max() < (1e-5 if solver == "limit" else 0.05)
    assert np.abs((res.params - plain.params) / plain.bse).max() < 0.1
    assert_allclose(res.standard_errors("sandwich"), plain.bse, rtol=0.02)
    assert np.isfinite(res.client_params.to_numpy()).all()


def test_estimate_is_that_without_its_step():
    """Weighted DFL on the data without its rows' numbers, with weight 0 for it and the network as it is."""
    X, y, client = enlarged("poisson", 1000.0)
    harmless = model(*rows("poisson"), "poisson")
    with pytest.warns(ad.ConditionWarning, match=MESSAGE):
        res = model(X, y, client, "poisson").fit(solver="limit", tolerance=1e-6)
    known = harmless.fit(ad.DFL(weights=res.client_weights), solver="limit", tolerance=1e-6)
    assert_allclose(res.params, known.params, rtol=1e-6, atol=1e-8)
    assert_allclose(res.client_params, known.client_params, rtol=1e-5, atol=1e-7)


def test_it_is_flagged_in_every_table(res, tmp_path):
    table = res.clients()
    assert table.loc[7, ["gradient", "score", "df", "p_value", "weight", "shift"]].tolist() == [
        np.inf,
        np.inf,
        0,
        0,
        0,
        0,
    ]
    assert table.loc[7, "flagged"]
    assert np.isfinite(table.drop(7).drop(columns="verdict").to_numpy(dtype=float)).all()
    for method in ("score", "mirror"):
        screened = ad.screen(res, method=method)
        assert np.isfinite(screened.to_frame().drop(7).drop(columns="verdict").to_numpy(dtype=float)).all()
        assert "inf" in str(screened)
    assert 7 in ad.screen(res).flagged
    text = " ".join(res.summary().as_text().split())
    assert "1 client(s) were set aside with weight 0" in text
    assert "Down-weighted: 1 clients" in text
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert again.method.details["warnings"] == res.method.details["warnings"]
    assert_array_equal(again.clients(), table)
    assert np.isfinite([res.llf, res.deviance, res.scale]).all()
    for kind in ("sandwich", "nonrobust", "cluster"):
        assert np.isfinite(res.standard_errors(kind)).all()


def test_theory_and_rates_do_without_it(poisson, res):
    X, _, client = enlarged("poisson", 1000.0)
    report = res.check().to_frame()
    mean = np.exp(X[client != 7] @ res.params.to_numpy())
    each = [
        np.linalg.eigvalsh(x.T * m @ x / N)[0]
        for x, m in zip(X[client != 7].reshape(-1, N, 4), mean.reshape(-1, N), strict=True)
    ]
    [found] = report.loc[report.index.isin(["lambda_min"]) | report.eq("lambda_min").any(axis=1), "value"]
    assert_allclose(found, min(each), rtol=1e-9)
    assert np.isfinite(poisson.rates(res).exact)
    assert np.isfinite(poisson.rates(res).bound)


def test_methods_that_give_it_no_weight_work(poisson, res):
    trust = (res.client_weights > 0.5) * 1.0
    known = poisson.fit(ad.DFL(weights=trust), solver="limit", tolerance=1e-4)
    oracle = poisson.fit(ad.Oracle([7]), solver="limit", tolerance=1e-4)
    for found in (known, oracle):
        assert "warnings" not in found.method.details
        assert np.abs((found.params - res.params) / res.bse).max() < 0.05
    assert_array_equal(known.params, oracle.params)
    assert np.isfinite(poisson.advise(method=ad.DFL(weights=trust)).step)


def test_the_oracle_is_that_of_the_others(poisson, res):
    compared = res.oracle([7], data=poisson.data)
    X, y, client = enlarged("poisson", 1000.0)
    known = sm.GLM(y[client != 7], X[client != 7], sm.families.Poisson()).fit(tol=1e-14)
    assert_allclose(compared.coefficients["oracle"], known.params, rtol=1e-8)
    assert_allclose(compared.coefficients["pooled"], known.params, rtol=1e-8)


def test_the_clients_own_data_are_as_they_were(poisson):
    X, y, _ = enlarged("poisson", 1000.0)
    assert_array_equal(poisson.data.X, X)
    assert_array_equal(poisson.data.y, y)
    assert poisson.data.set_aside is None


@pytest.mark.parametrize("method", [ad.TrimmedScores(), ad.ADFL(lam=0.5, measure="norm"), ad.ADFL(lam=0.0)])
def test_other_robust_methods_set_it_aside(method):
    found = model(*enlarged("poisson", 1000.0), "poisson")
    with pytest.warns(ad.ConditionWarning, match=MESSAGE):
        res = found.fit(method, solver="limit")
    assert res.client_weights[7] == 0.0
    assert res.client_weights.max() == 1.0
    assert np.isfinite(res.params).all()


@pytest.mark.parametrize(("family", "column", "response"), [c for c in CASES if max(c[1:]) == 1e200])
def test_methods_that_trust_everybody_name_it(family, column, response):
    found = model(*enlarged(family, column, response), family)
    for method in (ad.DFL(), ad.Bridge("median")):
        with pytest.raises(ValueError, match=r"numbers of 1 client\(s\) overflow where the others agree: 7\. .* aside"):
            found.fit(method)


def test_an_offset_may_overflow_too():
    X, y, client = rows("poisson")
    found = model(X, y, client, "poisson", offset=np.where(client == 7, 1000.0, 0.1))
    with pytest.warns(ad.ConditionWarning, match=MESSAGE):
        res = found.fit(solver="limit", tolerance=1e-4)
    others = client != 7
    weights = res.client_weights.to_numpy()[client[others]]
    known = sm.GLM(
        y[others], X[others], sm.families.Poisson(), offset=np.full(others.sum(), 0.1), freq_weights=weights
    ).fit(tol=1e-14)
    assert np.abs((res.params - known.params) / known.bse).max() < 1e-4
    assert weights.min() > 0.9


def test_several_are_set_aside_among_other_abnormal_ones():
    X, y, client = enlarged("poisson", 1000.0, clients=(0, 3, 29))
    y = np.where(np.isin(client, (10, 11, 12)), 10.0 * y + 20.0, y)
    found = model(X, y, client, "poisson")
    with pytest.warns(ad.ConditionWarning, match=r"3 client\(s\) were set aside .*: 0, 3, 29\."):
        res = found.fit(solver="limit")
    assert res.client_weights.index[res.client_weights < 0.1].tolist() == [0, 3, 10, 11, 12, 29]


def test_a_majority_cannot_be_set_aside():
    found = model(*enlarged("gaussian", 1e200, clients=range(20)), "gaussian")
    with pytest.raises(ValueError, match=r"numbers of 20 of 30 clients overflow: 0, 1, .*More than half"):
        found.fit()
    X, y, client = rows("gaussian")
    with pytest.raises(ValueError, match=r"numbers in X overflow on all clients: the largest is .*e\+200"):
        model(X * 1e200, y, client, "gaussian")


@pytest.mark.parametrize("family", ["poisson", "gaussian", "binomial"])
def test_large_numbers_that_can_be_computed_with_are_judged_by_their_scores(family):
    X, y, client = rows(family)
    wide = np.where((client == 7)[:, None], X * [1.0, 20.0, 1.0, 1.0], X)
    # The client's rows follow the model with the small coefficient that its large covariate has.
    rng = np.random.default_rng(1)
    eta = wide @ [1.0, 0.01, -0.3, 0.2]
    y = {"poisson": rng.poisson(np.exp(eta)) * 1.0, "gaussian": eta + rng.normal(size=len(y))}.get(
        family, (rng.random(len(y)) < 1.0 / (1.0 + np.exp(-eta))) * 1.0
    )
    res = model(wide, y, client, family).fit()
    assert res.client_weights[7] > 0.9
    assert res.converged


def test_a_client_in_other_units_does_not_slow_the_others_down():
    """It has no weight in the end: coordinates in which its curvature is the identity would be the wrong ones."""
    found = model(*enlarged("gaussian", 1e4), "gaussian")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.AdflWarning)
        res = found.fit()
    assert res.converged
    assert res.client_weights[7] < 1e-6


@pytest.mark.parametrize("balance", [False, True])
def test_coordinates_are_those_of_the_trusted_where_the_others_are_far_off(balance):
    X, y, client = enlarged("gaussian", 1e4)
    data = ad.ClientData.from_arrays(X, y, client)
    problem = Problem(GLM(data, model(X, y, client, "gaussian").family), ad.networks.complete(M))
    steps = problem.steps((np.arange(M) != 7) * 1.0, balance=balance)
    metric, _ = problem.coordinates(np.zeros(4), steps.weights)
    others = X[client != 7]
    assert_allclose(metric, np.linalg.inv(others.T @ others / (M * N)), rtol=1e-9, atol=1e-12)


def test_coordinates_stay_where_the_trusted_do_not_identify_all_coefficients():
    X, y, client = rows("gaussian")
    for odd in ((client == 7) * 1.0, np.where(client == 7, X[:, 2] ** 2, X[:, 1])):
        data = ad.ClientData.from_arrays(np.column_stack([X, odd]), y, client)
        problem = Problem(GLM(data, model(X, y, client, "gaussian").family), ad.networks.complete(M))
        plain = problem.coordinates(np.zeros(5))
        assert problem.coordinates(np.zeros(5), (np.arange(M) != 7) * 1.0) is plain


def test_memory_map_is_not_copied(tmp_path):
    X, y, client = enlarged("poisson", 1000.0)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    data = ad.ClientData.from_arrays(mapped, y, client)
    aside = np.arange(M) == 7
    found = data.setting_aside(aside)
    base = found.X
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert base.mode == "c"
    assert_array_equal(found.X, np.where((client == 7)[:, None], 0.0, X))
    assert_array_equal(mapped, X)
    part = ad.ClientData.from_arrays(mapped[N:], y[N:], client[N:])
    assert_array_equal(part.setting_aside(aside[1:]).X, np.where((client == 7)[:, None], 0.0, X)[N:])


def test_observation_weights_are_set_aside_with_the_rows():
    X, y, client = enlarged("poisson", 1000.0)
    found = model(X, y, client, "poisson", weights=np.where(client == 7, 1e100, 2.0))
    with pytest.warns(ad.ConditionWarning, match=MESSAGE):
        res = found.fit(solver="limit")
    known = sm.GLM(y[client != 7], X[client != 7], sm.families.Poisson()).fit(tol=1e-14)
    assert np.abs((res.params - known.params) / known.bse).max() < 0.05
