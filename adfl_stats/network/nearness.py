"""An order of the clients in which neighbours are near: consecutive clients then hear few others (METIS)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import sparse

from adfl_stats._types import Ints
from adfl_stats.network.network import Network

__all__ = ["near_order"]

# Clients of the smallest part, about, and parts at most. Ours: as the batches of a fit (`engine.transport`).
SMALLEST_PART, MOST_PARTS = 4, 4096


def near_order(network: Network) -> pd.Index:
    """Return the clients in an order in which neighbours are near, by recursive bisection with METIS.

    Ranks of MPI hold consecutive clients, and send one another the estimates of clients at their borders in every
    round. In the order of a file these may be most of all; in this order they are few where the network has short
    borders at all: neighbours in space, groups. It does not depend on the number of ranks. Needs pymetis.

    Parameters
    ----------
    network : Network
        Edges count in both directions.

    Returns
    -------
    pandas.Index
        For `ClientData.in_order`, or ``order=`` of `RankData.from_parquet`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> net = ad.networks.random_geometric(60, 0.3, seed=1)
    >>> order = ad.networks.near_order(net)  # doctest: +SKIP
    >>> sorted(order) == sorted(net.labels)  # doctest: +SKIP
    True
    """
    if not isinstance(network, Network):
        raise TypeError(f"network is a {type(network).__name__}; pass a Network")
    try:
        import pymetis
    except ImportError:
        raise ImportError("near_order needs pymetis; install it with: pip install 'adfl-stats[metis]'") from None
    M = network.n_clients
    parts = min(MOST_PARTS, 2 ** max(0, int(np.log2(max(M // SMALLEST_PART, 1)))))
    if parts == 1:
        return network.labels
    ends, neighbours = _both_ways(network)
    graph = pymetis.CSRAdjacency(ends.tolist(), neighbours.tolist())
    # Parts of a recursive bisection are numbered so that halves, quarters, ... are consecutive.
    _, part = pymetis.part_graph(parts, adjacency=graph, recursive=True)
    return network.labels[np.argsort(np.asarray(part), kind="stable")]


def _both_ways(network: Network) -> tuple[Ints, Ints]:
    """Return the neighbours of each client, whoever of the two hears the other, in CSR form."""
    W = sparse.csr_array(network.W)
    both = sparse.csr_array(W + W.T)
    both.setdiag(0.0)
    both.eliminate_zeros()
    return both.indptr, both.indices
