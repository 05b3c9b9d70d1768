"""Designs: moments, probabilities, seeds, frames."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moments_of_designs import Z, mean_is, rows
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from adfl_stats.losses.family import supported_links
from adfl_stats.simulate.designs import CORRUPTIONS, Simulation, glm_design, hospitals, paper_linear

# ------------------------------------------------------------------------------------- the clean designs


def test_the_papers_design_has_its_sizes_and_truth():
    sim = paper_linear(0.2, "BF", seed=1)
    assert sim.X.shape == (10_000, 50)
    assert sim.X.dtype == np.float64
    assert sim.X.flags.c_contiguous
    assert sim.y.shape == (10_000,)
    assert_array_equal(sim.sizes, np.full(100, 100))
    assert_array_equal(sim.theta0, np.r_[np.ones(10), np.zeros(40)])
    assert sim.abnormal.sum() == 20
    assert_array_equal(sim.client, np.repeat(np.arange(100), 100))
    assert sim.names[:2] == ["x1", "x2"]
    assert len(sim.names) == 50


@pytest.mark.parametrize(("p", "s"), [(1, 1), (4, 1), (5, 1), (9, 1), (10, 2), (15, 3), (50, 10), (99, 19)])
def test_default_truth_has_floor_of_a_fifth_of_the_slopes(p, s):
    sims = {family: glm_design(family, M=2, n=3, p=p, seed=0) for family in ("gaussian", "binomial", "poisson")}
    assert_array_equal(sims["gaussian"].theta0, np.r_[np.ones(s), np.zeros(p - s)])
    # On N(0, I) the linear predictor has standard deviation |theta0|.
    assert_allclose(np.linalg.norm(sims["binomial"].theta0), 1.0, rtol=1e-14)
    assert_allclose(np.linalg.norm(sims["poisson"].theta0), 0.5, rtol=1e-14)
    assert all(np.count_nonzero(sim.theta0) == s for sim in sims.values())


def test_homogeneous_moments_and_noise():
    sim = glm_design(M=50, n=200, p=6, noise=0.5, seed=3)
    mean_is(sim.X, 0.0)
    mean_is(sim.X**2, 1.0)
    mean_is(np.column_stack([sim.X[:, j] * sim.X[:, k] for j in range(6) for k in range(j)]), 0.0)
    error = sim.y - sim.X @ sim.theta0
    mean_is(error, 0.0)
    mean_is(error**2, 0.25)
    mean_is(error**4, 3 * 0.25**2)
    mean_is(error[:, None] * sim.X, 0.0)


def test_without_noise_the_response_is_the_linear_predictor():
    theta0 = np.array([2.0, -1.0, 0.5])
    sim = glm_design(M=3, n=5, p=2, intercept=True, theta0=theta0, noise=0.0, seed=4)
    assert_array_equal(sim.y, sim.X @ theta0)
    assert_array_equal(sim.X[:, 0], 1.0)
    assert sim.names == ["const", "x1", "x2"]


def test_heterogeneous_client_has_ar1_correlation():
    sim = glm_design(M=3, n=40_000, p=6, covariates="heterogeneous", seed=5)
    correlations = []
    for X in np.split(sim.X, 3):
        centred = X - X.mean(axis=0)
        mean_is(centred**2, 1.0)
        r = np.mean([np.mean(centred[:, j] * centred[:, j + 1]) for j in range(5)])
        assert -0.02 < r < 0.52
        for lag in (1, 2, 3):
            for j in range(6 - lag):
                # r itself has a standard error below 1/sqrt(5 n), so the band is a little wider.
                product = centred[:, j] * centred[:, j + lag]
                assert abs(product.mean() - r**lag) < 1.5 * Z * product.std() / np.sqrt(len(X))
        correlations.append(r)
    assert np.ptp(correlations) > 0.02


def test_heterogeneous_client_means_and_correlations_across_clients():
    M, n, p = 4000, 20, 4
    sim = glm_design(M=M, n=n, p=p, covariates="heterogeneous", seed=6)
    X = sim.X.reshape(M, n, p)
    means = X.mean(axis=1)
    mean_is(means, 0.0)
    mean_is(means**2, 0.25 + 1 / n)
    lag1 = np.sum((X - means[:, None])[..., :-1] * (X - means[:, None])[..., 1:], axis=1) / (n - 1)
    mean_is(lag1, 0.25)  # the mean of U(0, 0.5)
    error = sim.y - sim.X @ sim.theta0
    mean_is(error, 0.0)
    mean_is(error**2, 1.0)


@pytest.mark.parametrize("covariates", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_conditional_means_by_groups_of_the_linear_predictor(family, covariates):
    sim = glm_design(family, M=200, n=200, p=10, intercept=True, covariates=covariates, seed=7)
    eta = sim.X @ sim.theta0
    mean = special.expit(eta) if family == "binomial" else np.exp(eta)
    variance = mean * (1 - mean) if family == "binomial" else mean
    group = np.digitize(eta, np.quantile(eta, np.linspace(0, 1, 11)[1:-1]))
    for g in range(10):
        at = group == g
        z = np.sum(sim.y[at] - mean[at]) / np.sqrt(np.sum(variance[at]))
        assert abs(z) < Z
    # The second moment tells Poisson from any other law with these means.
    mean_is((sim.y - mean) ** 2 - variance, 0.0)
    assert set(np.unique(sim.y)) <= set(range(2 if family == "binomial" else 100))


def test_poisson_counts_have_poisson_probabilities():
    sim = glm_design("poisson", M=10, n=5000, p=1, intercept=True, theta0=[np.log(2.0), 0.0], seed=8)
    for k, probability in enumerate([0.1353, 0.2707, 0.2707, 0.1804]):  # exp(-2) 2^k / k!
        share = np.mean(sim.y == k)
        assert abs(share - probability) < Z * np.sqrt(probability / 50_000) + 5e-5


def test_sizes():
    ranged = glm_design(M=400, n=(3, 6), p=2, seed=9)
    assert set(ranged.sizes) == {3, 4, 5, 6}
    mean_is(ranged.sizes.astype(float), 4.5)
    given_sizes = glm_design(M=3, n=np.array([5, 1, 2]), p=2, seed=9)
    assert_array_equal(given_sizes.client, [0, 0, 0, 0, 0, 1, 2, 2])
    assert_array_equal(given_sizes.sizes, [5, 1, 2])


# ------------------------------------------------------------------------------------------------- seeds


def test_a_simulation_prints_as_one_line():
    sim = paper_linear(M=4, n=5, p=2, abnormal=0.25, corruption="BF", seed=1)
    assert repr(sim) == "Simulation(gaussian, 4 clients, 1 abnormal, 20 rows, 2 columns)"


def test_seeds_reproduce_and_differ():
    first, again, other = (paper_linear(0.2, "OOD", seed=s, M=20, n=10, p=10) for s in (1, 1, 2))
    for field in ("X", "y", "abnormal", "theta0", "client"):
        assert_array_equal(getattr(first, field), getattr(again, field))
    assert not np.any(first.y == other.y)
    assert not np.array_equal(first.abnormal, other.abnormal)


def test_a_generator_gives_new_data_each_time_and_the_integers_data_first():
    rng = np.random.default_rng(1)
    first, second = (paper_linear(0.2, "BF", seed=rng, M=10, n=5, p=5) for _ in range(2))
    assert_array_equal(first.y, paper_linear(0.2, "BF", seed=1, M=10, n=5, p=5).y)
    assert not np.any(np.isclose(first.y, second.y))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@settings(deadline=None, max_examples=40)
@given(
    n_bad=st.integers(0, 5),
    kind=st.sampled_from([*CORRUPTIONS, lambda X, y, rng: (X + rng.random(X.shape), y)]),
    covariates=st.sampled_from(["homogeneous", "heterogeneous"]),
    seed=st.integers(0, 2**32),
)
def test_normal_clients_do_not_depend_on_the_corruption_or_the_share(family, n_bad, kind, covariates, seed):
    refused = {"gaussian": {"LF"}, "binomial": {"noise"}, "poisson": {"BF", "LF", "noise"}}
    if kind in refused[family]:
        kind = "MP"
    options = {"M": 12, "n": (2, 6), "p": 10, "covariates": covariates, "seed": seed}
    clean = glm_design(family, **options)
    sim = glm_design(family, abnormal=n_bad / 12, corruption=kind, **options)
    normal = rows(sim, abnormal=False)
    assert sim.abnormal.sum() == n_bad
    assert_array_equal(sim.sizes, clean.sizes)
    assert_array_equal(sim.X[normal], clean.X[normal])
    assert_array_equal(sim.y[normal], clean.y[normal])


def test_abnormal_sets_are_nested():
    small, large = (paper_linear(share, "OOD", seed=3, M=50, n=4, p=5) for share in (0.1, 0.4))
    assert not np.any(small.abnormal & ~large.abnormal)


def test_corruption_of_a_client_does_not_depend_on_the_others():
    alone, second = (paper_linear(chosen, "OOD", seed=3, M=5, n=4, p=5) for chosen in ([3], [1, 3]))
    shared = rows(alone, abnormal=True)
    assert_array_equal(alone.X[shared], second.X[shared])


def test_shares_are_uniform_over_clients():
    count = sum(paper_linear(0.3, "BF", seed=s, M=10, n=1, p=1).abnormal.astype(int) for s in range(600))
    assert np.all(np.abs(count - 180) < Z * np.sqrt(600 * 0.3 * 0.7))


def test_share_is_not_lost_to_rounding():
    # 0.29 * 100 is 28.999999999999996 in floating point.
    assert paper_linear(0.29, "BF", seed=0, n=1, p=1).abnormal.sum() == 29


# ------------------------------------------------------------------------------- frames and the hospitals


@pytest.mark.parametrize(
    "sim",
    [glm_design("poisson", M=4, n=(1, 5), p=3, intercept=True, seed=21), hospitals(21, M=9, abnormal=3)],
    ids=["design", "hospitals"],
)
def test_frame_round_trip(sim):
    frame = sim.frame()
    assert frame.columns.tolist() == [sim.client_name, sim.y_name, *sim.names]
    assert_array_equal(frame[sim.names].to_numpy(), sim.X)
    assert_array_equal(frame[sim.y_name].to_numpy(), sim.y)
    assert frame[sim.client_name].tolist() == sim.client.tolist()
    assert frame.groupby(sim.client_name, sort=False).size().tolist() == sim.sizes.tolist()
    frame.iloc[:, 1:] = 0.0
    assert sim.X.any()
    assert isinstance(frame, pd.DataFrame)


def test_arrays_are_read_only():
    sim = hospitals(1, M=5, abnormal=1)
    for field in ("X", "y", "client", "sizes", "theta0", "abnormal", "labels"):
        assert not getattr(sim, field).flags.writeable


def test_caller_keeps_writeable_arguments():
    sizes, theta0, mask = np.array([2, 3]), np.ones(2), np.array([True, False])
    glm_design(M=2, n=sizes, p=2, theta0=theta0, abnormal=mask, corruption="BF", seed=1)
    assert all(array.flags.writeable for array in (sizes, theta0, mask))


def test_hospitals_look_like_hospitals():
    sim = hospitals(seed=22)
    frame = sim.frame()
    assert frame.columns.tolist() == ["hospital", "readmitted", "age", "severity", "comorbid", "treated"]
    assert sim.labels[[0, -1]].tolist() == ["H001", "H100"]
    assert sim.family == "binomial"
    assert sim.sizes.min() >= 60
    assert sim.sizes.max() <= 240
    assert set(frame["treated"]) == set(frame["readmitted"]) == {0.0, 1.0}
    assert (frame["comorbid"] == frame["comorbid"].round()).all()
    assert len(sim.abnormal_labels) == 20
    assert sim.abnormal_labels == sim.labels[sim.abnormal].tolist()
    rate = frame.groupby("hospital")["readmitted"].mean()
    assert 0.4 < rate.mean() < 0.6
    assert len(hospitals(1, M=1000, abnormal=0, n=1).labels[0]) == 5


def test_half_of_the_faulty_hospitals_flip_and_half_toss_coins():
    sim, clean = hospitals(seed=23), hospitals(seed=23, abnormal=0)
    assert_array_equal(sim.X, clean.X)
    changed = [np.mean(y != z) for y, z in zip(*(split(s) for s in (sim, clean)), strict=True)]
    flipped = np.array(changed) == 1.0
    assert flipped.sum() == 10
    assert_array_equal(np.array(changed) > 0, sim.abnormal)
    tossed = np.repeat(sim.abnormal & ~flipped, sim.sizes)
    mean_is((sim.y[tossed] - 0.5)[:, None] * sim.X[tossed], 0.0)
    # The score of the clean hospitals at the truth has mean zero.
    mean_is((clean.y - special.expit(clean.X @ clean.theta0))[:, None] * clean.X, 0.0)


def split(sim: Simulation) -> list[np.ndarray]:
    return np.split(sim.y, np.cumsum(sim.sizes)[:-1])


# ---------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("family", "link", "theta0", "mean"),
    [
        ("binomial", "probit", [0.2, 0.5], special.ndtr),
        ("binomial", "cloglog", [-0.5, 0.5], lambda eta: -np.expm1(-np.exp(eta))),
        ("poisson", "sqrt", [9.0, 0.5], np.square),
        ("gaussian", "log", [0.5, 0.5], np.exp),
    ],
)
def test_responses_follow_the_link(family, link, theta0, mean):
    words = {"M": 20, "n": 2000, "p": 1, "intercept": True, "theta0": theta0, "seed": 5}
    sim = glm_design(family, link=link, **words)
    expected = mean(sim.X @ sim.theta0)
    error = np.std(sim.y - expected) / np.sqrt(len(sim.y))
    assert abs(np.mean(sim.y - expected)) < 4.0 * error
    assert abs(np.mean((sim.y - expected) * sim.X[:, 1])) < 5.0 * error
    usual = glm_design(family, **words)
    assert not np.array_equal(sim.y, usual.y)
    assert_array_equal(usual.y, glm_design(family, link=supported_links(family)[0], **words).y)


def test_poisson_designs_refuse_means_that_are_not_positive():
    with pytest.raises(ValueError, match="with the link 'identity', which wants positive ones; use intercept=True"):
        glm_design("poisson", 5, 20, 2, link="identity", seed=1)
