"""`Study`: its factors and its numbers, against closed forms and fits by hand."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal
from scipy import stats
from small_studies import numbers, small

import adfl_stats as ad

# ------------------------------------------------------------------ factors


def clustered(abnormal, corruption, seed, M, n, slope):
    """A design of the user's own."""
    sim = ad.simulate.glm_design(
        M=M, n=n, p=2, abnormal=abnormal, corruption=corruption, theta0=[slope, 0.0], seed=seed
    )
    assert isinstance(seed, np.random.Generator)
    return sim


def shrink(X, y, rng):
    return X, 0.5 * y


def test_everything_can_be_the_users_own():
    labels = [f"site {k}" for k in (3, 1, 2, *range(4, 21))]
    net = ad.networks.directed_circle(20, 4, labels=labels)
    study = ad.Study(
        {"told": lambda abnormal: ad.DFL(weights=1.0 - abnormal), "median": ad.Bridge("median"), "plain": ad.DFL()},
        networks={"ours": net, "function": lambda M: ad.networks.complete(M)},
        designs={"mine": clustered},
        corruptions={"half": shrink, "liars": ad.attacks.SignFlip([], scale=3.0)},
        shares=[0.2],
        sizes={"M": 20, "n": 60, "slope": [1.0, 2.0]},
        replicates=2,
        fit={"step": 0.1, "rounds": 150},
        inference=False,
    ).run()
    table = study.to_frame()
    assert len(table) == 2 * 2 * 2 * 3
    assert list(table.columns[:8]) == ["network", "design", "corruption", "share", "M", "n", "slope", "method"]
    # One fit by hand: the second replicate of the shrunken responses on the user's network.
    setting = next(s for s in study.settings if s.factors["network"] == "ours" and s.factors["corruption"] == "half")
    sim = setting.draw(1, 1)
    named = np.array(labels)[sim.client]
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, named), net)
    res = model.fit(ad.DFL(), step=0.1, rounds=150)
    normal = ~sim.abnormal
    mse = ((res.client_params.loc[np.array(labels)[normal]].to_numpy() - sim.theta0) ** 2).sum(axis=1).mean()
    draws = study.draws().query("network == 'ours' and corruption == 'half' and replicate == 1 and slope == 1")
    assert_allclose(draws.set_index("method").loc["plain", "mse"], mse, rtol=1e-12)
    # Shrunken responses on a fifth of the rows shrink least squares by a tenth: squared bias .01 slope^2 = .04 for
    # slope 2. The slope's standard error is at most sqrt(1.5 / 1200) = .035 in a data set: 2 x .2 x .035 / sqrt 2.
    plain = table.query("method == 'plain' and corruption == 'half'").set_index(["network", "slope"])
    assert_allclose(plain.loc[("ours", 2.0), "bias2"], 0.04, atol=0.03)
    # Liars leave the data clean: told of them, the estimate ignores their data but still hears their messages.
    liars = table.query("corruption == 'liars' and slope == 1 and network == 'ours'").set_index("method")
    assert liars.loc["median", "mse"] < liars.loc["plain", "mse"]


def test_networks_share_their_data_and_other_settings_do_not():
    study = small(networks=["circle-5", "complete"], shares=[0.2, 0.3])
    first, second, third, fourth = (setting.draw(0, 1) for setting in study.settings)
    assert np.array_equal(first.X, third.X)
    assert np.array_equal(second.y, fourth.y)
    assert not np.array_equal(first.X, second.X)


def test_tables_and_objects_are_the_same_study():
    tables = small(
        {"b": {"method": "Bridge", "rule": "trimmed", "b": 1}, "o": {"method": "oracle", "balance": True}},
        networks={"w": {"generator": "small_world", "k": 8, "beta": 0.2}},
        designs={"d": {"family": "gaussian", "covariates": "heterogeneous", "slope": 2}},
        corruptions={"c": {"kind": "Composed", "parts": ["OOD", {"kind": "Shift", "size": 9}]}},
        shares=[0.2],
    ).run()
    objects = small(
        {"b": ad.Bridge("trimmed", b=1), "o": lambda abnormal: ad.Oracle(abnormal, balance=True)},
        networks={"w": ad.networks.small_world(20, 8, 0.2, seed=1)},
        designs={"d": partial(ad.simulate.glm_design, covariates="heterogeneous", theta0=[2.0, 0.0, 0.0])},
        corruptions={"c": ad.simulate.Composed(["OOD", ad.simulate.Shift(9.0)])},
        shares=[0.2],
    ).run()
    assert_frame_equal(numbers(tables), numbers(objects), check_exact=True)


