"""Batches of clients: every row once, products as by a loop over clients, and no loop in a large fit."""

import collections
import sys

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.data import batches
from adfl_stats.data import client_data as data_module
from adfl_stats.losses.client_sums import ClientSums, client_sums_of
from adfl_stats.losses.design_checks import separated_clients
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import client_gradients, plain_scores, sums_at


@pytest.fixture
def ragged(monkeypatch):
    """Clients of 1 to 40 rows in blocks of 12: some batches hold many clients, some clients several pieces."""
    monkeypatch.setattr(data_module, "BLOCK_ROWS", 12)
    rng = np.random.default_rng(4)
    sizes = np.array([3, 3, 40, 1, 2, 3, 5, 12, 13, 4, 4, 4, 1])
    X = rng.normal(size=(sizes.sum(), 3))
    y = (rng.random(len(X)) < 0.5) * 1.0
    client = np.repeat(np.arange(len(sizes)), sizes)
    return ad.ClientData.from_arrays(X, y, client, weights=rng.uniform(0.5, 2.0, len(X)))


@pytest.mark.parametrize("entries", [1 << 20, 18])
def test_batches_cover_every_row_once_and_bound_their_size(ragged, monkeypatch, entries):
    monkeypatch.setattr(batches, "MATRIX_ENTRIES", entries)
    found = list(batches.batches(ragged, 3))
    assert np.concatenate([np.arange(b.rows.start, b.rows.stop) for b in found]).tolist() == list(range(ragged.n_rows))
    assert max(b.rows.stop - b.rows.start for b in found) <= 12
    assert max(len(b.sizes) for b in found) == (2 if entries == 18 else 4)
    for batch in found:
        client = np.repeat(np.arange(batch.clients.start, batch.clients.stop), batch.sizes)
        np.testing.assert_array_equal(client, batches.row_clients(ragged, batch.rows))


def test_products_and_sums_by_client(ragged):
    S, total = np.zeros((ragged.n_clients, 3, 3)), np.zeros(ragged.n_clients)
    for batch in batches.batches(ragged, 3):
        S[batch.clients] += batch.cross(ragged.X[batch.rows], ragged.X[batch.rows])
        total[batch.clients] += batch.sums(ragged.y[batch.rows])
    for m, (low, high) in enumerate(zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)):
        np.testing.assert_allclose(S[m], ragged.X[low:high].T @ ragged.X[low:high], rtol=1e-12)
        assert total[m] == ragged.y[low:high].sum()


def sums_of_client(data, family, theta, m):
    """Gradient, Hessian, information and dispersion of one client at theta (P,)."""
    alone = batches.of_clients(data, slice(m, m + 1))
    (pieces,) = batches.whole_clients(alone, len(theta))
    sums = client_sums_of(alone, family, theta[None], pieces)
    return ClientSums(*(part[0] for part in vars(sums).values()))


@pytest.mark.parametrize("name", ["gaussian", "binomial", "gamma", "multinomial", "huber"])
def test_each_client_is_what_it_is_alone(ragged, name):
    """A client's numbers do not depend on whom it shares a batch with, nor on where blocks end."""
    huber = {"par": 1.345, "tuning": 1.345} if name == "huber" else {}
    family = Family(name, outputs=2 if name == "multinomial" else 1, **huber)
    rng = np.random.default_rng(1)
    thetas = rng.normal(size=(ragged.n_clients, 3 * family.outputs)) / 2
    y = rng.integers(0, 3, ragged.n_rows) * 1.0 if name == "multinomial" else rng.gamma(2.0, size=ragged.n_rows)
    client = np.repeat(np.arange(ragged.n_clients), ragged.sizes)
    data = ad.ClientData.from_arrays(ragged.X, y, client, weights=ragged.row_weights)
    weights = rng.uniform(size=data.n_clients)
    whole = sums_at(data, family, thetas[0], weights).weighted_sums
    own, ranks = plain_scores(data, family, thetas)
    raw, dispersions = np.zeros(data.n_clients), np.zeros(data.n_clients)
    for m in range(data.n_clients):
        mine = slice(data.offsets[m], data.offsets[m + 1])
        alone = ad.ClientData.from_arrays(data.X[mine], y[mine], client[mine], weights=data.row_weights[mine])
        single = sums_at(alone, family, thetas[0], np.ones(1)).weighted_sums
        np.testing.assert_allclose(whole.gradients[m], single.gradients[0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(sums_of_client(data, family, thetas[0], m).hessian, single.hessian, rtol=1e-10)
        at_own = sums_of_client(alone, family, thetas[m], 0)
        # Rao's statistic by the pseudo-inverse, in the columns' common scale.
        unit = 1.0 / np.sqrt(np.diag(at_own.information))
        inverse = np.linalg.pinv(at_own.information * np.outer(unit, unit), rcond=1e-11, hermitian=True)
        raw[m] = data.totals[m] * (unit * at_own.gradient) @ inverse @ (unit * at_own.gradient)
        dispersions[m] = at_own.dispersion
        assert ranks[m] == np.linalg.matrix_rank(at_own.information, hermitian=True, tol=1e-11)
    np.testing.assert_allclose(client_gradients(data, family, thetas[0]), whole.gradients, rtol=1e-10, atol=1e-14)
    phi = max(np.median(dispersions), 1.0 if name in ("binomial", "multinomial") else 0.0)
    np.testing.assert_allclose(own, raw / phi, rtol=1e-7)


def test_a_large_client_is_separated_as_a_whole(ragged):
    """Client 2 has four blocks, the last of which alone would be separated; client 8 is separated in all of its two."""
    y = ragged.y.copy()
    low, high = ragged.offsets[8:10]
    y[low:high] = ragged.X[low:high, 0] > 0
    y[ragged.offsets[2] + 36 : ragged.offsets[3]] = 1.0
    data = ad.ClientData.from_arrays(ragged.X, y, np.repeat(np.arange(13), ragged.sizes))
    among = ragged.sizes > 12
    assert np.flatnonzero(separated_clients(data, among)).tolist() == [8]


def test_a_hundred_thousand_clients_take_few_steps_of_python(monkeypatch):
    """The work in Python grows with blocks of rows, not with clients: equal rows, fifty times the clients."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(50_000, 2)), rng.normal(size=50_000)
    steps = []
    for M in (200, 10_000):
        calls = collections.Counter()

        def counted(self, left, right, original=batches.Batch.cross, calls=calls):
            calls[sys._getframe(1).f_code.co_name] += 1
            return original(self, left, right)

        with monkeypatch.context() as patch:
            patch.setattr(batches.Batch, "cross", counted)
            data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), len(y) // M))
            ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 3)).fit(ad.ADFL(stages=1), step=0.1, rounds=2)
        # How many sets of scores are drawn depends on the data; each takes a call for each block of rows.
        sets, odd = divmod(calls.pop("_drawn", 0), calls["altered_scores"])
        assert (odd, sets <= 20) == (0, True)
        steps.append(calls.total())
    assert steps[1] <= 1.2 * steps[0]
