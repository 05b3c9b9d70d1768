"""Condition 5: one answer in every report, also where the norm cannot be resolved."""

import re

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.cli import main as cli
from adfl_stats.network import eigenvalues, spectrum
from adfl_stats.theory.condition_5 import condition_5


def skewed(M=12):
    """A circle on which client 0 hears two more: strongly connected, not doubly stochastic, rho below 1.5."""
    A = sum(np.roll(np.eye(M), k, axis=1) for k in range(3))
    A[0, 5:7] = 1.0
    return ad.Network.from_adjacency(A)


def answers(net, tmp_path, capsys):
    """What the four reports say of Condition 5: check_network, res.check, res.summary, the command line."""
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=net.n_clients, n=30, p=2)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, net).fit(ad.DFL(), step=0.1, rounds=20)
    path = tmp_path / "net.npy"
    np.save(path, net.W.toarray())
    status = cli.main(["check-network", str(path), "--weights"])
    printed = capsys.readouterr().out
    text = res.summary().as_text()
    return {
        "check_network": ad.check_network(net)["rho"].status,
        "check": res.check()["rho"].status,
        "summary": re.search(r"Condition 5: rho .*?(\w+)$", text, re.M).group(1),
        "command line": re.search(r"Condition 5: rho .*?(\w+)$", printed, re.M).group(1),
        "exit": "holds" if status == 0 else "not",
        "note": re.search(r"Condition 5\s+(fails|is\s+not\s+decided)", text),
    }


@pytest.mark.parametrize(
    ("estimate", "wanted"),
    [
        (eigenvalues.ExtremeEigenvalue(0.3), "holds"),
        (eigenvalues.ExtremeEigenvalue(0.3, "it did not settle"), "unknown"),
        (eigenvalues.ExtremeEigenvalue(1.5), "fails"),
        (eigenvalues.ExtremeEigenvalue(1.5, "it did not settle"), "fails"),
        (eigenvalues.ExtremeEigenvalue(1.0 - 1e-14, "it did not settle"), "fails"),
    ],
)
def test_all_reports_give_the_same_answer(monkeypatch, tmp_path, capsys, estimate, wanted):
    monkeypatch.setattr(spectrum, "mixing_norm", lambda *_, **__: estimate)
    net = skewed()
    assert not net.is_doubly_stochastic
    said = answers(net, tmp_path, capsys)
    assert {said[name] for name in ("check_network", "check", "summary", "command line")} == {wanted}
    assert condition_5(net).status == wanted
    assert said["exit"] == ("holds" if wanted == "holds" else "not")
    assert (said["note"] is None) == (wanted == "holds")


def test_where_the_iteration_itself_gives_up(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(spectrum, "DENSE_MIXING", 2)
    monkeypatch.setattr(eigenvalues, "budget", lambda *_: 3)
    net = ad.networks.fixed_degree(60, 20, seed=1)
    exact = float(np.linalg.norm(net.W.toarray() - net.W.toarray().mean(axis=0), 2) ** 2)
    found = condition_5(net)
    assert found.trouble
    assert found.mixing < exact < 1 - net.se
    assert found.status == "unknown"
    assert found.rho_text.startswith(">= ")
    said = answers(net, tmp_path, capsys)
    assert {said[name] for name in ("check_network", "check", "summary", "command line")} == {"unknown"}


def test_the_graph_decides_for_doubly_stochastic_weights(monkeypatch):
    """Also where the norm is not resolved: the even ring fails, the circle of in-degree 2 holds."""
    trouble = eigenvalues.ExtremeEigenvalue(0.9, "it did not settle")
    monkeypatch.setattr(spectrum, "mixing_norm", lambda *_, **__: trouble)
    ring = ad.Network.from_adjacency(np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), -1, axis=1))
    assert condition_5(ring).status == "fails"
    assert condition_5(ad.networks.directed_circle(6, 2)).status == "holds"


def test_advice_on_a_repair_that_is_not_resolved(monkeypatch):
    """A repair whose rho is a lower bound is not said to satisfy the condition."""
    monkeypatch.setattr(
        spectrum, "mixing_norm", lambda *_, **__: eigenvalues.ExtremeEigenvalue(0.5, "it did not settle")
    )
    advice = " ".join(ad.check_network(ad.networks.central_client(8)).advice)
    assert "not resolved" in advice
    assert "Condition 5 holds then." not in advice
