"""What inference takes from the pass at the estimate, over several places that hold the data of their own clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.numerical_error import numerical_error, standard_errors_at
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.inference.at_estimate import _Source
from adfl_stats.inference.client_diagnostics import gather_diagnostics
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods import Outcome

M, P = 18, 3
BOUNDS = (0, 5, 11, M)
BATCHES = batches_of(BOUNDS)
WEIGHTS = np.where(np.arange(M) == 3, 0.0, np.linspace(0.5, 1.0, M))


def drawn(family):
    sim = ad.simulate.glm_design(family, M=M, n=(40, 90), p=P, seed=8)
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


def problem_of(data, family, penalty, transport=LOCAL):
    return Problem(GLM(data, Family(family), penalty), ad.networks.directed_circle(M, 3), transport=transport)


def found(problem):
    """What is common to all clients, and the rows of ours."""
    steps = problem.steps(problem.members.ours(WEIGHTS))
    theta = problem.members.ours(np.random.default_rng(1).normal(size=(M, P)) / 10 + [0.2, 0.1, -0.1])
    source = _Source(None, problem, Outcome(theta, steps, []), "auto")
    point, model = source.point, source.client_model
    seen = point.weighted_sums
    diagnostics = gather_diagnostics(problem.glm.data, steps.total_weights, point, smooth=True, members=problem.members)
    unit = standard_errors_at(problem, theta, steps.total_weights)
    error = numerical_error(problem, theta, steps.total_weights, unit)
    common = {
        "params": source.params,
        "hessian": seen.hessian,
        "information": seen.information,
        "meat": seen.meat,
        "model_meat": seen.model_meat,
        "scale": seen.scale,
        "llf": point.llf,
        "deviance": point.deviance,
        "judged at": source.judged[0],
        "se": source.unit.se,
        "se again": unit.se,
        "error": [error.optimisation, error.consensus],
        "spread": model.spread,
    }
    rows = {
        "gradients": seen.gradients,
        "weights": model.weights,
        "mirror": diagnostics.mirror,
        "mirror_mean": diagnostics.mirror_mean,
        "shift": diagnostics.deletion_shift,
    }
    return common, rows


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("penalty", [None, ad.Ridge(np.full(P, 0.05))], ids=["plain", "ridge"])
def test_places_find_what_one_place_finds(family, penalty):
    """The places agree to the bit, and with one place up to rounding."""
    data = drawn(family)

    def work(k, place):
        return found(problem_of(some_clients(data, BATCHES[k]), family, penalty, place))

    places = in_places(BOUNDS, work)
    for common, _ in places[1:]:
        for name, value in common.items():
            assert_array_equal(value, places[0][0][name], err_msg=name)
    for transport in (Batches(BOUNDS), LOCAL):
        common, rows = found(problem_of(data, family, penalty, transport))
        for name, value in common.items():
            assert_allclose(places[0][0][name], value, rtol=1e-8, atol=1e-12, err_msg=name)
        for name, value in rows.items():
            joined = np.concatenate([place[1][name] for place in places])
            assert_allclose(joined, value, rtol=1e-6, atol=1e-9, err_msg=name)
