"""Results: labels, files, predictions, trust, and what they hold on to."""

import gc
import inspect
import multiprocessing
import os
import pickle
import threading
import weakref
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

import adfl_stats as ad
from adfl_stats._threads import default_threads
from adfl_stats.inference.results import COV_TYPES

# ------------------------------------------------------------------ a few fits


def grades(frame):
    """A response of three ordered words that depends on the covariates."""
    noise = np.random.default_rng(11).logistic(size=len(frame))
    words = np.array(["low", "middle", "high"])[np.digitize(frame["x1"] + noise, [-0.7, 0.7])]
    return pd.Categorical(words, ["low", "middle", "high"])


def named_fit(frame, network, logistic):
    model = ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3", frame, "client", network, "binomial")
    return model.fit(heterogeneity="estimate")


def numbered_fit(frame, network, logistic):
    data = ad.ClientData.from_arrays(logistic.X, logistic.X[:, 1] + logistic.y, logistic.client, weights=1 + logistic.y)
    return ad.DecentralizedGLM(data, ad.networks.complete(8)).fit(ad.DFL(), step=0.1, rounds=50)


def multinomial_fit(frame, network, logistic):
    model = ad.DecentralizedGLM.from_formula(
        "z ~ x1 + x2", frame.assign(z=grades(frame)), "client", network, "multinomial"
    )
    return model.fit(ad.ADFL(lam=0.5, stages=1), heterogeneity="none")


def counted_fit(frame, network, logistic):
    data = ad.ClientData.from_arrays(logistic.X, logistic.y, frame["client"], exposure=np.ones(len(frame)) * 2)
    return ad.DecentralizedGLM(data, network, "negativebinomial", weighting="client").fit(ad.Bridge(), rounds=30)


FITS = {"names": named_fit, "numbers": numbered_fit, "multinomial": multinomial_fit, "negative binomial": counted_fit}


@pytest.fixture(scope="module", params=FITS.values(), ids=FITS.keys())
def any_res(request, frame, network, logistic):
    return request.param(frame, network, logistic)


@pytest.fixture(scope="module")
def graded(frame, network, logistic):
    return multinomial_fit(frame, network, logistic)


def everything(res):
    """Every public property of the results, and what their methods say without arguments."""
    shown = {name: inspect.getattr_static(ad.Results, name) for name in dir(ad.Results) if not name.startswith("_")}
    quantities = [name for name, value in shown.items() if isinstance(value, (property, cached_property))]
    # These need the rows, which copies do not have; see tests/inference/test_vocabulary.py.
    rows = {"fittedvalues", "resid", "resid_response", "model"}
    found = {name: getattr(res, name) for name in quantities if name not in rows | {"network"}}
    found |= {f"cov {kind}": res.cov_params(kind) for kind in COV_TYPES}
    found |= {f"df {kind}": res.degrees_of_freedom(kind) for kind in COV_TYPES}
    found |= {name: getattr(res, name)() for name in ("clients", "client_effects", "conf_int", "tidy")}
    found |= {name: getattr(res, name)() for name in ("standard_errors", "detection_limit")}
    differ = res.heterogeneity()
    found |= {"differ": differ.to_frame(), "intervals": differ.intervals(), "T": differ.spread, "Q": str(differ)}
    for method in ("score",) if res.record.clients.differ else ("score", "mirror"):
        screened = ad.screen(res, method=method)
        found |= {
            f"{method} screening": screened.to_frame(),
            f"{method} text": str(screened),
            "shifts": screened.shifts,
        }
    net = res.network
    found |= {f"network.{name}": getattr(net, name) for name in ("indptr", "indices", "weights", "influence", "rho")}
    return found | {"summary": res.summary().as_text(), "check": res.check().to_json(), "repr": repr(res)}


def assert_identical(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(found[name], value, check_exact=True, obj=name)
        elif isinstance(value, pd.Series):
            pd.testing.assert_series_equal(found[name], value, check_exact=True, obj=name)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)
        elif isinstance(value, float):
            np.testing.assert_equal(found[name], value, err_msg=name)
        else:
            assert found[name] == value, name


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


# ------------------------------------------------------------------ files and pickles


