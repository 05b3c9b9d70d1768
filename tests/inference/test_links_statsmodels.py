"""Families with other links than the usual one, fitted through the network: statsmodels' pooled fits, files, tables."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.cli.main import main

L, F = sm.families.links, sm.families
M = 8
SIZES = np.array([30, 45, 60, 25, 80, 50, 40, 70])
N = int(SIZES.sum())
CLIENT = np.repeat(np.arange(M), SIZES)
NAMES = ["const", "x1", "x2"]
POWER = 1.5

# The family as statsmodels has it, and the parameter behind the responses.
KINDS = {
    "probit": (F.Binomial(L.Probit()), [0.3, 0.5, -0.4]),
    "cloglog": (F.Binomial(L.CLogLog()), [-0.3, 0.5, -0.4]),
    "loglog": (F.Binomial(L.LogLog()), [0.3, 0.5, -0.4]),
    "poisson-identity": (F.Poisson(L.Identity()), [3.0, 1.0, -0.8]),
    "poisson-sqrt": (F.Poisson(L.Sqrt()), [2.0, 0.5, -0.4]),
    "gaussian-log": (F.Gaussian(L.Log()), [1.0, 0.5, -0.4]),
    "gamma-inverse": (F.Gamma(L.InversePower()), [1.0, 0.3, -0.4]),
    "gamma-identity": (F.Gamma(L.Identity()), [3.0, 1.0, -0.8]),
    "inversegaussian-log": (F.InverseGaussian(L.Log()), [0.3, 0.5, -0.4]),
    "inversegaussian-squared": (F.InverseGaussian(L.InverseSquared()), [1.0, 0.3, -0.4]),
    "tweedie": (F.Tweedie(L.Log(), var_power=POWER), [0.3, 0.5, -0.4]),
}
OFFSETS = ("probit", "cloglog", "gaussian-log", "inversegaussian-log", "tweedie", "poisson-identity", "gamma-inverse")
CASES = [
    (name, extra) for name in KINDS for extra in ("plain", "weights", "offset") if extra != "offset" or name in OFFSETS
]
# statsmodels warns of links that allow means outside the family's domain.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*link function does not respect the domain"),
    pytest.mark.filterwarnings("ignore:cov_type not fully supported with var_weights"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in power"),
]


def draw(name, mu, rng):
    kind = KINDS[name][0]
    if isinstance(kind, F.Binomial):
        return (rng.random(N) < mu).astype(float)
    if isinstance(kind, F.Poisson):
        return rng.poisson(mu).astype(float)
    if isinstance(kind, F.Gaussian):
        return mu + rng.normal(size=N)
    if isinstance(kind, F.Gamma):
        return rng.gamma(2.0, mu / 2.0)
    if isinstance(kind, F.InverseGaussian):
        return rng.wald(mu, 4.0)
    # A sum of a Poisson number of gamma claims is Tweedie's compound law.
    claims = rng.poisson(2.0 * np.sqrt(mu))
    return np.where(claims > 0, rng.gamma(np.maximum(claims, 1), 0.5 * np.sqrt(mu)), 0.0)


@cache
def rows(name, extra="plain"):
    rng = np.random.default_rng(11)
    X = np.column_stack([np.ones(N), rng.uniform(-1.0, 1.0, size=(N, 2)) + rng.uniform(-0.2, 0.2, size=(M, 2))[CLIENT]])
    carried = {"weights": rng.uniform(0.3, 2.5, size=N), "offset": rng.uniform(0.0, 0.5, size=N)}
    carried = {key: value for key, value in carried.items() if key == extra}
    kind, theta = KINDS[name]
    return X, draw(name, kind.link.inverse(X @ theta + carried.get("offset", 0.0)), rng), carried


def model(name, extra="plain", network=None):
    X, y, carried = rows(name, extra)
    data = ad.ClientData.from_arrays(X, y, CLIENT, names=NAMES, **carried)
    return ad.DecentralizedGLM(data, network or ad.networks.complete(M), KINDS[name][0])


@cache
def fitted(name, extra="plain", solver="limit"):
    """DFL on the complete network: the pooled estimate, by the limit or by gradient descent."""
    words = {"solver": "limit"} if solver == "limit" else {"rounds": 1500}
    return model(name, extra).fit(ad.DFL(), heterogeneity="none", **words)


@cache
def pooled(name, extra="plain", cov_type="nonrobust"):
    X, y, carried = rows(name, extra)
    words = {{"weights": "var_weights"}.get(key, key): value for key, value in carried.items()}
    options = {"cov_kwds": {"groups": CLIENT}} if cov_type == "cluster" else {}
    return sm.GLM(y, X, KINDS[name][0], **words).fit(tol=1e-14, maxiter=300, cov_type=cov_type, **options)


@pytest.mark.parametrize("solver", ["limit", "rounds"])
@pytest.mark.parametrize(("name", "extra"), CASES)
def test_the_estimate_is_the_pooled_one(name, extra, solver):
    assert_allclose(fitted(name, extra, solver).params, pooled(name, extra).params, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("cov_type", ["nonrobust", "HC0", "cluster"])
@pytest.mark.parametrize(("name", "extra"), CASES)
def test_covariances_have_the_information_that_statsmodels_takes(name, extra, cov_type):
    # Expected in the model-based one; in sandwiches the observed one, also after IRLS.
    expected = np.asarray(pooled(name, extra, cov_type).cov_params())
    unit = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    found = fitted(name, extra).cov_params(cov_type).to_numpy()
    assert_allclose(found / unit, expected / unit, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["probit", "cloglog", "gaussian-log", "gamma-identity", "inversegaussian-log"])
def test_the_sandwich_has_the_observed_information_inside(name):
    X, y, _ = rows(name)
    reference = sm.GLM(y, X, KINDS[name][0])
    params = pooled(name).params
    scores = reference.score_obs(params, scale=1.0)
    bread = {observed: np.linalg.inv(-reference.hessian(params, scale=1.0, observed=observed)) for observed in (0, 1)}
    errors = {key: np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse)) for key, inverse in bread.items()}
    assert_allclose(fitted(name).standard_errors("HC0"), errors[1], rtol=1e-6)
    assert np.abs(errors[0] / errors[1] - 1.0).max() > 1e-4


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_fit_statistics_are_those_of_the_pooled_fit(name, extra):
    found, expected = fitted(name, extra), pooled(name, extra)
    assert_allclose(found.llf, expected.llf, rtol=1e-9)
    assert_allclose(found.deviance, expected.deviance, rtol=1e-9)
    assert_allclose(found.scale, expected.scale, rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_predictions_and_their_intervals_are_those_of_statsmodels(name):
    X = rows(name)[0][:6]
    found = fitted(name).get_prediction(X, cov_type="HC0").summary_frame(0.1)
    expected = pooled(name, cov_type="HC0").get_prediction(X).summary_frame(alpha=0.1)
    columns = ["mean", "mean_se", "mean_ci_lower", "mean_ci_upper"]
    assert list(found.columns) == columns
    assert_allclose(found[columns[:2]], expected[columns[:2]], rtol=1e-6)
    # statsmodels carries the ends of the interval through links that decrease without turning it round.
    ends = np.sort(expected[columns[2:]].to_numpy(), axis=1)
    assert_allclose(found[columns[2:]], ends, rtol=1e-6)
    assert (found["mean_ci_lower"] < found["mean"]).all()


@pytest.mark.parametrize("name", KINDS)
def test_results_are_saved_with_their_link_and_named_in_the_summary(name, tmp_path):
    res = fitted(name)
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert again.family == res.family
    assert type(again.family) is type(res.family)
    X = rows(name)[0][:6]
    assert_array_equal(again.predict(X), res.predict(X))
    # Long names are abbreviated, so that the head keeps its width.
    label = {"tweedie": "tweedie 1.5", "inversegaussian": "inv. Gauss", "negativebinomial": "neg. binomial"}
    link = {"inverse squared": "1/mu^2"}.get(res.family.link, res.family.link)
    assert f"{label.get(res.family.name, res.family.name)} ({link})" in str(again.summary())


@pytest.mark.parametrize("name", KINDS)
def test_the_default_fit_sets_a_bad_client_aside_and_keeps_the_others(name):
    X, y, _ = rows(name)
    kind = KINDS[name][0]
    bad = CLIENT == 4
    # Labels against the slopes, but for every tenth; or responses in another unit and order.
    against = np.where(np.arange(N) % 10 == 0, X[:, 1] > X[:, 2], X[:, 1] < X[:, 2])
    wrong = against.astype(float) if isinstance(kind, F.Binomial) else y[::-1] * 4.0
    spoilt = np.where(bad, wrong, y)
    data = ad.ClientData.from_arrays(X, spoilt, CLIENT, names=NAMES)
    with pytest.warns(ad.SelectionWarning):
        res = ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 3), kind).fit(heterogeneity="none")
    expected = sm.GLM(y[~bad], X[~bad], kind).fit()
    assert res.client_weights.iloc[4] < 0.05
    assert_allclose((res.params - expected.params) / expected.bse, 0.0, atol=0.5)
    assert np.isfinite(res.clients()["score"]).all()


@pytest.mark.parametrize("name", KINDS)
def test_the_oracle_is_the_pooled_fit_of_the_normal_clients(name):
    """By Newton's method, or Fisher's scoring where the loss is not convex."""
    X, y, _ = rows(name)
    normal = CLIENT != 4
    expected = sm.GLM(y[normal], X[normal], KINDS[name][0]).fit(tol=1e-14, maxiter=300, cov_type="HC0")
    found = fitted(name).oracle([4], data=model(name).data)
    assert_allclose(found.coefficients["oracle"], expected.params, rtol=1e-6)
    assert_allclose(found.coefficients["oracle_se"], expected.bse, rtol=1e-6)
    # A client alone: the one with the most rows of the others.
    alone = CLIENT == 7
    expected = sm.GLM(y[alone], X[alone], KINDS[name][0]).fit(tol=1e-14, maxiter=300)
    assert_allclose(found.local.loc[7], expected.params, rtol=1e-6)


# ------------------------------------------------------------------ domains


def dummies(seed=3):
    """Two groups without a constant column, and a covariate."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1.0, 1.0, size=(N, 2))
    return np.column_stack([z[:, 0] > 0, z[:, 0] <= 0, z[:, 1]]).astype(float), rng


