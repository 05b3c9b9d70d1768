"""The fit beside the oracle: pooled and local estimates against statsmodels, distances and efficiency by hand."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose

import adfl_stats as ad
from adfl_stats.engine.pooled import local_estimates, pooled_estimate
from adfl_stats.losses.families import resolve_family

# ------------------------------------------------------------------ Newton's method


def responses(family, mean, rng):
    if family == "gaussian":
        return mean + rng.normal(size=len(mean))
    if family == "binomial":
        return rng.binomial(1, mean).astype(float)
    if family == "poisson":
        return rng.poisson(mean).astype(float)
    if family == "gamma":
        return rng.gamma(2.0, mean / 2.0)
    return rng.negative_binomial(1, 1.0 / (1.0 + mean)).astype(float)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "gamma", "negativebinomial"])
def test_pooled_and_local_estimates_are_those_of_statsmodels(family):
    """Columns in very different units, observation weights, an offset, and a start far away."""
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(900), rng.normal(size=(900, 2)) * [100.0, 0.01]])
    shift, weights, client = 0.3 * rng.normal(size=900), rng.uniform(0.5, 2.0, 900), np.repeat(np.arange(6), 150)
    kind = resolve_family(sm.families.NegativeBinomial(alpha=1.0) if family == "negativebinomial" else family)
    y = responses(family, kind.mean(X @ [0.2, -0.004, 40.0] + shift), rng)
    data = ad.ClientData.from_arrays(X, y, client, weights=weights, offset=shift)
    chosen = np.array([True, False, True, True, False, True])

    def wanted(rows):
        glm = sm.GLM(y[rows], X[rows], family=kind.statsmodels(), offset=shift[rows], var_weights=weights[rows])
        return glm.fit(cov_type="HC0", tol=1e-13, maxiter=300)

    for found, known in (
        (pooled_estimate(data, kind, chosen, np.zeros(3)), wanted(chosen[client])),
        *((local_estimates(data, kind, np.ones(6, dtype=bool), np.zeros(3))[m], wanted(client == m)) for m in range(6)),
    ):
        assert_allclose(found.params, known.params, rtol=1e-6)
        assert_allclose(np.sqrt(np.diag(found.covariance)), known.bse, rtol=1e-5)


def test_multinomial_estimate_is_that_of_statsmodels():
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(600), rng.normal(size=600)])
    y = np.argmax(
        np.column_stack([np.zeros(600), X @ [0.3, 1.0], X @ [-0.2, -0.5]]) + rng.gumbel(size=(600, 3)), axis=1
    )
    data = ad.ClientData.from_arrays(X, y.astype(float), np.repeat(np.arange(3), 200))
    found = pooled_estimate(data, resolve_family("multinomial", 3), np.ones(3, dtype=bool), np.zeros(4))
    known = sm.MNLogit(y, X).fit(disp=False, tol=1e-12)
    assert_allclose(found.params, np.asarray(known.params).T.ravel(), rtol=1e-6)


def test_clients_without_an_estimate_of_their_own():
    x = np.linspace(-1, 1, 40)
    X = np.column_stack([np.ones(83), np.concatenate([x, x, [0.0, 0.5, 1.0]])])
    y = np.concatenate([x > 0, np.arange(40) % 3 == 0, [0, 1, 0]]).astype(float)
    data = ad.ClientData.from_arrays(X, y, np.repeat([0, 1, 2], [40, 40, 3]))
    wide = ad.ClientData.from_arrays(
        np.column_stack([X, X**2, X**3])[:, [0, 1, 3, 5]], y, np.repeat([0, 1, 2], [40, 40, 3])
    )
    kind = resolve_family("binomial")
    own = local_estimates(data, kind, np.ones(3, dtype=bool), np.zeros(2))
    assert own[0] is None, "separated"
    assert own[1] is not None
    own = local_estimates(wide, kind, np.array([False, True, True]), np.zeros(4))
    assert own[2] is None, "fewer rows than columns"
    assert 0 not in own, "not asked for"


# ------------------------------------------------------------------ the comparison


@pytest.fixture(scope="module")
def case():
    sim = ad.simulate.paper_linear(0.2, "MP", 3, M=20, n=(40, 80), p=6)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), ad.networks.directed_circle(20, 5))
    return sim, model, model.fit()


def test_table_by_hand(case):
    sim, model, res = case
    found = res.oracle(sim.abnormal, data=model.data)
    normal = ~sim.abnormal[sim.client]
    oracle = sm.OLS(sim.y[normal], sim.X[normal]).fit(cov_type="HC0")
    pooled = sm.OLS(sim.y, sim.X).fit(cov_type="HC0")
    table, inverse = found.to_frame(), np.linalg.inv(oracle.cov_params())
    assert_allclose(found.coefficients["oracle"], oracle.params, rtol=1e-9)
    assert_allclose(found.coefficients["oracle_se"], oracle.bse, rtol=1e-9)
    assert_allclose(found.coefficients["pooled"], pooled.params, rtol=1e-9)
    for name, params, variance in (
        ("fit", res.params.to_numpy(), res.bse.to_numpy() ** 2),
        ("pooled", pooled.params, pooled.bse**2),
    ):
        apart = params - oracle.params
        assert_allclose(table.loc[name, "distance"], np.sqrt(np.mean((apart / oracle.bse) ** 2)), rtol=1e-6)
        assert_allclose(table.loc[name, "worst"], np.max(np.abs(apart / oracle.bse)), rtol=1e-6)
        assert_allclose(table.loc[name, "variance_ratio"], np.mean(oracle.bse**2 / variance), rtol=1e-6)
        assert_allclose(table.loc[name, "efficiency"], 6 / (6 + apart @ inverse @ apart), rtol=1e-6)
    assert table.loc["oracle", ["distance", "worst"]].tolist() == [0.0, 0.0]
    assert table.loc["oracle", ["variance_ratio", "efficiency"]].tolist() == [1.0, 1.0]
    assert table.loc["oracle", ["clients", "rows"]].tolist() == [16, normal.sum()]
    assert table.loc["fit", "clients"] == (res.client_weights > 0.1).sum()
    assert found.efficiency == table.loc["fit", "efficiency"]
    mine = sim.client == found.local.index[0]
    assert_allclose(found.local.iloc[0], np.linalg.lstsq(sim.X[mine], sim.y[mine])[0], rtol=1e-8)
    assert len(found.local) == 16


def test_efficiency_of_a_local_estimate_is_its_share_of_the_rows():
    """Clean Gaussian clients: d is the local error less a part of it, and P / (P + E d'V^-1 d) = n / N."""
    sim = ad.simulate.paper_linear(0, None, 4, M=60, n=50, p=5)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), ad.networks.complete(60))
    table = model.fit(ad.DFL(), keep_data=True).oracle([]).to_frame()
    # d'V^-1 d is a mean over 60 clients of about 60 chi-square(5), relative error sqrt(2 / 5 / 60) = .08; rows of
    # X and the denominator n - p = 45 of 50 add about as much, upwards.
    assert 0.75 / 60 < table.loc["local", "efficiency"] < 1.2 / 60
    assert table.loc["fit", "efficiency"] > 0.99
    assert table.loc["clients", "efficiency"] > 0.99


