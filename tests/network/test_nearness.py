"""Orders in which neighbours are near, and data in another order."""

import itertools
import sys

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.engine.transport import halo_of

RANKS = 4


def halo_rows(network):
    """Clients elsewhere whom the clients of a rank hear, over all ranks."""
    bounds = np.arange(RANKS + 1) * network.n_clients // RANKS
    parts = [np.arange(low, high) for low, high in itertools.pairwise(bounds)]
    return sum(len(halo_of(part, network.W.indptr, network.W.indices)) for part in parts)


def shuffled_grid(side):
    """A grid whose clients come in any order: cut into four squares, each hears the rows along two sides."""
    place = np.random.default_rng(1).permutation(side * side).reshape(side, side)
    edges = np.concatenate([
        np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1),
        np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1),
    ])  # fmt: skip
    return ad.Network.from_edges(np.concatenate([edges, edges[:, ::-1]]).tolist(), labels=range(side * side))


def test_metis_finds_short_borders():
    pytest.importorskip("pymetis", reason="needs pymetis: pip install 'adfl-stats[metis]'")
    net = shuffled_grid(32)
    order = ad.networks.near_order(net)
    assert sorted(order) == sorted(net.labels)
    best = 4 * 2 * 16
    assert best <= halo_rows(net.reindex(order)) < 1.5 * best < 0.1 * halo_rows(net)


def test_few_clients_stay_as_they_are():
    pytest.importorskip("pymetis", reason="needs pymetis: pip install 'adfl-stats[metis]'")
    net = ad.networks.complete(5, labels=list("abcde"))
    assert ad.networks.near_order(net).tolist() == list("abcde")


def test_without_pymetis_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"near_order needs pymetis; .*adfl-stats\[metis\]"):
        ad.networks.near_order(ad.networks.complete(50))
    with pytest.raises(TypeError, match="network is a list; pass a Network"):
        ad.networks.near_order([1, 2])


def test_data_in_another_order_are_the_same_data():
    rng = np.random.default_rng(2)
    X, y, client = rng.normal(size=(60, 2)), rng.normal(size=60), np.repeat(list("abcd"), [10, 30, 5, 15])
    given = rng.permutation(60)
    data = ad.ClientData.from_arrays(X[given], y[given], client[given], weights=1.0 + y[given] ** 2)
    moved = data.in_order(list("dbca"))
    assert moved.labels.tolist() == list("dbca")
    for k, label in enumerate("dbca"):
        m = data.labels.get_loc(label)
        here, there = slice(*moved.offsets[k : k + 2]), slice(*data.offsets[m : m + 2])
        for name in ("X", "y", "row_weights"):
            np.testing.assert_array_equal(getattr(moved, name)[here], getattr(data, name)[there])
    # The rows as they came in, in both.
    np.testing.assert_array_equal(X[given][moved.row_order], moved.X)
    net = ad.networks.complete(4, labels=list("abcd"))
    fits = [ad.DecentralizedGLM(one, net).fit(ad.DFL()).params for one in (data, moved)]
    np.testing.assert_allclose(*fits, rtol=1e-10)
    assert moved.in_order(data.labels).y.tolist() == data.y.tolist()


@pytest.mark.parametrize("labels", [list("abc"), list("abcc"), list("abcde")])
def test_orders_of_other_clients_are_refused(labels):
    data = ad.ClientData.from_arrays(np.ones((8, 1)), np.arange(8.0), np.repeat(list("abcd"), 2))
    with pytest.raises(ValueError, match="labels must be the 4 clients of the data, each once"):
        data.in_order(labels)
