"""statsmodels' names on models and results, against statsmodels itself where the numbers are comparable."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose
from statsmodels.iolib.summary2 import summary_col

import adfl_stats as ad
from adfl_stats.inference.fitted import ModelNames


@pytest.fixture(scope="module")
def shuffled(frame):
    """The rows of all clients in random order, with an index of their own."""
    mixed = frame.sample(frac=1.0, random_state=5)
    return mixed.set_axis([f"row {k}" for k in range(len(mixed))])


@pytest.fixture(scope="module")
def pooled(shuffled, network):
    """Plain DFL with balanced steps, whose limit is the pooled fit; the data are kept."""
    model = ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3", shuffled, "client", network, "binomial")
    return model.fit(ad.DFL(), tolerance=1e-4, keep_data=True)


@pytest.fixture(scope="module")
def peer(shuffled):
    return smf.glm("y ~ x1 + x2 + x3", data=shuffled, family=sm.families.Binomial()).fit(tol=1e-12, cov_type="HC0")


def test_rows_agree_with_statsmodels_in_the_users_order(pooled, peer, shuffled):
    pd.testing.assert_series_equal(pooled.fittedvalues, peer.fittedvalues, check_names=False, rtol=1e-3)
    pd.testing.assert_series_equal(pooled.resid, peer.resid_response, check_names=False, rtol=1e-2)
    pd.testing.assert_series_equal(pooled.resid_response, pooled.resid)
    pd.testing.assert_series_equal(pooled.predict(), pooled.fittedvalues)
    pd.testing.assert_series_equal(pooled.predict(shuffled), pooled.predict(), rtol=1e-12)
    np.testing.assert_array_equal(pooled.resid + pooled.fittedvalues, shuffled["y"])


def test_counts_agree_with_statsmodels(pooled, peer):
    for name in ("nobs", "df_model", "df_resid"):
        assert getattr(pooled, name) == getattr(peer, name)
    np.testing.assert_allclose([pooled.llf, pooled.aic], [peer.llf, peer.aic], rtol=1e-6)
    assert pooled.nobs_used == pooled.nobs


def test_rows_that_do_not_count_are_not_counted(model):
    res = model.fit(ad.DFL(weights=[1.0, 0.01, *[1.0] * 6]))
    assert res.nobs_used == res.nobs - model.data.sizes[1]
    assert res.df_resid == res.nobs_used - 4


def test_predictions_and_their_limits(pooled, peer, shuffled):
    mine, theirs = pooled.get_prediction(cov_type="HC0"), peer.get_prediction()
    pd.testing.assert_frame_equal(
        mine.conf_int(0.1), pd.DataFrame(theirs.conf_int(alpha=0.1), shuffled.index), rtol=1e-2
    )
    frame = mine.summary_frame(0.1)
    np.testing.assert_array_equal(mine.conf_int(0.1), frame[["mean_ci_lower", "mean_ci_upper"]])


def test_limits_of_class_probabilities(frame, network):
    rng = np.random.default_rng(1)
    classes = frame.assign(y=rng.choice(["a", "b", "c"], len(frame)))
    model = ad.DecentralizedGLM.from_formula("y ~ x1", classes, "client", network, "multinomial")
    res = model.fit(ad.DFL(), keep_data=True)
    limits = res.get_prediction(frame.head(3)).conf_int()
    assert limits.columns.to_list() == [(level, end) for level in "abc" for end in (0, 1)]
    assert res.df_model == 2.0
    fitted = res.fittedvalues
    np.testing.assert_allclose(fitted.sum(axis=1), 1.0)
    wanted = pd.get_dummies(classes["y"]).astype(float) - fitted
    pd.testing.assert_frame_equal(res.resid, wanted, check_names=False, check_column_type=False)


def test_offsets_of_the_data_are_in_fitted_values(frame, network):
    counts = frame.assign(y=np.random.default_rng(2).poisson(3.0, len(frame)), days=np.linspace(1.0, 5.0, len(frame)))
    model = ad.DecentralizedGLM.from_formula("y ~ x1", counts, "client", network, "poisson", exposure="days")
    res = model.fit(ad.DFL(), keep_data=True)
    np.testing.assert_allclose(res.predict(), res.predict(counts, exposure=counts["days"]), rtol=1e-12)


def test_results_that_hold_no_rows_say_so(model):
    res = model.fit(ad.DFL())
    assert res.model is model
    assert len(res.fittedvalues) == res.nobs
    res.remove_data()
    assert res.model == ModelNames("y", ["Intercept", "x1", "x2", "x3"], "y ~ x1 + x2 + x3")
    for name in ("fittedvalues", "resid"):
        with pytest.raises(ValueError, match=f"{name} needs the rows that were fitted.*keep_data=True"):
            getattr(res, name)
    with pytest.raises(ValueError, match=r"predict\(\) without X needs the rows"):
        res.predict()


def test_clients_that_overflow_have_no_fitted_values(frame, network):
    rng = np.random.default_rng(3)
    counts = frame.assign(y=rng.poisson(2.0, len(frame)))
    counts["x1"] = counts["x1"].where(counts["client"] != "h2", counts["x1"] * 1e6)
    model = ad.DecentralizedGLM.from_formula("y ~ x1", counts, "client", network, "poisson")
    with pytest.warns(ad.ConditionWarning, match="were set aside"):
        res = model.fit(keep_data=True)
    assert (res.fittedvalues.isna() == (counts["client"] == "h2")).all()


def test_covariances_by_name(model):
    plain, chosen = model.fit(ad.DFL()), model.fit(ad.DFL(), cov_type="CR2")
    assert chosen.cov_type == "CR2"
    np.testing.assert_array_equal(chosen.bse, plain.standard_errors("CR2"))
    assert str(plain.summary(cov_type="CR2")) == str(chosen.summary())
    with pytest.raises(ValueError, match="cov_type is 'HC9'; choose one of 'sandwich'"):
        model.fit(ad.DFL(), cov_type="HC9")
    with pytest.raises(ValueError, match="cov_type is 'HC9'"):
        plain.summary(cov_type="HC9")


def test_tables_of_several_fits(pooled, peer, model):
    res = model.fit(ad.DFL())
    table = summary_col([pooled, peer, res], stars=True, model_names=["DFL", "pooled", "aDFL"])
    text = str(table)
    assert f"{peer.params['x1']:.4f}" in text
    assert text.count("(") >= 12
    res.remove_data()
    assert "aDFL" in str(summary_col([res], model_names=["aDFL"], info_dict={"N": lambda fit: fit.nobs_used}))


def test_texts_of_model_results_and_rates(model, res):
    assert repr(model) == "DecentralizedGLM(y ~ x1 + x2 + x3, binomial (logit), 8 clients, 24 edges, N=390)"
    arrays = ad.ClientData.from_arrays(np.ones((4, 1)), np.arange(4.0), list("abab"))
    short = ad.DecentralizedGLM(arrays, ad.networks.schedule([ad.networks.complete(2, labels=list("ab"))]))
    assert repr(short) == "DecentralizedGLM(y on 1 columns, gaussian (identity), 2 clients, edges that change, N=4)"
    assert "<table" in res._repr_html_()
    assert "Decentralised GLM Results" in res._repr_html_()
    fit = model.fit(ad.DFL(), step=0.1, rounds=50)
    page = model.rates(fit)._repr_html_()
    assert page.count("<table") == 2
    assert "Rates at step 0.1" in page


def test_tidy_has_brooms_columns_and_the_numbers_of_statsmodels():
    """A pooled fit: the table is what broom makes of statsmodels' HC1 results."""
    rng = np.random.default_rng(5)
    X, client = np.column_stack([np.ones(300), rng.normal(size=300)]), np.repeat(np.arange(6), 50)
    y = X @ [1.0, 0.5] + rng.normal(size=300)
    data = ad.ClientData.from_arrays(X, y, client, names=["const", "x"])
    res = ad.DecentralizedGLM(data, ad.networks.complete(6)).fit(ad.DFL(), tolerance=1e-6)
    theirs = sm.OLS(y, X).fit(cov_type="HC1", use_t=True)
    table = res.tidy(alpha=0.1, cov_type="HC1")
    assert table.columns.tolist() == ["term", "estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high"]
    assert table["term"].tolist() == ["const", "x"]
    expected = np.column_stack([theirs.params, theirs.bse, theirs.tvalues, theirs.pvalues, theirs.conf_int(0.1)])
    assert_allclose(table.iloc[:, 1:], expected, rtol=1e-5, atol=1e-12)
    assert_allclose(res.tidy()["conf.high"], res.conf_int()[1])


def test_networks_show_themselves_in_notebooks():
    html = ad.networks.directed_circle(6, 2)._repr_html_()
    assert "<table" in html
    assert "SE(W)" in html
