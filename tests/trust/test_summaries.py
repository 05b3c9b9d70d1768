"""What is taken from each client, against dense algebra with statsmodels' families, row by row."""

import numpy as np
import pytest
import statsmodels.api as sm
from awkward_clients import SIZES, drawn
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.data import client_data as data_module
from adfl_stats.losses.families import Family
from adfl_stats.trust.summaries import summarise

KNOWN = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}


def row(name, eta, y):
    """Return a row's score in eta (q,), its information (q, q) and its squared Pearson residual."""
    if name == "multinomial":
        chance = np.exp(np.append(0.0, eta))
        chance /= chance.sum()
        hit = np.arange(len(chance)) == y
        information = np.diag(chance[1:]) - np.outer(chance[1:], chance[1:])
        return (hit - chance)[1:], information, np.sum((hit - chance) ** 2 / chance) / len(eta)
    known = KNOWN[name]
    mean, slope = known.link.inverse(eta[0]), known.link.inverse_deriv(eta[0])
    variance = known.variance(mean)
    return np.array([(y - mean) * slope / variance]), np.array([[slope**2 / variance]]), (y - mean) ** 2 / variance


def sums(data, name, theta, m):
    """Return the client's scores (n, P), informations (n, P, P) and squared Pearson residuals (n,) by row."""
    scores, informations, squares = [], [], []
    for i in range(data.offsets[m], data.offsets[m + 1]):
        x, w = data.X[i], 1.0 if data.row_weights is None else data.row_weights[i]
        eta = theta.reshape(-1, len(x)) @ x + (0.0 if data.linear_offset is None else data.linear_offset[i])
        score, information, square = row(name, eta, data.y[i])
        scores.append(w * np.kron(score, x))
        informations.append(w * np.kron(information, np.outer(x, x)))
        squares.append(w * square)
    return np.array(scores), np.array(informations), np.array(squares)


def own_estimate(data, name, theta, m):
    """One scoring step in the linear model, else four of bounded length."""
    total = data.totals[m]
    for _ in range(1 if name == "gaussian" else 4):
        scores, informations, _ = sums(data, name, theta, m)
        s, J = scores.sum(axis=0), informations.sum(axis=0)
        unit = np.sqrt(np.maximum(np.diag(J), 1e-300))
        step = np.linalg.pinv(J / np.outer(unit, unit), rcond=1e-10, hermitian=True) / np.outer(unit, unit) @ s
        length = 0.0 if name == "gaussian" else np.sqrt(s @ step / total)
        theta = theta + step / max(length / 0.5, 1.0)
    return theta


