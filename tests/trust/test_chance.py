"""What a search may leave out: spreads that cannot lead, bootstrap data sets after the decision, searches close by."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from adfl_stats.trust.candidates import Candidate, minority_price, price_of
from adfl_stats.trust.chance import RESAMPLES, Chance
from adfl_stats.trust.mixture import ClientScores, coherent_runs, gross_runs, normal_run
from adfl_stats.trust.selection import choose
from adfl_stats.trust.spread import Spread, common_excess

M, P = 60, 3


def scores_of(seed, sd=0.0, shift=0.0, df=1e7):
    """Clients of unequal information whose parameters spread by sd, a fifth of them shifted in one coefficient."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.5, 2.0, M)
    own = sd * rng.standard_normal((M, P))
    own[: M // 5, 0] += shift
    z = np.sqrt(size)[:, None] * own + rng.standard_normal((M, P))
    return ClientScores(
        slopes=np.sqrt(size)[:, None] * z,
        information=size[:, None, None] * np.eye(P),
        squares=np.square(z).sum(axis=1),
        ranks=np.full(M, float(P)),
        df=np.full(M, df),
        log_det=np.zeros(M),
    )


def candidates_of(scores):
    spread = Spread.of(scores, np.zeros(0, dtype=np.int64))
    plain = normal_run(scores)
    runs = [plain, coherent_runs(scores, plain.centres, gross=False)]
    return [Candidate(spread, one, price_of(spread, one, M)) for one in runs]


def test_score_test_of_a_common_variance_is_standard_normal():
    tests = np.array([common_excess(scores, normal_run(scores)) for scores in map(scores_of, range(300))])
    # The estimate takes a share P / (M P) of the squares: a mean of -sqrt(P / (2 M)) = -.16; errors .06 and .04.
    assert_allclose(tests.mean(), -np.sqrt(P / (2 * M)), atol=0.18)
    assert_allclose(tests.std(), 1.0, atol=0.13)
    wide = scores_of(0, sd=1.0)
    assert common_excess(wide, normal_run(wide)) > 4.0


def test_prices_are_raised_to_what_is_gained_by_chance():
    """With twenty sets: the mean and three standard deviations of gains that are computed here anew."""
    candidates = candidates_of(scores_of(1, shift=3.0))
    sets = [scores_of(100 + k, sd=0.5) for k in range(RESAMPLES)]
    drawn = []

    def resample(spread):
        assert spread.name == "none"
        for k, one in enumerate(sets):
            drawn.append(k)
            yield one

    gains = []
    for one in sets:
        plain, minority = candidates_of(one)
        other = min(plain.criterion, 15.0 - 2.0 * gross_runs(one, plain.runs.centres).log_likelihoods[0])
        gains.append(other - minority.criterion + minority.price)
    chance = Chance(resample)
    raised = chance.raised(candidates, behind=100.0)
    wanted = np.mean(gains) + 3.0 * np.std(gains) - minority_price(P)
    assert wanted > 1.0
    assert_allclose(raised[1].price - candidates[1].price, wanted)
    assert raised[0] is candidates[0]
    # At an estimate close by nothing is drawn again.
    again = Chance(resample, chance).raised(candidates, behind=100.0)
    assert len(drawn) == RESAMPLES
    assert again[1].price == raised[1].price


def test_a_clear_bootstrap_ends_early():
    drawn = []

    def resample(spread):
        while True:
            drawn.append(1)
            # Scores far smaller than normal ones have nothing to gain from a minority.
            one = scores_of(len(drawn))
            yield replace(one, slopes=0.2 * one.slopes, squares=0.04 * one.squares)

    candidates = candidates_of(scores_of(1, shift=3.0))
    raised = Chance(resample).raised(candidates, behind=100.0)
    assert raised[1].price == candidates[1].price
    assert 5 <= len(drawn) < RESAMPLES


@pytest.mark.parametrize("sd", [0.0, 1.0])
def test_candidates_of_a_point_close_by_lead_to_the_same_model(sd):
    """Theta moved and units doubled: the models found before are refitted, and agree with a new search."""
    here = scores_of(3, sd=sd, shift=4.0)
    seeds, step, scale = np.zeros((1, P)), np.array([0.2, -0.1, 0.1]), np.array([2.0, 1.0, 0.5])
    # Slopes at theta + step, and all of it in units that are `scale` times the former.
    there = replace(
        here,
        slopes=(here.slopes - here.information @ step) * scale,
        information=here.information * np.outer(scale, scale),
        squares=here.squares - 2.0 * here.slopes @ step + np.einsum("mij,i,j->m", here.information, step, step),
    )
    first = choose(here, seeds, "auto", Chance())
    moved = [one.moved(step, np.ones(P), scale) for one in first[:4]]
    resumed, anew = choose(there, seeds, "auto", Chance(), near=moved), choose(there, seeds, "auto", Chance())
    assert len(resumed) <= 4
    assert resumed[0].words == anew[0].words == first[0].words
    # EM ends at gains below .02 in the log-likelihood.
    assert_allclose(resumed[0].criterion, anew[0].criterion, atol=0.3)
    assert_allclose(resumed[0].runs.posteriors, anew[0].runs.posteriors, atol=0.03)
