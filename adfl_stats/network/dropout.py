"""Clients that drop out at random and come back."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import sparse

from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import Indices, Mask
from adfl_stats.network.inputs import row_normalised
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, Phase

__all__ = ["Dropout", "dropout"]

# Nodes of the quadrature for expected weights, -REACH to REACH in steps of SPACING before the change of variables.
# Ours: weights beyond REACH underflow, and halving the spacing changes the sums by rounding only.
REACH, SPACING = 6.0, 0.1


@dataclass(frozen=True, eq=False, repr=False)
class Dropout(NetworkSchedule):
    """Clients that drop out at random and come back; see `dropout`, which makes one.

    Attributes
    ----------
    network : Network
        The network when nobody is out.
    probability : float
        That a client is out.
    seed : int
        Of the draws, which depend on it, on the round and on the clients' labels only.
    every : int
        Rounds after which all clients are drawn anew.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> schedule = ad.networks.dropout(ad.networks.complete(10), probability=0.2, seed=1)
    >>> schedule
    Dropout(10 clients, each out with probability 0.2, drawn each round)
    >>> schedule.at(0).rounds, schedule.at(0).network.n_clients
    (1, 10)
    """

    network: Network
    probability: float
    seed: int = 0
    every: int = 1

    @property
    def labels(self) -> pd.Index:
        """The clients, in the order of the rows of every network."""
        return self.network.labels

    def at(self, round: int) -> Phase:
        """Return the network among the clients present in a round, and for how many rounds it holds.

        Parameters
        ----------
        round : int
            The number of rounds done before.
        """
        draw, done = divmod(round, self.every)
        present = np.random.default_rng([self.seed, draw]).random(self.n_clients)[self._places] >= self.probability
        network = self.network if present.all() else _among(self.network, present)
        return Phase(network, self.every - done, present)

    @cached_property
    def _places(self) -> Indices:
        """Where each client stands in the order of the labels, in which draws are made whatever that of the rows."""
        names = sorted(range(self.n_clients), key=lambda m: (type(self.labels[m]).__name__, str(self.labels[m])))
        places = np.empty(self.n_clients, dtype=np.intp)
        places[names] = np.arange(self.n_clients)
        return places

    @cached_property
    def influence(self) -> pd.Series:
        """The long-run weight of each client's steps in the mean over clients, in expectation over the draws.

        With a draw in each round W_t is independent of later rounds, so that the expectation of
        ``M^-1 1' W_T ... W_{t+1}`` tends to the stationary distribution of E W_t. Where absences last several
        rounds this is an approximation.
        """
        if self.probability == 0.0:
            return self.network.influence
        return Network.from_checked(_expected_weights(self.network.W, 1.0 - self.probability), self.labels).influence

    @property
    def closed_groups(self) -> list[list[Hashable]]:
        """The groups whose members receive from nobody outside in any round; see `Network.closed_groups`."""
        return self.network.closed_groups

    def reindex(self, labels: Iterable[Hashable]) -> Dropout:
        """Return the same schedule, with the same clients out, with the clients in the order of `labels`.

        Parameters
        ----------
        labels : iterable
            The clients, each once.
        """
        return Dropout(self.network.reindex(labels), self.probability, self.seed, self.every)

    def __repr__(self) -> str:
        when = "each round" if self.every == 1 else f"every {self.every} rounds"
        return f"Dropout({self.n_clients} clients, each out with probability {self.probability:g}, drawn {when})"


def dropout(network: Network, probability: float, seed: int = 0, every: int = 1) -> NetworkSchedule:
    """Return a schedule on which each client is out at random, and comes back.

    A client that is out neither sends nor receives nor steps: it keeps its estimate until it is back, as in federated
    averaging with partial participation (McMahan et al. 2017, AISTATS). The others renormalise their weights over
    those present, ``w_mk / sum_{j present} w_mj``; a client all of whose neighbours are out keeps its own estimate for
    the combination, and steps. Clients are drawn independently of one another.

    Parameters
    ----------
    network : Network
        The network when nobody is out.
    probability : float
        That a client is out, in [0, 1).
    seed : int
        Of the draws. Who is out in a round depends on the seed, the round and the labels only.
    every : int
        Rounds after which all clients are drawn anew; absences last a multiple of it.

    Returns
    -------
    NetworkSchedule
        To be passed to `DecentralizedGLM` in the place of a network.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> flaky = ad.networks.dropout(ad.networks.directed_circle(20, 5), 0.2, seed=1)
    >>> flaky
    Dropout(20 clients, each out with probability 0.2, drawn each round)
    >>> int(flaky.at(0).active.sum()), bool((flaky.at(0).active == flaky.at(1).active).all())
    (17, False)
    """
    if not isinstance(network, Network):
        raise TypeError(f"network is a {type(network).__name__}; wanted is the Network of the rounds with nobody out")
    return Dropout(
        network,
        in_interval(probability, "probability", 0.0, 1.0, open_high=True),
        whole_number(seed, "seed", 0, None),
        whole_number(every, "every", 1),
    )


def _among(network: Network, present: Mask) -> Network:
    """Return the network among the clients present; who is out, or hears nobody, keeps its own estimate."""
    M = network.n_clients
    receiver = np.repeat(np.arange(M), np.diff(network.indptr))
    kept = np.flatnonzero(present[receiver] & present[network.indices])
    rows, weights = receiver[kept], network.weights[kept]
    total = np.bincount(rows, weights=weights, minlength=M)
    alone = np.flatnonzero(total == 0.0)
    order = np.argsort(np.append(rows, alone), kind="stable")
    indices = np.append(network.indices[kept], alone)[order].astype(network.indices.dtype)
    ends = np.cumsum(np.bincount(rows, minlength=M) + (total == 0.0))
    indptr = np.append(0, ends).astype(network.indptr.dtype)
    return Network(indptr, indices, np.append(weights / total[rows], np.ones(len(alone)))[order], network.labels)


def _expected_weights(W: sparse.csr_array, q: float) -> sparse.csr_array:
    """Return the expected weights of a client that is present, when each other is with probability q.

    With ``1/x = int_0^1 u^(x - 1) du``, the weight of k in a row with relative weights a_j (mean 1) is
    ``E[1_k a_k / (a_m + sum_j 1_j a_j)] = int q a_k u^(a_k + a_m - 1) prod_{j != k, m} (1 - q + q u^a_j) du``.
    Rounds in which the client is out do not change the stationary distribution, as all are out equally often.
    """
    M = W.shape[0]
    receiver = np.repeat(np.arange(M), np.diff(W.indptr))
    relative = W.data * np.diff(W.indptr)[receiver]
    others = receiver != W.indices
    own = np.bincount(receiver[~others], weights=relative[~others], minlength=M)
    rows, a = receiver[others], relative[others]
    expected = np.zeros(len(a))
    for log_u, log_share in _unit_interval():
        logs = np.log1p(q * np.expm1(a * log_u))
        product = np.bincount(rows, weights=logs, minlength=M)[rows] - logs
        expected += q * a * np.exp((a + own[rows] - 1.0) * log_u + product + log_share)
    kept = np.clip(1.0 - np.bincount(rows, weights=expected, minlength=M), 0.0, 1.0)
    places = (np.append(rows, np.arange(M)), np.append(W.indices[others], np.arange(M)))
    return row_normalised(sparse.csr_array((np.append(expected, kept), places), shape=W.shape))


def _unit_interval() -> list[tuple[float, float]]:
    """Return logs of the nodes and weights of the double exponential quadrature on (0, 1).

    It takes singularities at the ends, as of u^(a - 1) with a < 1 (Takahasi and Mori 1974, Publ. RIMS 9, 721-741).
    """
    x = np.arange(-REACH, REACH + SPACING / 2.0, SPACING)
    log_u = -np.logaddexp(0.0, -np.pi * np.sinh(x))
    log_rest = -np.logaddexp(0.0, np.pi * np.sinh(x))
    log_shares = log_u + log_rest + np.log(SPACING * np.pi * np.cosh(x))
    return list(zip(log_u.tolist(), log_shares.tolist(), strict=True))
