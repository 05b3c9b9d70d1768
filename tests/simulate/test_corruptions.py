"""Corruptions: what they change, in which clients."""

import numpy as np
import pytest
from moments_of_designs import Z, mean_is, rows
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from adfl_stats.simulate.designs import CORRUPTIONS, glm_design

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
