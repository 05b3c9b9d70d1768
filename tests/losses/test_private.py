"""Private gradients: clipped rows in kernel and twin, the accountant, and standard errors that include the noise."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg, optimize, stats

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine import reference
from adfl_stats.losses.families import Family

pytest.importorskip("dp_accounting")

M, n, p = 10, 60, 3
NET = ad.networks.directed_circle(M, 4)


def linear(seed=0, n=n):
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=seed, M=M, n=n, p=p)
    return sim, ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


@pytest.mark.parametrize("name", ["gaussian", "poisson", "multinomial"])
def test_kernel_and_twin_bound_rows_alike(name):
    family = Family(name, outputs=3 if name == "multinomial" else 1)
    rng = np.random.default_rng(1)
    sizes = np.array([1, 40, 300])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    N, P = sizes.sum(), p * family.outputs
    y = rng.integers(4, size=N).astype(float)
    loss = (rng.normal(size=(N, p)), y, offsets, sizes.astype(float), family.code, family.par, family.outputs)
    bounds, weights = rng.uniform(0.1, 1.0, size=N), rng.uniform(0.5, 1.5, size=N)
    theta, found = rng.normal(size=(3, 2, P)), []
    for module in (_kernels, reference):
        out = np.empty_like(theta)
        module.gradient(module.RowLoss(*loss, row_weights=weights, row_bounds=bounds), theta, out)
        found.append(out)
    assert_allclose(*found, rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="row_bounds"):
        _kernels.RowLoss(*loss, row_bounds=bounds[:-1])


def test_a_row_changes_a_gradient_by_at_most_clip_over_n():
    _, data = linear()
    X, y = np.array(data.X), np.array(data.y)
    # One wild row, and the same client without it.
    X[5], y[5] = 100.0, -1e6
    wild = ad.losses.PrivateGLM(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), clip=0.7, noise=0.0)
    X, y = X.copy(), y.copy()
    y[5], X[5] = 0.0, 0.0
    without = ad.losses.PrivateGLM(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), clip=0.7, noise=0.0)
    theta = np.ones((M, 1, p))
    change = np.linalg.norm(wild.gradients(theta) - without.gradients(theta), axis=2)[:, 0]
    assert_allclose(change[0], 0.7 / n, rtol=1e-9)
    assert_array_equal(change[1:], 0.0)


def test_without_clipping_and_noise_it_is_the_plain_fit():
    _, data = linear()
    how = {"step": 0.1, "rounds": 50}
    private = ad.losses.PrivateGLM(data, clip=1e12, noise=0.0)
    found = ad.DecentralizedModel(private, NET).fit(ad.DFL(), **how)
    wanted = ad.DecentralizedGLM(data, NET).fit(ad.DFL(), **how)
    assert_allclose(found.client_params, wanted.client_params, rtol=1e-12)
    assert found.method.details["epsilon"] == np.inf


def test_without_clipping_and_noise_no_bit_changes():
    """Against the plain model in the same loop, that of rounds with an attack."""
    _, data = linear()
    signs = ad.ClientData.from_arrays(
        data.X, (np.asarray(data.y) > 0).astype(float), np.repeat(data.labels, data.sizes)
    )
    how = {"step": 0.1, "rounds": 30, "attack": ad.attacks.SignFlip([2])}
    private = ad.losses.PrivateGLM(signs, "binomial", clip=1e12, noise=0.0)
    found = ad.DecentralizedModel(private, NET).fit(ad.DFL(), **how)
    wanted = ad.DecentralizedGLM(signs, NET, "binomial").fit(ad.DFL(), **how)
    assert_array_equal(found.client_params, wanted.client_params)


def test_noise_is_that_of_the_seed_and_counted():
    _, data = linear()
    private = ad.losses.PrivateGLM(data, clip=2.0, noise=30.0, seed=4)
    model = ad.DecentralizedModel(private, NET)
    res = model.fit(ad.DFL(), step=0.1, rounds=20)
    exact = ad.losses.PrivateGLM(data, clip=2.0, noise=0.0)
    theta, W = np.zeros((M, p)), NET.W.toarray()
    for k in range(20):
        at = W @ theta
        noise = np.random.default_rng([4, k + 1]).standard_normal((M, 1, p))[:, 0]
        theta = at - 0.1 * (exact.gradients(at[:, None])[:, 0] + 30.0 * 2.0 / n * noise)
    assert_allclose(res.client_params, theta, rtol=1e-10)
    assert res.method.details["releases"] == 20
    assert_array_equal(model.fit(ad.DFL(), step=0.1, rounds=20).client_params, res.client_params)
    # Weights come from noisy gradients too: one release in each stage.
    stages = model.fit(ad.ADFL(lam=1.0, stages=2, init=np.zeros(p)), step=0.1, rounds=20)
    assert stages.method.details["releases"] == 42


def renyi_epsilon(noise, releases, delta):
    """Epsilon of Gaussian releases by Mironov (2017) and the conversion of Canonne, Kamath & Steinke (2020)."""

    def at(log_order):
        a = 1.0 + np.exp(log_order)
        return a * releases / (2 * noise**2) + np.log((a - 1) / a) - (np.log(delta) + np.log(a)) / (a - 1)

    return optimize.minimize_scalar(at, bounds=(-6, 8), method="bounded").fun


def exact_epsilon(noise, releases, delta):
    """Epsilon of the composed Gaussian mechanism, exactly (Balle & Wang 2018, theorem 8)."""
    mu = np.sqrt(releases) / noise

    def excess(e):
        return stats.norm.cdf(mu / 2 - e / mu) - np.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta

    return optimize.brentq(excess, 1e-6, 100.0)


@pytest.mark.parametrize(("noise", "releases", "delta"), [(1.0, 1, 1e-5), (20.0, 100, 1e-5), (40.0, 300, 1e-6)])
def test_accountant_is_renyis_and_above_the_exact_guarantee(noise, releases, delta):
    spent = ad.losses.spent_epsilon(noise, releases, delta)
    # The library takes the best of some orders, the formula that of all.
    assert renyi_epsilon(noise, releases, delta) - 1e-9 <= spent < 1.03 * renyi_epsilon(noise, releases, delta)
    exact = exact_epsilon(noise, releases, delta)
    assert exact < spent < 1.35 * exact


@pytest.mark.parametrize(("epsilon", "releases"), [(0.5, 10), (2.0, 200)])
def test_noise_for_a_guarantee(epsilon, releases):
    noise = ad.losses.noise_for(epsilon, releases)
    assert_allclose(ad.losses.spent_epsilon(noise, releases), epsilon, rtol=1e-6)
    assert ad.losses.spent_epsilon(0.99 * noise, releases) > epsilon


def test_standard_errors_include_the_noise():
    """Over seeds of the noise, the estimate varies as said; over data sets, with both."""
    _, data = linear()
    noise, how = 60.0, {"step": 0.1, "rounds": 60}
    fits = [
        ad.DecentralizedModel(ad.losses.PrivateGLM(data, clip=3.0, noise=noise, seed=k), NET).fit(ad.DFL(), **how)
        for k in range(150)
    ]
    spread = np.cov(np.array([fit.params for fit in fits]).T)
    assert_allclose(np.diag(spread), np.diag(fits[0].record.noise), rtol=0.45)
    assert_allclose(np.trace(spread), np.trace(fits[0].record.noise), rtol=0.25)
    quiet = ad.DecentralizedModel(ad.losses.PrivateGLM(data, clip=3.0, noise=0.0), NET).fit(ad.DFL(), **how)
    assert (fits[0].bse > 1.3 * quiet.bse).all()
    assert not quiet.record.noise.any()
    text = str(fits[0].summary())
    assert "Differential privacy: epsilon = " in text
    assert "are computed from the rows, and are not" in " ".join(text.split())


def test_noise_covariance_is_that_of_the_dense_recursion():
    """Clients of unequal influence, size and weight, so that W and its transpose differ."""
    rng, rounds, step = np.random.default_rng(6), 30, 0.1
    sizes = rng.integers(20, 80, size=M)
    X = rng.normal(size=(sizes.sum(), p))
    data = ad.ClientData.from_arrays(X, X.sum(axis=1) + rng.normal(size=len(X)), np.repeat(np.arange(M), sizes))
    edges = np.array([[0, m] for m in range(1, M)] + [[m, (m + 1) % M] for m in range(1, M)])
    net = ad.Network.from_edges(edges, labels=list(range(M)))
    assert net.se > 0.01
    weights = np.linspace(0.3, 1.0, M)
    private = ad.losses.PrivateGLM(data, clip=1e9, noise=1e-6)
    res = ad.DecentralizedModel(private, net).fit(ad.DFL(weights=weights), step=step, rounds=rounds)
    factors = weights * sizes / sizes.mean()
    starts = np.concatenate([[0], np.cumsum(sizes)])
    H = [X[low:high].T @ X[low:high] / (high - low) for low, high in pairwise(starts)]
    descend = linalg.block_diag(*[np.eye(p) - step * f * h for f, h in zip(factors, H, strict=True)])
    A = descend @ np.kron(net.W.toarray(), np.eye(p))
    own = np.kron(np.diag((step * factors * 1e-6 * 1e9 / sizes) ** 2), np.eye(p))
    state = np.zeros_like(A)
    for _ in range(rounds):
        state = A @ state @ A.T + own
    mean = np.kron(np.full((1, M), 1.0 / M), np.eye(p))
    assert_allclose(res.record.noise, mean @ state @ mean.T, rtol=1e-8)


def test_noise_of_one_seed_cancels_between_fits_and_that_of_two_does_not():
    """Why the docs ask for a seed of its own for every fit that anybody sees."""
    _, data = linear()

    def messages(seed, start):
        private = ad.losses.PrivateGLM(data, clip=3.0, noise=50.0, seed=seed)
        model = ad.DecentralizedModel(private, ad.networks.complete(M))
        return model.fit(ad.DFL(init=start), step=1.0, rounds=1).client_params.to_numpy() - start

    exact = ad.losses.PrivateGLM(data, clip=3.0, noise=0.0)
    here, there = np.zeros(p), np.ones(p)
    wanted = exact.exact_gradients(there) - exact.exact_gradients(here)
    assert_allclose(messages(1, here) - messages(1, there), wanted, atol=1e-12)
    assert np.abs(messages(1, here) - messages(2, there) - wanted).max() > 1.0
    # The releases of two fits cost what those of one with both would.
    assert ad.losses.spent_epsilon(50.0, 2) > ad.losses.spent_epsilon(50.0, 1) > 0.0


def test_rows_are_clipped_without_noise_too():
    """Counts with heavy tails, from a start with means in the thousands: the M-estimate, found by scipy."""
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, 2))])
    y = rng.poisson(np.exp(X @ [1.0, 0.6, -0.4])) * np.where(rng.uniform(size=M * n) < 0.03, 100.0, 1.0)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n))
    how, far = {"step": 0.1, "rounds": 3000}, np.array([5.0, 1.5, 1.5])
    private = ad.losses.PrivateGLM(data, "poisson", clip=2.0, noise=0.0)
    network = ad.networks.complete(M)
    res = ad.DecentralizedModel(private, network).fit(ad.DFL(init=far), **how)
    with pytest.raises(ad.DivergenceError):
        ad.DecentralizedGLM(data, network, "poisson").fit(ad.DFL(init=far), **how)
    bound = 2.0 / np.linalg.norm(X, axis=1)
    solved = optimize.root(lambda t: X.T @ np.clip(np.exp(X @ t) - y, -bound, bound) / len(y), [1.0, 0.6, -0.4])
    assert_allclose(res.params, solved.x, atol=1e-6)
    assert res.bse.notna().all()
    text = " ".join(str(res.summary()).split())
    assert "Gradients of rows longer than 2 were shortened" in text
    assert "no differential privacy" in text


def test_files_keep_the_noise(tmp_path):
    _, data = linear()
    private = ad.losses.PrivateGLM(data, clip=3.0, noise=10.0)
    res = ad.DecentralizedModel(private, NET).fit(ad.DFL(), step=0.1, rounds=10)
    res.save(tmp_path / "fit")
    assert ad.load(tmp_path / "fit").bse.equals(res.bse)


def test_noise_of_other_rounds_is_not_known():
    _, data = linear()
    model = ad.DecentralizedModel(ad.losses.PrivateGLM(data, clip=3.0, noise=10.0), NET)
    for method in (ad.Bridge("median"), ad.DFL(local_steps=3)):
        res = model.fit(method, step=0.1, rounds=10)
        assert "known for plain rounds only" in res.without_errors
        assert res.bse.isna().all()
    with pytest.raises(ValueError, match="curvatures and scores"):
        model.fit(ad.ADFL(), step=0.1, rounds=10)
    with pytest.raises(ValueError, match="values of the losses"):
        model.fit(ad.UBAR(), step=0.1, rounds=10)


def test_clipped_curvature_is_the_derivative():
    rng = np.random.default_rng(2)
    _, data = linear()
    counts = ad.ClientData.from_arrays(data.X, rng.poisson(1.0, size=M * n).astype(float), np.repeat(np.arange(M), n))
    private = ad.losses.PrivateGLM(counts, "poisson", clip=1.0, noise=0.0)
    theta = np.array([0.1, -0.2, 0.3])
    differences = [
        (private.exact_gradients(theta + e) - private.exact_gradients(theta - e)) / 2e-6 for e in 1e-6 * np.eye(p)
    ]
    assert_allclose(private.curvature(theta), np.stack(differences, axis=2), atol=1e-7)
    plain = ad.losses.PrivateGLM(counts, "poisson", clip=1e9, noise=0.0)
    assert np.abs(plain.curvature(theta) - private.curvature(theta)).max() > 0.01


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": 0.0}, "clip"),
        ({"noise": -1.0}, "noise"),
        ({"delta": 1.0}, "delta"),
        ({"family": "huber"}, "a scale that is estimated from the rows"),
        ({"family": "negativebinomial"}, "give alpha"),
    ],
)
def test_bad_private_models(change, words):
    _, data = linear()
    data = ad.ClientData.from_arrays(data.X, np.abs(np.rint(data.y)), np.repeat(np.arange(M), n))
    with pytest.raises(ValueError, match=words):
        ad.losses.PrivateGLM(data, **{"clip": 1.0, "noise": 1.0, **change})


def test_weights_of_rows_are_refused():
    _, data = linear()
    weighted = ad.ClientData.from_arrays(data.X, data.y, np.repeat(np.arange(M), n), weights=np.linspace(1, 2, M * n))
    with pytest.raises(ValueError, match="data has weights of rows"):
        ad.losses.PrivateGLM(weighted, clip=1.0, noise=1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [((-1.0, 5), "noise"), ((1.0, -2), "releases"), ((1.0, 5, 2.0), "delta"), ((0.0, 0, 0.0), "delta")],
)
def test_a_guarantee_that_means_nothing_is_refused(given, words):
    """delta = 2 had an epsilon of zero."""
    with pytest.raises(ValueError, match=words):
        ad.losses.spent_epsilon(*given)
