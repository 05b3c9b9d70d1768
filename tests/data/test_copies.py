"""Clients that hold the same rows are named; rows that are alike by chance are not."""

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.data import copies
from adfl_stats.data.whole import Whole
from adfl_stats.losses.design_checks import survey, warn_of_copies

M, N = 30, 60


def rows(M=M, n=N, p=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(M * n, p)), rng.normal(size=M * n), np.repeat(np.arange(M), n)


def copied(X, y, source, target, n=N, count=N, seed=1):
    """Copy some rows of one client to another, in another order."""
    place = np.random.default_rng(seed).permutation(n)[:count]
    X[target * n + np.arange(count)], y[target * n + np.arange(count)] = X[source * n + place], y[source * n + place]


def said(X, y, client, **parts):
    """What would be warned of, without the warnings."""
    data = ad.ClientData.from_arrays(X, y, client, **parts)
    found = survey(data).hashes
    whole = Whole.here(data)
    groups = copies.copied_clients(whole, found)
    return [group.tolist() for group in groups], copies.overlapping_clients(whole, found, groups)


def test_copies_are_named_when_the_model_is_built_and_in_the_summary():
    X, y, client = rows()
    for m in range(1, 21):
        copied(X, y, 0, m, seed=m)
    data = ad.ClientData.from_arrays(X, y, client)
    with pytest.warns(
        ad.ConditionWarning,
        match=r"21 clients hold the same rows as others, in 1 group\(s\): 0, 1, 2, 3, 4 and 16 more\. .*keep one",
    ) as record:
        model = ad.DecentralizedGLM(data, ad.networks.complete(M))
    assert len(record) == 1
    assert record[0].filename == __file__
    text = " ".join(model.fit(ad.DFL()).summary().as_text().split())
    assert "Warned of: 21 clients hold the same rows as others" in text


@pytest.mark.parametrize("count", [31, 45, 59])
def test_clients_that_share_half_of_their_rows_are_named(count):
    X, y, client = rows()
    copied(X, y, 4, 9, count=count)
    assert said(X, y, client)[0] == []
    [(one, other, share)] = said(X, y, client)[1]
    assert {one, other} == {4, 9}
    assert share == count / N
    data = ad.ClientData.from_arrays(X, y, client)
    with pytest.warns(
        ad.ConditionWarning, match=rf"1 pair\(s\) of clients share .*: {share:.0%} of 4 in 9\. .*leave them to"
    ):
        warn_of_copies(Whole.here(data), survey(data).hashes)


def test_a_client_inside_a_larger_one_is_named():
    X, y, client = rows()
    client = np.where(client == 9, 8, client)
    X[5 * N : 6 * N], y[5 * N : 6 * N] = X[8 * N : 9 * N][::-1], y[8 * N : 9 * N][::-1]
    groups, pairs = said(X, y, client)
    assert (groups, pairs) == ([], [(5, 8, 1.0)])


def test_a_few_shared_rows_are_no_copies():
    X, y, client = rows()
    copied(X, y, 4, 9, count=20)
    assert said(X, y, client) == ([], [])


@pytest.mark.parametrize("n", [1, 2, 4, 10, 50, 300])
@pytest.mark.parametrize("M", [5, 40, 1000])
@pytest.mark.parametrize("kind", ["binary", "many binary", "rounded", "counts", "one factor", "rare"])
def test_rows_of_few_categories_are_alike_by_chance(kind, M, n):
    rng = np.random.default_rng(n + M)
    X, y = rng.normal(size=(M * n, 10)), (rng.random(M * n) < 0.5) * 1.0
    X = {
        "binary": (X[:, :3] > 0) * 1.0,
        "many binary": (X > 0) * 1.0,
        "rounded": np.round(X[:, :2], 1),
        "counts": rng.poisson(1.0, (M * n, 3)) * 1.0,
        "one factor": np.eye(4)[rng.integers(0, 4, M * n)],
        "rare": (X[:, :5] > 1.8) * 1.0,
    }[kind]
    assert said(X, y * (kind != "rare"), np.repeat(np.arange(M), n)) == ([], [])


def test_a_copy_of_a_large_client_is_told_from_chance_even_among_binary_rows():
    rng = np.random.default_rng(0)
    X, y = (rng.random((M * 400, 3)) < 0.5) * 1.0, (rng.random(M * 400) < 0.5) * 1.0
    client = np.repeat(np.arange(M), 400)
    assert said(X, y, client) == ([], [])
    copied(X, y, 2, 3, 400, 400)
    assert said(X, y, client) == ([[2, 3]], [])


@pytest.mark.parametrize("rate", [0.5, 0.01])
@pytest.mark.parametrize("clients", [4, 20, 200])
def test_a_common_design_is_no_copy(rate, clients):
    """Every client has the same covariates, and the responses of many are equal."""
    X = np.tile(np.linspace(-1.0, 1.0, 40), clients)[:, None] ** [0, 1, 2]
    y = (np.random.default_rng(1).random(len(X)) < rate) * 1.0
    assert said(X, y, np.repeat(np.arange(clients), 40)) == ([], [])


def test_offsets_and_weights_are_part_of_a_row():
    X, y, client = rows()
    copied(X, y, 0, 1)
    assert said(X, y, client)[0] == [[0, 1]]
    assert said(X, y, client, offset=client * 1.0) == ([], [])
    assert said(X, y, client, weights=1.0 + client) == ([], [])


def test_minus_zero_is_zero():
    X, y, client = rows()
    X[:, 0] = 0.0
    copied(X, y, 0, 1)
    X[:N, 0] = -0.0
    assert said(X, y, client)[0] == [[0, 1]]


def test_small_clients_among_many_are_found():
    X, y, client = rows(M=5000, n=5)
    copied(X, y, 10, 4000, 5, 5)
    assert said(X, y, client) == ([[10, 4000]], [])


def test_of_very_many_rows_a_share_is_compared(monkeypatch):
    X, y, client = rows(n=600)
    copied(X, y, 0, 1, 600, 600)
    copied(X, y, 4, 9, 600, 400)
    monkeypatch.setattr(copies, "MOST_ROWS", 5000)
    groups, pairs = said(X, y, client)
    assert groups == [[0, 1]]
    assert [pair[:2] for pair in pairs] in ([(4, 9)], [(9, 4)])
    assert abs(pairs[0][2] - 2.0 / 3.0) < 0.15


def test_hashes_of_whole_numbers_do_not_collide():
    grid = np.stack(np.meshgrid(*[np.arange(20.0)] * 4), axis=-1).reshape(-1, 4)
    data = ad.ClientData.from_arrays(grid, np.zeros(len(grid)), np.zeros(len(grid)))
    whole, design = copies.row_hashes(data, slice(0, len(grid)))
    assert len(np.unique(whole)) == len(np.unique(design)) == len(grid)


def test_one_client_is_nobodys_copy():
    X, y, client = rows(M=1)
    assert said(X, y, client) == ([], [])
