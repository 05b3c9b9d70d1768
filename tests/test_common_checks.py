"""Checks that every method, family and network passes by being listed here; what is public and not listed fails."""

import inspect
import pickle

import numpy as np
import pytest
import statsmodels.api as sm

import adfl_stats as ad
from adfl_stats.losses.families import FAMILY_NAMES
from adfl_stats.losses.family import supported_links

L, S = sm.families.links, sm.families
M, N = 12, 30
METHODS = [
    ad.ADFL(), ad.ADFL(lam=2.0, stages=2), ad.DFL(), ad.DFL(balance=True), ad.Bridge("median"),
    ad.Bridge("trimmed", b=1), ad.ClippedGossip(), ad.GeometricMedian(), ad.IOS(1), ad.NNA(1), ad.UBAR(),
    ad.SLBRN("median"), ad.Extra(), ad.GradientTracking(), ad.Local(), ad.Oracle([0]), ad.TrimmedScores(starts=2),
]  # fmt: skip
NETWORKS = {
    "complete": (M,), "directed_circle": (M, 3), "erdos_renyi": (M, 0.6, 1), "fixed_degree": (M, 3, 1),
    "central_client": (M,), "small_world": (M, 4, 0.2, 1), "scale_free": (M, 2, 1), "random_geometric": (M, 0.6, 1),
    "stochastic_block": ((8, 4), 0.9, 0.3, 1),
}  # fmt: skip
# By (name, link): the family, its counterpart in statsmodels, a parameter, a draw of y given the means, and a response
# that is not of it. Parameters keep the means of links with a bounded domain inside of it.
WIDE, NARROW = [0.3, 0.5, -0.4], [2.5, 0.6, -0.5]


def bernoulli(rng, mu):
    return (rng.random(len(mu)) < mu).astype(float)


def normal(rng, mu):
    return mu + rng.normal(size=len(mu))


def counts(rng, mu):
    return rng.poisson(mu).astype(float)


def gamma(rng, mu):
    return rng.gamma(2.0, mu / 2.0)


def wald(rng, mu):
    return rng.wald(mu, 4.0)


FAMILIES = {
    ("gaussian", "identity"): (ad.family("gaussian"), S.Gaussian(), WIDE, normal, None),
    ("gaussian", "log"): (ad.family("gaussian", "log"), S.Gaussian(L.Log()), [1.0, 0.5, -0.4], normal, None),
    ("binomial", "logit"): (ad.family("binomial"), S.Binomial(), WIDE, bernoulli, 2.0),
    ("binomial", "probit"): (ad.family("binomial", "probit"), S.Binomial(L.Probit()), WIDE, bernoulli, 0.5),
    ("binomial", "cloglog"): (ad.family("binomial", "cloglog"), S.Binomial(L.CLogLog()), WIDE, bernoulli, -1.0),
    ("binomial", "loglog"): (ad.family("binomial", "loglog"), S.Binomial(L.LogLog()), WIDE, bernoulli, 7.0),
    ("poisson", "log"): (ad.family("poisson"), S.Poisson(), WIDE, counts, -1.0),
    ("poisson", "identity"): (ad.family("poisson", "identity"), S.Poisson(L.Identity()), NARROW, counts, -2.0),
    ("poisson", "sqrt"): (ad.family("poisson", "sqrt"), S.Poisson(L.Sqrt()), NARROW, counts, -1.0),
    ("gamma", "log"): (ad.family("gamma"), S.Gamma(L.Log()), WIDE, gamma, 0.0),
    ("gamma", "inverse"): (ad.family("gamma", "inverse"), S.Gamma(L.InversePower()), NARROW, gamma, -1.0),
    ("gamma", "identity"): (ad.family("gamma", "identity"), S.Gamma(L.Identity()), NARROW, gamma, 0.0),
    ("inversegaussian", "log"): (ad.family("inversegaussian"), S.InverseGaussian(L.Log()), WIDE, wald, 0.0),
    ("inversegaussian", "inverse squared"): (
        ad.family("inversegaussian", "inverse squared"), S.InverseGaussian(L.InverseSquared()), NARROW, wald, -1.0
    ),
    ("tweedie", "log"): (
        ad.family("tweedie", var_power=1.5), S.Tweedie(L.Log(), var_power=1.5), WIDE, counts, -1.0
    ),
    ("negativebinomial", "log"): (
        ad.family("negativebinomial", alpha=0.5), S.NegativeBinomial(L.Log(), alpha=0.5), WIDE, counts, -1.0
    ),
    ("huber", "identity"): (ad.Huber(scale=1.0), None, WIDE, normal, None),
    ("multinomial", "logit"): ("multinomial", None, WIDE, bernoulli, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(M * N), rng.normal(size=(M * N, 2))])
    y = X @ [0.5, 1.0, -1.0] + rng.normal(size=M * N)
    return X, y, np.repeat([f"c{k:02d}" for k in range(M)], N)


