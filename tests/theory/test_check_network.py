"""check_network against closed forms, periods by hand, and the forms of its report."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_networks import absorbing, cycle, karate, moduli, ring
from scipy import sparse

import adfl_stats as ad
from adfl_stats.network import structure
from adfl_stats.network.network import Network
from adfl_stats.theory import network_report

NAMES = [
    "SE(W)", "mixing", "rho", "second eigenvalue modulus", "spectral gap", "mixing time", "strongly connected",
    "closed groups", "period", "doubly stochastic", "in-degree spread", "out-degree spread",
    "clients with influence zero", "effective clients", "neighbourhood majorities",
]  # fmt: skip


def apart():
    return Network.from_adjacency(np.kron(np.eye(2), np.ones((3, 3))))


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
    """The paper's remark on Condition 5 is too general: here both hold, and rho is 1, exactly."""
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
    assert report["clients with influence zero"].value == 3
    assert "'b', 'c', 'd'" in report["clients with influence zero"].note
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
    table = report.tables["Tolerated abnormal neighbours"]
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


# ------------------------------------------------------------------ pictures


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
    assert "within its own group only" in report["clients with influence zero"].note
