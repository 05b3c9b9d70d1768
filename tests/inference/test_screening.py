"""Screening: the statistic, its reference, leave-one-out shifts, flags, words and pictures."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from statsmodels.stats.multitest import multipletests

import adfl_stats as ad
from adfl_stats.inference.client_diagnostics import gather_diagnostics
from adfl_stats.inference.client_record import _statistics
from adfl_stats.inference.screening import _mirror_limit
from adfl_stats.losses.families import resolve_family
from adfl_stats.losses.point_sums import sums_at
from adfl_stats.trust.client_model import ClientModel
from adfl_stats.trust.null import Null
from adfl_stats.trust.summaries import summarise

# ------------------------------------------------------------------ the statistic, against dense algebra


def linear_rows(sizes, p, seed, noise=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(sizes), p)) @ rng.normal(size=(p, p))
    y = X @ np.linspace(1, -1, p) + (rng.normal(size=len(X)) if noise is None else noise(rng, len(X)))
    return X, y, np.repeat(np.arange(len(sizes)), sizes)


def residual_sum(X, y):
    return float(np.sum((y - X @ np.linalg.lstsq(X, y)[0]) ** 2))


def diagnostics(X, y, client, weights, theta, family="gaussian", row_weights=None):
    """What the second pass finds at theta, for total weights `weights` times the clients' sizes."""
    data = ad.ClientData.from_arrays(X, y, client, weights=row_weights)
    family, total_weights = resolve_family(family), weights * data.totals
    found = sums_at(data, family, theta, total_weights)
    return gather_diagnostics(data, total_weights, found, smooth=True)


def statistics_at(X, y, client, weights, theta, noise=None, spread=None):
    """The clients' statistics and ranks at theta, for given noise levels (M,), spread (P, P) and total weights."""
    data = ad.ClientData.from_arrays(X, y, client)
    M, P = data.n_clients, X.shape[1]
    noise, spread = np.ones(M) if noise is None else noise, np.zeros((P, P)) if spread is None else spread
    # The noise is the same in all directions.
    null = only(Null, dispersions=noise, shape=np.eye(P))
    summaries = summarise(data, resolve_family("gaussian"), theta)
    kind = "diagonal" if spread.any() else "none"
    model = only(ClientModel, summaries=summaries, null=null, spread=spread, spread_kind=kind, inflation=1.0)
    information = np.stack([X[client == m].T @ X[client == m] for m in data.labels])
    return _statistics(model, weights / M, np.ones(M), information)


def only(kind, **given):
    """A record with these fields and nothing in the others."""
    return kind(**(dict.fromkeys(field.name for field in fields(kind)) | given))


def weighted_fit(X, y, weight):
    root = np.sqrt(weight)
    return np.linalg.lstsq(X * root[:, None], y * root)[0]


@pytest.mark.parametrize("trusted", [np.ones(6), np.array([1.0, 0, 1, 1, 0, 1])], ids=["all", "some"])
def test_gaussian_statistic_is_chows(trusted):
    """The drop of the residual sum of squares when client m has coefficients of its own; m has 3 rows of 5 columns."""
    X, y, client = linear_rows([30, 40, 3, 25, 20, 30], 5, 1)
    found, ranks = statistics_at(X, y, client, trusted, weighted_fit(X, y, trusted[client]))
    for m in range(6):
        mine, others = client == m, (trusted[client] > 0) & (client != m)
        apart = residual_sum(X[mine], y[mine]) + residual_sum(X[others], y[others])
        together = residual_sum(X[mine | others], y[mine | others])
        assert_allclose(found[m], together - apart, rtol=1e-8)
    assert_array_equal(ranks, [5, 5, 3, 5, 5, 5])


