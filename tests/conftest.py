"""Small problems that several test modules fit."""

import signal

import numpy as np
import pytest

import adfl_stats as ad

# A shell that starts the tests in the background lets them, and processes that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

LABELS = [f"h{k}" for k in range(8)]


@pytest.fixture(scope="session")
def logistic():
    """A logistic design with a constant on eight clients of unequal size; its arrays are read-only."""
    return ad.simulate.glm_design("binomial", M=8, n=(40, 60), p=3, intercept=True, seed=3)


@pytest.fixture(scope="session")
def frame(logistic):
    """The same rows as a frame with named clients; tests must not change it."""
    frame = logistic.frame().drop(columns="const")
    frame["client"] = np.array(LABELS)[logistic.client]
    return frame


@pytest.fixture(scope="session")
def network():
    """Eight named clients on a circle, in another order than the data have them."""
    return ad.networks.directed_circle(8, 3, labels=LABELS[::-1])


@pytest.fixture(scope="session")
def model(frame, network):
    """The logistic model, by formula."""
    return ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3", frame, "client", network, "binomial")


@pytest.fixture(scope="session")
def res(model):
    """An adaptive fit of it, under the paper's normal clients: they share one parameter."""
    return model.fit(ad.ADFL(), heterogeneity="none")
