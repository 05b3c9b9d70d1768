"""Estimates, inference and predictions against statsmodels on the pooled data."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose
from scipy import special

import adfl_stats as ad

SIZES = (40, 75, 52, 64, 90, 45, 58, 71)
M, N = len(SIZES), sum(SIZES)
CLIENT = np.repeat(np.arange(M), SIZES)
NAMES = ["const", "x1", "x2"]
THETA = np.array([0.3, 0.5, -0.4])
ALPHA = 0.5

KINDS = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(link=sm.families.links.Log()),
    "negativebinomial": sm.families.NegativeBinomial(alpha=ALPHA),
}
# What a row may carry besides; a name of ours and of statsmodels' GLM for each.
EXTRAS = {"plain": (), "offset": ("offset",), "exposure": ("exposure",), "weights": ("weights",)}
GLM_NAMES = {"offset": "offset", "exposure": "exposure", "weights": "var_weights"}
CASES = [
    (name, extra) for name in KINDS for extra in EXTRAS if extra != "exposure" or name not in ("gaussian", "binomial")
] + [("multinomial", "plain")]
COVARIANCES = {"sandwich": "HC0", "HC0": "HC0", "nonrobust": "nonrobust", "cluster": "cluster", "CR1": "cluster"}


@dataclass(frozen=True)
class Case:
    """One data set with what its rows carry."""

    name: str
    X: np.ndarray
    y: np.ndarray
    carried: dict

    def model(self, network):
        data = ad.ClientData.from_arrays(self.X, self.y, CLIENT, names=NAMES, **self.carried)
        return ad.DecentralizedGLM(data, network, KINDS.get(self.name, self.name))

    def statsmodels(self, cov_type="HC0"):
        """The pooled fit.

        statsmodels' sandwiches have the observed Hessian inside after IRLS too (its `hessian` takes the
        observed one unless told otherwise), as ours do; its default covariance has the expected one.
        """
        options = {"cov_kwds": {"groups": CLIENT}} if cov_type == "cluster" else {}
        X = pd.DataFrame(self.X, columns=NAMES)
        if self.name == "multinomial":
            return sm.MNLogit(self.y, X).fit(disp=0, method="newton", tol=1e-14, cov_type=cov_type, **options)
        carried = {GLM_NAMES[key]: value for key, value in self.carried.items()}
        model = sm.GLM(self.y, X, KINDS[self.name], **carried)
        return model.fit(tol=1e-14, maxiter=200, cov_type=cov_type, **options)


@cache
def case(name, extra="plain"):
    rng = np.random.default_rng(11)
    # Clients differ in their covariates, so that their own estimates and gradients do.
    X = np.column_stack([np.ones(N), rng.normal(size=(N, 2)) + rng.normal(scale=0.5, size=(M, 2))[CLIENT]])
    carried = {
        "offset": rng.normal(scale=0.5, size=N),
        "exposure": rng.uniform(0.5, 4.0, size=N),
        "weights": rng.uniform(0.3, 2.5, size=N),
    }
    carried = {key: carried[key] for key in EXTRAS[extra]}
    eta = X @ THETA + carried.get("offset", 0.0) + np.log(carried.get("exposure", 1.0))
    if name == "multinomial":
        shares = special.softmax(np.column_stack([np.zeros(N), eta, 0.5 - eta]), axis=1).cumsum(axis=1)
        y = (rng.random(N)[:, None] > shares[:, :2]).sum(axis=1)
    else:
        y = {
            "gaussian": lambda: eta + rng.normal(size=N) * (0.5 + rng.random(N)),
            "binomial": lambda: rng.random(N) < special.expit(eta),
            "poisson": lambda: rng.poisson(np.exp(eta)),
            "gamma": lambda: rng.gamma(2.0, np.exp(eta) / 2.0),
            "negativebinomial": lambda: rng.poisson(np.exp(eta) * rng.gamma(1 / ALPHA, ALPHA, size=N)),
        }[name]()
    return Case(name, X, np.asarray(y, dtype=float), carried)


@cache
def fitted(name, extra="plain"):
    """DFL on the complete network, where the mean over clients does gradient descent on the pooled loss."""
    # statsmodels' pooled fits have clients with one parameter.
    return case(name, extra).model(ad.networks.complete(M)).fit(ad.DFL(), rounds=1500, heterogeneity="none")


@cache
def pooled(name, extra="plain", cov_type="HC0"):
    return case(name, extra).statsmodels(cov_type)


def flat(params):
    """statsmodels' parameters in our order: class by class for MNLogit."""
    return np.asarray(params).ravel(order="F")


