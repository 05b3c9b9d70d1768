"""Families with each of their links: likelihoods of scipy, links and variances of statsmodels, and the tails."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.losses.families import FAMILY_NAMES, Family, resolve_family
from adfl_stats.losses.family import supported_links

L = sm.families.links
# The least linear predictor of links that want a positive one.
LIMIT = 0.05
POWER = 1.6

# A family and link, its statsmodels counterpart, the law of y at a mean (dispersion one) and a range of predictors.
CASES = {
    "gaussian-log": (
        Family("gaussian", link="log"),
        sm.families.Gaussian(L.Log()),
        lambda m: stats.norm(m, 1.0),
        (-1, 2),
    ),
    "probit": (Family("binomial", link="probit"), sm.families.Binomial(L.Probit()), stats.bernoulli, (-2, 2)),
    "cloglog": (Family("binomial", link="cloglog"), sm.families.Binomial(L.CLogLog()), stats.bernoulli, (-4, 1.2)),
    "loglog": (Family("binomial", link="loglog"), sm.families.Binomial(L.LogLog()), stats.bernoulli, (-1.2, 4)),
    "poisson-identity": (
        Family("poisson", LIMIT, link="identity"),
        sm.families.Poisson(L.Identity()),
        stats.poisson,
        (0.3, 9),
    ),
    "poisson-sqrt": (Family("poisson", LIMIT, link="sqrt"), sm.families.Poisson(L.Sqrt()), stats.poisson, (0.3, 4)),
    "gamma-inverse": (
        Family("gamma", LIMIT, link="inverse"),
        sm.families.Gamma(L.InversePower()),
        lambda m: stats.gamma(1.0, scale=m),
        (0.3, 4),
    ),
    "gamma-identity": (
        Family("gamma", LIMIT, link="identity"),
        sm.families.Gamma(L.Identity()),
        lambda m: stats.gamma(1.0, scale=m),
        (0.3, 4),
    ),
    "inversegaussian-log": (Family("inversegaussian"), sm.families.InverseGaussian(L.Log()), stats.invgauss, (-1, 1.5)),
    "inversegaussian-squared": (
        Family("inversegaussian", LIMIT, link="inverse squared"),
        sm.families.InverseGaussian(L.InverseSquared()),
        stats.invgauss,
        (0.3, 4),
    ),
    "tweedie": (Family("tweedie", POWER), sm.families.Tweedie(L.Log(), var_power=POWER), None, (-1, 2)),
}
POSITIVE = [name for name, (family, *_) in CASES.items() if family.par == LIMIT]
NOT_CONVEX = {"gaussian-log", "gamma-identity", "inversegaussian-log"}


def points(name, n=80, seed=0):
    _, known, law, (low, high) = CASES[name]
    rng = np.random.default_rng(seed)
    eta = rng.uniform(low, high, size=n)
    mu = known.link.inverse(eta)
    if law is None:
        y = np.where(rng.random(n) < 0.3, 0.0, rng.gamma(1.5, mu))
    else:
        y = np.asarray(law(mu).rvs(random_state=rng), dtype=float)
    return eta, y


def minus_log_likelihood(name, eta, y):
    _, known, law, _ = CASES[name]
    mu = known.link.inverse(eta)
    if law is None:
        return -known.loglike_obs(y, mu)
    law = law(mu)
    return -(law.logpdf(y) if hasattr(law.dist, "pdf") else law.logpmf(y))


@pytest.mark.parametrize("name", CASES)
def test_loss_is_minus_the_log_likelihood_up_to_a_term_free_of_eta(name):
    family, (eta, y) = CASES[name][0], points(name)
    other = np.roll(eta, 7)
    found = family.loss(eta, y) - family.loss(other, y)
    expected = minus_log_likelihood(name, eta, y) - minus_log_likelihood(name, other, y)
    assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_residual_and_curvature_are_the_slopes_of_the_log_likelihood(name):
    family, (eta, y) = CASES[name][0], points(name)

    def at(shift):
        return minus_log_likelihood(name, eta + shift, y)

    h = 1e-3
    slope = (8.0 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12.0 * h)
    second = (16.0 * (at(h) + at(-h)) - (at(2 * h) + at(-2 * h)) - 30.0 * at(0.0)) / (12.0 * h**2)
    # Fourth order: truncation h^4 times the sixth derivative, large near zero; rounding 1e-15 / h^2.
    assert_allclose(family.residual(eta, y), slope, rtol=1e-6, atol=1e-6)
    assert_allclose(family.curvature(eta, y), second, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_mean_slope_information_and_deviance_are_those_of_statsmodels(name):
    family, known, _, _ = CASES[name]
    eta, y = points(name)
    mu = known.link.inverse(eta)
    assert_allclose(family.mean(eta), mu, rtol=1e-13)
    assert_allclose(family.mean_slope(eta), known.link.inverse_deriv(eta), rtol=1e-12)
    # statsmodels' weights of IRLS are the expected information.
    assert_allclose(family.information(eta), known.weights(mu), rtol=1e-9)
    assert_allclose(family.deviance(eta, y), known.resid_dev(y, mu) ** 2, rtol=1e-7, atol=1e-9)
    assert_allclose(family.dispersion_terms(eta, y), (y - mu) ** 2 / known.variance(mu), rtol=1e-9)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2] is not None])
def test_information_is_the_mean_curvature(name):
    family, known, law, (low, high) = CASES[name]
    for eta in np.linspace(low, high, 4):
        at = law(known.link.inverse(np.array(eta)))
        if hasattr(at.dist, "pdf"):
            expected = at.expect(lambda y, eta=eta: family.curvature(np.full(np.shape(y), eta), np.asarray(y)))
        else:
            y = np.arange(at.ppf(1.0 - 1e-15) + 50.0)
            expected = at.pmf(y) @ family.curvature(np.full(len(y), eta), y)
        assert_allclose(family.information(np.array([eta])), [expected], rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_curvature_is_bounded_and_nonnegative_where_losses_are_convex(name):
    family, _, _, (low, high) = CASES[name]
    rng = np.random.default_rng(4)
    eta = rng.uniform(low, high, size=4000)
    y = rng.integers(2, size=4000).astype(float) if family.name == "binomial" else rng.gamma(0.7, 8.0, size=4000)
    curvature = family.curvature(eta, y)
    assert np.all(np.abs(curvature) <= family.curvature_bound(eta, y) * (1 + 1e-12))
    assert family.convex == (name not in NOT_CONVEX) == bool(curvature.min() >= 0.0)
    assert family.newton_curvature(eta, y).min() >= 0.0
    canonical = name in ("gamma-inverse", "inversegaussian-squared")
    assert family.observed_curvature != canonical
    assert np.allclose(curvature, family.information(eta)) == canonical


def test_the_probit_never_exceeds_its_global_bound():
    family, eta = Family("binomial", link="probit"), np.linspace(-60.0, 60.0, 24_001)
    for y in (0.0, 0.4, 1.0):
        curvature = family.curvature(eta, np.full(len(eta), y))
        assert curvature.min() >= 0.0
        assert (0.99 if y in (0.0, 1.0) else 0.6) < curvature.max() <= 1.0 + 1e-9


# ------------------------------------------------------------------ tails


def kernel_residual(family, eta, y):
    """The kernel's residuals: clients of one row each, with X = 1."""
    n = len(eta)
    loss = _kernels.RowLoss(np.ones((n, 1)), y, np.arange(n + 1, dtype=np.int64), np.ones(n), family.code, family.par)
    out = np.empty((n, 1, 1))
    _kernels.gradient(loss, np.ascontiguousarray(eta, dtype=float).reshape(n, 1, 1), out)
    return out[:, 0, 0]


