"""What aDFL finds before the network runs, over several places that hold the data of their own clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.loop import safe_step
from adfl_stats.engine.plan import Run
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods.adaptive import _client_model, _warn_of_selection
from adfl_stats.methods.trimmed_scores import TrimmedScores
from adfl_stats.methods.tuning import can_tune, lambda_path
from adfl_stats.trust.weights import adaptive_weights, discrepancies, discrepancy_unit, trusted_by

M, P = 20, 3
BOUNDS = (0, 6, 13, M)
BATCHES = batches_of(BOUNDS)


def drawn(family):
    """Clients of which the first three, all in one place, share another parameter."""
    sim = ad.simulate.glm_design(family, M=M, n=(40, 90), p=P, seed=6)
    y, bad = sim.y.copy(), np.unique(sim.client, return_inverse=True)[1] < 3
    y[bad] = {"gaussian": -y[bad], "binomial": 1.0 - y[bad], "poisson": y[bad] + 4.0}[family]
    return ad.ClientData.from_arrays(sim.X, y, sim.client)


def problem_of(data, family, transport=LOCAL):
    return Problem(GLM(data, Family(family)), ad.networks.directed_circle(M, 3), transport=transport)


def trimmed(problem):
    found = TrimmedScores(starts=5).concentrate(problem, np.zeros((0, P)))
    best = int(np.argmin(found.misfit))
    return [found.theta, found.misfit], [found.chosen[:, best]]


def tuned(problem):
    theta = np.tile(np.zeros(P), (problem.M, 1))
    common, rows = [], []
    for measure in ("norm", "score"):
        found = discrepancies(problem, theta, measure)
        unit = discrepancy_unit(problem.transport.gather(found), measure)
        lams = np.array([0.0, 1.0, 4.0]) / unit
        weights = np.stack([adaptive_weights(found, lam, problem.members) for lam in lams], axis=1)
        path = lambda_path(problem, weights, lams, np.zeros(P), balance=False)
        common += [unit, path.scores, path.trusted, can_tune(problem)]
        rows += [weights, trusted_by(weights, problem.members)]
    return common, rows


def weighted(problem):
    start = TrimmedScores().concentrate(problem, np.zeros((0, P)))
    model, apart, taken = _client_model(problem, [("trimmed", start.theta[int(np.argmin(start.misfit))])], "auto")
    steps = problem.steps(model.weights, balance=True)
    metric, largest_curvature = problem.coordinates(model.theta, steps.weights)
    step = safe_step(steps.factors, largest_curvature, problem.transport)
    run = Run(np.outer(steps.total_weights, model.theta), step)
    run.record(0.0, problem.transport)
    said = _warn_of_selection(problem, model, model.weights, "none")
    common = [model.theta, metric, step, apart, run.trace[0]["consensus"], problem.consensus(run.theta)]
    common += [[taken], sorted(said)]
    return common, [model.weights, steps.total_weights, largest_curvature]


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("work", [trimmed, tuned, weighted])
def test_places_find_what_one_place_finds(work, family):
    """The places agree to the bit, and with one place up to rounding."""
    data = drawn(family)
    found = in_places(BOUNDS, lambda k, place: work(problem_of(some_clients(data, BATCHES[k]), family, place)))
    for common, _ in found[1:]:
        for one, other in zip(common, found[0][0], strict=True):
            assert_array_equal(one, other)
    for transport in (Batches(BOUNDS), LOCAL):
        common, rows = work(problem_of(data, family, transport))
        for one, other in zip(common, found[0][0], strict=True):
            if isinstance(one, list):
                assert one == other
            else:
                assert_allclose(other, one, rtol=1e-7, atol=1e-8)
        for k, one in enumerate(rows):
            assert_allclose(np.concatenate([place[1][k] for place in found]), one, rtol=1e-6, atol=1e-6)
