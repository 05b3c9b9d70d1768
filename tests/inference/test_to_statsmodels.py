"""An estimate as statsmodels' results: its numbers, and the tools that take it."""

from importlib.metadata import version

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose

import adfl_stats as ad

FORMULA = "y ~ x + C(kind)"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    n = 600
    rows = pd.DataFrame(
        {
            "site": np.repeat(list("abcdefghij"), 60),
            "x": rng.standard_normal(n),
            "kind": pd.Categorical(rng.choice(["u", "v"], n)),
        }
    )
    eta = 0.3 + 0.8 * rows["x"] - 0.5 * (rows["kind"] == "v")
    return rows.assign(y=(rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float))


def model(frame, formula=FORMULA, family="binomial"):
    net = ad.networks.complete(10, labels=list("abcdefghij"))
    return ad.DecentralizedGLM.from_formula(formula, frame, client="site", network=net, family=family)


@pytest.fixture(scope="module")
def res(frame):
    return model(frame).fit(ad.DFL(), tolerance=1e-6, cov_type="sandwich")


def test_numbers_are_those_of_the_fit_on_any_rows(frame, res):
    own = res.to_statsmodels(frame[frame["site"] == "c"])
    assert_allclose(own.params, res.params[own.params.index])
    assert_allclose(own.cov_params(), res.cov_params().loc[own.params.index, own.params.index])
    assert_allclose(own.pvalues, res.pvalues[own.params.index], rtol=1e-10)
    assert_allclose(own.conf_int(), res.conf_int().loc[own.params.index], rtol=1e-10)
    assert own.nobs == 600
    assert own.cov_type == res.cov_type
    assert_allclose(own.predict(frame.head()), res.predict(frame.head()), rtol=1e-12)


def test_few_clients_have_the_smallest_degrees_of_freedom(frame, res):
    other = res.get_robustcov_results("CR2")
    df = other.degrees_of_freedom()
    found = other.to_statsmodels(frame)
    k = df.idxmin()
    assert_allclose(found.pvalues[k], other.pvalues[k])
    assert (found.pvalues >= other.pvalues[found.pvalues.index] - 1e-12).all()


def test_marginaleffects_agree_with_those_of_the_pooled_fit(frame, res):
    me = pytest.importorskip("marginaleffects")
    polars = pytest.importorskip("polars")
    if version("marginaleffects").startswith("0.6.") and int(polars.__version__.partition(".")[0]) >= 2:
        pytest.skip("marginaleffects 0.6 fails with polars 2 on any model, of statsmodels too")
    pooled = smf.glm(FORMULA, frame, family=sm.families.Binomial()).fit(cov_type="HC0")
    ours, theirs = (me.avg_slopes(fit, variables="x") for fit in (res.to_statsmodels(frame), pooled))
    assert_allclose(ours["estimate"].to_list(), theirs["estimate"].to_list(), rtol=1e-4)
    assert_allclose(ours["std_error"].to_list(), theirs["std_error"].to_list(), rtol=1e-3)


def test_stargazer_prints_it(frame, res):
    stargazer = pytest.importorskip("stargazer.stargazer")
    text = stargazer.Stargazer([res.to_statsmodels(frame)]).render_latex()
    assert f"{res.params['x']:.3f}" in text
    assert f"({res.bse['x']:.3f})" in text
    assert "600" in text


def test_what_cannot_be_is_said(frame, res):
    with pytest.raises(ValueError, match=r"frame gives the columns .Intercept., .x.; the fit has .*C\(kind\)\[T.v\]"):
        res.to_statsmodels(frame[frame["kind"] == "u"].assign(kind="u"))
    shifted = model(frame, "y ~ x + offset(x)").fit(ad.DFL())
    with pytest.raises(ValueError, match=r"no offset\(\) in formulas; this one is 'y ~ x \+ offset\(x\)'"):
        shifted.to_statsmodels(frame)
    arrays = ad.ClientData.from_arrays(
        np.column_stack([np.ones(600), frame["x"]]), frame["y"].to_numpy(), frame["site"]
    )
    plain = ad.DecentralizedGLM(arrays, ad.networks.complete(10, labels=list("abcdefghij")), "binomial").fit(ad.DFL())
    with pytest.raises(ValueError, match="to_statsmodels needs a model that was made from a formula"):
        plain.to_statsmodels(frame)
    classes = model(frame.assign(y=np.arange(600) % 3), "y ~ x", "multinomial").fit(ad.DFL())
    with pytest.raises(ValueError, match="its counterpart is MNLogit"):
        classes.to_statsmodels(frame)
