"""Small networks whose numbers are known."""

import networkx as nx
import numpy as np
from scipy import sparse

from adfl_stats.network.network import Network


def cycle(M):
    """The directed circle of in-degree 1, without the warning of its generator."""
    sender = np.roll(np.arange(M), -1)
    return Network.from_adjacency(sparse.csr_array((np.ones(M), (np.arange(M), sender)), shape=(M, M)))


def ring(M):
    return Network.from_networkx(nx.cycle_graph(M))


def karate():
    return Network.from_networkx(nx.Graph(nx.karate_club_graph().edges))


def absorbing():
    """Client a hears itself only; b and c hear a and each other; nobody hears d."""
    return Network.from_edges([("a", "a"), ("a", "b"), ("c", "b"), ("b", "c"), ("c", "d")])


def moduli(W):
    """All moduli of eigenvalues, ascending."""
    return np.sort(np.abs(np.linalg.eigvals(W.toarray())))
