"""Influence where groups hardly hear one another: closed forms, however weak the links."""

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.network import spectrum


def two_groups(first, second, size=3):
    """Complete groups of `size`; one client of the first hears the second with weight `first`, and the reverse."""
    W = np.kron(np.eye(2), np.full((size, size), 1.0 / size))
    W[0, 0] -= first
    W[0, size] += first
    W[size, size] -= second
    W[size, 0] += second
    return ad.Network.from_weights(W)


@pytest.mark.parametrize("weight", [1e-3, 1e-8, 1e-11, 1e-13])
def test_unequal_links_give_unequal_influence(weight):
    """Flow between the groups balances: pi_1 first = pi_2 second, as complete groups are uniform inside."""
    net = two_groups(weight, 3.0 * weight)
    influence = net.influence.to_numpy()
    assert not net.is_doubly_stochastic
    # The clients inside a group differ by the order of the link.
    np.testing.assert_allclose(influence, np.repeat([0.25, 0.25 / 3.0], 3), rtol=max(10.0 * weight, 1e-3))


@pytest.mark.parametrize("weight", [1e-3, 1e-8, 1e-12])
def test_equal_links_are_balanced(weight):
    net = two_groups(weight, weight)
    assert net.is_doubly_stochastic
    np.testing.assert_allclose(net.influence, 1.0 / 6.0, rtol=1e-12)


@pytest.mark.parametrize("weight", [0.1, 1e-12])
def test_a_group_that_only_follows_has_no_influence(weight):
    """The second group hears the first, not the reverse: its clients are transient."""
    net = two_groups(0.0, weight)
    np.testing.assert_allclose(net.influence, np.repeat([1.0 / 3.0, 0.0], 3), atol=1e-15)
    assert list(net.unheard) == [3, 4, 5]


def test_one_closed_group_needs_no_linear_system(monkeypatch):
    """Clients that follow a pair: the pair has all influence, whatever the others do."""
    monkeypatch.setattr(spectrum, "_expected_visits", None)
    M, rng = 400, np.random.default_rng(1)
    A = np.zeros((M, M))
    A[:2, :2] = 1.0
    A[np.arange(2, M), np.arange(1, M - 1)] = 1.0
    A[rng.integers(2, M, 5 * M), rng.integers(0, M, 5 * M)] = 1.0
    influence = ad.Network.from_adjacency(A).influence.to_numpy()
    np.testing.assert_allclose(influence[:2], 0.5, rtol=1e-12)
    assert not influence[2:].any()
