"""Inference by client against dense matrices, the jackknife and statsmodels."""

import itertools

import numpy as np
import pytest
import statsmodels.api as sm
from clustered_by_hand import CLIENT, KINDS, SIZES, M, N, P, fit, logistic_rows
from numpy.testing import assert_allclose
from scipy import integrate, linalg, optimize, special, stats

import adfl_stats as ad
from adfl_stats.inference import clustered
from adfl_stats.inference.client_contrasts import contrast_df, joint_df, satterthwaite_df
from adfl_stats.inference.clustered import gather_clustered
from adfl_stats.inference.t_reference import dependent_df
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import sums_at

SOFT = np.array([1.0, 0.4, 0.9, 0.7, 1.0, 1.0, 0.2, 0.6, 1.0])
CONTRASTS = np.array([[0.0, 1.0, -1.0], [1.0, 0.5, 2.0]])


def rows(seed=4):
    """A constant, a covariate that varies within clients and one that does not, and a response by client."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(N), rng.normal(size=N), rng.normal(size=M)[CLIENT]])
    return X, X @ [1.0, 0.5, 0.0] + rng.normal(size=M)[CLIENT] + rng.normal(size=N)


def power(matrix, exponent):
    """A power of a nonnegative definite matrix, zero where it has no rank."""
    values, vectors = np.linalg.eigh(matrix)
    keep = values > 1e-9 * values[-1]
    return (vectors[:, keep] * values[keep] ** exponent) @ vectors[:, keep].T


def by_rows(X, y, client, weight):
    """CR2 of least squares with a weight for each row, all matrices (N, N), independent rows as the working model.

    Returns the estimate, the clients' contributions (m, P), and the maps (m, P, N) from the rows' errors to these.
    """
    H = np.linalg.inv((X.T * weight) @ X)
    hat = X @ H @ X.T * weight
    keep = np.eye(len(y)) - hat
    residual, maps = keep @ y, []
    for m in np.unique(client):
        at = client == m
        adjusted = power((keep @ keep.T)[np.ix_(at, at)], -0.5)
        maps.append((H @ X[at].T * weight[at]) @ adjusted @ keep[at])
    maps = np.array(maps)
    assert_allclose(residual, y - hat @ y)
    return H @ X.T @ (weight * y), maps @ y, maps


def satterthwaite(maps, c):
    along = np.einsum("mpn,p->mn", maps, c)
    G = along @ along.T
    return np.trace(G) ** 2 / np.sum(G**2)


def covered(c, maps, row):
    """P(|z| <= c |b|) of z = row e and b = maps e with standard normal e, by Imhof's integral."""
    both = np.vstack([c * maps, row])
    half = power(both @ both.T, 0.5)
    values = np.linalg.eigvalsh((half * np.r_[np.ones(len(maps)), -1.0]) @ half)

    def integrand(u):
        return np.sin(0.5 * np.arctan(values * u).sum()) / (u * np.prod((1.0 + (values * u) ** 2) ** 0.25))

    scale = np.abs(values).max()
    pieces = np.r_[0.0, np.geomspace(1e-3, 1e8, 45)] / scale
    return 0.5 + sum(integrate.quad(integrand, *ends, epsabs=1e-12)[0] for ends in itertools.pairwise(pieces)) / np.pi


def dependent(maps, rows, c):
    """Degrees of freedom at which t has the .95 quantile of |z| / |b| by contrast, from rows (P, N) of the estimate."""
    along, row = np.einsum("mpn,p->mn", maps, c), c @ rows
    quantile = optimize.brentq(lambda q: covered(q, along, row) - 0.95, 1.0, 30.0, xtol=1e-9)
    return optimize.brentq(lambda df: stats.t.isf(0.025, df) - quantile, 0.5, 1e4, xtol=1e-9)


def hotelling(maps, contrasts):
    """eta of a joint test, with the variances of products of normal variables added up over pairs of clients."""
    along = np.einsum("mpn,qp->qmn", maps, contrasts)
    mean = np.einsum("smn,tmn->st", along, along)
    along = np.einsum("sq,qmn->smn", np.linalg.inv(np.linalg.cholesky(mean)), along)
    G = np.einsum("smn,tkn->stmk", along, along)
    q = len(contrasts)
    total = sum(
        np.sum(G[s, s] * G[t, t]) + np.sum(G[s, t] * G[t, s]) for s in range(q) for t in range(q)
    )  # Var of sum_m g_ms g_mt
    return q * (q + 1) / total


