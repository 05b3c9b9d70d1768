"""What the summary says of rows that do not count, of the start, and of flags that differ from weights."""

from dataclasses import replace

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.methods import adaptive


@pytest.fixture(scope="module")
def fit():
    """A default fit of hospitals, some of which lose their weight."""
    sim = ad.simulate.hospitals(seed=1, M=40, abnormal=8)
    net = ad.networks.directed_circle(40, 5, labels=sim.labels)
    formula = "readmitted ~ age + severity"
    return ad.DecentralizedGLM.from_formula(formula, sim.frame(), "hospital", net, "binomial").fit()


def words(res):
    return " ".join(str(res.summary()).split())


def test_observations_are_those_that_count(fit, res):
    aside = int(fit.record.sizes[~fit.record.trusted].sum())
    assert aside > 0
    assert f" {fit.nobs - aside} of {fit.nobs}\n" in str(fit.summary())
    assert f"Of {fit.nobs} observations {aside} are set aside with" in words(fit)
    # A likelihood of some rows is not comparable with that of others.
    assert "Log-likelihood: - " in words(fit)
    assert f"{fit.llf:.6g}" not in str(fit.summary())
    assert f"Observations: {res.nobs} " in words(res)
    assert f"Log-likelihood: {res.llf:.6g} " in words(res)
    assert f"Of {res.nobs} observations" not in words(res)


def test_flags_and_weights_that_differ_are_named(fit):
    record, flagged = fit.record, fit.clients()["flagged"].to_numpy()
    first, other = np.flatnonzero(flagged)[0], np.flatnonzero(~flagged)[0]
    weights = np.where(flagged, 0.0, 1.0)
    assert "and weights differ" not in words(ad.Results(replace(record, weights=weights)))
    weights[first], weights[other] = 1.0, 0.0
    said = words(ad.Results(replace(record, weights=weights)))
    assert "Flags (res.clients(), q = 0.1) and weights differ: 1 flagged client(s) keep weight (" in said
    assert f"keep weight ('{record.labels[first]}'); 1 lost weight without a flag ('{record.labels[other]}')" in said


def test_methods_without_weights_have_no_note_on_them(model):
    assert "and weights differ" not in words(model.fit(ad.DFL()))


def test_warning_and_summary_name_the_same_start(monkeypatch, logistic):
    """Where the start from all clients leads to the better model, both say so."""
    data = ad.ClientData.from_arrays(logistic.X, logistic.y, logistic.client)
    model = ad.DecentralizedGLM(data, ad.networks.complete(8), "binomial")
    assert "Start: trimmed scores " in words(model.fit())
    near = iter([False, False])
    monkeypatch.setattr(adaptive, "_near", lambda *_: next(near))
    monkeypatch.setattr(adaptive, "majority_misfits", lambda *_: (2.0, 1.0))
    monkeypatch.setattr(adaptive, "disputed", lambda *_: 3)
    message = "begun from trimmed scores and pooled estimate.*That from pooled estimate is reported"
    with pytest.warns(ad.ConvergenceWarning, match=message):
        res = model.fit()
    assert res.method.details["start"] == "pooled estimate"
    assert "Start: pooled estimate " in words(res)


def test_huge_statistics_do_not_widen_the_tables():
    """Five rounds that end where fitted probabilities are 0 and 1, at which scores are of the order 1e20 and beyond."""
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(270), rng.normal(size=(270, 2)) * [1.0, 100.0]])
    y = (rng.random(270) < 1.0 / (1.0 + np.exp(-X[:, 2] / 100.0))).astype(float)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(9), 30))
    model = ad.DecentralizedGLM(data, ad.networks.complete(9), family="binomial")
    res = model.fit(ad.DFL(), step=0.5, rounds=5)
    assert res.clients()["score"].max() > 1e12
    for text in (str(res.summary()), str(res.heterogeneity()), str(ad.screen(res))):
        assert max(map(len, text.splitlines())) <= 80
    assert "e+" in str(res.summary())
