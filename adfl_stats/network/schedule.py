"""Networks that change with the round: what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from adfl_stats._types import Array, Mask
from adfl_stats.network.inputs import row_normalised
from adfl_stats.network.network import Network
from adfl_stats.network.products import Products

__all__ = ["NetworkSchedule", "Phase", "averaged_influence", "one_network"]

# Rounds over which the influence is averaged where a schedule has no cycle of its own. Ours: the mean of so many
# independent draws has 3 % of their standard deviation.
WINDOW = 1000
# The influence of a cycle is resolved when it changes by less than this, or after so many products. Ours: above the
# rounding of a product, and seconds of time.
RESOLVED, MOST_PRODUCTS = 1e-12, 20_000


class Phase(NamedTuple):
    """The network from one round on.

    Parameters
    ----------
    network : Network
        Who listens to whom.
    rounds : int
        For how many rounds it holds, the one asked for included.
    active : ndarray (M,) of bool or None
        The clients that take a gradient step; None for all. The others keep their estimates.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> Phase(ad.networks.complete(3), rounds=5).active is None
    True
    """

    network: Network
    rounds: int
    active: Mask | None = None


class NetworkSchedule(ABC):
    """A network that changes with the round.

    `DecentralizedGLM` takes a schedule in the place of a `Network`. Its fits are runs in rounds; what is defined by
    one fixed W (``solver="limit"``, ``balance=True``, `rates`, `advise`, `check_network`, Condition 5) refuses it.
    A subclass defines `labels` and `at`; `networks.schedule` and `networks.dropout` make two that exist.

    Convergence wants the networks to be jointly connected over bounded times, not each by itself (Nedic and
    Olshevsky 2015, IEEE Trans. Autom. Control 60, 601-615).

    Examples
    --------
    >>> import adfl_stats as ad
    >>> class Alternating(ad.networks.NetworkSchedule):
    ...     circle, star = ad.networks.directed_circle(4, 2), ad.networks.central_client(4)
    ...     labels = circle.labels
    ...     def at(self, round):
    ...         return ad.networks.Phase(self.star if round % 2 else self.circle, rounds=1)
    >>> Alternating().at(3).network.n_edges
    6
    """

    @property
    @abstractmethod
    def labels(self) -> pd.Index:
        """The clients, in the order of the rows of every network."""

    @abstractmethod
    def at(self, round: int) -> Phase:
        """Return the network of a round (0 is the first) and for how many rounds it holds.

        The answer depends on `round` alone, so that runs are the same however they are cut into pieces.

        Parameters
        ----------
        round : int
            The number of rounds done before.

        Returns
        -------
        Phase
            The network, for how many rounds it holds, and which clients step.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> net, other = ad.networks.complete(3), ad.networks.central_client(3)
        >>> ad.networks.schedule([net, other], every=10).at(13).rounds
        7
        """

    @property
    def networks(self) -> tuple[Network, ...] | None:
        """All networks that occur; None where there is no such list."""
        return None

    @property
    def n_clients(self) -> int:
        """The number M of clients."""
        return len(self.labels)

    @cached_property
    def influence(self) -> pd.Series:
        """The long-run weight of each client's steps in the mean over clients.

        A step of round t counts in the end by the row vector ``M^-1 1' W_T ... W_{t+1}`` (for a fixed W it tends to
        the stationary distribution); this is its mean over rounds in which the client steps, scaled to sum 1.
        """
        return pd.Series(averaged_influence(self, WINDOW), index=self.labels)

    @cached_property
    def effective_clients(self) -> float:
        """The effective number of clients, ``1 / sum_m pi_m^2``: M if all have the same influence."""
        return float(1.0 / np.sum(self.influence.to_numpy() ** 2))

    @property
    def closed_groups(self) -> list[list[Hashable]]:
        """The groups whose members receive from nobody outside in any round; see `Network.closed_groups`."""
        occurring = self.networks or [phase.network for phase in _phases(self, WINDOW)]
        return _joined(occurring).closed_groups

    @property
    def unheard(self) -> pd.Index:
        """The clients whose steps do not reach the others in the long run: influence zero."""
        return self.labels[self.influence.to_numpy() == 0.0]

    def reindex(self, labels: Iterable[Hashable]) -> NetworkSchedule:
        """Return the same schedule with the clients in the order of `labels`.

        Parameters
        ----------
        labels : iterable
            The clients, each once.

        Returns
        -------
        NetworkSchedule
            In which the same clients step in the same rounds.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> turns = ad.networks.schedule([ad.networks.complete(3), ad.networks.central_client(3)])
        >>> turns.reindex([2, 1, 0]).at(1).network.in_degree.to_dict()
        {2: 1, 1: 1, 0: 2}
        """
        return _Reordered(self, self.at(0).network.reindex(labels).labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_clients} clients)"


class _Reordered(NetworkSchedule):
    """A schedule with its clients in another order."""

    def __init__(self, source: NetworkSchedule, labels: pd.Index) -> None:
        self._source, self._labels = source, labels
        self._order = source.labels.get_indexer(labels)

    @property
    def labels(self) -> pd.Index:
        return self._labels

    def at(self, round: int) -> Phase:
        network, rounds, active = self._source.at(round)
        return Phase(network.reindex(self._labels), rounds, None if active is None else active[self._order])

    def __repr__(self) -> str:
        return repr(self._source)


# ---------------------------------------------------------------------- influence and groups


def averaged_influence(source: NetworkSchedule, cycle: int) -> Array:
    """Return the mean over a cycle of rounds of the weight that a step has in the end, by products backwards."""
    phases = _phases(source, cycle)
    products = {phase.network: Products.of(phase.network.W) for phase in phases}
    M = source.n_clients
    last, averaged = np.full(M, 1.0 / M), np.zeros(M)
    for _ in range(max(1, MOST_PRODUCTS // cycle)):
        before, averaged, weight = averaged, np.zeros(M), last
        for phase in reversed(phases):
            for _ in range(phase.rounds):
                averaged += weight if phase.active is None else weight * phase.active
                weight = products[phase.network].backward(weight)
        averaged /= averaged.sum()
        if np.abs(averaged - before).sum() < RESOLVED:
            break
        # The mean has the same limit, and one also where the cycle's product is periodic.
        last = (last + weight) / 2.0
    return averaged


def _phases(source: NetworkSchedule, cycle: int) -> list[Phase]:
    """Return the phases of the first rounds, cut off at the end of the cycle."""
    phases: list[Phase] = []
    done = 0
    while done < cycle:
        network, rounds, active = source.at(done)
        phases.append(Phase(network, min(rounds, cycle - done), active))
        done += phases[-1].rounds
    return phases


def _joined(networks: Sequence[Network]) -> Network:
    """Return the network with the edges of all, and mean weights."""
    total = networks[0].W
    for network in networks[1:]:
        total = total + network.W
    return Network.from_checked(row_normalised(sparse.csr_array(total)), networks[0].labels)


def one_network(given: Network | NetworkSchedule, what: str) -> Network:
    """Return a network; refuse a schedule.

    Parameters
    ----------
    given : Network or NetworkSchedule
        What a model has.
    what : str
        What asks for it, the subject of the message.
    """
    if isinstance(given, Network):
        return given
    raise ValueError(
        f"{what} needs one fixed network, and was asked for on {given!r}, whose W changes with the round: there is no "
        "limit, no spectrum and no influence that every round shares. Use rounds of a method for changing networks "
        "(ad.DFL(), ad.ADFL(), ad.Bridge('median')), or ask for one of its networks, such as schedule.at(0).network"
    )
