"""Fits of random problems: against statsmodels where it has an answer, the same in every thread, time and file."""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import statsmodels.api as sm

import adfl_stats as ad

FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
METHODS = (
    None, ad.ADFL(), ad.ADFL(lam=2.0, stages=2), ad.Bridge("median"), ad.ClippedGossip(), ad.GeometricMedian(),
    ad.TrimmedScores(starts=2), ad.Local(),
)  # fmt: skip


def draw(rng, family):
    """Return rows of clients, and the network of their names."""
    M, p = int(rng.integers(2, 15)), int(rng.integers(0, 5))
    sizes = rng.integers(2 * p + 8, 2 * p + rng.choice([12, 40, 120]), M)
    N = int(sizes.sum())
    X = np.column_stack([np.ones(N), rng.normal(size=(N, p)) * 10.0 ** rng.integers(-3, 4, p)])
    slopes = np.append(rng.normal(scale=0.3), rng.normal(scale=0.3, size=p) / np.abs(X[:, 1:]).max(axis=0, initial=0.1))
    eta = X @ slopes
    y = {
        "gaussian": lambda: eta + rng.normal(size=N) * 10.0 ** rng.integers(-3, 4),
        "binomial": lambda: (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(3.0 * np.exp(eta)).astype(float),
        "gamma": lambda: rng.gamma(2.0, np.exp(eta)),
    }[family]()
    # One client may be off, and rows need not be in the order of clients.
    if M > 5 and rng.random() < 0.5:
        first = slice(0, int(sizes[0]))
        y[first] = y[first][::-1] if family == "binomial" else y[first] * rng.choice([3.0, 10.0])
    labels = np.array([f"c{k}" for k in range(M)]) if rng.random() < 0.5 else np.arange(M)
    order = rng.permutation(N)
    return X[order], y[order], np.repeat(labels, sizes)[order], network(rng, M, labels)


def network(rng, M, labels):
    kind = rng.integers(4)
    if kind == 0 or M < 3:
        return ad.networks.complete(M, labels=list(labels))
    if kind == 1:
        return ad.networks.directed_circle(M, int(rng.integers(1, M)), labels=list(labels))
    if kind == 2:
        return ad.networks.fixed_degree(M, int(rng.integers(1, M)), seed=int(rng.integers(99)), labels=list(labels))
    A = np.zeros((M, M))
    A[:, 0] = 1.0
    A[0, rng.integers(M)] = 1.0
    return ad.Network.from_adjacency(A, labels=list(labels))


def case(seed):
    rng = np.random.default_rng([2, seed])
    family = str(rng.choice(list(FAMILIES)))
    X, y, client, net = draw(rng, family)
    with warnings.catch_warnings():
        # Numbers that are not finite must not come up; what the package says of the data is no failure.
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ad.AdflWarning)
        try:
            model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), net, family=family)
        except ValueError as error:
            assert any(word in str(error) for word in ("y ", "X", "column", "client")), error
            return
        if rng.random() < 0.5:
            against_statsmodels(model, X, y, family)
        method = METHODS[rng.integers(len(METHODS))]
        arguments = {"step": 0.02, "rounds": 5} if rng.random() < 0.4 else {}
        try:
            res = model.fit(method, threads=1, **arguments)
        except (ValueError, ad.DivergenceError) as error:
            assert len(str(error)) > 30, error
            return
        invariants(model, res, method, arguments)


def against_statsmodels(model, X, y, family):
    """With steps balanced by influence the limit of DFL solves the pooled equations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pooled = sm.GLM(y, X, family=FAMILIES[family]).fit(tol=1e-12, maxiter=200)
        robust = pooled.get_robustcov_results("HC0") if hasattr(pooled, "get_robustcov_results") else pooled
    if not pooled.converged or not np.isfinite(pooled.bse).all() or np.abs(X @ pooled.params).max() > 20:
        return
    try:
        res = model.fit(ad.DFL(balance=True), solver="limit", threads=1)
    except ValueError as error:
        # A network that does not reach consensus has no pooled limit.
        assert len(str(error)) > 30, error
        return
    if res.step is None or not model.network.influence.min() > 0.02 / model.network.n_clients:
        return
    del robust
    apart = np.abs(res.params.to_numpy() - pooled.params) / pooled.bse
    # The fit stops at a twentieth of a standard error; scale is that of the pooled fit.
    assert apart.max() < 0.2, (apart, res.numerical_error)


def invariants(model, res, method, arguments):
    again = model.fit(method, threads=2, **arguments)
    np.testing.assert_array_equal(again.client_params, res.client_params)
    assert np.isfinite(res.client_params.to_numpy()).all()
    assert (res.client_weights.to_numpy() >= 0.0).all()
    assert res.client_params.index.equals(model.data.labels)
    try:
        text = str(res.summary())
    except (ValueError, ad.DivergenceError) as error:
        # A few rounds of a large step can end where fitted probabilities are 0 and 1, and rows say nothing.
        assert arguments, error
        assert "at this estimate" in str(error), error
        return
    assert max(map(len, text.splitlines())) <= 90
    if res.record.smooth:
        # Where one client alone identifies a coefficient, no difference between clients shows its error; that is said.
        known = res.bse.notna()
        assert (res.bse[known] > 0.0).all()
        assert known.all() or "identified by" in text or "alone identifies" in " ".join(text.split())
    with tempfile.TemporaryDirectory() as folder:
        res.save(Path(folder) / "fit.npz")
        loaded = ad.load(Path(folder) / "fit.npz")
    np.testing.assert_array_equal(loaded.client_params, res.client_params)
    np.testing.assert_array_equal(loaded.bse, res.bse)
