"""A paper-like fit in rounds on a network that is not balanced."""

import pytest
from small_fits import LAM, ROUNDS, STEP, linear_fit

import adfl_stats as ad


@pytest.fixture(scope="module")
def sim():
    """A quarter of 16 clients with flipped responses."""
    return ad.simulate.paper_linear(0.25, "BF", seed=7, M=16, n=60, p=4)


@pytest.fixture(scope="module")
def unbalanced():
    """Sixteen clients on a dense graph whose columns do not sum to one, yet with rho < 1."""
    net = ad.networks.erdos_renyi(16, 0.7, seed=2)
    assert net.se > 0.05
    assert net.rho < 1
    return net


@pytest.fixture(scope="module")
def res(sim, unbalanced):
    """One stage of aDFL; the theorems are about normal clients with one parameter."""
    method = ad.ADFL(lam=LAM, stages=1, init=ad.DFL())
    return linear_fit(sim, unbalanced, method, step=STEP, rounds=ROUNDS, keep_data=True, heterogeneity="none")
