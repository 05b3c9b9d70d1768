"""Networks that change with the round: the schedules themselves, and fits on them against a loop in NumPy."""

import itertools
import pickle

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.network.schedule import averaged_influence

M, P, STEP, ROUNDS = 8, 3, 0.1, 60


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(abnormal=0, corruption=None, seed=4, M=M, n=30, p=P)


@pytest.fixture(scope="module")
def data(sim):
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


@pytest.fixture(scope="module")
def nets():
    return [ad.networks.directed_circle(M, 3), ad.networks.central_client(M), ad.networks.fixed_degree(M, 4, seed=3)]


def flaky(probability=0.4, seed=7, every=1, labels=None):
    return ad.networks.dropout(ad.networks.directed_circle(M, 3, labels=labels), probability, seed, every)


def gradients(sim, theta):
    """(M, P): each client's mean gradient of (y - x'theta)^2 / 2 at its own row."""
    own = [sim.client == m for m in range(M)]
    return np.stack([sim.X[k].T @ (sim.X[k] @ row - sim.y[k]) / k.sum() for k, row in zip(own, theta, strict=True)])


def loop(sim, weights_of, rounds=ROUNDS, combine=None):
    """Equation (3.1) with W and the clients that step given by the round; dense algebra."""
    theta = np.zeros((M, P))
    for t in range(rounds):
        W, active = weights_of(t)
        at = W @ theta if combine is None else combine(W, theta)
        theta = np.where(active[:, None], at - STEP * gradients(sim, at), theta)
    return theta


def without(A, out):
    """Weights among those present, from an adjacency matrix: plain means; who is out or hears nobody keeps its own."""
    A = A * ~out[None, :] * ~out[:, None]
    alone = A.sum(axis=1) == 0
    A = A + np.diag(alone.astype(float))
    return A / A.sum(axis=1, keepdims=True)


ALL = np.ones(M, dtype=bool)


# ------------------------------------------------------------------ schedules


def test_turns(nets):
    turns = ad.networks.schedule(nets, every=4)
    assert [turns.at(t).network for t in (0, 3, 4, 11, 12)] == [nets[k] for k in (0, 0, 1, 2, 0)]
    assert [turns.at(t).rounds for t in (0, 3, 4, 11)] == [4, 1, 4, 1]
    assert turns.at(5).active is None
    assert turns.networks == tuple(nets)
    assert "3 networks, every 4 rounds" in repr(turns)


