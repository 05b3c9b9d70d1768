"""Networks from files of every format, and the command line on them."""

import json
import sys

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from scipy import io, sparse

import adfl_stats as ad
from adfl_stats.cli import main as cli
from adfl_stats.errors import NetworkWarning
from adfl_stats.network.network import Network

mpl.use("Agg")


@pytest.fixture
def folder(tmp_path):
    """The same five clients in every format, under the name net."""
    net = ad.networks.directed_circle(5, 2)
    A = (net.W.toarray() > 0).astype(float)
    nx.to_pandas_edgelist(net.to_networkx())[["source", "target"]].to_csv(tmp_path / "net.csv", index=False)
    np.save(tmp_path / "net.npy", A)
    np.savez(tmp_path / "net.npz", A)
    sparse.save_npz(tmp_path / "sparse.npz", sparse.csr_array(A))
    io.mmwrite(tmp_path / "net.mtx", sparse.coo_array(A))
    np.save(tmp_path / "weights.npy", net.W.toarray())
    graph = net.to_networkx()
    nx.write_graphml(graph, tmp_path / "weights.graphml")
    for *_, data in graph.edges(data=True):
        del data["weight"]
    nx.write_graphml(graph, tmp_path / "net.graphml")
    return tmp_path


# ------------------------------------------------------------------ files


@pytest.mark.parametrize(
    "name",
    ["net.csv", "net.npy", "net.npz", "sparse.npz", "net.mtx", "weights.npy", "weights.graphml", "net.graphml"],
)
def test_every_format_reads_the_same(folder, name):
    net = Network.from_file(folder / name)
    np.testing.assert_allclose(net.W.toarray(), ad.networks.directed_circle(5, 2).W.toarray())
    assert Network.from_file(str(folder / name), weights="weights" in name).n_edges == 10


def test_weights_are_demanded(folder):
    with pytest.raises(ValueError, match="W has 5 rows that do not sum to 1"):
        Network.from_file(folder / "net.npy", weights=True)
    with pytest.raises(ValueError, match="G has 10 edges without the attribute 'weight'"):
        Network.from_file(folder / "net.graphml", weights=True)


def test_file_with_unequal_weights(tmp_path):
    np.save(tmp_path / "w.npy", [[0.25, 0.75], [1.0, 0.0]])
    assert Network.from_file(tmp_path / "w.npy").W.toarray()[0, 1] == 0.75
    pd.DataFrame({"source": ["a", "b"], "target": ["b", "a"], "weight": [2, 3]}).to_csv(tmp_path / "w.csv", index=False)
    assert list(Network.from_file(tmp_path / "w.csv").labels) == ["a", "b"]


