"""Starts and constants of families, over several places that hold the data of their own clients."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.data.whole import Whole
from adfl_stats.losses.families import family as resolved
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.initial_values import with_constants

M = 9
BOUNDS = (0, 2, 6, M)
BATCHES = batches_of(BOUNDS)


def drawn(constant):
    """Responses whose means differ much between places; the constant column, if there is one, is the second."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(8, 20, M)
    X = rng.uniform(0.5, 1.5, size=(sizes.sum(), 3))
    client = np.repeat(np.arange(M), sizes)
    X[:, 1] = 2.0 if constant else np.where(client < 2, 2.0, 3.0)
    return ad.ClientData.from_arrays(X, rng.gamma(2.0, 0.5 * (1.0 + client)), client)


def found(data, link, **elsewhere):
    family = resolved("gamma", link=link)
    joined = {"joined": elsewhere["gather"]} if "gather" in elsewhere else {}
    family = with_constants(family, data, replace(Whole.here(data), **joined))
    glm = GLM(data, family, **elsewhere)
    return glm.constant_column, family.par, glm.start()


@pytest.mark.parametrize("link", ["log", "inverse", "identity"])
@pytest.mark.parametrize("constant", [True, False])
def test_places_start_where_one_place_starts(link, constant):
    data = drawn(constant)
    places = in_places(
        BOUNDS, lambda k, place: found(some_clients(data, BATCHES[k]), link, total=place.total, gather=place.gather)
    )
    column, par, start = found(data, link)
    assert (column is None) != constant
    for one in places:
        assert one[0] == column
        assert one[1] == par
    joined = np.concatenate([one[2] for one in places])
    assert_allclose(joined, start, rtol=1e-12, atol=1e-14)
    if link != "log":
        assert_array_equal(joined, np.tile(joined[0], (M, 1)))


def test_a_column_constant_in_every_place_need_not_be_constant():
    data = drawn(False)
    assert GLM(some_clients(data, BATCHES[0]), resolved("gamma", link="log")).constant_column == (1, 2.0)
    places = in_places(BOUNDS, lambda k, place: found(some_clients(data, BATCHES[k]), "log", gather=place.gather))
    assert [one[0] for one in places] == [None] * 3
