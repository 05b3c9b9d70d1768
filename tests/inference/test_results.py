"""Results: labels, inference, trust, threads."""

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest
from scipy import special, stats

import adfl_stats as ad
from adfl_stats._threads import default_threads

# ------------------------------------------------------------------ labels


def test_estimates_carry_the_names_of_columns_and_clients(res, frame, network):
    columns, clients = ["Intercept", "x1", "x2", "x3"], list(dict.fromkeys(frame["client"]))
    assert clients != list(network.labels)
    for by_column in (res.params, res.bse, res.zvalues, res.pvalues, res.conf_int(), res.cov_params()):
        assert list(by_column.index) == columns
    assert list(res.cov_params().columns) == list(res.client_params.columns) == columns
    for by_client in (res.client_params, res.client_weights, res.clients()):
        assert list(by_client.index) == clients
        assert by_client.index.name == "client"
    assert list(res.network.labels) == clients
    assert res.client_weights.name == "weight"


def test_multinomial_names_pair_class_and_column(graded):
    names = ["Intercept", "x1", "x2"]
    assert list(graded.params.index) == [f"{level}: {name}" for level in ("middle", "high") for name in names]


def test_params_are_the_mean_over_clients(any_res):
    np.testing.assert_allclose(any_res.params, any_res.client_params.mean(), rtol=1e-12)


def score_by_hand(res, frame, label):
    """Rao's statistic of a client's score, whose variance allows for what its own rows did to the weighted estimate."""
    total, squares, own = 0.0, 0.0, None
    for name, rows in frame.groupby("client"):
        X = np.column_stack([np.ones(len(rows)), rows[["x1", "x2", "x3"]]])
        mean, weight = special.expit(X @ res.params.to_numpy()), res.client_weights[name]
        J = (X.T * (mean * (1 - mean))) @ X
        total, squares = total + weight * J, squares + weight**2 * J
        if name == label:
            own = X.T @ (rows["y"].to_numpy() - mean), J, weight
    score, J, weight = own
    bread = np.linalg.inv(total)
    variance = J - 2 * weight * J @ bread @ J + J @ bread @ squares @ bread @ J
    return score @ np.linalg.solve(variance, score)


def test_score_allows_for_what_the_client_did_to_the_estimate(model, frame):
    weights = {f"h{k}": w for k, w in enumerate([0.5, 0.0, 1.0, 0.9, 0.7, 1.0, 1.0, 0.8])}
    res = model.fit(ad.DFL(weights=weights), heterogeneity="none")
    table = res.clients()
    for label in weights:
        np.testing.assert_allclose(table.loc[label, "score"], score_by_hand(res, frame, label), rtol=1e-9)


