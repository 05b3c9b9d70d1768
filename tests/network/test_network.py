"""Network: direction, constructors, balance, mixing, influence, repairs."""

import copy
import pickle
import sys

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import adfl_stats as ad
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import balance, spectrum
from adfl_stats.network import generators as networks
from adfl_stats.network.network import Network

# Client a hears b and c, b hears a, c hears b. The transpose is a different network.
LISTENS = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 0]])
WEIGHTS = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
ARROWS = [("b", "a"), ("c", "a"), ("a", "b"), ("b", "c")]


def random_weights(rng, M, density=0.4):
    """A dense row-stochastic matrix with a random support and no empty row."""
    W = rng.random((M, M)) * (rng.random((M, M)) < density)
    W[np.arange(M), rng.integers(M, size=M)] += 0.1
    return W / W.sum(axis=1, keepdims=True)


def cesaro(W, doublings=40):
    """M^-1 1' times the limit of (I + W)/2 to a high power: the same projection as the Cesaro mean of W^t."""
    P = (np.eye(len(W)) + W) / 2
    for _ in range(doublings):
        P = P @ P
        P /= P.sum(axis=1, keepdims=True)
    return P.mean(axis=0)


@st.composite
def weight_matrices(draw, least=2, most=12):
    return random_weights(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(least, most)))


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


# ------------------------------------------------------------------ constructors


def test_default_labels_and_index_types():
    net = Network.from_adjacency(LISTENS)
    pd.testing.assert_index_equal(net.labels, pd.RangeIndex(3))
    W = net.W
    assert W.dtype == np.float64
    assert W.has_sorted_indices
    assert W.indptr.dtype == W.indices.dtype == np.int32


def test_undirected_graph_and_tuple_nodes():
    net = Network.from_networkx(nx.grid_2d_graph(2, 3))
    assert net.labels[1] == (0, 1)
    assert net.labels.nlevels == 1
    np.testing.assert_array_equal((net.W.toarray() > 0), (net.W.toarray() > 0).T)
    assert net.in_degree.tolist() == [2, 3, 2, 2, 3, 2]


def test_multigraph_merges():
    graph = nx.MultiDiGraph()
    graph.add_edge("b", "a", w=1.0)
    graph.add_edge("b", "a", w=2.0)
    graph.add_edge("c", "a", w=1.0)
    graph.add_edge("a", "b", w=5.0)
    graph.add_edge("a", "c", w=5.0)
    plain = Network.from_networkx(graph).reindex(list("abc")).W.toarray()
    np.testing.assert_allclose(plain[0], [0, 0.5, 0.5], rtol=1e-15)
    weighted = Network.from_networkx(graph, weight="w").reindex(list("abc")).W.toarray()
    np.testing.assert_allclose(weighted[0], [0, 0.75, 0.25], rtol=1e-15)


def test_weights_are_renormalised():
    W = WEIGHTS * (1 + 5e-9)
    np.testing.assert_allclose(Network.from_weights(W).W.sum(axis=1), 1.0, rtol=0, atol=1e-15)


def test_csv_round_trip(tmp_path):
    path = tmp_path / "edges.csv"
    # "NA" is a name, not a gap.
    net = Network.from_adjacency(LISTENS, labels=["NA", "Oslo", "Rome"])
    edges = nx.to_pandas_edgelist(net.to_networkx())
    edges.to_csv(path, index=False)
    for place in (path, str(path)):
        back = Network.from_edges(place)
        assert list(back.labels) == ["NA", "Oslo", "Rome"]
        np.testing.assert_array_equal(back.W.toarray(), WEIGHTS)


def test_edges_with_weights_and_order_of_labels():
    edges = pd.DataFrame({"source": [1, 2, 1], "target": [2, 1, 1], "weight": [7.0, 3.0, 1.0]}, index=[9, 9, 9])
    net = Network.from_edges(edges, labels=[2, 1])
    np.testing.assert_array_equal(net.W.toarray(), [[0, 1], [0.75, 0.25]])


