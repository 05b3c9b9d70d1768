"""Mallows weights by hand, and what they are worth where covariates have gross errors."""

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.data import client_data as data_module

SIZES = np.array([40, 3, 40, 61, 1, 200, 8, 7, 33])


def ragged(seed=0, **carried):
    """Clients of unequal sizes and spreads, a constant column, a rare level, and some outlying rows."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    N = len(client)
    X = np.column_stack([np.ones(N), rng.normal(size=(N, 2)), rng.random(N) < 0.1])
    X[:, 1:3] *= rng.uniform(0.3, 3.0, size=(len(SIZES), 1))[client]
    X[:, 1] += rng.normal(scale=5.0, size=len(SIZES))[client]
    X[::17, 2] *= 1e3
    return ad.ClientData.from_arrays(X, rng.normal(size=N), client, **carried)


def by_hand(data, c, most=8192):
    """The definition, client by client and row by row."""
    parts = np.split(data.X, data.offsets[1:-1])
    seen = [part if len(part) <= most else part[np.arange(most) * len(part) // most] for part in parts]
    middles = np.array([np.median(part, axis=0) for part in seen])
    middles[data.sizes < 8] = np.median(middles, axis=0)
    spreads = np.array([sm.robust.mad(part - at, center=0.0) for part, at in zip(seen, middles, strict=True)])
    units = np.maximum(spreads, np.median(spreads, axis=0))
    weights = []
    for part, at, unit in zip(parts, middles, units, strict=True):
        for row in part:
            z = max(abs(row[j] - at[j]) / unit[j] if unit[j] > 0 else 0.0 for j in range(len(row)))
            weights.append(1.0 if z <= c else (c / z) ** 2)
    return np.array(weights)


@pytest.mark.parametrize("c", [0.5, 3.0])
def test_weights_are_those_of_the_definition(c):
    data = ragged()
    found = ad.mallows(data, c)
    assert_allclose(found.row_weights, by_hand(data, c), rtol=1e-12)
    assert found.row_weights.min() < 1e-4
    assert found.X is data.X
    assert data.row_weights is None


def test_own_weights_are_multiplied():
    own = np.random.default_rng(1).uniform(0.5, 2.0, SIZES.sum())
    assert_allclose(ad.mallows(ragged(weights=own)).row_weights, own * ad.mallows(ragged()).row_weights, rtol=1e-12)


def test_units_and_origins_of_columns_do_not_matter():
    data = ragged()
    moved = ad.ClientData.from_arrays(data.X * [1, 1e6, 1e-6, 7] + [0, 3, 0, 1], data.y, np.repeat(range(9), SIZES))
    assert_allclose(ad.mallows(moved).row_weights, ad.mallows(data).row_weights, rtol=1e-6)


def test_medians_of_clients_larger_than_a_block_are_those_of_rows_evenly_spaced(monkeypatch):
    data = ragged()
    expected = by_hand(data, 3.0, most=64)
    assert np.abs(expected - by_hand(data, 3.0)).max() > 1e-4
    monkeypatch.setattr(data_module, "BLOCK_ROWS", 64)
    assert_allclose(ad.mallows(data).row_weights, expected, rtol=1e-12)


def test_normal_rows_keep_nearly_all_of_their_weight():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20_000, 5))
    weights = ad.mallows(ad.ClientData.from_arrays(X, X[:, 0], np.repeat(np.arange(100), 200))).row_weights
    # Five columns, 0.27 % of each beyond three, a little more with estimated units.
    assert 0.005 < (weights < 1.0).mean() < 0.03
    assert weights.mean() > 0.995


def test_the_fit_is_the_weighted_one_of_statsmodels():
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(800), rng.standard_t(2, size=(800, 2))])
    y = (rng.random(800) < 1.0 / (1.0 + np.exp(-X @ [0.2, 0.5, -0.4]))).astype(float)
    data = ad.mallows(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(8), 100)))
    found = ad.DecentralizedGLM(data, ad.networks.complete(8), "binomial").fit(
        ad.DFL(), step=0.1, solver="limit", tolerance=10.0
    )
    expected = sm.GLM(y, X, sm.families.Binomial(), var_weights=data.row_weights).fit(tol=1e-14)
    assert (data.row_weights < 0.5).sum() > 20
    assert_allclose(found.params, expected.params, rtol=1e-6)


def simulated(family, seed):
    sim = ad.simulate.glm_design(family, 40, 100, 4, abnormal=0, corruption=None, seed=seed)
    X = sim.X.copy()
    # One row in a hundred has the covariate that matters in the wrong unit.
    rows = np.arange(40) * 100 + np.random.default_rng(seed).integers(100, size=40)
    assert sim.theta0[0] != 0.0
    X[rows, 0] *= 100.0
    return sim, ad.ClientData.from_arrays(X, sim.y, sim.client)


@pytest.mark.parametrize(("family", "loss"), [("binomial", "binomial"), ("gaussian", "huber")])
def test_gross_covariates_hurt_without_weights_only(family, loss):
    errors = {"plain": [], "mallows": []}
    for seed in range(3):
        sim, data = simulated(family, seed)
        for name, used in (("plain", data), ("mallows", ad.mallows(data))):
            res = ad.DecentralizedGLM(used, ad.networks.directed_circle(40, 5), loss).fit(ad.DFL(), solver="limit")
            apart = res.params - sim.theta0
            errors[name].append(np.linalg.norm(apart))
            assert name == "plain" or (np.abs(apart) < 4.0 * res.bse).all()
    assert np.mean(errors["plain"]) > 5.0 * np.mean(errors["mallows"])


def test_columns_without_spread_do_not_count():
    data = ad.ClientData.from_arrays(np.eye(30, 3), np.arange(30.0), np.repeat([0, 1, 2], 10))
    assert_array_equal(ad.mallows(data).row_weights, 1.0)


@pytest.mark.parametrize(
    ("c", "error", "message"),
    [
        (0.0, ValueError, r"c is 0; it must lie in \(0, inf\): the usual value is 3; without weights pass the data"),
        (np.inf, ValueError, r"c is inf; it must lie in \(0, inf\)"),
        ("3", TypeError, r"c must be a number, got '3' \(str\): the usual value is 3"),
    ],
)
def test_constants_that_make_no_sense_are_refused(c, error, message):
    with pytest.raises(error, match=message):
        ad.mallows(ragged(), c)


def test_what_is_no_client_data_is_refused():
    with pytest.raises(TypeError, match=r"data is a ndarray; build a ClientData with ClientData\.from_frame"):
        ad.mallows(np.ones((3, 2)))
