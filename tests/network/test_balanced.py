"""Doubly stochastic weights by scaling."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_matrices import small_networks, weight_matrices
from scipy import sparse

from adfl_stats.network import balance
from adfl_stats.network import generators as networks
from adfl_stats.network.network import Network


def sinkhorn(A, sweeps=200_000):
    """Plain alternating scaling of a dense matrix."""
    for _ in range(sweeps):
        A = A / A.sum(axis=1, keepdims=True)
        A = A / A.sum(axis=0, keepdims=True)
        if np.abs(A.sum(axis=1) - 1).max() < 1e-14:
            break
    return A


def assert_balances(net, atol=1e-12):
    W = net.balanced().W
    assert np.abs(W.sum(axis=0) - 1).max() < atol
    assert np.abs(W.sum(axis=1) - 1).max() < atol
    np.testing.assert_array_equal(W.indices, net.W.indices)
    np.testing.assert_array_equal(W.indptr, net.W.indptr)
    return W


# ------------------------------------------------------------------ balanced


@given(weight_matrices(), st.floats(0.05, 0.9))
@settings(max_examples=60, deadline=None)
def test_balanced_is_the_scaling_of_w(W, w):
    net = Network.from_weights(W).lazy(w)
    if not net.is_strongly_connected:
        return
    found = assert_balances(net).toarray()
    np.testing.assert_allclose(found, sinkhorn(net.W.toarray()), atol=1e-9)


@pytest.mark.parametrize(("name", "net"), [case for case in small_networks() if case[0] not in ("star", "scale_free")])
def test_balanced_generators(name, net):
    try:
        found = assert_balances(net).toarray()
    except ValueError:
        # A client with one neighbour; with self loops every connected network can be balanced.
        found, net = assert_balances(net.lazy()).toarray(), net.lazy()
    np.testing.assert_allclose(found, sinkhorn(net.W.toarray()), atol=1e-9)


def test_balanced_leaves_doubly_stochastic_alone_and_keeps_labels():
    net = networks.directed_circle(30, 4)
    assert net.balanced() is net
    named = networks.erdos_renyi(40, 0.3, seed=1, labels=[f"h{m}" for m in range(40)])
    pd.testing.assert_index_equal(named.balanced().labels, named.labels)
    assert named.balanced().is_doubly_stochastic
    # On an undirected graph the only scaling is symmetric.
    np.testing.assert_allclose(named.balanced().W.toarray(), named.balanced().W.toarray().T, atol=1e-11)


def test_balanced_where_plain_scaling_crawls():
    """A lazy path of 300 clients with random weights mixes in 10^5 rounds: Newton's steps have to help."""
    rng = np.random.default_rng(1)
    A = np.diag(rng.uniform(0.1, 1, 300)) + np.diag(rng.uniform(0.5, 2, 299), 1) + np.diag(rng.uniform(0.5, 2, 299), -1)
    net = Network.from_weights(A / A.sum(axis=1, keepdims=True))
    W = assert_balances(net).toarray()
    # A scaling: W / A has rank one where A is positive, so that products around a square agree.
    ratio = np.log(W[A > 0] / net.W.toarray()[A > 0])
    rows, cols = np.nonzero(A)
    design = np.zeros((len(rows), 600))
    design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), 300 + cols] = 1
    fitted = design @ np.linalg.lstsq(design, ratio)[0]
    np.testing.assert_allclose(fitted, ratio, atol=1e-8)


@pytest.mark.parametrize("most_factored", [3e6, 0])
def test_balanced_long_and_thin(monkeypatch, most_factored):
    """Both ways to take Newton's steps: factors and conjugate gradients, where sweeps would take 10^5 rounds."""
    monkeypatch.setattr(balance, "MOST_FACTORED", most_factored)
    M = 3000 if most_factored else 150
    diagonals = [np.ones(M - 1), np.ones(M), np.ones(M - 1)]
    net = Network.from_adjacency(sparse.diags_array(diagonals, offsets=[-1, 0, 1], shape=(M, M)))
    assert_balances(net)
    assert_balances(Network.from_adjacency(sparse.block_diag([net.W > 0, net.W > 0], format="csr").astype(float)))


def test_balanced_gives_up_in_time(monkeypatch):
    monkeypatch.setattr(balance, "MOST_FACTORED", 0)
    monkeypatch.setattr(balance.linalg, "cg", lambda *_, **__: (np.zeros(40), 500))
    monkeypatch.setattr(balance, "SWEEPS", 2)
    with pytest.raises(ValueError, match=r"could not bring the column sums of W closer to 1 than .* \(wanted 1e-12\)"):
        networks.erdos_renyi(40, 0.3, seed=1).balanced()


def test_balanced_two_groups_that_do_not_talk():
    A = np.kron(np.eye(2), np.array([[1, 1, 1], [1, 1, 0], [1, 0, 1]]))
    assert_balances(Network.from_adjacency(A))


def test_balanced_needs_total_support():
    with pytest.raises(
        ValueError, match=r"the 2 clients 1, 2 listen to 0 only, whose columns sum to 1, not 2\. Let clients"
    ):
        networks.central_client(10).balanced()
    # b hears itself only; then the edge from b to a can have no weight.
    one_way = Network.from_edges([("a", "a"), ("b", "a"), ("b", "b")])
    with pytest.raises(
        ValueError, match=r"weight zero to 1 of 3 edges, .* client 'a' receives from 'b'.*balance the steps"
    ):
        one_way.balanced()
    # A path of four: the middle edge is on no perfect matching.
    with pytest.raises(ValueError, match=r"weight zero to 2 of 6 edges.*net.lazy\(0.5\).balanced\(\)"):
        Network.from_networkx(nx.path_graph(4)).balanced()
    assert_balances(Network.from_networkx(nx.path_graph(4)).lazy(0.5))
    assert_balances(networks.central_client(10).lazy(0.5))


def test_balanced_with_minute_weights_gives_up(monkeypatch):
    monkeypatch.setattr(balance, "SWEEPS", 1)
    monkeypatch.setattr(balance, "NEWTON_STEPS", 0)
    with pytest.raises(
        ValueError, match=r"balanced\(\) could not bring the column sums of W closer to 1 than .*minute"
    ):
        networks.erdos_renyi(40, 0.3, seed=1).balanced()


def test_balanced_is_sparse(monkeypatch):
    net = networks.erdos_renyi(20_000, 20 / 20_000, seed=1)
    monkeypatch.setattr(sparse.csr_array, "toarray", None)
    assert net.balanced().se < 1e-12