def test_edges_between_names_without_order():
    net = Network.from_edges([("x", 1), (1, "x")])
    assert list(net.labels) == ["x", 1]


def test_edges_stated_twice():
    with pytest.warns(NetworkWarning, match="states 1 edges more than once"):
        net = Network.from_edges([*ARROWS, ARROWS[0]])
    np.testing.assert_array_equal(net.W.toarray(), WEIGHTS)
    with pytest.raises(ValueError, match="from 'a' to 'b' with different weights, 1 and 2; keep one"):
        Network.from_edges([("a", "b", 1.0), ("b", "a", 1.0), ("a", "b", 2.0)])


def frame(**columns):
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: Network.from_adjacency(np.ones((2, 3))),
            ValueError,
            r"A has shape \(2, 3\); it must be square",
        ),
        (lambda: Network.from_adjacency(np.ones(3)), ValueError, r"A has shape \(3,\); it must be square"),
        (lambda: Network.from_adjacency(np.empty((0, 0))), ValueError, r"A has shape \(0, 0\)"),
        (lambda: Network.from_adjacency("nonsense"), TypeError, "A must be a dense or scipy sparse matrix"),
        (
            lambda: Network.from_adjacency([[0, np.nan], [1, 0]]),
            ValueError,
            "NaN or infinite.*row 0, column 1",
        ),
        (lambda: Network.from_adjacency([[0, 1], [-1, 0]]), ValueError, "A has negative.*row 1, column 0"),
        (
            lambda: Network.from_adjacency([[0, 1], [0.5, 0]], labels=["p", "q"]),
            ValueError,
            "other than 0 and 1, the first 0.5 where client 'q' receives from 'p'.*from_weights",
        ),
        (
            lambda: Network.from_adjacency([[0, 1, 1], [0, 0, 0], [0, 0, 0]], labels=list("xyz")),
            ValueError,
            r"A has clients that receive from nobody \(2 of 3\): 'y', 'z'. Give each an edge",
        ),
        (
            lambda: Network.from_adjacency(LISTENS, labels=["a"]),
            ValueError,
            "labels has 1 entries for 3 clients",
        ),
        (
            lambda: Network.from_adjacency(LISTENS, labels=list("aba")),
            ValueError,
            "labels names clients twice: 'a'",
        ),
        (
            lambda: Network.from_adjacency(LISTENS, labels=["a", None, "b"]),
            ValueError,
            "labels has missing values",
        ),
        (lambda: Network.from_adjacency(LISTENS, labels="abc"), TypeError, "labels is the text 'abc'"),
        (
            lambda: Network.from_adjacency(pd.DataFrame(LISTENS, index=list("abc"), columns=list("abd"))),
            ValueError,
            "the columns of A must name the same clients.*'c', 'd'",
        ),
        (
            lambda: Network.from_adjacency(pd.DataFrame(LISTENS), labels=list("abc")),
            ValueError,
            "labels were given although A is a DataFrame",
        ),
        (
            lambda: Network.from_weights(WEIGHTS.T, labels=list("abc")),
            ValueError,
            r"W has 2 rows that do not sum to 1 \('b': 1.5, 'c': 0.5\).*transpose",
        ),
        (lambda: Network.from_weights(WEIGHTS * (1 + 2e-8)), ValueError, "W has 3 rows that do not sum to 1"),
        (lambda: Network.from_weights([[2, -1], [0, 1]]), ValueError, "W has negative entries"),
        (
            lambda: Network.from_networkx(nx.DiGraph([(1, 2)])),
            ValueError,
            r"G has clients that receive from nobody \(1 of 2\): 1",
        ),
        (lambda: Network.from_networkx(nx.Graph()), ValueError, "G has no nodes"),
        (
            lambda: Network.from_networkx(nx.path_graph(3), weight="w"),
            ValueError,
            r"G has 2 edges without the attribute 'w', the first \(0, 1\)",
        ),
        (
            lambda: Network.from_edges(frame(source=[1], to=[2])),
            ValueError,
            "lacks the column 'target'; found 'source'",
        ),
        (
            lambda: Network.from_edges(frame(source=["a", None], target=["b", "a"])),
            ValueError,
            "missing values in column 'source', the first in row 1",
        ),
        (
            lambda: Network.from_edges(frame(source=[1, 2], target=[2, 1], weight=[1, np.nan])),
            ValueError,
            "missing values in column 'weight'",
        ),
        (
            lambda: Network.from_edges(frame(source=[1, 2], target=[2, 1], weight=[1.0, -3.0])),
            ValueError,
            "'weight' of edges has -3 in row 1",
        ),
        (
            lambda: Network.from_edges(frame(source=[1, 2], target=[2, 1], weight=["x", "y"])),
            TypeError,
            "'weight' of edges must hold numbers",
        ),
        (lambda: Network.from_edges([]), ValueError, "edges is empty"),
        (lambda: Network.from_edges(7), TypeError, "edges must be a DataFrame.*got int"),
        (lambda: Network.from_edges([(1, 2), (2, 1, 0.5)]), ValueError, "entries of length 2, 3"),
        (
            lambda: Network.from_edges([("a", "b")]),
            ValueError,
            r"edges has clients that receive from nobody \(1 of 2\): 'a'",
        ),
        (
            lambda: Network.from_edges([(1, 2), (2, 1)], labels=["1", "2"]),
            ValueError,
            "edges names clients that are not in labels: 1, 2",
        ),
        (
            lambda: Network.from_edges([("a", "b"), ("b", "a")], labels=["a", "b", "c"]),
            ValueError,
            r"edges has clients that receive from nobody \(1 of 3\): 'c'",
        ),
        (
            lambda: Network.from_adjacency(LISTENS, labels=list("abc")).reindex(["a", "b", "x", "y"]),
            ValueError,
            "in the network but not in labels: 'c'; in labels but not in the network: 'x', 'y'",
        ),
        (
            lambda: Network.from_adjacency(LISTENS, labels=list("abc")).reindex(["a", "b"]),
            ValueError,
            "not in labels: 'c'; in labels but not in the network: none",
        ),
        (
            lambda: Network.from_adjacency(LISTENS).reindex([0, 1, 1]),
            ValueError,
            "labels names clients twice: 1",
        ),
        (lambda: Network.from_adjacency(LISTENS).lazy(1.0), ValueError, r"w is 1; it must lie in \[0, 1\)"),
        (lambda: Network.from_adjacency(LISTENS).gossip(0), ValueError, "k is 0; it must be at least 1"),
        (
            lambda: Network.from_adjacency(LISTENS, labels=list("abc")).metropolis(),
            ValueError,
            "2 edges go one way: client 'a' receives from 'c', not the reverse. Make the adjacency",
        ),
    ],
)
def test_messages(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_missing_networkx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r'pip install "adfl-stats\[network\]"'):
        Network.from_adjacency(LISTENS).to_networkx()


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
    assert repr(networks.directed_circle(100, 5)) == "Network(100 clients, 500 edges, SE(W)=0, rho=0.992)"
    large = networks.directed_circle(501, 5)
    assert repr(large) == "Network(501 clients, 2505 edges, SE(W)=0)"
    assert "mixing" not in large.__dict__