# ------------------------------------------------------------------ definitions


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
@pytest.mark.parametrize("weighting", ["sample", "client"])
@pytest.mark.parametrize("weights", [None, SOFT], ids=["equal", "soft"])
def test_cr2_and_its_degrees_of_freedom_by_dense_matrices(weights, weighting):
    """A client has fewer rows than columns, and weights make rows of clients count differently."""
    X, y = rows()
    trust = np.ones(M) if weights is None else weights
    per_row = (trust if weighting == "sample" else trust / SIZES)[CLIENT]
    res = fit(X, y, weights=weights, weighting=weighting)
    params, parts, maps = by_rows(X, y, CLIENT, per_row)
    assert_allclose(res.params, params, rtol=1e-8)
    assert_allclose(res.cov_params("CR2"), parts.T @ parts, rtol=1e-8)
    both = np.vstack([np.eye(P), CONTRASTS])
    found = satterthwaite_df(res.record.clustered, both)
    assert_allclose(found, [satterthwaite(maps, c) for c in both], rtol=1e-8)
    estimator = np.linalg.solve((X.T * per_row) @ X, X.T * per_row)
    assert_allclose(res.degrees_of_freedom("CR2"), [dependent(maps, estimator, c) for c in np.eye(P)], rtol=1e-5)
    tested = res.t_test(CONTRASTS, "CR2")
    df = [dependent(maps, estimator, c) for c in CONTRASTS]
    assert_allclose(tested.df_denom, df, rtol=1e-5)
    t = CONTRASTS @ params / np.sqrt(np.diag(CONTRASTS @ parts.T @ parts @ CONTRASTS.T))
    assert_allclose(tested.pvalue, 2 * stats.t.sf(np.abs(t), df), rtol=1e-4)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_joint_tests_are_hotellings():
    X, y = rows()
    res = fit(X, y, weights=SOFT)
    params, parts, maps = by_rows(X, y, CLIENT, SOFT[CLIENT])
    eta = hotelling(maps, CONTRASTS)
    effect = CONTRASTS @ params
    Q = effect @ np.linalg.solve(CONTRASTS @ parts.T @ parts @ CONTRASTS.T, effect)
    found = res.wald_test(CONTRASTS, "CR2")
    F = (eta - 1.0) / (2.0 * eta) * Q
    assert_allclose([found.fvalue, found.df_num, found.df_denom], [F, 2, eta - 1.0], rtol=1e-7)
    assert_allclose(found.pvalue, stats.f.sf(F, 2, eta - 1.0), rtol=1e-6)
    one, t = res.wald_test("x1 = 0", "CR2"), res.t_test("x1 = 0", "CR2")
    assert_allclose([one.fvalue, one.pvalue], [t.tvalue.item() ** 2, t.pvalue.item()], rtol=1e-10)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
@pytest.mark.parametrize("weights", [None, SOFT], ids=["equal", "soft"])
def test_cr3_is_the_jackknife_over_clients(weights):
    X, y = rows()
    weight = (np.ones(M) if weights is None else weights)[CLIENT]

    def estimate(keep):
        return np.linalg.lstsq(X[keep] * np.sqrt(weight[keep])[:, None], y[keep] * np.sqrt(weight[keep]))[0]

    steps = np.array([estimate(m != CLIENT) for m in range(M)]) - estimate(CLIENT >= 0)
    assert_allclose(fit(X, y, weights=weights).cov_params("CR3"), (M - 1) / M * steps.T @ steps, rtol=1e-8)


