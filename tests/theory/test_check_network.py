"""check_network against closed forms and dense algebra; files, command line and pictures of networks."""

import json
import math
import sys

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import io, sparse

import adfl_stats as ad
from adfl_stats.cli import main as cli
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import eigenvalues, products, spectrum, structure
from adfl_stats.network.network import Network
from adfl_stats.theory import network_repairs, network_report

mpl.use("Agg")

NAMES = [
    "SE(W)", "mixing", "rho", "second eigenvalue modulus", "spectral gap", "mixing time", "strongly connected",
    "closed groups", "period", "doubly stochastic", "in-degree spread", "out-degree spread", "clients nobody hears",
    "effective clients", "neighbourhood majorities",
]  # fmt: skip


def cycle(M):
    """The directed circle of in-degree 1, without the warning of its generator."""
    sender = np.roll(np.arange(M), -1)
    return Network.from_adjacency(sparse.csr_array((np.ones(M), (np.arange(M), sender)), shape=(M, M)))


def ring(M):
    return Network.from_networkx(nx.cycle_graph(M))


def karate():
    return Network.from_networkx(nx.Graph(nx.karate_club_graph().edges))


def absorbing():
    """Client a hears itself only; b and c hear a and each other; nobody hears d."""
    return Network.from_edges([("a", "a"), ("a", "b"), ("c", "b"), ("b", "c"), ("c", "d")])


def apart():
    return Network.from_adjacency(np.kron(np.eye(2), np.ones((3, 3))))


def moduli(W):
    """All moduli of eigenvalues, ascending."""
    return np.sort(np.abs(np.linalg.eigvals(W.toarray())))