BAD_FILES = {
    "ending": ("net.txt", b"1 0", "ending '.txt' is not known; it must be one of .csv, .npy, .npz, .mtx"),
    "no ending": ("net", b"1 0", "ending '' is not known"),
    "empty csv": ("net.csv", b"", "a file without content; wanted is a table with columns source, target"),
    "empty npy": ("net.npy", b"", "a file without content; wanted is a square array"),
    "columns": ("net.csv", b"from,to\n1,2\n", "cannot be read as .csv: its columns are 'from', 'to'. Wanted is a"),
    "no edges": ("net.csv", b"source,target\n", "edges is empty; give at least one edge"),
    "ragged": ("net.csv", b"source,target\n1,2\n1,2,3,4\n", "cannot be read as .csv: .*Expected 2 fields"),
    "noise npy": ("net.npy", b"noise", "cannot be read as .npy: it is no NumPy file"),
    "noise npz": ("net.npz", b"noise", "cannot be read as .npz: it is no NumPy file.*Wanted is one square array"),
    "cut zip": ("net.npz", b"PK\x03\x04", "cannot be read as .npz: .*Wanted is one square array"),
    "noise mtx": ("net.mtx", b"noise", "cannot be read as .mtx: .*Matrix Market"),
    "noise graphml": ("net.graphml", b"noise", "cannot be read as .graphml: .*Wanted is a graph in GraphML"),
    "no graph": ("net.graphml", b"<a></a>", "cannot be read as .graphml: .*Wanted is a graph in GraphML"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case, tmp_path, capsys):
    name, content, match = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        Network.from_file(tmp_path / name)
    assert cli.main(["check-network", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("adfl-stats: ")


BAD_ARRAYS = {
    "not square": (np.ones((2, 3)), r"A has shape \(2, 3\); it must be square"),
    "negative": (np.array([[0.0, 1.0], [2.0, -1.0]]), "W has negative entries, the first in row 1, column 1"),
    "NaN": (np.array([[0.0, 1.0], [np.nan, 1.0]]), "W has NaN or infinite entries, the first in row 1, column 0"),
    "sums": (np.array([[0.5, 0.6], [1.0, 0.0]]), "W has 1 rows that do not sum to 1"),
    "text": (np.array([["a", "b"], ["c", "d"]]), "cannot be read as .npy: it holds <U1 instead of real numbers"),
    "objects": (np.array([[None]]), "cannot be read as .npy: it is no NumPy file, or holds objects instead of numbers"),
    "complex": (np.array([[1j]]), "it holds complex128 instead of real numbers"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case, tmp_path):
    array, match = BAD_ARRAYS[case]
    np.save(tmp_path / "net.npy", array)
    with pytest.raises(ValueError, match=match) as caught:
        Network.from_file(tmp_path / "net.npy")
    assert "pickle" not in str(caught.value)
    assert cli.main(["check-network", str(tmp_path / "net.npy")]) == 2


# b hears a and itself, c hears b and itself; a hears nobody, and d is in no edge at all.
DEAF = pd.DataFrame(0, index=list("abcd"), columns=list("abcd"))
for _receiver, _sender in ("ba", "bb", "cb", "cc"):
    DEAF.loc[_receiver, _sender] = 1


def write_deaf(path, A):
    """The matrix A, a receiver a row, in the format that the ending asks for."""
    pairs = [(sender, receiver) for receiver in A.index for sender in A.columns if A.loc[receiver, sender]]
    if path.suffix == ".csv":
        pd.DataFrame(pairs, columns=["source", "target"]).to_csv(path, index=False)
    elif path.suffix == ".graphml":
        graph = nx.DiGraph(pairs)
        graph.add_nodes_from(A.index)
        nx.write_graphml(graph, path)
    elif path.suffix == ".mtx":
        io.mmwrite(path, sparse.coo_array(A.to_numpy()))
    else:
        (np.save if path.suffix == ".npy" else np.savez)(path, A.to_numpy())


# A list of edges cannot name a client without an edge.
MATRICES = ("net.npy", "net.npz", "net.mtx", "net.graphml")


@pytest.mark.parametrize(
    ("name", "clients"), [("net.csv", "abc"), *((name, clients) for name in MATRICES for clients in ("abc", "abcd"))]
)
def test_clients_that_hear_nobody_are_reported(name, clients, tmp_path, capsys):
    A = DEAF.loc[list(clients), list(clients)]
    write_deaf(tmp_path / name, A)
    deaf = [0, 3][: len(clients) - 2]
    if name in ("net.csv", "net.graphml"):
        deaf = [f"'{clients[m]}'" for m in deaf]
    named = ", ".join(map(str, deaf))
    message = (
        rf"clients that receive from nobody \({len(deaf)} of {len(clients)}\): {named}\. Each keeps its own estimate"
    )
    with pytest.warns(NetworkWarning, match=message):
        net = Network.from_file(tmp_path / name)
    expected = A.to_numpy(float) + np.diag(A.sum(axis=1) == 0)
    order = net.labels.get_indexer(A.index) if name == "net.graphml" else np.arange(len(A))
    np.testing.assert_allclose(net.W.toarray()[np.ix_(order, order)], expected / expected.sum(axis=1, keepdims=True))
    assert cli.main(["check-network", str(tmp_path / name)]) == 1
    out, err = capsys.readouterr()
    assert f"warning: {'edges' if name == 'net.csv' else 'G' if name == 'net.graphml' else 'A'} has clients that" in err
    text = " ".join(out.split())
    assert f"Absorbing, as they receive from themselves only: {named}." in text
    assert "strongly connected 0 1, not demanded indicative" in text


def test_rho_below_1_is_not_all_where_somebody_is_absorbing(tmp_path, capsys):
    """W = [[1, 0], [1/2, 1/2]] has mixing 1/4 and SE(W) 1/2, and only the first client's data count."""
    (tmp_path / "net.csv").write_text("source,target\na,b\nb,b\n")
    assert cli.main(["check-network", str(tmp_path / "net.csv")]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "rho 0.75 < 1 holds mixing + SE(W). It bounds the clients' disagreement, not their influence" in text


def test_weights_with_empty_rows(tmp_path):
    np.save(tmp_path / "w.npy", [[0.0, 0.0], [0.25, 0.75]])
    with pytest.warns(NetworkWarning, match=r"W has clients that receive from nobody \(1 of 2\): 0"):
        assert Network.from_file(tmp_path / "w.npy").W.toarray()[0].tolist() == [1, 0]


def test_graphml_says_how_weights_were_read(tmp_path, capsys):
    path = tmp_path / "net.graphml"
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([("a", "b", 3.0), ("c", "b", 1.0), ("b", "a", 2.0), ("b", "c", 5.0)])
    nx.write_graphml(graph, path)
    with pytest.warns(NetworkWarning, match="all edges of the graph have the attribute 'weight', and clients weight"):
        net = Network.from_file(path)
    assert net.W[[net.labels.get_loc("b")], [net.labels.get_loc("a")]] == 0.75
    plain = Network.from_file(path, weights=False)
    assert plain.W[[plain.labels.get_loc("b")], [plain.labels.get_loc("a")]] == 0.5
    assert cli.main(["check-network", str(path)]) == 1
    assert "for plain means pass weights=False (--no-weights)" in capsys.readouterr().err
    assert cli.main(["check-network", "--no-weights", str(path)]) == 1
    assert capsys.readouterr().err == ""
    del graph.edges["a", "b"]["weight"]
    nx.write_graphml(graph, path)
    with pytest.warns(NetworkWarning, match="3 of 4 edges of the graph have the attribute 'weight'; it is not used"):
        Network.from_file(path)


def test_archive_of_two_arrays(tmp_path):
    np.savez(tmp_path / "net.npz", A=np.eye(2), B=np.eye(2))
    with pytest.raises(ValueError, match=r"it holds 2 arrays \('A', 'B'\)\. Wanted is one square array"):
        Network.from_file(tmp_path / "net.npz")


def test_missing_files(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        Network.from_file(tmp_path / "none.csv")
    assert cli.main(["check-network", str(tmp_path / "none.csv")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_graphml_needs_networkx(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r'GraphML files need networkx: pip install "adfl-stats\[network\]"'):
        Network.from_file(folder / "net.graphml")
    assert cli.main(["check-network", str(folder / "net.graphml")]) == 2


# ------------------------------------------------------------------ command line


def test_command_line_holds(folder, capsys):
    files = {key: str(folder / f"out.{key}") for key in ("json", "html")}
    plot = str(folder / "out.png")
    options = ["--json", files["json"], "--html", files["html"], "--plot", plot]
    assert cli.main(["check-network", str(folder / "net.csv"), *options]) == 0
    assert "Condition 5: rho" in capsys.readouterr().out
    with open(files["json"], encoding="utf-8") as file:
        assert {check["name"]: check["status"] for check in json.load(file)["checks"]}["rho"] == "holds"
    with open(files["html"], encoding="utf-8") as file:
        page = file.read()
    assert page.startswith("<!doctype html>")
    assert ">holds<" in page
    with open(plot, "rb") as image:
        assert image.read(4) == b"\x89PNG"


def test_command_line_fails_and_warns(tmp_path, capsys):
    pd.DataFrame({"source": [1, 2, 1], "target": [2, 1, 2]}).to_csv(tmp_path / "net.csv", index=False)
    assert cli.main(["check-network", str(tmp_path / "net.csv")]) == 1
    out, err = capsys.readouterr()
    assert "fails" in out
    assert "warning: edges states 1 edges more than once" in err


def test_command_line_weights(folder, capsys):
    assert cli.main(["check-network", str(folder / "weights.graphml"), "--weights"]) == 0
    assert cli.main(["check-network", str(folder / "net.npy"), "--weights"]) == 2
    assert "do not sum to 1" in capsys.readouterr().err


def test_command_line_negative_weight(tmp_path, capsys):
    (tmp_path / "net.csv").write_text("source,target,weight\na,b,1\nb,a,-1\n")
    assert cli.main(["check-network", str(tmp_path / "net.csv")]) == 2
    assert "has -1 in row 1; weights must be finite and at least 0" in capsys.readouterr().err


def test_command_line_without_matplotlib(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["check-network", str(folder / "net.csv"), "--plot", str(folder / "x.png")]) == 2
    assert "plots need matplotlib" in capsys.readouterr().err