@pytest.mark.parametrize("between", [False, True])
def test_any_working_variance_by_stacked_scores(between):
    """The logistic model with soft weights: all clients' scores as one vector, with its covariance."""
    X, y, client, sizes = logistic_rows()
    a = np.array([1.0, 0.3, 0.8, 1.0, 0.5, 0.9])
    half = np.random.default_rng(1).normal(size=(3, 3)) / 4
    T = half @ half.T if between else np.zeros((3, 3))
    theta = np.zeros(3)
    for _ in range(30):
        mean = special.expit(X @ theta)
        curvature = mean * (1 - mean)
        theta -= np.linalg.solve((X.T * (a[client] * curvature)) @ X, X.T @ (a[client] * (mean - y)))
    data, family = ad.ClientData.from_arrays(X, y, client), Family("binomial")
    weights = a * sizes
    found = gather_clustered(
        data, weights, sums_at(data, family, theta, weights), smooth=True, spread=T if between else None
    )
    J = np.array([(X.T * (curvature * (client == m))) @ X for m in range(6)])
    K, omega = a[:, None, None] * J, (a**2)[:, None, None] * (J + J @ T @ J)
    H = np.linalg.inv(K.sum(axis=0))
    # e = (I - K H^-1 1') u for the stack u of the clients' scores.
    keep = np.eye(18) - K.reshape(18, 3) @ H @ np.tile(np.eye(3), 6)
    V = keep @ linalg.block_diag(*omega) @ keep.T
    scores = np.array([X.T @ ((client == m) * a[m] * (mean - y)) for m in range(6)])
    maps, parts = [], []
    for m in range(6):
        root, own = power(omega[m], 0.5), slice(3 * m, 3 * m + 3)
        back = power(omega[m], -0.5)
        A = root @ power(back @ V[own, own] @ back, -0.5) @ back
        assert_allclose(A @ V[own, own] @ A.T, omega[m], rtol=1e-9)
        maps.append(H @ A @ keep[own] @ linalg.block_diag(*[power(part, 0.5) for part in omega]))
        parts.append(H @ A @ scores[m])
    maps = np.array(maps)
    assert_allclose(found.cr2, parts, rtol=1e-9, atol=1e-12)
    assert_allclose(found.df, [satterthwaite(maps, c) for c in np.eye(3)], rtol=1e-9)
    assert_allclose(satterthwaite_df(found, CONTRASTS), [satterthwaite(maps, c) for c in CONTRASTS], rtol=1e-9)
    estimator = H @ np.tile(np.eye(3), 6) @ linalg.block_diag(*[power(part, 0.5) for part in omega])
    assert_allclose(contrast_df(found, CONTRASTS), [dependent(maps, estimator, c) for c in CONTRASTS], rtol=1e-5)
    assert_allclose(joint_df(found, CONTRASTS), hotelling(maps, CONTRASTS), rtol=1e-9)
    # Unbiased under the working model: the mean of CR2 is the variance of the estimate.
    assert_allclose(np.einsum("mpn,mqn->pq", maps, maps), found.working, rtol=1e-9)
    assert_allclose(found.expected, found.working, rtol=1e-9)


@pytest.mark.parametrize("m", [1, 2, 5, 20, 49])
def test_a_reference_without_dependence_is_t(m):
    """Contributions of m clients alike that do not depend on the estimate: t with m degrees of freedom."""
    none = np.zeros((1, m, 1))
    found = dependent_df(np.full((1, m), 2.0 / m), none, none, np.zeros((1, m)), np.array([2.0]))
    assert_allclose(found, m, rtol=1e-5)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_reference_holds_on_a_hub_and_satterthwaites_does_not(level):
    """Means of 20 normal clients, one of which has a quarter of the influence.

    The level that t with the reported degrees of freedom has under the working model; it is exact at .95, and within
    .01 at .9 and .99. Satterthwaite's, which are 2.9, have .977 at .95.
    """
    pi = np.r_[0.25, np.full(19, 0.75 / 19)]
    rng = np.random.default_rng(0)
    y, client = rng.normal(size=200), np.repeat(np.arange(20), 10)
    res = fit(np.ones((200, 1)), y, client, weights=pi / pi.max())
    _, _, maps = by_rows(np.ones((200, 1)), y, client, pi[client])
    row = pi[client] / (10 * pi.sum())
    reached = covered(stats.t.isf((1 - level) / 2, res.degrees_of_freedom("CR2").item()), maps[:, 0], row)
    assert_allclose(reached, level, atol=1e-6 if level == 0.95 else 0.01)
    theirs = satterthwaite(maps, np.ones(1))
    assert theirs < 3.5
    assert covered(stats.t.isf((1 - level) / 2, theirs), maps[:, 0], row) > level + 0.3 * (1 - level)


def test_leverage_small_and_large_agree():
    """The series for clients of little leverage is the eigenvalues' root."""
    rng = np.random.default_rng(2)
    half = rng.normal(size=(5, 4, 4)) * np.array([1e-3, 5e-3, 1e-2, 1.5e-2, 0.2])[:, None, None]
    lost = half @ half.transpose(0, 2, 1)
    assert (np.linalg.norm(lost, axis=(1, 2)) < 1e-3).sum() in (3, 4)
    found = clustered._inverse_roots(np.broadcast_to(np.eye(4), lost.shape), lost)
    assert_allclose(found, [power(np.eye(4) - part, -0.5) for part in lost], rtol=1e-13, atol=1e-14)