def test_file_brings_everything_back_exactly(any_res, tmp_path):
    any_res.save(tmp_path / "fit.npz")
    loaded = ad.load(tmp_path / "fit.npz")
    wanted, found = everything(any_res), everything(loaded)
    assert_identical(found, wanted)
    assert loaded.network.labels.equals(any_res.network.labels)
    pd.testing.assert_index_equal(loaded.client_params.index, any_res.client_params.index)


def test_everything_leaves_no_public_method_out():
    asked = {"check", "cov_params", "clients", "conf_int", "degrees_of_freedom", "standard_errors", "summary"}
    asked |= {"heterogeneity", "client_effects", "detection_limit", "tidy"}
    other = {
        "t_test",
        "wald_test",
        "predict",
        "get_prediction",
        "get_robustcov_results",
        "save",
        "oracle",
        "remove_data",
        "report",
    }
    # Further fits of the model; see test_sensitivity.py, test_bootstrap.py, test_majority.py and test_nested.py.
    other |= {"sensitivity", "bootstrap", "majority", "compare_lr_test", "score_test", "goodness_of_fit"}
    methods = {name for name, value in inspect.getmembers(ad.Results, inspect.isfunction) if name[0] != "_"}
    assert methods == asked | other


def test_file_holds_no_pickle(any_res, tmp_path):
    any_res.save(tmp_path / "fit.npz")
    with np.load(tmp_path / "fit.npz", allow_pickle=False) as archive:
        kinds = {name: archive[name].dtype for name in archive.files}
    assert kinds
    assert not any(kind.hasobject for kind in kinds.values())


def test_file_name_gets_its_ending(res, tmp_path):
    res.save(str(tmp_path / "fit"))
    assert ad.load(str(tmp_path / "fit.npz")).nobs == res.nobs


def test_pickle_brings_everything_back_exactly(any_res):
    assert_identical(everything(pickle.loads(pickle.dumps(any_res))), everything(any_res))


def test_predictions_after_a_file_are_those_before(res, frame, tmp_path):
    res.save(tmp_path / "fit.npz")
    loaded = ad.load(tmp_path / "fit.npz")
    wanted = res.predict(frame)
    pd.testing.assert_series_equal(loaded.predict(frame), wanted, check_exact=True)
    pd.testing.assert_series_equal(loaded.predict(frame.assign(Intercept=1.0)), wanted, check_exact=True)
    pd.testing.assert_series_equal(pickle.loads(pickle.dumps(res)).predict(frame), wanted, check_exact=True)


# ------------------------------------------------------------------ what results hold on to


def formula_data(frame):
    return ad.ClientData.from_frame(frame.copy(), "y ~ x1 + scale(x2)", "client")


def array_data(frame):
    return ad.ClientData.from_arrays(frame[["x1", "x2"]].to_numpy(copy=True), frame["y"].to_numpy(), frame["client"])


@pytest.mark.parametrize("build", [formula_data, array_data])
@pytest.mark.parametrize("keep_data", [False, True])
def test_results_let_go_of_the_data(frame, network, build, keep_data):
    data = build(frame)
    held = [weakref.ref(data), weakref.ref(data.X), weakref.ref(data.y)]
    res = ad.DecentralizedGLM(data, network, "binomial").fit(keep_data=keep_data)
    assert (res.data is data) == keep_data
    # Everything that is computed on demand must not need, nor hold, the data either.
    everything(res)
    del data
    gc.collect()
    assert all((ref() is not None) == keep_data for ref in held)


def test_pickle_does_not_grow_with_the_rows(network):
    def size(n):
        sim = ad.simulate.glm_design("binomial", M=8, n=n, p=2, seed=1)
        frame = sim.frame().assign(client=[f"h{k}" for k in sim.client])
        model = ad.DecentralizedGLM.from_formula("y ~ x1 + scale(x2)", frame, "client", network, "binomial")
        return len(pickle.dumps(model.fit(ad.DFL(), rounds=5)))

    assert abs(size(1000) - size(100)) < 200


# ------------------------------------------------------------------ predictions


