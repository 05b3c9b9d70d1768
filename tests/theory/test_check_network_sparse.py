"""check_network without dense algebra, against dense algebra."""

import math

import numpy as np
import pytest
from known_networks import moduli
from scipy import sparse

import adfl_stats as ad
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import eigenvalues, products, spectrum
from adfl_stats.network.network import Network


def generated(M=500):
    yield "circle", ad.networks.directed_circle(M, 40)
    yield "complete", ad.networks.complete(M)
    yield "star", ad.networks.central_client(M)
    yield "fixed", ad.networks.fixed_degree(M, 6, seed=1)
    yield "er", ad.networks.erdos_renyi(M, 0.03, seed=1)
    yield "er_directed", ad.networks.erdos_renyi(M, 0.03, seed=1, directed=True)
    yield "blocks", ad.networks.stochastic_block([200, 300], 0.05, 0.01, seed=1)
    yield "geometric", ad.networks.random_geometric(M, 0.12, seed=1)
    yield "small_world", ad.networks.small_world(M, 6, 0.2, seed=1)
    yield "scale_free", ad.networks.scale_free(M, 3, seed=1)


# ------------------------------------------------------------------ sparse against dense algebra


@pytest.mark.parametrize(("name", "net"), list(generated()))
def test_sparse_agrees_with_dense_at_500(name, net):
    W = net.W
    mixing = spectrum.mixing_lanczos(W)
    second = eigenvalues.second_modulus(net, dense_up_to=0)
    assert not mixing.trouble
    assert not second.trouble
    dense = W.toarray()
    centred = dense - dense.mean(axis=0)
    assert mixing.value == pytest.approx(np.linalg.norm(centred.T @ centred, 2), rel=1e-8, abs=1e-12)
    assert second.value == pytest.approx(moduli(W)[-2], rel=1e-8, abs=1e-8)
    assert net.second_eigenvalue == pytest.approx(moduli(W)[-2], rel=1e-8, abs=1e-8)
    twice = np.linalg.matrix_power(dense, 2)
    twice -= twice.mean(axis=0)
    found = spectrum.mixing_lanczos(W, power=2)
    assert found.value == pytest.approx(np.linalg.norm(twice, 2) ** 2, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("name", ["lazy", "metropolis", "balanced"])
@pytest.mark.parametrize("sparse_only", [False, True])
def test_second_eigenvalue_of_repairs(name, sparse_only):
    net = getattr(ad.networks.erdos_renyi(600, 0.03, seed=2), name)()
    if sparse_only:
        value = eigenvalues.second_modulus(net, dense_up_to=0).value
    else:
        value = net.second_eigenvalue
    assert value == pytest.approx(moduli(net.W)[-2], rel=1e-8)


def test_second_eigenvalue_with_followers():
    """A closed group of 40, a group of 30 that follows with weight 0.9 inside, and a chain of 100 behind."""
    rng = np.random.default_rng(4)
    core, follow = rng.random((40, 40)), rng.random((30, 30))
    W = np.zeros((170, 170))
    W[:40, :40] = core / core.sum(axis=1, keepdims=True)
    W[40:70, 40:70] = 0.9 * follow / follow.sum(axis=1, keepdims=True)
    W[40:70, 0] = 0.1
    W[np.arange(70, 170), np.arange(69, 169)] = 1.0
    net = Network.from_weights(W)
    assert net.second_eigenvalue == pytest.approx(0.9, rel=1e-12)
    assert eigenvalues.second_modulus(net, dense_up_to=0).value == pytest.approx(0.9, rel=1e-9)
    # A chain behind one leader: all eigenvalues but one are 0, which dense algebra on the whole would miss by 0.5.
    chain = Network.from_edges([(0, 0), *((m, m + 1) for m in range(100))])
    assert chain.second_eigenvalue == 0


def test_circle_in_disorder_is_not_resolved_and_says_so():
    # Only its graph can decide Condition 5 then: W is doubly stochastic, and rows overlap.
    net = ad.networks.directed_circle(8000, 2).reindex(np.random.default_rng(0).permutation(8000))
    with pytest.warns(NetworkWarning, match="the second eigenvalue could not be resolved.*Arnoldi"):
        assert 0.9 < net.second_eigenvalue <= 1
    report = ad.check_network(net)
    assert report["rho"].status == "holds"
    assert "lower bound" in report["rho"].note
    assert report["spectral gap"].status == report["mixing time"].status == "unknown"
    assert "Not resolved: the Arnoldi iteration did not converge" in report["second eigenvalue modulus"].note
    assert "below 1, as there is one closed group" in report["second eigenvalue modulus"].note
    assert "rho at least; eigenvalue about" in report.tables["Repairs"].loc["as is", "note"]


@pytest.mark.parametrize(("value", "status"), [(0.2, "unknown"), (0.9, "fails")])
def test_unbalanced_and_not_resolved(monkeypatch, value, status):
    # A lower bound can show that the condition fails, not that it holds.
    net = ad.networks.fixed_degree(100, 20, seed=1)
    monkeypatch.setattr(
        spectrum, "mixing_norm", lambda *_, **__: eigenvalues.ExtremeEigenvalue(value, "it did not settle")
    )
    report = ad.check_network(net)
    assert (report["mixing"].status, report["rho"].status) == ("unknown", status)
    assert "Not resolved: it did not settle; the value is a lower bound" in report["rho"].note


def test_influence_that_is_not_resolved_is_unknown(monkeypatch):
    def doubtful(*args):
        import warnings

        warnings.warn("the influence of the clients is accurate to 0.1 only", NetworkWarning, stacklevel=2)
        return np.full(100, 0.01)

    monkeypatch.setattr(spectrum, "long_run_weights", doubtful)
    report = ad.check_network(ad.networks.fixed_degree(100, 5, seed=1))
    assert report["effective clients"].status == "unknown"
    assert "accurate to 0.1 only" in report["effective clients"].note


def test_products_in_panels(monkeypatch):
    """Wide matrices are cut; both directions agree with the whole, also where W serves as its own transpose."""
    net = ad.networks.erdos_renyi(300, 0.05, seed=1)
    directed = ad.networks.fixed_degree(300, 5, seed=1).W
    v = np.random.default_rng(0).standard_normal(300)
    for panel in (2**18, 64, 100, 300):
        monkeypatch.setattr(products, "PANEL", panel)
        for by, W in ((net.products, net.W), (products.Products.of(directed), directed)):
            W = W.toarray()
            half = (W + np.eye(300)) / 2
            for found, matrix in ((by, W), (by.lazy(0.5), half), (by.twice(), W @ W)):
                np.testing.assert_allclose(found.forward(v), matrix @ v, atol=1e-14)
                np.testing.assert_allclose(found.backward(v), matrix.T @ v, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_rough_numbers_of_large_networks(monkeypatch, seed):
    """Above 20 000 clients repairs are ranked by numbers of four digits; here at 600, where dense algebra can judge."""
    monkeypatch.setattr(eigenvalues, "EXACT_UP_TO", 500)
    W = ad.networks.erdos_renyi(600, 0.04, seed=seed).lazy(0.5).W
    exact = spectrum.mixing_dense(W)
    assert spectrum.mixing_lanczos(W).value == pytest.approx(exact, rel=1e-6)
    assert spectrum.mixing_lanczos(W, rough=True).value == pytest.approx(exact, rel=1e-4)


def test_growth_rate_stands_in_for_a_modulus():
    W = ad.networks.erdos_renyi(400, 0.05, seed=3, directed=True).W

    def apply(v):
        image = W @ v
        return image - image.mean()

    assert eigenvalues.growth(apply, eigenvalues.start_vector(400)) == pytest.approx(moduli(W)[-2], rel=0.1)


def test_large_network_is_checked_without_dense_algebra(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("dense")

    net = ad.networks.erdos_renyi(20_000, 20 / 20_000, seed=1)
    monkeypatch.setattr(sparse.csr_array, "toarray", refuse)
    report = ad.check_network(net)
    assert report["rho"].status == "holds"
    # Of an Erdos-Renyi graph with mean degree d the modulus is near 2/d^(1/2).
    assert report["second eigenvalue modulus"].value == pytest.approx(2 / math.sqrt(20), rel=0.05)
