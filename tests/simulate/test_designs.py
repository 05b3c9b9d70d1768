"""Designs and corruptions against their definitions; bands are z standard errors of the Monte-Carlo mean."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from adfl_stats.losses.family import supported_links
from adfl_stats.simulate.designs import CORRUPTIONS, Simulation, glm_design, hospitals, paper_linear

# Five standard errors: with some hundred comparisons, a correct design fails about once in 10^4 seeds.
Z = 5.0


def rows(sim: Simulation, abnormal: bool) -> np.ndarray:
    return np.repeat(sim.abnormal, sim.sizes) == abnormal


def mean_is(sample: np.ndarray, expected: float | np.ndarray) -> None:
    """Check the mean of independent entries along axis 0 against its own standard error."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    assert np.all(np.abs(sample.mean(axis=0) - expected) < Z * error)


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


# ------------------------------------------------------------------------------------------- corruptions


@pytest.mark.parametrize(("family", "kind"), [("gaussian", "BF"), ("binomial", "BF"), ("binomial", "LF")])
def test_flips_change_the_responses_of_abnormal_clients_only(family, kind):
    options = {"M": 10, "n": 20, "p": 5, "seed": 11}
    clean, sim = (
        glm_design(family, **options),
        glm_design(family, abnormal=[7, 2], corruption=kind, **options),
    )
    assert_array_equal(np.flatnonzero(sim.abnormal), [2, 7])
    bad = rows(sim, abnormal=True)
    assert bad.sum() == 40
    assert_array_equal(sim.X, clean.X)
    assert_array_equal(sim.y[~bad], clean.y[~bad])
    assert_array_equal(sim.y[bad], -clean.y[bad] if family == "gaussian" else 1 - clean.y[bad])


@pytest.mark.parametrize("intercept", [False, True])
def test_ood_shifts_and_shrinks_the_covariates_only(intercept):
    options = {"M": 20, "n": 500, "p": 4, "intercept": intercept, "seed": 12}
    clean, sim = glm_design(**options), glm_design(abnormal=0.4, corruption="OOD", **options)
    bad = rows(sim, abnormal=True)
    assert_array_equal(sim.y, clean.y)
    assert_array_equal(sim.X[:, : int(intercept)], 1.0 if intercept else np.empty((10_000, 0)))
    X = sim.X[bad, int(intercept) :]
    mean_is(X, 0.5)
    mean_is((X - 0.5) ** 2, 0.49 + 1 / 12)
    V = X - 0.7 * clean.X[bad, int(intercept) :]
    assert -1e-12 < V.min() < V.max() < 1 + 1e-12
    # One draw per row and column: V varies within a client and across columns, without correlation.
    mean_is((V[:, 0] - 0.5) * (V[:, 1] - 0.5), 0.0)
    mean_is((V[1:, 0] - 0.5) * (V[:-1, 0] - 0.5), 0.0)


@pytest.mark.parametrize("intercept", [False, True])
def test_mp_least_squares_on_abnormal_clients_finds_theta_c(intercept):
    # With p = 59 the constant must not count, or floor(0.1 p) would be 6.
    p = 59 if intercept else 50
    options = {"M": 10, "n": 500, "p": p, "intercept": intercept, "seed": 13}
    if intercept:
        options["theta0"] = np.r_[3.0, np.ones(10), np.zeros(49)]
    clean, sim = glm_design(**options), glm_design(abnormal=0.4, corruption="MP", **options)
    bad = rows(sim, abnormal=True)
    theta_c = np.r_[np.full(int(intercept), 3.0), np.ones(5), np.zeros(p - 5)]
    assert_array_equal(sim.X, clean.X)
    # The errors are those of the clean data, which is exact; least squares does not know of that.
    assert_allclose(sim.y[bad] - clean.y[bad], sim.X[bad] @ (theta_c - sim.theta0), atol=1e-12)
    fit, *_ = np.linalg.lstsq(sim.X[bad], sim.y[bad], rcond=None)
    sd = np.sqrt(np.diag(np.linalg.inv(sim.X[bad].T @ sim.X[bad])))
    assert np.all(np.abs(fit - theta_c) < Z * sd)
    fit, *_ = np.linalg.lstsq(sim.X[~bad], sim.y[~bad], rcond=None)
    assert np.all(np.abs(fit - sim.theta0) < Z * np.sqrt(np.diag(np.linalg.inv(sim.X[~bad].T @ sim.X[~bad]))))


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_mp_conditional_means_of_other_families(family):
    sim = glm_design(family, M=20, n=1000, p=10, abnormal=0.45, corruption="MP", seed=14)
    bad = rows(sim, abnormal=True)
    eta = sim.X[bad, 0] * sim.theta0[0]
    mean = special.expit(eta) if family == "binomial" else np.exp(eta)
    mean_is((sim.y[bad] - mean)[:, None] * sim.X[bad], 0.0)