def test_predictions_from_any_form_of_rows(res, frame, logistic):
    rows = frame.iloc[[5, 300, 17]]
    X = logistic.X[[5, 300, 17]]
    wanted = special.expit(X @ res.params.to_numpy())
    columns = pd.DataFrame(X, columns=["Intercept", "x1", "x2", "x3"], index=list("abc"))
    for given, index in (
        (rows, [5, 300, 17]),
        (rows[["x3", "x1", "x2"]], [5, 300, 17]),
        (columns[["x3", "x1", "x2", "Intercept"]], list("abc")),
        (X, [0, 1, 2]),
        (X.tolist(), [0, 1, 2]),
    ):
        found = res.predict(given)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert list(found.index) == index
    np.testing.assert_allclose(res.predict(X[0]), wanted[:1], rtol=1e-12)


def test_offset_and_exposure_move_the_linear_predictor(res, logistic):
    X = logistic.X[:4]
    eta = special.logit(res.predict(X).to_numpy())
    offset, exposure = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, 2.0, 2.0])
    found = res.predict(X, offset=offset, exposure=exposure)
    np.testing.assert_allclose(special.logit(found), eta + offset + np.log(exposure))


def test_transforms_of_the_fit_are_used_again(frame, network):
    res = ad.DecentralizedGLM.from_formula("y ~ center(x1)", frame, "client", network, "binomial").fit(ad.DFL())
    new = pd.DataFrame({"x1": [10.0]})
    eta = res.params.iloc[0] + res.params.iloc[1] * (10.0 - frame["x1"].mean())
    np.testing.assert_allclose(res.predict(new), special.expit(eta))


def test_prediction_intervals_go_through_the_link(res, logistic):
    x = logistic.X[:3]
    table = res.get_prediction(x).summary_frame(alpha=0.1)
    eta = x @ res.params.to_numpy()
    se = np.sqrt(np.diag(x @ res.cov_params().to_numpy() @ x.T))
    reach = stats.norm.ppf(0.95)
    mean = special.expit(eta)
    wanted = {
        "mean": mean,
        "mean_se": se * mean * (1 - mean),
        "mean_ci_lower": special.expit(eta - reach * se),
        "mean_ci_upper": special.expit(eta + reach * se),
    }
    pd.testing.assert_frame_equal(table, pd.DataFrame(wanted))


def test_gaussian_predictions_have_limits_for_an_observation(frame, network, logistic):
    res = numbered_fit(frame, network, logistic)
    table = res.get_prediction(logistic.X[:3]).summary_frame()
    reach = stats.norm.ppf(0.975) * np.sqrt(table["mean_se"] ** 2 + res.scale)
    np.testing.assert_allclose(table["obs_ci_upper"] - table["mean"], reach)
    np.testing.assert_allclose(table["mean"] - table["obs_ci_lower"], reach)


def test_class_probabilities(graded, frame):
    found = graded.predict(frame)
    assert list(found.columns) == ["low", "middle", "high"]
    assert found.columns.name == "z"
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    X = np.column_stack([np.ones(len(frame)), frame[["x1", "x2"]]])
    eta = np.column_stack([np.zeros(len(frame)), X @ graded.params.to_numpy().reshape(2, 3).T])
    np.testing.assert_allclose(found, special.softmax(eta, axis=1), rtol=1e-12)


def test_standard_errors_of_class_probabilities_by_differences(graded):
    x = np.array([1.0, 0.4, -1.2])

    def probabilities(params):
        return special.softmax(np.concatenate([[0.0], params.reshape(2, 3) @ x]))

    params = graded.params.to_numpy()
    steps = 1e-6 * np.eye(6)
    slopes = np.array([(probabilities(params + h) - probabilities(params - h)) / 2e-6 for h in steps]).T
    se = np.sqrt(np.diag(slopes @ graded.cov_params().to_numpy() @ slopes.T))
    table = graded.get_prediction(x).summary_frame()
    np.testing.assert_allclose(table.xs("mean_se", axis=1, level=1).iloc[0], se, rtol=1e-6)
    lower, upper = (table.xs(f"mean_ci_{side}", axis=1, level=1).iloc[0] for side in ("lower", "upper"))
    np.testing.assert_allclose(upper - lower, 2 * stats.norm.ppf(0.975) * se, rtol=1e-6)


# ------------------------------------------------------------------ threads


def threads_on(processors):
    """The default number of threads, as if the machine had so many processors."""
    with mock.patch.object(os, "sched_getaffinity", create=True, return_value=range(processors)):
        return default_threads()


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