def test_client_table(res, frame):
    table = res.clients()
    assert list(table.columns) == [
        "n", "gradient", "score", "df", "p_value", "flagged", "weight", "verdict", "noise", "shift", "influence",
        "distance",
    ]  # fmt: skip
    assert table["n"].to_dict() == frame["client"].value_counts().to_dict()
    mine = frame[frame["client"] == "h2"]
    X = np.column_stack([np.ones(len(mine)), mine[["x1", "x2", "x3"]]])
    mean = special.expit(X @ res.params.to_numpy())
    gradient = X.T @ (mean - mine["y"].to_numpy()) / len(mine)
    apart = (res.client_params.loc["h2"] - res.params) / res.bse
    wanted = {
        "gradient": np.linalg.norm(gradient),
        "df": 4,
        "influence": 1.0,
        "weight": res.client_weights["h2"],
        "distance": np.sqrt((apart**2).mean()),
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(table.loc["h2", name], value, rtol=1e-9, err_msg=name)
    # At the model's own estimate, which numerical error parts from the fit's by .05 standard errors.
    assert table.loc["h2", "score"] == pytest.approx(score_by_hand(res, frame, "h2"), rel=0.02)
    assert table["noise"].isna().all()
    assert (table["verdict"] == "").all()


def test_method_and_family_are_told(res):
    assert (res.method.name, res.family.name, res.nobs) == ("aDFL", "binomial", 390)
    assert res.method.details.keys() == {"start", "equalise", "balance"}
    assert repr(res) == "Results(aDFL, binomial, 8 clients, N=390, P=4)"


# ------------------------------------------------------------------ inference


def test_intervals_are_the_estimate_and_a_normal_reach(res):
    for alpha in (0.01, 0.05, 0.5):
        limits = res.conf_int(alpha)
        np.testing.assert_allclose(limits.mean(axis=1), res.params)
        np.testing.assert_allclose(limits[1] - limits[0], 2 * stats.norm.ppf(1 - alpha / 2) * res.bse)
    nonrobust = res.conf_int(cov_type="nonrobust")
    np.testing.assert_allclose(
        nonrobust[1] - nonrobust[0], 2 * stats.norm.ppf(0.975) * res.standard_errors("nonrobust")
    )


def test_tests_agree_with_z_values(res):
    one = res.t_test("x1 = 0")
    np.testing.assert_allclose([one.tvalue.item(), one.pvalue.item()], [res.zvalues["x1"], res.pvalues["x1"]])
    np.testing.assert_allclose(res.wald_test("x1 = 0").statistic, res.zvalues["x1"] ** 2)
    np.testing.assert_allclose(res.pvalues, 2 * stats.norm.cdf(-np.abs(res.params / res.bse)))


def test_numerical_error_is_a_sum_in_standard_errors(res):
    error = res.numerical_error
    assert list(error.index) == ["optimisation", "consensus", "total"]
    assert error["total"] == error["optimisation"] + error["consensus"]
    assert res.converged == (error["total"] <= 0.05)
    spread = res.client_params.std(ddof=0) / res.bse
    np.testing.assert_allclose(error["consensus"], spread.max())


# ------------------------------------------------------------------ trust


def test_likelihood_and_bic_count_trusted_clients_only(model, frame):
    # A client is trusted with at least a tenth of the largest weight, here .05.
    weights = {"h0": 0.5, "h1": 0.0, "h2": 0.049, "h3": 0.05} | {f"h{k}": 0.5 for k in range(4, 8)}
    res = model.fit(ad.DFL(weights=weights))
    kept = frame[~frame["client"].isin(["h1", "h2"])]
    llf = stats.bernoulli.logpmf(kept["y"], res.predict(kept)).sum()
    np.testing.assert_allclose([res.llf, res.deviance], [llf, -2 * llf])
    np.testing.assert_allclose([res.aic, res.bic], [-2 * llf + 8, -2 * llf + 4 * np.log(len(kept))])


@pytest.mark.parametrize(
    ("adjacency", "sizes", "weights", "weighting", "wanted"),
    [
        pytest.param(np.ones((4, 4)), [20] * 4, [1, 1, 1, 1], "sample", 4.0, id="all alike"),
        pytest.param(np.ones((4, 4)), [20] * 4, [1, 0, 0, 1], "sample", 2.0, id="half not trusted"),
        pytest.param(np.ones((2, 2)), [20] * 2, [1, 0.5], "sample", 1.5**2 / 1.25, id="half trust"),
        pytest.param(np.ones((2, 2)), [10, 30], [1, 1], "sample", 16 / 10, id="sizes 1 to 3"),
        pytest.param(np.ones((2, 2)), [10, 30], [1, 1], "client", 2.0, id="sizes, each counts once"),
        # The hub has twice the influence of each of the others.
        pytest.param([[0, 0, 1], [0, 0, 1], [1, 1, 0]], [20] * 3, [1, 1, 1], "sample", 16 / 6, id="hub"),
    ],
)
def test_effective_clients_by_hand(adjacency, sizes, weights, weighting, wanted):
    rng = np.random.default_rng(0)
    data = ad.ClientData.from_arrays(
        rng.normal(size=(sum(sizes), 2)), rng.normal(size=sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    )
    model = ad.DecentralizedGLM(data, ad.Network.from_adjacency(adjacency), weighting=weighting)
    res = model.fit(ad.DFL(weights=weights), rounds=2)
    np.testing.assert_allclose(res.effective_clients, wanted, rtol=1e-9)


def threads_on(processors):
    """The default number of threads, as if the machine had so many processors."""
    with mock.patch.object(os, "sched_getaffinity", create=True, return_value=range(processors)):
        return default_threads()


# ------------------------------------------------------------------ threads


def test_threads_are_the_processors_up_to_eight():
    assert [threads_on(k) for k in (1, 6, 64)] == [1, 6, 8]


def test_workers_have_one_thread():
    found = []
    worker = threading.Thread(target=lambda: found.append(threads_on(6)))
    worker.start()
    worker.join()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found.append(pool.submit(threads_on, 6).result())
    assert found == [1, 1]