# ------------------------------------------------------------------ balance and mixing


@given(weight_matrices())
@settings(max_examples=40, deadline=None)
def test_se_and_mixing_by_definition(W):
    net = Network.from_weights(W)
    M = len(W)
    J = np.full((M, M), 1 / M)
    assert net.se == pytest.approx(np.sqrt(np.sum((W.T @ np.ones(M) - 1) ** 2) / M), rel=1e-12, abs=1e-15)
    by_definition = np.linalg.norm(W.T @ (np.eye(M) - J) @ W, 2)
    assert net.mixing == pytest.approx(by_definition, rel=1e-10, abs=1e-14)
    assert net.rho == net.mixing + net.se
    assert net.is_doubly_stochastic == (net.se < 1e-10)


def test_one_client():
    net = Network.from_adjacency([[1]])
    assert (net.mixing, net.se, net.rho, net.n_edges, net.effective_clients) == (0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    "net",
    [
        networks.directed_circle(600, 30),
        networks.fixed_degree(600, 6, seed=1),
        networks.erdos_renyi(600, 0.03, seed=1),
        networks.scale_free(600, 2, seed=1),
        networks.central_client(600),
        networks.complete(600, self_loops=False),
    ],
    ids=["circle", "fixed", "er", "scale_free", "star", "complete"],
)
def test_lanczos_agrees_with_dense(net):
    found = spectrum.mixing_lanczos(net.W)
    assert found == spectrum.mixing_lanczos(net.W)  # the same on each call
    assert found.trouble == ""
    dense = spectrum.mixing_dense(net.W)
    assert found.value == pytest.approx(dense, rel=1e-8, abs=1e-12)
    assert net.mixing == pytest.approx(dense, rel=1e-8, abs=1e-12)