def test_turns_match_labels():
    a = ad.networks.directed_circle(3, 2, labels=["x", "y", "z"])
    b = ad.networks.central_client(3, labels=["z", "x", "y"])
    turns = ad.networks.schedule([a, b])
    assert turns.at(1).network.labels.tolist() == ["x", "y", "z"]
    assert turns.at(1).network.in_degree["z"] == 2
    assert turns.reindex(["z", "y", "x"]).at(1).network.in_degree.tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ad.networks.schedule([]), TypeError, "one or more Network objects; found none"),
        (lambda: ad.networks.schedule([np.eye(3)]), TypeError, "found .ndarray"),
        (lambda: ad.networks.schedule(ad.networks.complete(3)), TypeError, "give a list of networks"),
        (
            lambda: ad.networks.schedule([ad.networks.complete(3), ad.networks.complete(4)]),
            ValueError,
            r"same clients; those of networks\[1\] differ",
        ),
        (lambda: ad.networks.schedule([ad.networks.complete(3)], every=0), ValueError, "every"),
        (lambda: ad.networks.dropout(np.eye(3), 0.1), TypeError, "network is a ndarray"),
        (lambda: ad.networks.dropout(ad.networks.complete(3), 1.0), ValueError, "probability"),
        (lambda: ad.networks.dropout(ad.networks.complete(3), 0.1, seed=-1), ValueError, "seed"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_dropout_renormalises_over_those_present():
    A = np.roll(np.eye(M), 1, axis=1) + np.roll(np.eye(M), 2, axis=1) + np.diag(np.arange(M) % 2)
    schedule = ad.networks.dropout(ad.Network.from_adjacency(A), 0.6, seed=3)
    seen = set()
    for t in range(40):
        network, rounds, active = schedule.at(t)
        assert rounds == 1
        np.testing.assert_allclose(network.W.toarray(), without(A, ~active), rtol=1e-15)
        network.W.check_format()
        seen.add(tuple(active))
    assert len(seen) > 30


def test_dropout_is_drawn_by_seed_round_and_label():
    base = flaky(0.3, every=3)
    masks = np.array([base.at(t).active for t in range(3000)])
    assert abs(masks.mean() - 0.7) < 0.02
    assert (masks[0::3] == masks[1::3]).all()
    assert (masks[0::3] == masks[2::3]).all()
    assert [base.at(t).rounds for t in range(4)] == [3, 2, 1, 3]
    correlation = np.corrcoef(masks[::3].T) - np.eye(M)
    assert np.abs(correlation).max() < 0.15
    assert not (np.array([flaky(0.3, seed=8, every=3).at(t).active for t in range(30)]) == masks[:30]).all()
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    np.testing.assert_array_equal(base.reindex(order).at(10).active, base.at(10).active[order])


def test_dropout_of_nobody_is_the_network():
    base = flaky(0.0)
    assert base.at(5).network is base.network
    assert base.influence is base.network.influence


def test_schedule_of_ones_own_is_reordered(nets):
    class Own(ad.networks.NetworkSchedule):
        labels = nets[0].labels

        def at(self, round):
            out = np.arange(M) == round % M
            return ad.networks.Phase(nets[round % 2], 1, ~out)

    order = np.random.default_rng(1).permutation(M)
    phase = Own().reindex(order).at(3)
    np.testing.assert_array_equal(phase.network.W.toarray(), nets[1].W.toarray()[np.ix_(order, order)])
    assert order[~phase.active].tolist() == [3]
    assert repr(Own().reindex(order)) == repr(Own()) == "Own(8 clients)"
    with pytest.raises(ValueError, match="in labels but not in the network"):
        Own().reindex([*range(1, M), "other"])
    assert Own().effective_clients > 1


# ------------------------------------------------------------------ influence


def test_influence_of_turns_is_that_of_the_cycle(nets):
    """Against the eigenvector of the product over a cycle, averaged over its rounds, by dense algebra."""
    Ws = [nets[k].W.toarray() for k in (0, 0, 1, 1, 2, 2)]
    product = np.linalg.multi_dot(Ws[::-1])
    values, vectors = np.linalg.eig(product.T)
    weight = np.real(vectors[:, np.argmax(values.real)])
    weight /= weight.sum()
    expected = np.zeros(M)
    for W in Ws[::-1]:
        expected += weight / len(Ws)
        weight = W.T @ weight
    found = ad.networks.schedule(nets, every=2).influence
    np.testing.assert_allclose(found, expected, atol=1e-11)


def test_influence_of_equal_networks_is_the_networks(nets):
    turns = ad.networks.schedule([nets[2], nets[2]])
    pd.testing.assert_series_equal(turns.influence, nets[2].influence)
    balanced = ad.networks.schedule([nets[0], ad.networks.directed_circle(M, 2)])
    assert (balanced.influence == 1 / M).all()


@pytest.mark.parametrize("loops", [False, True])
def test_influence_under_dropout_is_that_of_expected_weights(loops):
    """Against the expectation over all 2^M sets of clients present, for unequal weights."""
    rng = np.random.default_rng(5)
    n, p = 7, 0.35
    W = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.roll(np.eye(n), 1, axis=1)
    W[np.arange(n), np.arange(n)] *= loops
    W /= W.sum(axis=1, keepdims=True)
    mean = np.zeros((n, n))
    for out in itertools.product([False, True], repeat=n):
        gone = np.array(out)
        left = W * ~gone[None, :] * ~gone[:, None]
        left += np.diag((left.sum(axis=1) == 0).astype(float))
        mean += np.prod(np.where(gone, p, 1 - p)) * left / left.sum(axis=1, keepdims=True)
    values, vectors = np.linalg.eig(mean.T)
    expected = np.real(vectors[:, np.argmax(values.real)])
    found = ad.networks.dropout(ad.Network.from_weights(W), p).influence
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-9)


def test_averaged_influence_agrees_with_the_expected_one():
    schedule = ad.networks.dropout(ad.networks.fixed_degree(M, 3, seed=3), 0.3, seed=2)
    np.testing.assert_allclose(averaged_influence(schedule, 4000), schedule.influence, atol=0.01)


# ------------------------------------------------------------------ fits


