"""Balance, mixing, closed groups and influence."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_matrices import small_networks, weight_matrices
from scipy import sparse

from adfl_stats.errors import NetworkWarning
from adfl_stats.network import generators as networks
from adfl_stats.network import spectrum
from adfl_stats.network.network import Network


def cesaro(W, doublings=40):
    """M^-1 1' times the limit of (I + W)/2 to a high power: the same projection as the Cesaro mean of W^t."""
    P = (np.eye(len(W)) + W) / 2
    for _ in range(doublings):
        P = P @ P
        P /= P.sum(axis=1, keepdims=True)
    return P.mean(axis=0)


# ------------------------------------------------------------------ balance and mixing


@given(weight_matrices())
@settings(max_examples=40, deadline=None)
def test_se_and_mixing_by_definition(W):
    net = Network.from_weights(W)
    M = len(W)
    J = np.full((M, M), 1 / M)
    assert net.se == pytest.approx(np.sqrt(np.sum((W.T @ np.ones(M) - 1) ** 2) / M), rel=1e-12, abs=1e-15)
    by_definition = np.linalg.norm(W.T @ (np.eye(M) - J) @ W, 2)
    assert net.mixing == pytest.approx(by_definition, rel=1e-10, abs=1e-14)
    assert net.rho == net.mixing + net.se
    assert net.is_doubly_stochastic == (net.se < 1e-10)


def test_one_client():
    net = Network.from_adjacency([[1]])
    assert (net.mixing, net.se, net.rho, net.n_edges, net.effective_clients) == (0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    "net",
    [
        networks.directed_circle(600, 30),
        networks.fixed_degree(600, 6, seed=1),
        networks.erdos_renyi(600, 0.03, seed=1),
        networks.scale_free(600, 2, seed=1),
        networks.central_client(600),
        networks.complete(600, self_loops=False),
    ],
    ids=["circle", "fixed", "er", "scale_free", "star", "complete"],
)
def test_lanczos_agrees_with_dense(net):
    found = spectrum.mixing_lanczos(net.W)
    assert found == spectrum.mixing_lanczos(net.W)  # the same on each call
    assert found.trouble == ""
    dense = spectrum.mixing_dense(net.W)
    assert found.value == pytest.approx(dense, rel=1e-8, abs=1e-12)
    assert net.mixing == pytest.approx(dense, rel=1e-8, abs=1e-12)


def test_lanczos_with_nothing_left_to_mix():
    assert spectrum.mixing_lanczos(networks.complete(600).W).value < 1e-14


def test_lanczos_that_does_not_converge_bounds_from_below():
    W = networks.directed_circle(2000, 3).W
    found = spectrum.mixing_lanczos(W, steps=100)
    k = np.arange(1, 2000) * np.pi / 2000
    exact = np.max((np.sin(3 * k) / (3 * np.sin(k))) ** 2)
    assert exact - 0.1 < found.value <= exact + 1e-12
    assert found.trouble.startswith("the Lanczos iteration did not converge in 100 steps, with residual")


def test_mixing_that_is_not_resolved_warns():
    # A circle in disorder: no Fourier transform helps, and its eigenvalues lie 10^-7 apart.
    net = networks.directed_circle(5000, 2).reindex(np.random.default_rng(0).permutation(5000))
    with pytest.warns(NetworkWarning, match="could not be resolved, and is at least 0.99.*with residual .*neighbours"):
        assert 0.99 < net.mixing < 1


# ------------------------------------------------------------------ closed groups and influence


@pytest.mark.parametrize(("name", "net"), list(small_networks()))
def test_influence_is_the_leading_left_eigenvector(name, net):
    assert net.is_strongly_connected
    values, vectors = np.linalg.eig(net.W.toarray().T)
    lead = vectors[:, np.argmin(np.abs(values - 1))].real
    np.testing.assert_allclose(net.influence, lead / lead.sum(), rtol=1e-9)
    assert net.effective_clients == pytest.approx(lead.sum() ** 2 / (lead @ lead), rel=1e-9)


@given(weight_matrices(most=9))
@settings(max_examples=60, deadline=None)
def test_influence_is_the_long_run_mean(W):
    np.testing.assert_allclose(Network.from_weights(W).influence, cesaro(W), rtol=1e-6, atol=1e-9)


def test_influence_with_two_closed_groups_by_hand():
    # p and q hear each other (q also itself); r hears itself; s hears p (1/4) and r (3/4); t hears s and q.
    edges = [("q", "p", 1), ("p", "q", 1), ("q", "q", 1), ("r", "r", 1)]
    edges += [("p", "s", 1), ("r", "s", 3), ("s", "t", 1), ("q", "t", 1)]
    net = Network.from_edges(edges)
    assert net.closed_groups == [["p", "q"], ["r"]]
    assert not net.is_strongly_connected
    # s ends with {p, q} by 1/4, t by 1/2 + 1/8; inside, pi_p = pi_q / 2.
    followers = 2 + 1 / 4 + 5 / 8
    expected = {"p": followers / 15, "q": 2 * followers / 15, "r": (5 - followers) / 5, "s": 0, "t": 0}
    assert net.influence.to_dict() == pytest.approx(expected, rel=1e-14, abs=0)


def test_influence_of_a_periodic_network():
    # The star has period 2: powers of W do not converge, the mean of them does.
    net = networks.central_client(11)
    np.testing.assert_allclose(net.influence, [0.5] + [0.05] * 10, rtol=1e-14)


