"""Generators: closed forms, distributions, reproducibility, scale."""

import time
import tracemalloc
import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adfl_stats.errors import NetworkWarning
from adfl_stats.network import draws
from adfl_stats.network import generators as networks

GENERATORS = {
    "erdos_renyi": lambda seed: networks.erdos_renyi(80, 0.1, seed=seed),
    "erdos_renyi_directed": lambda seed: networks.erdos_renyi(80, 0.1, seed=seed, directed=True),
    "fixed_degree": lambda seed: networks.fixed_degree(80, 6, seed=seed),
    "fixed_degree_dense": lambda seed: networks.fixed_degree(80, 60, seed=seed),
    "small_world": lambda seed: networks.small_world(80, 6, 0.2, seed=seed),
    "scale_free": lambda seed: networks.scale_free(80, 2, seed=seed),
    "random_geometric": lambda seed: networks.random_geometric(80, 0.3, seed=seed),
    "stochastic_block": lambda seed: networks.stochastic_block([30, 50], 0.3, 0.05, seed=seed),
}
UNDIRECTED = [name for name in GENERATORS if "directed" not in name and "fixed" not in name]


def support(net):
    return net.W.toarray() > 0


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize(("M", "D"), [(7, 2), (10, 3), (10, 9), (51, 5), (100, 30)])
def test_circle(M, D):
    net = networks.directed_circle(M, D)
    W = net.W.toarray()
    for m in range(M):
        assert set(np.flatnonzero(W[m])) == {(m + d) % M for d in range(1, D + 1)}
    k = np.pi * np.arange(1, M) / M
    modulus = np.abs(np.sin(k * D) / (D * np.sin(k)))
    found = np.sort(np.abs(np.linalg.eigvals(W)))[:-1]
    np.testing.assert_allclose(found, np.sort(modulus), atol=1e-10)
    # A circulant matrix is normal: singular values are moduli of eigenvalues.
    assert net.mixing == pytest.approx(modulus.max() ** 2, rel=1e-10)
    assert net.se < 1e-14
    assert net.is_doubly_stochastic


@pytest.mark.parametrize(("D", "self_loops", "mixing"), [(5, False, 0.9921), (5, True, 0.9885), (30, False, 0.7371)])
def test_circle_at_the_papers_settings(D, self_loops, mixing):
    assert networks.directed_circle(100, D, self_loops=self_loops).rho == pytest.approx(mixing, abs=5e-5)


def test_circle_of_degree_one_never_mixes():
    with pytest.warns(NetworkWarning, match=r"never mixes \(rho = 1\).*use D of 2 or more, or self_loops=True"):
        net = networks.directed_circle(20, 1)
    assert net.rho == pytest.approx(1.0, abs=1e-14)
    assert networks.directed_circle(20, 1, self_loops=True).rho < 1


@pytest.mark.parametrize("M", [2, 3, 10, 100])
def test_central_client(M):
    net = networks.central_client(M)
    assert net.se**2 == pytest.approx((M - 2) ** 2 / (M - 1), rel=1e-12, abs=1e-15)
    assert net.n_edges == 2 * (M - 1)
    assert net.in_degree.iloc[0] == M - 1


def test_complete():
    net = networks.complete(40)
    np.testing.assert_array_equal(net.W.toarray(), 1 / 40)
    assert net.mixing < 1e-25
    assert net.se < 1e-14
    assert networks.complete(1).n_clients == 1
    # Without self loops W = (11' - I)/(M - 1), whose other eigenvalues are -1/(M - 1).
    assert networks.complete(40, self_loops=False).mixing == pytest.approx(1 / 39**2, rel=1e-10)


# ------------------------------------------------------------------ distributions


@pytest.mark.parametrize("D", [5, 30])
def test_fixed_degree_imbalance(D):
    M, draws = 100, 200
    squares = np.array([networks.fixed_degree(M, D, seed=seed).se ** 2 for seed in range(draws)])
    expected = (1 - D / (M - 1)) / D
    # Five standard errors of the mean over the draws: false alarm about once in two million seeds.
    assert abs(squares.mean() - expected) < 5 * squares.std(ddof=1) / np.sqrt(draws)
    assert squares.std() / np.sqrt(draws) < 0.02 * expected  # so that the band is a narrow one