@pytest.mark.parametrize("differ", [False, True], ids=["one parameter", "clients differ"])
def test_statistic_with_any_weights_has_the_variance_of_its_score(differ):
    """The score is a linear map of the responses, whose covariance has the noise levels and the spread by client."""
    X, y, client = linear_rows([15, 20, 4, 12], 4, 2)
    trust, noise, T = np.array([1.0, 0.3, 0.7, 0.0]), np.ones(4), np.zeros((4, 4))
    if differ:
        noise, root = np.array([1.0, 4.0, 0.5, 2.0]), np.random.default_rng(3).normal(size=(4, 2))
        T = root @ root.T
    weight = trust[client]
    theta = weighted_fit(X, y, weight)
    found, _ = statistics_at(X, y, client, trust, theta, noise, T)
    keep = np.eye(len(y)) - X @ np.linalg.solve((X * weight[:, None]).T @ X, (X * weight[:, None]).T)
    covariance = np.where(client[:, None] == client, X @ T @ X.T, 0.0) + np.diag(noise[client])
    for m in range(4):
        mine = client == m
        score, linear = X[mine].T @ (X[mine] @ theta - y[mine]), X[mine].T @ keep[mine]
        variance = linear @ covariance @ linear.T
        assert_allclose(found[m], score @ np.linalg.pinv(variance, rcond=1e-10) @ score, rtol=1e-7)


def test_what_a_client_decides_alone_is_not_tested():
    X, y, client = linear_rows([30, 30, 30], 3, 3)
    X[client != 1, 2] = 0.0
    found = diagnostics(X, y, client, np.ones(3), np.linalg.lstsq(X, y)[0])
    assert_array_equal(statistics_at(X, y, client, np.ones(3), np.linalg.lstsq(X, y)[0])[1], [2, 2, 2])
    assert np.isnan(found.deletion_shift[1]).all()
    assert np.isfinite(found.deletion_shift[[0, 2]]).all()


def test_mirror_statistic_and_its_mean():
    """With every row of X twice in a row both halves have the same design, and the mean is exact."""
    X, y, client = linear_rows([10, 12, 11], 3, 4)
    X, client = np.repeat(X, 2, axis=0), np.repeat(client, 2)
    y = X @ [1.0, 0.0, -1.0] + np.random.default_rng(5).normal(size=len(X))
    theta = np.linalg.lstsq(X, y)[0]
    found = diagnostics(X, y, client, np.ones(3), theta)
    hat = np.eye(len(y)) - X @ np.linalg.pinv(X)
    for m in range(3):
        rows = np.flatnonzero(client == m)
        one, two = (rows[k::2] for k in (0, 1))
        J = X[rows].T @ X[rows]
        scores = [X[half].T @ (X[half] @ theta - y[half]) for half in (one, two)]
        assert_allclose(found.mirror[m], 4 * scores[0] @ np.linalg.solve(J, scores[1]), rtol=1e-9)
        covariance = X[one].T @ hat[np.ix_(one, two)] @ X[two]
        assert_allclose(found.mirror_mean[m], 4 * np.trace(np.linalg.solve(J, covariance)), rtol=1e-8)


@pytest.mark.parametrize("family", ["binomial", "multinomial"])
def test_variance_of_the_statistic_by_enumeration(family):
    """All responses of five rows, with their probabilities: exact mean and variance of Rao's statistic at theta."""
    rng = np.random.default_rng(6)
    n, classes = 5, 2 if family == "binomial" else 3
    X, theta = rng.normal(size=(n, 2)), rng.normal(size=2 * (classes - 1))
    kind = resolve_family(family, classes)
    eta = X @ theta.reshape(classes - 1, 2).T
    chance = np.exp(np.column_stack([np.zeros(n), eta]))
    chance /= chance.sum(axis=1, keepdims=True)
    responses = np.stack(np.meshgrid(*[np.arange(classes)] * n), axis=-1).reshape(-1, n)
    probability = np.prod(chance[np.arange(n), responses], axis=1)
    values, peaks = [], []
    for response in responses:
        data = ad.ClientData.from_arrays(X, response.astype(float), np.zeros(n))
        found = summarise(data, kind, theta)
        values.append(np.square(found.scores[0]).sum())
        peaks.append(found.peaks[0])
    mean = probability @ values
    assert_allclose(mean, found.ranks[0], rtol=1e-9)
    variance = probability @ np.square(np.array(values) - mean)
    assert_allclose(variance, 2 * found.ranks[0] + probability @ peaks - found.expected_peaks[0], rtol=1e-9)


