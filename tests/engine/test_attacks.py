"""Clients that send false messages: what is sent, to whom, and what becomes of the others."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats

import adfl_stats as ad
from adfl_stats.engine import attacks

M = 10
LIARS = np.isin(np.arange(M), [2, 6])
NET = ad.networks.erdos_renyi(M, 0.6, seed=3).metropolis()


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(0)
    W = NET.W.toarray()
    victims, sources = np.nonzero((W > 0) & LIARS[None, :] & ~LIARS[:, None])
    return attacks.Scene(rng.normal(5.0, 1.0, size=(M, 3)), sources, victims, NET.W, ~LIARS, rng)


def around(m):
    """The honest clients that m hears, and itself."""
    return np.flatnonzero(((NET.W.toarray()[m] > 0) & ~LIARS) | (np.arange(M) == m))


# ------------------------------------------------------------------ formulas


def test_formulas(scene):
    W = NET.W.toarray()
    flipped, shrunk = attacks.SignFlip([2], scale=3.0).lies(scene), attacks.IPM([2], epsilon=0.2).lies(scene)
    little, apart = attacks.ALIE([2], z=1.5).lies(scene), attacks.Dissensus([2], epsilon=0.7).lies(scene)
    for e, (k, m) in enumerate(zip(scene.sources, scene.victims, strict=True)):
        seen = scene.sent[around(m)]
        assert_allclose(flipped[e], -3.0 * scene.sent[k])
        assert_allclose(shrunk[e], -0.2 * seen.mean(axis=0))
        assert_allclose(little[e], seen.mean(axis=0) - 1.5 * seen.std(axis=0))
        pull = (W[m][:, None] * (scene.sent - scene.sent[m]))[~LIARS].sum(axis=0)
        assert_allclose(apart[e], scene.sent[m] - 0.7 * pull / W[m, LIARS].sum())


def test_a_victim_of_dissensus_stays_where_it_is(scene):
    lies = attacks.Dissensus([2]).lies(scene)
    W = NET.W.toarray()
    for m in np.unique(scene.victims):
        honest = (W[m][:, None] * scene.sent)[~LIARS].sum(axis=0)
        mine = [e for e in range(len(lies)) if scene.victims[e] == m]
        lied = sum(W[m, scene.sources[e]] * lies[e] for e in mine)
        assert_allclose(honest + lied, scene.sent[m], rtol=1e-12)


def test_the_usual_z_is_a_quantile(scene):
    # n = 10, two lie: s = 6 - 2 = 4, and four of eight honest are below it.
    expected = attacks.ALIE([2], z=max(stats.norm.ppf(4 / 8), 0.0)).lies(scene)
    assert_allclose(attacks.ALIE([2]).lies(scene), expected)
    # With four of ten lying s = 2, and z = Phi^-1(4 / 6).
    honest = np.arange(M) >= 4
    crowd = attacks.Scene(
        scene.sent, np.array([0]), np.array([5]), sparse.csr_array(np.full((M, M), 0.1)), honest, None
    )
    seen = scene.sent[honest]
    assert_allclose(
        attacks.ALIE([0]).lies(crowd)[0], seen.mean(axis=0) - stats.norm.ppf(4 / 6) * seen.std(axis=0), rtol=1e-12
    )


def test_noise_has_its_mean_and_size():
    big = attacks.Scene(
        np.full((M, 20_000), 2.0), np.array([2]), np.array([0]), NET.W, ~LIARS, np.random.default_rng(1)
    )
    lies = attacks.Gaussian([2], sd=3.0).lies(big)[0]
    # Four standard errors of mean and standard deviation.
    assert abs(lies.mean() - 2.0) < 4 * 3.0 / np.sqrt(20_000)
    assert abs(lies.std() - 3.0) < 4 * 3.0 / np.sqrt(40_000)


# ------------------------------------------------------------------ the hook


@pytest.fixture(scope="module")
def clean():
    return ad.simulate.paper_linear(abnormal=0, corruption=None, seed=2, M=M, n=50, p=4)


def model(sim, net=NET, labels=None):
    client = sim.client if labels is None else np.array(labels)[sim.client]
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, client), net)


def test_lies_reach_honest_clients_and_nobody_else(clean):
    W = NET.W.toarray()
    X, y = clean.X.reshape(M, 50, 4), clean.y.reshape(M, 50)
    theta = np.ones((M, 4))
    for _ in range(15):
        at = W @ theta
        lied = -(W * LIARS) @ theta - (W * LIARS) @ theta
        at[~LIARS] += lied[~LIARS]
        theta = at - 0.1 * np.einsum("mni,mn->mi", X, np.einsum("mni,mi->mn", X, at) - y) / 50
    for clients in ([2, 6], LIARS):
        res = model(clean).fit(ad.DFL(init=np.ones(4)), step=0.1, rounds=15, attack=attacks.SignFlip(clients))
        assert_allclose(res.client_params, theta, rtol=1e-11, atol=1e-12)
    assert res.method.details["attack"] == "SignFlip"
    assert "Some clients sent false messages (attack SignFlip)" in " ".join(str(res.summary()).split())


@pytest.mark.parametrize(
    "method",
    [
        ad.DFL(),
        ad.Bridge(),
        ad.Bridge("krum", b=1),
        ad.ClippedGossip(0.3),
        ad.GeometricMedian(),
        ad.ADFL(lam=1.0, stages=2),
    ],
    ids=lambda method: method.name,
)
def test_an_attack_that_tells_the_truth_changes_nothing(clean, method):
    class Honest(attacks.SignFlip):
        def lies(self, scene):
            return scene.sent[scene.sources]

    plain = model(clean).fit(method, step=0.1, rounds=20)
    told = model(clean).fit(method, step=0.1, rounds=20, attack=Honest([2, 6]))
    assert_allclose(told.client_params, plain.client_params, rtol=1e-11, atol=1e-13)


def test_noise_is_seeded(clean):
    fits = [
        model(clean).fit(ad.Bridge(), step=0.1, rounds=5, attack=attacks.Gaussian([2], seed=seed)).client_params
        for seed in (1, 1, 2)
    ]
    assert_array_equal(fits[0], fits[1])
    assert (fits[0] != fits[2]).any(axis=None)


@pytest.mark.parametrize("attack", [attacks.SignFlip, attacks.Gaussian, attacks.IPM], ids=lambda kind: kind.__name__)
def test_screening_withstands_lies_that_ruin_the_mean(attack):
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=2, M=30, n=60, p=4)
    fitted = model(sim, ad.networks.complete(30))
    liars = [0, 7, 14, 21, 28]
    honest = np.setdiff1d(np.arange(30), liars)

    def error(method):
        res = fitted.fit(method, step=0.05, rounds=200, attack=attack(liars))
        return ((res.client_params.to_numpy()[honest] - sim.theta0) ** 2).sum(axis=1).mean()

    ruined = error(ad.DFL())
    for method in (ad.Bridge(), ad.Bridge("trimmed", b=5), ad.Bridge("krum", b=5), ad.GeometricMedian(), ad.IOS(5)):
        assert error(method) < 0.2 * ruined
    assert error(ad.UBAR(near=0.5)) < 0.2 * ruined


def test_trackers_and_local_fits_take_attacks_too(clean):
    lie = attacks.SignFlip([2])
    for method in (ad.GradientTracking(), ad.Extra(), ad.SLBRN()):
        attacked, plain = (model(clean).fit(method, step=0.01, rounds=5, attack=how) for how in (lie, None))
        assert (attacked.client_params != plain.client_params).any(axis=None)
    attacked, plain = (model(clean).fit(ad.Local(), step=0.01, rounds=5, attack=how) for how in (lie, None))
    assert_array_equal(attacked.client_params, plain.client_params)


# ------------------------------------------------------------------ refusals

REFUSED = {
    "scale": (lambda c: attacks.SignFlip([1], scale=0.0), ValueError, r"scale is 0; it must lie in \(0, inf\)"),
    "sd": (lambda c: attacks.Gaussian([1], sd=-1.0), ValueError, r"sd is -1; it must lie in \(0, inf\)"),
    "seed": (lambda c: attacks.Gaussian([1], seed=-1), ValueError, "seed is -1; it must be at least 0"),
    "z": (lambda c: attacks.ALIE([1], z=-1.0), ValueError, r"z is -1; it must lie in \[0, inf\)"),
    "epsilon": (lambda c: attacks.IPM([1], epsilon=0.0), ValueError, r"epsilon is 0; it must lie in \(0, inf\)"),
    "dissensus": (lambda c: attacks.Dissensus([1], epsilon=0.0), ValueError, r"epsilon is 0; it must lie in \(0, in"),
    "a word": (lambda c: model(c).fit(attack="flip"), TypeError, r"attack is 'flip'; pass an attack such as ad\.att"),
    "a class": (lambda c: model(c).fit(attack=attacks.IPM), TypeError, r"attack is <class .*IPM'>; pass an attack"),
    "unknown": (
        lambda c: model(c).fit(rounds=1, attack=attacks.IPM([77])),
        ValueError,
        r"clients names 77, not among the clients 0, 1",
    ),
    "all": (
        lambda c: model(c).fit(rounds=1, attack=attacks.IPM(range(M))),
        ValueError,
        "clients names all 10 clients; at least one must be normal",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused(clean, case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(clean)
