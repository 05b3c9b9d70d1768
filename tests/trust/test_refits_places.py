"""The model of clients on draws of them, over several places that hold the data of their own clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import EVERYBODY, LOCAL, Local, Members
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.trust.refits import refit_draws

M, P = 14, 2
BOUNDS = np.array([0, 4, 9, M])
BATCHES = batches_of(BOUNDS)
# All, without one, with copies, and without any client of the first place.
DRAWS = [np.ones(M, dtype=int), np.arange(M) != 5, np.arange(M) % 3, np.where(np.arange(M) < 4, 0, 2)]
DRAWS = [draw.astype(np.int64) for draw in DRAWS]


def drawn(family):
    """Clients of which four share another parameter."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(M), rng.integers(30, 50, size=M))
    X = np.column_stack([np.ones(len(client)), rng.normal(size=len(client))])
    eta = 0.3 + np.where(client % 4 == 1, -1.5, 0.8) * X[:, 1]
    gaussian = family == "gaussian"
    y = eta + rng.normal(size=len(eta)) if gaussian else (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    return ad.ClientData.from_arrays(X, y, client)


def fitted(data, family, transport, weighting="random-effects"):
    """What the draws say that is of all clients, and the rows of ours."""
    net = ad.networks.directed_circle(M, 3)
    problem = Problem(GLM(data, Family(family)), net, weighting, transport=transport)
    ours = [problem.members.ours(draw) for draw in DRAWS]
    made = list(refit_draws(problem, np.array([0.3, 0.7]), ours))
    common = [[one.model.theta, one.model.spread, one.model.null.dispersion, one.model.components] for one in made]
    return common, np.stack([one.weights for one in made], axis=1), [one.model.information_shares for one in made]


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_places_fit_the_draws_of_all(family):
    """To the bit those of one place that sums by the same batches; up to rounding of one that sums at once."""
    data = drawn(family)
    places = in_places(BOUNDS, lambda k, place: fitted(some_clients(data, BATCHES[k]), family, place))
    common, weights, shares = fitted(data, family, Local(BOUNDS))
    assert (weights[1::4, 0] < 0.5).all()
    for found, _, _ in places:
        for one, other in zip(found, common, strict=True):
            for part, wanted in zip(one, other, strict=True):
                assert_array_equal(part, wanted)
    assert_array_equal(np.concatenate([own for _, own, _ in places]), weights)
    for k, wanted in enumerate(shares):
        assert_array_equal(np.concatenate([own[k] for _, _, own in places]), wanted)
    at_once, others, _ = fitted(data, family, LOCAL)
    assert_allclose(others, weights, atol=1e-6)
    for one, other in zip(at_once, common, strict=True):
        assert_allclose(one[0], other[0], rtol=1e-6)


def test_clients_that_are_drawn_twice_find_their_own_rows():
    draw = np.array([2, 0, 1, 3, 1, 0, 2, 1, 1])
    values = np.random.default_rng(1).normal(size=(draw.sum(), 2))
    ends = np.concatenate([[0], np.cumsum([draw[low:high].sum() for low, high in ((0, 4), (4, 6), (6, 9))])])

    def work(k, place):
        numbers = place.clients(9)
        members = Members(place, numbers).of(np.repeat(np.arange(len(numbers)), draw[numbers]))
        mine = values[ends[k] : ends[k + 1]]
        assert_array_equal(members.ours(members.gather(mine)), mine)
        return members.sum(mine)

    for summed in in_places((0, 4, 6, 9), work):
        assert_allclose(summed, values.sum(axis=0))
    assert_array_equal(EVERYBODY.of(np.repeat(np.arange(9), draw)).sum(values), values.sum(axis=0))
