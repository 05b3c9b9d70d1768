"""Weights that count like rows, and weights of variances, against copies of rows and statsmodels."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import adfl_stats as ad


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.normal(size=90), "site": rng.choice(list("abc"), 90)})
    frame["y"] = 1.0 + frame["x"] + rng.normal(size=90)
    frame["k"] = rng.integers(1, 4, 90)
    return frame


def fitted(frame, **words):
    net = ad.networks.complete(3, labels=list("abc"))
    return ad.DecentralizedGLM.from_formula("y ~ x", frame, "site", net, **words).fit(
        ad.DFL(), step=0.3, rounds=400, heterogeneity="none", keep_data=True
    )


def test_frequencies_are_copies_of_rows(table):
    counted, copied = fitted(table, freq_weights="k"), fitted(table.loc[table.index.repeat(table["k"])])
    pd.testing.assert_series_equal(counted.params, copied.params)
    pd.testing.assert_series_equal(counted.bse, copied.bse)
    assert counted.nobs == copied.nobs == table["k"].sum()
    assert counted.fittedvalues.index.tolist() == table.index.repeat(table["k"]).tolist()
    np.testing.assert_allclose(counted.fittedvalues, copied.fittedvalues)
    # As in statsmodels, whose sandwich needs the copies themselves.
    exog = sm.add_constant(table["x"])
    known = sm.GLM(table["y"], exog, freq_weights=table["k"]).fit()
    np.testing.assert_allclose(counted.params, known.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(counted.cov_params("nonrobust"))), known.bse, rtol=1e-6)


def test_weights_are_weights_of_variances(table):
    found = fitted(table, weights="k")
    exog = sm.add_constant(table["x"])
    known = sm.GLM(table["y"], exog, var_weights=table["k"]).fit()
    np.testing.assert_allclose(found.params, known.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(found.cov_params("nonrobust"))), known.bse, rtol=1e-6)
    assert found.nobs == len(table)
    # About 2^1/2 for a mean weight of two.
    ratio = found.bse / fitted(table, freq_weights="k").bse
    assert ratio.between(1.25, 1.6).all()


def test_both_kinds_and_arrays(table):
    w = np.random.default_rng(3).uniform(0.5, 2.0, len(table))
    exog = sm.add_constant(table["x"])
    known = sm.GLM(table["y"], exog, var_weights=w, freq_weights=table["k"]).fit()
    found = fitted(table, weights=w, freq_weights=table["k"].to_numpy())
    np.testing.assert_allclose(found.params, known.params, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(np.diag(found.cov_params("nonrobust"))), known.bse, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1.0, 2.5, 1.0, 1.0], "freq_weights must be whole numbers of at least 1.*row 1 has 2.5.*use weights="),
        ([1, 2, 0, 1], "row 2 has 0. Leave out rows that count zero times"),
        ([1, 2, -3, 1], "row 2 has -3"),
        ([1, 2, 3], "freq_weights has 3 entries, X has 4 rows"),
        ([1, np.nan, 1, 1], "freq_weights has NaN or infinite values"),
    ],
)
def test_frequencies_that_cannot_be(given, words):
    with pytest.raises(ValueError, match=words):
        ad.ClientData.from_arrays(np.eye(4), np.arange(4.0), [0, 0, 1, 1], freq_weights=given)
