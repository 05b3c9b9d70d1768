"""The rival half and the counts of clients, against closed forms, brute force and fits of fewer clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad


def fitted(y, client, X=None, **words):
    X = np.ones((len(y), 1)) if X is None else X
    data = ad.ClientData.from_arrays(X, y, client)
    return ad.DecentralizedGLM(data, ad.networks.complete(data.n_clients, labels=data.labels)).fit(**words)


def two_groups(seed, first, second, gap, n=25):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(first + second), n)
    return rng.normal(size=len(client)) + gap * (client >= first), client


@pytest.mark.parametrize(("first", "second"), [(12, 8), (14, 6), (11, 9)])
def test_two_groups_in_closed_form(first, second):
    y, client = two_groups(1, first, second, 5.0)
    res = fitted(y, client)
    firm, M, half = res.majority(), first + second, (first + second) // 2 + 1
    # A client follows the centre that is nearer; so many must change sides before the rival has a majority.
    # At ten against ten the two fit about alike.
    assert firm.breakdown in (half - second - 1, half - second)
    # The rival is the mean of the half that it suits best, a fixed point of concentration, or that of the minority.
    its = np.argsort(firm.clients["margin"].to_numpy())[:half]
    means = [y[np.isin(client, its)].mean(), y[client >= first].mean()]
    assert np.abs(firm.rival.iloc[0] - means).min() < 1e-6
    sums = np.array([np.sum((y[client == m] - firm.rival.iloc[0]) ** 2) for m in range(M)])
    sums -= np.array([np.sum((y[client == m] - res.params.iloc[0]) ** 2) for m in range(M)])
    assert_allclose(firm.clients["margin"] * res.record.clients.dispersion, sums, rtol=0.02)
    margins = np.sort(firm.clients["margin"])
    assert_allclose(firm.excess, margins[:half].clip(0).sum() - (-margins[-half:]).clip(0).sum())
    assert firm.overlap == pytest.approx((2 * half - M) / half)
    assert "fits worse by" in str(firm)


def test_clients_that_are_alike_have_no_rival():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        client = np.repeat(np.arange(20), 25)
        X = np.column_stack([np.ones(500), rng.normal(size=(500, 2))])
        firm = fitted(X.sum(axis=1) + rng.normal(size=500), client, X).majority()
        assert firm.rival is None
        assert firm.breakdown == 10
        assert np.isinf(firm.excess)
    assert "No rival" in str(firm)
    assert list(firm.to_frame().columns) == ["weight", "margin", "removals"]
    assert "<table" in firm._repr_html_()


def test_coefficients_by_brute_force():
    """Least squares: the fewest clients that move a mean by one standard error, found by trying in order."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(10, 40, 16)
    client = np.repeat(np.arange(16), sizes)
    y = 0.02 + rng.normal(size=len(client))
    res = fitted(y, client)
    found = res.majority().coefficients.iloc[0]
    means = np.array([y[client == m].mean() for m in range(16)])
    params, se = res.params.iloc[0], res.bse.iloc[0]
    pulls = sizes * (means - params) / (len(y) - sizes)
    counts = []
    for order in (np.argsort(pulls), np.argsort(-pulls)):
        moved = np.abs(np.cumsum(pulls[order]))[:8]
        counts.append(np.argmax(moved >= se) + 1 if (moved >= se).any() else np.inf)
    assert found["se"] == min(counts)
    order = np.argsort(-pulls if params > 0 else pulls)
    assert found["sign"] == np.argmax(np.abs(np.cumsum(pulls[order])) >= abs(params)) + 1
    # Left out together they move it by more than the sum of their single moves.
    assert abs(found["moved"]) >= 0.99


def test_a_verdict_that_depends_on_few_others():
    """A client at the edge: leaving out as many others as said turns its verdict in a fit of the rest."""
    rng = np.random.default_rng(8)
    client = np.repeat(np.arange(12), 40)
    y = rng.normal(size=480) + (client == 0) * 0.9
    res = fitted(y, client, heterogeneity="none")
    firm = res.majority()
    normal = res.client_weights.to_numpy() > 0.5
    table = firm.clients
    near = table["removals"][np.isfinite(table["removals"])]
    # With many rows the centre is firm, and few verdicts hang on others.
    assert (near >= 1).all()
    means = np.array([y[client == m].mean() for m in range(12)])
    far = np.abs(means - res.params.iloc[0])
    # Clients in the middle of the normal ones depend on nobody.
    assert np.isinf(table["removals"].to_numpy()[normal & (far < np.median(far))]).all()
