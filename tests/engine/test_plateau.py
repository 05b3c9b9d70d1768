"""Constant-and-cut on a test of stationarity."""

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.engine.plateau import Plateau

M, P = 4, 4
NET = ad.networks.complete(M)


def quadratic(noise, seed=0):
    """Losses with the common minimum at one, and noisy gradients."""
    curvature = np.linspace(0.5, 2.0, P)

    def gradient(m, theta, rng):
        exact = curvature * (theta - 1.0)
        return exact if rng is None else exact + noise * rng.normal(size=P)

    return ad.Losses(gradient, np.ones(M), np.full(P, 5.0), seed=seed)


def test_noisy_rounds_are_cut_and_get_closer():
    errors = {"constant": [], "plateau": []}
    for schedule, found in errors.items():
        for seed in range(4):
            model = ad.DecentralizedModel(quadratic(2.0, seed), NET)
            res = model.fit(ad.DFL(), step=0.3, rounds=400, schedule=schedule)
            found.append(((res.params - 1.0) ** 2).mean())
    assert np.mean(errors["plateau"]) < 0.4 * np.mean(errors["constant"])
    assert res.trace["step"].iloc[0] == 0.3
    assert res.trace["step"].iloc[-1] <= 0.031
    assert res.rounds == 400
    assert len(res.trace) == 100


def test_rounds_that_still_descend_are_not_cut():
    res = ad.DecentralizedModel(quadratic(0.0), NET).fit(ad.DFL(), step=0.002, rounds=150, schedule="plateau")
    assert (res.trace["step"] == 0.002).all()
    plain = ad.DecentralizedModel(quadratic(0.0), NET).fit(ad.DFL(), step=0.002, rounds=150)
    np.testing.assert_array_equal(res.client_params, plain.client_params)


def test_statistic_of_a_random_walk_about_a_place():
    rng, plateau = np.random.default_rng(1), Plateau()
    assert not plateau.reached(0.1)
    x = np.zeros(3)
    for _ in range(200):
        x = x - 0.1 * (x + rng.normal(size=3))
        plateau.add(x)
    assert plateau.reached(0.1)
    # What led to a cut is forgotten.
    assert not plateau.reached(0.1)


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_hide_a_descent(seed):
    """Noise moves a round by more than the descent does; the statistic takes its length off as often as it comes in."""
    rng, plateau = np.random.default_rng(seed), Plateau()
    x, step = np.full(40, 5.0), 0.02
    for _ in range(100):
        plateau.add(x)
        x = x - step * (0.5 * x + 6.0 * rng.normal(size=40))
    assert not plateau.reached(step)


def test_bad_schedules():
    model = ad.DecentralizedModel(quadratic(0.0), NET)
    with pytest.raises(ValueError, match="schedule"):
        model.fit(step=0.1, rounds=5, schedule="cosine")
    with pytest.raises(ValueError, match="needs a number of rounds"):
        model.fit(step=0.1, schedule="plateau")
