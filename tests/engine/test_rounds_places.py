"""Rounds over the network where each place holds some of the clients: the same bits as in one place."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, kernel_rounds
from adfl_stats.engine.transport import LOCAL
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

M, P = 13, 3
BOUNDS = (0, 5, 6, M)
BATCHES = batches_of(BOUNDS)
CIRCLE = ad.networks.directed_circle(M, 4)
SOCIAL = ad.networks.erdos_renyi(M, 0.6, seed=3)
PLAN = Plan(step=0.2, rounds=25)


def drawn(family):
    sim = ad.simulate.glm_design(family, M=M, n=(20, 60), p=P, seed=4)
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


def run(data, family, network, method, plan, transport=LOCAL):
    glm = GLM(data, Family(family), total=transport.total, gather=transport.gather)
    return method.estimate(Problem(glm, network, "client", transport=transport), plan).runs[-1]


def in_all_places(data, family, network, method, plan):
    return in_places(BOUNDS, lambda k, at: run(some_clients(data, BATCHES[k]), family, network, method, plan, at))


METHODS = {
    "DFL": (ad.DFL(), CIRCLE),
    "DFL, unequal degrees": (ad.DFL(), SOCIAL),
    "median": (ad.Bridge("median"), SOCIAL),
    "trimmed": (ad.Bridge("trimmed", b=1), SOCIAL),
    "geometric median": (ad.GeometricMedian(), SOCIAL),
    "tracking": (ad.GradientTracking(), SOCIAL.metropolis()),
    "EXTRA": (ad.Extra(), SOCIAL.metropolis()),
    "UBAR": (ad.UBAR(), SOCIAL),
    "IOS": (ad.IOS(b=1), SOCIAL.metropolis()),
    "schedule": (ad.DFL(), ad.networks.schedule([CIRCLE, SOCIAL], every=4)),
    "dropout": (ad.DFL(), ad.networks.dropout(CIRCLE, 0.3, seed=1)),
    "local": (ad.Local(), CIRCLE),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_places_do_the_same_rounds_to_the_bit(name, family):
    data, (method, network) = drawn(family), METHODS[name]
    whole = run(data, family, network, method, PLAN)
    places = in_all_places(data, family, network, method, PLAN)
    assert_array_equal(np.concatenate([one.theta for one in places]), whole.theta)
    for one in places:
        assert [line["moved"] for line in one.trace] == [line["moved"] for line in whole.trace]
        assert one.rounds == whole.rounds


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_places_choose_steps_and_stop_as_one_place_does(family):
    """Sums are taken by the same batches in places and in one place, so that both stop in the same round."""
    data, plan = drawn(family), Plan()
    whole = run(data, family, CIRCLE, ad.DFL(), plan, Batches(BOUNDS))
    places = in_all_places(data, family, CIRCLE, ad.DFL(), plan)
    for one in places:
        assert (one.step, one.rounds, one.trace) == (whole.step, whole.rounds, whole.trace)
    assert_array_equal(np.concatenate([one.theta for one in places]), whole.theta)
    assert_allclose(whole.theta, run(data, family, CIRCLE, ad.DFL(), plan).theta, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("step", [None, 0.1])
@pytest.mark.parametrize("network", [CIRCLE, SOCIAL], ids=["circle", "social"])
def test_places_find_the_same_limit_to_the_bit(family, step, network):
    """Newton's method with GMRES, where each place multiplies by its own rows."""
    data, plan = drawn(family), Plan(step=step, solver="limit")
    whole = run(data, family, network, ad.DFL(), plan, Batches(BOUNDS))
    places = in_all_places(data, family, network, ad.DFL(), plan)
    assert whole.solver == "limit"
    for one in places:
        assert (one.solver, one.step, one.rounds, one.needed) == ("limit", whole.step, whole.rounds, whole.needed)
        assert one.trace == whole.trace
    assert_array_equal(np.concatenate([one.theta for one in places]), whole.theta)
    alone = run(data, family, network, ad.DFL(), plan)
    assert_allclose(whole.theta, alone.theta, rtol=1e-8, atol=1e-9)


