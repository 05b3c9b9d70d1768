"""Clipped gradients, several local steps and a robust rule inside DFL and aDFL."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine import reference
from adfl_stats.losses.families import Family

M, n, p = 12, 40, 3
NET = ad.networks.directed_circle(M, 4)
HOW = {"step": 0.1, "rounds": 40}


def linear(seed=0, network=NET, abnormal=0.25):
    sim = ad.simulate.paper_linear(abnormal=abnormal, corruption="BF", seed=seed, M=M, n=n, p=p)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return sim, ad.DecentralizedGLM(data, network)


def differing(network):
    """Clients with curvatures and parameters of their own, so that local steps have a bias."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(M, n, p)) * rng.uniform(0.5, 2.0, size=(M, 1, p))
    y = np.einsum("mni,mi->mn", X, 1.0 + rng.normal(size=(M, p))) + rng.normal(size=(M, n))
    data = ad.ClientData.from_arrays(X.reshape(-1, p), y.ravel(), np.repeat(np.arange(M), n))
    return ad.DecentralizedGLM(data, network)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("options", [(0.3, 1), (np.inf, 4), (0.3, 3)])
def test_kernel_and_twin_agree(options, outputs):
    rng = np.random.default_rng(1)
    sizes = np.array([5, 17, 8, 30])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    y = rng.integers(outputs + 1, size=sizes.sum()).astype(float)
    family = Family("multinomial" if outputs > 1 else "binomial", outputs=outputs).code
    loss = (rng.normal(size=(sizes.sum(), p)), y, offsets, sizes.astype(float), family, 0.0, outputs)
    combiner = (np.arange(0, 9, 2), np.array([0, 1, 1, 2, 2, 3, 3, 0]), np.full(8, 0.5))
    begin, found = rng.normal(size=(4, 2, p * outputs)), []
    for module in (_kernels, reference):
        theta, moved = begin.copy(), np.empty((6, 2))
        steps = np.array([[0.5, 0.1], [0.4, 0.2], [0.3, 0.3], [0.2, 0.4]])
        built = module.Combiner(*combiner), module.RowLoss(*loss)
        assert module.rounds(*built, theta, steps, 6, moved, np.full(2, np.inf), 1, *options) == 6
        found.append((theta, moved))
    for one, other in zip(*found, strict=True):
        assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_gradients_are_shortened_not_turned():
    rng = np.random.default_rng(2)
    gradients = rng.normal(size=(7, 5)) * np.array([1e-3, 1.0, 1e3, 1e200, 0.0, 1.0, 1.0])[:, None]
    gradients[5, 2] = np.nan
    short = reference.shortened(gradients, 0.7)
    with np.errstate(over="ignore"):
        assert_allclose(np.linalg.norm(short[1:4] / 0.7, axis=1), 1.0, rtol=1e-12)
    assert_allclose(short[3] / np.abs(short[3]).max(), gradients[3] / np.abs(gradients[3]).max(), rtol=1e-12)
    assert_array_equal(short[[0, 4]], gradients[[0, 4]])
    assert np.isnan(short[5, 2])
    assert reference.shortened(gradients, np.inf) is gradients


@pytest.mark.parametrize("call", [(0.0, 1), (np.nan, 1), (1.0, 0)])
def test_kernel_refuses_other_options(call):
    theta, moved = np.zeros((1, 1, 1)), np.empty((1, 1))
    combiner = _kernels.Combiner(np.array([0, 1]), np.array([0]), np.ones(1))
    loss = _kernels.RowLoss(np.ones((1, 1)), np.ones(1), np.array([0, 1]), np.ones(1), 0)
    with pytest.raises(ValueError, match="a positive length and 1 or more"):
        _kernels.rounds(combiner, loss, theta, np.ones((1, 1)), 1, moved, np.ones(1), 1, *call)


@pytest.mark.parametrize("plain", [ad.DFL(), ad.ADFL(lam=1.0, stages=2)])
def test_options_that_do_nothing_change_no_bit(plain):
    _, model = linear()
    wanted = model.fit(plain, **HOW).client_params.to_numpy()
    for changes in ({"clip": 1e300}, {"clip": None, "local_steps": 1}):
        method = type(plain)(**{**vars(plain), **changes})
        assert_array_equal(model.fit(method, **HOW).client_params.to_numpy(), wanted)