@pytest.mark.parametrize("link", ["probit", "cloglog", "loglog"])
def test_far_out_the_binomial_has_the_gradients_of_its_hazards(link):
    family = Family("binomial", link=link)
    eta = np.array([-40.0, -39.0, -12.0, -7.0, -3.0, -0.1, 0.0, 0.1, 3.0, 6.0, 7.0, 12.0, 39.0, 40.0])
    if link == "probit":
        event = np.exp(stats.norm.logpdf(eta) - stats.norm.logcdf(eta))
        none = np.exp(stats.norm.logpdf(eta) - stats.norm.logsf(eta))
    else:
        # t / (exp(t) - 1) and t with t = exp(eta); for log-log of the other outcome, at -eta.
        t = np.exp(eta if link == "cloglog" else -eta)
        event, none = 1.0 / special.exprel(t), t
        if link == "loglog":
            event, none = none, event
    for y, expected in ((1.0, -event), (0.0, none), (0.25, 0.75 * none - 0.25 * event)):
        y = np.full(len(eta), y)
        for found in (family.residual(eta, y), kernel_residual(family, eta, y)):
            assert np.isfinite(found).all()
            assert_allclose(found, expected, rtol=1e-11, atol=1e-290)
        assert np.isfinite(family.loss(eta, y)).all()
        assert np.isfinite(family.curvature(eta, y)).all()
    assert np.isfinite(family.information(eta)).all()


