"""Random matrices of weights, and the network that tests of direction share."""

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from adfl_stats.network import generators as networks

# Client a hears b and c, b hears a, c hears b. The transpose is a different network.
LISTENS = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 0]])
WEIGHTS = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
ARROWS = [("b", "a"), ("c", "a"), ("a", "b"), ("b", "c")]


def random_weights(rng, M, density=0.4):
    """A dense row-stochastic matrix with a random support and no empty row."""
    W = rng.random((M, M)) * (rng.random((M, M)) < density)
    W[np.arange(M), rng.integers(M, size=M)] += 0.1
    return W / W.sum(axis=1, keepdims=True)


@st.composite
def weight_matrices(draw, least=2, most=12):
    return random_weights(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(least, most)))


def frame(**columns):
    return pd.DataFrame(columns)


def small_networks():
    yield "circle", networks.directed_circle(60, 4)
    yield "er", networks.erdos_renyi(60, 0.12, seed=3)
    yield "er_directed", networks.erdos_renyi(60, 0.12, seed=3, directed=True)
    yield "complete", networks.complete(60)
    yield "star", networks.central_client(60)
    yield "fixed", networks.fixed_degree(60, 7, seed=4)
    yield "small_world", networks.small_world(60, 4, 0.2, seed=3)
    yield "scale_free", networks.scale_free(60, 2, seed=3)
    yield "geometric", networks.random_geometric(60, 0.3, seed=3)
    yield "blocks", networks.stochastic_block([20, 40], 0.3, 0.05, seed=3)
