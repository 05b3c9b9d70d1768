"""Losses against likelihoods of scipy, and the doors to a family."""

import itertools

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, special, stats

from adfl_stats.losses.families import FAMILY_NAMES, Family, Huber, resolve_family

ALPHA = 0.7
# Huber's constant and threshold; the normal law behind them has standard deviation K / C.
C, K = 1.2, 0.9
FAMILIES = {
    "gaussian": Family("gaussian"),
    "binomial": Family("binomial"),
    "poisson": Family("poisson"),
    "gamma": Family("gamma"),
    "negativebinomial": Family("negativebinomial", par=ALPHA),
    "multinomial": Family("multinomial", outputs=3),
    "huber": Family("huber", par=K, tuning=C),
}
SINGLE = [name for name in FAMILIES if name != "multinomial"]
# Those with a counterpart among statsmodels' GLM families.
GLM = [name for name in SINGLE if name != "huber"]

# The law of y at a linear predictor. The gamma loss is that of shape 1 (dispersion one); other shapes only
# multiply it.
LAWS = {
    "gaussian": lambda eta: stats.norm(eta, 1.0),
    "binomial": lambda eta: stats.bernoulli(special.expit(eta)),
    "poisson": lambda eta: stats.poisson(np.exp(eta)),
    "gamma": lambda eta: stats.gamma(1.0, scale=np.exp(eta)),
    "negativebinomial": lambda eta: stats.nbinom(1.0 / ALPHA, 1.0 / (1.0 + ALPHA * np.exp(eta))),
    "huber": lambda eta: stats.norm(eta, K / C),
}


def loss(name, eta, y):
    """Minus the log-likelihood per observation, by scipy; Huber's loss by statsmodels."""
    if name == "huber":
        return sm.robust.norms.HuberT(t=K).rho(y - eta)
    if name == "multinomial":
        full = special.log_softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1)
        return -full[np.arange(len(y)), y.astype(int)]
    law = LAWS[name](eta)
    return -(law.logpdf(y) if hasattr(law.dist, "pdf") else law.logpmf(y))


def points(name, n=60, seed=0):
    """Predictors and responses; columns of predictors for all families, one for all but the multinomial."""
    rng = np.random.default_rng(seed)
    q = FAMILIES[name].outputs
    eta = rng.uniform(-2.0, 2.0, size=(n, q))
    y = (
        rng.integers(q + 1, size=n).astype(float)
        if name == "multinomial"
        else LAWS[name](eta[:, 0]).rvs(random_state=rng)
    )
    return eta, np.asarray(y, dtype=float)


def shaped(name, eta):
    return eta if name == "multinomial" else eta[:, 0]


def shift(name, eta, y, *moves):
    """The loss with given amounts added to given columns of eta."""
    moved = eta.copy()
    for column, amount in moves:
        moved[:, column] += amount
    return loss(name, shaped(name, moved), y)


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_is_minus_the_log_likelihood_up_to_a_term_free_of_eta(name):
    family, (eta, y) = FAMILIES[name], points(name)
    other = np.random.default_rng(1).uniform(-2.0, 2.0, size=eta.shape)
    found = family.loss(shaped(name, eta), y) - family.loss(shaped(name, other), y)
    expected = loss(name, shaped(name, eta), y) - loss(name, shaped(name, other), y)
    assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------ derivatives


@pytest.mark.parametrize("name", GLM)
def test_deviance_is_that_of_statsmodels(name):
    rng = np.random.default_rng(3)
    eta = rng.normal(size=400)
    y = LAWS[name](eta).rvs(random_state=rng).astype(float)
    known = FAMILIES[name].statsmodels()
    expected = known.resid_dev(y, known.link.inverse(eta)) ** 2
    assert_allclose(FAMILIES[name].deviance(eta, y), expected, rtol=1e-9, atol=1e-12)