def circle_moduli(M, D):
    # The other half is the same, but the sine loses digits near pi.
    k = np.arange(1, M // 2 + 1) * np.pi / M
    return np.abs(np.sin(D * k) / (D * np.sin(k)))


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize(("M", "D"), [(7, 2), (100, 5), (100, 30), (500, 5), (2000, 3), (100_000, 5)])
def test_circle(M, D):
    report = ad.check_network(ad.networks.directed_circle(M, D))
    largest = circle_moduli(M, D).max()
    assert report["second eigenvalue modulus"].value == pytest.approx(largest, rel=1e-13)
    assert report["spectral gap"].value == pytest.approx(1 - largest, rel=1e-6)
    assert report["mixing"].value == pytest.approx(largest**2, rel=1e-13)
    assert report["rho"].status == report["spectral gap"].status == "holds"
    assert report["mixing time"].value == pytest.approx(-1 / math.log(largest), rel=1e-6)
    assert report["neighbourhood majorities"].value == D // 2


def test_central_client():
    M = 30
    report = ad.check_network(ad.networks.central_client(M))
    assert report["SE(W)"].value ** 2 == pytest.approx((M - 2) ** 2 / (M - 1), rel=1e-13)
    assert report["SE(W)"].status == "indicative"
    assert (report["rho"].status, report["period"].value, report["period"].status) == ("fails", 2, "fails")
    assert report["second eigenvalue modulus"].value == 1
    assert report["mixing time"].value == math.inf
    # pi is 1/2 for the centre and 1/(2(M - 1)) for the others.
    assert report["effective clients"].value == pytest.approx(1 / (0.25 + 0.25 / (M - 1)), rel=1e-12)
    assert report["in-degree spread"].value == M - 1
    repairs = report.tables["Repairs"]
    assert repairs.loc["balanced()", "note"] == "not possible: 2 clients listen to 1 only"
    assert repairs.loc["balanced()", ["rho", "SE(W)", "edges"]].isna().all()
    assert repairs.loc["lazy(0.5).balanced()", "rho"] < 1
    assert "balanced() " in str(report)
    assert "<NA>" not in str(report) + report.to_html()
    assert any("period 2" in entry and "lazy" in entry for entry in report.advice)


@pytest.mark.parametrize("net", [cycle(7), cycle(20), ring(20), ring(600), cycle(2000)], ids=str)
def test_irreducible_and_doubly_stochastic_is_not_enough(net):
    """The paper's remark on Condition 5 is too generous: here both hold, and rho is 1, exactly."""
    report = ad.check_network(net)
    assert net.rho == report["rho"].value == 1.0
    assert report["rho"].status == report["mixing"].status == "fails"
    assert report["strongly connected"].status == report["doubly stochastic"].status == "holds"
    assert "too general" in report["rho"].note
    assert report["period"].value == net.period > 1
    assert net.second_eigenvalue == 1.0
    assert any("lazy(0.5)" in entry for entry in report.advice)
    assert report.tables["Repairs"].loc["lazy(0.5)", "rho"] < 1


def test_odd_ring_is_fine():
    report = ad.check_network(ring(21))
    assert report["rho"].status == "holds"
    assert report["rho"].value == pytest.approx(math.cos(math.pi / 21) ** 2, rel=1e-12)


def test_aperiodic_doubly_stochastic_with_rho_1():
    # Strongly connected, cycles of length 2 and 3, and still nobody listens to two parts: a permutation plus itself.
    W = np.array([[0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5], [0.5, 0, 0, 0.5]])
    net = Network.from_weights(W)
    assert (net.period, net.is_strongly_connected, net.is_doubly_stochastic) == (1, True, True)
    assert net.rho == 1.0
    assert net.second_eigenvalue < 0.9
    assert ad.check_network(net)["rho"].status == "fails"


def test_complete_mixes_at_once():
    report = ad.check_network(ad.networks.complete(30))
    assert report["second eigenvalue modulus"].value == 0
    assert report["mixing time"].value == 0
    assert report["rho"].value == report["mixing"].value == report["SE(W)"].value == 0
    assert not report.failed


def test_one_client():
    report = ad.check_network(Network.from_adjacency([[1]]))
    assert report["rho"].value == report["second eigenvalue modulus"].value == report["mixing time"].value == 0
    assert report["effective clients"].value == report["period"].value == 1
    assert report.failed == []
    assert "no neighbours" in report["neighbourhood majorities"].note


def test_names_places_and_values():
    report = ad.check_network(karate())
    assert [check.name for check in report.checks] == NAMES
    assert all(isinstance(check.value, float) for check in report.checks)
    assert report["rho"].place == report["mixing"].place == "Condition 5"
    assert report["rho"].value == pytest.approx(report["mixing"].value + report["SE(W)"].value)
    assert "not necessary" in report["rho"].note


def test_absorbing():
    report = ad.check_network(absorbing())
    assert report["strongly connected"].status == "indicative"
    assert report["closed groups"].value == 1
    assert report["clients nobody hears"].value == 3
    assert "'b', 'c', 'd'" in report["clients nobody hears"].note
    assert report["effective clients"].value == 1
    assert "no steps can recover" in report["effective clients"].note
    assert report["out-degree spread"].value == math.inf
    # The followers b and c hear each other with weight 1/2 and 1: modulus (1/2)^(1/2).
    assert report["second eigenvalue modulus"].value == pytest.approx(math.sqrt(0.5), rel=1e-12)
    assert any("3 clients are transient" in entry for entry in report.advice)
    notes = report.tables["Repairs"]["note"]
    assert notes["metropolis()"] == "not possible: 2 edges go one way"
    assert notes["balanced()"].startswith("not possible: ")
    assert notes["lazy(0.5).balanced()"] == "not possible: 2 of 8 edges would have weight zero"
    assert notes["balanced steps"] == "not possible: 3 clients have influence zero"


def test_disconnected():
    report = ad.check_network(apart())
    assert (report["closed groups"].value, report["closed groups"].status) == (2, "fails")
    assert report["rho"].value == report["second eigenvalue modulus"].value == 1
    assert report["rho"].status == report["spectral gap"].status == "fails"
    assert "2 closed groups" in report.advice[0]
    assert "add edges between them" in report.advice[0]
    assert not any("single change" in entry for entry in report.advice)


def test_majorities_by_hand():
    # In-neighbours without self: a 3, b 1, c 2, d 1; self loops do not add a voter.
    edges = [("b", "a"), ("c", "a"), ("d", "a"), ("a", "a"), ("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")]
    net = Network.from_edges(edges)
    found = network_report._tolerances(net)
    assert found["median"].tolist() == [1, 0, 1, 0]  # pools of 4, 2, 3, 2
    assert found["trimmed mean"].tolist() == [1, 0, 0, 0]
    report = ad.check_network(net)
    assert report["neighbourhood majorities"].status == "indicative"
    assert "2 clients do not tolerate one: 'b', 'd'" in report["neighbourhood majorities"].note
    table = report.tables["Bad neighbours a client can stand"]
    assert table.loc["median", ["least", "most"]].tolist() == [0, 1]
    assert ad.check_network(ad.networks.complete(9))["neighbourhood majorities"].status == "indicative"


def test_refuses_what_is_not_a_network():
    with pytest.raises(TypeError, match=r"net is a ndarray; build a Network with Network\.from_adjacency \(0 and 1\)"):
        ad.check_network(np.eye(3))


# ------------------------------------------------------------------ period


@pytest.mark.parametrize(
    ("M", "chords", "period"),
    [(12, [], 12), (12, [3], 2), (12, [4], 3), (12, [2], 1), (12, [5], 4), (12, [5, 9], 4), (12, [1], 1), (15, [4], 3)],
)
def test_period_of_a_cycle_with_chords(M, chords, period):
    """A chord over k steps makes cycles of length M - k + 1, besides that of length M."""
    A = np.roll(np.eye(M), 1, axis=1)
    for k in chords:
        A[0, k] = 1
    assert math.gcd(M, *(M - k + 1 for k in chords)) == period or chords == [1]
    net = Network.from_adjacency(A)
    assert net.period == (M if chords == [1] else period)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_period_is_the_number_of_eigenvalues_on_the_circle(seed, parts, size):
    """Parts that listen in turn, in shuffled order."""
    rng = np.random.default_rng(seed)
    A = np.kron(np.roll(np.eye(parts), 1, axis=1), np.ones((size, size)))
    order = rng.permutation(len(A))
    net = Network.from_adjacency(A[np.ix_(order, order)])
    assert net.period == parts == int((moduli(net.W) > 1 - 1e-9).sum())


def test_period_of_several_groups():
    A = sparse.block_diag([cycle(4).W, cycle(6).W, [[1.0]]])
    net = Network.from_adjacency((A.toarray() > 0).astype(int))
    assert structure.closed_class_periods(net.W, *net.communicating_classes).tolist() == [4, 6, 1]
    assert net.period == 12


def test_long_cycle_is_quick():
    assert cycle(200_000).period == 200_000


# ------------------------------------------------------------------ sparse against dense algebra


def generated(M=500):
    yield "circle", ad.networks.directed_circle(M, 40)
    yield "complete", ad.networks.complete(M)
    yield "star", ad.networks.central_client(M)
    yield "fixed", ad.networks.fixed_degree(M, 6, seed=1)
    yield "er", ad.networks.erdos_renyi(M, 0.03, seed=1)
    yield "er_directed", ad.networks.erdos_renyi(M, 0.03, seed=1, directed=True)
    yield "blocks", ad.networks.stochastic_block([200, 300], 0.05, 0.01, seed=1)
    yield "geometric", ad.networks.random_geometric(M, 0.12, seed=1)
    yield "small_world", ad.networks.small_world(M, 6, 0.2, seed=1)
    yield "scale_free", ad.networks.scale_free(M, 3, seed=1)


@pytest.mark.parametrize(("name", "net"), list(generated()))
def test_sparse_agrees_with_dense_at_500(name, net):
    W = net.W
    mixing = spectrum.mixing_lanczos(W)
    second = eigenvalues.second_modulus(net, dense_up_to=0)
    assert not mixing.trouble
    assert not second.trouble
    dense = W.toarray()
    centred = dense - dense.mean(axis=0)
    assert mixing.value == pytest.approx(np.linalg.norm(centred.T @ centred, 2), rel=1e-8, abs=1e-12)
    assert second.value == pytest.approx(moduli(W)[-2], rel=1e-8, abs=1e-8)
    assert net.second_eigenvalue == pytest.approx(moduli(W)[-2], rel=1e-8, abs=1e-8)
    twice = np.linalg.matrix_power(dense, 2)
    twice -= twice.mean(axis=0)
    found = spectrum.mixing_lanczos(W, power=2)
    assert found.value == pytest.approx(np.linalg.norm(twice, 2) ** 2, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("name", ["lazy", "metropolis", "balanced"])
@pytest.mark.parametrize("sparse_only", [False, True])
def test_second_eigenvalue_of_repairs(name, sparse_only):
    net = getattr(ad.networks.erdos_renyi(600, 0.03, seed=2), name)()
    if sparse_only:
        value = eigenvalues.second_modulus(net, dense_up_to=0).value
    else:
        value = net.second_eigenvalue
    assert value == pytest.approx(moduli(net.W)[-2], rel=1e-8)


def test_second_eigenvalue_with_followers():
    """A closed group of 40, a group of 30 that follows with weight 0.9 inside, and a chain of 100 behind."""
    rng = np.random.default_rng(4)
    core, follow = rng.random((40, 40)), rng.random((30, 30))
    W = np.zeros((170, 170))
    W[:40, :40] = core / core.sum(axis=1, keepdims=True)
    W[40:70, 40:70] = 0.9 * follow / follow.sum(axis=1, keepdims=True)
    W[40:70, 0] = 0.1
    W[np.arange(70, 170), np.arange(69, 169)] = 1.0
    net = Network.from_weights(W)
    assert net.second_eigenvalue == pytest.approx(0.9, rel=1e-12)
    assert eigenvalues.second_modulus(net, dense_up_to=0).value == pytest.approx(0.9, rel=1e-9)
    # A chain behind one leader: all eigenvalues but one are 0, which dense algebra on the whole would miss by 0.5.
    chain = Network.from_edges([(0, 0), *((m, m + 1) for m in range(100))])
    assert chain.second_eigenvalue == 0


def test_circle_in_disorder_is_not_resolved_and_says_so():
    # Only its graph can decide Condition 5 then: W is doubly stochastic, and rows overlap.
    net = ad.networks.directed_circle(8000, 2).reindex(np.random.default_rng(0).permutation(8000))
    with pytest.warns(NetworkWarning, match="the second eigenvalue could not be resolved.*Arnoldi"):
        assert 0.9 < net.second_eigenvalue <= 1
    report = ad.check_network(net)
    assert report["rho"].status == "holds"
    assert "lower bound" in report["rho"].note
    assert report["spectral gap"].status == report["mixing time"].status == "unknown"
    assert "Not resolved: the Arnoldi iteration did not converge" in report["second eigenvalue modulus"].note
    assert "below 1, as there is one closed group" in report["second eigenvalue modulus"].note
    assert "rho at least; eigenvalue about" in report.tables["Repairs"].loc["as is", "note"]


@pytest.mark.parametrize(("value", "status"), [(0.2, "unknown"), (0.9, "fails")])
def test_unbalanced_and_not_resolved(monkeypatch, value, status):
    # A lower bound can show that the condition fails, not that it holds.
    net = ad.networks.fixed_degree(100, 20, seed=1)
    monkeypatch.setattr(
        spectrum, "mixing_norm", lambda *_, **__: eigenvalues.ExtremeEigenvalue(value, "it did not settle")
    )
    report = ad.check_network(net)
    assert (report["mixing"].status, report["rho"].status) == ("unknown", status)
    assert "Not resolved: it did not settle; the value is a lower bound" in report["rho"].note


def test_influence_that_is_not_resolved_is_unknown(monkeypatch):
    def doubtful(*args):
        import warnings

        warnings.warn("the influence of the clients is accurate to 0.1 only", NetworkWarning, stacklevel=2)
        return np.full(100, 0.01)

    monkeypatch.setattr(spectrum, "long_run_weights", doubtful)
    report = ad.check_network(ad.networks.fixed_degree(100, 5, seed=1))
    assert report["effective clients"].status == "unknown"
    assert "accurate to 0.1 only" in report["effective clients"].note


def test_products_in_panels(monkeypatch):
    """Wide matrices are cut; both directions agree with the whole, also where W serves as its own transpose."""
    net = ad.networks.erdos_renyi(300, 0.05, seed=1)
    directed = ad.networks.fixed_degree(300, 5, seed=1).W
    v = np.random.default_rng(0).standard_normal(300)
    for panel in (2**18, 64, 100, 300):
        monkeypatch.setattr(products, "PANEL", panel)
        for by, W in ((net.products, net.W), (products.Products.of(directed), directed)):
            W = W.toarray()
            half = (W + np.eye(300)) / 2
            for found, matrix in ((by, W), (by.lazy(0.5), half), (by.twice(), W @ W)):
                np.testing.assert_allclose(found.forward(v), matrix @ v, atol=1e-14)
                np.testing.assert_allclose(found.backward(v), matrix.T @ v, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_rough_numbers_of_large_networks(monkeypatch, seed):
    """Above 20 000 clients repairs are ranked by numbers of four digits; here at 600, where dense algebra can judge."""
    monkeypatch.setattr(eigenvalues, "EXACT_UP_TO", 500)
    W = ad.networks.erdos_renyi(600, 0.04, seed=seed).lazy(0.5).W
    exact = spectrum.mixing_dense(W)
    assert spectrum.mixing_lanczos(W).value == pytest.approx(exact, rel=1e-6)
    assert spectrum.mixing_lanczos(W, rough=True).value == pytest.approx(exact, rel=1e-4)


def test_growth_rate_stands_in_for_a_modulus():
    W = ad.networks.erdos_renyi(400, 0.05, seed=3, directed=True).W

    def apply(v):
        image = W @ v
        return image - image.mean()

    assert eigenvalues.growth(apply, eigenvalues.start_vector(400)) == pytest.approx(moduli(W)[-2], rel=0.1)


def test_large_network_is_checked_without_dense_algebra(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("dense")

    net = ad.networks.erdos_renyi(20_000, 20 / 20_000, seed=1)
    monkeypatch.setattr(sparse.csr_array, "toarray", refuse)
    report = ad.check_network(net)
    assert report["rho"].status == "holds"
    # Of an Erdos-Renyi graph with mean degree d the modulus is near 2/d^(1/2).
    assert report["second eigenvalue modulus"].value == pytest.approx(2 / math.sqrt(20), rel=0.05)


# ------------------------------------------------------------------ repairs


@pytest.mark.parametrize(
    "net", [karate(), ad.networks.erdos_renyi(80, 0.1, seed=1), ad.networks.fixed_degree(600, 12, seed=2)], ids=str
)
def test_repairs_agree_with_dense_algebra(net):
    table = ad.check_network(net).tables["Repairs"]
    made = {"as is": net, "lazy(0.5)": net.lazy(0.5), "gossip(2)": net.gossip(2)}
    makers = {
        "metropolis()": net.metropolis,
        "balanced()": net.balanced,
        "lazy(0.5).balanced()": lambda: net.lazy(0.5).balanced(),
    }
    for name in table.index.intersection(list(makers)):
        if not table.loc[name, "note"].startswith("not possible: "):
            made[name] = makers[name]()
            continue
        assert table.loc[name, ["rho", "SE(W)", "second eigenvalue modulus", "edges"]].isna().all()
        with pytest.raises(ValueError, match=r"metropolis\(\) needs|balanced\(\) "):
            makers[name]()
    assert ("lazy(0.5).balanced()" in table.index) == ("balanced()" not in made)
    for name, repaired in made.items():
        W = repaired.W.toarray()
        centred = W - W.mean(axis=0)
        se = np.sqrt(np.mean((W.sum(axis=0) - 1) ** 2))
        assert table.loc[name, "SE(W)"] == pytest.approx(se, rel=1e-8, abs=1e-11)
        assert table.loc[name, "rho"] == pytest.approx(np.linalg.norm(centred, 2) ** 2 + se, rel=1e-7)
        assert table.loc[name, "second eigenvalue modulus"] == pytest.approx(moduli(repaired.W)[-2], rel=1e-7)
        assert table.loc[name, "edges"] == net.n_edges * (2 if name == "gossip(2)" else 1)
    assert ("balanced steps" in table.index) == bool((net.influence > 0).all())


def test_advice_names_the_largest_fall():
    report = ad.check_network(karate())
    table = report.tables["Repairs"]
    before_and_after = next(entry for entry in report.advice if entry.startswith("rho and SE(W) are 4.239 and 1.3"))
    for name in ("metropolis()", "lazy(0.5).balanced()", "lazy(0.5)", "gossip(2)"):
        assert f"net.{name} {table.loc[name, 'rho']:.4g} and {table.loc[name, 'SE(W)']:.4g}" in before_and_after
    table = table.drop(index=["as is", "balanced steps"])
    best = table["rho"].astype(float).idxmin()
    assert best == "metropolis()"
    assert f"lowers rho most is net.{best}, from 4.239 to 0.9385 with the same messages. Condition 5 holds" in str(
        report.advice
    )
    assert any("40.9% of efficiency" in entry for entry in report.advice)


def test_advice_when_nothing_helps():
    assert ad.check_network(ad.networks.complete(10)).advice == (
        "One round brings consensus: there is nothing to improve.",
    )
    table = pd.DataFrame({"rho": [0.9, 0.8999, 2.0], "edges": [5, 5, 10]}, index=["as is", "lazy(0.5)", "gossip(2)"])
    assert network_repairs._best_change(table, "holds") == "No change of weights lowers rho by much; more edges would."


def test_advice_on_slow_circles_has_digits():
    # The eigenvalues are cos(x) e^(3ix) for x = pi k/M, and (1 + cos(x) e^(3ix))/2 when lazy.
    x = math.pi / 2000
    lazy = abs(1 + math.cos(x) * complex(math.cos(3 * x), math.sin(3 * x))) ** 2 / 4
    report = ad.check_network(ad.networks.directed_circle(2000, 2))
    assert report.tables["Repairs"].loc["lazy(0.5)", "rho"] == pytest.approx(lazy, rel=1e-12)
    assert f"net.lazy(0.5), from 1 - {x**2:.2g} to 1 - {1 - lazy:.2g} with the same messages" in report.advice[0]


def test_advice_where_even_the_best_fails():
    # Edges go one way and four clients only follow, so that only lazy and gossip remain.
    report = ad.check_network(ad.networks.fixed_degree(50, 3, seed=1))
    assert report["rho"].status == "fails"
    assert any("Condition 5 fails even so: add edges" in entry for entry in report.advice)


def test_laziness_makes_balance_possible():
    """All hear a hub; the others form a chain back to it: no balance without self loops, Condition 5 with them."""
    hub = Network.from_edges([("h", k) for k in range(30)] + [(k, k + 1) for k in range(29)] + [(29, "h"), ("h", "h")])
    report = ad.check_network(hub)
    assert report.tables["Repairs"].loc["balanced()", "note"] == "not possible: 30 of 61 edges would have weight zero"
    W = hub.lazy(0.5).balanced().W.toarray()
    np.testing.assert_allclose([W.sum(axis=0), W.sum(axis=1)], 1.0, atol=1e-11)
    rho = np.linalg.norm(W - W.mean(axis=0), 2) ** 2
    assert rho < 1
    assert f"net.lazy(0.5).balanced(), from 2.989 to {rho:.4g} with the same messages. Condition 5 holds" in str(
        report.advice
    )


# ------------------------------------------------------------------ the report's forms


def test_json_and_html():
    report = ad.check_network(ad.networks.central_client(9))
    content = json.loads(report.to_json())
    assert [check["name"] for check in content["checks"]] == NAMES
    assert content["checks"][5]["value"] == "inf"
    assert content["tables"]["Repairs"]["columns"][0] == "rho"
    page = report.to_html()
    for status in {check.status for check in report.checks}:
        assert f">{status}<" in page
    assert "Condition 5" in str(report)


# ------------------------------------------------------------------ files


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


# ------------------------------------------------------------------ pictures


@pytest.mark.parametrize(
    "net",
    [ad.networks.directed_circle(100, 5), karate(), absorbing(), ad.networks.fixed_degree(60, 3, seed=2), cycle(3)],
    ids=str,
)
def test_pictures(net):
    from matplotlib import pyplot

    axes = [ad.plots.network(net), ad.plots.spectrum(net)]
    assert f"{net.n_clients} clients" in axes[0].get_title()
    assert f"second modulus {net.second_eigenvalue:.4g}" in axes[1].get_title()
    # Every client is a point, and every eigenvalue.
    for ax in axes:
        assert sum(len(points.get_offsets()) for points in ax.collections if len(points.get_offsets()) > 1) >= (
            net.n_clients - 1
        )
        ax.figure.canvas.draw()
        pyplot.close(ax.figure)


@pytest.mark.parametrize("draw", [ad.plots.network, ad.plots.spectrum])
@pytest.mark.parametrize("given", [np.eye(3), None], ids=lambda given: type(given).__name__)
def test_pictures_want_a_network(draw, given):
    with pytest.raises(
        TypeError, match=rf"net is a {type(given).__name__}; build a Network with Network.from_adjacency"
    ):
        draw(given)


def test_network_is_drawn_on_the_axes_given():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert ad.plots.network(ring(5), ax=ax) is ax
    assert ad.plots.spectrum(ring(5), ax=ax) is ax


def test_network_is_drawn_without_networkx(monkeypatch):
    from matplotlib.figure import Figure

    net = karate()
    monkeypatch.setitem(sys.modules, "networkx", None)
    ad.plots.network(net, ax=Figure().subplots())


def test_pictures_that_would_be_black():
    with pytest.raises(ValueError, match=r"net has 2001 clients; a drawing shows at most 2000\. Use check_network"):
        ad.plots.network(ad.networks.directed_circle(2001, 2))
    with pytest.raises(ValueError, match=r"net has 1001 clients; all eigenvalues are drawn for at most 1000\. Use"):
        ad.plots.spectrum(ad.networks.directed_circle(1001, 2))


def test_promise_of_balanced_steps_counts_the_cap():
    """All hear a hub that hears two: most clients have next to no influence, and steps grow at most fifty times."""
    A = ad.networks.directed_circle(50, 2).W.toarray() > 0
    A[:, 0], A[0, 0] = True, False
    net = ad.Network.from_adjacency(A.astype(float))
    shares = np.minimum(50 * net.influence.to_numpy() / 0.02, 1.0)
    promised = shares.sum() ** 2 / (50 * (shares**2).sum())
    assert promised < 0.9
    np.testing.assert_allclose(net.balanced_efficiency, promised, rtol=1e-12)
    assert f"to {promised:.3g}" in ad.check_network(net).tables["Repairs"].loc["balanced steps", "note"]


def test_separate_groups_are_not_called_well_heard():
    report = ad.check_network(ad.Network.from_weights(np.eye(4)))
    assert report["effective clients"].status == "fails"
    assert "within its own group only" in report["clients nobody hears"].note
