"""Simulated clients outside the paper's setting, against closed forms, scipy and statsmodels."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from adfl_stats.simulate.field_designs import CELLS, NOISES, FieldCell, client_covariance, draw, target


def errors(cell, seed=1):
    """The draw, and what is left of y at the common parameter."""
    found = draw(cell, seed)
    return found, found.y - found.X @ found.theta0


SD = stats.lognorm(1.0).std()
LAWS = {
    "normal": stats.norm(),
    "lognormal": stats.lognorm(1.0, loc=-np.exp(0.5) / SD, scale=1 / SD),
    "exponential": stats.expon(loc=-1.0),
    "t3": stats.t(3.0, scale=1 / np.sqrt(3.0)),
}


@pytest.mark.parametrize("noise", LAWS)
def test_noise_has_its_law_with_mean_zero_and_variance_one(noise):
    law = LAWS[noise]
    assert (law.mean(), law.std()) == pytest.approx((0.0, 1.0), abs=1e-12)
    _, error = errors(FieldCell("", n=200, noise=noise))
    # The critical value of 20000 draws at a level of 1e-4 is .016.
    assert stats.kstest(error, law.cdf).statistic < 0.016


def test_noise_depends_on_a_covariate():
    found, error = errors(FieldCell("", n=1000, noise="hetero"))
    for low in (-1.0, 0.0, 1.0):
        inside = (found.X[:, 1] > low - 0.1) & (found.X[:, 1] < low + 0.1)
        # 2 sd^2 / rows is the variance of a variance; five of its roots, of at least 4000 rows.
        assert error[inside].var() == pytest.approx(np.exp(low - 0.5), rel=5 * np.sqrt(2 / 4000))
    assert (error**2).mean() == pytest.approx(1.0, rel=0.05)


def test_noise_depends_on_the_client():
    _, error = errors(FieldCell("", M=2000, n=50, noise="client"))
    deviation = np.log(error.reshape(2000, 50).std(axis=1, ddof=1))
    # The log of a standard deviation from n rows has itself variance 1 / (2 n - 2).
    assert deviation.var() == pytest.approx(0.25 + 1 / 98, rel=5 * np.sqrt(2 / 2000))
    assert deviation.mean() == pytest.approx(-0.25, abs=5 * 0.51 / np.sqrt(2000) + 1 / 98)


def test_noise_of_gross_errors():
    _, error = errors(FieldCell("", n=1000, noise="gross"))
    gross = np.abs(error) > 10.0
    assert gross.mean() == pytest.approx(0.01, abs=5 * np.sqrt(0.01 / 1e5))
    assert np.abs(error[gross]).mean() == pytest.approx(20.0, abs=0.2)
    assert (error[gross] > 0).mean() == pytest.approx(0.5, abs=0.1)
    assert error[~gross].var() == pytest.approx(1.0, abs=5 * np.sqrt(2 / 1e5))


def test_noise_is_autocorrelated_within_clients_only():
    _, error = errors(FieldCell("", M=2000, n=50, noise="ar"))
    rows = error.reshape(2000, 50)
    assert rows.var(axis=0) == pytest.approx(np.ones(50), abs=6 * np.sqrt(2 / 2000))
    assert np.corrcoef(rows[:, 20], rows[:, 21])[0, 1] == pytest.approx(0.5, abs=0.1)
    assert np.corrcoef(rows[:, 20], rows[:, 23])[0, 1] == pytest.approx(0.125, abs=0.1)
    assert np.corrcoef(rows[:-1, -1], rows[1:, 0])[0, 1] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(("spread", "correlation"), [("diagonal", 0.0), ("intercept", None), ("correlated", 0.5)])
def test_parameters_spread_in_standard_errors(spread, correlation):
    """The clients' least squares estimates have the covariance (I + tau^2 R) / n, up to P / n."""
    cell = FieldCell("", M=2000, n=200, tau=2.0, spread=spread)
    found = draw(cell, 3)
    X, y = found.X.reshape(2000, 200, 5), found.y.reshape(2000, 200)
    own = np.linalg.solve(X.transpose(0, 2, 1) @ X, X.transpose(0, 2, 1) @ y[..., None])[..., 0]
    if correlation is None:
        R = np.zeros((5, 5))
        R[0, 0] = 1.0
    else:
        R = (1 - correlation) * np.eye(5) + correlation
    # Five standard errors of a variance, and n / (n - P - 1) = 1.03 of the sampling part.
    assert 200 * np.cov(own.T) == pytest.approx(np.eye(5) + 4.0 * R, abs=5 * 5 * np.sqrt(2 / 2000) + 0.04)
    assert own.mean(axis=0) == pytest.approx(found.theta0, abs=5 * np.sqrt(5 / 200 / 2000))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_shift_has_its_length_in_standard_errors_of_a_client(family):
    cell = FieldCell("", family, M=40, n=5000, corruption="shift", share=0.4, shift=20.0)
    found = draw(cell, 1)
    bad = found.abnormal[found.client]
    kind = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}[family]
    one, other = (sm.GLM(found.y[rows], found.X[rows], family=kind()).fit() for rows in (~bad, bad))
    delta = other.params - one.params
    # The covariance of one of the 24 normal clients. The difference of 24 and 16 clients has itself a standard error
    # of .32 along the shift, and of a little more where moved clients know less.
    length = np.sqrt(delta @ np.linalg.solve(24 * one.cov_params(), delta))
    assert length == pytest.approx(20.0, abs=2.0)
    assert np.linalg.inv(client_covariance(cell)) == pytest.approx(
        np.linalg.inv(24 * one.cov_params()), rel=0.05, abs=0.05 * 5000
    )


