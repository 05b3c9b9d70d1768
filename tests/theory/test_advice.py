"""Advice on step, rounds and repairs keeps its word."""

import numpy as np
import pytest
from dense_iteration import FAMILIES, NETWORKS, STEP, M, model_of, simulated
from numpy.testing import assert_allclose
from scipy import linalg

import adfl_stats as ad
from adfl_stats.theory.outlook import BIAS_SHARE

# ------------------------------------------------------------------ advice


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("network", ["circle", "erdos-renyi"])
def test_advice_keeps_its_word(family, network):
    model = model_of(simulated(family), NETWORKS[network])
    tolerance = 0.1
    advice = model.advise(tolerance)

    def error(step, rounds):
        return model.fit(ad.DFL(), step=step, rounds=int(rounds)).numerical_error["total"]

    assert error(advice.step, 2 * advice.rounds) <= BIAS_SHARE * tolerance * 1.03
    assert_allclose(error(advice.step, 2 * advice.rounds), advice.bias, rtol=0.03)
    assert error(4 * advice.step, advice.rounds) > tolerance
    # The rounds are needed, and within a factor of two they are enough.
    assert error(advice.step, advice.rounds / 2) > tolerance
    assert error(advice.step, advice.rounds) <= tolerance * (1.05 if family == "gaussian" else 3)


def test_repairs_are_what_the_repaired_network_gets():
    sim, net = simulated(covariates="heterogeneous"), NETWORKS["erdos-renyi"]
    advice = model_of(sim, net).advise()
    (table,) = advice.tables.values()
    expected = {
        "net.metropolis()": (net.metropolis(), ad.DFL(), 1),
        "net.lazy(0.5)": (net.lazy(0.5), ad.DFL(), 1),
        "net.gossip(2)": (net.gossip(2), ad.DFL(), 2),
        "ad.DFL(balance=True)": (net, ad.DFL(balance=True), 1),
    }
    for name, (repaired, method, exchanges) in expected.items():
        other = model_of(sim, repaired).advise(method=method)
        assert_allclose(table.loc[name, ["step", "rounds"]].to_numpy(float), [other.step, other.rounds])
        assert table.loc[name, "exchanges"] == exchanges * other.rounds
        assert table.loc[name, "saved"] == advice.rounds - exchanges * other.rounds
    assert table.loc["as it is", "imbalance"] > 0.05
    assert_allclose(table.loc[["net.metropolis()", "ad.DFL(balance=True)"], "imbalance"], 0.0, atol=1e-9)
    assert advice["imbalance"].status == "fails"
    text = str(advice).replace("\n  ", " ")
    cures = table.index[table["imbalance"] <= 0.05]
    assert {"ad.DFL(balance=True)", "net.metropolis()"} <= set(cures)
    assert f"{' or '.join(cures)} would remove that" in text
    best = table.loc[cures, "exchanges"].idxmin()
    assert f"Of the changes that remove the imbalance, {best} needs the fewest exchanges" in text
    balanced = model_of(sim, net).fit(ad.DFL(balance=True), solver="rounds")
    assert 0.5 < table.loc["fit(ad.DFL(balance=True)) in rounds", "rounds"] / balanced.rounds < 2.0


def test_repairs_that_edges_do_not_allow_say_why():
    advice = model_of(simulated(), NETWORKS["hub (periodic)"]).advise()
    (table,) = advice.tables.values()
    assert table.loc["net.balanced()", "note"] == "not possible: 2 clients listen to 1 only"
    assert table.loc["net.gossip(2)", "note"] == "not possible: it leaves 2 closed groups"
    assert table.loc["net.gossip(2)", ["step", "rounds", "exchanges"]].isna().all()


def test_cutting_the_step_is_foreseen():
    model = model_of(simulated(sizes=[50] * 40, p=5), ad.networks.directed_circle(40, 5))
    (table,) = model.advise().tables.values()
    foreseen, needed = table.loc["fit(method) in rounds", "rounds"], model.fit(ad.DFL(), solver="rounds").rounds
    assert 0.5 < foreseen / needed < 2.0


def test_advice_follows_the_method():
    sim = simulated(abnormal=0.25, corruption="BF", sizes=[60] * M)
    model = model_of(sim, NETWORKS["circle"])
    clean = 1.0 - sim.abnormal
    # Clients that pull elsewhere ask for small steps as long as they count.
    assert model.advise(method=ad.DFL(weights=clean)).step > 1.5 * model.advise().step
    adaptive = model.advise(method=ad.ADFL())
    assert_allclose(adaptive.step, model.advise().step)
    assert "known after its fit only" in str(adaptive)


def test_a_network_in_pieces_gets_no_step():
    half = np.full((6, 6), 1.0 / 6)
    with pytest.warns(ad.NetworkWarning, match="has 2 closed groups"):
        model = model_of(simulated(), ad.Network.from_weights(linalg.block_diag(half, half)))
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=50))
    assert np.isnan(rates.exact)
    assert np.isnan(rates.rounds(1e-3))
    assert "2 closed groups, which never agree" in rates.trouble
    pytest.importorskip("matplotlib").use("Agg")
    # Distances, the factor fitted to the trace and the bound; there is no exact factor to draw.
    labels = [line.get_label() for line in ad.plots.rates(rates).lines]
    assert not any("exact" in label for label in labels)
    advice = model.advise()
    assert np.isnan(advice.step)
    assert advice["closed groups"].status == "fails"
    assert "no step makes them agree" in str(advice)
