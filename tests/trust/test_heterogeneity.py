"""How much clients differ, against statsmodels' meta-analysis and mixed models, and with known truth."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

import adfl_stats as ad
from adfl_stats.inference.heterogeneity import paule_mandel, q_profile
from adfl_stats.simulate.field_designs import FieldCell, draw


def fitted(cell, seed, **options):
    sim = draw(cell, seed)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    net = ad.networks.complete(cell.M) if cell.M <= 6 else ad.networks.directed_circle(cell.M, 5)
    return ad.DecentralizedGLM(data, net, cell.family).fit(solver="limit", **options)


@pytest.fixture(scope="module")
def res():
    return fitted(FieldCell("differ", tau=1.0, M=40, n=60, p=2), 1)


@pytest.mark.parametrize("tau", [0.0, 0.5, 3.0])
def test_paule_and_mandel_as_statsmodels_has_it(tau):
    rng = np.random.default_rng(1)
    variances = rng.uniform(0.2, 2.0, 25)
    estimates = rng.normal(size=25) * np.sqrt(variances + tau**2)
    known = combine_effects(estimates, variances, method_re="iterated")
    # statsmodels ends where Q is within 1e-5 of its degrees of freedom.
    assert paule_mandel(estimates, variances) == pytest.approx(known.tau2, rel=1e-4, abs=1e-9)


def test_q_profile_covers():
    """1000 data sets of 15 clients with tau = 1: coverage .95 with a standard error of .007; and of tau = 0."""
    for tau in (1.0, 0.0):
        rng = np.random.default_rng(2)
        inside = 0
        for _ in range(1000):
            variances = rng.uniform(0.2, 2.0, 15)
            low, high = q_profile(rng.normal(size=15) * np.sqrt(variances + tau**2), variances, 0.05)
            inside += low <= tau**2 <= high
        # At zero the lower limit alone can miss.
        assert inside / 1000 == pytest.approx(0.95 if tau else 0.975, abs=0.028)


def test_table_is_a_meta_analysis_of_the_clients(res):
    found = res.heterogeneity()
    table, effects = found.to_frame(), res.client_effects()
    assert list(table.index) == list(res.params.index)
    for name in table.index:
        own = effects.xs(name, level="coefficient")[["deviation", "se"]].to_numpy()
        known = combine_effects(own[:, 0], own[:, 1] ** 2, method_re="iterated")
        line = table.loc[name]
        assert line["Q"] == pytest.approx(known.q, rel=1e-9)
        assert line["tau"] == pytest.approx(np.sqrt(known.tau2), rel=1e-4)
        assert line["i_squared"] == pytest.approx(max(known.i2, 0.0), rel=1e-9, abs=1e-12)
        assert line["p_value"] == pytest.approx(stats.chi2.sf(known.q, 39), rel=1e-9)
        assert line["lower"] <= line["tau"] <= line["upper"]
    assert found.n_clients == 40
    assert found.p_value < 1e-3
    assert found.i_squared == pytest.approx(1 - found.df / found.statistic)


def test_deviations_are_regressions_of_their_own():
    """One scoring step is exact in the Gaussian model; standard errors have the moderated noise level."""
    cell = FieldCell("differ", tau=1.0, M=20, n=60, p=2)
    sim, found = draw(cell, 3), fitted(cell, 3)
    effects = found.client_effects()["deviation"].to_numpy().reshape(20, 3)
    for m in range(20):
        X, y = sim.X[sim.client == m], sim.y[sim.client == m]
        # The record is at the model's own estimate, which numerical error parts from the fit's: .05 standard errors.
        assert_allclose(effects[m] + found.params, np.linalg.lstsq(X, y)[0], atol=0.05 * found.bse.max())


@pytest.mark.parametrize("heterogeneity", ["auto", "estimate"])
def test_effects_are_the_blups_of_a_mixed_model(heterogeneity):
    """Random intercepts: the same up to the variance components, which ours estimate by another likelihood."""
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(60), rng.integers(10, 40, 60))
    u = rng.normal(size=60) * 0.5
    frame = pd.DataFrame({"y": 1.0 + u[client] + rng.normal(size=len(client)), "client": client})
    model = ad.DecentralizedGLM.from_formula("y ~ 1", frame, "client", ad.networks.directed_circle(60, 5))
    res = model.fit(solver="limit", heterogeneity=heterogeneity)
    assert (res.client_weights > 0.99).all()
    known = smf.mixedlm("y ~ 1", frame, groups="client").fit(reml=False)
    T, found = res.heterogeneity().spread.iloc[0, 0], res.client_effects()
    # Exactly: the shrunken deviation at our own T and the clients' own standard errors.
    own = found["deviation"] * T / (T + found["se"] ** 2)
    assert_allclose(found["effect"], own, rtol=1e-6, atol=1e-10)
    assert_allclose(found["effect_se"], np.sqrt(T * found["se"] ** 2 / (T + found["se"] ** 2)), rtol=1e-6)
    blups = np.array([known.random_effects[m].iloc[0] for m in range(60)])
    at_ours = found["effect"].to_numpy() + res.params.iloc[0] - known.fe_params.iloc[0]
    # T within a quarter of its standard error, noise levels moderated: shrinkage within a few per cent of the effects.
    assert np.abs(at_ours - blups).max() < 0.1 * blups.std()
    assert np.corrcoef(found["effect"], blups)[0, 1] > 0.995


def test_intervals_cover_new_clients():
    """The parameter of one more client, in 20 data sets of 30 clients that differ: 60 intervals at .9.

    A new client's law is known, and so is the probability with which it lies in an interval.
    """
    inside, mean, law = [], [], stats.norm(1.0, 0.4)
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        X = rng.normal(size=(30 * 40, 3))
        client = np.repeat(np.arange(30), 40)
        u = rng.normal(size=(30, 3)) * 0.4
        y = np.einsum("ij,ij->i", X, 1.0 + u[client]) + rng.normal(size=len(X))
        model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(30))
        table = model.fit(solver="limit").heterogeneity(alpha=0.1).intervals()
        inside.append(law.cdf(table["new client, upper"]) - law.cdf(table["new client, lower"]))
        mean.append((table["lower"] <= 1.0) & (table["upper"] >= 1.0))
    # Probabilities vary by some .05 from interval to interval: a standard error of .007, where whether new clients
    # are inside would have .04.
    assert np.std(inside) < 0.06
    assert np.mean(inside) == pytest.approx(0.9, abs=0.03)
    # Binomial with 60 trials: a standard error of .039. (In 450 intervals of other seeds .913.)
    assert np.mean(mean) == pytest.approx(0.9, abs=0.09)


def test_round_trip(res, tmp_path):
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    for one in ("to_frame", "intervals"):
        pd.testing.assert_frame_equal(
            getattr(again.heterogeneity(), one)(), getattr(res.heterogeneity(), one)(), check_exact=True
        )
    pd.testing.assert_frame_equal(again.client_effects(), res.client_effects(), check_exact=True)
    pd.testing.assert_frame_equal(again.clients(), res.clients(), check_exact=True)
    assert str(again.heterogeneity()) == str(res.heterogeneity())
    assert again.record.clients.words() == res.record.clients.words()


def test_words_and_pictures(res):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = res.heterogeneity()
    text = str(found)
    assert "Clients that differ" in text
    assert f"The fit allows for a spread of kind: {found.kind}." in text
    assert "Each tau is from the 40 normal clients whose rows identify all coefficients." in text
    assert max(map(len, text.splitlines())) <= 80
    assert "<h3>Clients that differ</h3>" in found._repr_html_()
    pd.testing.assert_frame_equal(found.clients, res.client_effects())
    found.plot(ax=pyplot.figure().subplots())
    pyplot.close("all")
    with pytest.raises(ValueError, match=r"alpha is 2; it must lie in \(0, 1\)"):
        res.heterogeneity(2.0)


def test_inference_follows_the_clients(res):
    assert (res.cov_type, res.use_t) == ("CR2", True)
    assert_allclose(res.bse, res.standard_errors("CR2"))
    same = fitted(FieldCell("same", M=40, n=60, p=2), 1)
    assert (same.cov_type, same.use_t) == ("sandwich", False)
    assert not same.client_effects()[["effect", "effect_se"]].to_numpy().any()
    with pytest.raises(ValueError, match="method='mirror' takes clients that share one parameter; here they differ"):
        ad.screen(res, method="mirror")
    with pytest.raises(ValueError, match="heterogeneity is 'some'; choose one of 'auto', 'none', 'estimate'"):
        fitted(FieldCell("same", M=40, n=60, p=2), 1, heterogeneity="some")


def test_fewer_than_two_clients():
    found = fitted(FieldCell("few", M=2, n=60, p=2), 1, heterogeneity="none")
    assert found.heterogeneity().n_clients == 2
    sim = draw(FieldCell("one", M=1, n=60, p=2), 1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    alone = ad.DecentralizedGLM(data, ad.networks.complete(1)).fit(solver="limit").heterogeneity()
    assert alone.to_frame().isna().all(axis=None)
    assert (alone.df, alone.p_value) == (0.0, 1.0)