@pytest.mark.parametrize(("kind", "unit"), [(F.Gamma(L.Identity()), 1e-6), (F.Gamma(L.InversePower()), 1e6)])
def test_starts_lie_in_the_domain_without_a_constant_and_in_any_unit(kind, unit):
    X, rng = dummies()
    y = unit * rng.gamma(2.0, kind.link.inverse(X @ [1.0, 2.0, 0.3]) / 2.0)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, CLIENT), ad.networks.complete(M), kind)
    res = model.fit(ad.DFL(), rounds=2000, heterogeneity="none")
    assert_allclose(res.params, sm.GLM(y, X, kind).fit(tol=1e-14, maxiter=200).params, rtol=1e-6)


def test_means_that_come_near_zero_are_fitted():
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(N), rng.uniform(-1.0, 1.0, size=N)])
    y = rng.poisson(1.0 + 0.9 * X[:, 1]).astype(float)
    kind = F.Poisson(L.Identity())
    expected = sm.GLM(y, X, kind).fit(tol=1e-14, maxiter=200)
    assert expected.fittedvalues.min() < 0.2
    for words in ({"rounds": 5000}, {"solver": "limit"}):
        res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, CLIENT), ad.networks.complete(M), kind).fit(
            ad.DFL(), heterogeneity="none", **words
        )
        assert_allclose(res.params, expected.params, rtol=1e-6)