def test_a_share_of_one_half_is_warned_about():
    with pytest.warns(ad.ConditionWarning, match=r"shares has 0.5: where half of the clients or more are abnormal"):
        study = small(shares=[0.2, 0.5])
    assert [int(setting.draw(0, 1).abnormal.sum()) for setting in study.settings] == [4, 10]
    # Flipped signs on half of the rows leave nothing of the slope.
    table = study.run().to_frame().set_index("share")
    assert_allclose(table.loc[0.5, "bias2"], 1.0, atol=4 * table.loc[0.5, "bias2_se"])


def test_diverged_fits_are_counted_and_have_no_numbers():
    def diverges(abnormal):
        return ad.SLBRN("median", force=True)

    study = small({"SLBRN": diverges, "DFL": ad.DFL()}, shares=[0.2], fit={"step": 0.9, "rounds": 400}).run()
    table = study.to_frame().set_index("method")
    assert table.loc["SLBRN", "failed"] > 0
    assert np.isnan(table.loc["SLBRN", "mse"])
    assert table.loc["DFL", "failed"] == 0


def test_a_method_that_cannot_work_on_a_network_is_named():
    study = small({"trimmed": ad.Bridge("trimmed", b=3)}, networks=["circle-5"])
    with pytest.raises(
        ValueError, match="method 'trimmed' on network 'circle-5': BRIDGE-T needs at least 7 neighbours"
    ):
        study.run()


def test_fits_have_one_thread_whatever_the_workers(monkeypatch):
    asked, fit = [], ad.DecentralizedGLM.fit
    monkeypatch.setattr(
        ad.DecentralizedGLM,
        "fit",
        lambda self, *args, **given: asked.append(given["threads"]) or fit(self, *args, **given),
    )
    small(["fit", "DFL"]).run()
    assert asked == [1] * 2 * 6


# ------------------------------------------------------------------ numbers


@pytest.fixture(scope="module")
def gaussian():
    """The default fit and DFL beside the oracle, few clients in few settings."""
    sizes = {"M": 20, "n": [30, 120], "p": 4}
    return ad.Study(["fit", "DFL"], corruptions=["BF"], shares=[0.2], sizes=sizes, replicates=24).run()


@pytest.fixture(scope="module")
def plain():
    """DFL beside the oracle, without inference: many settings in little time."""
    sizes = {"M": 20, "n": [30, 120], "p": 4}
    shares = [0.0, 0.1, 0.2, 0.4]
    return ad.Study(["DFL"], corruptions=["BF"], shares=shares, sizes=sizes, replicates=40, inference=False).run()


def test_oracle_error_in_closed_form(plain):
    # sigma^2 tr E(X'X)^-1 = p / (N - p - 1) for standard normal covariates (mean of an inverse Wishart matrix).
    table = plain.to_frame()
    rows = table["n"] * (20 - np.floor(20 * table["share"] + 1e-9))
    z = (table["oracle_mse"] - 4 / (rows - 4 - 1)) / table["oracle_mse_se"]
    assert len(z) == 8
    assert (z.abs() < 3.5).all()
    # Independent settings: the sum of squares is chi-square with 8 degrees of freedom, if the errors are right.
    assert 1.0 < (z**2).sum() < 26.1


def test_bias_and_variance_add_up(plain):
    table = plain.to_frame()
    # Signs flipped on a share of the rows: (1 - 2 share) theta_0, and ||theta_0|| = 1.
    z = (table["bias2"] - (2 * table["share"]) ** 2) / table["bias2_se"].clip(lower=1e-3)
    assert (z.abs() < 4).all()
    # Of the network's mean, the mean squared error is squared bias plus variance; clients are close to it.
    total = table["bias2"] + table["variance"]
    assert_allclose(total, table["mse"], rtol=0.12)


