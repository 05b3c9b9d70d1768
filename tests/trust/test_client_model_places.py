"""The model of clients over several places: each holds the data of its own clients, and all find the same."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.trust import fit_client_model, model_at

M, P = 26, 3
BOUNDS = (0, 7, 15, M)
BATCHES = batches_of(BOUNDS)
FAMILIES = ["gaussian", "binomial", "poisson"]


def drawn(family, spread=0.0):
    """Clients of which six share another parameter; the others differ by `spread`."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(40, 90, size=M)
    client = np.repeat(np.arange(M), sizes)
    X = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), P - 1))])
    theta = np.array([0.3, 0.6, -0.4]) + spread * rng.normal(size=(M, P))
    theta[::4] = [0.3, -1.2, 1.2]
    eta = np.einsum("ij,ij->i", X, theta[client])
    y = {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "binomial": lambda: (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(np.minimum(eta, 3.0))).astype(float),
    }[family]()
    return ad.ClientData.from_arrays(X, y, client)


def problem_of(data, family, transport=LOCAL):
    return Problem(GLM(data, Family(family)), ad.networks.directed_circle(M, 3), transport=transport)


def places(data, family, work):
    """What `work` finds of a problem in each place, which holds its own clients."""
    return in_places(BOUNDS, lambda k, place: work(problem_of(some_clients(data, BATCHES[k]), family, place)))


COMMON = ("theta", "spread", "units", "spread_kind", "components", "candidates", "cochran")
BY_CLIENT = ("weights", "probabilities", "information_shares")


def seen(model):
    """What there is to compare; some of it asks the other places."""
    found = {name: getattr(model, name) for name in (*COMMON, *BY_CLIENT)}
    return found | {"lost": model.information_lost(model.weights < 0.5)}


def check(data, family, work):
    """The places agree to the bit, and with one place up to rounding.

    (Products of matrices that have a row for each client round by how many rows there are.)
    """
    found = places(data, family, lambda problem: seen(work(problem)))
    for name in (*COMMON, "lost"):
        for one in found[1:]:
            assert_array_equal(one[name], found[0][name], err_msg=name)
    for transport in (Batches(BOUNDS), LOCAL):
        whole = seen(work(problem_of(data, family, transport)))
        for name in ("theta", "lost", "cochran"):
            assert_allclose(found[0][name], whole[name], rtol=1e-7, atol=1e-9, err_msg=name)
        for name in BY_CLIENT:
            joined = np.concatenate([one[name] for one in found])
            # Each place resamples for itself, which moves the price of a minority.
            assert_allclose(joined, whole[name], rtol=1e-6, atol=1e-6, err_msg=name)
        assert found[0]["components"] == whole["components"]
    return whole


@pytest.mark.parametrize(
    ("heterogeneity", "spread", "family"),
    [
        *((kind, 0.0, family) for kind in ("none", "auto") for family in FAMILIES),
        # The sums of a spread know no family; after them, labels and counts are compared by likelihood.
        ("estimate", 0.5, "binomial"),
    ],
)
def test_places_fit_the_model_of_all(family, heterogeneity, spread):
    fitted = partial(fit_client_model, theta=np.zeros(P), heterogeneity=heterogeneity)
    whole = check(drawn(family, spread), family, fitted)
    assert spread > 0.0 or (whole["weights"][::4] < 0.5).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_places_model_the_clients_that_carry_weight(family):
    """At a given estimate, with weights; the last place has none that is left out."""
    weights = np.where(np.arange(M) == 4, 0.0, 1.0)

    def work(problem):
        return model_at(problem, np.array([0.3, 0.5, -0.3]), problem.members.ours(weights))

    check(drawn(family), family, work)
