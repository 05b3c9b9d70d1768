"""The error that remains at a constant step, against stacked linear systems."""

import numpy as np
import pytest
from dense_iteration import FAMILIES, NETWORKS, OMEGA, STEP, Dense, M, model_of, simulated
from numpy.testing import assert_allclose

import adfl_stats as ad

# ------------------------------------------------------------------ the floor


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("omega", "balance"), [(None, False), (OMEGA, False), (OMEGA, True)])
def test_predicted_floor_is_the_stacked_linear_solve(network, omega, balance):
    sim, net = simulated(), NETWORKS[network]
    model = model_of(sim, net)
    rates = model.rates(model.fit(ad.DFL(weights=omega, balance=balance), step=STEP, rounds=800))
    dense = Dense(sim, net, STEP, omega, balance)
    plain = Dense(sim, NETWORKS["circle"], STEP, omega).solution
    centre = dense.limit.mean(axis=0)
    expected = {
        "imbalance": np.linalg.norm(dense.solution - plain),
        "bias": np.linalg.norm(centre - dense.solution),
        "consensus": np.linalg.norm(dense.limit - centre) / np.sqrt(M),
        "total": np.linalg.norm(dense.limit - plain) / np.sqrt(M),
    }
    for name, value in expected.items():
        assert_allclose(rates.floor.loc[name, ["predicted", "observed"]].to_numpy(float), value, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_predicted_floor_is_close_for_other_families(family):
    model = model_of(simulated(family), NETWORKS["circle"])
    floor = model.rates(model.fit(ad.DFL(), step=STEP, rounds=600)).floor
    for rows, tolerance in ((["consensus", "total"], 0.02), (["bias"], 0.25)):
        assert_allclose(floor.loc[rows, "predicted"], floor.loc[rows, "observed"], rtol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_floor_is_proportional_to_the_step(family):
    model = model_of(simulated(family), NETWORKS["circle"])
    steps = np.array([0.005, 0.01, 0.02, 0.04])
    for name in ("bias", "consensus", "total"):
        floors = [model.rates(model.fit(ad.DFL(), step=s, rounds=2)).floor.loc[name, "predicted"] for s in steps]
        assert abs(np.polyfit(np.log(steps), np.log(floors), 1)[0] - 1.0) < 0.05


def test_floor_grows_with_the_imbalance_of_the_network():
    sim = simulated()
    circle = NETWORKS["circle"].W.toarray()
    star = np.zeros((M, M))
    star[:, 0] = 1.0
    found = []
    for share in (0.0, 0.1, 0.3, 0.6):
        net = ad.Network.from_weights((1 - share) * circle + share * star)
        model = model_of(sim, net)
        rates = model.rates(model.fit(ad.DFL(), step=0.01, rounds=2))
        found.append((net.se, *rates.floor.loc[["imbalance", "total"], "predicted"]))
    se, imbalance, total = np.array(found).T
    assert (np.diff(se) > 0).all()
    assert imbalance[0] < 1e-12
    assert (np.diff(imbalance) > 0).all()
    assert (np.diff(total) > 0).all()


def test_floor_is_proportional_to_the_imbalance():
    """Clients hear a hub with some weight: SE(W) is proportional to it, and so is what runs end with (slope 1)."""
    sim = simulated(sizes=[60] * M)
    circle, star = NETWORKS["circle"].W.toarray(), np.zeros((M, M))
    star[:, 0] = 1.0
    pooled = np.linalg.lstsq(sim.X, sim.y)[0]
    found = []
    for share in (0.01, 0.02, 0.04, 0.08):
        net = ad.Network.from_weights((1 - share) * circle + share * star)
        res = model_of(sim, net).fit(ad.DFL(init=pooled), step=1e-3, rounds=8000)
        found.append((net.se, np.linalg.norm(res.params - pooled)))
    se, floor = np.array(found).T
    assert abs(np.polyfit(np.log(se), np.log(floor), 1)[0] - 1.0) < 0.15
