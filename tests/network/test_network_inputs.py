"""Networks from arrays, frames, graphs and edges, and what is refused."""

import sys

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from random_matrices import ARROWS, LISTENS, WEIGHTS, frame

import adfl_stats as ad
from adfl_stats.errors import NetworkWarning
from adfl_stats.network.network import Network

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


# ------------------------------------------------------------------ balanced


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
