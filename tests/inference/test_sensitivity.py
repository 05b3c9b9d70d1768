"""Each row of the sensitivity table is a fit that can be made by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad
from adfl_stats.inference import sensitivity as sensitivity_module


@pytest.fixture(scope="module")
def model():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=3, M=12, n=40, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, np.array([f"c{m:02d}" for m in sim.client]))
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(12, 4, labels=data.labels))


@pytest.fixture(scope="module")
def res(model):
    return model.fit(keep_data=True)


@pytest.fixture(scope="module")
def table(res):
    return res.sensitivity()


def test_rows_are_fits(model, res, table):
    by_hand = {
        ("this fit", ""): res,
        ("start", "DFL"): model.fit(ad.ADFL(init=ad.DFL(), balance=True)),
        ("balance", "off"): model.fit(ad.ADFL(balance=False)),
        ("heterogeneity", "estimate"): model.fit(heterogeneity="estimate"),
        ("weights", "score"): model.fit(ad.ADFL(lam="cv", measure="score", equalise=False, balance=True)),
        ("not flagged at q", "0.05"): model.fit(
            ad.DFL(1.0 - ad.screen(res, 0.05).to_frame()["flagged"].astype(float), balance=True)
        ),
    }
    lam = next(float(value) for what, value in table.params.index if what == "lambda")
    by_hand["lambda", f"{lam:.3g}"] = model.fit(ad.ADFL(lam=lam, measure="norm", equalise=False, balance=True))
    for row, fit in by_hand.items():
        # lambda is shown, and taken here, to three digits.
        slack = 1e-2 if row[0] == "lambda" else 1e-6
        assert_allclose(table.params.loc[row], fit.params, rtol=slack, atol=slack)
        assert_allclose(table.bse.loc[row], fit.bse, rtol=slack)
        assert_allclose(table.df.loc[row], fit.degrees_of_freedom(), rtol=slack)
        assert table.trusted[row] == fit.record.trusted.sum()
    moved = (by_hand["balance", "off"].params - res.params) / res.bse
    assert_allclose(table.shift.loc["balance", "off"], moved, atol=1e-6)


def test_clients_left_out_are_fits_without_them(model, res, table):
    without = table.params.loc["without"]
    assert list(without.index) == list(model.data.labels)
    # An abnormal client changes nothing; a normal one moves the estimate as `screen` says, to first order exactly.
    aside = res.client_weights < 0.1
    assert aside.any()
    assert_allclose(without[aside.to_numpy()] - res.params, 0.0, atol=0.1 * res.bse.min())
    shifts = ad.screen(res).shifts
    assert_allclose(without[~aside.to_numpy()] - res.params, shifts[~aside], atol=0.1 * res.bse.min())
    assert (table.trusted.loc["without"] == (~aside).sum() - (~aside).to_numpy()).all()


def test_choices_that_lead_to_the_same_fit_are_fitted_once(model, res, table, monkeypatch):
    """Balance on or off is that of the method, and so are "auto" and the model of clients."""
    assert (table.params.loc["heterogeneity", "auto"] == table.params.loc["weights", "model of clients"]).all()
    fits, fit = [], ad.DecentralizedGLM.fit
    row = (res.params.to_numpy(), res.bse.to_numpy(), res.degrees_of_freedom().to_numpy(), 1)

    def counted(self, method, **words):
        fits.append((method, words["heterogeneity"]))
        return fitted[isinstance(method, ad.ADFL) and method.lam == "cv"]

    fitted = [res, fit(model, ad.ADFL(lam="cv", measure="norm", equalise=False), rounds=5)]
    monkeypatch.setattr(ad.DecentralizedGLM, "fit", counted)
    monkeypatch.setattr(sensitivity_module, "_row", lambda res: row)
    same = res.sensitivity(clients=False)
    # "This fit" was there, and one fit serves three choices.
    assert len(fits) == len(same.params) - 3 == len({(id(method), spread) for method, spread in fits})


def test_the_plot_has_the_intervals_of_a_fit_by_students_t(monkeypatch):
    rng = np.random.default_rng(5)
    client = np.repeat(np.arange(8), 20)
    X = np.column_stack([np.ones(160), rng.normal(size=160)])
    y = X.sum(axis=1) + 0.7 * rng.normal(size=8)[client] + rng.normal(size=160)
    res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(8)).fit()
    assert res.use_t
    monkeypatch.setattr(sensitivity_module, "_choices", lambda *given: iter(()))
    table = res.sensitivity(clients=False)
    assert list(table.params.index) == [("this fit", "")]
    drawn = table.plot("x1").collections[0].get_segments()
    assert_allclose(drawn[-1][:, 0], res.conf_int().loc["x1"])


def test_frame_text_and_plot(res, table):
    frame = table.to_frame()
    assert list(frame.columns) == ["trusted", "coefficient", "coef", "se", "df", "shift"]
    row = frame.loc[("heterogeneity", "none")]
    assert row["shift"] == table.shift.loc[("heterogeneity", "none"), row["coefficient"]]
    assert abs(row["shift"]) == table.shift.loc[("heterogeneity", "none")].abs().max()
    assert set(table.to_frame("x2")["coefficient"]) == {"x2"}
    with pytest.raises(ValueError, match="coefficient is 'x9'; it is one of 'x1', 'x2', 'x3'"):
        table.to_frame("x9")
    text = str(table)
    assert "not flagged at q" in text
    assert "Of 12 clients left out one at a time" in text
    assert max(map(len, text.splitlines())) <= 90
    assert "<table" in table._repr_html_()
    ax = table.plot("x1")
    assert ax.get_xlabel() == "x1"
    assert_allclose(ax.collections[0].get_segments()[-1][:, 0], res.conf_int().loc["x1"])
    with pytest.raises(ValueError, match="coefficient is 'x9'"):
        table.plot("x9")


def test_random_effects_weights_are_compared_where_the_model_of_clients_gives_weights(model):
    mixed = ad.DecentralizedGLM(model.data, model.network, weighting="random-effects")
    table = mixed.fit(keep_data=True).sensitivity(clients=False)
    assert {what for what, _ in table.params.index} == {"this fit", "start", "weights", "balance", "heterogeneity"}
    by_hand = mixed.fit(ad.ADFL(balance=False))
    assert_allclose(table.params.loc["balance", "off"], by_hand.params, rtol=1e-12)
