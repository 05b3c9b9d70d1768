"""Inference at the estimate: how often the data are read, when, and who holds them."""

import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose
from statsmodels import api as sm

import adfl_stats as ad
from adfl_stats.data import batches
from adfl_stats.data import client_data as blocks
from adfl_stats.inference import at_estimate
from adfl_stats.inference.at_estimate import PARTS
from adfl_stats.inference.fitted import ModelNames
from adfl_stats.losses.glm import GLM

M, SIZES = 12, np.arange(20, 44, 2)


def dataset(family, *, weights=False):
    rng = np.random.default_rng(4)
    N = int(SIZES.sum())
    X = np.column_stack([np.ones(N), rng.normal(size=(N, 2))])
    eta = X @ [0.3, 0.5, -0.4]
    y = {
        "gaussian": lambda: eta + rng.normal(size=N),
        "binomial": lambda: (rng.random(N) < 1 / (1 + np.exp(-eta))) * 1.0,
        "poisson": lambda: rng.poisson(np.exp(eta)) * 1.0,
        "gamma": lambda: rng.gamma(2.0, np.exp(eta) / 2.0),
        "multinomial": lambda: rng.integers(0, 3, N) * 1.0,
    }[family]()
    w = rng.uniform(0.5, 2.0, N) if weights else None
    return X, y, np.repeat(np.arange(M), SIZES), w


def model(family, **how):
    X, y, client, w = dataset(family, **how)
    return ad.DecentralizedGLM(
        ad.ClientData.from_arrays(X, y, client, weights=w), ad.networks.directed_circle(M, 4), family
    )


@pytest.fixture
def walks(monkeypatch):
    """Count the walks through the rows, whatever asks for them, from the first batch to the last."""
    counted = []

    def counting(walk):
        def wrapper(data, *rest):
            counted.append(walk.__name__)
            return walk(data, *rest)

        return wrapper

    for name in ("whole_clients", "row_blocks"):
        original = getattr(batches, name)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("adfl_stats") and getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, counting(original))
    # The kernel reads rows too.
    gradients = GLM.gradients

    def kernel(self, *rest):
        counted.append("gradients")
        return gradients(self, *rest)

    monkeypatch.setattr(GLM, "gradients", kernel)
    return counted


@pytest.mark.parametrize("method", [ad.DFL(), ad.ADFL(lam=1.0), ad.ADFL(balance=True)], ids=["DFL", "norm", "model"])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "gamma", "multinomial"])
def test_everything_takes_two_passes_and_one_for_leverages_asked_for_late(walks, family, method):
    fitted = model(family)
    res = fitted.fit(method, step=0.1, rounds=5)
    # The sizes of columns and responses belong to the model; they are found once for all fits.
    objective = fitted.rows.glm(fitted.rows.data)
    _ = objective.coefficient_sizes, objective.mean_squares
    walks.clear()
    res.summary(), res.clients(), ad.screen(res), res.heterogeneity(), res.cov_params("CR2"), res.cov_params("CR3")
    assert walks == ["whole_clients"]
    res.check()
    assert walks == ["whole_clients"] * 2
    res.summary(), res.check(), res.detection_limit()
    assert walks == ["whole_clients"] * 2
    res.cov_params("HC2"), res.cov_params("HC3"), res.summary(), pickle.dumps(res)
    assert walks == ["whole_clients"] * 3


@pytest.mark.parametrize(("family", "slopes"), [("gaussian", 0), ("binomial", 12), ("poisson", 9)])
def test_a_penalty_takes_one_pass_more_and_slopes_where_the_loss_is_not_quadratic(walks, family, slopes):
    """Newton's method with the curvature at the estimate reads rows for slopes only."""
    X, y, client, _ = dataset(family)
    data = ad.ClientData.from_arrays(X, y, client)
    fitted = ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 4), family, penalty=ad.Ridge([0.0, 0.1, 0.1]))
    res = fitted.fit(ad.DFL(), step=0.1, rounds=50)
    objective = fitted.rows.glm(fitted.rows.data)
    _ = objective.coefficient_sizes, objective.mean_squares
    walks.clear()
    res.summary(), res.clients(), ad.screen(res), res.heterogeneity(), res.cov_params("CR2")
    assert walks.count("whole_clients") == 2
    assert 0 < walks.count("gradients") <= slopes if slopes else walks.count("gradients") == 0
    assert len(walks) == 2 + walks.count("gradients")
    # Where clients are tested their scores have mean zero: without the penalty, the pooled estimate.
    where = res.record.at_estimate._source.judged[0]
    pooled = sm.GLM(y, X, FAMILIES[family]).fit(tol=1e-13, maxiter=100).params
    assert_allclose(where, pooled, rtol=1e-7)
    assert np.abs(res.params.to_numpy() - pooled).max() > 0.01


