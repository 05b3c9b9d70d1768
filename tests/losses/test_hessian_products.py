"""Standard errors of any loss from Hessian products, and functions for all clients at once."""

from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.inference import contrast_errors

M, n, p = 8, 40, 3
NET = ad.networks.complete(M)
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(M, n, p)), RNG.uniform(size=(M, n)) < 0.6
HOW = {"step": 2.0, "rounds": 100}


def gradient(m, theta, rng):
    rows = slice(None) if rng is None else rng.choice(n, 10, replace=False)
    x = X[m, rows]
    return x.T @ (1 / (1 + np.exp(-x @ theta)) - Y[m, rows]) / len(x)


def whole(m, theta, rng):
    return gradient(m, theta, None)


def curvature(m, theta):
    mu = 1 / (1 + np.exp(-X[m] @ theta))
    return (X[m].T * (mu * (1 - mu))) @ X[m] / n


def product(m, theta, vector):
    return curvature(m, theta) @ vector


def model(**parts):
    return ad.DecentralizedModel(ad.Losses(whole, np.full(M, n), np.zeros(p), **parts), NET)


def test_products_give_the_standard_errors_of_hessians():
    wanted = model(curvature=curvature).fit(**HOW)
    found = model(product=product).fit(**HOW)
    assert_allclose(found.cov_params(), wanted.cov_params(), rtol=1e-10)
    assert "CR1" in str(found.summary())


def test_contrasts_by_conjugate_gradients_are_those_of_the_covariance():
    fitted = model(product=product)
    res = fitted.fit(ad.Oracle([2]), **HOW)
    rows = np.array([[1.0, 0.0, 0.0], [1.0, -1.0, 0.5]])
    table = fitted.contrasts(res, rows, alpha=0.1)
    assert_allclose(table["estimate"], rows @ res.params.to_numpy(), rtol=1e-12)
    assert_allclose(table["se"], np.sqrt(np.diag(rows @ res.cov_params().to_numpy() @ rows.T)), rtol=1e-7)
    assert_allclose(table[["lower", "upper"]].iloc[0], res.conf_int(0.1).iloc[0], rtol=1e-7)


def test_standard_errors_are_those_of_statsmodels_by_client():
    """A Poisson regression on clients of unequal sizes, written as a loss, with a client set aside and many columns."""
    rng, sizes, q = np.random.default_rng(4), np.array([30, 45, 60, 90, 40, 55, 70, 35]), 6
    client = np.repeat(np.arange(M), sizes)
    x = np.column_stack([np.ones(len(client)), 0.5 * rng.normal(size=(len(client), q - 1))])
    y = rng.poisson(np.exp(x @ np.linspace(0.4, -0.3, q) + 0.3 * rng.normal(size=M)[client]))
    own = [(x[client == m], y[client == m]) for m in range(M)]
    losses = ad.Losses(
        lambda m, theta, rng: own[m][0].T @ (np.exp(own[m][0] @ theta) - own[m][1]) / sizes[m],
        sizes,
        np.zeros(q),
        product=lambda m, theta, v: own[m][0].T @ (np.exp(own[m][0] @ theta) * (own[m][0] @ v)) / sizes[m],
    )
    fitted, kept = ad.DecentralizedModel(losses, NET), client != 2
    rows = np.vstack([np.eye(q), rng.normal(size=q)])
    for method, these in ((ad.DFL(), slice(None)), (ad.Oracle([2]), kept)):
        near = fitted.fit(method, step=0.1, rounds=500, lines=1)
        res = fitted.fit(replace(method, init=near.params), step=0.002, rounds=400, lines=1)
        table = fitted.contrasts(res, rows)
        clusters = {"groups": client[these], "use_correction": False}
        peer = sm.GLM(y[these], x[these], sm.families.Poisson()).fit(cov_type="cluster", cov_kwds=clusters)
        m = len(np.unique(client[these]))
        wanted = np.sqrt(m / (m - 1.0) * np.diag(rows @ peer.cov_params() @ rows.T))
        assert_allclose(table["estimate"], rows @ peer.params, atol=2e-4)
        assert_allclose(table["se"], wanted, rtol=2e-3)
        assert_allclose(res.bse, wanted[:q], rtol=2e-3)


def test_many_parameters_have_contrasts_only():
    """Means of P numbers by client: the variance of a contrast of them is known."""
    P = 300
    y = RNG.normal(size=(M, P))
    losses = ad.Losses(lambda m, t, rng: t - y[m], np.ones(M), np.zeros(P), product=lambda m, t, v: v)
    fitted = ad.DecentralizedModel(losses, NET)
    res = fitted.fit(step=0.5, rounds=60)
    assert "see model.contrasts" in res.without_errors
    found = fitted.contrasts(res, np.ones(P) / P)
    assert_allclose(found["se"], y.mean(axis=1).std(ddof=1) / np.sqrt(M), rtol=1e-6)