# ------------------------------------------------------------------ what clients cannot show


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_one_client_alone_identifies_a_coefficient():
    """With an intercept for each client the slope's variance is known as before, the intercepts' is not."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(6), [8, 12, 20, 9, 15, 30])
    X = np.column_stack([rng.normal(size=len(client)), np.eye(6)[client]])
    y = X @ np.arange(7.0) + rng.normal(size=len(client))
    res = fit(X, y, client)
    _, parts, maps = by_rows(X, y, client, np.ones(len(y)))
    assert_allclose(res.standard_errors("CR2").iloc[0], np.linalg.norm(parts[:, 0]), rtol=1e-7)
    assert_allclose(res.record.clustered.df[0], satterthwaite(maps, np.eye(7)[0]), rtol=1e-7)
    wanted = dependent(maps, np.linalg.pinv(X), np.eye(7)[0])
    assert_allclose(res.degrees_of_freedom("CR2").iloc[0], wanted, rtol=1e-5)
    by_client = res.get_robustcov_results("CR2")
    for found in (by_client.bse, by_client.pvalues, by_client.conf_int()[0], res.standard_errors("CR3")):
        assert found.iloc[1:].isna().all()
        assert np.isfinite(found.iloc[0])
    assert "one client alone identifies" in " ".join(by_client.summary().as_text().split())
    assert np.isfinite(res.t_test(np.eye(7)[0], "CR2").pvalue)
    assert np.isnan(res.t_test(np.eye(7)[0] + np.eye(7)[2], "CR2").pvalue)
    with pytest.raises(ValueError, match="cannot test these 2 hypotheses together"):
        res.wald_test(np.eye(7)[:2], "CR2")


@pytest.mark.parametrize("tau", [0.05, 1.0, 20.0])
def test_an_effect_that_goes_into_a_clients_own_constant_costs_no_other_coefficient_its_variance(tau):
    """With a constant for each client, and slopes that vary, the slope's CR2 is that of rows without their means."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(6), [8, 12, 20, 9, 15, 30])
    own = np.eye(6)[client]
    x = rng.normal(size=len(client)) + client
    y = (2.0 + rng.normal(size=6) * tau)[client] * x + client + rng.normal(size=len(client))
    data, family = ad.ClientData.from_arrays(np.column_stack([x, own]), y, client), Family("gaussian")
    weights, theta = data.sizes.astype(float), np.linalg.lstsq(np.column_stack([x, own]), y)[0]
    T = np.zeros((7, 7))
    T[0, 0] = tau**2
    found = gather_clustered(data, weights, sums_at(data, family, theta, weights), smooth=True, spread=T)
    inner = x - own @ (own.T @ x / data.sizes)
    s = own.T @ inner**2
    omega, h = s + tau**2 * s**2, s / s.sum()
    left = omega - 2 * omega * h + h**2 * omega.sum()
    residual = y - np.column_stack([x, own]) @ theta
    parts = np.sqrt(omega / left) * (own.T @ (inner * residual)) / s.sum()
    assert_allclose(np.abs(found.cr2[:, 0]), np.abs(parts), rtol=1e-7)
    assert_allclose(found.working[0, 0], omega.sum() / s.sum() ** 2, rtol=1e-9)
    assert_allclose(found.expected[0, 0], found.working[0, 0], rtol=1e-7)
    assert (np.diag(found.expected)[1:] < 0.9 * np.diag(found.working)[1:]).all()
    assert np.isfinite(found.df[0])
    assert np.isnan(found.df[1:]).all()


def test_two_clients_are_enough_and_one_is_not():
    X, y = rows()
    both = np.isin(CLIENT, (1, 3))
    X, y, client = X[both, :2], y[both], CLIENT[both]
    res = fit(X, y, client)
    _, parts, _ = by_rows(X, y, client, np.ones(len(y)))
    assert_allclose(res.cov_params("CR2"), parts.T @ parts, rtol=1e-8)
    assert (res.degrees_of_freedom("CR2") >= 1.0).all()
    assert_allclose(res.degrees_of_freedom("CR1"), 1.0)
    with pytest.raises(ValueError, match=r"fewer hypotheses together than there are clients.*2 and 2\. Test them one"):
        res.wald_test(np.eye(2), "CR2")
    alone = fit(X, y, client, weights=[1.0, 0.0])
    for kind in KINDS:
        with pytest.raises(ValueError, match=f"'{kind}' compares clients, and needs two that carry weight; there is 1"):
            alone.cov_params(kind)


