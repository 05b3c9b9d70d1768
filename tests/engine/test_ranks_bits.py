"""A client's bits do not depend on who else is in its place: sums, products and factors, and whole fits over ranks."""

import itertools
import sys
from pathlib import Path

import numpy as np
import on_ranks_data as by_rank
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_mpi import launched

from adfl_stats._algebra import quadratic_forms, row_major, summed_products, whitened, whitening
from adfl_stats.engine.transport import Local, Members
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

CASES = Path(__file__).with_name("on_ranks_cases.py")
M, SLICES = 40, (slice(0, 1), slice(1, 2), slice(3, 9), slice(17, 40))


@pytest.mark.parametrize("P", [1, 2, 5, 30])
def test_factors_of_a_client_are_its_own(P):
    """Every seventh client lacks a column, for which the stack as a whole has no Cholesky factors."""
    rng = np.random.default_rng(P)
    rows = rng.normal(size=(M, P + 4, P))
    rows[::7, :, -1] = 0.0
    J, v = rows.transpose(0, 2, 1) @ rows, rng.normal(size=(M, P))
    for at in SLICES:
        for whole, part in zip(whitening(J) + whitened(J, v), whitening(J[at]) + whitened(J[at], v[at]), strict=True):
            assert_array_equal(whole[at], part)
        assert_array_equal(quadratic_forms(v, J)[at], quadratic_forms(v[at], J[at]))
    assert_allclose(quadratic_forms(v, J), [x @ A @ x for x, A in zip(v, J, strict=True)])


@pytest.mark.parametrize("shape", [(M, 3), (1, 3), (M, 1), (M,)])
def test_sums_of_products_depend_on_values_alone(shape):
    """And not on how arrays are in memory."""
    rng = np.random.default_rng(1)
    left, right = rng.normal(size=shape), rng.normal(size=(shape[0], 4, 4))
    found = summed_products(left, right)
    assert_allclose(found, np.einsum("m...,mij->...ij", left, right), atol=1e-12)
    turned = right.transpose(2, 1, 0).copy().transpose(2, 1, 0)
    assert_array_equal(found, summed_products(np.asfortranarray(left), turned))
    wide = np.zeros((*shape, 2))
    wide[..., 0] = left
    assert_array_equal(found, summed_products(wide[..., 0], right))
    assert row_major(wide[..., 0]).strides == left.strides
    assert row_major(left) is left


def test_products_of_rows_are_those_of_their_batches():
    rng = np.random.default_rng(2)
    rows, matrix, bounds = rng.normal(size=(M, 5)), rng.normal(size=(5, 7)), np.array([0, 1, 9, 30, M])
    found = Members(Local(bounds)).products(rows, matrix.T.copy().T)
    assert_allclose(found, rows @ matrix)
    for low, high in itertools.pairwise(bounds):
        assert_array_equal(found[low:high], Members().products(rows[low:high], matrix))


def test_how_curvature_is_computed_is_decided_for_all_clients():
    """The first clients lack a level of a factor: alone, their pooled Gram matrix would be singular."""
    data = by_rank.whole_data()
    glm = GLM(data, Family("gaussian"))
    shares = np.ones((data.n_clients, 1))
    for low in range(0, M, 10):
        at = slice(low, low + 10)
        part = glm.of(at)
        assert part.gram() is not None
        found = part.weighted_curvatures(np.zeros(glm.P), shares[at])[0]
        assert_allclose(found, glm.gram()[0][at, :, : glm.P].sum(axis=0))


def random_cases(first, last, timeout):
    done = launched(4, sys.executable, str(CASES), str(first), str(last), timeout=timeout)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * (last - first)
    assert [line for line in lines if ": same;" not in line] == []
    # Fits, not errors that are the same.
    assert sum("fit, params:" in line for line in lines) > 2 * (last - first)


def test_random_fits_have_the_same_bits_on_two_to_four_ranks():
    random_cases(4, 5, timeout=400)


@pytest.mark.slow
def test_many_random_fits_have_the_same_bits_on_two_to_four_ranks():
    random_cases(0, 40, timeout=3000)