@pytest.mark.parametrize("family", ["gaussian", "binomial", "multinomial"])
def test_files_and_pickles_take_two_passes(walks, family, tmp_path):
    fitted = model(family)
    for write in (pickle.dumps, lambda res: res.save(tmp_path / "fit"), lambda res: res.remove_data()):
        res = fitted.fit(ad.DFL(), step=0.1, rounds=5)
        objective = fitted.rows.glm(fitted.rows.data)
        _ = objective.coefficient_sizes, objective.mean_squares
        walks.clear()
        write(res)
        assert walks == ["whole_clients"] * 2
        res.summary(), res.check(), res.cov_params("HC3"), ad.screen(res)
        assert len(walks) == 2


def test_a_fit_of_given_rounds_reads_no_row_for_inference(walks):
    fitted = model("gaussian")
    _ = fitted.fit(ad.DFL(), step=0.05, rounds=3).bse
    walks.clear()
    res = fitted.fit(ad.DFL(), step=0.05, rounds=3)
    assert walks == []
    assert np.isfinite(res.params).all()
    assert len(res.trace)
    assert np.isfinite(res.client_params.to_numpy()).all()
    assert walks == []
    assert np.isfinite(res.bse).all()
    assert walks == ["whole_clients"]


FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}


@pytest.mark.parametrize("rows", [10, 64, 8192], ids=["pieces", "batches", "one batch"])
@pytest.mark.parametrize("weights", [False, True], ids=["plain", "row weights"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_finds_what_statsmodels_has(family, weights, rows, monkeypatch):
    """Pooled likelihood, deviance, dispersion and sandwich, wherever blocks of rows end."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", rows)
    X, y, _, w = dataset(family, weights=weights)
    pooled = sm.GLM(y, X, FAMILIES[family], var_weights=w).fit(tol=1e-12, maxiter=200)
    wanted = sm.GLM(y, X, FAMILIES[family], var_weights=w).fit(tol=1e-12, maxiter=200, cov_type="HC0")
    res = model(family, weights=weights).fit(ad.DFL(init=pooled.params), step=1e-12, rounds=1)
    assert_allclose(res.params, pooled.params, atol=1e-7)
    assert_allclose(res.standard_errors("sandwich"), wanted.bse, rtol=1e-5)
    assert_allclose(res.standard_errors("nonrobust"), pooled.bse, rtol=1e-5)
    assert_allclose([res.deviance, res.scale], [pooled.deviance, pooled.scale], rtol=1e-6)
    assert_allclose(res.llf, pooled.llf, rtol=1e-6)


# ------------------------------------------------------------------ who holds the data


def test_model_and_data_are_let_go_on_demand():
    fitted = model("poisson")
    held = weakref.ref(fitted), weakref.ref(fitted.data)
    res = fitted.fit(ad.DFL(), rounds=3)
    assert res.model is fitted
    del fitted
    gc.collect()
    assert all(ref() is not None for ref in held)
    res.remove_data()
    gc.collect()
    assert isinstance(res.model, ModelNames)
    assert all(ref() is None for ref in held)
    assert np.isfinite(res.bse).all()
    assert res.check()["rho"].status
    with pytest.raises(ValueError, match="hold no data"):
        res.oracle([0])


def test_remove_data_takes_kept_data_too():
    fitted = model("gaussian")
    res = fitted.fit(ad.DFL(), rounds=3, keep_data=True)
    res.clients(), res.check(), res.heterogeneity(), res.cov_params("CR2")
    assert res.model is fitted
    assert res.data is fitted.data
    res.remove_data()
    assert isinstance(res.model, ModelNames)
    assert res.data is None
    assert np.isfinite(res.bse).all()


@pytest.mark.parametrize("keep_data", [False, True])
def test_a_pickle_has_inference_and_the_data_only_if_kept(keep_data):
    fitted = model("binomial")
    res = fitted.fit(ad.DFL(), rounds=3, keep_data=keep_data)
    back = pickle.loads(pickle.dumps(res))
    assert (back.data is not None) == keep_data
    assert isinstance(back.model, ModelNames)
    assert all(name in back.record.at_estimate.__dict__ for name in PARTS)
    assert back.summary().as_text() == res.summary().as_text()


def test_an_interrupt_leaves_results_that_can_be_asked_again(monkeypatch):
    fitted = model("gaussian")
    wanted = fitted.fit(ad.DFL(), rounds=3).bse
    res, sums_at = fitted.fit(ad.DFL(), rounds=3), at_estimate.sums_at

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(at_estimate, "sums_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        res.summary()
    monkeypatch.setattr(at_estimate, "sums_at", sums_at)
    assert res.bse.equals(wanted)


def test_what_must_be_known_at_once_is_said_by_fit():
    with pytest.warns(ad.ConvergenceWarning, match="numerical error"):
        model("gaussian").fit(ad.DFL(), max_rounds=2)
    X, y, client, _ = dataset("gaussian")
    bare = ad.DecentralizedGLM(ad.ClientData.from_arrays(X[:, 1:], y, client), ad.networks.directed_circle(M, 4))
    with pytest.raises(ValueError, match="heterogeneity='intercept' needs a constant column"):
        bare.fit(ad.DFL(), rounds=3, heterogeneity="intercept")
