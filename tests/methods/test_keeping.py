"""Clients that keep their weight: protected by name, or because they alone identify coefficients."""

import warnings

import numpy as np
import pytest
import statsmodels.formula.api as smf

import adfl_stats as ad

BAD = [3, 7, 13, 19]


@pytest.fixture(scope="module")
def sites():
    """Twenty sites of one linear model, four of which have flipped covariates."""
    sim = ad.simulate.paper_linear(abnormal=BAD, corruption="BF", seed=1, M=20, n=50, p=3)
    return sim.frame().rename(columns={"client": "site"})


@pytest.fixture(scope="module")
def circle():
    return ad.networks.directed_circle(20, 5)


def build(sites, circle, formula):
    return ad.DecentralizedGLM.from_formula(formula, sites, "site", circle)


def test_constants_of_clients_that_do_not_fit_have_an_estimate(sites, circle):
    model = build(sites, circle, "y ~ x1 + x2 + x3 + C(site)")
    with pytest.warns(
        ad.SelectionWarning, match=r"only clients that do not fit the majority identify 'C\(site\)\[T\.3\]'"
    ):
        res = model.fit(tolerance=1e-4)
    assert sorted(res.client_weights.index[res.client_weights < 0.1]) == BAD
    # The same weighted equation, solved by statsmodels.
    weights = res.client_weights.loc[sites["site"]].to_numpy()
    peer = smf.wls("y ~ x1 + x2 + x3 + C(site)", sites, weights=weights).fit()
    np.testing.assert_allclose(res.params, peer.params[res.params.index], atol=1e-3 * res.bse.max())
    # They hardly move the slopes: those of the others alone.
    oracle = smf.ols("y ~ x1 + x2 + x3 + C(site)", sites[~sites["site"].isin(BAD)]).fit()
    slopes = ["x1", "x2", "x3"]
    assert (np.abs(res.params[slopes] - oracle.params[slopes]) < 0.05 * oracle.bse[slopes]).all()
    said = " ".join(str(res.summary()).split())
    assert "Only clients that do not fit the majority identify 'C(site)[T.3]', 'C(site)[T.7]'" in said
    assert "keep a weight of 0.001" in said


def test_nothing_is_kept_where_the_others_identify_all(sites, circle):
    res = build(sites, circle, "y ~ x1 + x2 + x3").fit()
    assert (res.client_weights[BAD] < 1e-3).all()
    assert "identified" not in res.method.details


@pytest.mark.parametrize("factor", [1e3, 1e5])
def test_a_client_in_other_units_does_not_identify_a_coefficient(sites, circle, factor):
    """It holds nearly all information about x2 by its numbers; the others identify x2 all the same."""
    wide = sites.assign(x2=np.where(sites["site"] == 7, factor * sites["x2"], sites["x2"]))
    with pytest.warns(ad.SelectionWarning, match="hold most of the information about 'x2'"):
        res = build(wide, circle, "y ~ x1 + x2 + x3").fit()
    assert "identified" not in res.method.details
    assert res.client_weights[7] < 1e-6


@pytest.mark.parametrize(
    "method", [ad.ADFL(protect=[7, 13]), ad.ADFL(protect=[7, 13], lam="cv"), ad.ADFL(5.0, protect=[7, 13])]
)
def test_protected_clients_keep_their_weight(sites, circle, method):
    res = build(sites, circle, "y ~ x1 + x2 + x3").fit(method)
    assert (res.client_weights[[7, 13]] == 1.0).all()
    assert (res.client_weights[[3, 19]] < 0.1).all()
    # They are still judged.
    assert res.clients()["flagged"][[7, 13]].all()


def test_the_summary_says_who_was_protected(sites, circle):
    model = build(sites, circle, "y ~ x1 + x2 + x3")
    said = " ".join(str(model.fit(ad.ADFL(protect=[7, 1])).summary()).split())
    assert "7 would have lost weight, and keep it because protect names them" in said
    everybody = model.fit(ad.ADFL(protect=range(20), balance=True), heterogeneity="none")
    plain = model.fit(ad.DFL(balance=True))
    np.testing.assert_allclose(everybody.params, plain.params, atol=0.1 * plain.bse.max())


def test_protected_clients_must_exist(sites, circle):
    with pytest.raises(ValueError, match="protect names 'nobody', not among the clients 0, 1, 2, 3, 4 and 15 more"):
        build(sites, circle, "y ~ x1").fit(ad.ADFL(protect=["nobody"]))


def test_few_rows_that_hold_much_of_a_coefficient_are_named(circle):
    """One client of 20 has 50 of the 145 rows in which z varies, and loses its weight."""
    sim = ad.simulate.paper_linear(abnormal=[7], corruption="BF", seed=1, M=20, n=50, p=3)
    rows, rng = sim.frame().rename(columns={"client": "site"}), np.random.default_rng(2)
    varies = (rows["site"] == 7) | (rows.groupby("site").cumcount() < 5)
    rows["z"] = np.where(varies, rng.normal(size=len(rows)), 0.0)
    model = build(rows, circle, "y ~ x1 + x2 + x3 + z")
    with pytest.warns(
        ad.SelectionWarning, match=r"hold 3\d% of the information about 'z'; its estimate depends on the"
    ):
        res = model.fit()
    assert res.client_weights[7] < 0.01
    assert "of the information about 'z'" in " ".join(str(res.summary()).split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ad.ConvergenceWarning)
        assert model.fit(ad.ADFL(protect=[7])).client_weights[7] == 1.0
