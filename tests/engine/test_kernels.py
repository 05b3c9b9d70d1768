"""The kernel equals its NumPy twin, to the bit for any threads."""

import dataclasses
import itertools

import numpy as np
import pytest
from kernel_cases import (
    COLUMNS,
    EXTRAS,
    FAMILIES,
    LONG,
    RULES,
    SIZES,
    STEADY,
    Case,
    assert_close,
    assert_rounds_close,
    combine,
    gradient,
    gram,
    make,
    pools,
    rounds,
)
from numpy.testing import assert_array_equal

from adfl_stats import _kernels
from adfl_stats.engine import reference

USUAL = [name for name, family in FAMILIES.items() if family.code <= FAMILIES["huber"].code]


EXACT = {"median", "krum"}


RUNS = (1, 2, 3, 4, 5, 8)


# Multiply-adds above which the kernel uses more than one thread.
THREAD_WORK = 4e5


# Every family with every pair of p and runs would be over 700 cases. Tiles depend on (p, runs x outputs), so all
# pairs of p and runs are here with the usual links in turn; and all families with all extras, p and runs in turn.
SHAPES = [
    (name, p, runs, sizes, EXTRAS[k % len(EXTRAS)])
    for k, ((p, runs), name, sizes) in enumerate(
        zip(itertools.product(COLUMNS, RUNS), itertools.cycle(USUAL), itertools.cycle(SIZES), strict=False)
    )
]
KINDS = [
    (name, COLUMNS[k % len(COLUMNS)], RUNS[k % len(RUNS)], sizes, extras)
    for k, (name, sizes, extras) in enumerate(itertools.product(FAMILIES, SIZES, EXTRAS))
]
WIDE = [(name, LONG, 1, sizes, frozenset()) for name, sizes in itertools.product(("gaussian", "binomial"), SIZES)]


def case_of(name, p, runs, sizes, extras):
    return make(FAMILIES[name], p, runs, SIZES[sizes], extras, seed=p + 100 * runs)


# ------------------------------------------------------------------ twin


@pytest.mark.parametrize("arguments", SHAPES + KINDS + WIDE, ids=lambda a: "-".join(map(str, (*a[:4], *sorted(a[4])))))
def test_gradient_and_rounds_equal_the_twin(arguments):
    case = case_of(*arguments)
    assert_close(gradient(_kernels, case), gradient(reference, case))
    for rule in STEADY:
        assert_rounds_close(rounds(_kernels, case, rule), rounds(reference, case, rule))


@pytest.mark.parametrize("p", [*COLUMNS, LONG])
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_gram_losses_equal_the_twin_and_the_rows(p, runs, symmetric):
    case = gram(p, runs, symmetric=symmetric)
    assert_close(gradient(_kernels, case), gradient(reference, case))
    if symmetric:
        rows = make(FAMILIES["gaussian"], p, runs, (2 * p + 3,) * 7)
        assert_close(gradient(_kernels, case), gradient(_kernels, rows))
    for rule in RULES.values():
        assert_rounds_close(rounds(_kernels, case, rule), rounds(reference, case, rule))


@pytest.mark.parametrize("build", [gram, lambda p, runs: make(FAMILIES["poisson"], p, runs, SIZES["equal"])])
def test_what_memory_held_before_is_irrelevant(build):
    case = build(3, 2)
    expected = rounds(reference, case)
    for size in range(32, 4096, 64):
        # Freed blocks full of NaN are what the kernel's own allocation is likely to be given next.
        spoilt = [np.full(size, np.nan) for _ in range(20)]
        del spoilt
        assert_rounds_close(rounds(_kernels, case), expected)


@pytest.mark.parametrize(("runs", "size"), [(1, 1), (1, 7), (1, 8), (2, 8), (3, 13), (5, 17), (8, 50)])
@pytest.mark.parametrize("rule", RULES)
def test_combine_equals_the_twin_for_pools_of_every_size(rule, runs, size):
    rng = np.random.default_rng(size)
    M = 40
    # Rounded, so that pools have ties; to eighths, whose squares add up exactly: rows that are equally far are so in
    # every order of the sum, and both must then drop the same.
    theta = (8.0 * rng.normal(size=(M, runs, size))).round() / 8.0
    case = Case((np.zeros((M, 1, 8)), np.zeros((M, 1))), pools(rng, np.arange(1, M + 1), M), theta, np.zeros(0))
    found, expected = combine(_kernels, case, RULES[rule]), combine(reference, case, RULES[rule])
    if rule in EXACT:
        assert_array_equal(found, expected)
    else:
        assert_close(found, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_block_of_clients_combines_with_a_halo_of_neighbours(rule):
    whole = make(FAMILIES["gaussian"], 3, 2, SIZES["equal"])
    everyone = combine(_kernels, whole, RULES[rule])
    indptr, indices, weights, bad = whole.combiner
    low, high = 2, 5
    span = slice(indptr[low], indptr[high])
    # The block's own rows first, then those it hears from outside.
    own = np.arange(low, high)
    needed = np.concatenate([own, np.setdiff1d(indices[span], own)])
    place = np.full(len(whole.theta), -1)
    place[needed] = np.arange(len(needed))
    block = dataclasses.replace(
        whole,
        combiner=(indptr[low : high + 1] - indptr[low], place[indices[span]], weights[span].copy(), bad[span].copy()),
        theta=whole.theta[needed].copy(),
    )
    assert len(block.theta) > high - low
    assert_array_equal(combine(_kernels, block, RULES[rule]), everyone[low:high])


# ------------------------------------------------------------------ exact


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["binomial", "multinomial-3", "gram"])
def test_threads_do_not_change_a_bit(name, rule):
    sizes = (400, 1, 90, 33, 250, 7, 64, 128, 500, 12, 300, 215)
    case = gram(64, 4, M=60) if name == "gram" else make(FAMILIES[name], 30, 4, sizes)
    assert case.build(_kernels)[1].flops * case.theta.shape[1] > THREAD_WORK
    alone, slope = rounds(_kernels, case, RULES[rule], threads=1), gradient(_kernels, case, threads=1)
    for threads in (2, 3, 7):
        together = rounds(_kernels, case, RULES[rule], threads=threads)
        assert_array_equal(together[0], alone[0])
        assert_array_equal(together[1], alone[1])
        assert_array_equal(gradient(_kernels, case, threads=threads), slope)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*FAMILIES, "gram"])
def test_rounds_can_be_cut_anywhere(name, rule):
    case = gram(5, 3) if name == "gram" else make(FAMILIES[name], 5, 3, SIZES["ragged"], EXTRAS[-1])
    theta, moved, _ = rounds(_kernels, case, RULES[rule], n=7)
    for t in range(7):
        after, move, _ = rounds(_kernels, case, RULES[rule], n=1)
        assert_array_equal(move[0], moved[t])
        case = dataclasses.replace(case, theta=after)
    assert_array_equal(case.theta, theta)


def test_no_rounds_leave_theta_alone():
    case = make(FAMILIES["poisson"], 3, 2, SIZES["equal"])
    theta, moved, done = rounds(_kernels, case, n=0)
    assert (done, moved.shape) == (0, (0, 2))
    assert_array_equal(theta, case.theta)