@pytest.mark.parametrize(("M", "D"), [(2, 1), (9, 3), (9, 8), (300, 3), (300, 250)])
def test_fixed_degree_rows(M, D):
    net = networks.fixed_degree(M, D, seed=4)
    assert (net.in_degree == D).all()
    assert net.n_edges == M * D  # different senders, none the client itself


@pytest.mark.parametrize("draw", [draws._distinct_by_comparing, draws._distinct_by_sorting])
def test_subsets_are_uniform(draw):
    # 3 of 5 others: 10 subsets, each row one draw; chi-square with 9 degrees of freedom < 28 with p = .999.
    rng = np.random.default_rng(6)
    rows = np.concatenate([draw(rng, 6, 3) for _ in range(2000)])
    _, counts = np.unique((1 << rows).sum(axis=1), return_counts=True)
    assert len(counts) == 10
    mean = len(rows) / 10
    assert np.sum((counts - mean) ** 2) / mean < 28


def within_binomial(found, trials, q):
    return abs(found - trials * q) < 5 * np.sqrt(trials * q * (1 - q))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("q", [0.03, 0.3, 0.9])
def test_erdos_renyi(q, seed):
    M = 400
    net = networks.erdos_renyi(M, q, seed=seed)
    assert within_binomial(net.n_edges / 2, M * (M - 1) / 2, q)
    np.testing.assert_array_equal(support(net), support(net).T)
    one_way = networks.erdos_renyi(M, q, seed=seed, directed=True)
    assert within_binomial(one_way.n_edges, M * (M - 1), q)
    assert (support(one_way) != support(one_way).T).any()
    for each in (net, one_way):
        assert not support(each).diagonal().any()
        assert each.in_degree.min() > 0


