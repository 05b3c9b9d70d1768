"""Inference by client in results: many coefficients, files, predictions, coverage."""

import numpy as np
import pytest
from clustered_by_hand import KINDS, fit, logistic_rows
from numpy.testing import assert_allclose
from scipy import special, stats

import adfl_stats as ad
from adfl_stats.inference import clustered
from adfl_stats.inference.client_contrasts import contrast_df

# ------------------------------------------------------------------ many clients and coefficients


def test_contrasts_have_a_bound_where_matrices_take_too_much_room(monkeypatch):
    X, y, client, _ = logistic_rows()
    exact = fit(X, y, client, family="binomial")
    monkeypatch.setattr(clustered, "KEPT_ENTRIES", 0)
    bound = fit(X, y, client, family="binomial")
    assert len(bound.record.clustered.own) == 0
    assert_allclose(bound.degrees_of_freedom("CR2"), exact.degrees_of_freedom("CR2"), rtol=1e-12)
    rng = np.random.default_rng(0)
    known, found = (contrast_df(res.record.clustered, rng.normal(size=(200, 3))) for res in (exact, bound))
    assert (found == found[0]).all()
    # The bound leaves a margin of one for covariances between clients, which is nearly all they take.
    assert 1.0 <= found[0] <= known.min() + 0.2
    assert bound.wald_test(np.eye(3)[1:], "CR2").pvalue >= exact.wald_test(np.eye(3)[1:], "CR2").pvalue


def test_degrees_of_freedom_of_many_coefficients(monkeypatch):
    X, y, client, _ = logistic_rows()
    exact = fit(X, y, client, family="binomial").degrees_of_freedom("CR2")
    monkeypatch.setattr(clustered, "MOST_COEFFICIENTS", 2)
    assert_allclose(fit(X, y, client, family="binomial").degrees_of_freedom("CR2"), exact, rtol=0.1)


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_covariance_reaches_everything(res, frame, kind, tmp_path):
    assert (res.cov_type, res.use_t) == ("sandwich", False)
    found = res.get_robustcov_results(kind)
    found.save(tmp_path / "fit.npz")
    for by_client in (found, ad.load(tmp_path / "fit.npz")):
        assert (by_client.cov_type, by_client.use_t) == (kind, True)
        se, df = res.standard_errors(kind), res.degrees_of_freedom(kind)
        assert_allclose(by_client.bse, se, rtol=0)
        assert_allclose(by_client.cov_params(), res.cov_params(kind), rtol=0)
        assert_allclose(by_client.tvalues, res.params / se)
        assert_allclose(by_client.pvalues, 2 * stats.t.sf(np.abs(res.params / se), df))
        assert_allclose(by_client.conf_int(0.1)[1], res.params + stats.t.ppf(0.95, df) * se)
        assert_allclose(by_client.t_test(np.eye(4)).pvalue, by_client.pvalues, rtol=1e-9)
        text = by_client.summary().as_text()
        assert "P>|t|" in text
        assert f"by client ({kind}" in text
        assert "P>|z|" not in text
        line = next(line for line in text.splitlines() if line.startswith("x1 "))
        wanted = [by_client.params["x1"], se["x1"], by_client.tvalues["x1"], by_client.pvalues["x1"]]
        assert_allclose([float(value) for value in line.split()[1:5]], wanted, atol=6e-4)
    assert "P>|z|" in res.summary().as_text()
    assert np.isinf(res.degrees_of_freedom()).all()


def test_predictions_by_client(res, logistic):
    x = np.vstack([logistic.X[:5], np.zeros(4)])
    tested = res.t_test(x, "CR2")
    frame = res.get_prediction(x, cov_type="CR2").summary_frame(0.1)
    assert frame.loc[5, "mean_se"] == 0.0
    low, high = tested.conf_int(0.1).T
    assert_allclose(frame["mean_ci_lower"], special.expit(low), rtol=1e-9)
    assert_allclose(frame["mean_ci_upper"], special.expit(high), rtol=1e-9)


def test_methods_without_an_equation_have_no_covariance_by_client(model):
    res = model.fit(ad.Bridge(), rounds=20)
    assert res.cov_params("CR2").isna().all(axis=None)
    assert res.conf_int(cov_type="CR3").isna().all(axis=None)


# ------------------------------------------------------------------ coverage


UNEQUAL = np.array([8, 10, 12, 15, 18, 20, 25, 30, 35, 40, 50, 60])
THETA0 = np.array([1.0, 0.5, -0.5])


def dependent_rows(rng, heterogeneity="auto"):
    """A random intercept on 12 clients of unequal size, and a covariate of the client."""
    client = np.repeat(np.arange(12), UNEQUAL)
    X = np.column_stack([np.ones(len(client)), rng.normal(size=len(client)), rng.normal(size=12)[client]])
    y = X @ THETA0 + rng.normal(size=12)[client] + rng.normal(size=len(client))
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(12))
    return X, client, model.fit(ad.DFL(), threads=1, heterogeneity=heterogeneity)


def test_variances_where_rows_of_a_client_depend_on_one_another():
    """The variance of least squares is known; estimates of it by CR2 have its mean, those by independent rows do not.

    The mean over 60 data sets of the ratio of the two has a standard error, found from the data sets; CR2 is judged by
    four of them.
    """
    ratios: dict[str, list] = {"HC0": [], "CR1": [], "CR2": []}
    for rng in np.random.default_rng(2024).spawn(60):
        X, client, res = dependent_rows(rng, "intercept")
        bread, V = np.linalg.inv(X.T @ X), np.eye(len(X)) + (client[:, None] == client)
        truth = np.diag(bread @ X.T @ V @ X @ bread)
        for kind, found in ratios.items():
            found.append(res.standard_errors(kind) ** 2 / truth)
    mean = {kind: np.mean(found, axis=0) for kind, found in ratios.items()}
    error = np.std(ratios["CR2"], axis=0, ddof=1) / np.sqrt(60)
    assert (mean["HC0"][[0, 2]] < 0.2).all()
    assert mean["CR1"][2] < 0.8
    assert (np.abs(mean["CR2"] - 1.0) < 4.0 * error).all()
    assert (error < 0.12).all()


@pytest.mark.slow
def test_intervals_cover_where_rows_of_a_client_depend_on_one_another():
    """With 300 replicates the coverage of an interval of level .95 has standard error .0126.

    The band is three of them wide on each side. In 2000 replicates with another seed the intervals by independent rows
    (HC0 and z) cover .34 and .32 for the intercept and the client's covariate, CR1 with z .87 and .81, CR2 with t .946
    and .960.
    """
    hits = {"HC0": np.zeros(3), "CR1 with z": np.zeros(3), "CR2": np.zeros(3)}
    for rng in np.random.default_rng(2024).spawn(300):
        _, _, res = dependent_rows(rng)
        z = np.abs(res.params - THETA0) / res.standard_errors("CR1")
        for kind, hit in hits.items():
            limits = res.conf_int(cov_type=kind).to_numpy() if kind in ("HC0", "CR2") else None
            hit += z < 1.96 if limits is None else (limits[:, 0] <= THETA0) & (limits[:, 1] >= THETA0)
    shares = {kind: hit / 300 for kind, hit in hits.items()}
    assert (shares["HC0"][[0, 2]] < 0.6).all()
    assert shares["CR1 with z"][2] < 0.9
    assert (shares["CR2"] > 0.912).all()
    assert (shares["CR2"] < 0.988).all()
