"""Repairs of a network, and the advice that names the best."""

import math

import numpy as np
import pandas as pd
import pytest
from known_networks import karate, moduli

import adfl_stats as ad
from adfl_stats.network.network import Network
from adfl_stats.theory import network_repairs

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