@pytest.mark.parametrize("as_given", [list, set, np.array, lambda labels: pd.Index(labels)])
def test_abnormal_clients_in_any_form(case, as_given):
    sim, model, res = case
    labels = list(np.flatnonzero(sim.abnormal))
    found = res.oracle(as_given(labels), data=model.data).to_frame()
    pd.testing.assert_frame_equal(found, res.oracle(sim.abnormal, data=model.data).to_frame())


def test_kept_data_are_used(case):
    sim, model, _ = case
    assert model.fit(ad.DFL(), keep_data=True).oracle(sim.abnormal).efficiency < 0.5


def test_text_and_html(case):
    sim, model, res = case
    found = res.oracle(sim.abnormal, data=model.data)
    text = str(found)
    assert "all clients pooled" in text
    assert f"{found.efficiency:.3f}" in text
    assert "Farthest from it: x" in text
    assert max(map(len, text.splitlines())) <= 79
    assert "all clients pooled" in found._repr_html_()
    assert "oracle_se" in found._repr_html_()


def test_medians_have_no_variance_ratio(case):
    sim, model, _ = case
    table = model.fit(ad.Bridge("median")).oracle(sim.abnormal, data=model.data).to_frame()
    assert np.isnan(table.loc["fit", "variance_ratio"])
    assert np.isfinite(table.loc["fit", "efficiency"])