def test_lanczos_with_nothing_left_to_mix():
    assert spectrum.mixing_lanczos(networks.complete(600).W).value < 1e-14


def test_lanczos_that_does_not_converge_bounds_from_below():
    W = networks.directed_circle(2000, 3).W
    found = spectrum.mixing_lanczos(W, steps=100)
    k = np.arange(1, 2000) * np.pi / 2000
    exact = np.max((np.sin(3 * k) / (3 * np.sin(k))) ** 2)
    assert exact - 0.1 < found.value <= exact + 1e-12
    assert found.trouble.startswith("the Lanczos iteration did not converge in 100 steps, with residual")


def test_mixing_that_is_not_resolved_warns():
    # A circle in disorder: no Fourier transform helps, and its eigenvalues lie 10^-7 apart.
    net = networks.directed_circle(5000, 2).reindex(np.random.default_rng(0).permutation(5000))
    with pytest.warns(NetworkWarning, match="could not be resolved, and is at least 0.99.*with residual .*neighbours"):
        assert 0.99 < net.mixing < 1


# ------------------------------------------------------------------ closed groups and influence


def small_networks():
    yield "circle", networks.directed_circle(60, 4)
    yield "er", networks.erdos_renyi(60, 0.12, seed=3)
    yield "er_directed", networks.erdos_renyi(60, 0.12, seed=3, directed=True)
    yield "complete", networks.complete(60)
    yield "star", networks.central_client(60)
    yield "fixed", networks.fixed_degree(60, 7, seed=4)
    yield "small_world", networks.small_world(60, 4, 0.2, seed=3)
    yield "scale_free", networks.scale_free(60, 2, seed=3)
    yield "geometric", networks.random_geometric(60, 0.3, seed=3)
    yield "blocks", networks.stochastic_block([20, 40], 0.3, 0.05, seed=3)


@pytest.mark.parametrize(("name", "net"), list(small_networks()))
def test_influence_is_the_leading_left_eigenvector(name, net):
    assert net.is_strongly_connected
    values, vectors = np.linalg.eig(net.W.toarray().T)
    lead = vectors[:, np.argmin(np.abs(values - 1))].real
    np.testing.assert_allclose(net.influence, lead / lead.sum(), rtol=1e-9)
    assert net.effective_clients == pytest.approx(lead.sum() ** 2 / (lead @ lead), rel=1e-9)


@given(weight_matrices(most=9))
@settings(max_examples=60, deadline=None)
def test_influence_is_the_long_run_mean(W):
    np.testing.assert_allclose(Network.from_weights(W).influence, cesaro(W), rtol=1e-6, atol=1e-9)


