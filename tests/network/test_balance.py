"""What balanced steps win back on unbalanced networks, in a short form of benchmarks/balance.py."""

import importlib.util
from pathlib import Path

import pytest

import adfl_stats as ad

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "balance.py"
REPLICATES = 16


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("balance", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["undirected", "directed", "hub"])
def test_balanced_steps_are_as_good_as_pooling(script, name):
    """Plain DFL has the efficiency 1 / (M sum pi^2); balanced steps have nearly 1, whatever SE(W) is."""
    net = {
        "undirected": ad.networks.erdos_renyi(60, 0.1, seed=2),
        "directed": ad.networks.erdos_renyi(60, 0.1, seed=2, directed=True),
        "hub": script.circle_with_hub(60),
    }[name]
    errors = script.squared_errors(net, REPLICATES, 0.005, n=40, p=20, names=("plain", "balanced"))
    predicted = net.effective_clients / net.n_clients
    assert predicted < 0.92
    plain, plain_error = script.efficiency(errors, "plain")
    balanced, balanced_error = script.efficiency(errors, "balanced")
    # Clients see different designs, so that pi alone predicts to a few per cent only.
    assert abs(plain - predicted) < 4 * plain_error + 0.05
    assert max(plain_error, balanced_error) < 0.06
    assert balanced >= 0.95
    assert balanced > plain


def test_circle_with_a_hub(script):
    """By hand: 97 clients give the hub 1/3, and the two before it on the circle, who hear it anyway, 1/2."""
    W = script.circle_with_hub().W.toarray()
    assert W[:, 0].sum() == pytest.approx(97 / 3 + 2 / 2)
    assert (W > 0).sum(axis=1).tolist() == [99, *[3] * 97, 2, 2]