def assert_same_matrix(found, expected, rtol=1e-6):
    """Compare entries relative to the standard errors, as a covariance may be nearly zero."""
    unit = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert_allclose(found / unit, expected / unit, rtol=0, atol=rtol)


# ------------------------------------------------------------------ estimates


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_on_the_complete_network_the_estimate_is_the_pooled_one(name, extra):
    assert_allclose(fitted(name, extra).params, flat(pooled(name, extra).params), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_between_exchanges_a_circle_may_gossip_to_the_pooled_estimate(name, extra):
    # The second eigenvalue of the circle has modulus |sin(3 pi/8) / (3 sin(pi/8))| = .80; to the power 80, 3e-8.
    circle = ad.networks.directed_circle(M, 3)
    res = case(name, extra).model(circle.gossip(80)).fit(ad.DFL(), rounds=1500)
    assert_allclose(res.params, flat(pooled(name, extra).params), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_on_a_circle_a_small_step_gives_the_pooled_estimate(name, extra):
    res = case(name, extra).model(ad.networks.directed_circle(M, 3)).fit(ad.DFL(), tolerance=2e-3, heterogeneity="none")
    expected = pooled(name, extra)
    assert res.converged
    assert_allclose((res.params - flat(expected.params)) / flat(expected.bse), 0.0, atol=2e-3)
    assert_allclose(res.bse, flat(expected.bse), rtol=1e-3)


# ------------------------------------------------------------------ covariance and fit


@pytest.mark.filterwarnings("ignore:cov_type not fully supported with var_weights")
@pytest.mark.parametrize("cov_type", COVARIANCES)
@pytest.mark.parametrize(("name", "extra"), CASES)
def test_covariances_are_those_of_the_pooled_fit(name, extra, cov_type):
    expected = pooled(name, extra, COVARIANCES[cov_type])
    found = fitted(name, extra)
    assert_same_matrix(found.cov_params(cov_type).to_numpy(), np.asarray(expected.cov_params()))
    assert_allclose(found.standard_errors(cov_type), flat(expected.bse), rtol=1e-6)


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_inference_follows_from_the_sandwich(name, extra):
    found, expected = fitted(name, extra), pooled(name, extra)
    assert_allclose(found.bse, flat(expected.bse), rtol=1e-6)
    assert_allclose(found.zvalues, flat(expected.tvalues), rtol=1e-5)
    assert_allclose(found.pvalues, flat(expected.pvalues), rtol=1e-4, atol=1e-15)
    assert_allclose(found.conf_int(0.1), np.asarray(expected.conf_int(0.1)).reshape(-1, 2), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_fit_statistics_are_those_of_the_pooled_fit(name, extra):
    found, expected = fitted(name, extra), pooled(name, extra)
    assert found.nobs == N
    assert_allclose(found.llf, expected.llf, rtol=1e-9)
    assert_allclose(found.aic, expected.aic, rtol=1e-9)
    if name == "multinomial":
        assert_allclose(found.bic, expected.bic, rtol=1e-9)
        assert_allclose(found.deviance, -2.0 * expected.llf, rtol=1e-9)
    else:
        assert_allclose(found.bic, expected.bic_llf, rtol=1e-9)
        assert_allclose(found.deviance, expected.deviance, rtol=1e-9)
        assert_allclose(found.scale, expected.scale, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.01, 100.0])
@pytest.mark.parametrize("name", ["gaussian", "gamma"])
def test_weights_are_relative_where_the_dispersion_is_estimated(name, scale):
    plain = case(name, "weights")
    other = Case(name, plain.X, plain.y, {"weights": scale * plain.carried["weights"]})
    found = other.model(ad.networks.complete(M)).fit(ad.DFL(), rounds=1500, heterogeneity="none")
    expected = fitted(name, "weights")
    assert_allclose(found.params, expected.params, rtol=1e-9)
    for cov_type in COVARIANCES:
        assert_allclose(found.cov_params(cov_type), expected.cov_params(cov_type), rtol=1e-7)
    assert_allclose(found.clients()["score"], expected.clients()["score"], rtol=1e-6)


# ------------------------------------------------------------------ hypotheses

HYPOTHESES = {
    "text": "x1 = x2",
    "two": "x1 = 0.4, x2 + const = 0",
    "matrix": np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 2.0]]),
}


