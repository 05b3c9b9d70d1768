"""Clients whose numbers overflow, where each place holds some of the clients."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from places import batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.overflow import overflowing_clients
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.losses.design_checks import Extremes, survey
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M = 12
BOUNDS = (0, 4, 5, M)
BATCHES = batches_of(BOUNDS)


def drawn(wrong, unit=1e4):
    """Counts of clients of which some have covariates in another unit."""
    sim = ad.simulate.glm_design("poisson", M=M, n=(20, 40), p=3, seed=1)
    X, number = sim.X.copy(), np.unique(sim.client, return_inverse=True)[1]
    X[np.isin(number, wrong)] *= unit
    return ad.ClientData.from_arrays(X, sim.y, sim.client)


def overflowing(data, extremes, transport=LOCAL):
    glm = GLM(data, Family("poisson"), total=transport.total, gather=transport.gather)
    return overflowing_clients(Problem(glm, ad.networks.directed_circle(M, 4), transport=transport), extremes)


def part_of(extremes, at):
    parts = (extremes.X, extremes.y, extremes.linear_offset, extremes.ratio)
    return Extremes(*(part[at] for part in parts), extremes.usual_y, extremes.largest_y)


def in_all_places(data):
    extremes = survey(data).extremes
    return in_places(
        BOUNDS, lambda k, at: overflowing(some_clients(data, BATCHES[k]), part_of(extremes, BATCHES[k]), at)
    )


@pytest.mark.parametrize("wrong", [[], [1], [4], [0, 4, 11]])
def test_places_set_aside_the_same_clients(wrong):
    """Also where the clients of a place are all overflowing, or none."""
    data = drawn(wrong)
    places = np.concatenate(in_all_places(data))
    assert_array_equal(np.flatnonzero(places), wrong)
    assert_array_equal(places, overflowing(data, survey(data).extremes))


def test_a_majority_is_refused_in_all_places():
    """The error counts and names the clients of all places."""
    with pytest.raises(ValueError, match=rf"the numbers of 6 of {M} clients overflow: 1, 3, 5, 7, 9"):
        in_all_places(drawn(range(1, M, 2), unit=1e160))