def test_deviance_of_shares():
    y, eta = np.array([0.0, 0.2, 0.5, 1.0]), np.array([0.3, -1.0, 0.0, 2.0])
    known = sm.families.Binomial()
    assert_allclose(Family("binomial").deviance(eta, y), known.resid_dev(y, special.expit(eta)) ** 2, atol=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_residual_is_the_slope_of_the_loss(name):
    family, (eta, y) = FAMILIES[name], points(name)
    # Truncation h^2 and rounding 1e-16 / h times the loss: both below 1e-9 of it.
    h = 1e-5
    slopes = [(shift(name, eta, y, (j, h)) - shift(name, eta, y, (j, -h))) / (2 * h) for j in range(family.outputs)]
    found = family.residual(shaped(name, eta), y).reshape(len(y), -1)
    assert_allclose(found, np.column_stack(slopes), rtol=5e-6, atol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_curvature_is_the_second_slope_of_the_loss(name):
    family, (eta, y) = FAMILIES[name], points(name)
    # Truncation h^2 / 12 = 8e-8 and rounding 1e-15 / h^2 = 1e-9 times the loss.
    h, q = 1e-3, family.outputs
    expected = np.empty((len(y), q, q))
    for j, k in itertools.product(range(q), repeat=2):
        corners = [a * b * shift(name, eta, y, (j, a * h), (k, b * h)) for a in (1, -1) for b in (1, -1)]
        expected[:, j, k] = sum(corners) / (4 * h**2)
    found = family.curvature(shaped(name, eta), y).reshape(len(y), q, q)
    assert_allclose(found, expected, rtol=5e-6, atol=2e-8)


@pytest.mark.parametrize("eta", [-2.0, -0.3, 0.0, 1.1, 2.0])
@pytest.mark.parametrize("name", SINGLE)
def test_information_is_the_mean_curvature(name, eta):
    family, law = FAMILIES[name], LAWS[name](eta)
    if name == "huber":
        # A jump is hard to integrate over.
        expected = law.cdf(eta + K) - law.cdf(eta - K)
    elif hasattr(law.dist, "pdf"):
        expected = law.expect(lambda y: family.curvature(np.full(np.shape(y), eta), np.asarray(y)))
    else:
        y = np.arange(law.ppf(1.0 - 1e-15) + 50.0)
        expected = law.pmf(y) @ family.curvature(np.full(len(y), eta), y)
    assert_allclose(family.information(np.array([eta])), [expected], rtol=1e-8)


def test_information_is_the_mean_curvature_and_the_variance_for_classes():
    family, (eta, _) = FAMILIES["multinomial"], points("multinomial")
    probability = special.softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1)
    codes = np.arange(family.outputs + 1)
    by_class = [family.curvature(eta, np.full(len(eta), float(c))) for c in codes]
    mean = sum(probability[:, c, None, None] * by_class[c] for c in codes)
    assert_allclose(family.information(eta), mean, rtol=1e-12)
    scores = [family.residual(eta, np.full(len(eta), float(c))) for c in codes]
    variance = sum(probability[:, c, None, None] * scores[c][:, :, None] * scores[c][:, None, :] for c in codes)
    assert_allclose(family.information(eta), variance, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", FAMILIES)
def test_mean_is_the_mean(name):
    family, (eta, _) = FAMILIES[name], points(name)
    found = family.mean(shaped(name, eta))
    if name == "multinomial":
        assert_allclose(found, special.softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1), rtol=1e-13)
    else:
        assert_allclose(found, LAWS[name](eta[:, 0]).mean(), rtol=1e-13)


@pytest.mark.parametrize("name", FAMILIES)
def test_far_out_everything_stays_a_number(name):
    family = FAMILIES[name]
    eta = np.array([-1e4, -300.0, 300.0, 1e4])
    eta = np.tile(eta[:, None], family.outputs) if name == "multinomial" else eta
    y = np.ones(4)
    if name != "gamma":  # whose loss y exp(-eta) really has no bound
        assert np.isfinite(family.residual(eta, y)).all()
    assert np.isfinite(family.mean(eta)).all()
    assert np.isfinite(family.information(eta)).all()


@pytest.mark.parametrize("weight", [0.3, 1.0, 4.0])
def test_the_least_favourable_law_of_huber_is_one_and_has_its_loss(weight):
    family = FAMILIES["huber"]

    def density(y):
        return np.exp(family.log_density(np.full(np.shape(y), 0.4), np.asarray(y), np.full(np.shape(y), weight)))

    corners = [0.4 - K, 0.4 + K]
    assert_allclose(integrate.quad(density, -60.0, 60.0, points=corners, limit=200)[0], 1.0, rtol=1e-9)
    y = np.linspace(-5.0, 5.0, 31)
    expected = -weight * loss("huber", 0.4, y) / (K / C) ** 2
    found = np.log(density(y))
    assert_allclose(found - found[0], expected - expected[0], atol=1e-10)


def test_the_score_of_huber_has_the_variance_that_its_dispersion_says():
    family, rng = FAMILIES["huber"], np.random.default_rng(5)
    y, eta = rng.standard_t(3, size=400_000), np.zeros(400_000)
    variance = family.dispersion_terms(eta, y).mean() * family.information(eta).mean()
    assert_allclose(variance, np.var(np.clip(y, -K, K)), rtol=1e-3)


# ------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    ("family", "bound"),
    [
        (Family("gaussian"), 1.0),
        (Family("huber", par=K, tuning=C), 1.0),
        (Family("binomial"), 0.25),
        (Family("multinomial", outputs=1), 0.5),
        (Family("multinomial", outputs=4), 0.5),
        (Family("negativebinomial", par=0.05), None),
        (Family("negativebinomial", par=0.7), None),
        (Family("negativebinomial", par=5.0), None),
        (Family("poisson"), None),
        (Family("gamma"), None),
    ],
    ids=lambda value: f"{value.name}-{value.par or value.outputs}" if isinstance(value, Family) else "",
)
def test_the_bound_holds_at_the_point(family, bound):
    rng = np.random.default_rng(3)
    n = 4000
    eta = rng.uniform(-8.0, 8.0, size=(n, family.outputs))
    high = {"binomial": 2, "multinomial": family.outputs + 1}.get(family.name, 400)
    y = rng.integers(high, size=n).astype(float)
    at = eta if family.name == "multinomial" else eta[:, 0]
    curvature = family.curvature(at, y)
    largest = np.linalg.eigvalsh(curvature)[:, -1] if curvature.ndim == 3 else curvature
    found = family.curvature_bound(at, y)
    assert np.all(largest <= found * (1 + 1e-12))
    if bound is not None:
        assert_array_equal(found, bound)
    # It is no idle bound: somewhere the curvature comes near it (a two-class multinomial has half of it).
    assert (largest / found).max() > (0.49 if family.outputs == 1 and family.name == "multinomial" else 0.9)