def fewer_rows(model):
    return ad.ClientData.from_arrays(model.data.X[1:], model.data.y[1:], np.repeat(range(20), model.data.sizes)[1:])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda res, model: res.oracle([1]), ValueError, "hold no data.*pass data=model.data, or fit with keep_data"),
        (
            lambda res, model: res.oracle([1], data=model),
            TypeError,
            "data is a DecentralizedGLM; pass the model's data",
        ),
        (
            lambda res, model: res.oracle([1], data=object.__new__(ad.RankData)),
            TypeError,
            "data is a RankData, of which each rank.*; fit with keep_data=True, and leave data out",
        ),
        (lambda res, model: res.oracle([1], data=fewer_rows(model)), ValueError, "data are not those of the fit: they"),
        (lambda res, model: res.oracle([99], data=model.data), ValueError, "abnormal names 99, not among the clients"),
    ],
)
def test_bad_arguments(case, call, error, message):
    _, model, res = case
    with pytest.raises(error, match=message):
        call(res, model)


def penalised(absent, penalty):
    """A fit of four clients, of which some have zeros for a column."""
    rng = np.random.default_rng(5)
    X, client = rng.normal(size=(80, 2)), np.repeat(np.arange(4), 20)
    X[client < absent, 1] = 0.0
    data = ad.ClientData.from_arrays(X, X.sum(axis=1) + rng.normal(size=80), client)
    return ad.DecentralizedGLM(data, ad.networks.complete(4), penalty=penalty).fit(ad.DFL(), keep_data=True)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_coefficient_that_a_client_has_from_the_penalty_alone_has_no_variance_ratio():
    res = penalised(1, ad.Ridge(0.1))
    found, local = res.oracle([3]), []
    assert_allclose(found.local.iloc[0, 1], 0.0, atol=1e-12)
    for m in range(3):
        rows = slice(20 * m, 20 * m + 20)
        X, theta = res.data.X[rows], found.local.iloc[m].to_numpy()
        # The penalty is beside the mean of 20 losses.
        bread, scores = np.linalg.inv(X.T @ X + 2.0 * np.eye(2)), X * (res.data.y[rows] - X @ theta)[:, None]
        local.append(np.diag(bread @ scores.T @ scores @ bread))
    expected = found.coefficients["oracle_se"].to_numpy() ** 2
    with np.errstate(divide="ignore"):
        ratios = expected / np.array(local)
    assert np.isinf(ratios[0, 1])
    by_hand = (ratios[:, 0].mean() + ratios[1:, 1].mean()) / 2
    assert_allclose(found.to_frame().loc["local", "variance_ratio"], by_hand, rtol=1e-6)


@pytest.mark.parametrize("penalty", [None, ad.Ridge(0.1)])
def test_normal_clients_that_determine_too_little(penalty):
    res = penalised(3, penalty)
    with pytest.raises(ValueError, match="rows of the 3 clients outside abnormal do not determine all 2 coefficients"):
        res.oracle([3])
