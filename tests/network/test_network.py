"""Network: direction, immutability, and other networks made from one."""

import copy
import pickle

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_matrices import ARROWS, LISTENS, WEIGHTS, weight_matrices
from scipy import sparse

from adfl_stats.network import generators as networks
from adfl_stats.network.network import Network


@st.composite
def undirected(draw, most=12):
    M = draw(st.integers(2, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    A = np.triu(rng.random((M, M)) < 0.4, 1)
    A[np.arange(M - 1), np.arange(1, M)] = True
    A = A | A.T
    np.fill_diagonal(A, rng.random(M) < 0.3)
    return A


# ------------------------------------------------------------------ direction


@pytest.mark.parametrize(
    "make",
    [
        lambda: Network.from_adjacency(LISTENS, labels=list("abc")),
        lambda: Network.from_adjacency(sparse.coo_matrix(LISTENS), labels=list("abc")),
        lambda: Network.from_adjacency(LISTENS.astype(bool), labels=list("abc")),
        lambda: Network.from_adjacency(pd.DataFrame(LISTENS, index=list("abc"), columns=list("abc"))),
        lambda: Network.from_weights(WEIGHTS, labels=list("abc")),
        lambda: Network.from_weights(sparse.csc_array(WEIGHTS), labels=list("abc")),
        lambda: Network.from_networkx(nx.DiGraph(ARROWS)).reindex(list("abc")),
        lambda: Network.from_edges(ARROWS),
        lambda: Network.from_edges(np.array(ARROWS)),
        lambda: Network.from_edges(pd.DataFrame(ARROWS, columns=["source", "target"])),
        lambda: Network.from_edges([(*arrow, 3.0) for arrow in ARROWS]),
    ],
)
def test_every_door_agrees_on_who_receives(make):
    net = make()
    assert list(net.labels) == ["a", "b", "c"]
    np.testing.assert_array_equal(net.W.toarray(), WEIGHTS)
    # By hand: a takes the mean of b and c, b copies a, c copies b.
    np.testing.assert_array_equal(net.W @ np.array([1.0, 10.0, 100.0]), [55.0, 1.0, 10.0])


def test_frame_with_columns_in_another_order():
    frame = pd.DataFrame(LISTENS, index=list("abc"), columns=list("abc"))[["c", "a", "b"]]
    np.testing.assert_array_equal(Network.from_adjacency(frame).W.toarray(), WEIGHTS)


def test_to_networkx_points_at_the_receiver_and_comes_back():
    net = Network.from_adjacency(LISTENS, labels=list("abc"))
    graph = net.to_networkx()
    assert {(u, v): w for u, v, w in graph.edges(data="weight")} == {
        ("b", "a"): 0.5,
        ("c", "a"): 0.5,
        ("a", "b"): 1.0,
        ("b", "c"): 1.0,
    }
    back = Network.from_networkx(graph, weight="weight")
    np.testing.assert_array_equal(back.W.toarray(), net.W.toarray())


def test_counts():
    net = Network.from_adjacency(LISTENS + np.diag([1, 0, 0]), labels=list("abc"))
    assert net.n_clients == 3
    assert net.n_edges == 4
    assert net.in_degree.to_dict() == {"a": 3, "b": 1, "c": 1}
    assert net.out_degree.to_dict() == {"a": 2, "b": 2, "c": 1}


# ------------------------------------------------------------------ immutability


def test_nothing_can_be_changed():
    A = LISTENS.astype(float)
    net = Network.from_adjacency(A)
    A[:] = 1
    with pytest.raises(ValueError, match="read-only"):
        net.W.data[0] = 7
    with pytest.raises(ValueError, match="read-only"):
        net.W.indices[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        net.influence.iloc[0] = 1.0
    with pytest.raises(AttributeError, match="cannot assign"):
        net.labels = list("abc")
    # What is assigned to the matrix handed out stays there.
    W = net.W
    W.data = np.zeros(4)
    net.closed_groups.clear()
    np.testing.assert_array_equal(net.W.toarray(), WEIGHTS)
    assert net.closed_groups == [[0, 1, 2]]


def test_the_users_sparse_matrix_is_left_alone():
    W = sparse.csr_array(WEIGHTS)
    Network.from_weights(W)
    W.data[0] = 9.0
    assert W.data.flags.writeable


@pytest.mark.parametrize("duplicate", [lambda net: pickle.loads(pickle.dumps(net)), copy.deepcopy])
def test_pickle_and_copy_stay_frozen(duplicate):
    net = Network.from_adjacency(LISTENS, labels=list("abc"))
    again = duplicate(net)
    np.testing.assert_array_equal(again.W.toarray(), WEIGHTS)
    pd.testing.assert_index_equal(again.labels, net.labels)
    with pytest.raises(ValueError, match="read-only"):
        again.W.data[0] = 7


def test_repr():
    assert repr(networks.directed_circle(100, 5)) == "Network(100 clients, 500 edges, SE(W)=0, rho=0.9921)"
    # A rho just below 1 does not look like 1.
    near = networks.directed_circle(300, 3)
    assert near.rho == pytest.approx(((1.0 + 2.0 * np.cos(2.0 * np.pi / 300)) / 3.0) ** 2, abs=1e-12)
    assert repr(near) == "Network(300 clients, 900 edges, SE(W)=0, rho=1 - 0.00029)"
    assert "1 - 0.00029" in near._repr_html_()
    large = networks.directed_circle(501, 5)
    assert repr(large) == "Network(501 clients, 2505 edges, SE(W)=0)"
    assert "mixing" not in large.__dict__


# ------------------------------------------------------------------ other networks from this one


@given(weight_matrices(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_relabelling_permutes(W, random):
    names = [f"c{m}" for m in range(len(W))]
    net = Network.from_weights(W, labels=names)
    order = list(range(len(W)))
    random.shuffle(order)
    moved = net.reindex([names[m] for m in order])
    np.testing.assert_array_equal(moved.W.toarray(), net.W.toarray()[np.ix_(order, order)])
    np.testing.assert_allclose(moved.influence[names], net.influence, rtol=1e-9, atol=1e-14)
    assert moved.mixing == pytest.approx(net.mixing, rel=1e-10, abs=1e-14)


@given(weight_matrices(), st.floats(0, 0.99), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_lazy_and_gossip(W, w, k):
    net = Network.from_weights(W)
    ones = np.ones(len(W))
    lazy, gossip = net.lazy(w), net.gossip(k)
    np.testing.assert_allclose(lazy.W.toarray(), (1 - w) * W + w * np.eye(len(W)), atol=1e-15)
    np.testing.assert_allclose(gossip.W.toarray(), np.linalg.matrix_power(W, k), atol=1e-14)
    for other in (net, lazy, gossip):
        np.testing.assert_allclose(other.W @ ones, ones, rtol=0, atol=1e-14)  # consensus stays consensus
    # The long-run weights do not change by waiting.
    np.testing.assert_allclose(lazy.influence, net.influence, rtol=1e-7, atol=1e-12)


@given(undirected())
@settings(max_examples=40, deadline=None)
def test_metropolis(A):
    net = Network.from_adjacency(A).metropolis()
    W = net.W.toarray()
    np.testing.assert_allclose(W.sum(axis=0), 1, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(W, W.T)
    assert net.is_doubly_stochastic
    assert net.se < 1e-14
    off = ~np.eye(len(A), dtype=bool)
    np.testing.assert_array_equal((W > 0)[off], A[off])
    degree = (A & off).sum(axis=1)
    m, k = np.argwhere(A & off)[0]
    assert W[m, k] == 1 / (1 + max(degree[m], degree[k]))


def test_repairs_keep_labels_and_sparsity():
    net = networks.erdos_renyi(300, 0.03, seed=1, labels=[f"h{m}" for m in range(300)])
    for other in (net.metropolis(), net.lazy(), net.gossip(2)):
        pd.testing.assert_index_equal(other.labels, net.labels)
        assert other.W.nnz < 300**2 / 2
