"""Networks as users hand them over, and in the order of the data's clients."""

from __future__ import annotations

from typing import Any

import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["as_network", "matched"]


def as_network(network: Any, name: str) -> Network | NetworkSchedule:
    """Return a network or a schedule as it is, and a graph of networkx as a network; raise TypeError for the rest."""
    if isinstance(network, (Network, NetworkSchedule)):
        return network
    if all(hasattr(network, part) for part in ("nodes", "edges", "is_directed")):
        return Network.from_networkx(network)
    raise TypeError(
        f"{name} is a {type(network).__name__}; build a Network with Network.from_adjacency (0 and 1), from_weights "
        "(rows that sum to 1), from_edges or from_networkx, or a NetworkSchedule with networks.schedule or "
        "networks.dropout"
    )


def matched(network: Network | NetworkSchedule, clients: pd.Index) -> Network | NetworkSchedule:
    """Return the network in the order of the data's clients: moving its rows is cheaper than moving the data."""
    if network.labels.equals(clients):
        return network
    empty = network.labels[~network.labels.isin(clients)]
    unknown = clients[~clients.isin(network.labels)]
    if len(unknown) and isinstance(network.labels, pd.RangeIndex):
        raise ValueError(
            f"the network has {network.n_clients} clients without names, the data have {len(clients)} named "
            f"{listing(clients)}; name the network's clients in their order, for example with "
            "labels=data.labels in the call that builds it"
        )
    if len(unknown) or len(empty):
        raise ValueError(
            "data and network must have the same clients; in the network, but without rows in the data: "
            f"{listing(empty) or 'none'}; in the data, but not in the network: {listing(unknown) or 'none'}. "
            "Leave these clients out, or add them to the other; text and number are different names"
        )
    return network.reindex(clients)
