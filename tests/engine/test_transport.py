"""The door for clients elsewhere: sums by batches, wherever these are computed, and places that hold some clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, Only, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine.equations import Equations, solve, weighted_solution
from adfl_stats.engine.limit import settle
from adfl_stats.engine.loop import safe_step
from adfl_stats.engine.numerical_error import numerical_error, standard_errors_at
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL, mean_over
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods.trimmed_scores import TrimmedScores

M, P = 11, 3
BOUNDS = (0, 4, 5, M)
BATCHES = batches_of(BOUNDS)


def drawn(family):
    sim = ad.simulate.glm_design(family, M=M, n=(20, 60), p=P, seed=4)
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


def problem_of(family, transport=LOCAL):
    return Problem(GLM(drawn(family), Family(family)), ad.networks.directed_circle(M, 3), transport=transport)


def solution(problem):
    return weighted_solution(problem, np.linspace(0.2, 1.0, M), np.zeros(P))


def error(problem):
    theta = np.random.default_rng(2).normal(size=(M, P)) / 5
    total_weights = np.linspace(0.2, 1.0, M)
    found = numerical_error(problem, theta, total_weights, standard_errors_at(problem, theta, total_weights))
    return np.array([found.optimisation, found.consensus])


def coordinates(problem):
    weights = np.where(np.arange(M) == 2, 0.0, 1.0)
    metric, largest_curvature = problem.coordinates(np.zeros(P), weights)
    return np.append(metric.ravel(), safe_step(problem.relative_sizes, largest_curvature, problem.transport))


def limit(problem):
    return settle(problem, np.zeros((M, P)), problem.steps(np.linspace(0.2, 1.0, M)), Plan(solver="limit")).theta


def rounds(problem):
    return settle(problem, np.zeros((M, P)), problem.steps(np.linspace(0.2, 1.0, M)), Plan()).theta


def start(problem):
    return TrimmedScores(starts=4).concentrate(problem, np.zeros((0, P))).theta


def adaptive(problem):
    return ad.ADFL(lam="cv", equalise=False).estimate(problem, Plan(solver="limit")).theta


WORK = [solution, error, coordinates, limit, rounds, start, adaptive]


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("work", WORK)
def test_it_does_not_matter_when_a_batch_is_computed(work, family):
    ordered = work(problem_of(family, Batches(BOUNDS)))
    assert_array_equal(work(problem_of(family, Batches(BOUNDS, (2, 0, 1)))), ordered)
    assert_allclose(ordered, work(problem_of(family)), rtol=1e-7, atol=1e-9)


# Clients that are left out have no curvature either, and Newton's method on the network may fail.
@pytest.mark.filterwarnings("ignore:no limit was found:adfl_stats.ConvergenceWarning")
@pytest.mark.parametrize("work", [solution, error, coordinates, limit, start, adaptive])
def test_the_sums_go_through_the_door(work):
    """Where the door leaves clients out, the result is another one."""
    assert not np.allclose(work(problem_of("binomial", Only(BOUNDS))), work(problem_of("binomial")), rtol=1e-3)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_an_equation_over_some_clients_is_that_of_the_door(family):
    problem = problem_of(family, Only(BOUNDS))
    few = GLM(some_clients(problem.glm.data, BATCHES[0]), Family(family))
    alone = solve(Equations(few, np.linspace(0.2, 1.0, M)[BATCHES[0], None]), np.zeros((1, P)))
    assert_allclose(solution(problem), alone.theta[0], rtol=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_places_that_hold_some_clients_solve_the_equations_of_all(family):
    """To the bit as in one place: each place has the data of its own clients only."""
    data, total_weights = drawn(family), np.linspace(0.2, 1.0, M)

    def work(k, place):
        glm = GLM(some_clients(data, BATCHES[k]), Family(family))
        return solve(Equations(glm, total_weights[BATCHES[k], None], transport=place), np.zeros((1, P))).theta[0]

    found = in_places(BOUNDS, work)
    whole = solution(problem_of(family, Batches(BOUNDS)))
    for theta in found:
        assert_array_equal(theta, found[0])
        assert_array_equal(theta, whole)
    assert_allclose(found[0], solution(problem_of(family)), rtol=1e-9)


def test_means_and_maxima_of_places_are_those_of_all():
    values = np.random.default_rng(1).normal(size=(M, 2))

    def work(k, place):
        own = values[BATCHES[k]]
        return mean_over(place, own), place.largest(own), place.gather(own)

    for mean, largest, gathered in in_places(BOUNDS, work):
        assert_array_equal(mean, mean_over(Batches(BOUNDS), values))
        assert_array_equal(largest, values.max(axis=0))
        assert_array_equal(gathered, values)


@pytest.mark.parametrize("rule", [(0,), (1,), (2, 1)], ids=["mean", "median", "trimmed"])
def test_places_do_the_rounds_of_all(rule):
    """With clients, halo, gather and largest alone, to the bit as the kernel's rounds in one place."""
    data, W, count = drawn("binomial"), ad.networks.directed_circle(M, 3, self_loops=True).W, 7
    steps, theta, moved = np.full((M, 1), 0.3), np.zeros((M, 1, P)), np.empty((count, 1))
    # Each client is the first of its own row, as the rules want it.
    pools = [[m, *(k for k in W.indices[W.indptr[m] : W.indptr[m + 1]] if k != m)] for m in range(M)]
    indptr, indices = np.cumsum([0, *map(len, pools)]), np.concatenate(pools)

    def combiner(own, place):
        chosen = [place[k] for m in own for k in pools[m]]
        weights = np.full(len(chosen), 1.0 / len(pools[0]))
        return _kernels.Combiner(np.cumsum([0, *(len(pools[m]) for m in own)]), np.array(chosen), weights, *rule)

    def work(k, place):
        own = place.clients(M)
        order = [*own, *place.halo(indptr, indices)]
        listens = combiner(own, {client: row for row, client in enumerate(order)})
        loss = GLM(some_clients(data, BATCHES[k]), Family("binomial")).loss()
        mine, far, longest = theta[own], np.empty(1), []
        state = _kernels.State(listens, loss, theta[order], steps[own])
        for _ in range(count):
            # The state is that of before in another memory: the halo's rows are written there in every round.
            heard = np.asarray(state)
            heard[len(own) :] = place.gather(heard[: len(own)])[order[len(own) :]]
            state.round(far)
            longest.append(place.largest(far[None]))
        state.write(mine)
        return mine, np.array(longest)

    places = in_places(BOUNDS, work)
    whole = combiner(range(M), dict(zip(range(M), range(M), strict=True)))
    _kernels.rounds(whole, GLM(data, Family("binomial")).loss(), theta, steps, count, moved, np.array([np.inf]))
    assert_array_equal(np.concatenate([mine for mine, _ in places]), theta)
    for _, longest in places:
        assert_array_equal(longest, moved)


def test_halos_are_those_whom_one_hears_elsewhere():
    W = ad.networks.directed_circle(M, 2).W
    halos = in_places(BOUNDS, lambda k, place: place.halo(W.indptr, W.indices).tolist())
    # Client m hears m + 1 and m + 2 round the circle.
    assert halos == [[4, 5], [5, 6], [0, 1]]
    assert LOCAL.halo(W.indptr, W.indices).tolist() == []
    assert LOCAL.clients(3).tolist() == [0, 1, 2]