def test_an_estimate_outside_the_domain_is_told():
    rng = np.random.default_rng(5)
    x = rng.normal(size=N)
    # A mean that is zero for most rows: no line with positive values everywhere comes near it.
    y = rng.poisson(np.maximum(0.2 + x, 0.0)).astype(float)
    data = ad.ClientData.from_arrays(np.column_stack([np.ones(N), x]), y, CLIENT)
    model = ad.DecentralizedGLM(data, ad.networks.complete(M), ad.family("poisson", "identity"))
    with pytest.warns(
        ad.ConditionWarning, match=r"row\(s\) have a linear predictor that family 'poisson' with the link"
    ):
        res = model.fit(ad.DFL(), rounds=300, heterogeneity="none")
    assert "does not allow (it must be positive)" in " ".join(str(res.summary()).split())
    assert np.isfinite(res.params).all()


def test_a_step_that_leaves_the_domain_is_told():
    with pytest.raises(ad.DivergenceError, match="the iteration diverged in round"):
        model("gamma-identity").fit(ad.DFL(), step=500.0, rounds=300)


# ------------------------------------------------------------------ the shell


def test_the_shell_takes_a_link_and_a_power(tmp_path, capsys):
    edges = pd.DataFrame([(k, (k + 1) % M) for k in range(M)], columns=["source", "target"])
    edges.to_csv(tmp_path / "edges.csv", index=False)
    for name, words in (("probit", ["binomial", "--link", "probit"]), ("tweedie", ["tweedie", "--var-power", "1.5"])):
        X, y, _ = rows(name)
        frame = pd.DataFrame(X[:, 1:], columns=NAMES[1:]).assign(y=y, site=CLIENT)
        frame.to_csv(tmp_path / "data.csv", index=False)
        call = ["fit", str(tmp_path / "data.csv"), "--formula", "y ~ x1 + x2", "--client", "site", "--method", "dfl"]
        main([*call, "--edges", str(tmp_path / "edges.csv"), "--family", *words])
        assert {"probit": "binomial (probit)", "tweedie": "tweedie 1.5 (log)"}[name] in capsys.readouterr().out
