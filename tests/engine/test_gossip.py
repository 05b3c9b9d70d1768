"""A network without a centre: sums, maxima and rows by neighbours, to a stated accuracy, and whole fits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.data.whole import ROW, SUM
from adfl_stats.engine.gossip import Neighbours
from adfl_stats.engine.ledger import MAXIMUM

M, P = 20, 3
CIRCLE = ad.networks.directed_circle(M, 5)


def by_hand(network, values, rounds):
    """Push-sum, message by message: each client's ratio times M."""
    numbers, weights = values.astype(float).copy(), np.ones(len(values))
    listeners = [np.flatnonzero((network.W[:, [m]].toarray()[:, 0] > 0) | (np.arange(M) == m)) for m in range(M)]
    for _ in range(rounds):
        sent, weight = np.zeros_like(numbers), np.zeros_like(weights)
        for m, those in enumerate(listeners):
            sent[those] += numbers[m] / len(those)
            weight[those] += weights[m] / len(those)
        numbers, weights = sent, weight
    return len(values) * numbers / weights[:, None]


@pytest.mark.parametrize("network", [CIRCLE, ad.networks.erdos_renyi(M, 0.4, seed=3)], ids=["directed", "social"])
@pytest.mark.parametrize("accuracy", [1e-2, 1e-6])
def test_a_sum_is_that_of_push_sum_to_the_stated_accuracy_and_no_earlier(network, accuracy):
    place, values = Neighbours(network, accuracy), np.random.default_rng(1).normal(size=(M, 4))
    found, bound = place.total(lambda at: values[at].sum(axis=0)), accuracy * np.abs(values).sum(axis=0)
    rounds = place.price.rounds
    each = by_hand(network, values, rounds)
    # On a circle two clients may be as far off, to either side.
    away = np.abs(each - each.mean(axis=0))
    assert_allclose(np.abs(found - each.mean(axis=0)), away.max(axis=0), rtol=1e-5)
    assert_allclose(np.abs(each - found).min(axis=0), 0.0, atol=1e-12)
    assert (np.abs(each - values.sum(axis=0)) <= bound).all()
    # Farthest off are the numbers of one client alone; for these one round less is not enough.
    before, after = (np.abs(by_hand(network, np.eye(M), rounds - k) - 1.0).max() for k in (1, 0))
    assert after <= accuracy < before
    assert place.price.of(SUM, 1, 4) == (rounds, 5 * rounds)


def test_maxima_and_rows_take_as_many_rounds_as_the_longest_path():
    """On this circle a client hears the five before it: 19 steps back are four hops."""
    place, values = Neighbours(CIRCLE, 1e-6), np.arange(M * 2.0).reshape(M, 2)
    assert place.price.diameter == 4
    assert_array_equal(place.largest(values), [38.0, 39.0])
    assert place.price.of(MAXIMUM, 1, 2) == (4, 8)
    assert_array_equal(place.gather(values), values)
    assert place.price.of(ROW, 1, 2) == (4, 2 * M)


def model_of(family):
    sim = ad.simulate.glm_design(family, M=M, n=60, p=P, seed=1)
    y, bad = sim.y.copy(), sim.client < 3
    y[bad] = -y[bad] if family == "gaussian" else 1.0 - y[bad]
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, y, sim.client), CIRCLE, family)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_the_default_fit_needs_no_centre(family):
    model = model_of(family)
    central, gossip = model.fit(), model.fit(transport=ad.Gossip())
    assert ((gossip.params - central.params).abs() <= 0.05 * central.bse).all()
    assert_allclose(gossip.bse, central.bse, rtol=1e-3)
    flags = [ad.screen(res).to_frame().sort_index()["flagged"] for res in (central, gossip)]
    assert flags[0].equals(flags[1])
    assert flags[0].loc[:2].all()
    table = gossip.communication().to_frame()
    elsewhere = table[table["to"] != "each neighbour"]
    assert elsewhere["phase"].iloc[0] == "model"
    rounds = table[table["to"] == "each neighbour"]
    assert (
        rounds[["gossip", "gossip_numbers"]].to_numpy().tolist() == rounds[["messages", "numbers"]].to_numpy().tolist()
    )
    assert (elsewhere["gossip"] > elsewhere["messages"]).all()
    assert "Without a centre: " in str(gossip.communication())
    assert max(map(len, str(gossip.communication()).split("\n"))) <= 78
    assert "Without a centre: " not in str(central.communication())


def test_what_gossip_cannot_serve_is_refused():
    model = model_of("gaussian")
    line = ad.Network.from_edges([(0, 0), *((k, k + 1) for k in range(M - 1))])
    with pytest.raises(ValueError, match=r"needs a path from every client to every other; 19 do not reach all: 1, 2"):
        Neighbours(line, 1e-6)
    with pytest.raises(ValueError, match=r"accuracy"):
        ad.Gossip(accuracy=0.0)
    dropout = ad.DecentralizedGLM(model.data, ad.networks.dropout(CIRCLE, 0.3, seed=1))
    with pytest.raises(ValueError, match=r"ad.Gossip\(\) needs one fixed network"):
        dropout.fit(ad.DFL(), rounds=3, transport=ad.Gossip())
    with pytest.raises(TypeError, match=r"transport is 'gossip'; pass ad.MPI\(\), ad.Gossip\(\), or nothing"):
        model.fit(transport="gossip")