def fitted(method, X, y, client, **options):
    net = ad.networks.complete(M, labels=sorted(set(client)))
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), net)
    return model.fit(method, step=0.1, rounds=40, **options)


def shuffled(client):
    """Return the rows of each client in another order."""
    rng = np.random.default_rng(1)
    return np.concatenate([rng.permutation(np.flatnonzero(client == c)) for c in np.unique(client)])


def test_every_public_method_is_listed():
    public = {getattr(ad, name) for name in ad.__all__ if inspect.isclass(getattr(ad, name))}
    methods = {kind for kind in public if issubclass(kind, ad.Method) and kind is not ad.Method}
    assert {type(method) for method in METHODS} == methods


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: repr(method)[:40])
def test_methods(method, data, tmp_path):
    X, y, client = data
    before = X.copy(), y.copy()
    res = fitted(method, X, y, client, threads=1)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    assert np.isfinite(res.client_params.to_numpy()).all()
    assert (res.client_weights >= 0.0).all()
    # Again, in two threads, by a copy of the method: the same bits.
    again = fitted(pickle.loads(pickle.dumps(method)), X, y, client, threads=2)
    np.testing.assert_array_equal(again.client_params, res.client_params)
    # Rows in another order are the same data but for rounding.
    order = shuffled(client)
    other = fitted(method, X[order], y[order], client[order])
    np.testing.assert_allclose(other.client_params, res.client_params, rtol=1e-6, atol=1e-8)
    res.save(tmp_path / "fit.npz")
    np.testing.assert_array_equal(ad.load(tmp_path / "fit.npz").client_params, res.client_params)
    assert str(res.summary())
    with pytest.raises((AttributeError, TypeError)):
        method.name = "other"


def test_every_family_is_listed_with_all_of_its_links():
    assert set(FAMILIES) == {(name, link) for name in FAMILY_NAMES for link in supported_links(name)}


# statsmodels warns of links that allow means outside the family's domain.
@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning", "ignore:.*link function does not respect the domain")
@pytest.mark.parametrize("case", FAMILIES.values(), ids=["-".join(key) for key in FAMILIES])
def test_families(case, tmp_path):
    family, counterpart = case[:2]
    X, y, client = rows_of(case)
    before = X.copy(), y.copy()

    def fit(X=X, y=y, client=client, threads=1, family=family, **roles):
        net = ad.networks.complete(M, labels=sorted(set(client)))
        model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client, **roles), net, family)
        # All clients alike and heard by all: the pooled fit, which is what it is compared with.
        return model.fit(ad.DFL(), solver="limit", heterogeneity="none", threads=threads)

    res = fit()
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    np.testing.assert_array_equal(fit(threads=2).client_params, res.client_params)
    copied = family if isinstance(family, str) else pickle.loads(pickle.dumps(family))
    np.testing.assert_array_equal(fit(family=copied).client_params, res.client_params)
    se = res.standard_errors("HC0").to_numpy()
    assert (se > 0.0).all()
    # The fit ends within a twentieth of a standard error; that and rounding is how far like data may lead apart.
    near = {"rtol": 0.0, "atol": 0.1}
    order = shuffled(client)
    same_rows = fit(X[order], y[order], client[order])
    np.testing.assert_allclose((same_rows.params - res.params) / se, 0.0, **near)
    # A covariate in other units has its coefficient in these.
    units = np.array([1.0, 1e3, 1.0])
    scaled = fit(X * units)
    np.testing.assert_allclose((scaled.params * np.resize(units, len(se)) - res.params) / se, 0.0, **near)
    # A row that stands for two is two rows.
    twice = np.ones(len(y), dtype=int)
    twice[::7] = 2
    doubled = fit(freq_weights=twice)
    again = np.repeat(np.arange(len(y)), twice)
    by_hand = fit(X[again], y[again], client[again])
    np.testing.assert_allclose((doubled.params - by_hand.params) / se, 0.0, **near)
    np.testing.assert_allclose(doubled.standard_errors("HC0"), by_hand.standard_errors("HC0"), rtol=0.02)
    if counterpart is not None:
        pooled = sm.GLM(y, X, family=counterpart).fit(tol=1e-10, maxiter=200, cov_type="HC0")
        np.testing.assert_allclose((res.params - pooled.params) / pooled.bse, 0.0, **near)
        np.testing.assert_allclose(se, pooled.bse, rtol=0.02)
    res.save(tmp_path / "fit.npz")
    loaded = ad.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(loaded.client_params, res.client_params)
    np.testing.assert_array_equal(loaded.bse, res.bse)
    # The head of the summary has room for the family's name.
    assert max(map(len, str(res.summary()).splitlines())) == 78
    assert loaded.family == res.family


