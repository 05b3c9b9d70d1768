"""Huber's loss: its scale, its estimates against statsmodels' RLM, and gross rows inside good clients."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy import stats

import adfl_stats as ad
from adfl_stats.losses.robust_scale import _medians, robust_regression

M, n, p = 20, 100, 4
CLIENT = np.repeat(np.arange(M), n)
THETA = np.array([2.0, 1.0, -1.0, 0.5])


def draw(seed=0, noise=1.0, M=M, n=n):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, p - 1))])
    return X, X @ THETA + noise * rng.normal(size=M * n)


def gross(y, seed=0, shift=50.0, n=n):
    """Add a shift to one row in a hundred of every client."""
    rng, out = np.random.default_rng(seed), y.copy()
    for low in range(0, len(y), n):
        out[low + rng.choice(n, size=max(1, n // 100), replace=False)] += shift
    return out


def model(X, y, family="huber", network=None, client=CLIENT, **carried):
    data = ad.ClientData.from_arrays(X, y, client, **carried)
    return ad.DecentralizedGLM(data, network or ad.networks.complete(data.n_clients), family)


class FixedScale(sm.RLM):
    """statsmodels' robust regression at a scale that is given."""

    sigma = 1.0

    def _estimate_scale(self, *residuals):
        return self.sigma


def rlm(X, y, c, sigma):
    found = FixedScale(y, X, M=sm.robust.norms.HuberT(t=c))
    found.sigma = sigma
    return np.asarray(found.fit(maxiter=1000, tol=1e-13, conv="coefs").params)


# ------------------------------------------------------------------ estimates


# On the complete network the mean over clients does gradient descent on the pooled loss, whatever the step.
EXACT = {"rounds": {"rounds": 1500}, "limit": {"step": 0.1, "solver": "limit"}}


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("c", [0.5, 1.345, 3.0])
def test_on_the_complete_network_the_estimate_is_that_of_statsmodels(c, solver):
    X, y = draw()
    y = gross(y)
    res = model(X, y, ad.Huber(c=c, scale=0.9)).fit(ad.DFL(), tolerance=10.0, **EXACT[solver])
    assert_allclose(res.params, rlm(X, y, c, 0.9), rtol=1e-6, atol=1e-6)


def test_with_an_estimated_scale_and_an_offset_too():
    X, y = draw()
    offset = np.random.default_rng(1).normal(scale=5.0, size=len(y))
    glm = model(X, y + offset, offset=offset)
    sigma = glm.family.par / 1.345
    res = glm.fit(ad.DFL(), tolerance=10.0, **EXACT["limit"])
    assert_allclose(sigma, model(X, y).family.par / 1.345, rtol=1e-12)
    assert_allclose(res.params, rlm(X, y, 1.345, sigma), rtol=1e-6, atol=1e-6)


def test_weights_count_a_row_several_times():
    X, y = draw()
    times = np.random.default_rng(3).integers(1, 4, size=len(y))
    twice = np.repeat(np.arange(len(y)), times)
    family = ad.Huber(scale=1.1)
    weighted = model(X, y, family, weights=times).fit(ad.DFL(), tolerance=10.0, **EXACT["limit"])
    repeated = model(X[twice], y[twice], family, client=CLIENT[twice]).fit(ad.DFL(), tolerance=10.0, **EXACT["limit"])
    assert_allclose(weighted.params, repeated.params, rtol=1e-7, atol=1e-9)
    found = robust_regression(ad.ClientData.from_arrays(X, y, CLIENT, weights=times))
    expected = robust_regression(ad.ClientData.from_arrays(X[twice], y[twice], CLIENT[twice]))
    assert_allclose(found.scale, expected.scale, rtol=1e-9)


def test_a_large_constant_is_least_squares():
    X, y = draw()
    found = model(X, y, ad.Huber(c=1e6)).fit(solver="limit")
    expected = model(X, y, "gaussian").fit(solver="limit")
    assert_allclose(found.params, expected.params, atol=1e-3 * expected.bse.min())
    assert_allclose(found.bse, expected.bse, rtol=1e-6)
    assert_allclose(found.scale, expected.scale, rtol=1e-6)
    assert_allclose(found.deviance, expected.deviance, rtol=1e-6)
    assert_allclose(found.cov_params("nonrobust"), expected.cov_params("nonrobust"), rtol=1e-5)
    assert_allclose(found.clients()["score"], expected.clients()["score"], rtol=1e-3)