def test_dfl_on_turns_is_equation_3_1(sim, data, nets):
    res = ad.DecentralizedGLM(data, ad.networks.schedule(nets, every=5)).fit(ad.DFL(), step=STEP, rounds=ROUNDS)
    expected = loop(sim, lambda t: (nets[t // 5 % 3].W.toarray(), ALL))
    np.testing.assert_allclose(res.client_params, expected, rtol=1e-12, atol=1e-14)
    assert res.rounds == ROUNDS


@pytest.mark.parametrize("every", [1, 4])
def test_dfl_under_dropout_is_equation_3_1_among_those_present(sim, data, every):
    schedule = flaky(every=every)
    A = sum(np.roll(np.eye(M), k, axis=1) for k in (1, 2, 3))

    def weights_of(t):
        active = schedule.at(t - t % every).active
        return without(A, ~active), active

    res = ad.DecentralizedGLM(data, schedule).fit(ad.DFL(), step=STEP, rounds=ROUNDS)
    np.testing.assert_allclose(res.client_params, loop(sim, weights_of), rtol=1e-12, atol=1e-14)


def test_median_under_dropout(sim, data):
    schedule = flaky()

    def medians(W, theta):
        pools = [theta[(row > 0) | (np.arange(M) == m)] for m, row in enumerate(W)]
        return np.stack([np.median(pool, axis=0) for pool in pools])

    def weights_of(t):
        network, _, active = schedule.at(t)
        return network.W.toarray(), active

    res = ad.DecentralizedGLM(data, schedule).fit(ad.Bridge("median"), step=STEP, rounds=ROUNDS)
    np.testing.assert_allclose(res.client_params, loop(sim, weights_of, combine=medians), rtol=1e-12, atol=1e-14)


def test_stages_go_on_where_the_last_one_ended(sim, data, nets):
    """With weights that do not change, several stages are one run: the round counts through."""
    schedule = ad.networks.schedule(nets, every=7)
    res = ad.DecentralizedGLM(data, schedule).fit(
        ad.ADFL(lam=0.0, refresh=10, init=np.zeros(P)), step=STEP, rounds=ROUNDS
    )
    expected = loop(sim, lambda t: (nets[t // 7 % 3].W.toarray(), ALL))
    np.testing.assert_allclose(res.client_params, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", [ad.DFL(), ad.ADFL(), ad.Bridge("median"), ad.Bridge("trimmed", b=1)], ids=str)
@pytest.mark.parametrize("settings", [{"step": STEP, "rounds": 40}, {"solver": "rounds"}], ids=["rounds", "auto"])
def test_the_same_network_in_turn_is_the_network(data, nets, method, settings):
    one = ad.DecentralizedGLM(data, nets[0]).fit(method, **settings)
    turns = ad.DecentralizedGLM(data, ad.networks.schedule([nets[0], nets[0]], every=3)).fit(method, **settings)
    np.testing.assert_array_equal(turns.client_params, one.client_params)
    np.testing.assert_array_equal(turns.bse, one.bse)
    pd.testing.assert_frame_equal(turns.trace, one.trace)


def test_threads_and_trace_do_not_change_a_bit(data):
    model = ad.DecentralizedGLM(data, flaky(every=3))
    one, two = (model.fit(ad.DFL(), step=STEP, rounds=250, threads=k) for k in (1, 3))
    np.testing.assert_array_equal(one.client_params, two.client_params)
    # 250 rounds are run in pieces of 2, 120 in pieces of 1.
    short = model.fit(ad.DFL(), step=STEP, rounds=120)
    again = model.fit(ad.ADFL(lam=0.0, refresh=50, init=np.zeros(P)), step=STEP, rounds=120)
    np.testing.assert_array_equal(short.client_params, again.client_params)


def test_order_of_clients_does_not_matter(sim, data):
    names = list("hgfedcba")
    frame = sim.frame()
    frame["client"] = np.array(names)[sim.client]
    schedule = flaky(labels=names)
    fits = [
        ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3 - 1", part, "client", schedule).fit(
            ad.DFL(), step=STEP, rounds=ROUNDS
        )
        for part in (frame, frame.iloc[::-1])
    ]
    np.testing.assert_allclose(
        fits[0].client_params, fits[1].client_params.loc[fits[0].client_params.index], rtol=1e-12
    )
    with pytest.raises(ValueError, match="data and network must have the same clients"):
        ad.DecentralizedGLM.from_formula("y ~ x1", frame, "client", flaky(labels=list("hgfedcbz")))


@pytest.mark.parametrize("schedule", [flaky(0.2), flaky(0.2, every=4)], ids=str)
def test_default_fit_reaches_the_pooled_estimate(sim, data, schedule):
    res = ad.DecentralizedGLM(data, schedule).fit()
    assert res.method.name == "aDFL"
    assert not res.record.details["balance"]
    assert res.solver == "rounds"
    assert res.converged
    pooled = np.linalg.lstsq(sim.X, sim.y, rcond=None)[0]
    assert (np.abs(res.params - pooled) < 0.2 * res.bse).all()


def test_attack_follows_the_schedule(data, nets):
    """Liars send the same on one network in turn with itself as on the network."""
    attack = ad.attacks.SignFlip(clients=[0, 1])
    fits = [
        ad.DecentralizedGLM(data, net).fit(ad.Bridge("median"), step=STEP, rounds=30, attack=attack)
        for net in (nets[0], ad.networks.schedule([nets[0], nets[0]]))
    ]
    np.testing.assert_array_equal(fits[0].client_params, fits[1].client_params)


def test_nobody_present_in_the_first_rounds(data):
    """A first round without a move says nothing of divergence."""

    class Late(ad.networks.NetworkSchedule):
        network = ad.networks.directed_circle(M, 3)
        labels = network.labels

        def at(self, round):
            return ad.networks.Phase(self.network, 1, np.full(M, round >= 3))

    late = ad.DecentralizedGLM(data, Late()).fit(ad.DFL(), step=STEP, rounds=33)
    plain = ad.DecentralizedGLM(data, Late.network).fit(ad.DFL(), step=STEP, rounds=30)
    # W of the absent rounds is still applied to equal starts, which it leaves as they are.
    np.testing.assert_array_equal(late.client_params, plain.client_params)


# ------------------------------------------------------------------ what has no answer


def test_refused_with_a_reason(data, nets):
    schedule = ad.networks.schedule(nets)
    model = ad.DecentralizedGLM(data, schedule)
    res = model.fit(ad.DFL(), step=STEP, rounds=20)
    reason = r"needs one fixed network, and was asked for on Turns.*changes with the round.*schedule\.at\(0\)\.network"
    asked = [
        lambda: model.fit(solver="limit"),
        lambda: model.fit(ad.DFL(balance=True), step=STEP, rounds=5),
        lambda: model.fit(ad.GradientTracking(), step=STEP, rounds=5),
        lambda: model.fit(ad.SLBRN(), step=STEP, rounds=5),
        lambda: model.rates(res),
        model.advise,
        res.check,
        lambda: ad.check_network(schedule),
        lambda: ad.plots.network(res.network),
        lambda: ad.plots.spectrum(schedule),
    ]
    for call in asked:
        with pytest.raises(ValueError, match=reason):
            call()
    with pytest.raises(ValueError, match=r"at least 3 neighbours .* in every round, which Dropout"):
        ad.DecentralizedGLM(data, flaky()).fit(ad.Bridge("trimmed", b=1), step=STEP, rounds=5)
    with pytest.raises(ValueError, match="at least 3 neighbours"):
        model.fit(ad.Bridge("trimmed", b=1), step=STEP, rounds=5)
    with pytest.raises(TypeError, match=r"Network with .*or a NetworkSchedule with"):
        ad.DecentralizedGLM(data, [nets[0]])


def test_summary_says_that_the_network_changes(data):
    res = ad.DecentralizedGLM(data, flaky()).fit(ad.DFL(), step=STEP, rounds=20)
    text = " ".join(res.summary().as_text().split())
    assert "The network changes with the round (Dropout(8 clients, each out with probability 0.4" in text
    assert "SE(W): changes" in text
    assert res.clients()["influence"].sum() == pytest.approx(M)


def test_groups_apart_in_every_round_are_warned_of(data):
    apart = ad.Network.from_adjacency(np.kron(np.eye(2), np.ones((M // 2, M // 2))))
    with pytest.warns(ad.NetworkWarning, match="has 2 closed groups"):
        ad.DecentralizedGLM(data, ad.networks.schedule([apart, apart.lazy(0.3)]))
    across = ad.Network.from_adjacency(np.eye(M)[::-1] + np.eye(M))
    assert len(across.closed_groups) == 4
    assert len(ad.networks.schedule([apart, across]).closed_groups) == 1
    # No warning: together they are connected.
    ad.DecentralizedGLM(data, ad.networks.schedule([apart, across]))


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("kind", ["turns", "dropout"])
def test_results_are_saved_and_read(data, nets, tmp_path, kind):
    schedule = ad.networks.schedule(nets, every=3) if kind == "turns" else flaky(0.25, seed=9, every=2)
    res = ad.DecentralizedGLM(data, schedule).fit(ad.DFL(), step=STEP, rounds=20)
    res.save(tmp_path / "res.npz")
    for back in (ad.load(tmp_path / "res.npz"), pickle.loads(pickle.dumps(res))):
        assert repr(back.network) == repr(schedule)
        for t in range(8):
            there, here = back.network.at(t), schedule.at(t)
            np.testing.assert_array_equal(there.network.W.toarray(), here.network.W.toarray())
            np.testing.assert_array_equal(there.active, here.active)
        assert str(back.summary()) == str(res.summary())
        pd.testing.assert_frame_equal(back.clients(), res.clients())


def test_a_schedule_of_ones_own_is_not_saved(data, tmp_path):
    class Own(ad.networks.NetworkSchedule):
        network = ad.networks.directed_circle(M, 3)
        labels = network.labels

        def at(self, round):
            return ad.networks.Phase(self.network, 10)

    res = ad.DecentralizedGLM(data, Own()).fit(ad.DFL(), step=STEP, rounds=20)
    with pytest.raises(ValueError, match="a schedule of your own, which a file cannot hold"):
        res.save(tmp_path / "res.npz")
