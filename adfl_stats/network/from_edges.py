"""What generators of networks share: from edges to a network, and the largest ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from scipy import sparse

from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning
from adfl_stats.network.draws import Edges
from adfl_stats.network.inputs import networkx_module
from adfl_stats.network.network import Network

__all__ = ["MOST_CLIENTS", "Labels", "network_of", "network_of_graph", "warned_if_split"]

Labels = Iterable[Hashable] | None

# Clients and edges are counted in 32 bits by SciPy; this many clients take gigabytes.
MOST_CLIENTS = 10**8


def network_of(M: int, edges: Edges, labels: Labels, self_loops: bool = False) -> Network:
    """Return the network of directed edges, with rows normalised."""
    receiver, sender = edges
    A = sparse.csr_array((np.ones(len(receiver)), (receiver, sender)), shape=(M, M))
    return Network.from_adjacency(A + sparse.eye_array(M, format="csr") if self_loops else A, labels)


def network_of_graph(graph: Any, labels: Labels) -> Network:
    """Return the network of a graph of networkx, whatever its weights."""
    return Network.from_adjacency(networkx_module().to_scipy_sparse_array(graph, weight=None), labels)


def warned_if_split(net: Network) -> Network:
    """Return `net`, with a NetworkWarning if it is not strongly connected."""
    if not net.is_strongly_connected:
        groups = net.closed_groups
        within = sum(map(len, groups))
        warn(
            f"this network is not strongly connected: it has {len(groups)} closed group(s), whose {within} "
            f"members (of {net.n_clients} clients) receive from nobody outside; see Network.closed_groups. "
            "More edges or another seed may help",
            NetworkWarning,
        )
    return net
