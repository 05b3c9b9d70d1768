"""The negative binomial's alpha where it is not given, against statsmodels."""

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import adfl_stats as ad

M, N, ALPHA = 40, 60, 0.6


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(2)
    x = rng.normal(size=M * N)
    y = rng.poisson(np.exp(1.0 + 0.5 * x) * rng.gamma(1.0 / ALPHA, ALPHA, M * N))
    return pd.DataFrame({"y": y, "x": x, "site": np.repeat(np.arange(M), N)})


def build(frame, family="negativebinomial", **options):
    return ad.DecentralizedGLM.from_formula(
        "y ~ x", frame, "site", ad.networks.directed_circle(M, 5), family, **options
    )


@pytest.mark.parametrize("family", ["negativebinomial", ad.family("negativebinomial")])
def test_alpha_is_the_maximum_likelihood_estimate_where_all_fit(counts, family):
    model = build(counts, family)
    peer = smf.negativebinomial("y ~ x", counts).fit(disp=0)
    assert model.family.par == pytest.approx(peer.params["alpha"], rel=1e-3)
    res = model.fit(ad.DFL(), tolerance=1e-3)
    np.testing.assert_allclose(res.params, peer.params[["Intercept", "x"]], rtol=1e-3)
    assert res.llf == pytest.approx(peer.llf, rel=1e-6)


def test_exposures_and_weights_count(counts):
    frame = counts.assign(days=np.random.default_rng(2).uniform(0.5, 2.0, len(counts)))
    peer = smf.negativebinomial("y ~ x", frame, exposure=frame["days"]).fit(disp=0)
    assert build(frame, exposure="days").family.par == pytest.approx(peer.params["alpha"], rel=1e-3)
    twice = build(frame, exposure="days", weights=np.full(len(frame), 2.0)).family.par
    assert twice == pytest.approx(peer.params["alpha"], rel=1e-3)


def test_clients_that_are_off_do_not_inflate_alpha(counts):
    rng = np.random.default_rng(3)
    bad = counts["site"] < 10
    frame = counts.assign(y=counts["y"].where(~bad, rng.poisson(np.exp(3.0 - counts["x"]))))
    clean = smf.negativebinomial("y ~ x", frame[~bad]).fit(disp=0).params["alpha"]
    pooled = smf.negativebinomial("y ~ x", frame).fit(disp=0).params["alpha"]
    found = build(frame).family.par
    assert pooled > 2.0 * clean
    assert found == pytest.approx(clean, rel=0.1)


def test_counts_without_overdispersion_have_the_least_alpha(counts):
    # Binomial counts vary less than Poisson's.
    rng = np.random.default_rng(4)
    frame = counts.assign(y=rng.binomial(10, 0.3, len(counts)))
    model = build(frame)
    assert model.family.par == 1e-6
    res = model.fit(ad.DFL())
    assert "not overdispersed" in " ".join(str(res.summary()).split())
    poisson = build(frame, "poisson").fit(ad.DFL())
    np.testing.assert_allclose(res.params, poisson.params, atol=0.05 * poisson.bse.max())


def test_a_given_alpha_is_kept_and_both_are_shown(counts):
    for family in (sm.families.NegativeBinomial(alpha=0.3), ad.family("negativebinomial", alpha=0.3)):
        model = build(counts, family)
        assert model.family.par == 0.3
        text = str(model.fit(ad.DFL()).summary())
        assert re.search(r"alpha: +0\.3$", text, re.M)
        assert "was estimated before the fit" not in text
    model = build(counts)
    text = str(model.fit(ad.DFL()).summary())
    assert "neg. binomial (log)" in text
    assert max(map(len, text.splitlines())) <= 78
    assert f"alpha = {model.family.par:.4g} was estimated before the fit" in " ".join(text.split())
    assert f"alpha={model.family.par:.4g}" in repr(model)


def test_saved_results_keep_alpha(counts, tmp_path):
    res = build(counts).fit(ad.DFL())
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert again.family.par == res.family.par
    assert str(again.summary()) == str(res.summary())


def test_a_client_whose_numbers_overflow_has_no_part_in_alpha(counts):
    vast = counts.assign(x=np.where(counts["site"] == 7, 1e200, 1.0) * counts["x"])
    rest = counts[counts["site"] != 7]
    peer = smf.negativebinomial("y ~ x", rest).fit(disp=0)
    model = build(vast)
    assert model.family.par == pytest.approx(peer.params["alpha"], rel=1e-3)


def test_counts_that_overflow_are_refused_before_alpha():
    X, client = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    data = ad.ClientData.from_arrays(X, np.arange(60.0) * 1e300, client)
    with pytest.raises(ValueError, match="the numbers of 6 of 6 clients overflow"):
        ad.DecentralizedGLM(data, ad.networks.complete(6), family="negativebinomial")