def test_joint_tests_need_degrees_of_freedom():
    """One client decides about two coefficients, and leaves too few."""
    rng = np.random.default_rng(6)
    client = np.repeat(np.arange(8), 20)
    X = np.column_stack([np.ones(160), rng.normal(size=(160, 3)) * np.where(client == 0, 1.0, 0.02)[:, None]])
    res = fit(X, rng.normal(size=160), client)
    with pytest.raises(ValueError, match=r"leave \d\.\d degrees of freedom to 3 hypotheses tested together"):
        res.wald_test(np.eye(4)[1:], "CR2")
    assert 0.0 <= res.wald_test(np.eye(4)[1:], "CR1").pvalue <= 1.0


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_clients_without_weight_do_not_count():
    X, y = rows()
    weights = np.where(np.arange(M) % 4 == 1, 0.0, SOFT)
    keep = (weights > 0.0)[CLIENT]
    res, fewer = fit(X, y, weights=weights), fit(X[keep], y[keep], CLIENT[keep], weights[weights > 0.0])
    for kind in KINDS:
        assert_allclose(res.cov_params(kind), fewer.cov_params(kind), rtol=1e-7)
        assert_allclose(res.degrees_of_freedom(kind), fewer.degrees_of_freedom(kind), rtol=1e-7)
    assert_allclose(res.degrees_of_freedom("CR1"), (weights > 0.0).sum() - 1)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_names_order_and_units_of_clients_and_columns_change_nothing():
    X, y = rows()
    rng = np.random.default_rng(0)
    order, names = rng.permutation(N), rng.permutation(M)
    res, other = fit(X, y), fit(X[order], y[order], names[CLIENT][order])
    for kind in KINDS:
        assert_allclose(other.cov_params(kind), res.cov_params(kind), rtol=1e-8)
        assert_allclose(other.degrees_of_freedom(kind), res.degrees_of_freedom(kind), rtol=1e-8)
    unit, theta = np.array([1.0, 1e4, 1e-3]), np.linalg.lstsq(X, y)[0]
    found = []
    for scale in (np.ones(3), unit):
        data, family = ad.ClientData.from_arrays(X * scale, y, CLIENT), Family("gaussian")
        there = sums_at(data, family, theta / scale, SOFT)
        found.append(gather_clustered(data, SOFT, there, smooth=True))
    plain, scaled = found
    assert_allclose(scaled.df, plain.df, rtol=1e-9)
    for kind in ("cr2", "cr3"):
        assert_allclose(getattr(scaled, kind) * unit, getattr(plain, kind), rtol=1e-7, atol=1e-10)


def test_cr1_is_statsmodels_with_few_clients():
    """Six clients and seven coefficients: the old limit of more clients than coefficients is gone."""
    X, y, client, _ = logistic_rows()
    X = np.column_stack([X, np.random.default_rng(5).normal(size=(len(y), 4))])
    res = fit(X, y, client, family="binomial")
    wanted = sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": client})
    assert_allclose(res.cov_params("CR1"), wanted.cov_params(), rtol=1e-6, atol=1e-9)
    assert_allclose(res.cov_params("cluster"), res.cov_params("CR1"), rtol=0)
    assert_allclose(res.cov_params("HC0"), res.cov_params("sandwich"), rtol=0)
    t = wanted.t_test(np.eye(7), use_t=True)
    assert_allclose(res.conf_int(0.1, "CR1"), t.conf_int(0.1), rtol=1e-5, atol=1e-8)
    assert_allclose(res.get_robustcov_results("CR1").pvalues, t.pvalue, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_clients_without_full_rank_by_rows(shift):
    """Covariates that are constant in a client, or vary between clients only: CR2 is that of the dense rows."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(12), 10)
    x = np.where(client < 4, 1.0, rng.normal(size=120))
    X = np.column_stack([np.ones(120), x + shift, rng.normal(size=12)[client], client % 3 == 0])
    y = x + rng.normal(size=120)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(12))
    res = model.fit(ad.DFL(), heterogeneity="none")
    Q, R = np.linalg.qr(X)
    residual, meat = y - Q @ (Q.T @ y), np.zeros((4, 4))
    for k in range(12):
        rows = Q[client == k]
        values, vectors = np.linalg.eigh(np.eye(10) - rows @ rows.T)
        score = rows.T @ (vectors / np.sqrt(values)) @ vectors.T @ residual[client == k]
        meat += np.outer(score, score)
    wanted = np.linalg.solve(R, np.linalg.solve(R, meat).T)
    assert_allclose(res.cov_params("CR2"), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).min())