def rows_of(case, seed=0):
    """Return covariates and a response drawn from a family of the list."""
    family, counterpart, theta, draw, _ = case
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * N), rng.uniform(-1.0, 1.0, size=(M * N, 2))])
    eta = X @ theta
    mu = counterpart.link.inverse(eta) if counterpart is not None else eta
    y = draw(rng, 1.0 / (1.0 + np.exp(-eta)) if family == "multinomial" else mu)
    return X, y, np.repeat([f"c{k:02d}" for k in range(M)], N)


WRONG = {"-".join(key): case for key, case in FAMILIES.items() if case[-1] is not None}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_families_refuse_responses_that_are_not_of_them(case):
    X, y, client = rows_of(case)
    y[5] = case[-1]
    if case[3] is bernoulli:
        y[6] = 3.0
    net = ad.networks.complete(M, labels=sorted(set(client)))
    with pytest.raises(ValueError, match=r"\by\b"):
        ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), net, case[0])


def test_every_generator_is_listed():
    others = {"schedule", "dropout", "near_order"}
    public = {name for name in ad.networks.__all__ if name[0].islower()} - others
    assert set(NETWORKS) == public


@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, data):
    make = getattr(ad.networks, name)
    net, again = make(*NETWORKS[name]), make(*NETWORKS[name])
    np.testing.assert_array_equal(net.W.toarray(), again.W.toarray())
    np.testing.assert_allclose(net.W.sum(axis=1), 1.0)
    assert (net.W.toarray() >= 0.0).all()
    assert net.influence.min() >= 0.0
    np.testing.assert_allclose(net.influence.sum(), 1.0)
    np.testing.assert_allclose(net.influence.to_numpy() @ net.W.toarray(), net.influence, atol=1e-10)
    # Whoever gets the matrix, or the edges, has the network.
    np.testing.assert_allclose(ad.Network.from_weights(net.W.toarray()).W.toarray(), net.W.toarray())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net)).W.toarray(), net.W.toarray())
    assert str(ad.check_network(net))
    # Names change nothing but the names.
    named = make(*NETWORKS[name], labels=[f"c{k:02d}" for k in range(M)])
    np.testing.assert_array_equal(named.W.toarray(), net.W.toarray())
    X, y, client = data
    res = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), named).fit(ad.DFL(), step=0.1, rounds=3)
    # Three rounds of (3.1), by hand.
    theta = np.zeros((M, 3))
    for _ in range(3):
        at = named.W.toarray() @ theta
        for m in range(M):
            own = slice(m * N, (m + 1) * N)
            theta[m] = at[m] + 0.1 * X[own].T @ (y[own] - X[own] @ at[m]) / N
    np.testing.assert_allclose(res.client_params, theta, rtol=1e-12, atol=1e-14)


def test_random_generators_draw_anew_and_refuse_what_is_no_seed():
    for name, arguments in NETWORKS.items():
        make = getattr(ad.networks, name)
        if "seed" not in inspect.signature(make).parameters:
            continue
        drawn = {make(*arguments[:-1], seed=seed).W.toarray().tobytes() for seed in range(1, 9)}
        assert len(drawn) > 1, name
        with pytest.raises(TypeError, match="seed"):
            make(*arguments[:-1], seed="one")