def test_the_sandwich_is_the_textbooks():
    X, y = draw()
    res = model(X, gross(y)).fit(ad.DFL(), tolerance=10.0, **EXACT["limit"])
    k = res.family.par
    r = gross(y) - X @ res.params.to_numpy()
    bread = np.linalg.inv(X[np.abs(r) <= k].T @ X[np.abs(r) <= k])
    score = X * np.clip(r, -k, k)[:, None]
    assert_allclose(res.cov_params("sandwich"), bread @ (score.T @ score) @ bread, rtol=1e-6)


def test_units_do_not_matter():
    X, y = draw()
    plain, other = model(X, y), model(X, 1e6 * y)
    assert_allclose(other.family.par, 1e6 * plain.family.par, rtol=1e-9)
    found, expected = other.fit(solver="limit"), plain.fit(solver="limit")
    assert_allclose(found.params, 1e6 * expected.params, rtol=1e-6, atol=1e4 * expected.bse.min())
    assert_allclose(found.clients()["score"], expected.clients()["score"], rtol=1e-2)


def test_far_from_zero_rounds_are_as_few():
    X, y = draw()
    near, far = model(X, y).fit(), model(X, y + 1e5).fit()
    assert_allclose(far.params - [1e5, 0, 0, 0], near.params, atol=0.2 * near.bse.min())
    assert far.rounds <= 2 * near.rounds


# ------------------------------------------------------------------ gross rows


@pytest.mark.filterwarnings("ignore:flags disagree")
@pytest.mark.parametrize("corruption", [None, "BF"])
def test_gross_rows_in_every_client_hurt_least_squares_only(corruption):
    errors = {"gaussian": [], "huber": []}
    for seed in range(4):
        sim = ad.simulate.paper_linear(
            abnormal=0.2 if corruption else 0, corruption=corruption, seed=seed, M=40, n=100, p=5
        )
        y = gross(sim.y, seed=seed)
        for family, found in errors.items():
            data = ad.ClientData.from_arrays(sim.X, y, sim.client)
            res = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 5), family).fit(solver="limit")
            found.append(np.linalg.norm(res.params - sim.theta0))
            if family == "huber":
                assert (np.abs(res.params - sim.theta0) < 4.0 * res.bse).all()
                flagged = res.client_weights.to_numpy() < 0.1
                assert (flagged == sim.abnormal).mean() >= 0.9
    # Residuals have standard deviation sqrt(1 + .01 * 2500) = 5.1 instead of 1.
    assert np.mean(errors["gaussian"]) > 2.5 * np.mean(errors["huber"])


def test_scores_of_clean_clients_are_chi_square():
    clients, scores, p_values = 200, [], []
    client, network = np.repeat(np.arange(clients), n), ad.networks.directed_circle(clients, 9)
    for seed in range(4):
        X, _ = draw(seed=seed, M=clients)
        # Heavy tails: the constants of normal errors must cancel.
        y = X @ THETA + np.random.default_rng(100 + seed).standard_t(2, size=len(X))
        res = model(X, y, network=network, client=client).fit(ad.DFL(), solver="limit")
        assert (res.clients()["df"] == p).all()
        scores.append(res.clients()["score"])
        p_values.append(ad.screen(res).to_frame()["p_value"])
    assert stats.kstest(np.concatenate(scores), stats.chi2(p).cdf).pvalue > 0.001
    assert stats.binomtest(int((np.concatenate(p_values) < 0.01).sum()), 4 * clients, 0.01).pvalue > 0.001


# ------------------------------------------------------------------ scale


def test_the_scale_is_consistent_under_normal_errors():
    for noise in (0.01, 1.0, 300.0):
        X, y = draw(seed=4, noise=noise, M=200)
        found = robust_regression(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(200), n)))
        # Relative error of a median of 200 scales, each with sd 1.17 / sqrt(100).
        assert_allclose(found.scale, noise, rtol=4 * 1.25 * 0.117 / np.sqrt(200))


def outlying(X, y, bad):
    X = X.copy()
    X[bad, 1:] *= 30.0
    return X, np.where(bad, X @ -THETA, y)


@pytest.mark.parametrize("share", [0.2, 0.45])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda X, y, bad: (X, np.where(bad, y + 1e6, y)),
        lambda X, y, bad: (X, np.where(bad, -y, y)),
        lambda X, y, bad: (X, np.where(bad, 0.0, y)),
        outlying,
        lambda X, y, bad: (np.where(bad[:, None], 1e200 * X, X), y),
    ],
    ids=["shifted", "flipped", "zero", "outlying covariates", "overflowing"],
)
def test_a_minority_of_bad_clients_does_not_spoil_the_scale(spoil, share):
    X, y = draw(seed=5)
    y = gross(y)
    bad = share * M > CLIENT
    X, y = spoil(X, y, bad)
    found = robust_regression(ad.ClientData.from_arrays(X, y, CLIENT))
    # The median of 20 scales is one of the largest (or smallest) of the 11 good ones in the worst case.
    assert 0.75 < found.scale < 1.4
    assert np.abs(found.theta - THETA).max() < 0.3


