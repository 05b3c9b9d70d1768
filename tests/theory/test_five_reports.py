"""Five networks, all that the reports print of each: numbers against dense NumPy, verdicts against their definitions.

A second reader's pass over `check_network`, `Results.check`, `rates` and `advise`: each value is computed
again from rows, a dense W and what the fit returns, and the pages of one fit may not contradict one another.
"""

import math

import networkx as nx
import numpy as np
import pytest
from by_hand import Raw
from numpy.testing import assert_allclose
from scipy import linalg

import adfl_stats as ad

STEP, ROUNDS, P = 0.04, 60, 3


def directed_miserables():
    """Les Miserables, each tie heard one way or both by a coin, and both ways where a group would be left unheard."""
    ties, rng = nx.les_miserables_graph(), np.random.default_rng(0)
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(ties))
    for one, other in sorted(map(sorted, ties.edges)):
        which = int(rng.integers(3))
        graph.add_edges_from([(one, other)] * (which != 0) + [(other, one)] * (which != 1))
    while not nx.is_strongly_connected(graph):
        part = {name: k for k, names in enumerate(nx.strongly_connected_components(graph)) for name in names}
        graph.add_edges_from([(other, one) for one, other in list(graph.edges) if part[one] != part[other]])
    return ad.Network.from_networkx(nx.convert_node_labels_to_integers(graph))


def two_communities():
    W = np.kron(np.eye(2), (np.ones((10, 10)) - np.eye(10)) / 9)
    for one, other in ((0, 10), (10, 0)):
        W[one] *= 1 - 1e-3
        W[one, other] = 1e-3
    return ad.Network.from_weights(W)


NETWORKS = {
    "karate club": lambda: ad.Network.from_networkx(nx.Graph(nx.karate_club_graph().edges)).reindex(range(34)),
    "Les Miserables, directed": directed_miserables,
    "complete": lambda: ad.networks.complete(20),
    "star": lambda: ad.networks.central_client(20),
    "two communities": two_communities,
}


class Case:
    """A network, data with a fifth of the clients corrupted, a fit in rounds with soft weights, and the reports."""

    def __init__(self, name):
        self.net = NETWORKS[name]()
        self.M = self.net.n_clients
        self.sim = ad.simulate.paper_linear(0.2, "BF", seed=3, M=self.M, n=60, p=P)
        self.hand = Raw.of(self.sim, self.net)
        self.omega = np.where(self.sim.abnormal, 0.02, np.linspace(0.8, 1.0, self.M))
        data = ad.ClientData.from_arrays(self.sim.X, self.sim.y, self.sim.client)
        self.model = ad.DecentralizedGLM(data, self.net)
        self.res = self.model.fit(ad.DFL(weights=self.omega), step=STEP, rounds=ROUNDS, keep_data=True)
        self.network = ad.check_network(self.net)
        self.report = self.res.check(self.sim.abnormal, self.sim.theta0)
        self.rates, self.advice = self.model.rates(self.res), self.model.advise(method=ad.DFL(weights=self.omega))


@pytest.fixture(scope="module", params=NETWORKS)
def case(request):
    return Case(request.param)


def test_the_network(case):
    hand, page = case.hand, case.network
    moduli = np.sort(np.abs(np.linalg.eigvals(hand.W)))
    pi = hand.influence / case.M
    second = 0.0 if moduli[-2] < 1e-7 else moduli[-2]
    wanted = {
        "SE(W)": hand.se,
        "mixing": hand.mixing,
        "rho": hand.rho,
        "second eigenvalue modulus": second,
        "spectral gap": 1 - second,
        "mixing time": 0.0 if second == 0.0 else np.inf if second > 1 - 1e-12 else -1 / math.log(second),
        "effective clients": 1 / np.sum(pi**2),
        "clients with influence zero": np.sum(pi < 1e-14),
    }
    for name, value in wanted.items():
        assert_allclose(page[name].value, value, rtol=1e-7, atol=1e-10, err_msg=name)
    assert_allclose(case.net.influence, pi, atol=1e-12)
    assert page["rho"].status == ("holds" if hand.rho < 1 else "fails")
    # The network is a page of its own, and one line of the fit's: they say the same.
    assert (page["rho"].value, page["rho"].status) == (case.report["rho"].value, case.report["rho"].status)