def test_influence_with_two_closed_groups_by_hand():
    # p and q hear each other (q also itself); r hears itself; s hears p (1/4) and r (3/4); t hears s and q.
    edges = [("q", "p", 1), ("p", "q", 1), ("q", "q", 1), ("r", "r", 1)]
    edges += [("p", "s", 1), ("r", "s", 3), ("s", "t", 1), ("q", "t", 1)]
    net = Network.from_edges(edges)
    assert net.closed_groups == [["p", "q"], ["r"]]
    assert not net.is_strongly_connected
    # s ends with {p, q} by 1/4, t by 1/2 + 1/8; inside, pi_p = pi_q / 2.
    followers = 2 + 1 / 4 + 5 / 8
    expected = {"p": followers / 15, "q": 2 * followers / 15, "r": (5 - followers) / 5, "s": 0, "t": 0}
    assert net.influence.to_dict() == pytest.approx(expected, rel=1e-14, abs=0)


def test_influence_of_a_periodic_network():
    # The star has period 2: powers of W do not converge, the mean of them does.
    net = networks.central_client(11)
    np.testing.assert_allclose(net.influence, [0.5] + [0.05] * 10, rtol=1e-14)


def test_influence_keeps_relative_accuracy_when_tiny():
    # A walk that goes back to 0 or up by one, each with probability 1/2: pi_m = 2^-(m+1) below the top.
    M = 80
    W = np.zeros((M, M))
    W[:, 0] = 0.5
    W[np.arange(M - 1), np.arange(1, M)] = 0.5
    W[-1, 0] = 1.0
    expected = 0.5 ** np.arange(M)
    np.testing.assert_allclose(Network.from_weights(W).influence, expected / expected.sum(), rtol=1e-12)


def test_influence_of_clients_that_hardly_hear_each_other():
    # Only the ratio of the tiny weights counts; taken as 1 minus the diagonal, they would be noise.
    e = 1e-9
    net = Network.from_weights([[1 - e, e], [2 * e, 1 - 2 * e]])
    np.testing.assert_allclose(net.influence, [2 / 3, 1 / 3], rtol=1e-12)


def test_doubly_stochastic_has_exactly_equal_influence():
    assert (networks.directed_circle(30, 7).influence == 1 / 30).all()
    # Two groups that do not talk are doubly stochastic too.
    net = Network.from_weights(np.kron(np.eye(2), np.full((3, 3), 1 / 3)))
    assert (net.influence == 1 / 6).all()
    assert net.closed_groups == [[0, 1, 2], [3, 4, 5]]


def large_group(followers):
    """1200 clients that hear one another with unequal weights, and some who only listen to chains."""
    rng = np.random.default_rng(5)
    core = sparse.random_array((1200, 1200), density=0.01, rng=rng, format="csr")
    core = core + sparse.csr_array(np.roll(np.eye(1200), 1, axis=1))
    hear = sparse.random_array((followers, 1200), density=0.002, rng=rng, format="csr")
    chain = sparse.diags_array(np.ones(max(followers - 1, 0)), offsets=-1, shape=(followers, followers))
    start = sparse.csr_array(([1.0], ([0], [0])), shape=(followers, 1200))
    A = sparse.csr_array(sparse.block_array([[core, None], [hear + start, chain]]))
    return Network.from_weights(sparse.csr_array(A / A.sum(axis=1)[:, None]))


def test_sparse_influence_agrees_with_the_eigenvector():
    net = large_group(followers=1300)
    assert [len(group) for group in net.closed_groups] == [1200]
    core = net.W.toarray()[:1200, :1200]
    pi = np.linalg.solve(np.vstack([(core.T - np.eye(1200))[:-1], np.ones(1200)]), np.eye(1200)[-1])
    np.testing.assert_allclose(net.influence.to_numpy()[:1200], pi, rtol=1e-8)
    assert (net.influence.to_numpy()[1200:] == 0).all()


