"""Estimates, standard errors and tests of clients that are alike, against the pooled fit of statsmodels."""

import warnings

import numpy as np
import statsmodels.api as sm
from fits import draw

import adfl_stats as ad

L, S = sm.families.links, sm.families
# By family and link: ours, statsmodels', and a draw of the response at a linear predictor.
FAMILIES = {
    "gaussian": ("gaussian", S.Gaussian()),
    "binomial": ("binomial", S.Binomial()),
    "probit": (ad.family("binomial", "probit"), S.Binomial(L.Probit())),
    "cloglog": (ad.family("binomial", "cloglog"), S.Binomial(L.CLogLog())),
    "poisson": ("poisson", S.Poisson()),
    "gamma": ("gamma", S.Gamma(L.Log())),
    "negativebinomial": (ad.family("negativebinomial", alpha=0.7), S.NegativeBinomial(L.Log(), alpha=0.7)),
    "tweedie": (ad.family("tweedie", var_power=1.5), S.Tweedie(L.Log(), var_power=1.5)),
    "inversegaussian": ("inversegaussian", S.InverseGaussian(L.Log())),
}
DRAWN = {"probit": "binomial", "cloglog": "binomial", "negativebinomial": "poisson", "tweedie": "poisson",
         "inversegaussian": "gamma"}  # fmt: skip


def case(seed):
    rng = np.random.default_rng([6, seed])
    name = str(rng.choice(list(FAMILIES)))
    family, theirs = FAMILIES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ad.AdflWarning)
        X, y, client, net = draw(rng, DRAWN.get(name, name))
        extra = extras(rng, len(y), name)
        try:
            data = ad.ClientData.from_arrays(X, y, client, **extra)
            everyone = ad.networks.complete(net.n_clients, labels=net.labels)
            complete = rng.random() < 0.7
            model = ad.DecentralizedGLM(data, everyone if complete else net, family=family)
        except ValueError as error:
            assert any(word in str(error) for word in ("y ", "X", "column", "client")), error
            return
        wanted = pooled(X, y, theirs, extra)
        if wanted is None:
            return
        try:
            # By rows: a client that counts for its rows, all of them alike.
            res = model.fit(
                ad.DFL(balance=True), solver="limit", heterogeneity="none", tolerance=1e-6 if complete else 0.05
            )
        except (ValueError, ad.DivergenceError) as error:
            # A network that does not reach consensus has no pooled limit.
            assert len(str(error)) > 30, error
            assert not complete, error
            return
        compare(res, wanted, X, complete, net)


def extras(rng, N, name):
    """Return some of the numbers that rows may carry."""
    kind = rng.integers(4)
    if kind == 1:
        return {"offset": rng.normal(scale=0.3, size=N)}
    if kind == 2 and name not in ("binomial", "probit", "cloglog"):
        return {"weights": rng.uniform(0.2, 3.0, size=N)}
    if kind == 3:
        return {"freq_weights": rng.integers(1, 4, size=N)}
    return {}


def pooled(X, y, family, extra):
    """Return statsmodels' fit and its robust one; None where it has no answer."""
    words = {{"weights": "var_weights"}.get(key, key): value for key, value in extra.items()}
    if "freq_weights" in words:
        # Its HC0 counts a row that stands for three once; ours has three.
        count = words.pop("freq_weights")
        X, y = np.repeat(X, count, axis=0), np.repeat(y, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sm.GLM(y, X, family=family, **words)
        try:
            plain = model.fit(tol=1e-13, maxiter=300)
            robust = model.fit(tol=1e-13, maxiter=300, cov_type="HC0")
        except Exception:
            return None
    eta = X @ plain.params
    if not plain.converged or not np.isfinite(plain.bse).all() or np.abs(eta).max() > 15:
        return None
    return plain, robust


def compare(res, wanted, X, complete, net):
    plain, robust = wanted
    apart = np.abs(res.params.to_numpy() - plain.params) / plain.bse
    if not complete:
        # Elsewhere the limit has a bias of its step, and stops at a twentieth of a standard error.
        if res.step is None or not net.influence.min() > 0.02 / net.n_clients:
            return
        assert apart.max() < 0.2, (apart, res.numerical_error)
        return
    # Where rounding keeps it from the tolerance, a fit says how far off it is.
    said = float(res.numerical_error.max())
    assert said < 0.05, said
    assert said < 1e-5 or not res.converged, said
    near = 1e-4 + 3.0 * said
    assert apart.max() < near, (apart, res.numerical_error)
    np.testing.assert_allclose(res.standard_errors("HC0"), robust.bse, rtol=near)
    np.testing.assert_allclose(res.standard_errors("nonrobust"), plain.bse, rtol=near)
    ours = res.wald_test(np.eye(X.shape[1]), cov_type="HC0")
    theirs = robust.wald_test(np.eye(X.shape[1]), scalar=True, use_f=False)
    np.testing.assert_allclose(ours.statistic, theirs.statistic, rtol=10.0 * near)
