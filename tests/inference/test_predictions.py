"""Predictions from any form of rows."""

import numpy as np
import pandas as pd
from a_few_fits import numbered_fit
from scipy import special, stats

import adfl_stats as ad

# ------------------------------------------------------------------ predictions


def test_predictions_from_any_form_of_rows(res, frame, logistic):
    rows = frame.iloc[[5, 300, 17]]
    X = logistic.X[[5, 300, 17]]
    wanted = special.expit(X @ res.params.to_numpy())
    columns = pd.DataFrame(X, columns=["Intercept", "x1", "x2", "x3"], index=list("abc"))
    for given, index in (
        (rows, [5, 300, 17]),
        (rows[["x3", "x1", "x2"]], [5, 300, 17]),
        (columns[["x3", "x1", "x2", "Intercept"]], list("abc")),
        (X, [0, 1, 2]),
        (X.tolist(), [0, 1, 2]),
    ):
        found = res.predict(given)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
        assert list(found.index) == index
    np.testing.assert_allclose(res.predict(X[0]), wanted[:1], rtol=1e-12)


def test_offset_and_exposure_move_the_linear_predictor(res, logistic):
    X = logistic.X[:4]
    eta = special.logit(res.predict(X).to_numpy())
    offset, exposure = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, 2.0, 2.0])
    found = res.predict(X, offset=offset, exposure=exposure)
    np.testing.assert_allclose(special.logit(found), eta + offset + np.log(exposure))


def test_transforms_of_the_fit_are_used_again(frame, network):
    res = ad.DecentralizedGLM.from_formula("y ~ center(x1)", frame, "client", network, "binomial").fit(ad.DFL())
    new = pd.DataFrame({"x1": [10.0]})
    eta = res.params.iloc[0] + res.params.iloc[1] * (10.0 - frame["x1"].mean())
    np.testing.assert_allclose(res.predict(new), special.expit(eta))


def test_prediction_intervals_go_through_the_link(res, logistic):
    x = logistic.X[:3]
    table = res.get_prediction(x).summary_frame(alpha=0.1)
    eta = x @ res.params.to_numpy()
    se = np.sqrt(np.diag(x @ res.cov_params().to_numpy() @ x.T))
    reach = stats.norm.ppf(0.95)
    mean = special.expit(eta)
    wanted = {
        "mean": mean,
        "mean_se": se * mean * (1 - mean),
        "mean_ci_lower": special.expit(eta - reach * se),
        "mean_ci_upper": special.expit(eta + reach * se),
    }
    pd.testing.assert_frame_equal(table, pd.DataFrame(wanted))


def test_gaussian_predictions_have_limits_for_an_observation(frame, network, logistic):
    res = numbered_fit(frame, network, logistic)
    table = res.get_prediction(logistic.X[:3]).summary_frame()
    reach = stats.norm.ppf(0.975) * np.sqrt(table["mean_se"] ** 2 + res.scale)
    np.testing.assert_allclose(table["obs_ci_upper"] - table["mean"], reach)
    np.testing.assert_allclose(table["mean"] - table["obs_ci_lower"], reach)


def test_class_probabilities(graded, frame):
    found = graded.predict(frame)
    assert list(found.columns) == ["low", "middle", "high"]
    assert found.columns.name == "z"
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    X = np.column_stack([np.ones(len(frame)), frame[["x1", "x2"]]])
    eta = np.column_stack([np.zeros(len(frame)), X @ graded.params.to_numpy().reshape(2, 3).T])
    np.testing.assert_allclose(found, special.softmax(eta, axis=1), rtol=1e-12)


def test_standard_errors_of_class_probabilities_by_differences(graded):
    x = np.array([1.0, 0.4, -1.2])

    def probabilities(params):
        return special.softmax(np.concatenate([[0.0], params.reshape(2, 3) @ x]))

    params = graded.params.to_numpy()
    steps = 1e-6 * np.eye(6)
    slopes = np.array([(probabilities(params + h) - probabilities(params - h)) / 2e-6 for h in steps]).T
    se = np.sqrt(np.diag(slopes @ graded.cov_params().to_numpy() @ slopes.T))
    table = graded.get_prediction(x).summary_frame()
    np.testing.assert_allclose(table.xs("mean_se", axis=1, level=1).iloc[0], se, rtol=1e-6)
    lower, upper = (table.xs(f"mean_ci_{side}", axis=1, level=1).iloc[0] for side in ("lower", "upper"))
    np.testing.assert_allclose(upper - lower, 2 * stats.norm.ppf(0.975) * se, rtol=1e-6)
