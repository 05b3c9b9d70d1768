"""Clients with many coefficients are told apart by how much scores vary, without a matrix of effects for each."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from adfl_stats.trust.chance import Chance
from adfl_stats.trust.mixture import NORMAL, ClientScores
from adfl_stats.trust.selection import MANY_COEFFICIENTS, choose

P, M, INFLATION = MANY_COEFFICIENTS + 1, 24, 1.5


@pytest.fixture(scope="module")
def normal():
    """Information (M, P, P) and slopes (M, P) of scores that vary INFLATION times as much as rows say."""
    rng = np.random.default_rng(1)
    A = rng.normal(size=(M, P, P)) / np.sqrt(P) + np.eye(P)
    z = np.sqrt(INFLATION) * rng.normal(size=(M, P))
    return A, z


def chosen(A, z):
    scores = ClientScores(
        slopes=np.einsum("mrp,mr->mp", A, z),
        information=A.transpose(0, 2, 1) @ A,
        squares=np.square(z).sum(axis=1),
        ranks=np.full(M, float(P)),
        df=np.full(M, 1e7),
        log_det=np.zeros(M),
    )
    return choose(scores, np.zeros((1, P)), "auto", Chance(), constants=np.array([0]))


def test_scores_that_vary_more_are_inflated_and_nobody_is_set_aside(normal):
    found = chosen(*normal)
    best = found[0]
    assert best.spread.inflated
    assert best.words[1] == "normal"
    # The mean of M P squares has a standard deviation of INFLATION sqrt(2 / (M P)) = .043; the centre takes P of them.
    assert_allclose(best.spread.inflation, INFLATION * (1.0 - 1.0 / M), atol=0.13)
    assert all(one.spread.factor.shape[1] == 0 for one in found)


def test_shifted_clients_are_set_aside_and_no_other(normal):
    A, z = normal
    shifted = np.arange(M) < 4
    moved = z + shifted[:, None] * (A @ np.full(P, 3.0))
    best = chosen(A, moved)[0]
    np.testing.assert_array_equal(best.runs.posteriors[:, 0, NORMAL] < 0.5, shifted)
