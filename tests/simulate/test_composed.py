"""Corruptions with options, compositions of them, and corruption that changes while the network runs."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.simulate import (
    Composed,
    Copies,
    Dynamic,
    HeavyTails,
    PartialRows,
    Shift,
    SwappedColumns,
    UnitError,
    glm_design,
)

BAD = [1, 4]


def pair(corruption, family="gaussian", n=400, p=3, **options):
    """The clean and the corrupted data set under one seed, and a mask of the rows of abnormal clients."""
    options = {"M": 6, "n": n, "p": p, "intercept": True, "seed": 8} | options
    clean = glm_design(family, **options)
    sim = glm_design(family, **options, abnormal=BAD, corruption=corruption)
    rows = np.isin(sim.client, BAD)
    # The normal clients' rows are untouched.
    assert_array_equal(clean.X[~rows], sim.X[~rows])
    assert_array_equal(clean.y[~rows], sim.y[~rows])
    return clean, sim, rows


def test_partial_rows():
    clean, sim, _ = pair(PartialRows("BF", 0.25))
    flipped = clean.y != sim.y
    assert_array_equal(sim.y[flipped], -clean.y[flipped])
    assert [int(flipped[sim.client == m].sum()) for m in BAD] == [100, 100]
    # Chosen at random, and anew for each client.
    first, second = (np.flatnonzero(flipped[sim.client == m]) for m in BAD)
    assert not np.array_equal(first, second)
    assert first.max() > 300


def test_heavy_tails_keep_the_regression():
    clean, sim, rows = pair(HeavyTails(2.0), n=4000)
    noise = (sim.y - sim.X @ sim.theta0)[rows]
    # Quartiles of t with 2 degrees of freedom, +-.816497; 8000 rows: standard error .5 / sqrt(8000) / density.
    for quantile, level in ((-0.816497, 0.25), (0.816497, 0.75)):
        assert abs(np.mean(noise < quantile) - level) < 4 * np.sqrt(0.25 * 0.75 / 8000)
    assert_array_equal(sim.X, clean.X)


def test_units_and_swapped_columns():
    clean, sim, rows = pair(UnitError(2, 0.01))
    assert_allclose(sim.X[rows, 2], clean.X[rows, 2] / 100, rtol=1e-15)
    assert_array_equal(np.delete(sim.X, 2, axis=1), np.delete(clean.X, 2, axis=1))
    clean, sim, rows = pair(SwappedColumns(1, 3))
    assert_array_equal(sim.X[rows], clean.X[rows][:, [0, 3, 2, 1]])
    assert_array_equal(sim.y, clean.y)
    # By default the first and the last column, where there is no constant.
    clean, sim, rows = pair(SwappedColumns(), intercept=False)
    assert_array_equal(sim.X[rows], clean.X[rows][:, [2, 1, 0]])


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_a_shift_has_its_length_in_standard_errors(family):
    _, sim, _ = pair(Shift(12.0), family, n=3000)
    outside = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
    directions = []
    for m in BAD:
        part = sim.client == m
        fit = sm.GLM(sim.y[part], sim.X[part], family=outside[family]()).fit()
        information = np.linalg.inv(fit.cov_params())
        shift = fit.params - sim.theta0
        length = np.sqrt(shift @ information @ shift)
        # Information at the shifted parameter, little different; noise of one standard error in 4 coefficients.
        assert abs(length - 12.0) < 4.0
        directions.append(shift / np.linalg.norm(shift))
    # All abnormal clients are moved alike: all slopes up, the constant not.
    for direction in directions:
        assert direction[1:].min() > 0.3
        assert abs(direction[0]) < 0.3


def test_copies_of_a_normal_client():
    clean, sim, _ = pair(Copies(), n=[30, 50, 40, 40, 20, 40])
    first = clean.X[sim.client == 0]
    assert_array_equal(sim.X[sim.client == 1], np.vstack([first, first[:20]]))
    assert_array_equal(sim.y[sim.client == 4], clean.y[sim.client == 0][:20])
    equal = glm_design(M=6, n=40, p=3, seed=8, abnormal=BAD, corruption=Copies())
    data = ad.ClientData.from_arrays(equal.X, equal.y, equal.client)
    with pytest.warns(ad.ConditionWarning, match="same rows"):
        ad.DecentralizedGLM(data, ad.networks.complete(6))


def test_composition_is_one_after_the_other():
    clean, sim, rows = pair(Composed([UnitError(1, 10.0), SwappedColumns(1, 2), "BF"]))
    assert_allclose(sim.X[rows][:, [1, 2]], clean.X[rows][:, [2, 1]] * [1.0, 10.0], rtol=1e-15)
    assert_array_equal(sim.y[rows], -clean.y[rows])
    # MP makes responses of what X is then: before OOD of the clean covariates, after it of the shifted ones.
    before, after = (pair(Composed(order), noise=0.0)[1] for order in (["MP", "OOD"], ["OOD", "MP"]))
    kept = before.theta0.copy()
    kept[1:] = 0.0
    assert_allclose(after.y[rows], after.X[rows] @ kept, atol=1e-12)
    nested = PartialRows(Composed(["OOD", lambda X, y, rng: (X, y + 100.0)]), 0.5)
    clean, sim, _ = pair(nested)
    assert int((sim.y - clean.y > 99).sum()) == 400
    assert nested.name == "OOD + <lambda> in 50% of the rows"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PartialRows("XX"), "corruption is 'XX'; choose one of 'BF'"),
        (lambda: PartialRows("BF", 0.0), r"share is 0; it must lie in \(0, 1\]"),
        (
            lambda: pair(HeavyTails(), "poisson"),
            "HeavyTails changes the noise of real responses, but family is 'poisson'",
        ),
        (lambda: pair(UnitError(0)), "column is 0; the covariates are columns 1 to 3"),
        (lambda: pair(SwappedColumns(1, 9)), "second is 9; the covariates are columns 1 to 3"),
        (lambda: SwappedColumns(1, 1), "first and second are both 1; give two columns"),
        (lambda: Shift(0.0), r"size is 0; it must lie in \(0, inf\)"),
        (lambda: glm_design(M=2, n=5, p=1, abnormal=[0, 1], corruption=Copies(), seed=1), "all clients are abnormal"),
        (lambda: Composed("BF"), r"parts is 'BF'; give a list of corruptions, as in \['OOD', 'BF'\]"),
        (lambda: Dynamic("BF", [1.0]), r"phases is \[1.0\]; give at least two"),
        (lambda: Dynamic("BF", [0.0, 2.0]), r"phases is 2; it must lie in \[0, 1\]"),
    ],
)
def test_bad_options(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ------------------------------------------------------------------ dynamic corruption


def dynamic(phases, methods):
    study = ad.Study(
        methods,
        ["complete"],
        corruptions={"turns": Dynamic("BF", phases)},
        shares=[0.2],
        sizes={"M": 30, "n": 60, "p": 4},
        replicates=3,
        fit={"step": 0.05, "rounds": 600},
        inference=False,
    )
    return study.run().to_frame().set_index("method")


def test_refresh_sees_clients_that_turn_bad():
    methods = {"kept": ad.ADFL(lam=4.0, stages=1), "refreshed": ad.ADFL(lam=4.0, refresh=25), "DFL": ad.DFL()}
    bad, whole = dynamic((0.0, 1.0), methods), dynamic((1.0, 1.0), methods)
    # Weights of the first phase trust everybody: squared bias about (2 x .2)^2 = .16, as for DFL.
    assert bad.loc["kept", "mse"] > 0.1
    assert bad.loc["DFL", "mse"] > 0.1
    assert bad.loc["refreshed", "efficiency"] > 0.5
    # Bad from the beginning, both are robust.
    assert whole.loc["kept", "efficiency"] > 0.5
    assert_allclose(whole.loc["DFL", "mse"], bad.loc["DFL", "mse"], rtol=1e-3)


def test_clients_that_become_good_again_count_again():
    methods = {"kept": ad.ADFL(lam=4.0, stages=1), "refreshed": ad.ADFL(lam=4.0, refresh=25), "DFL": ad.DFL()}
    table = dynamic((1.0, 0.0), methods)
    # At the end all 30 clients are normal, and the oracle has all rows: p / (N - p - 1).
    assert_allclose(table["oracle_mse"].iloc[0], 4 / (1800 - 5), atol=4 * table["oracle_mse_se"].iloc[0])
    # Steps of .05 leave each client .05^2 p / n = .00017 from the mean, beside .0022: efficiency .93.
    assert abs(table.loc["DFL", "efficiency"] - 0.93) < 4 * table.loc["DFL", "efficiency_se"] + 0.02
    # Weights of the first phase go on without the fifth that was bad: efficiency .8 at best.
    assert table.loc["kept", "efficiency"] < table.loc["refreshed", "efficiency"]


def test_rounds_in_phases_are_those_by_hand():
    study = ad.Study(
        {"DFL": ad.DFL(), "median": ad.Bridge("median")},
        ["complete"],
        corruptions=[Dynamic("BF", (0.0, 0.5, 1.0))],
        shares=[0.2],
        sizes={"M": 10, "n": 30, "p": 2},
        replicates=1,
        fit={"step": 0.3, "rounds": 32},
        inference=False,
    ).run()
    setting = study.settings[0]
    whole = setting.draw(0, 1)
    chosen = np.flatnonzero(whole.abnormal)
    res, net = None, ad.networks.complete(10)
    for count, rounds in ((0, 12), (1, 10), (2, 10)):
        sim = setting.draw(0, 1, chosen[:count])
        model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net)
        start = None if res is None else res.client_params
        res = model.fit(ad.DFL(init=start), step=0.3, rounds=rounds)
    errors = ((res.client_params.to_numpy()[~whole.abnormal] - sim.theta0) ** 2).sum(axis=1).mean()
    assert_allclose(study.to_frame().set_index("method").loc["DFL", "mse"], errors, rtol=1e-12)
