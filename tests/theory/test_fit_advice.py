"""Advice of `Results.check` says what this fit lacks: constructed fits, each with one thing wrong."""

import numpy as np
import pytest

import adfl_stats as ad

M, N, P = 16, 60, 4


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(0.25, "BF", seed=7, M=M, n=N, p=P)


def fitted(X, y, client, net, method=None, **words):
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), net).fit(method, **words)


def advice(res, *given):
    return res.check(*given).advice


def about(entries, place):
    return [entry for entry in entries if entry.startswith(place)]


def test_nothing_to_do_is_no_advice(sim):
    res = fitted(sim.X, sim.y, sim.client, ad.networks.directed_circle(M, 5))
    assert res.converged
    assert advice(res, sim.abnormal, sim.theta0) == ()


def test_a_majority_of_abnormal_clients(sim):
    res = fitted(sim.X, sim.y, sim.client, ad.networks.directed_circle(M, 5))
    assert about(advice(res, range(7), sim.theta0), "Section 3.1") == []
    (entry,) = about(advice(res, range(8), sim.theta0), "Section 3.1")
    assert "8 of 16 clients are abnormal" in entry


@pytest.mark.parametrize(("kind", "words"), [
    ("few", "1 client(s) (3) has fewer rows (at most 2) than the 4 columns of X; merge with other clients"),
    ("collinear", "1 client(s) (3) has enough rows but rank 3 of 4; drop collinear columns"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*Condition 3:adfl_stats.ConditionWarning")
def test_rank_deficient_clients_by_cause(sim, kind, words):
    X, client = sim.X.copy(), np.asarray(sim.client)
    rows = np.ones(len(X), dtype=bool)
    if kind == "few":
        rows[np.flatnonzero(client == 3)[2:]] = False
    else:
        X[client == 3, 3] = X[client == 3, 2]
    res = fitted(X[rows], sim.y[rows], client[rows], ad.networks.directed_circle(M, 5))
    (entry,) = about(advice(res, sim.abnormal, sim.theta0), "Condition 3")
    assert words in entry
    pooled = X[rows].T @ X[rows] / rows.sum()
    # All clients count in the pooled curvature but the down-weighted ones: of the size of the Gram matrix's smallest.
    value = float(entry.rsplit(" ", 1)[1].rstrip("."))
    assert 0.5 < value / np.linalg.eigvalsh(pooled)[0] < 2.0


def test_condition_5_has_the_repair_of_this_network(sim):
    net = ad.networks.central_client(M)
    res = fitted(sim.X, sim.y, sim.client, net, ad.ADFL(balance=True))
    entries = advice(res, sim.abnormal, sim.theta0)
    fails, fine = entries[:2]
    W = net.metropolis().W.toarray()
    repaired = np.linalg.norm(W.T @ (np.eye(M) - 1.0 / M) @ W, 2)
    assert f"net.metropolis(), from 4.615 to {repaired:.4g}" in fails
    assert "sufficient, not necessary: the numerical error of this fit is" in fine
    # Steps are balanced: nothing is said of the efficiency that SE(W) would cost.
    assert about(entries, "Imbalance") == about(entries, "Numerical error") == []
    circle = fitted(sim.X, sim.y, sim.client, ad.networks.directed_circle(M, 5))
    assert about(advice(circle, sim.abnormal, sim.theta0), "Condition 5") == []


def test_the_efficiency_that_imbalance_costs(sim):
    net = ad.networks.central_client(M)
    # The centre has half of the influence, the others share the rest: 1 / sum pi^2 = 1 / (1/4 + 1/60).
    lost = 1.0 - 1.0 / (0.25 + 0.25 / 15) / M
    res = fitted(sim.X, sim.y, sim.client, net, ad.ADFL(), solver="limit")
    (entry,) = [entry for entry in advice(res, sim.abnormal) if "SE(W) =" in entry and "costs" in entry]
    assert f"costs about {lost:.1%} of efficiency" in entry


def test_the_larger_part_of_the_numerical_error(sim):
    net = ad.networks.directed_circle(M, 5)
    short = fitted(sim.X, sim.y, sim.client, net, ad.DFL(), step=0.05, rounds=3)
    long = fitted(sim.X, sim.y, sim.client, net, ad.DFL(), step=0.05, rounds=3000)
    with pytest.warns(ad.ConvergenceWarning):
        limit = fitted(sim.X, sim.y, sim.client, net, ad.DFL(), step=0.05, solver="limit")
    for res, words in (
        (short, "Optimisation is the larger part: run more rounds"),
        (long, "Consensus is the larger part: use a smaller step"),
        (limit, "The limit was solved for: only a smaller step reduces it"),
    ):
        (entry,) = about(advice(res, sim.abnormal, sim.theta0), "Numerical error")
        assert words in entry
        assert f"it is {res.numerical_error['total']:.3g} standard errors" in entry


def test_abnormal_clients_that_keep_their_weight(sim):
    net = ad.networks.directed_circle(M, 5)
    res = fitted(sim.X, sim.y, sim.client, net, ad.DFL())
    (entry,) = about(advice(res, sim.abnormal, sim.theta0), "Condition 6")
    beyond = int((res.clients()["p_value"][~np.asarray(sim.abnormal, bool)] < 0.05).sum())
    assert f"{beyond} of the 12 clients taken as normal" in entry
    assert "4 abnormal client(s) keep their weight and shift the estimate" in entry
    adaptive = fitted(sim.X, sim.y, sim.client, net)
    assert about(advice(adaptive, sim.abnormal, sim.theta0), "Condition 6") == []


def test_hidden_clients_are_named_with_their_weight(sim):
    res = fitted(sim.X, sim.y, sim.client, ad.networks.directed_circle(M, 5))
    table = res.clients()
    normal = ~np.asarray(sim.abnormal, bool)
    hidden = table.index[normal & (table["p_value"] > 0.05)][0]
    (entry,) = about(advice(res, [hidden, *sim.abnormal_labels], sim.theta0), "Condition 6")
    assert f"bias is not distinguished from noise on 1 abnormal client(s) ({hidden}); 1 of them keep weight" in entry


def test_lambda_that_the_start_allows(sim):
    net, far = ad.networks.directed_circle(M, 5), np.tile(sim.theta0 + 2.0, (M, 1))

    def entries(lam):
        res = fitted(
            sim.X, sim.y, sim.client, net, ad.ADFL(lam=lam, measure="norm", init=far, stages=1), step=0.05, rounds=50
        )
        return about(advice(res, sim.abnormal, sim.theta0), "Condition 7")

    # The start is 2 away in each of the four coordinates: distance 4, so that lambda has to be below 1 / 4.
    (entry,) = entries(1.0)
    assert "is 4, above 1" in entry
    assert "lambda < 0.25;" in entry
    assert entries(0.2) == []


def test_no_step_is_advised_where_none_helps(sim):
    """Two groups that never agree: the report says so once, and does not ask for a smaller step as well."""
    half = np.full((8, 8), 1.0 / 8)
    with pytest.warns(ad.NetworkWarning):
        res = fitted(
            sim.X, sim.y, sim.client, ad.Network.from_weights(np.kron(np.eye(2), half)), ad.DFL(), step=0.1, rounds=50
        )
    entries = advice(res, sim.abnormal, sim.theta0)
    assert about(entries, "Numerical error") == []
    assert "2 closed groups" in about(entries, "Condition 5")[0]
    # On a network that agrees in one round, none mixes faster.
    res = fitted(sim.X, sim.y, sim.client, ad.networks.complete(M), ad.DFL(), step=0.3, rounds=200)
    (entry,) = about(advice(res, sim.abnormal, sim.theta0), "Numerical error")
    assert "use a smaller step; model.advise()" in entry


def test_notes_that_lines_share_are_printed_once(sim):
    res = fitted(sim.X, sim.y, sim.client, ad.networks.central_client(M), ad.DFL(), step=0.05, rounds=50)
    text = str(res.check())
    # Proposition 1 and Theorem 2 are next to one another; Theorem 3 has another reason.
    assert text.count("The paper assumes Condition 5 here, which fails.") == 1
    # Every line keeps its name; long ones are wrapped.
    for name in ("rate", "floor", "Err1", "Err2", "Err3", "oracle (1)", "lambda", "omega_A", "start: centre"):
        assert f": {name} " in text


def test_a_rho_just_below_one_does_not_look_like_one():
    W = np.array([[1 - 1e-5, 1e-5], [1e-5, 1 - 1e-5]])
    text = str(ad.check_network(ad.Network.from_weights(W)))
    assert "Condition 5: rho 1 - 4e-05 < 1 holds" in " ".join(text.split())
