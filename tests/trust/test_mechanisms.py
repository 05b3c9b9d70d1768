"""Corruptions of known form: their expected scores against plain sums over rows, and clients found by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.errors import SelectionWarning
from adfl_stats.losses.families import resolve_family
from adfl_stats.losses.glm import GLM
from adfl_stats.simulate.field_designs import draw
from adfl_stats.trust import client_model
from adfl_stats.trust.null import calibrate
from adfl_stats.trust.scoring import client_scores, summarised

MEANS = {
    "gaussian": lambda eta: eta,
    "poisson": np.exp,
    "binomial": lambda eta: 1.0 / (1.0 + np.exp(-eta)),
    "gamma": np.exp,
}
FAMILIES = {name: name for name in ("gaussian", "poisson", "binomial")}
FAMILIES["gamma"] = sm.families.Gamma(sm.families.links.Log())
KINDS = [
    *((family, kind) for family in MEANS for kind in ("shuffled", "mirrored")),
    ("gaussian", "flipped"),
    ("binomial", "flipped"),
]
M, N, THETA, STEP = 12, 60, np.array([0.4, 0.3, -0.2]), np.array([2e-4, 3e-4, -1e-4])


def _data(family: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = np.column_stack([np.ones(M * N), rng.standard_normal((M * N, 2))])
    mu = MEANS[family](X @ THETA)
    y = {
        "gaussian": mu + rng.standard_normal(M * N),
        "poisson": rng.poisson(np.abs(mu)).astype(float),
        "binomial": (rng.random(M * N) < mu).astype(float),
        "gamma": rng.gamma(2.0, np.abs(mu) / 2.0),
    }[family]
    return X, y, np.repeat(np.arange(M), N)


def problem_of(X: np.ndarray, y: np.ndarray, client: np.ndarray, family: Any) -> Problem:
    return Problem(GLM(ad.ClientData.from_arrays(X, y, client), resolve_family(family)), ad.networks.complete(M))


def _altered(kind: str, mu: np.ndarray, family: str) -> np.ndarray:
    """Return the mean of corrupted responses."""
    if kind == "flipped":
        return 1.0 - mu if family == "binomial" else -mu
    return np.full(N, mu.mean()) if kind == "shuffled" else 2.0 * mu.mean() - mu


@pytest.mark.parametrize(("family", "kind"), [pair for pair in KINDS if pair != ("binomial", "mirrored")])
def test_expected_scores_are_sums_over_rows(family, kind):
    """The statistic of a corrupted client, where all others are a small step from the point of the scores."""
    X, y, client = _data(family)
    problem = problem_of(X, y, client, FAMILIES[family])
    summaries = summarised(problem, THETA)
    everybody = np.ones(M, dtype=bool)
    # The shape of the variance has tests of its own.
    null = replace(calibrate(summaries, everybody, known=family == "binomial", least=0.0), shape=np.eye(3))
    scores, units, _ = client_scores(summaries, null)
    found = scores.altered_statistics((STEP / units)[None], scores.mechanisms.index(kind))[:, 0]
    noncanonical = family == "gamma"
    for m in (0, 7):
        rows = client == m
        mu, there = MEANS[family](X[rows] @ THETA), MEANS[family](X[rows] @ (THETA + STEP))
        # Score h (y - mu) x and information h mu' x x', with h = 1 for canonical links and 1 / mu for the log of gamma.
        h = 1.0 / mu if noncanonical else np.ones(N)
        slope = {"gaussian": np.ones(N), "binomial": mu * (1.0 - mu)}.get(family, mu)
        away = X[rows].T @ (h * (y[rows] - _altered(kind, there, family)))
        J = (X[rows].T * (h * slope)) @ X[rows]
        wanted = away @ np.linalg.solve(J, away) / null.dispersions[m]
        # Means are linear in the step up to its square.
        assert found[m] == pytest.approx(wanted, rel=1e-5)


def test_gaussian_expected_scores_move_with_theta():
    X, y, client = _data("gaussian")
    problem = problem_of(X, y, client, "gaussian")
    moved, again = summarised(problem, THETA).moved(100.0 * STEP), summarised(problem, THETA + 100.0 * STEP)
    assert moved.mechanisms == ("shuffled", "mirrored", "flipped")
    np.testing.assert_allclose(moved.altered, again.altered, atol=1e-9)


def test_shuffled_counts_of_clients_that_differ_are_found():
    """A score test that knows the truth but not what to look for finds a third of these clients."""
    sim = draw("poisson-tau1-permute", 0)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    res = ad.DecentralizedGLM(data, ad.networks.directed_circle(100, 5), "poisson").fit(solver="limit")
    aside = res.client_weights.to_numpy() < 0.5
    assert aside[sim.abnormal].mean() >= 0.75
    assert aside[~sim.abnormal].mean() <= 0.05
    assert "shuffled" in res.record.clients.components


def test_noisy_clients_are_not_off():
    """Three of 60 clients with three times the others' noise, and the same coefficients, keep their weight."""
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(60), 40)
    X = np.column_stack([np.ones(len(client)), rng.standard_normal((len(client), 2))])
    noise = np.where(client < 3, 3.0, 1.0)
    y = X @ [1.0, 0.5, -0.5] + noise * rng.standard_normal(len(client))
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.directed_circle(60, 5))
    table = model.fit(solver="limit").clients()
    assert table["weight"].min() > 0.5
    assert (table["verdict"].iloc[:3] == "noisy").all()
    assert table["noise"].iloc[:3].min() > 4.0


def test_a_far_noisier_client_is_set_aside():
    """A thousand times the variance is beyond what a noise level may excuse."""
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(60), 40)
    X = np.column_stack([np.ones(len(client)), rng.standard_normal((len(client), 2))])
    y = X @ [1.0, 0.5, -0.5] + np.where(client < 3, 30.0, 1.0) * rng.standard_normal(len(client))
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.directed_circle(60, 5))
    weights = model.fit(solver="limit").client_weights.to_numpy()
    assert weights[:3].max() < 0.5
    assert weights[3:].min() > 0.5


def test_weights_that_do_not_settle_are_told(monkeypatch):
    monkeypatch.setattr(client_model, "SMALL_MOVE", 0.0)
    sim = draw("gaussian-tau1-flip", 1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, ad.networks.directed_circle(100, 5))
    with pytest.warns(SelectionWarning, match="did not settle"):
        model.fit(solver="limit")