def test_permute_keeps_counts_within_clients_and_breaks_the_regression():
    options = {"M": 10, "n": 2000, "p": 5, "theta0": [0.8, 0, 0, 0, 0], "seed": 15}
    clean = glm_design("poisson", **options)
    sim = glm_design("poisson", abnormal=[0, 4], corruption="permute", **options)
    for m in (0, 4):
        part = slice(2000 * m, 2000 * (m + 1))
        assert_array_equal(np.sort(sim.y[part]), np.sort(clean.y[part]))
        assert abs(np.corrcoef(sim.y[part], sim.X[part, 0])[0, 1]) < Z / np.sqrt(2000)
        assert np.corrcoef(clean.y[part], clean.X[part, 0])[0, 1] > 0.5


def test_noise_has_the_quartiles_of_t2():
    sim = glm_design(M=10, n=4000, p=2, abnormal=[1, 2], corruption="noise", seed=16)
    y = sim.y[rows(sim, abnormal=True)]
    for quantile, level in [(-0.816497, 0.25), (0.0, 0.5), (0.816497, 0.75), (4.302653, 0.975)]:
        assert abs(np.mean(y <= quantile) - level) < Z * np.sqrt(level * (1 - level) / len(y))


def test_a_callable_gets_copies_and_its_answer_is_used():
    kept = []

    def halve(X, y, rng):
        kept.append((X, y))
        y /= 2
        return X, y

    options = {"M": 4, "n": 3, "p": 2, "seed": 17}
    clean, sim = glm_design(**options), glm_design(abnormal=[3], corruption=halve, **options)
    assert_array_equal(sim.y[9:], clean.y[9:] / 2)
    kept[0][0][:] = 0.0
    assert_array_equal(sim.X, clean.X)


def test_several_corruptions_are_dealt_in_turn():
    options = {"M": 6, "n": 3, "p": 2, "seed": 18}
    clean, sim = glm_design(**options), glm_design(abnormal=[5, 0, 3], corruption=["BF", "OOD"], **options)
    flipped = np.repeat([False, False, False, True, False, True], 3)
    assert_array_equal(sim.y, np.where(flipped, -clean.y, clean.y))
    assert_array_equal(np.any(sim.X != clean.X, axis=1), np.repeat(np.arange(6) == 0, 3))


def test_a_new_corruption_can_be_registered(monkeypatch):
    monkeypatch.setitem(CORRUPTIONS, "zero", lambda draw, rng: (draw.X, 0 * draw.y))
    sim = glm_design(M=4, n=3, p=2, abnormal=[1], corruption="zero", seed=19)
    assert_array_equal(sim.y == 0, rows(sim, abnormal=True))


