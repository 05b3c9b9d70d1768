"""Which shifts are found, and the bias of those that are not, against simulation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import adfl_stats as ad
from adfl_stats.trust.detection import detectable_shift

M, N_ROWS, SHARE = 30, 30, 0.2


def fits(shift, replicates, seed, *, noise=1.0):
    """Yield default fits of 30 clients, six of which are off by so many standard deviations of a client."""
    client = np.repeat(np.arange(M), N_ROWS)
    for rng in np.random.default_rng(seed).spawn(replicates):
        X = np.column_stack([np.ones(len(client)), rng.normal(size=len(client))])
        off = shift / np.sqrt(N_ROWS) * (client < SHARE * M)
        y = X.sum(axis=1) + noise * (rng.normal(size=len(client)) + off)
        data = ad.ClientData.from_arrays(X, y, client)
        yield ad.DecentralizedGLM(data, ad.networks.complete(M)).fit(threads=1)


def test_the_shift_found_with_a_given_probability():
    """At the shift for a power of .8; 30 fits have a standard error of .073. At half of it hardly any is found."""
    shift = detectable_shift(M, 2, SHARE, 0.8)
    seen, half = (
        np.mean([res.client_weights[:6].mean() < 0.5 for res in fits(k, count, seed=7)])
        for k, count in ((shift, 30), (shift / 2.0, 15))
    )
    assert seen == pytest.approx(0.8, abs=0.22)
    assert half <= 0.2


def test_limits_grow_with_power_and_fall_with_clients_and_shares():
    assert detectable_shift(M, 2, 0.2, 0.5) < detectable_shift(M, 2, 0.2, 0.8) < detectable_shift(M, 2, 0.2, 0.95)
    assert detectable_shift(200, 2, 0.2) < detectable_shift(50, 2, 0.2) < detectable_shift(20, 2, 0.2)
    assert detectable_shift(100, 2, 0.2) < detectable_shift(100, 2, 0.05)
    assert detectable_shift(100, 2, 0.2) < detectable_shift(100, 20, 0.2)


def test_the_bias_is_that_of_clients_that_are_not_seen():
    """Shifted by less than is ever found, six of 30 move a mean by a fifth of their shift."""
    limits, moved = [], []
    for res in fits(1.0, 10, seed=4, noise=3.0):
        table = res.detection_limit(SHARE)
        sd = 3.0 / np.sqrt(N_ROWS)
        limits.append(table.loc["x1", "bias"] / (SHARE * table.loc["x1", "shift"] * sd))
        moved.append((res.params["x1"] - 1.0) / (SHARE * 1.0 * sd))
    # The noise of 900 rows is known to 2 %; a spread that is found by chance widens a client's.
    assert np.median(limits) == pytest.approx(1.0, abs=0.1)
    # Ten means have a standard error of 3 / sqrt(900 * 10), .29 of the bias.
    assert np.mean(moved) == pytest.approx(1.0, abs=0.9)


def test_clients_that_do_not_identify_a_coefficient_alone():
    """A covariate by client: no client has an estimate of its own; the limit follows from all of them together."""
    rng = np.random.default_rng(2)
    client = np.repeat(np.arange(M), N_ROWS)
    z = rng.normal(size=M)
    X = np.column_stack([np.ones(len(client)), z[client]])
    y = X.sum(axis=1) + rng.normal(size=len(client))
    data = ad.ClientData.from_arrays(X, y, client)
    res = ad.DecentralizedGLM(data, ad.networks.complete(M)).fit(heterogeneity="none")
    table = res.detection_limit(SHARE)
    design = np.column_stack([np.ones(M), z])
    sd = np.sqrt(res.record.clients.dispersion / N_ROWS * np.diag(np.linalg.inv(design.T @ design / M)))
    assert_allclose(table["bias"], SHARE * table["shift"] * sd, rtol=1e-6)
    wide, plain = res.conf_int(contamination=SHARE), res.conf_int()
    more = res.detection_limit(SHARE, power=0.95)["bias"]
    assert_allclose(wide[1] - plain[1], more)
    assert_allclose(plain[0] - wide[0], more)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.ConditionWarning")
def test_summary_and_check_say_what_goes_unseen():
    res = next(fits(0.0, 1, seed=1))
    limit = res.detection_limit()
    worst = limit["bias / se"].max()
    line = next(check for check in res.check().checks if check.name == "unseen bias, SE")
    assert line.value == pytest.approx(worst)
    assert line.status == "indicative"
    text = " ".join(res.summary().as_text().split())
    assert f"off together by {limit['shift'].iloc[0]:.4g} standard deviations of a client" in text
    assert "conf_int(contamination=.2) allows for it" in text
    # A constant for each client: most coefficients have no standard error by client, and do not make the bias infinite.
    data = res.model.data
    own = np.repeat(np.eye(data.n_clients), data.sizes, axis=0)
    own = ad.ClientData.from_arrays(np.column_stack([data.X[:, 1:], own]), data.y, np.repeat(data.labels, data.sizes))
    of_slopes = ad.DecentralizedGLM(own, ad.networks.complete(data.n_clients)).fit(heterogeneity="estimate")
    assert of_slopes.bse.isna().sum() == data.n_clients
    assert "bias of up to inf" not in " ".join(of_slopes.summary().as_text().split())
    # Weights that are given say nothing of who could be found.
    plain = ad.DecentralizedGLM(res.model.data, ad.networks.complete(M)).fit(ad.DFL())
    assert not [check for check in plain.check().checks if check.name == "unseen bias, SE"]


@pytest.mark.parametrize(("word", "value"), [("share", 0.5), ("share", 0.0), ("power", 1.0), ("power", 0.0)])
def test_refusals(word, value):
    res = next(fits(0.0, 1, seed=2))
    with pytest.raises(ValueError, match=word):
        res.detection_limit(**{word: value})


def test_intervals_cover_with_clients_that_go_unseen():
    """A short form of benchmarks/interval_coverage.py: 30 clients, six off by .35 of the noise's standard deviation.

    Plain intervals cover about half of the time; allowing for it, 30 intervals miss more than three times with a
    probability below .02 at a level of .97.
    """
    allowed, plain = [], []
    for res in fits(0.35 * np.sqrt(N_ROWS), 30, seed=11):
        for found, limits in ((plain, res.conf_int()), (allowed, res.conf_int(contamination=SHARE))):
            found.append(limits.loc["x1", 0] <= 1.0 <= limits.loc["x1", 1])
    assert np.sum(~np.array(allowed)) <= stats.binom.ppf(0.98, 30, 0.03)
    assert np.mean(plain) < 0.85