# ------------------------------------------------------------------ leave one client out


def test_shifts_of_the_gaussian_are_those_of_refits():
    sim = ad.simulate.paper_linear(0.2, "MP", 7, M=15, n=(20, 60), p=6)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.directed_circle(15, 4)).fit()
    shifts = ad.screen(res).shifts
    weight = res.client_weights.to_numpy()[np.asarray(sim.client)]
    full = weighted_fit(sim.X, sim.y, weight)
    for m in range(15):
        rest = np.asarray(sim.client) != m
        wanted = weighted_fit(sim.X[rest], sim.y[rest], weight[rest]) - full
        assert_allclose(shifts.loc[m], wanted, rtol=1e-6, atol=1e-12)
    assert_array_equal(shifts.columns, res.params.index)
    table = ad.screen(res).to_frame()
    assert_allclose(table["shift"], (shifts.abs() / res.standard_errors("sandwich")).max(axis=1), rtol=1e-12)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_shifts_are_close_to_refits_by_statsmodels(family):
    sim = ad.simulate.glm_design(family, M=12, n=80, p=4, seed=8)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, ad.networks.complete(12), family)
    shifts = ad.screen(model.fit(ad.DFL())).shifts.to_numpy()
    known = resolve_family(family).statsmodels()
    full = sm.GLM(sim.y, sim.X, family=known).fit().params
    refits = np.array(
        [sm.GLM(sim.y[sim.client != m], sim.X[sim.client != m], family=known).fit().params for m in range(12)]
    )
    # One Newton step errs by the square of the relative move, here of some two per cent.
    assert np.linalg.norm(shifts - (refits - full)) < 0.05 * np.linalg.norm(refits - full)


# ------------------------------------------------------------------ calibration


def null_p_values(family, noise, seed, replicates, sizes, p):
    """p-values of normal clients, and those of the plain chi-square, at a fit of all of them."""
    found, plain = [], []
    net = ad.networks.complete(len(sizes))
    for k in range(replicates):
        if family == "gaussian":
            X, y, client = linear_rows(sizes, p, [seed, k], noise)
        else:
            sim = ad.simulate.glm_design(family, M=len(sizes), n=sizes, p=p, seed=np.random.default_rng([seed, k]))
            X, y, client = sim.X, sim.y, sim.client
        data = ad.ClientData.from_arrays(X, y, client)
        table = ad.screen(ad.DecentralizedGLM(data, net, family).fit(ad.DFL())).to_frame()
        found.append(table["p_value"])
        plain.append(stats.chi2.sf(table["statistic"], table["df"]))
    return np.concatenate(found), np.concatenate(plain)


def heavy(rng, n):
    return rng.standard_t(5, size=n)


@pytest.mark.parametrize(
    ("family", "noise", "sizes", "p"),
    [
        ("gaussian", None, [40] * 40, 20),
        ("gaussian", heavy, [40] * 40, 20),
        ("binomial", None, [60] * 40, 8),
        ("poisson", None, [20] * 20 + [120] * 20, 8),
    ],
    ids=["normal errors", "t errors", "logistic", "Poisson, unequal"],
)
def test_p_values_of_normal_clients_are_uniform(family, noise, sizes, p):
    found, plain = null_p_values(family, noise, 11, 20, sizes, p)
    # 800 p-values: standard errors .0077 at .05 and .0106 at .1; bands of three of them.
    assert abs(np.mean(found < 0.05) - 0.05) < 0.023
    assert abs(np.mean(found < 0.10) - 0.10) < 0.032
    if noise is heavy:
        # The statistic is over the empirical null's factor already; its chi-square is outside the band all the same.
        assert np.mean(plain < 0.05) > 0.073, "the chi-square without kurtosis is no reference here"


