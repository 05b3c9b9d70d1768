"""HC1, HC2 and HC3, against statsmodels, dense algebra from the definitions, refits and R's definition of leverage."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy import special, stats

import adfl_stats as ad
from adfl_stats.data.batches import one_pass
from adfl_stats.inference import by_row
from adfl_stats.inference.axes import Axes
from adfl_stats.inference.by_row import ByRowSums, row_contrast_df
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import sums_at

N, P, M = 72, 4, 9
CLIENT = np.repeat(np.arange(M), N // M)
KINDS = ("HC0", "HC1", "HC2", "HC3")


def design(seed=3, n=N):
    rng = np.random.default_rng(seed)
    return np.column_stack([np.ones(n), rng.normal(size=n), rng.lognormal(size=n), rng.random(n) < 0.3]), rng


def fit(X, y, client=CLIENT, weights=None, family="gaussian", **carried):
    data = ad.ClientData.from_arrays(X, y, client, **carried)
    model = ad.DecentralizedGLM(data, ad.networks.complete(data.n_clients, labels=data.labels), family)
    return model.fit(ad.DFL(weights), rounds=6000, heterogeneity="none")


def dense(X, score, curvature, weight):
    """HC2, HC3 and Satterthwaite's degrees of freedom by matrices (N, N), for rows with one output.

    `score` and `curvature` are the rows' derivatives of the loss, `weight` what they count in the equation.
    """
    root = X * np.sqrt(curvature)[:, None]
    B = np.linalg.inv((root.T * weight) @ root)
    hat = root @ B @ root.T * weight
    keep = np.eye(len(X)) - hat
    variance = keep @ keep.T
    bread = B @ X.T * weight
    covariances, maps = {}, bread * np.sqrt(curvature) / np.sqrt(np.diag(variance))
    for kind, factor in (("HC2", 1.0 / np.sqrt(np.diag(variance))), ("HC3", 1.0 / (1.0 - np.diag(hat)))):
        scaled = bread * (score * factor)
        covariances[kind] = scaled @ scaled.T

    def df(c):
        along = (c @ maps)[:, None] * keep
        G = along @ along.T
        return np.trace(G) ** 2 / np.sum(G**2)

    return covariances, df


def gathered(X, y, family, theta, trust, client=CLIENT, **carried):
    """Return the record at a given estimate, where no rounds have left an error."""
    data = ad.ClientData.from_arrays(X, y, client, **carried)
    total_weights = trust * data.totals / data.totals.mean()
    found = sums_at(data, family, theta, total_weights).weighted_sums
    (rows,) = one_pass(data, ByRowSums(data, family, theta, total_weights, found, smooth=True))
    return rows, Axes.of(found.information, found.model_meat)


def test_least_squares_is_statsmodels():
    X, rng = design()
    y = X.sum(axis=1) + rng.normal(size=N) * (0.5 + X[:, 2])
    ols = sm.OLS(y, X).fit()
    record, _ = gathered(X, y, Family("gaussian"), ols.params, np.ones(M))
    for kind, mine in (("HC2", record.hc2), ("HC3", record.hc3)):
        assert_allclose(mine, ols.get_robustcov_results(kind).cov_params(), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_names_and_reference_distributions_of_results():
    X, rng = design(4)
    X[:, 2] = np.log(X[:, 2])
    y = X.sum(axis=1) + rng.normal(size=N)
    res, ols = fit(X, y), sm.OLS(y, X).fit()
    for kind in KINDS:
        theirs = ols.get_robustcov_results(kind)
        assert_allclose(res.cov_params(kind), theirs.cov_params(), rtol=1e-8, atol=1e-12)
    assert_allclose(res.conf_int(cov_type="HC1"), ols.get_robustcov_results("HC1").conf_int(), rtol=1e-7, atol=1e-9)
    assert (res.degrees_of_freedom("HC1") == N - P).all()
    assert np.isinf(res.degrees_of_freedom("HC0")).all()
    joint = res.wald_test(np.eye(P)[1:], cov_type="HC1")
    theirs = ols.get_robustcov_results("HC1").f_test(np.eye(P)[1:])
    assert_allclose([joint.statistic, joint.pvalue, joint.df_denom], [theirs.fvalue, theirs.pvalue, N - P], rtol=1e-6)
    careful = res.wald_test(np.eye(P)[1:], cov_type="HC2")
    assert_allclose(careful.df_denom, res.degrees_of_freedom("HC2")[1:].min())
    # 72 rows are few: the default allows for leverage, and says what it refers to.
    assert res.cov_type == "HC2"
    df = res.degrees_of_freedom()
    assert_allclose(res.pvalues, 2 * stats.t.sf(np.abs(res.params / res.bse), df))
    words = " ".join(res.summary().as_text().split())
    assert "(HC2), given the clients' final weights" in words
    assert f"t distribution with {df.min():.1f} to {df.max():.1f} degrees of freedom (Satterthwaite's)" in words
    again = res.get_robustcov_results("HC3")
    assert (again.cov_type, again.use_t) == ("HC3", True)
    assert "HC3" in again.summary().as_text()


@pytest.mark.parametrize("soft", [False, True])
def test_other_families_by_dense_matrices(soft):
    X, rng = design(5)
    weights = rng.uniform(0.2, 1.0, M) if soft else np.ones(M)
    w = rng.uniform(0.5, 2.0, N) if soft else np.ones(N)
    counts = rng.poisson(np.exp(0.3 * X[:, 1])).astype(float)
    gaussian = X.sum(axis=1) + rng.normal(size=N)
    rare = (rng.random(N) < special.expit(X[:, 1] - 1.0)).astype(float)
    theta = np.array([0.1, 0.4, -0.2, 0.1])
    eta = X @ theta
    for family, y, mean, slope in (
        ("gaussian", gaussian, eta, np.ones(N)),
        ("poisson", counts, np.exp(eta), np.exp(eta)),
        ("binomial", rare, special.expit(eta), special.expit(eta) * special.expit(-eta)),
    ):
        carried = {"weights": w} if soft else {}
        record, axes = gathered(X, y, Family(family), theta, weights, **carried)
        covariances, df = dense(X, w * (mean - y), w * slope, weights[CLIENT])
        assert_allclose(record.hc2, covariances["HC2"], rtol=1e-9, atol=1e-14)
        assert_allclose(record.hc3, covariances["HC3"], rtol=1e-9, atol=1e-14)
        contrasts = np.vstack([np.eye(P), [[0, 1, -1, 0], [1, 1, 2, 0.5]]])
        assert_allclose(row_contrast_df(record, axes, contrasts), [df(c) for c in contrasts], rtol=1e-9)


def test_hc2_is_unbiased_under_the_model():
    X, rng = design(6)
    theta = np.zeros(P)
    weights = rng.uniform(0.2, 1.0, M)
    total, truth = np.zeros((P, P)), np.zeros((P, P))
    for _ in range(2000):
        y = rng.normal(size=N)
        estimate = np.linalg.solve((X.T * weights[CLIENT]) @ X, X.T @ (weights[CLIENT] * y))
        total += gathered(X, y, Family("gaussian"), estimate, weights)[0].hc2 / 2000
        truth += np.outer(estimate - theta, estimate - theta) / 2000
    # A mean of 2000 squares of normal variables has a relative standard error of sqrt(2 / 2000) = .032, and so has a
    # variance estimate with few degrees of freedom, less.
    assert_allclose(np.diag(total) / np.diag(truth), 1.0, atol=0.13)
    B = np.linalg.inv((X.T * weights[CLIENT]) @ X)
    exact = B @ ((X.T * weights[CLIENT] ** 2) @ X) @ B
    assert_allclose(np.diag(total) / np.diag(exact), 1.0, atol=0.08)


def test_several_outputs_are_those_of_stacked_residuals():
    """The multinomial: leverage is a matrix; with two classes it is the binomial, and HC3 is near the jackknife."""
    X, rng = design(7, 240)
    X = X[:, :2]
    client = np.repeat(np.arange(8), 30)
    y = (rng.random(240) < special.expit(X[:, 1])).astype(float)
    theta = sm.Logit(y, X).fit(disp=0).params
    two, _ = gathered(X, y, Family("multinomial", outputs=1), theta, np.ones(8), client)
    one, _ = gathered(X, y, Family("binomial"), theta, np.ones(8), client)
    assert_allclose(two.hc2, one.hc2, rtol=1e-9)
    assert_allclose(two.df, one.df, rtol=1e-8)
    classes = rng.integers(0, 3, 240).astype(float)
    logit = sm.MNLogit(classes, X).fit(disp=0, tol=1e-12)
    theta = logit.params.T.ravel()
    three, _ = gathered(X, classes, Family("multinomial", outputs=2), theta, np.ones(8), client)
    shares = logit.predict(X)[:, 1:]
    stacked = np.einsum("ni,jk->nijk", X, np.eye(2)).transpose(0, 2, 1, 3).reshape(240, 4, 2)
    curvature = np.einsum("nj,jk->njk", shares, np.eye(2)) - np.einsum("nj,nk->njk", shares, shares)
    H = np.linalg.inv(np.einsum("nab,nbc,ndc->ad", stacked, curvature, stacked))
    out = np.zeros((4, 4))
    for Z, W, p, k in zip(stacked, curvature, shares, classes, strict=True):
        residual = p - (np.arange(1, 3) == k)
        moved = H @ Z @ np.linalg.solve(np.eye(2) - W @ Z.T @ H @ Z, residual)
        out += np.outer(moved, moved)
    assert_allclose(three.hc3, out, rtol=1e-8)


def test_coefficients_beyond_the_tensor(monkeypatch):
    X, rng = design(8)
    y = X.sum(axis=1) + rng.normal(size=N)
    theta = np.linalg.lstsq(X, y)[0]
    record, axes = gathered(X, y, Family("gaussian"), theta, np.ones(M))
    monkeypatch.setattr(by_row, "MOST_TENSOR", 2)
    lean, _ = gathered(X, y, Family("gaussian"), theta, np.ones(M))
    assert_allclose(lean.df, record.df, rtol=1e-10)
    contrast = np.array([[0.0, 1.0, -1.0, 0.0]])
    assert row_contrast_df(lean, axes, contrast)[0] == lean.df[1:3].min()
    monkeypatch.setattr(by_row, "MOST_PRODUCTS", 0)
    rough, _ = gathered(X, y, Family("gaussian"), theta, np.ones(M))
    # Covariances between rows are left out: a share of about P / N.
    assert_allclose(rough.df, record.df, rtol=3 * P / N)
    assert_allclose(rough.hc2, record.hc2, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_a_coefficient_that_one_row_identifies_has_no_standard_error():
    X, rng = design(9)
    X[:, 3] = np.arange(N) == 5
    y = X[:, :2].sum(axis=1) + rng.normal(size=N)
    res = fit(X, y)
    for kind in ("HC2", "HC3"):
        se = res.standard_errors(kind)
        assert np.isnan(se.iloc[3])
        assert se.iloc[:3].notna().all()
    assert "A coefficient that one row alone identifies has none" in " ".join(res.summary().as_text().split())


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_only_clients_with_weight_count():
    """Rows of clients without weight change nothing: neither covariance nor degrees of freedom."""
    X, rng = design(10)
    y = X.sum(axis=1) + rng.normal(size=N)
    weights = np.ones(M)
    weights[6:] = 1e-12
    inside = CLIENT < 6
    res, alone = fit(X, y, weights=weights), fit(X[inside], y[inside], CLIENT[inside])
    for kind in KINDS:
        assert_allclose(res.cov_params(kind), alone.cov_params(kind), rtol=1e-5)
        assert_allclose(res.degrees_of_freedom(kind), alone.degrees_of_freedom(kind), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_hc1_needs_more_rows_than_coefficients():
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(6), rng.normal(size=(6, 1))])
    y = rng.normal(size=6)
    data = ad.ClientData.from_arrays(X, y, np.repeat([0, 1, 2], 2))
    model = ad.DecentralizedGLM(data, ad.networks.complete(3))
    res = model.fit(ad.DFL([1.0, 0.0, 0.0]), rounds=200, heterogeneity="none")
    with pytest.raises(ValueError, match="rows that carry weight less the coefficients; there are 2 and 2"):
        res.cov_params("HC1")