def test_erdos_renyi_is_exactly_conditioned():
    # On 3 clients with q = 1/2, given that nobody is isolated: 3 paths and the triangle, equally likely.
    counts = np.bincount([networks.erdos_renyi(3, 0.5, seed=s).n_edges // 2 for s in range(2000)], minlength=4)
    assert counts[:2].sum() == 0
    assert within_binomial(counts[3], 2000, 0.25)


def test_erdos_renyi_self_loops_leave_the_rest():
    plain, looped = (
        networks.erdos_renyi(50, 0.2, seed=1),
        networks.erdos_renyi(50, 0.2, seed=1, self_loops=True),
    )
    np.testing.assert_array_equal(support(plain) | np.eye(50, dtype=bool), support(looped))


def test_erdos_renyi_with_certain_edges():
    np.testing.assert_array_equal(support(networks.erdos_renyi(8, 1.0)), ~np.eye(8, dtype=bool))


def test_a_split_network_is_reported():
    with pytest.warns(NetworkWarning, match=r"2 closed group\(s\), whose 20 members \(of 20 clients\)"):
        net = networks.stochastic_block([10, 10], 0.9, 0.0, seed=1)
    assert net.closed_groups == [list(range(10)), list(range(10, 20))]


@pytest.mark.parametrize("directed", [False, True])
def test_erdos_renyi_warns_exactly_when_split(directed):
    seen = set()
    for seed in range(60):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net = networks.erdos_renyi(12, 0.25, seed=seed, directed=directed)
        graph = net.to_networkx()
        split = not nx.is_strongly_connected(graph)
        seen.add(split)
        assert [each.category for each in caught] == [NetworkWarning] * split
        if split:
            groups = sum(1 for _ in nx.attracting_components(graph.reverse()))
            assert f"not strongly connected: it has {groups} closed group(s)" in str(caught[0].message)
            assert caught[0].filename == __file__
    assert seen == {True, False}


def test_fixed_degree_warns_only_without_consensus():
    # With D = 1 clients nobody hears are the rule, and often there are several closed cycles.
    with pytest.warns(NetworkWarning, match="closed group") as caught:
        nets = [networks.fixed_degree(30, 1, seed=seed) for seed in range(20)]
    split = [len(net.closed_groups) > 1 for net in nets]
    assert len(caught) == sum(split)
    assert not all(split)


def test_blocks():
    sizes, p_in, p_out = [150, 250], 0.3, 0.05
    A = support(networks.stochastic_block(sizes, p_in, p_out, seed=2))
    np.testing.assert_array_equal(A, A.T)
    assert within_binomial(A[:150, :150].sum() / 2, 150 * 149 / 2, p_in)
    assert within_binomial(A[150:, 150:].sum() / 2, 250 * 249 / 2, p_in)
    assert within_binomial(A[:150, 150:].sum(), 150 * 250, p_out)


def test_geometric_edges_are_the_short_ones():
    M, radius = 120, 0.25
    net = networks.random_geometric(M, radius, seed=7)
    points = np.random.default_rng(7).random((M, 2))
    near = np.linalg.norm(points[:, None] - points[None], axis=2) <= radius
    np.testing.assert_array_equal(support(net), near & ~np.eye(M, dtype=bool))


def test_small_world_and_scale_free():
    ring = networks.small_world(20, 4, 0.0)
    for m in range(20):
        assert set(np.flatnonzero(support(ring)[m])) == {(m + d) % 20 for d in (-2, -1, 1, 2)}
    assert networks.small_world(50, 6, 0.5, seed=1).n_edges == 50 * 6
    grown = networks.scale_free(200, 3, seed=1)
    assert grown.n_edges == 2 * 3 * (200 - 3)
    assert grown.in_degree.max() > 4 * grown.in_degree.median()


@given(st.integers(1, 500), st.floats(0, 1), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_successes_are_places_in_order(total, q, seed):
    places = draws.successes(np.random.default_rng(seed), total, q)
    assert (np.diff(places) > 0).all()
    assert places.size == 0 or (places[0] >= 0 and places[-1] < total)


@pytest.mark.parametrize("q", [1e-300, 1e-6, 0.2, 0.7])
def test_each_place_succeeds_with_probability_q(q):
    rng = np.random.default_rng(3)
    hits = np.zeros(7)
    for _ in range(3000):
        hits[draws.successes(rng, 7, q)] += 1
    for found in hits:
        assert abs(found - 3000 * q) < 5 * np.sqrt(3000 * q * (1 - q)) + 1


@pytest.mark.parametrize("start", [0, 10**6, 4 * 10**17])
def test_triangle_counts_all_pairs(start):
    position = np.arange(start, start + 2000)
    low, high = draws.triangle(position)
    assert ((low >= 0) & (low < high)).all()
    np.testing.assert_array_equal(high * (high - 1) // 2 + low, position)


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", GENERATORS)
def test_seeds(name):
    make = GENERATORS[name]
    one = make(5).W.toarray()
    np.testing.assert_array_equal(one, make(5).W.toarray())
    np.testing.assert_array_equal(one, make(np.random.default_rng(5)).W.toarray())
    assert (one != make(6).W.toarray()).any()
    np.testing.assert_allclose(one.sum(axis=1), 1, rtol=0, atol=1e-14)
    generator = np.random.default_rng(5)
    make(generator)
    assert (one != make(generator).W.toarray()).any()  # a generator moves on


@pytest.mark.parametrize("name", UNDIRECTED)
def test_undirected(name):
    A = support(GENERATORS[name](1))
    np.testing.assert_array_equal(A, A.T)
    assert not A.diagonal().any()


def test_labels():
    names = list("abcdef")
    nets = [
        networks.directed_circle(6, 2, labels=names),
        networks.complete(6, labels=names),
        networks.central_client(6, labels=names),
        networks.fixed_degree(6, 3, seed=1, labels=names),
        networks.erdos_renyi(6, 0.9, seed=1, labels=names),
        networks.small_world(6, 2, 0.0, labels=names),
        networks.scale_free(6, 2, seed=1, labels=names),
        networks.random_geometric(6, 1.0, seed=1, labels=names),
        networks.stochastic_block([3, 3], 1.0, 1.0, seed=1, labels=names),
    ]
    for net in nets:
        assert list(net.labels) == names


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: networks.directed_circle(1, 1), ValueError, "M is 1; it must be at least 2"),
        (lambda: networks.directed_circle(5, 0), ValueError, "D is 0; it must be at least 1"),
        (lambda: networks.directed_circle(5, 5), ValueError, "D is 5; with M = 5 clients .* M - 1 = 4"),
        (lambda: networks.directed_circle(5.0, 2), TypeError, "M must be a whole number, got 5.0"),
        (lambda: networks.complete(5001), ValueError, r"M is 5001.*limited to M = 5000.*fixed_degree"),
        (lambda: networks.complete(1, self_loops=False), ValueError, "M is 1; it must be at least 2"),
        (lambda: networks.central_client(1), ValueError, "M is 1; it must be at least 2"),
        (lambda: networks.fixed_degree(5, 5), ValueError, "D is 5; with M = 5 clients"),
        (lambda: networks.fixed_degree(5, 2, seed=-1), ValueError, "seed is -1; it must be at least 0"),
        (lambda: networks.fixed_degree(5, 2, seed="x"), TypeError, "seed must be a whole number"),
        (lambda: networks.erdos_renyi(5, 1.2), ValueError, r"q is 1.2; it must lie in \[0, 1\]"),
        (
            lambda: networks.erdos_renyi(3, 0.0, seed=1),
            ValueError,
            "q is 0, an expected degree of 0 for M = 3.*isolated in each of 1000 draws; raise q",
        ),
        (lambda: networks.small_world(10, 3, 0.1), ValueError, "k is 3; it must be even"),
        (lambda: networks.small_world(10, 10, 0.1), ValueError, "k is 10; .* below M = 10"),
        (lambda: networks.small_world(10, 2, -0.1), ValueError, "beta is -0.1"),
        (lambda: networks.scale_free(5, 5), ValueError, "m is 5; with M = 5 clients"),
        (lambda: networks.random_geometric(50, 0.0), ValueError, r"radius is 0; it must lie in \(0, "),
        (
            lambda: networks.random_geometric(500, 0.01),
            ValueError,
            "radius is 0.01, an expected degree of 0.157 or less.*would be isolated.*raise radius, to 0.066",
        ),
        (lambda: networks.stochastic_block([3, 0], 0.5, 0.5), ValueError, "each of sizes is 0"),
        (lambda: networks.stochastic_block([1], 0.5, 0.5), ValueError, "the sum of sizes is 1"),
        (lambda: networks.stochastic_block([5, 5], 2.0, 0.5), ValueError, "p_in is 2"),
        (
            lambda: networks.stochastic_block([50, 50], 0.01, 0.0),
            ValueError,
            "p_in is 0.01 and p_out 0, an expected degree of 0.49: .* raise p_in or p_out",
        ),
    ],
)
def test_messages(call, error, match):
    with pytest.raises(error, match=match):
        call()


# ------------------------------------------------------------------ scale


def test_hopeless_draws_fail_at_once():
    begin = time.process_time()
    with pytest.raises(ValueError, match=r"expected degree of 5 for M = 1000000.*6.74e\+03 clients would be isolated"):
        networks.erdos_renyi(1_000_000, 5 / 999_999, seed=1)
    assert time.process_time() - begin < 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda M: networks.fixed_degree(M, 10, seed=1),
        lambda M: networks.erdos_renyi(M, 20 / M, seed=1),
        lambda M: networks.erdos_renyi(M, 20 / M, seed=1, directed=True),
    ],
    ids=["fixed_degree", "erdos_renyi", "directed"],
)
def test_a_hundred_thousand_clients(make):
    begin = time.process_time()
    net = make(100_000)
    assert 0 < net.se < 1
    assert time.process_time() - begin < 5  # takes about 0.5 s; a matrix of M^2 entries would need 80 GB
    tracemalloc.start()
    try:
        net.lazy().se  # noqa: B018 - computed for its memory
        assert tracemalloc.get_traced_memory()[1] < 1e9
    finally:
        tracemalloc.stop()