def test_standard_errors_are_those_of_the_means(gaussian):
    draws = gaussian.draws().query("method == 'fit' and share == 0.2 and n == 30")
    line = gaussian.to_frame().query("method == 'fit' and share == 0.2 and n == 30").iloc[0]
    for name in ("mse", "gap", "coverage", "coverage_client", "length", "fdr", "power", "consensus", "rounds"):
        assert_allclose(line[name], draws[name].mean(), rtol=1e-12)
        assert_allclose(line[f"{name}_se"], draws[name].std() / np.sqrt(24), rtol=1e-12)
    # 24 data sets of 4 intervals each.
    for kind in ("coverage", "coverage_sandwich", "coverage_client"):
        assert abs(line[kind] - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 96)
    # The oracle's standard error of a slope is about 1 / sqrt(rows): intervals are 2 x 1.96 of these.
    assert_allclose(line["length"], 3.92 / np.sqrt(16 * 30), rtol=0.1)
    assert line["good_aside"] < 0.05
    # The fit leaves out hardly anybody: it is a small part of a standard error away from the oracle.
    assert line["gap"] < 0.3 < gaussian.to_frame().query("method == 'DFL' and share == 0.2")["gap"].min()


def test_jackknife_of_the_variance():
    # Of normal errors the variance has standard error v sqrt(2 / (R - 1)) in each coefficient.
    from adfl_stats.simulate.monte_carlo import table_of

    rng = np.random.default_rng(5)
    errors = [list(row) for row in 0.3 + rng.normal(size=(2000, 3))]
    rows = pd.DataFrame({"setting": 1, "method": "DFL", "oracle_mse": 1.0, "mse": 2.0, "error": errors})
    line = table_of(rows, ["setting"]).iloc[0]
    assert_allclose(line["variance_se"], np.sqrt(3 * 2 / 1999), rtol=0.1)
    assert_allclose(line["variance"], 3.0, atol=4 * line["variance_se"])
    assert_allclose(line["bias2"], 3 * 0.09, atol=4 * line["bias2_se"])
    # d||m||^2 = 2 m'dm, and each coordinate of the mean has variance 1 / R.
    assert_allclose(line["bias2_se"], 2 * np.sqrt(3 * 0.09 / 2000), rtol=0.1)


def test_slopes_beside_the_theory(gaussian, plain):
    rates = plain.slopes("N").set_index(["share", "method"])
    fit = gaussian.slopes("N").set_index("method").loc["fit"]
    assert fit["theory"] == rates.loc[(0.2, "oracle"), "theory"] == -1
    assert rates.loc[(0.2, "DFL"), "theory"] == 0
    assert rates.loc[(0.0, "DFL"), "theory"] == -1
    # Oracle and fit: p / (N - p - 1) is -1 in N but for -5 / N; 4 standard errors.
    near = pd.concat([rates.loc[[(0.0, "oracle"), (0.2, "oracle"), (0.0, "DFL")]], fit.to_frame().T]).astype(
        {"slope": float, "theory": float, "se": float}
    )
    assert ((near["slope"] - near["theory"]).abs() < 4 * near["se"] + 0.02).all()
    assert rates.loc[(0.4, "DFL"), "slope"] > -0.1
    by_share = plain.slopes("share").set_index(["n", "method"])
    assert by_share.loc[(120, "DFL"), "theory"] == 2
    assert abs(by_share.loc[(120, "DFL"), "slope"] - 2) < 0.1
    # The oracle's rows are those of the normal clients: log(1 / (1 - share)) on log share at .1, .2, .4.
    logs = np.log([0.1, 0.2, 0.4])
    flat = np.polyfit(logs, -np.log([0.9, 0.8, 0.6]), 1)[0]
    assert_allclose(by_share.loc[(120, "oracle"), "theory"], flat, rtol=1e-9)
    assert abs(by_share.loc[(120, "oracle"), "slope"] - flat) < 4 * by_share.loc[(120, "oracle"), "se"]
    # Student's t with Satterthwaite's degrees of freedom, by hand: the middle point has next to no part in the slope.
    points = plain.to_frame().query("n == 120 and share > 0")
    parts = ((logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2) * points["mse_se"] / points["mse"]) ** 2
    degrees = parts.sum() ** 2 / np.sum(parts**2 / 39)
    line = by_share.loc[(120, "DFL")]
    assert_allclose(line["se"], np.sqrt(parts.sum()), rtol=1e-9)
    assert_allclose(line["upper"] - line["slope"], stats.t.ppf(0.975, degrees) * line["se"], rtol=1e-9)
    with pytest.raises(ValueError, match="by is 'M', which has fewer than two positive values"):
        gaussian.slopes("M")
    with pytest.raises(ValueError, match="by is 'D'; choose one of 'N', 'share', 'M', 'n', 'p'"):
        gaussian.slopes("D")
    with pytest.raises(ValueError, match="value is 'size'; choose one of 'efficiency'"):
        gaussian.slopes("N", "size")
