"""Designs against closed forms, simulated standard errors, and advice on data of the same kind."""

import numpy as np
import pytest

import adfl_stats as ad


@pytest.mark.parametrize(("tau", "abnormal"), [(0.0, 0.0), (0.1, 0.2)])
def test_rows_and_clients_in_closed_form(tau, abnormal):
    plan = ad.design(0.05, sigma=1.5, tau=tau, p=3, clients=40, abnormal=abnormal).to_frame().iloc[0]
    left = 40 * (1 - abnormal)
    assert plan["rows"] == int(np.ceil(1.5**2 / (0.05**2 * left - tau**2)))
    assert plan["se"] <= 0.05 < np.sqrt((1.5**2 / (plan["rows"] - 1) + tau**2) / left)
    other = ad.design(0.05, sigma=1.5, tau=tau, p=3, rows=30, abnormal=abnormal).to_frame().iloc[0]
    assert other["clients"] == int(np.ceil((1.5**2 / 30 + tau**2) / (0.05**2 * (1 - abnormal))))


def test_a_design_gives_the_standard_error_it_promises():
    plan = ad.design(0.08, sigma=1.2, tau=0.2, p=2, clients=15).to_frame().iloc[0]
    M, n = int(plan["clients"]), int(plan["rows"])
    client, found = np.repeat(np.arange(M), n), []
    for rng in np.random.default_rng(3).spawn(400):
        x = rng.normal(size=M * n)
        y = (1.0 + 0.2 * rng.normal(size=M)[client]) * x + 1.2 * rng.normal(size=M * n)
        found.append(np.linalg.lstsq(np.column_stack([np.ones(M * n), x]), y)[0][1])
    # 400 draws know a standard deviation to 3.5 %; a few percent more come from estimated means of covariates.
    assert np.std(found) == pytest.approx(0.08, rel=0.14)


def test_a_pilot_gives_its_own_noise_and_spread():
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(30), 40)
    x = 2.0 * rng.normal(size=1200)
    y = x + rng.normal(size=1200)
    frame = ad.ClientData.from_arrays(np.column_stack([np.ones(1200), x]), y, client, names=["const", "x"])
    res = ad.DecentralizedGLM(frame, ad.networks.directed_circle(30, 5)).fit(heterogeneity="none")
    plan = ad.design(0.01, pilot=res, coefficient="x", clients=30)
    # A slope's variance a row is that of the noise over that of the covariate, 1 / 4.
    assert plan.table["rows"].iloc[0] == pytest.approx(0.25 / (0.01**2 * 30), rel=0.15)
    assert "As in the pilot for x" in str(plan)
    # The pilot's own size gives its own standard error.
    same = ad.design(float(res.standard_errors("sandwich")["x"]), pilot=res, coefficient="x", clients=30)
    assert same.table["rows"].iloc[0] == pytest.approx(40, abs=1)


def test_step_and_rounds_are_those_of_advise():
    plan = ad.design(0.05, sigma=1.0, p=3, clients=20).table.iloc[0]
    rng = np.random.default_rng(9)
    n = int(plan["rows"])
    X = np.column_stack([np.ones(20 * n), rng.normal(size=(20 * n, 2))])
    data = ad.ClientData.from_arrays(X, rng.normal(size=20 * n), np.repeat(np.arange(20), n))
    advice = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).advise()
    # Other draws of the same design: of the same order.
    assert plan["step"] == pytest.approx(advice.step, rel=0.6)
    assert plan["rounds"] == pytest.approx(advice.rounds, rel=1.0)


def test_several_designs_and_text():
    plan = ad.design(0.05, tau=0.1)
    assert list(plan.to_frame().columns) == ["clients", "rows", "total", "se", "step", "rounds"]
    assert plan.table["clients"].tolist() == [10, 20, 50, 100, 200]
    assert "Designs with a standard error of 0.05" in str(plan)
    assert "<table" in plan._repr_html_()
    on = ad.design(0.1, network=ad.networks.complete(12)).table
    assert on["clients"].tolist() == [12]


def test_refusals():
    with pytest.raises(ValueError, match="tau = 1; it takes at least 401 clients"):
        ad.design(0.05, tau=1.0, clients=20)
    with pytest.raises(ValueError, match="clients and rows are both given"):
        ad.design(0.05, clients=10, rows=10)
    with pytest.raises(ValueError, match="network has 12"):
        ad.design(0.05, clients=10, network=ad.networks.complete(12))
    with pytest.raises(ValueError, match="fixes the number of clients"):
        ad.design(0.05, rows=10, network=ad.networks.complete(12))
    with pytest.raises(ValueError, match=r"network\(10\) gave 3"):
        ad.design(0.05, clients=10, network=lambda M: 3)
    with pytest.raises(TypeError, match="pilot is a int"):
        ad.design(0.05, pilot=3)
    with pytest.raises(ValueError, match="se"):
        ad.design(0.0)