def test_sparse_influence_of_a_periodic_group():
    # Two sides of 600 hear the other side only, with unequal weights.
    rng = np.random.default_rng(2)
    side = rng.random((2, 600, 600))
    side /= side.sum(axis=2, keepdims=True)
    W = np.block([[np.zeros((600, 600)), side[0]], [side[1], np.zeros((600, 600))]])
    net = Network.from_weights(W)
    pi = net.influence.to_numpy()
    assert np.abs(pi @ W - pi).sum() < 1e-10
    np.testing.assert_allclose(pi, cesaro(W, doublings=12), rtol=1e-8)


def test_power_iteration_alone_copes_with_a_period(monkeypatch):
    # Sides of 3 and 5: from equal weights the plain iteration would swing for ever.
    def fails(*args, **kwargs):
        raise sparse.linalg.ArpackNoConvergence("no convergence", np.empty(0), np.empty((8, 0)))

    monkeypatch.setattr(spectrum.linalg, "eigs", fails)
    rng = np.random.default_rng(3)
    W = np.zeros((8, 8))
    W[:3, 3:], W[3:, :3] = rng.random((3, 5)), rng.random((5, 3))
    W /= W.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(spectrum._stationary_sparse(sparse.csr_array(W)), cesaro(W), rtol=1e-8)


def test_sparse_influence_that_does_not_converge_warns():
    W = large_group(followers=1).lazy(0.999).W[:1200, :1200]
    with pytest.warns(NetworkWarning, match="influence of the clients is accurate to .* only"):
        spectrum._stationary_sparse(W, most=2)


@pytest.mark.parametrize("kind", ["chain", "random"])
def test_shares_with_many_followers(kind):
    """Both ways to solve for the shares, iterative and direct, on 1500 followers of two leaders."""
    n = 1500
    rng = np.random.default_rng(8)
    A = np.zeros((n + 2, n + 2))
    A[0, 0] = A[1, 1] = 1
    if kind == "chain":
        # The gambler's walk between two leaders: from place i the chance to end at the far one is i/(n + 1).
        for i in range(n):
            A[i + 2, 0 if i == 0 else i + 1] = A[i + 2, 1 if i == n - 1 else i + 3] = 0.5
        second = 0.5
    else:
        A[2:] = rng.random((n, n + 2)) * (rng.random((n, n + 2)) < 0.01)
        A[2:, 1] += 0.1
        A[2:] /= A[2:].sum(axis=1, keepdims=True)
        end = np.linalg.solve(np.eye(n) - A[2:, 2:], A[2:, 1])
        second = (1 + end.sum()) / (n + 2)
    influence = Network.from_weights(A).influence.to_numpy()
    np.testing.assert_allclose(influence[:2], [1 - second, second], rtol=1e-9)
    assert (influence[2:] == 0).all()


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


# ------------------------------------------------------------------ balanced


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


def test_edges_of_other_packages():
    polars, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"source": ["a", "b", "c"], "target": ["b", "c", "a"], "weight": [1, 2, 3]})
    wanted = Network.from_edges(frame)
    for table in (polars.from_pandas(frame), pa.Table.from_pandas(frame), frame.convert_dtypes()):
        net = Network.from_edges(table)
        assert list(net.labels) == ["a", "b", "c"]
        np.testing.assert_array_equal(net.W.toarray(), wanted.W.toarray())


def test_graphs_stand_for_networks_where_one_is_wanted():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("a", "c")])
    wanted = ad.check_network(Network.from_networkx(graph))
    assert str(ad.check_network(graph)) == str(wanted)
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=3, n=30, p=2)
    data = ad.ClientData.from_arrays(sim.X, sim.y, np.array(list("abc"))[sim.client])
    model = ad.DecentralizedGLM(data, graph)
    np.testing.assert_array_equal(model.network.W.toarray(), Network.from_networkx(graph).W.toarray())