@pytest.mark.parametrize("attack", [None, ad.attacks.SignFlip([2])])
def test_rounds_are_those_written_out(attack):
    """With an attack the rounds are those of the Python loop, without one those of the kernel."""
    _, model = linear()
    method = ad.DFL(clip=0.5, local_steps=3)
    found = model.fit(method, **HOW, attack=attack).client_params.to_numpy()
    X, y = model.data.X.reshape(M, n, p), model.data.y.reshape(M, n)
    W, theta = NET.W.toarray(), np.zeros((M, p))
    receives = np.arange(M) != 2
    for _ in range(HOW["rounds"]):
        at = W @ theta
        if attack is not None:
            at[receives] -= 2.0 * np.outer(W[receives, 2], theta[2])
        for _ in range(3):
            g = np.einsum("mni,mn->mi", X, np.einsum("mni,mi->mn", X, at) - y) / n
            at = at - HOW["step"] * g * np.minimum(1.0, 0.5 / np.linalg.norm(g, axis=1))[:, None]
        theta = at
    assert_allclose(found, theta, rtol=1e-10, atol=1e-12)


def test_clipped_limit_is_that_of_hubers_weights():
    """sum_m g_m min(1, c / ||g_m||) = 0 on a complete network, with clients that count less the more they are off."""
    sim, model = linear(network=ad.networks.complete(M))
    res = model.fit(ad.DFL(clip=0.3), step=0.02, rounds=4000)
    X, y = model.data.X.reshape(M, n, p), model.data.y.reshape(M, n)
    g = np.einsum("mni,mn->mi", X, np.einsum("mni,i->mn", X, res.params) - y) / n
    norm = np.linalg.norm(g, axis=1)
    assert np.linalg.norm((g * np.minimum(1.0, 0.3 / norm)[:, None]).mean(axis=0)) < 0.01 * norm.mean()
    assert res.method.details["clipped"] == (norm > 0.3).sum() > 0
    assert res.bse.isna().all()
    assert "Gradients longer than 0.3 were shortened" in str(res.summary())
    plain = model.fit(ad.DFL(), step=0.02, rounds=4000)
    assert np.abs(res.params - sim.theta0).max() < np.abs(plain.params - sim.theta0).max()


def test_unbounded_gradients_do_not_diverge():
    rng = np.random.default_rng(4)
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, 2))])
    y = rng.poisson(np.exp(X @ [1.0, 0.8, -0.5])).astype(float)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), NET, "poisson")
    # A step that is stable at the estimate, from a start with means in the thousands.
    how, far = {"step": 0.04, "rounds": 1500}, np.array([5.0, 1.5, 1.5])
    with pytest.raises(ad.DivergenceError):
        model.fit(ad.DFL(init=far), **how)
    res = model.fit(ad.DFL(init=far, clip=2.0), **how)
    assert_allclose(res.params, model.fit(ad.DFL(), **how).params, atol=1e-6)
    assert res.method.details["clipped"] == 0
    assert res.bse.notna().all()


@pytest.mark.parametrize("weights", [None, np.linspace(0.2, 1.0, M)], ids=["equal", "weighted"])
@pytest.mark.parametrize(
    "network", [ad.networks.complete(M), NET, ad.networks.directed_circle(M, 2)], ids=["complete", "4", "2"]
)
def test_bias_of_local_steps_is_that_of_theory(network, weights):
    """The limit of k local steps in a linear model, run and predicted; clients that differ on sparse networks too."""
    model = differing(network)
    one = model.fit(ad.DFL(weights=weights), step=0.02, rounds=5000)
    many = model.fit(ad.DFL(weights=weights, local_steps=8), step=0.02, rounds=5000)
    table = model.local_updates(one, [1, 8], message=3.0)
    # Standard errors at the estimate itself, which a complete network reaches.
    at_estimate = differing(ad.networks.complete(M)).fit(ad.DFL(weights=weights), step=0.02, rounds=5000)
    se = at_estimate.get_robustcov_results("sandwich").bse
    assert_allclose(table.loc[8, "bias"], np.max(np.abs(many.params - one.params) / se), rtol=1e-6)
    assert table.loc[8, "bias"] > 0.1
    assert table.loc[1, "bias"] == 0.0
    assert_allclose(table["cost"], table["rounds"] * (3.0 + table.index), rtol=1e-12)
    assert many.method.details["local_steps"] == 8
    assert "8 gradient steps between exchanges" in str(many.summary())
    # Twice the step, twice the bias, to first order.
    small = [model.local_updates(one, [8], step=step).loc[8, "bias"] for step in (1e-4, 2e-4)]
    assert_allclose(small[1] / small[0], 2.0, rtol=0.01)