@pytest.mark.parametrize("name", CASES)
def test_far_out_everything_stays_a_number(name):
    family = CASES[name][0]
    eta = np.array([-1e4, -300.0, -40.0, 40.0, 300.0, 1e4])
    y = np.ones(6)
    for found in (family.residual(eta, y), kernel_residual(family, eta, y), family.mean(eta), family.information(eta)):
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", POSITIVE)
def test_below_the_limit_the_loss_goes_on_along_its_tangent(name):
    family = CASES[name][0]
    eta, y = np.array([LIMIT, 0.0, -1.0, -50.0]), np.full(4, 1.7)
    for residual in (family.residual(eta, y), kernel_residual(family, eta, y)):
        assert_allclose(residual, residual[0], rtol=1e-14)
        assert residual[0] < 0.0
    assert_allclose(family.loss(eta, y), family.loss(eta[:1], y[:1]) + residual[0] * (eta - LIMIT), rtol=1e-12)
    assert_array_equal(family.mean(eta), family.mean(eta[:1])[0])


# ------------------------------------------------------------------ doors


@pytest.mark.parametrize("name", CASES)
def test_a_statsmodels_family_with_a_link_is_a_family(name):
    family, known, _, _ = CASES[name]
    expected = replace(family, par=0.0) if name in POSITIVE else family
    assert resolve_family(known) == expected
    assert resolve_family(family.statsmodels()) == expected
    words = {"var_power": POWER} if name == "tweedie" else {}
    assert ad.family(family.name, family.link, **words) == ad.family(family.name, known.link, **words) == expected


def test_links_have_the_names_that_people_use():
    assert ad.family("gamma", "inverse_power") == ad.family("gamma", L.Power(-1.0)) == ad.family("gamma", "Inverse")
    assert ad.family("inverse_gaussian", "inverse-squared").link == "inverse squared"
    assert ad.family("binomial", "c-log-log").link == "cloglog"
    assert ad.family("poisson") == resolve_family("poisson") == Family("poisson", link="log")
    assert ad.family("negativebinomial", alpha=0.3) == resolve_family(sm.families.NegativeBinomial(alpha=0.3))
    assert ad.family("huber") == resolve_family("huber")


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_families_are_copied_and_told_apart_by_their_links(name):
    made = [Family(name, 1.5, link=link) for link in supported_links(name)]
    assert len({family.code for family in made}) == len(set(made)) == len(made)
    assert made[0] == Family(name, 1.5)
    for family in made:
        assert copy.deepcopy(family) == pickle.loads(pickle.dumps(family)) == family
        assert type(replace(family, par=2.0)) is type(family)
        assert Family.of_code(family.code, 1.5, 1) == family


@pytest.mark.parametrize(
    ("arguments", "words", "error", "message"),
    [
        (
            ("binomial", "log"),
            {},
            ValueError,
            "'binomial' with the link 'log' .* its links are: 'logit', 'probit', 'clog",
        ),
        (
            ("poisson", L.Power(3.0)),
            {},
            ValueError,
            "'poisson' with the link 'power 3' is not available; its links are",
        ),
        (("gamma", L.Log), {}, TypeError, r"link is the class Log; pass an instance, Log\(\), or its name"),
        (("huber", "log"), {}, ValueError, "family 'huber' with the link 'log' .* its links are: 'identity'"),
        (("multinomial",), {}, ValueError, "takes its classes from y; pass family='multinomial'"),
        (("logistic",), {}, ValueError, "family is 'logistic'; choose one of 'gaussian', 'binomial'"),
        (("tweedie",), {}, ValueError, r"needs its power, 1 < var_power < 2: ad.family\('tweedie', var_power=1.5\)"),
        (("tweedie",), {"var_power": 3.0}, ValueError, "var_power is 3; .* 1, 2 and 3 are 'poisson', 'gamma' and 'inv"),
        (
            ("gamma",),
            {"var_power": 1.5},
            ValueError,
            "var_power is 1.5, but family 'gamma' has none; it belongs to 'twe",
        ),
        (("poisson",), {"alpha": 1.0}, ValueError, "alpha is 1.0, but family 'poisson' has none; .*'negativebinomial'"),
        (("negativebinomial",), {"alpha": 0.0}, ValueError, r"alpha is 0; it must lie in \(0, inf"),
    ],
)
def test_what_cannot_be_composed_is_refused(arguments, words, error, message):
    with pytest.raises(error, match=message):
        ad.family(*arguments, **words)


@pytest.mark.parametrize(
    ("name", "y", "wanted"),
    [
        ("tweedie", [0.0, -1.0, 2.0], "values >= 0"),
        ("inversegaussian-log", [0.0, 1.0], "values > 0"),
        ("gamma-identity", [0.0, 1.0], "values > 0"),
        ("poisson-identity", [-1.0, 1.0], "counts, that is values >= 0"),
        ("probit", [0.0, 1.5], r"values in \[0, 1\]"),
    ],
)
def test_responses_outside_the_domain_are_refused(name, y, wanted):
    family = CASES[name][0]
    with pytest.raises(ValueError, match=rf"outside the domain of family '{family.name}'.* wants {wanted}"):
        family.check_response(np.array(y))
    Family("gaussian", link="log").check_response(np.array([-1.0, 2.0]))
