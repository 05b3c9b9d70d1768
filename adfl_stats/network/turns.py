"""Several networks in turn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing, several, whole_number
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, Phase, averaged_influence

__all__ = ["Turns", "schedule"]


@dataclass(frozen=True, eq=False, repr=False)
class Turns(NetworkSchedule):
    """Several networks in turn, each for `every` rounds; see `schedule`, which makes one.

    Attributes
    ----------
    members : tuple of Network
        In their order, over the same clients.
    every : int
        Rounds that each holds.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> turns = ad.networks.schedule([ad.networks.complete(3), ad.networks.central_client(3)], every=2)
    >>> len(turns.networks), [turns.at(k).network.n_edges for k in range(4)]
    (2, [6, 6, 4, 4])
    """

    members: tuple[Network, ...]
    every: int = 1

    @property
    def networks(self) -> tuple[Network, ...]:
        """All networks that occur."""
        return self.members

    @property
    def labels(self) -> pd.Index:
        """The clients, in the order of the rows of every network."""
        return self.networks[0].labels

    def at(self, round: int) -> Phase:
        """Return the network of a round and for how many rounds it holds.

        Parameters
        ----------
        round : int
            The number of rounds done before.
        """
        turn, done = divmod(round, self.every)
        return Phase(self.networks[turn % len(self.networks)], self.every - done)

    @cached_property
    def influence(self) -> pd.Series:
        """The long-run weight of each client's steps in the mean over clients, averaged over a cycle."""
        first = self.networks[0]
        if all(_same_weights(first, other) for other in self.networks[1:]):
            return first.influence
        if all(network.is_doubly_stochastic for network in self.networks):
            return pd.Series(np.full(self.n_clients, 1.0 / self.n_clients), index=self.labels)
        return pd.Series(averaged_influence(self, len(self.networks) * self.every), index=self.labels)

    def reindex(self, labels: Iterable[Hashable]) -> Turns:
        """Return the same schedule with the clients in the order of `labels`.

        Parameters
        ----------
        labels : iterable
            The clients, each once.
        """
        wanted = list(labels)
        return Turns(tuple(network.reindex(wanted) for network in self.networks), self.every)

    def __repr__(self) -> str:
        return f"Turns({self.n_clients} clients, {len(self.networks)} networks, every {self.every} rounds)"


def schedule(networks: Sequence[Network], every: int = 1) -> NetworkSchedule:
    """Return a schedule of several networks in turn, each for `every` rounds, then the first again.

    Parameters
    ----------
    networks : sequence of Network
        At least one, all over the same clients; their order of clients may differ.
    every : int
        Rounds that each network holds.

    Returns
    -------
    NetworkSchedule
        To be passed to `DecentralizedGLM` in the place of a network.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> nets = [ad.networks.fixed_degree(20, 3, seed=seed) for seed in (1, 2)]
    >>> turns = ad.networks.schedule(nets, every=5)
    >>> turns
    Turns(20 clients, 2 networks, every 5 rounds)
    >>> turns.at(7).network is nets[1], turns.at(7).rounds
    (True, 3)
    """
    if isinstance(networks, (Network, NetworkSchedule)):
        raise TypeError(f"networks is a {type(networks).__name__}; give a list of networks, such as [net_a, net_b]")
    members = tuple(several(networks, "networks", "Network objects"))
    wrong = [type(member).__name__ for member in members if not isinstance(member, Network)]
    if wrong or not members:
        raise TypeError(f"networks must be a list of one or more Network objects; found {listing(wrong) or 'none'}")
    return Turns(
        tuple(_in_order(member, members[0].labels, k) for k, member in enumerate(members)),
        whole_number(every, "every", 1),
    )


def _in_order(network: Network, labels: pd.Index, k: int) -> Network:
    """Return a network in the order of `labels`; refuse other clients."""
    if network.labels.equals(labels):
        return network
    try:
        return network.reindex(labels)
    except ValueError as error:
        raise ValueError(f"networks must all have the same clients; those of networks[{k}] differ: {error}") from None


def _same_weights(one: Network, other: Network) -> bool:
    return one is other or all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("indptr", "indices", "weights")
    )