def test_abnormal_may_be_a_mask_or_empty():
    mask = np.array([True, False, True, True])
    options = {"M": 4, "n": 3, "p": 2, "corruption": "BF", "seed": 20}
    assert_array_equal(glm_design(abnormal=mask, **options).abnormal, mask)
    assert not glm_design(abnormal=[], **options).abnormal.any()
    assert not glm_design(abnormal=0.0, **options).abnormal.any()


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
    ("options", "error", "message"),
    [
        (
            {"family": "gamma"},
            ValueError,
            r"family is 'gamma'; choose one of 'gaussian', 'binomial', 'poisson'",
        ),
        (
            {"covariates": "ar"},
            ValueError,
            r"covariates is 'ar'; choose one of 'homogeneous', 'heterogeneous'",
        ),
        ({"M": 0}, ValueError, r"M is 0; it must be at least 1"),
        ({"p": 2.0}, TypeError, r"p must be a whole number, got 2.0"),
        ({"noise": -1}, ValueError, r"noise is -1; it must lie in \[0, inf\)"),
        ({"family": "binomial", "noise": 2}, ValueError, r"noise is 2, but the binomial family has no noise"),
        ({"seed": None}, TypeError, r"seed must be a whole number, got None"),
        ({"seed": -1}, ValueError, r"seed is -1; it must be at least 0"),
        ({"n": 0}, ValueError, r"n is 0; it must be at least 1"),
        ({"n": (5, 3)}, ValueError, r"n is \(5, 3\); the first of \(low, high\) must not exceed the second"),
        ({"n": (0, 3)}, ValueError, r"n\[0\] is 0; it must be at least 1"),
        ({"n": [5, 3]}, ValueError, r"n has shape \(2,\) .* a tuple \(low, high\), or 10 whole numbers"),
        ({"n": [1.5] * 10}, ValueError, r"type float64; give one size"),
        ({"n": [0] * 10}, ValueError, r"or 10 whole numbers of at least 1"),
        ({"theta0": [1.0]}, ValueError, r"theta0 has shape \(1,\); it must be 10 finite number\(s\)$"),
        ({"theta0": [1.0] * 10, "intercept": True}, ValueError, r"must be 11 finite .*, the intercept first"),
        ({"theta0": [np.nan] * 10}, ValueError, r"theta0 has shape \(10,\); it must be 10 finite"),
        ({"theta0": ["a"] * 10}, TypeError, r"theta0 must hold numbers; it could not be converted"),
        ({"family": "poisson", "theta0": [99.0] * 10}, ValueError, r"log means of up to .* stay below 30"),
        ({"abnormal": 0.5, "corruption": "BF"}, ValueError, r"abnormal is 0.5; it must lie in \[0, 0.5\)"),
        ({"abnormal": "x", "corruption": "BF"}, TypeError, r"abnormal must be a number, got 'x'"),
        (
            {"abnormal": [0.1], "corruption": "BF"},
            TypeError,
            r"type float64; give a share, client indices or",
        ),
        ({"abnormal": [True], "corruption": "BF"}, TypeError, r"or a mask of 10 clients"),
        ({"abnormal": [3, 10, -1], "corruption": "BF"}, ValueError, r"indices outside 0..9: 10, -1"),
        ({"abnormal": [3, 3], "corruption": "BF"}, ValueError, r"abnormal names some client twice"),
        ({"abnormal": 0.2}, ValueError, r"asks for 2 abnormal client\(s\), but corruption is None; choose"),
        ({"corruption": "bf"}, ValueError, r"corruption is 'bf'; choose one of 'BF', 'OOD', 'MP', 'LF'"),
        ({"corruption": []}, ValueError, r"corruption is \[\]; choose one of"),
        ({"family": "poisson", "abnormal": 0.2, "corruption": "BF"}, ValueError, r"negative; use 'permute'"),
        (
            {"abnormal": 0.2, "corruption": "LF"},
            ValueError,
            r"'LF' flips binary labels, but family is 'gaussian'",
        ),
        (
            {"family": "poisson", "abnormal": 0.2, "corruption": "noise"},
            ValueError,
            r"'noise' makes real",
        ),
        (
            {"theta0": np.eye(10)[0], "abnormal": 0.2, "corruption": "MP"},
            ValueError,
            r"'MP' keeps the first 1 slope\(s\) of theta0 and the others are zero already, so nothing",
        ),
        (
            {"abnormal": 0.2, "corruption": lambda X, y, rng: (X, y[1:])},
            ValueError,
            r"returned shapes \(4, 10\) and \(3,\); it must keep \(4, 10\) and \(4,\)",
        ),
    ],
)
def test_messages(options, error, message):
    with pytest.raises(error, match=message):
        glm_design(**{"M": 10, "n": 4, "p": 10, "seed": 0} | options)


def test_messages_of_hospitals():
    with pytest.raises(ValueError, match=r"abnormal is 5 of 10 hospitals; it must be fewer than half"):
        hospitals(1, M=10, abnormal=5)
    with pytest.raises(TypeError, match=r"abnormal must be a whole number, got 0.2"):
        hospitals(1, abnormal=0.2)


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