def test_clients_with_fewer_rows_than_columns():
    sizes = [6] * 30 + [80] * 10
    with pytest.warns(ad.ConditionWarning, match="fewer rows"):
        found, _ = null_p_values("gaussian", None, 12, 15, sizes, 10)
    small = found.reshape(15, 40)[:, :30]
    # 450 p-values: standard error .0103 at .05.
    assert abs(np.mean(small < 0.05) - 0.05) < 0.031


def test_a_client_does_not_set_its_own_scale():
    """Ten times the noise and the right coefficients: only a scale from the others can see it."""
    X, y, client = linear_rows([50] * 10, 4, 13)
    y = y + np.where(client == 3, 10.0, 0.0) * np.random.default_rng(14).normal(size=len(y))
    res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(10)).fit()
    screened = ad.screen(res)
    assert list(screened.flagged) == [3]
    assert abs(screened.clients.dispersion - 1.0) < 0.25
    # About a hundred times the others' residual variance, by 46 degrees of freedom.
    assert 50.0 < res.clients().loc[3, "noise"] < 200.0


# ------------------------------------------------------------------ flags


@pytest.fixture(scope="module")
def paper():
    """The paper's linear setting, smaller, a quarter of the clients abnormal."""
    sim = ad.simulate.paper_linear(0.25, "MP", 21, M=48, n=60, p=20)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return sim, ad.DecentralizedGLM(data, ad.networks.directed_circle(48, 6)).fit()


def test_benjamini_and_hochberg_as_statsmodels_has_it(paper):
    _, res = paper
    for q in (0.01, 0.1, 0.5):
        table = ad.screen(res, q).to_frame()
        flagged, adjusted, *_ = multipletests(table["p_value"], q, method="fdr_bh")
        assert_array_equal(table["flagged"], flagged)
        assert_allclose(table["adjusted"], adjusted, rtol=1e-12)
        assert list(ad.screen(res, q).flagged) == list(table.index[flagged])


def test_mirror_limit_by_hand():
    # At 3 one of seven is mirrored by none: 1 / 7 <= .15; at 2 two are against eight, 2 / 8.
    values = np.array([9.0, 8, 7, 6, 5, 4, 3, 2, -2, 1, -1])
    assert _mirror_limit(values, 0.15) == 3.0
    assert _mirror_limit(values, 0.25) == 2.0
    assert _mirror_limit(values, 0.1) == np.inf


def test_both_methods_find_the_abnormal_clients(paper):
    sim, res = paper
    for method in ("score", "mirror"):
        flagged = set(ad.screen(res, method=method).flagged)
        assert flagged >= set(sim.abnormal_labels)
        # Of the 36 normal clients at most four, a share of a quarter where a tenth is expected.
        assert len(flagged) <= 16
    assert len(ad.screen(res, 0.05, method="mirror").flagged) == 0, "twelve clients are too few for q = .05"


def test_client_table_has_the_screening(paper):
    _, res = paper
    table, screened = res.clients(), ad.screen(res).to_frame()
    for name in ("p_value", "flagged", "shift"):
        pd.testing.assert_series_equal(table[name], screened[name])


def test_client_without_information_is_not_flagged():
    X, y, client = linear_rows([40] * 8, 3, 22)
    X[client == 4] = 0.0
    y[client == 4] += 100.0
    table = ad.screen(
        ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(8)).fit()
    ).to_frame()
    assert table.loc[4, "df"] == 0
    assert table.loc[4, "p_value"] == 1.0


def test_medians_are_screened_as_given():
    X, y, client = linear_rows([40] * 9, 3, 23)
    y = np.where(client == 2, -y, y)
    res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(9)).fit(ad.Bridge("median"))
    screened = ad.screen(res)
    assert 2 in screened.flagged
    assert screened.shifts.isna().all(axis=None)


# ------------------------------------------------------------------ words and pictures