def test_repairs_of_the_network(case):
    W, M = case.hand.W, case.M
    table = case.network.tables["Repairs"].replace("-", np.nan)
    degree = ((W + W.T) > 0).sum(axis=1) - (np.diag(W) > 0)
    metropolis = np.where((W + W.T) > 0, 1 / (1 + np.maximum.outer(degree, degree)), 0.0)
    np.fill_diagonal(metropolis, 0.0)
    np.fill_diagonal(metropolis, 1 - metropolis.sum(axis=1))
    for name, repaired in (
        ("as is", W),
        ("lazy(0.5)", (np.eye(M) + W) / 2),
        ("gossip(2)", W @ W),
        ("metropolis()", metropolis),
    ):
        if name not in table.index or (name == "metropolis()" and not np.array_equal(W > 0, W.T > 0)):
            continue
        hand = Raw(case.hand.rows, "gaussian", repaired, case.hand.bad, case.hand.theta0)
        assert_allclose(
            [table.loc[name, "rho"], table.loc[name, "SE(W)"]], [hand.rho, hand.se], atol=1e-9, err_msg=name
        )


def test_conditions_and_theorem_1(case):
    hand, report, theta = case.hand, case.report, case.res.params.to_numpy()
    share, N, L, lam = hand.varrho, hand.sizes.sum(), hand.L_max, hand.lambda_min(theta)
    flat = hand.flat_mean
    wanted = {
        "varrho": share,
        "lambda_min": lam,
        "L_max": L,
        "flat_min": np.linalg.norm(hand.flat, axis=1).min(),
        "V": hand.pooled_variance,
        "||flat_A|| B": hand.pooled_bias**2,
        "MSE": hand.pooled_variance + hand.pooled_bias**2,
        "varrho^2": share**2,
    }
    for name, value in wanted.items():
        assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
    bounds = {"V": L**2 / (((1 - share) * lam) ** 2 * N), "||flat_A|| B": (share * flat / L) ** 2}
    for name, value in bounds.items():
        assert_allclose(float(report[name].bound.split()[-1]), value, rtol=1e-3, err_msg=name)


def test_proposition_1_and_theorem_2(case):
    hand, report, theta = case.hand, case.report, case.res.params.to_numpy()
    names = ["rate", "floor", "distance from theta_0", "Err1", "Err2", "Err3", "Err1 + Err2 + Err3", "limit"]
    if hand.rho >= 1:
        assert {report[name].status for name in names} == {"unknown"}
        assert {report[name].value for name in names} == {None}
        assert np.isnan(case.rates.bound)
        return
    share, N, n, L, lam = hand.varrho, hand.sizes.sum(), 60, hand.L_max, hand.lambda_min(theta)
    good, bad, delta = hand.of_weights(case.omega)
    pull, away = share * hand.flat_mean, np.linalg.norm(theta - hand.theta0)
    inside = 1 / ((1 - share) * math.sqrt(N)) + pull + math.sqrt(pull / N) + 1 / N
    err1 = (1 - STEP * good * lam / 8) ** ROUNDS * np.linalg.norm(theta)
    err2 = (STEP * L + hand.se) / ((1 - hand.rho) * lam * good)
    err2 *= math.sqrt(math.log(n) / n) * L + math.sqrt(share) * hand.flat_rms
    err3 = (share * hand.flat_rms * bad + delta * (math.sqrt(math.log(N) / N) + L * away)) / (good * lam)
    first = (STEP + hand.se) * (n**-0.5 + share**0.5) / good
    values = [
        1 - STEP * (1 - share) * lam / 8,
        (STEP + hand.se) / ((1 - hand.rho) * (1 - share) * lam),
        (STEP + hand.se) / ((1 - hand.rho) * (1 - share)) + inside / math.sqrt(0.05),
        err1,
        err2,
        err3,
        err1 + err2 + err3,
        first + (share * bad + delta / math.sqrt(N)) / good,
    ]
    for name, value in zip(names, values, strict=True):
        assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
    # The rates take the down-weighted clients as abnormal: here these are the abnormal ones.
    assert_allclose(case.rates.bound, 1 - STEP * good * lam / 8)


