"""Results in files and pickles, and what they hold on to."""

import gc
import inspect
import pickle
import weakref
from functools import cached_property

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.inference.results import COV_TYPES


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
        # See test_to_statsmodels.py and test_communication.py.
        "to_statsmodels",
        "communication",
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


def formula_data(frame):
    return ad.ClientData.from_frame(frame.copy(), "y ~ x1 + scale(x2)", "client")


def array_data(frame):
    return ad.ClientData.from_arrays(frame[["x1", "x2"]].to_numpy(copy=True), frame["y"].to_numpy(), frame["client"])


# ------------------------------------------------------------------ what results hold on to


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