def test_text_and_html_show_who_is_flagged(paper):
    _, res = paper
    screened = ad.screen(res)
    text = str(screened)
    assert f"{len(screened.flagged)} of 48 clients flagged by the score test at q = 0.1" in text
    assert f"The {len(screened.flagged) + 5} clients with the smallest p-values, of 48" in text
    assert max(map(len, text.splitlines())) <= 79
    assert text.count("yes") == len(screened.flagged)
    assert screened._repr_html_().count("<td>yes</td>") == len(screened.flagged)
    assert "mirror statistic at q = 0.1" in str(ad.screen(res, method="mirror"))


@pytest.mark.parametrize("method", ["score", "mirror"])
def test_plot_has_every_client_once(paper, method):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    _, res = paper
    screened = ad.screen(res, method=method)
    ax = screened.plot()
    flagged, others = (np.asarray(points.get_offsets()) for points in ax.collections[-2:])
    assert len(flagged) == len(screened.flagged)
    assert len(others) == 48 - len(flagged)
    table = screened.to_frame()
    value = table["mirror"] if method == "mirror" else table["statistic"] / table["df"]
    assert_allclose(np.sort(np.concatenate([flagged, others])[:, 0]), np.sort(value))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [str(k) for k in value.sort_values().index]
    _, small = pyplot.subplots(figsize=(3, 2))
    assert screened.plot(small) is small
    # There is room for a few names: those of flagged clients.
    few = [tick.get_text() for tick in small.get_yticklabels()]
    assert 0 < len(few) < 10
    assert set(few) <= set(map(str, screened.flagged))
    pyplot.close("all")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda res: ad.screen(res.params), TypeError, "res is a Series; pass the results of a fit"),
        (lambda res: ad.screen(res, 0.0), ValueError, r"q is 0; it must lie in \(0, 1\)"),
        (lambda res: ad.screen(res, method="rao"), ValueError, "method is 'rao'; choose one of 'score', 'mirror'"),
    ],
)
def test_bad_arguments(paper, call, error, message):
    with pytest.raises(error, match=message):
        call(paper[1])


def test_multinomial_clients_with_few_rows_are_not_screened():
    """Nine coefficients: clients of eight rows are refused, of twelve screened."""
    rng = np.random.default_rng(7)
    for n in (8, 12):
        X = np.column_stack([np.ones(12 * n), rng.normal(size=(12 * n, 2))])
        data = ad.ClientData.from_arrays(X, rng.integers(0, 4, 12 * n), np.repeat(np.arange(12), n))
        res = ad.DecentralizedGLM(data, ad.networks.complete(12), "multinomial").fit(ad.DFL())
        if n == 8:
            with pytest.raises(ValueError, match=r"res has 9 coefficients.*at most 8 rows.*fewer columns or classes"):
                ad.screen(res)
        else:
            assert len(ad.screen(res).to_frame()) == 12


@pytest.mark.parametrize("n", [8, 30])
def test_a_fit_of_multinomial_clients_with_few_rows_says_that_weights_are_not_valid(n):
    """Nine coefficients; four clients have the classes turned round. With eight rows a normal one goes with them."""
    rng, M = np.random.default_rng(3), 20
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, 2))])
    eta = np.column_stack([np.zeros(M * n), 2 * X[:, 1], -2 * X[:, 1], 2 * X[:, 2]])
    y, client = (eta + rng.gumbel(size=eta.shape)).argmax(axis=1), np.repeat(np.arange(M), n)
    y[client < 4] = 3 - y[client < 4]
    data = ad.ClientData.from_arrays(X, y, client)
    model = ad.DecentralizedGLM(data, ad.networks.complete(M), "multinomial", penalty=ad.Ridge(1e-3))
    with pytest.warns(ad.SelectionWarning) as caught:
        res = model.fit()
    aside = np.flatnonzero(res.client_weights < 0.5)
    said = [str(one.message) for one in caught if "nor are weights" in str(one.message)]
    if n == 8:
        assert set(range(4)) < set(aside)
        assert len(said) == 1
        assert "9 coefficients" in said[0]
        assert "at most 8 rows" in said[0]
        text = " ".join(str(res.summary()).split())
        assert "nor are weights" in text
        assert "Flags (res.clients()" not in text
    else:
        assert list(aside) == [0, 1, 2, 3]
        assert not said