@pytest.mark.parametrize("name", ["binomial-tau1", "poisson-tau1"])
def test_target_is_what_many_clients_estimate(name):
    cell = replace(CELLS[name], M=5000)
    found = draw(cell, 1)
    kind = sm.families.Binomial() if cell.family == "binomial" else sm.families.Poisson()
    fit = sm.GLM(found.y, found.X, family=kind).fit(cov_type="cluster", cov_kwds={"groups": found.client})
    apart = (fit.params - found.theta0) @ np.linalg.solve(fit.cov_params(), fit.params - found.theta0)
    assert apart < stats.chi2.isf(1e-3, cell.P)
    # The mean of the clients' parameters is not what is estimated.
    theta = target(replace(cell, tau=0.0))
    assert (fit.params - theta) @ np.linalg.solve(fit.cov_params(), fit.params - theta) > 50.0


def test_rare_events():
    found = draw(replace(CELLS["binomial-rare"], M=1000), 1)
    assert found.y.mean() == pytest.approx(0.016, abs=5 * np.sqrt(0.016 / 3e5))


def test_overdispersed_counts():
    found = draw(replace(CELLS["poisson-nb"], M=1000), 1)
    mu = np.exp(found.X @ found.theta0)
    assert ((found.y - mu) / mu).mean() == pytest.approx(0.0, abs=0.02)
    extra = ((found.y - mu) ** 2 - mu) / mu**2
    assert extra.mean() == pytest.approx(0.5, abs=5 * extra.std() / np.sqrt(len(mu)))


def test_sizes_are_log_uniform():
    sizes = draw(replace(CELLS["gaussian-sizes-tau1"], M=2000), 1).sizes
    assert sizes.min() >= 10
    assert sizes.max() <= 1500
    # Whole numbers: the smallest sizes come in steps of 5 % of the range of logs at most.
    assert stats.kstest(np.log(sizes), stats.uniform(np.log(10), np.log(150)).cdf).statistic < 0.05


def test_covariates_differ_between_clients_if_asked_for():
    rows = draw(FieldCell("", M=400, n=200, covariates="heterogeneous"), 1).X[:, 1:].reshape(400, 200, 4)
    assert rows.mean(axis=1).var(axis=0) == pytest.approx(np.full(4, 0.25 + 1 / 200), rel=5 * np.sqrt(2 / 400))
    assert rows.var(axis=1).mean(axis=0) == pytest.approx(np.ones(4), rel=0.02)


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_reproducible_and_hold_what_they_say(name):
    cell = CELLS[name]
    one, same, other = draw(name, 3), draw(cell, 3), draw(cell, 4)
    assert np.array_equal(one.X, same.X)
    assert np.array_equal(one.y, same.y)
    assert not np.array_equal(one.X[:10, -1], other.X[:10, -1])
    assert one.abnormal.sum() == np.floor(cell.share * cell.M + 1e-9)
    assert one.sizes.sum() == len(one.y) == len(one.client)
    assert np.array_equal(np.bincount(one.client), one.sizes)
    assert not (cell.intercept and (one.X[:, 0] != 1.0).any())
    assert not one.X.flags.writeable


@pytest.mark.parametrize("name", [name for name, cell in CELLS.items() if cell.corruption != "none"])
def test_normal_clients_do_not_depend_on_the_corruption(name):
    bent = draw(name, 2)
    clean = draw(replace(CELLS[name], corruption="none", share=0.0, shift=0.0), 2)
    normal = ~bent.abnormal[bent.client]
    assert np.array_equal(bent.X[normal], clean.X[normal])
    assert np.array_equal(bent.y[normal], clean.y[normal])
    for m in np.flatnonzero(bent.abnormal):
        rows = bent.client == m
        assert not (np.array_equal(bent.y[rows], clean.y[rows]) and np.array_equal(bent.X[rows], clean.X[rows]))


def test_corruptions_of_responses():
    clean, flipped = draw("gaussian-tau0", 1), draw("gaussian-tau0-flip", 1)
    bad = flipped.abnormal[flipped.client]
    assert np.array_equal(flipped.y[bad], -clean.y[bad])
    clean, flipped = draw("binomial-tau0", 1), draw("binomial-tau0-flip", 1)
    bad = flipped.abnormal[flipped.client]
    assert np.array_equal(flipped.y[bad], 1.0 - clean.y[bad])
    clean, mixed = draw("poisson-tau0", 1), draw("poisson-tau0-permute", 1)
    for m in np.flatnonzero(mixed.abnormal):
        assert np.array_equal(np.sort(mixed.y[mixed.client == m]), np.sort(clean.y[clean.client == m]))


def test_minority_has_one_other_parameter():
    found = draw(CELLS["binomial-p10-minority.4"], 1)
    bad = found.abnormal[found.client]
    fit = sm.GLM(found.y[bad], found.X[bad], family=sm.families.Binomial()).fit()
    truth = np.zeros(10)
    truth[:2] = 1.0, -1.0
    assert np.abs((fit.params - truth) / fit.bse).max() < 4.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "gamma"}, "family"),
        ({"noise": "cauchy"}, "noise"),
        ({"family": "binomial", "noise": "t3"}, "has none"),
        ({"family": "poisson", "corruption": "flip", "share": 0.2}, "permute"),
        ({"corruption": "flip"}, "give both or neither"),
        ({"share": 0.2}, "give both or neither"),
        ({"family": "binomial", "rare": True, "intercept": False}, "intercept=True"),
        ({"n": 0}, "n"),
        ({"tau": -1.0}, "tau"),
    ],
)
def test_impossible_cells_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FieldCell("", **options)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="gaussian-tau0"):
        draw("gaussian", 1)


def test_every_noise_has_a_cell():
    assert {cell.noise for cell in CELLS.values()} == set(NOISES)