def test_influence_keeps_relative_accuracy_when_tiny():
    # A walk that goes back to 0 or up by one, each with probability 1/2: pi_m = 2^-(m+1) below the top.
    M = 80
    W = np.zeros((M, M))
    W[:, 0] = 0.5
    W[np.arange(M - 1), np.arange(1, M)] = 0.5
    W[-1, 0] = 1.0
    expected = 0.5 ** np.arange(M)
    np.testing.assert_allclose(Network.from_weights(W).influence, expected / expected.sum(), rtol=1e-12)


def test_influence_of_clients_that_hardly_hear_each_other():
    # Only the ratio of the tiny weights counts; taken as 1 minus the diagonal, they would be noise.
    e = 1e-9
    net = Network.from_weights([[1 - e, e], [2 * e, 1 - 2 * e]])
    np.testing.assert_allclose(net.influence, [2 / 3, 1 / 3], rtol=1e-12)


def test_doubly_stochastic_has_exactly_equal_influence():
    assert (networks.directed_circle(30, 7).influence == 1 / 30).all()
    # Two groups that do not talk are doubly stochastic too.
    net = Network.from_weights(np.kron(np.eye(2), np.full((3, 3), 1 / 3)))
    assert (net.influence == 1 / 6).all()
    assert net.closed_groups == [[0, 1, 2], [3, 4, 5]]


def large_group(followers):
    """1200 clients that hear one another with unequal weights, and some who only listen to chains."""
    rng = np.random.default_rng(5)
    core = sparse.random_array((1200, 1200), density=0.01, rng=rng, format="csr")
    core = core + sparse.csr_array(np.roll(np.eye(1200), 1, axis=1))
    hear = sparse.random_array((followers, 1200), density=0.002, rng=rng, format="csr")
    chain = sparse.diags_array(np.ones(max(followers - 1, 0)), offsets=-1, shape=(followers, followers))
    start = sparse.csr_array(([1.0], ([0], [0])), shape=(followers, 1200))
    A = sparse.csr_array(sparse.block_array([[core, None], [hear + start, chain]]))
    return Network.from_weights(sparse.csr_array(A / A.sum(axis=1)[:, None]))


def test_sparse_influence_agrees_with_the_eigenvector():
    net = large_group(followers=1300)
    assert [len(group) for group in net.closed_groups] == [1200]
    core = net.W.toarray()[:1200, :1200]
    pi = np.linalg.solve(np.vstack([(core.T - np.eye(1200))[:-1], np.ones(1200)]), np.eye(1200)[-1])
    np.testing.assert_allclose(net.influence.to_numpy()[:1200], pi, rtol=1e-8)
    assert (net.influence.to_numpy()[1200:] == 0).all()


def test_sparse_influence_of_a_periodic_group():
    # Two sides of 600 hear the other side only, with unequal weights.
    rng = np.random.default_rng(2)
    side = rng.random((2, 600, 600))
    side /= side.sum(axis=2, keepdims=True)
    W = np.block([[np.zeros((600, 600)), side[0]], [side[1], np.zeros((600, 600))]])
    net = Network.from_weights(W)
    pi = net.influence.to_numpy()
    assert np.abs(pi @ W - pi).sum() < 1e-10
    np.testing.assert_allclose(pi, cesaro(W, doublings=12), rtol=1e-8)


def test_power_iteration_alone_copes_with_a_period(monkeypatch):
    # Sides of 3 and 5: from equal weights the plain iteration would swing for ever.
    def fails(*args, **kwargs):
        raise sparse.linalg.ArpackNoConvergence("no convergence", np.empty(0), np.empty((8, 0)))

    monkeypatch.setattr(spectrum.linalg, "eigs", fails)
    rng = np.random.default_rng(3)
    W = np.zeros((8, 8))
    W[:3, 3:], W[3:, :3] = rng.random((3, 5)), rng.random((5, 3))
    W /= W.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(spectrum._stationary_sparse(sparse.csr_array(W)), cesaro(W), rtol=1e-8)


def test_sparse_influence_that_does_not_converge_warns():
    W = large_group(followers=1).lazy(0.999).W[:1200, :1200]
    with pytest.warns(NetworkWarning, match="influence of the clients is accurate to .* only"):
        spectrum._stationary_sparse(W, most=2)


@pytest.mark.parametrize("kind", ["chain", "random"])
def test_shares_with_many_followers(kind):
    """Both ways to solve for the shares, iterative and direct, on 1500 followers of two leaders."""
    n = 1500
    rng = np.random.default_rng(8)
    A = np.zeros((n + 2, n + 2))
    A[0, 0] = A[1, 1] = 1
    if kind == "chain":
        # The gambler's walk between two leaders: from place i the chance to end at the far one is i/(n + 1).
        for i in range(n):
            A[i + 2, 0 if i == 0 else i + 1] = A[i + 2, 1 if i == n - 1 else i + 3] = 0.5
        second = 0.5
    else:
        A[2:] = rng.random((n, n + 2)) * (rng.random((n, n + 2)) < 0.01)
        A[2:, 1] += 0.1
        A[2:] /= A[2:].sum(axis=1, keepdims=True)
        end = np.linalg.solve(np.eye(n) - A[2:, 2:], A[2:, 1])
        second = (1 + end.sum()) / (n + 2)
    influence = Network.from_weights(A).influence.to_numpy()
    np.testing.assert_allclose(influence[:2], [1 - second, second], rtol=1e-9)
    assert (influence[2:] == 0).all()
