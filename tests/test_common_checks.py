"""Checks that every method, family and network passes by being listed here; what is public and not listed fails."""

import inspect
import pickle

import numpy as np
import pytest

import adfl_stats as ad

M, N = 12, 30
METHODS = [
    ad.ADFL(), ad.ADFL(lam=2.0, stages=2), ad.DFL(), ad.DFL(balance=True), ad.Bridge("median"),
    ad.Bridge("trimmed", b=1), ad.ClippedGossip(), ad.GeometricMedian(), ad.IOS(1), ad.NNA(1), ad.UBAR(),
    ad.SLBRN("median"), ad.Extra(), ad.GradientTracking(), ad.Local(), ad.Oracle([0]), ad.TrimmedScores(starts=2),
]  # fmt: skip
NETWORKS = {
    "complete": {}, "directed_circle": {"D": 3}, "erdos_renyi": {"q": 0.6, "seed": 1},
    "fixed_degree": {"D": 3, "seed": 1}, "central_client": {}, "small_world": {"seed": 1},
    "scale_free": {"seed": 1}, "random_geometric": {"seed": 1},
    "stochastic_block": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(M * N), rng.normal(size=(M * N, 2))])
    y = X @ [0.5, 1.0, -1.0] + rng.normal(size=M * N)
    return X, y, np.repeat([f"c{k:02d}" for k in range(M)], N)


def fitted(method, X, y, client, **options):
    net = ad.networks.complete(M, labels=sorted(set(client)))
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), net)
    return model.fit(method, step=0.1, rounds=40, **options)


def test_every_public_method_is_listed():
    public = {getattr(ad, name) for name in ad.__all__ if inspect.isclass(getattr(ad, name))}
    methods = {kind for kind in public if issubclass(kind, ad.Method) and kind is not ad.Method}
    assert {type(method) for method in METHODS} == methods


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:40])
def test_methods(method, data, tmp_path):
    X, y, client = data
    before = X.copy(), y.copy()
    res = fitted(method, X, y, client, threads=1)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    assert np.isfinite(res.client_params.to_numpy()).all()
    assert (res.client_weights >= 0.0).all()
    # Again, in two threads, by a copy of the method: the same bits.
    again = fitted(pickle.loads(pickle.dumps(method)), X, y, client, threads=2)
    np.testing.assert_array_equal(again.client_params, res.client_params)
    # Rows in another order are the same data but for rounding.
    order = np.concatenate(
        [np.random.default_rng(1).permutation(np.flatnonzero(client == c)) for c in np.unique(client)]
    )
    other = fitted(method, X[order], y[order], client[order])
    np.testing.assert_allclose(other.client_params, res.client_params, rtol=1e-6, atol=1e-8)
    res.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(ad.load(tmp_path / "fit.npz").client_params, res.client_params)
    assert str(res.summary())
    with pytest.raises((AttributeError, TypeError)):
        method.name = "other"


def test_every_generator_is_listed():
    public = {name for name in ad.networks.__all__ if name[0].islower() and name not in ("schedule", "dropout")}
    assert set(NETWORKS) == public


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
@pytest.mark.parametrize("name", [name for name, options in NETWORKS.items() if options is not None])
def test_networks(name):
    make = getattr(ad.networks, name)
    needed = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.name != "M"]
    options = dict(NETWORKS[name])
    if any(p.name not in options for p in needed):
        pytest.skip(f"{name} wants {[p.name for p in needed]}")
    net, again = make(M, **options), make(M, **options)
    np.testing.assert_array_equal(net.W.toarray(), again.W.toarray())
    np.testing.assert_allclose(net.W.sum(axis=1), 1.0)
    assert (net.W.toarray() >= 0.0).all()
    assert net.influence.min() >= 0.0
    np.testing.assert_allclose(net.influence.sum(), 1.0)
    # Whoever gets the matrix has the network.
    np.testing.assert_allclose(ad.Network.from_weights(net.W.toarray()).W.toarray(), net.W.toarray())
    assert str(ad.check_network(net))