@pytest.mark.parametrize("cov_type", ["sandwich", "cluster"])
@pytest.mark.parametrize("hypothesis", HYPOTHESES)
@pytest.mark.parametrize("name", KINDS)
def test_linear_hypotheses_are_tested_as_in_statsmodels(name, hypothesis, cov_type):
    R, found, expected = HYPOTHESES[hypothesis], fitted(name), pooled(name, cov_type=COVARIANCES[cov_type])
    # By client, statsmodels' t and F have the number of clients less one as their degrees of freedom.
    by_client = cov_type == "cluster"
    ours, theirs = found.t_test(R, cov_type), expected.t_test(R, use_t=by_client)
    for part in ("effect", "sd", "statistic"):
        assert_allclose(np.squeeze(getattr(ours, part)), np.squeeze(getattr(theirs, part)), rtol=1e-5)
    assert_allclose(ours.pvalue, theirs.pvalue, rtol=1e-4, atol=1e-15)
    ours, theirs = found.wald_test(R, cov_type), expected.wald_test(R, use_f=by_client, scalar=True)
    assert_allclose(ours.statistic, theirs.statistic, rtol=1e-5)
    assert_allclose(ours.pvalue, theirs.pvalue, rtol=1e-4, atol=1e-15)
    assert ours.df_denom == theirs.df_denom


def test_hypotheses_about_classes_are_tested_as_in_statsmodels():
    R = np.eye(6)[[1, 4]] - np.eye(6)[[2, 5]]
    found, expected = fitted("multinomial"), pooled("multinomial")
    params, covariance = flat(expected.params), np.asarray(expected.cov_params())
    contrast = R @ params
    statistic = contrast @ np.linalg.solve(R @ covariance @ R.T, contrast)
    assert_allclose(found.wald_test(R).statistic, statistic, rtol=1e-5)
    assert_allclose(found.t_test(R).sd.ravel(), np.sqrt(np.diag(R @ covariance @ R.T)), rtol=1e-6)


# ------------------------------------------------------------------ predictions

NEW = np.column_stack([np.ones(7), np.linspace(-2.0, 2.0, 7), np.linspace(1.0, -0.5, 7)])


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson"])
def test_predictions_and_their_intervals_are_those_of_statsmodels(name, alpha):
    found, expected = fitted(name).get_prediction(NEW), pooled(name).get_prediction(NEW)
    columns = ["mean", "mean_se", "mean_ci_lower", "mean_ci_upper"]
    frame = found.summary_frame(alpha)
    assert_allclose(frame[columns], expected.summary_frame(alpha=alpha)[columns], rtol=1e-5)
    assert_allclose(fitted(name).predict(NEW), pooled(name).predict(NEW), rtol=1e-6)


@pytest.mark.parametrize(("name", "extra"), [("poisson", "exposure"), ("poisson", "offset"), ("binomial", "offset")])
def test_predictions_take_offset_and_exposure(name, extra):
    carried = {extra: np.linspace(0.5, 3.0, len(NEW))}
    found = fitted(name, extra).get_prediction(NEW, **carried).summary_frame()
    expected = pooled(name, extra).get_prediction(NEW, **carried).summary_frame()
    assert_allclose(found, expected, rtol=1e-5)


def test_intervals_for_new_observations_are_those_of_least_squares():
    data = case("gaussian")
    expected = sm.OLS(data.y, data.X).fit(cov_type="HC0").get_prediction(NEW).summary_frame(0.1)
    found = fitted("gaussian").get_prediction(NEW).summary_frame(0.1)
    assert list(found.columns) == list(expected.columns)
    assert_allclose(found, expected, rtol=1e-5)


def test_class_probabilities_and_their_errors():
    found, expected = fitted("multinomial").get_prediction(NEW), pooled("multinomial")
    assert list(found.predicted_mean.columns) == [0, 1, 2]
    assert_allclose(found.predicted_mean, expected.predict(NEW), rtol=1e-6)
    # The delta method, with slopes of statsmodels' own prediction by central differences.
    params, covariance = flat(expected.params), np.asarray(expected.cov_params())

    def predict(values):
        return expected.model.predict(values.reshape(3, 2, order="F"), NEW)

    h = 1e-6
    slopes = np.stack([(predict(params + h * e) - predict(params - h * e)) / (2 * h) for e in np.eye(6)], axis=2)
    errors = np.sqrt(np.einsum("ncj,jk,nck->nc", slopes, covariance, slopes))
    assert_allclose(found.se_mean, errors, rtol=1e-6)