def test_rates_and_advice(case):
    """The run's factor by dense eigenvalues, curvatures client by client, and the network's own solution."""
    hand = case.hand
    H = hand.hessians(np.zeros(P))
    own = linalg.block_diag(*[np.eye(P) - STEP * w * h for w, h in zip(case.omega, H, strict=True)])
    values = np.abs(np.linalg.eigvals(own @ np.kron(hand.W, np.eye(P))))
    assert_allclose(case.rates.exact, values.max(), rtol=1e-8)
    advice, curvature = case.advice, [w * np.linalg.eigvalsh(h)[-1] for w, h in zip(case.omega, H, strict=True)]
    assert_allclose(advice["safe step"].value, 1 / max(curvature), rtol=1e-8)
    moduli = np.sort(np.abs(np.linalg.eigvals(hand.W)))
    assert_allclose(advice["1 - |lambda_2(W)|"].value, 1 - moduli[-2], atol=1e-7)
    # Clients count by trust and size, or by these and their influence; in standard errors of the second.
    counted, heard = hand.solution(case.omega), hand.solution(case.omega * hand.influence)
    v = case.omega * hand.influence / case.M
    bread = np.linalg.inv(np.tensordot(v, H, 1))
    meat = sum((v[m] / 60) ** 2 * s.T @ s for m, s in enumerate(hand.scores(heard)))
    se = np.sqrt(np.diag(bread @ meat @ bread))
    assert_allclose(advice["imbalance"].value, np.max(np.abs(counted - heard) / se), rtol=0.02, atol=1e-8)


def test_pages_do_not_contradict_one_another(case):
    page, report = str(case.network), str(case.report)
    rho = case.hand.rho
    assert ("Condition 5 fails" in report) == (rho >= 1)
    # Advice is for what can be improved, and never a repair that does nothing for rho.
    best = case.network.tables["Repairs"]["rho"].replace("-", np.nan).dropna().astype(float)
    if "The single change that lowers rho most" in page:
        named = page.split("lowers rho most is net.")[1].split(", from")[0].replace("\n  ", "")
        assert best[named] <= best.min() + 1e-12
        assert best[named] < best["as is"]
    else:
        assert best["as is"] <= best.min() + 1e-12
    if case.advice["imbalance"].status == "holds":
        assert "moves the estimate" not in str(case.advice)
    for line in report.splitlines():
        assert "fails" not in line or line.startswith(("Condition 5", "-")) or "Condition 5" in report


def test_factors_close_to_one_read_the_same_everywhere():
    """Of two communities with a weak link rho is 1 - 6.6e-05: in the lines, the notes, the repairs and the advice."""
    case = Case("two communities")
    assert 0.9999 < case.hand.rho < 1.0
    text = f"1 - {1 - case.hand.rho:.2g}"
    for page in (str(case.network), str(case.report)):
        assert "0.9999 " not in page
        assert text in page
    assert str(case.network).count(text) >= 3


def test_advice_says_what_it_is_about_and_names_repairs_that_help(case):
    """The title names the method; of a network that is the bottleneck, the best change, or that there is none."""
    page = case.advice
    assert page.title == "Advice on step and rounds of weighted DFL"
    words = " ".join(page.advice)
    table = page.tables["What a repair would change (exchanges: rounds times combine steps)"]
    networks = table["exchanges"][table.index.str.startswith("net.")].dropna()
    if page.bottleneck != "network":
        assert "bottleneck: " not in words or "The network is the bottleneck" not in words
    elif networks.min() < page.rounds:
        assert f"{networks.idxmin()} needs the fewest exchanges of the changes of the network" in words
    else:
        assert "No change of weights in the table needs fewer exchanges" in words


def test_the_summary_prints_rho_as_the_reports_do(case):
    line = next(line for line in str(case.res.summary()).splitlines() if line.startswith("Condition 5: rho"))
    page = next(line for line in str(case.report).splitlines() if line.startswith("Condition 5: rho"))
    assert line.split("rho")[1].split("<")[0].strip() == page.split("rho")[1].split("<")[0].strip()


def test_clients_that_count_and_do_not_fit_are_named():
    """Standard DFL counts the abnormal clients: Cochran's Q is that of the others, and the summary says so."""
    case = Case("complete")
    res = case.model.fit(ad.DFL(), step=STEP, rounds=ROUNDS)
    text = " ".join(str(res.summary()).split())
    bad = np.flatnonzero(case.sim.abnormal)
    assert len(bad) == 4
    assert f"4 client(s) that count here do not fit the majority ({', '.join(map(str, bad))})" in text
    assert "do not fit the majority (" not in " ".join(str(case.res.summary()).split())
