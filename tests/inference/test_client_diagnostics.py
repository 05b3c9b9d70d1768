"""The second pass over the clients, in batches, against dense algebra row by row and client by client."""

import numpy as np
import pytest
from awkward_clients import SIZES, drawn
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats._algebra import roots_of_inverses, stacked_cholesky
from adfl_stats.data import client_data as data_module
from adfl_stats.inference.client_diagnostics import gather_diagnostics
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import sums_at


def one_row(name, eta, y):
    """Return a row's residual (q,), and its expected and observed curvature (q, q)."""
    if name == "multinomial":
        chance = np.exp(np.append(0.0, eta))
        chance /= chance.sum()
        hit = np.arange(len(chance)) == y
        curvature = np.diag(chance[1:]) - np.outer(chance[1:], chance[1:])
        return (chance - hit)[1:], curvature, curvature
    (eta,) = eta
    mean = {"gaussian": eta, "binomial": 1 / (1 + np.exp(-eta))}.get(name, np.exp(eta))
    residual, expected, observed = {
        "gaussian": (mean - y, 1.0, 1.0),
        "binomial": (mean - y, mean * (1 - mean), mean * (1 - mean)),
        "poisson": (mean - y, mean, mean),
        "gamma": (1 - y / mean, 1.0, y / mean),
    }[name]
    return np.array([residual]), np.array([[expected]]), np.array([[observed]])


def by_hand(data, family, theta, weights, smooth):
    """Return what `gather_diagnostics` should: loops over clients and rows, and pseudo-inverses."""
    M, P, q = data.n_clients, len(theta), family.outputs
    scores, infos, hessians = ([[] for _ in range(M)] for _ in range(3))
    for m in range(M):
        for i in range(data.offsets[m], data.offsets[m + 1]):
            x, w = data.X[i], 1.0 if data.row_weights is None else data.row_weights[i]
            eta = theta.reshape(q, -1) @ x + (0.0 if data.linear_offset is None else data.linear_offset[i])
            residual, expected, observed = one_row(family.name, eta, data.y[i])
            scores[m].append(w * np.kron(residual, x))
            infos[m].append(w * np.kron(expected, np.outer(x, x)))
            hessians[m].append(w * np.kron(observed, np.outer(x, x)))
    S, J, K = (np.array([np.sum(part[m], axis=0) for m in range(M)]) for part in (scores, infos, hessians))
    a = weights / (M * data.totals)
    H = np.tensordot(a, K, 1)
    bread = np.linalg.inv(np.tensordot(a, J, 1))
    error = bread @ np.tensordot(a**2, J, 1) @ bread
    rest = np.linalg.solve(H, a @ S)
    rows = []
    for m in range(M):
        C = 2 * a[m] * bread - error if smooth else np.zeros((P, P))
        pseudo = np.linalg.pinv(J[m], rcond=1e-10, hermitian=True)
        one, two = (np.sum([np.zeros(P), *scores[m][k::2]], axis=0) for k in (0, 1))
        rows.append(
            {
                "mirror": 4 * one @ pseudo @ two,
                "mirror_mean": -np.trace(C @ J[m]),
                "deletion_shift": a[m] * np.linalg.solve(H - a[m] * K[m], S[m] - K[m] @ rest)
                if smooth
                else np.full(P, np.nan),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("extra", ["plain", "weights and offset"])
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "gamma", "multinomial"])
def test_batches_are_a_loop_over_clients(name, extra, smooth, monkeypatch):
    """In blocks of 12 rows some batches hold many clients, some clients several pieces.

    Clients 1, 4 and 8 have fewer rows than columns, client 3 a column of zeros, client 7 one column twice; client 2
    has no weight.
    """
    monkeypatch.setattr(data_module, "BLOCK_ROWS", 12)
    X, y, client, rng = drawn(name)
    N = len(y)
    more = {} if extra == "plain" else {"weights": rng.uniform(0.5, 2.0, N), "offset": rng.normal(size=N) / 3}
    data = ad.ClientData.from_arrays(X, y, client, **more)
    family = Family(name, outputs=2 if name == "multinomial" else 1)
    theta = rng.normal(size=4 * family.outputs) / np.tile([3.0, 30.0, 0.3, 3.0], family.outputs)
    weights = rng.uniform(0.2, 1.0, len(SIZES)) * (np.arange(len(SIZES)) != 2)
    found = gather_diagnostics(data, weights, sums_at(data, family, theta, weights), smooth=smooth)
    wanted = by_hand(data, family, theta, weights, smooth)
    for key, value in wanted.items():
        assert_allclose(getattr(found, key), value, rtol=1e-10, atol=1e-10 * np.nanmax(np.abs(value), initial=0.0))


def test_roots_of_inverses_of_any_rank():
    """F F' is a generalised inverse, F'JF a projection of J's rank, and units of the columns change nothing."""
    rng = np.random.default_rng(3)
    ranks = np.array([5, 3, 5, 0, 1, 5])
    half = rng.normal(size=(6, 5, 5)) * (np.arange(5) < ranks[:, None])[:, None, :]
    J = half @ half.transpose(0, 2, 1)
    roots, found = roots_of_inverses(J)
    assert_array_equal(found, ranks)
    assert_allclose(J @ roots @ roots.transpose(0, 2, 1) @ J, J, rtol=1e-9, atol=1e-10)
    inner = roots.transpose(0, 2, 1) @ J @ roots
    assert_allclose(np.trace(inner, axis1=1, axis2=2), ranks, rtol=1e-10)
    assert_allclose(inner @ inner, inner, atol=1e-10)
    unit = np.array([1e-6, 1.0, 1e3, 1.0, 1e5])
    again, found = roots_of_inverses(J * np.outer(unit, unit))
    assert_array_equal(found, ranks)
    assert_allclose(unit[:, None] * again[ranks == 5], roots[ranks == 5], rtol=1e-9, atol=1e-12)


def test_one_matrix_without_a_factor_spoils_no_other():
    rng = np.random.default_rng(5)
    half = rng.normal(size=(4, 3, 6))
    matrices = half @ half.transpose(0, 2, 1)
    matrices[1] = np.diag([1.0, -1.0, 1.0])
    matrices[2, :, 0] = matrices[2, 0, :] = 0.0
    factor, full = stacked_cholesky(matrices, 1e-4)
    assert_array_equal(full, [True, False, False, True])
    assert_allclose(factor[full], np.linalg.cholesky(matrices[full]), rtol=1e-12)
    assert np.isfinite(factor).all()
