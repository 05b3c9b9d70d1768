"""A network without a centre, simulated: sums, maxima and tables of all clients come from messages of neighbours.

Sums are push-sum averages (Kempe, Dobra & Gehrke, 2003, FOCS), which need no symmetric edges: in a round each client
keeps a share of its numbers and of a weight, and sends equal shares to those that hear it; the ratio of the two tends
to the mean everywhere. Maxima spread in as many rounds as the longest path has edges, and so do rows by flooding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from adfl_stats._arguments import in_interval, listing
from adfl_stats._types import Array
from adfl_stats.engine.ledger import Price
from adfl_stats.engine.transport import Local
from adfl_stats.network.network import Network

__all__ = ["Gossip", "Neighbours"]

# Clients whose push-sum is a dense product. Ours: 32 MB.
MOST_CLIENTS = 2000
# Rounds of a sum beyond which the network is refused. Ours: no network could exchange as many messages for each of the
# hundreds of sums of a fit.
MOST_ROUNDS = 1 << 24


@dataclass(frozen=True)
class Gossip:
    """A simulation of a fit in which no place knows all clients, for `DecentralizedGLM.fit`.

    The fit is that of one process but for the rounding of its sums: each is the value of the client whose push-sum
    average is farthest off, within `accuracy` times the sum of the clients' absolute values. ``res.communication()``
    has the rounds of messages between neighbours, the price of having no centre.

    Parameters
    ----------
    accuracy : float
        Of sums, relative to the sum of absolute values.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=10, n=40, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
    >>> central, gossip = model.fit(), model.fit(transport=ad.Gossip())
    >>> bool(((gossip.params - central.params).abs() < 0.05 * central.bse).all())
    True
    >>> bool(gossip.communication().to_frame()["gossip"].sum() > 1000)
    True
    """

    accuracy: float = 1e-12

    def __post_init__(self) -> None:
        in_interval(self.accuracy, "accuracy", 0.0, 1.0, open_low=True, open_high=True)

    def on(self, network: Network) -> Neighbours:
        """Return the transport of a network's clients.

        Parameters
        ----------
        network : Network
            Who hears whom.

        Returns
        -------
        Neighbours
            The transport.
        """
        return Neighbours(network, self.accuracy)


class Neighbours(Local):
    """All clients, each a batch of its own, whose sums, maxima and rows neighbours compute; see `Transport`.

    Maxima and rows are exact; each client sends the rows of all once to each that hears it.

    Parameters
    ----------
    network : Network
        Who hears whom.
    accuracy : float
        Of sums, as in `Gossip`.

    Attributes
    ----------
    price : Price
        What sums, maxima and rows cost.
    """

    def __init__(self, network: Network, accuracy: float) -> None:
        M = network.n_clients
        super().__init__(np.arange(M + 1))
        if M > MOST_CLIENTS:
            raise ValueError(f"transport=ad.Gossip() simulates up to {MOST_CLIENTS} clients; the network has {M}")
        hears = (network.W > 0).astype(np.int8)
        diameter = _diameter(hears, network)
        shares = sparse.csr_array(hears + sparse.eye_array(M, dtype=np.int8) > 0).astype(np.float64)
        # Column j: what client j sends to each that hears it, and keeps.
        shares = shares / shares.sum(axis=0)
        rounds, after = _rounds_needed(np.asarray(shares.todense()), accuracy)
        self._weights = after * (M / after.sum(axis=1, keepdims=True))
        self.price = Price(rounds, diameter, M)

    def total(self, part: Callable[[slice], Array]) -> Array:
        """Return the sum as the client has it whose push-sum is farthest from the others'."""
        each = np.stack([np.asarray(part(at), dtype=np.float64) for at in self.batches()])
        flat = each.reshape(len(each), -1)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = self._weights @ flat
            farthest = np.abs(sums - sums.mean(axis=0)).argmax(axis=0)
        return sums[farthest, np.arange(flat.shape[1])].reshape(each.shape[1:])


def _diameter(hears: Any, network: Network) -> int:
    """Return the edges of the longest shortest path; raise ValueError where a client does not reach all others."""
    lengths = csgraph.shortest_path(hears.T, unweighted=True)
    apart = ~np.isfinite(lengths).all(axis=1)
    if apart.any():
        raise ValueError(
            f"transport=ad.Gossip() needs a path from every client to every other; {int(apart.sum())} do not reach "
            f"all: {listing(network.labels[apart])}. Add edges, or leave these clients out"
        )
    return int(lengths.max())


def _rounds_needed(shares: Array, accuracy: float) -> tuple[int, Array]:
    """Return the least number of rounds that make push-sum accurate, and the product of so many shares.

    By powers of two up to the first that is accurate, then back by halves.
    """
    powers = [shares]
    while not _accurate(powers[-1], accuracy):
        if 1 << len(powers) > MOST_ROUNDS:
            raise ValueError(
                f"transport=ad.Gossip(accuracy={accuracy:g}): sums would take more than {MOST_ROUNDS:,} rounds on this "
                "network; add edges between its distant parts, or choose a larger accuracy="
            )
        powers.append(powers[-1] @ powers[-1])
    if len(powers) == 1:
        return 1, shares
    rounds, product = 1 << (len(powers) - 2), powers[-2]
    for k in range(len(powers) - 3, -1, -1):
        longer = powers[k] @ product
        if not _accurate(longer, accuracy):
            rounds, product = rounds + (1 << k), longer
    return rounds + 1, shares @ product


def _accurate(after: Array, accuracy: float) -> bool:
    """Return whether every client's ratio has all clients' numbers in equal shares."""
    return bool(np.abs(after * (len(after) / after.sum(axis=1, keepdims=True)) - 1.0).max() <= accuracy)