def test_bias_on_a_complete_network_is_that_of_the_mean_equation():
    """-(sum_m K_m H_m)^-1 sum_m K_m g_m, by powers of (P, P) matrices of its own."""
    model, k, step = differing(ad.networks.complete(M)), 6, 0.03
    fit = model.fit(ad.DFL(), step=step, rounds=4000)
    X, y = model.data.X.reshape(M, n, p), model.data.y.reshape(M, n)
    H, b = np.einsum("mni,mnj->mij", X, X) / n, np.einsum("mni,mn->mi", X, y) / n
    theta = np.linalg.solve(H.mean(axis=0), b.mean(axis=0))
    K = [sum(np.linalg.matrix_power(np.eye(p) - step * h, j) for j in range(k)) for h in H]
    g = np.einsum("mij,mj->mi", K, H @ theta - b).mean(axis=0)
    moved = -np.linalg.solve(np.mean(K @ H, axis=0), g)
    wanted = np.max(np.abs(moved) / fit.get_robustcov_results("sandwich").bse)
    assert_allclose(model.local_updates(fit, [k]).loc[k, "bias"], wanted, rtol=1e-6)


def test_steps_beyond_stability_have_no_bias_to_speak_of():
    """They overflowed."""
    model = differing(NET)
    table = model.local_updates(model.fit(ad.DFL(), step=0.02, rounds=10), [1, 3000], step=5.0)
    assert np.isinf(table[["bias", "rounds", "cost"]]).all(axis=None)
    assert not table["best"].any()


def test_local_updates_count_rounds():
    model = differing(NET)
    fit = model.fit(ad.DFL(), step=0.02, rounds=10)
    table = model.local_updates(fit, [1, 5])
    assert table.loc[5, "rounds"] < 0.3 * table.loc[1, "rounds"]
    many = model.local_updates(fit, [1, 2, 5, 10, 20, 40], message=100.0)
    fine = many[many["bias"] <= 0.05]
    assert many["best"].sum() == 1
    assert many["cost"][many["best"]].item() == fine["cost"].min()
    # The bias, not the cost, is what bounds the number of steps where a message is dear.
    assert many["cost"].idxmin() > many["best"].idxmax() or len(fine) == len(many)
    assert not model.local_updates(fit, [1000], step=0.05)["best"].any()
    with pytest.raises(ValueError, match="step is None"):
        model.local_updates(model.fit(ad.DFL()))
    with pytest.raises(ValueError, match="local_steps"):
        model.local_updates(fit, [0])


RULES = [ad.Bridge("median"), ad.Bridge("trimmed", b=1), ad.ClippedGossip(), ad.GeometricMedian(), ad.IOS(1), ad.NNA(1)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_combines_and_weights_descend(rule):
    """With equal weights it is the rule's own method; with a large lambda abnormal clients lose theirs."""
    sim, model = linear()
    start = np.zeros(p)
    even = model.fit(ad.ADFL(lam=0.0, stages=1, init=start, rule=rule), **HOW)
    assert_array_equal(even.client_params, model.fit(type(rule)(**{**vars(rule), "init": start}), **HOW).client_params)
    adaptive = model.fit(ad.ADFL(lam=2.0, init=ad.Bridge("median"), rule=rule), **HOW)
    assert adaptive.client_weights[sim.abnormal].max() < 0.5 * adaptive.client_weights[~sim.abnormal].min()
    assert adaptive.method.name == f"aDFL, {rule.name}"
    assert adaptive.bse.isna().all()


def test_rule_withstands_lies_that_weights_do_not():
    sim, model = linear(abnormal=0.0, network=ad.networks.complete(M))
    lies, how = ad.attacks.SignFlip([3, 7], scale=3.0), {"step": 0.1, "rounds": 100}
    off = {
        rule: np.abs(model.fit(ad.ADFL(lam=2.0, rule=rule), **how, attack=lies).params - sim.theta0).max()
        for rule in (None, RULES[0])
    }
    assert off[RULES[0]] < 0.5 * off[None]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ad.DFL(clip=0.0), "clip"),
        (lambda: ad.DFL(local_steps=0), "local_steps"),
        (lambda: ad.ADFL(clip=-1.0), "clip"),
        (lambda: ad.ADFL(local_steps=1.5), "local_steps"),
        (lambda: ad.ADFL(rule="median"), "rule is 'median'; give a method that combines by a rule"),
        (lambda: ad.ADFL(rule=ad.DFL()), "ClippedGossip"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


@pytest.mark.parametrize("method", [ad.DFL(clip=1.0), ad.DFL(local_steps=2), ad.ADFL(lam=1.0, rule=RULES[0])])
def test_limit_is_not_solved_for(method):
    _, model = linear()
    assert not method.has_limit
    with pytest.raises(ValueError, match="no smooth limit"):
        model.fit(method, solver="limit")


def test_without_rounds():
    """Local steps are cut to the tolerance, in pooled coordinates; a clipped run stays in the user's."""
    model = differing(NET)
    wanted = model.fit(ad.DFL())
    assert_allclose(model.fit(ad.DFL(local_steps=5)).params, wanted.params, atol=0.1 * wanted.bse.max())
    assert not model.fit(ad.DFL(clip=1e6)).record.preconditioned