@pytest.mark.parametrize("extra", ["plain", "weights and offset"])
@pytest.mark.parametrize("name", [*KNOWN, "multinomial"])
def test_summaries_are_dense_algebra(name, extra, monkeypatch):
    # In blocks of 12 rows some batches hold many clients, some clients several pieces.
    monkeypatch.setattr(data_module, "BLOCK_ROWS", 12)
    X, y, client, rng = drawn(name)
    more = {} if extra == "plain" else {"weights": rng.uniform(0.5, 2.0, len(y)), "offset": rng.normal(size=len(y)) / 3}
    data = ad.ClientData.from_arrays(X, y, client, **more)
    family = Family(name, outputs=2 if name == "multinomial" else 1)
    theta = rng.normal(size=4 * family.outputs) / np.tile([3.0, 30.0, 0.3, 3.0], family.outputs)
    found = summarise(data, family, theta)
    # Labels have no dispersion of their own; shares with weights have.
    known = name == "multinomial" or (name == "binomial" and extra == "plain")
    for m in range(len(SIZES)):
        scores, informations, _ = sums(data, name, theta, m)
        s, J = scores.sum(axis=0), informations.sum(axis=0)
        unit = np.sqrt(np.maximum(np.diag(J), 1e-300))
        pseudo = np.linalg.pinv(J / np.outer(unit, unit), rcond=1e-10, hermitian=True) / np.outer(unit, unit)
        rank = np.linalg.matrix_rank(J / np.outer(unit, unit), rtol=1e-10, hermitian=True)
        A, z = found.factors[m], found.scores[m]
        assert found.ranks[m] == rank
        assert np.sum(np.abs(A).sum(axis=1) > 0) == rank
        assert_allclose(A.T @ A, J, rtol=1e-9, atol=1e-10 * np.abs(J).max())
        assert_allclose(A.T @ z, s, rtol=1e-8, atol=1e-9 * np.abs(s).max())
        assert_allclose(z @ z, s @ pseudo @ s, rtol=1e-8)
        own = theta if known else own_estimate(data, name, theta, m)
        scores, informations, squares = sums(data, name, own, m)
        residual_df = SIZES[m] - (0 if known else rank)
        if residual_df <= 0:
            assert np.isnan(found.dispersions[m])
            continue
        assert_allclose(found.dispersions[m], squares.sum() / residual_df, rtol=1e-7)
        shares = pseudo @ informations
        expected = np.trace(shares, axis1=1, axis2=2) ** 2 + 2 * np.trace(shares @ shares, axis1=1, axis2=2)
        assert_allclose(found.expected_peaks[m], expected.sum(), rtol=1e-7)
        peaks = np.einsum("ij,jk,ik->i", scores, pseudo, scores) ** 2
        assert_allclose(found.peaks[m], peaks.sum(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")
@pytest.mark.parametrize("weighted", [False, True])
def test_dispersion_is_the_residual_variance_of_a_regression_of_its_own(weighted):
    """However far the client is from the common parameter."""
    X, y, client, rng = drawn("gaussian", seed=5)
    y = y + 50.0 * client * X[:, 0]
    weights = rng.uniform(0.5, 2.0, len(y)) if weighted else np.ones(len(y))
    data = ad.ClientData.from_arrays(X, y, client, weights=weights if weighted else None)
    found = summarise(data, Family("gaussian"), np.zeros(4))
    for m in np.flatnonzero(found.sizes > found.ranks):
        mine = client == m
        known = sm.WLS(y[mine], X[mine], weights[mine]).fit()
        assert_allclose(found.dispersions[m], known.mse_resid, rtol=1e-7)
    # A step along the way leaves the Gaussian dispersion, information and shape as they are.
    step = rng.normal(size=4)
    there, moved = summarise(data, Family("gaussian"), step), found.moved(step)
    assert_allclose(moved.scores, there.scores, rtol=1e-8, atol=1e-8 * np.abs(there.scores).max())
    assert_allclose(moved.dispersions, there.dispersions, rtol=1e-6)


def test_a_client_that_is_set_aside_has_no_score():
    X, y, client, _ = drawn("poisson")
    data = ad.ClientData.from_arrays(X, y, client)
    theta = np.array([0.1, 0.01, -0.2, 0.3])
    whole = summarise(data, Family("poisson"), theta)
    found = summarise(data.setting_aside(np.arange(10) == 5), Family("poisson"), theta)
    assert found.ranks[5] == 0
    assert not found.scores[5].any()
    assert not found.factors[5].any()
    others = np.arange(10) != 5
    for name in ("scores", "factors", "ranks", "dispersions", "expected_peaks", "peaks"):
        assert_array_equal(getattr(found, name)[others], getattr(whole, name)[others])


def shape_of(scale, M=200, n=400):
    """Return the shape for a constant and one covariate x ~ N(0, 1), with noise of standard deviation scale(x)."""
    rng = np.random.default_rng(21)
    X = np.column_stack([np.ones(M * n), rng.normal(size=M * n)])
    y = rng.normal(size=M * n) * scale(X[:, 1])
    return summarise(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), Family("gaussian"), np.zeros(2)).shape


def test_shape_of_the_variance():
    # 80 000 rows: standard errors of the entries .005 (and .007 on the diagonal, by x^4 e^4).
    assert_allclose(shape_of(np.ones_like), np.eye(2), atol=0.04)
    # Weights exp(x) move x ~ N(0, 1) to N(1, 1): moments 1, 1 and 2. By the eighth moments of a lognormal the last
    # has a standard error of .07.
    assert_allclose(shape_of(lambda x: np.exp(x / 2)), [[1.0, 1.0], [1.0, 2.0]], atol=0.25)