def test_clients_with_fewer_rows_than_columns_have_a_scale_together():
    X, y = draw(seed=6, M=700, n=3)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(700), 3))
    # The median of three is that of one: no small-sample bias.
    assert_allclose(robust_regression(data).scale, 1.0, rtol=0.12)


def test_large_data_are_thinned_evenly():
    X, y = draw(seed=7, M=3, n=300_000)
    # Later rows have a larger error: a sample of the first ones would not do.
    y = X @ THETA + (y - X @ THETA) * np.tile(np.linspace(0.5, 1.5, 300_000), 3)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(3), 300_000))
    expected = np.median(np.abs(y - X @ THETA)) / stats.norm.ppf(0.75)
    assert_allclose(robust_regression(data).scale, expected, rtol=0.01)


@pytest.mark.parametrize("sizes", [(1, 2, 3, 4, 9, 10), (5, 5, 5)])
def test_medians_are_those_of_numpy(sizes):
    rng = np.random.default_rng(0)
    values = rng.normal(size=sum(sizes))
    parts = np.split(values, np.cumsum(sizes)[:-1])
    assert_allclose(_medians(values, np.ones(len(values)), np.array(sizes)), [np.median(part) for part in parts])
    times = rng.integers(1, 5, size=len(values))
    repeated = [np.median(np.repeat(a, b)) for a, b in zip(parts, np.split(times, np.cumsum(sizes)[:-1]), strict=True)]
    assert_allclose(_medians(values, 0.1 * times, np.array(sizes)), repeated)


def test_data_without_noise_have_no_scale():
    X, _ = draw()
    with pytest.raises(ValueError, match=r"found the scale .* Give the scale, ad.Huber\(scale=...\), or use family='g"):
        model(X, X @ THETA)
    assert_allclose(model(X, X @ THETA, ad.Huber(scale=1.0)).fit(solver="limit").params, THETA, rtol=1e-6)


# ------------------------------------------------------------------ results


def test_the_scale_is_in_the_summary_and_survives_a_file(tmp_path):
    X, y = draw()
    res = model(X, y, ad.Huber(c=2.0)).fit(solver="limit")
    text = str(res.summary())
    assert "huber (identity)" in text
    assert f"linear beyond k = {res.family.par:.5g}: c = 2 times sigma" in text
    res.save(tmp_path / "fit")
    again = ad.load(tmp_path / "fit")
    assert again.family == res.family
    assert str(again.summary()) == text


def test_log_likelihood_and_deviance_are_sums_over_rows():
    X, y = draw()
    y = gross(y)
    res = model(X, y).fit(ad.DFL(), solver="limit")
    k = res.family.par
    rho = sm.robust.norms.HuberT(t=k).rho(y - X @ res.params.to_numpy())
    assert_allclose(res.deviance, 2.0 * rho.sum(), rtol=1e-9)
    sigma = k / 1.345
    grid = np.linspace(-80.0 * sigma, 80.0 * sigma, 2_000_001)
    mass = np.exp(-sm.robust.norms.HuberT(t=k).rho(grid) / sigma**2).sum() * (grid[1] - grid[0])
    assert_allclose(res.llf, -(rho / sigma**2).sum() - len(y) * np.log(mass), rtol=1e-6)


def test_predictions_and_the_oracle_work_as_for_the_gaussian():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=3, M=20, n=100, p=4)
    frame = pd.DataFrame(sim.X, columns=list("abcd"))
    data = ad.ClientData.from_arrays(frame, sim.y, sim.client)
    glm = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5), "huber")
    res = glm.fit(solver="limit")
    assert_allclose(res.predict(frame[:5]), sim.X[:5] @ res.params, rtol=1e-12)
    assert list(res.get_prediction(frame[:5]).summary_frame().columns) == [
        "mean",
        "mean_se",
        "mean_ci_lower",
        "mean_ci_upper",
    ]
    assert res.oracle(sim.abnormal, data=data).efficiency > 0.9
    clean = ~sim.abnormal[sim.client]
    expected = rlm(sim.X[clean], sim.y[clean], 1.345, res.family.par / 1.345)
    assert_allclose(res.params, expected, atol=0.3 * res.bse.min())