@pytest.mark.parametrize("par", [0.05, 0.7, 5.0])
def test_the_negative_binomial_never_exceeds_its_largest_curvature(par):
    family = Family("negativebinomial", par=par)
    eta = np.linspace(-30.0, 30.0, 20_001)
    for y in (0.0, 1.0, 30.0):
        largest = family.curvature(eta, np.full(len(eta), y)).max()
        assert_allclose(largest, (1.0 + par * y) / (4.0 * par), rtol=1e-5)
        assert np.all(family.curvature_bound(eta, np.full(len(eta), y)) <= largest * (1 + 1e-5))


# ------------------------------------------------------------------ doors


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gaussian", Family("gaussian")),
        ("Gaussian", Family("gaussian")),
        ("binomial", Family("binomial")),
        ("poisson", Family("poisson")),
        ("GAMMA", Family("gamma")),
        ("negativebinomial", Family("negativebinomial", par=0.0)),
        ("Negative Binomial", Family("negativebinomial", par=0.0)),
        ("negative_binomial", Family("negativebinomial", par=0.0)),
        ("multinomial", Family("multinomial", outputs=3)),
        ("Huber", Family("huber", tuning=1.345)),
        (Huber(), Family("huber", tuning=1.345)),
        (Huber(c=2.0, scale=3.0), Family("huber", par=6.0, tuning=2.0)),
        (sm.robust.norms.HuberT(t=1.5), Family("huber", tuning=1.5)),
        (sm.families.Gaussian(), Family("gaussian")),
        (sm.families.Binomial(), Family("binomial")),
        (sm.families.Poisson(), Family("poisson")),
        (sm.families.Gamma(link=sm.families.links.Log()), Family("gamma")),
        (sm.families.NegativeBinomial(alpha=0.3), Family("negativebinomial", par=0.3)),
        (Family("negativebinomial", par=2.0), Family("negativebinomial", par=2.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_names_and_statsmodels_instances_are_families(given, expected):
    assert resolve_family(given, classes=4) == expected


@pytest.mark.parametrize("name", GLM)
def test_a_family_and_its_statsmodels_counterpart_agree(name):
    family = FAMILIES[name]
    assert resolve_family(family.statsmodels()) == family
    eta = np.linspace(-2.0, 2.0, 9)
    assert_allclose(family.statsmodels().link.inverse(eta), family.mean(eta), rtol=1e-14)
    assert type(family.statsmodels().link).__name__.lower() == family.link


def test_the_multinomial_names_its_counterpart():
    with pytest.raises(ValueError, match="its counterpart is MNLogit"):
        FAMILIES["multinomial"].statsmodels()


def test_huber_names_its_counterpart():
    with pytest.raises(ValueError, match="its counterpart is RLM with HuberT"):
        FAMILIES["huber"].statsmodels()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"c": 0.0}, ValueError, r"c is 0; it must lie in \(0, inf\): .* for least squares use family='gaussian'"),
        ({"c": np.inf}, ValueError, r"c is inf; it must lie in \(0, inf\): .* for least squares use family='gaussian'"),
        ({"c": "1.345"}, TypeError, r"c must be a number, got '1.345' \(str\): the usual value is 1.345"),
        ({"c": None}, TypeError, r"c must be a number, got None"),
        ({"scale": -1.0}, ValueError, r"scale is -1; it must lie in \(0, inf\): leave it out to have it estimated"),
        ({"scale": [1.0, 2.0]}, TypeError, r"scale must be a number, got \[1.0, 2.0\]"),
    ],
)
def test_constants_of_huber_that_make_no_sense_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Huber(**arguments)


