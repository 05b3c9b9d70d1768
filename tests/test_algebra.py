"""Stacks of small matrices, against NumPy on each."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from adfl_stats import _algebra as algebra


@pytest.mark.parametrize(("C", "P"), [(1, 1), (5, 3), (3, 5), (2, 40), (60, 30)])
def test_triangular_solutions_and_congruences(C, P):
    """Loops over columns, calls for each matrix and products with triangles give the same."""
    rng = np.random.default_rng(P)
    A = rng.normal(size=(C, P, P + 2))
    lower, full = algebra.stacked_cholesky(A @ A.transpose(0, 2, 1), 0.0)
    assert full.all()
    value, D = rng.normal(size=(C, P)), rng.normal(size=(C, P, P))
    D += D.transpose(0, 2, 1)
    for k, solution in enumerate(algebra.lower_solutions(lower, value)):
        assert_allclose(solution, np.linalg.solve(lower[k], value[k]), rtol=1e-9, atol=1e-9)
    upper = lower.transpose(0, 2, 1)
    expected = [U @ middle @ U.T for U, middle in zip(upper, D, strict=True)]
    scale = np.abs(expected).max()
    for triangular in (True, False):
        assert_allclose(algebra.congruences(upper, D, triangular=triangular), expected, rtol=1e-12, atol=1e-12 * scale)


@pytest.mark.parametrize("deficient", [False, True])
def test_whitened_scores_and_factors(deficient):
    """F'v has the length of v in the metric J^+, and the factors square to J, whatever the units of the columns."""
    rng = np.random.default_rng(4)
    A = rng.normal(size=(6, 4, 9)) * np.array([1e-4, 1.0, 1e5, 3.0])[:, None]
    if deficient:
        A[2, 3] = A[2, 1]
    J = A @ A.transpose(0, 2, 1)
    v = (A @ rng.normal(size=(6, 9, 1)))[:, :, 0]
    along, factors, ranks = algebra.whitened(J, v)
    assert ranks.tolist() == [4, 4, 3 if deficient else 4, 4, 4, 4]
    for k in range(6):
        units = np.sqrt(np.diag(J[k]))
        inverse = np.linalg.pinv(J[k] / np.outer(units, units), rcond=1e-10)
        assert along[k] @ along[k] == pytest.approx(v[k] / units @ inverse @ (v[k] / units), rel=1e-8)
        assert_allclose(factors[k].T @ factors[k] / np.outer(units, units), J[k] / np.outer(units, units), atol=1e-9)