def test_places_find_the_limit_by_rows_and_on_a_factorised_network():
    """Fewer rows than coefficients in a client, and more clients than are inverted as a dense matrix."""
    M = 320
    sim = ad.simulate.glm_design("binomial", M=M, n=5, p=7, seed=2)
    data, network = ad.ClientData.from_arrays(sim.X, sim.y, sim.client), ad.networks.directed_circle(M, 9)
    bounds, plan = (0, 100, 101, M), Plan(step=0.3, solver="limit")

    def work(k, at):
        return run(some_clients(data, batches_of(bounds)[k]), "binomial", network, ad.DFL(), plan, at)

    whole = run(data, "binomial", network, ad.DFL(), plan, Batches(bounds))
    assert whole.solver == "limit"
    assert_array_equal(np.concatenate([one.theta for one in in_places(bounds, work)]), whole.theta)


def test_a_run_that_diverges_ends_in_all_places():
    data, plan = drawn("gaussian"), Plan(step=50.0, rounds=40)
    with pytest.raises(ad.DivergenceError, match="diverged in round"):
        in_all_places(data, "gaussian", CIRCLE, ad.DFL(), plan)


@pytest.mark.parametrize("limit", [10.0, 30.0, 1e9])
def test_rounds_that_move_too_far_end_with_the_same_one(limit):
    """Places agree on moves after several rounds; what was done beyond the last one is undone."""
    data, count = drawn("gaussian"), 40

    def work(k, at, held=None):
        glm = GLM(data if held is None else some_clients(data, held), Family("gaussian"))
        problem = Problem(glm, CIRCLE, "client", transport=at)
        theta, moved = np.zeros((problem.M, 1, P)), np.empty((count, 1))
        steps = np.full((problem.M, 1), 3.0)
        done = kernel_rounds(Exchange(problem), glm.loss(), theta, steps, moved, np.array([limit]), 1)
        return done, moved[:done], theta

    done, moved, theta = work(0, LOCAL)
    assert 1 < done < count
    places = in_places(BOUNDS, lambda k, at: work(k, at, BATCHES[k]))
    assert [one[0] for one in places] == [done] * 3
    for one in places:
        assert_array_equal(one[1], moved)
    assert_array_equal(np.concatenate([one[2] for one in places]), theta)


ATTACKS = {
    "sign": ad.attacks.SignFlip([0, 5, 12]),
    "noise": ad.attacks.Gaussian([0, 5, 12], sd=2.0, seed=3),
    "little": ad.attacks.ALIE([0, 5, 12], z=1.0),
    "product": ad.attacks.IPM([0, 5, 12]),
    "apart": ad.attacks.Dissensus([0, 5, 12]),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("method", [ad.DFL(), ad.Bridge("median"), ad.GradientTracking()], ids=lambda one: one.name)
def test_attackers_in_any_place_send_the_same_lies(name, method):
    """They see the messages of all places."""
    data, plan = drawn("gaussian"), Plan(step=0.1, rounds=6, attack=ATTACKS[name])
    network = SOCIAL.metropolis() if isinstance(method, ad.GradientTracking) else SOCIAL
    whole = run(data, "gaussian", network, method, plan)
    honest = run(data, "gaussian", network, method, Plan(step=0.1, rounds=6))
    assert not np.array_equal(whole.theta, honest.theta)
    places = in_all_places(data, "gaussian", network, method, plan)
    assert_array_equal(np.concatenate([one.theta for one in places]), whole.theta)


def test_attackers_follow_a_schedule_in_all_places():
    data, plan = drawn("gaussian"), Plan(step=0.1, rounds=9, attack=ATTACKS["noise"])
    network = ad.networks.schedule([CIRCLE, SOCIAL], every=2)
    whole = run(data, "gaussian", network, ad.DFL(), plan)
    places = in_all_places(data, "gaussian", network, ad.DFL(), plan)
    assert_array_equal(np.concatenate([one.theta for one in places]), whole.theta)
