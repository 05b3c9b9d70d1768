"""Rules of combination against closed forms, hand-made pools and general optimisers."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine import reference
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange
from adfl_stats.engine.rules import MEAN, RULES, Rule
from adfl_stats.losses.glm import GLM

BOTH = pytest.mark.parametrize("module", [_kernels, reference], ids=["kernel", "twin"])


def of_pool(module, rule, pool, weights=None, bad=None):
    """What client 0 makes of a pool whose first row is its own."""
    pool = np.atleast_2d(np.asarray(pool, dtype=float).T).T if np.ndim(pool) == 1 else np.asarray(pool, dtype=float)
    n = len(pool)
    weights = np.full(n, 1.0 / n) if weights is None else np.asarray(weights, dtype=float)
    marks = None if bad is None else np.asarray(bad, dtype=np.uint8)
    combiner = module.Combiner(
        np.array([0, n], dtype=np.int64),
        np.arange(n, dtype=np.int64),
        weights,
        rule.code,
        rule.count,
        rule.value,
        marks,
    )
    out = np.empty((1, 1, pool.shape[1]))
    module.combine(combiner, np.ascontiguousarray(pool)[:, None, :], out)
    return out[0, 0]


def test_names_stand_in_the_order_of_the_kernel():
    header = Path(__file__).parents[2].joinpath("src_ext", "rules.h").read_text(encoding="utf-8")
    listed = re.search(r"enum \{\s+ADFL_MEAN,.*?\};", header, re.S).group()
    *codes, last = re.findall(r"ADFL_(\w+)", listed)
    assert [code.lower().replace("_", "-") for code in codes] == list(RULES)
    assert last == "N_RULES"


# ------------------------------------------------------------------ coordinate rules


@BOTH
def test_the_median_of_an_even_pool_is_the_midpoint(module):
    assert of_pool(module, Rule("median"), [0.0, 10.0, 1.0, 4.0]) == 2.5
    assert of_pool(module, Rule("median"), [0.0, 10.0, 1.0, 4.0, 3.0]) == 3.0


@BOTH
@pytest.mark.parametrize("n", [3, 4, 9, 32])
def test_trimming_drops_neighbours_only(module, n):
    rng = np.random.default_rng(n)
    pool = rng.standard_cauchy(size=(n + 1, 70))
    for b in range((n - 1) // 2 + 1):
        # scipy takes a share and truncates b; half a value more keeps it at b.
        kept = stats.trim_mean(pool[1:], (b + 0.5) / n, axis=0) if b else pool[1:].mean(axis=0)
        expected = (pool[0] + (n - 2 * b) * kept) / (n - 2 * b + 1)
        assert_allclose(of_pool(module, Rule("trimmed", b), pool), expected, rtol=1e-11, atol=1e-12)


@BOTH
def test_trimming_nothing_is_the_mean(module):
    pool = np.random.default_rng(0).normal(size=(7, 5))
    assert_allclose(of_pool(module, Rule("trimmed", 0), pool), pool.mean(axis=0), rtol=1e-14)


# ------------------------------------------------------------------ vector rules

# Own estimate, three near one another, and two far out on different sides.
SQUARE = np.array([[3.0, 0.0], [0.0, 0.0], [0.2, 0.0], [0.0, 0.2], [50.0, 50.0], [-60.0, 10.0]])


@BOTH
def test_krum_picks_the_point_among_its_own(module):
    # Two nearest others count, 6 - 2 - 2: the scores are 17.065, .08, .12, .12, far, far.
    assert_array_equal(of_pool(module, Rule("krum", 2), SQUARE), [0.0, 0.0])
    # With b = 0 four nearest count: (0, 0) still has the least sum.
    d = ((SQUARE[:, None] - SQUARE[None]) ** 2).sum(axis=2)
    scores = np.sort(d, axis=1)[:, 1:5].sum(axis=1)
    assert_array_equal(of_pool(module, Rule("krum", 0), SQUARE), SQUARE[np.argmin(scores)])


@BOTH
def test_bulyan_is_the_trimmed_mean_of_krums_picks(module):
    # b = 1 of 6 leaves four picks: the two far ones go, and of (3, 0), (0, 0), (.2, 0), (0, .2) each
    # coordinate loses its ends.
    assert_allclose(of_pool(module, Rule("bulyan", 1), SQUARE), [0.1, 0.0], atol=1e-15)


@BOTH
def test_bulyan_without_bad_neighbours_is_the_mean(module):
    assert_allclose(of_pool(module, Rule("bulyan", 0), SQUARE), SQUARE.mean(axis=0), rtol=1e-14)


@BOTH
def test_ios_and_nna_drop_what_is_farthest_from_the_mean_and_from_oneself(module):
    pool, weights = np.array([0.0, 1.0, 2.0, 3.0, 11.0]), np.array([0.2, 0.1, 0.3, 0.1, 0.3])
    # IOS: the mean is 4.3, 11 goes; the mean is 1.43, which 3 is farthest from.
    assert_allclose(of_pool(module, Rule("ios", 2), pool, weights), (0.1 + 0.6) / 0.6, rtol=1e-14)
    # The client itself stays however far: with itself at 20, IOS drops 1 and then 2.
    far = np.array([20.0, 1.0, 2.0, 11.0, 12.0])
    assert_allclose(of_pool(module, Rule("ios", 2), far), (20 + 11 + 12) / 3, rtol=1e-14)
    assert_allclose(of_pool(module, Rule("nna", 2), far), (20 + 11 + 12) / 3, rtol=1e-14)
    assert_allclose(of_pool(module, Rule("nna", 1), pool, weights), (0.1 + 0.6 + 0.3) / 0.7, rtol=1e-14)


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_the_geometric_median_is_the_minimiser(module, seed):
    rng = np.random.default_rng(seed)
    pool, weights = rng.normal(size=(8, 3)), rng.uniform(0.5, 1.5, size=8)
    pool[-2:] += 40.0
    smoothing = 1e-9
    found = of_pool(module, Rule("geometric", 500, smoothing), pool, weights)

    def total(z):
        return weights @ np.linalg.norm(pool - z, axis=1)

    # A search without derivatives; its own tolerance is what the two can agree to.
    best = optimize.minimize(total, np.median(pool, axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 0})
    assert_allclose(found, best.x, atol=1e-6)
    # Smoothing may cost each row as much as itself where the minimiser is one of the rows.
    assert total(found) <= total(best.x) + smoothing * weights.sum()


@BOTH
def test_differences_are_clipped_to_the_radius(module):
    pool, weights = np.array([[1.0, 0.0], [1.0, 3.0], [5.0, 0.0], [1.0, 0.5]]), np.array([0.4, 0.3, 0.2, 0.1])
    # Distances 3, 4 and .5 from the own estimate (1, 0).
    assert_allclose(of_pool(module, Rule("clip", value=2.0), pool, weights), [1 + 0.2 * 2, 0.3 * 2 + 0.1 * 0.5])
    assert_allclose(of_pool(module, Rule("clip-second"), pool, weights), [1 + 0.2 * 3, 0.3 * 3 + 0.1 * 0.5])
    # Bad weight .2: the client itself, .5 and 3 are kept, and the radius is sqrt((.1 x .25 + .3 x 9) / .2) = 3.69.
    radius = np.sqrt((0.1 * 0.25 + 0.3 * 9) / 0.2)
    expected = [1 + 0.2 * radius, 0.3 * 3 + 0.1 * 0.5]
    assert_allclose(of_pool(module, Rule("clip-declared", value=0.2), pool, weights), expected)
    assert_allclose(of_pool(module, Rule("clip-known"), pool, weights, [0, 0, 1, 0]), expected)
    # More than the outer two declared bad: only the client itself and .5 are kept.
    radius = np.sqrt(0.1 * 0.25 / 0.45)
    expected = [1 + 0.2 * radius, (0.3 + 0.1) * radius]
    assert_allclose(of_pool(module, Rule("clip-declared", value=0.45), pool, weights), expected)


@BOTH
@pytest.mark.parametrize("rule", [Rule("clip", value=np.inf), Rule("clip-declared"), Rule("clip-known")])
def test_clipping_without_bounds_is_gossip(module, rule):
    rng = np.random.default_rng(1)
    pool, weights = rng.normal(size=(6, 4)), rng.dirichlet(np.ones(6))
    assert_allclose(of_pool(module, rule, pool, weights, np.zeros(6)), weights @ pool, rtol=1e-13)


@BOTH
def test_one_neighbour_sets_its_own_radius(module):
    assert_allclose(of_pool(module, Rule("clip-second"), [0.0, 8.0], [0.5, 0.5]), 4.0)


NAMED = [
    Rule("median"),
    Rule("trimmed", 1),
    Rule("krum", 1),
    Rule("bulyan", 1),
    Rule("clip", value=0.5),
    Rule("clip-second"),
    Rule("clip-declared", value=0.2),
    Rule("geometric", 10, 1e-6),
    Rule("ios", 1),
    Rule("nna", 1),
]


def mixing_of(module, rule, rng, M, least):
    """Ragged neighbourhoods, each with the client first."""
    pools = []
    for m in range(M):
        others = np.setdiff1d(np.arange(M), m)
        pools.append(np.concatenate([[m], rng.choice(others, size=rng.integers(least, M), replace=False)]))
    indptr = np.concatenate([[0], np.cumsum([len(pool) for pool in pools])]).astype(np.int64)
    weights = np.concatenate([rng.dirichlet(np.ones(len(pool))) for pool in pools])
    return module.Combiner(indptr, np.concatenate(pools).astype(np.int64), weights, rule.code, rule.count, rule.value)


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.name)
@pytest.mark.parametrize("size", [3, 8, 70])
def test_runs_do_not_see_each_other(rule, size):
    theta = np.random.default_rng(size).normal(size=(9, 4, size))
    together, alone = np.empty_like(theta), np.empty((9, 1, size))
    _kernels.combine(mixing_of(_kernels, rule, np.random.default_rng(5), 9, 5), theta, together)
    for r in range(4):
        combiner = mixing_of(_kernels, rule, np.random.default_rng(5), 9, 5)
        _kernels.combine(combiner, np.ascontiguousarray(theta[:, r : r + 1]), alone)
        assert_array_equal(together[:, r], alone[:, 0])


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.name)
def test_rules_move_with_the_estimates_and_keep_agreement(rule):
    rng = np.random.default_rng(2)
    theta, shift = rng.normal(size=(9, 1, 6)), rng.normal(size=6)
    plain, moved, agreed = (np.empty_like(theta) for _ in range(3))
    combiner = mixing_of(_kernels, rule, rng, 9, 5)
    _kernels.combine(combiner, theta, plain)
    _kernels.combine(combiner, theta + shift, moved)
    assert_allclose(moved, plain + shift, rtol=0, atol=1e-12)
    same = np.ascontiguousarray(np.broadcast_to(shift, theta.shape))
    _kernels.combine(combiner, same, agreed)
    assert_allclose(agreed, same, rtol=0, atol=1e-15)


# ------------------------------------------------------------------ pools from networks


def exchange(net, rule):
    M = net.n_clients
    rng = np.random.default_rng(0)
    data = ad.ClientData.from_arrays(rng.normal(size=(4 * M, 2)), rng.normal(size=4 * M), np.repeat(np.arange(M), 4))
    return Exchange(Problem(GLM(data, ad.DecentralizedGLM(data, net).family), net), rule)


def test_only_in_neighbours_count_on_a_directed_network():
    net = ad.networks.directed_circle(10, 2)
    sent = np.random.default_rng(1).normal(size=(10, 3))
    found = exchange(net, Rule("median")).combine(sent)
    hears = net.W.toarray() > 0
    for m in range(10):
        assert hears[m].sum() == 2
        assert_array_equal(found[m], np.median(np.vstack([sent[m], sent[hears[m]]]), axis=0))


def test_clients_without_own_weight_join_their_neighbours():
    A = np.array([[0, 1, 1, 0], [1, 0, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]])
    net = ad.Network.from_adjacency(A)
    sent = np.random.default_rng(1).normal(size=(4, 3))
    # The third client has a self loop and keeps its weights.
    expected = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=float)
    expected /= expected.sum(axis=1, keepdims=True)
    assert_allclose(exchange(net, Rule("clip", value=np.inf)).combine(sent), expected @ sent, rtol=1e-13)
    assert_allclose(exchange(net, MEAN).combine(sent), net.W @ sent, rtol=1e-13)
