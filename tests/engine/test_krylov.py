"""GMRES against solutions by factors, in one place and in several, to the bit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, in_places

from adfl_stats.engine import krylov
from adfl_stats.engine.krylov import gmres
from adfl_stats.engine.transport import Members

M, P = 13, 3
BOUNDS = (0, 4, 5, M)


def system_of(kind, seed=0):
    """A matrix with eigenvalues about one, and a right side."""
    rng = np.random.default_rng(seed)
    A = np.eye(M * P) + 0.5 * rng.normal(size=(M * P, M * P)) / np.sqrt(M * P)
    b = rng.normal(size=(M, P)).astype(kind)
    return (A + 0.3j * rng.normal(size=A.shape) / np.sqrt(M * P), b * (1.0 + 2.0j)) if kind is complex else (A, b)


def times(A, members=None):
    """Products with A for rows (m, P); where clients are elsewhere, of their rows too."""

    def product(x):
        everybody = x if members is None else members.gather(x)
        image = (A @ everybody.ravel()).reshape(everybody.shape)
        return image if members is None else members.ours(image)

    return product


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("room", [80, 6], ids=["one basis", "restarts"])
def test_solutions_are_those_by_factors(monkeypatch, kind, room):
    monkeypatch.setattr(krylov, "ROOM", room)
    A, b = system_of(kind)
    expected = np.linalg.solve(A, b.ravel())
    found = gmres(times(A), b, times(np.diag(1.0 / np.diag(A))), 1e-12)
    assert found.shape == b.shape
    assert_allclose(found.ravel(), expected, rtol=0, atol=1e-10)


def test_a_residual_is_what_was_asked_for_and_no_pass_more():
    """The last pass brings it below the tolerance; with one fewer it was above."""
    A, b = system_of(float)
    for rtol in (1e-2, 1e-6, 1e-10):
        passes = []
        x = gmres(lambda x, passes=passes: passes.append(x) or times(A)(x), b, lambda r: r, rtol)
        left = np.linalg.norm(b - times(A)(x)) / np.linalg.norm(b)
        assert left <= rtol * (1.0 + 1e-4)
        # The best in the span of b, Ab, ...: by least squares.
        powers = [b.ravel()]
        for _ in passes[1:]:
            powers.append(A @ powers[-1])
        fewer = np.linalg.qr(np.stack([A @ v for v in powers[:-1]], axis=1))[0]
        assert np.linalg.norm(b.ravel() - fewer @ (fewer.T @ b.ravel())) > rtol * np.linalg.norm(b)


def test_places_have_their_own_rows_and_the_bits_of_one():
    A, b = system_of(float)
    whole = gmres(times(A), b, lambda r: r, 1e-8, Members(Batches(BOUNDS)))

    def own(k, place):
        numbers = place.clients(M)
        members = Members(place, numbers)
        return gmres(times(A, members), b[numbers], lambda r: r, 1e-8, members)

    assert_array_equal(np.concatenate(in_places(BOUNDS, own)), whole)
    assert_array_equal(gmres(times(A), b, lambda r: r, 1e-8, Members(Batches(BOUNDS, (2, 0, 1)))), whole)


def test_singular_systems_end():
    """With a solution, at one; without, at least squares of what the basis reaches."""
    A = np.diag([2.0, 1.0, 0.0])
    assert_allclose(gmres(lambda x: A @ x, np.array([1.0, 1.0, 0.0]), lambda r: r, 1e-12), [0.5, 1.0, 0.0], atol=1e-14)
    found = gmres(lambda x: A @ x, np.array([1.0, 1.0, 1.0]), lambda r: r, 1e-12)
    assert_allclose((A @ found)[:2], 1.0, atol=1e-12)
    assert_array_equal(gmres(lambda x: A @ x, np.zeros(3), lambda r: r, 1e-12), 0.0)


def test_numbers_that_are_not_finite_give_no_solution():
    assert np.isnan(gmres(lambda x: x * np.inf, np.ones(3), lambda r: r, 1e-12)).all()