def test_jax_derives_products():
    jnp = pytest.importorskip("jax.numpy")

    def loss(params, rows):
        eta = rows[0] @ params
        return jnp.mean(jnp.logaddexp(0.0, eta) - rows[1] * eta)

    held = [(X[m], Y[m].astype(float)) for m in range(M)]
    res = ad.DecentralizedModel(ad.losses.from_jax(loss, np.zeros(p), held, hessian=True), NET).fit(**HOW)
    assert_allclose(res.cov_params(), model(curvature=curvature).fit(**HOW).cov_params(), rtol=1e-8)
    assert ad.DecentralizedModel(ad.losses.from_jax(loss, np.zeros(p), held), NET).fit(**HOW).bse.isna().all()


def test_torch_derives_products():
    torch = pytest.importorskip("torch")
    module, loss = torch.nn.Linear(p, 1, bias=False).double(), torch.nn.functional.binary_cross_entropy_with_logits
    held = [(torch.as_tensor(X[m]), torch.as_tensor(Y[m][:, None].astype(float))) for m in range(M)]
    losses = ad.losses.from_torch(module, loss, held, hessian=True)
    res = ad.DecentralizedModel(losses, NET).fit(ad.DFL(init=np.zeros(p)), **HOW)
    wanted = model(curvature=curvature).fit(ad.DFL(init=np.zeros(p)), **HOW).cov_params()
    assert_allclose(res.cov_params(), wanted, rtol=1e-8)


def test_what_contrasts_refuse():
    fitted = model(product=product)
    res = fitted.fit(**HOW)
    with pytest.raises(ValueError, match="2 columns; one for each of the 3 parameters"):
        fitted.contrasts(res, [1.0, 2.0])
    with pytest.raises(ValueError, match="need Hessian products"):
        model().contrasts(res, np.ones(p))
    with pytest.raises(ValueError, match="no common estimating equation"):
        fitted.contrasts(fitted.fit(ad.Bridge("median"), **HOW), np.ones(p))
    with pytest.raises(ValueError, match="not positive definite"):
        model(product=lambda m, theta, vector: -vector).contrasts(res, np.ones(p))
    with pytest.raises(ValueError, match="fewer than two clients"):
        fitted.contrasts(fitted.fit(ad.DFL(weights=np.eye(M)[0]), **HOW), np.ones(p))
    with pytest.raises(ValueError, match=r"product returned shape \(2,\)"):
        model(product=lambda m, theta, vector: np.zeros(2)).fit(**HOW)


def test_contrasts_that_take_too_many_products(monkeypatch):
    fitted = model(product=product)
    res = fitted.fit(**HOW)
    monkeypatch.setattr(contrast_errors, "MOST_PRODUCTS", 1)
    with pytest.raises(ValueError, match="1 Hessian products did not solve"):
        fitted.contrasts(res, np.ones(p))


def test_all_clients_at_once_are_one_by_one():
    """The batched form draws the same minibatches, for rounds, discrepancy and scores."""

    def together(theta, rngs):
        return np.stack([gradient(m, theta[m], None if rngs is None else rngs[m]) for m in range(M)])

    alone = ad.Losses(gradient, np.full(M, n), np.zeros(p), batch=10)
    batched = ad.Losses(together, np.full(M, n), np.zeros(p), batch=10, batched=True)
    for method in (ad.DFL(), ad.ADFL(lam=1.0), ad.ADFL(lam=1.0, measure="score")):
        found, wanted = (
            ad.DecentralizedModel(losses, NET).fit(method, step=0.3, rounds=20).client_params
            for losses in (batched, alone)
        )
        assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match=r"\(3,\) for all clients; \(8, 3\) is wanted with batched=True"):
        ad.DecentralizedModel(ad.Losses(lambda t, r: np.zeros(p), np.full(M, n), np.zeros(p), batched=True), NET)


def test_one_function_follows_several_numbers():
    def both(theta):
        return {"first": theta[0], "length": np.linalg.norm(theta)}

    res = model(metrics=both).fit(step=0.3, rounds=6, lines=3)
    one_by_one = {"first": lambda theta: theta[0], "length": np.linalg.norm}
    wanted = model(metrics=one_by_one).fit(step=0.3, rounds=6, lines=3, threads=2)
    for name in ("first", "length"):
        assert res.history(name).equals(wanted.history(name))
    with pytest.raises(ValueError, match="metrics has the name 'loss'"):
        model(metrics=lambda theta: {"loss": 1.0}).fit(step=0.3, rounds=2)
    with pytest.raises(TypeError, match=r"metrics returned 2\.0; a mapping"):
        model(metrics=lambda theta: 2.0).fit(step=0.3, rounds=2)


def test_minibatches_are_named_beside_standard_errors():
    noisy = ad.Losses(gradient, np.full(M, n), np.zeros(p), batch=10, product=product)
    res = ad.DecentralizedModel(noisy, NET).fit(step=0.3, rounds=40)
    assert "noise of minibatches of 10 rows" in " ".join(str(res.summary()).split())