AVAILABLE = ", ".join(map(repr, FAMILY_NAMES))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("gausian", ValueError, f"family is 'gausian'; choose one of {AVAILABLE}"),
        ("", ValueError, f"family is ''; choose one of {AVAILABLE}"),
        (None, ValueError, f"family is None; choose one of {AVAILABLE}"),
        (
            sm.families.Tweedie(var_power=2.5),
            ValueError,
            r"var_power is 2.5; it must lie in \(1, 2\): powers 1, 2 and 3",
        ),
        ("tweedie", ValueError, "family 'tweedie' needs its power"),
        (sm.families.Poisson, TypeError, r"family is the class Poisson; pass an instance, Poisson\(\)"),
        (Huber, TypeError, r"family is the class Huber; pass an instance, Huber\(\)"),
        (sm.robust.norms.HuberT, TypeError, r"family is the class HuberT; pass an instance, HuberT\(\)"),
        (sm.robust.norms.HuberT(t=-1.0), ValueError, r"c is -1; it must lie in \(0, inf\): the usual value is 1.345"),
        (sm.robust.norms.TukeyBiweight(), ValueError, f"TukeyBiweight.*; choose one of {AVAILABLE}"),
        (
            sm.families.NegativeBinomial(link=sm.families.links.Identity(), alpha=1.0),
            ValueError,
            "family 'negativebinomial' with the link 'identity' is not available; its links are: 'log'",
        ),
        (
            sm.families.Binomial(link=sm.families.links.Cauchy()),
            ValueError,
            "family 'binomial' with the link 'cauchy' is not available; its links are: 'logit', 'probit', 'cloglog'",
        ),
        (sm.families.NegativeBinomial(alpha=0.0), ValueError, r"alpha is 0; it must lie in \(0, inf"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_family_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        resolve_family(given)


@pytest.mark.parametrize("classes", [0, 1])
def test_the_multinomial_needs_classes(classes):
    with pytest.raises(ValueError, match=f"needs y with at least 2 classes, found {classes}"):
        resolve_family("multinomial", classes)


# ------------------------------------------------------------------ responses


@pytest.mark.parametrize(
    ("name", "y", "first", "count", "wanted"),
    [
        ("binomial", [0.0, 1.0, 2.0, -1.0], "2 in row 2", 2, r"values in \[0, 1\] \(0/1, or shares of successes"),
        ("poisson", [3.0, -0.5, 0.0], "-0.5 in row 1", 1, "counts, that is values >= 0"),
        ("gamma", [0.0, 1.0, 2.0], "0 in row 0", 1, "values > 0"),
        ("negativebinomial", [1.0, -2.0, -3.0], "-2 in row 1", 2, "counts, that is values >= 0"),
        ("multinomial", [0.0, 1.0, 3.0, 4.0], "4 in row 3", 1, r"class codes 0\.\.3"),
        ("multinomial", [0.0, 0.5, 3.0], "0.5 in row 1", 1, r"class codes 0\.\.3"),
    ],
)
def test_responses_outside_the_domain_are_refused(name, y, first, count, wanted):
    message = (
        rf"y is outside the domain of family '{name}': {count} value\(s\), the first is {first}\..* wants {wanted}"
    )
    with pytest.raises(ValueError, match=message):
        FAMILIES[name].check_response(np.array(y))


@pytest.mark.parametrize(
    ("name", "y"),
    [
        ("gaussian", [-1e9, 0.0, 3.5]),
        ("huber", [-1e9, 0.0, 3.5]),
        ("binomial", [0.0, 0.25, 1.0]),
        ("poisson", [0.0, 2.5, 1e6]),
        ("gamma", [1e-9, 3.0]),
        ("negativebinomial", [0.0, 7.0]),
        ("multinomial", [0.0, 3.0]),
    ],
)
def test_responses_inside_the_domain_pass(name, y):
    FAMILIES[name].check_response(np.array(y))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_constant_response_is_refused(name):
    with pytest.raises(ValueError, match="y takes the single value 1 in all 4 rows: there is nothing to estimate"):
        FAMILIES[name].check_response(np.ones(4))
