"""Networks without chance: circles, complete networks, a central client."""

from __future__ import annotations

import numpy as np

from adfl_stats._arguments import whole_number
from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning
from adfl_stats.network.draws import (
    both_ways,
    refuse_vast,
)
from adfl_stats.network.from_edges import MOST_CLIENTS, Labels, network_of
from adfl_stats.network.network import Network

__all__ = ["central_client", "complete", "directed_circle"]

# Clients of a complete network, whose edges are M^2. Ours: 25 million of them take 400 MB.
LARGEST_COMPLETE = 5000


def directed_circle(M: int, D: int, self_loops: bool = False, labels: Labels = None) -> Network:
    """Return the directed circle of the paper: client m receives from the next `D` clients.

    Doubly stochastic. Without self loops its eigenvalues have modulus ``|sin(pi k D/M) / (D sin(pi k/M))|``,
    k = 0, ..., M - 1, and the mixing is the square of the largest with k > 0.

    Parameters
    ----------
    M : int
        Number of clients.
    D : int
        In-degree, at most M - 1.
    self_loops : bool
        Let each client listen to itself as well.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        With equal weights in each row.

    Examples
    --------
    >>> directed_circle(100, 5)
    Network(100 clients, 500 edges, SE(W)=0, rho=0.9921)
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    D = whole_number(D, "D", 1)
    if D > M - 1:
        raise ValueError(f"D is {D}; with M = {M} clients it can be at most M - 1 = {M - 1}")
    refuse_vast(float(M) * D, f"M is {M} and D is {D}")
    if D == 1 and not self_loops:
        warn(
            "the directed circle with D = 1 and no self loops never mixes (rho = 1), "
            "as W is a permutation; use D of 2 or more, or self_loops=True",
            NetworkWarning,
        )
    ahead = np.arange(0 if self_loops else 1, D + 1)
    receiver = np.repeat(np.arange(M), len(ahead))
    sender = ((np.arange(M)[:, None] + ahead) % M).ravel()
    return network_of(M, (receiver, sender), labels)


def complete(M: int, self_loops: bool = True, labels: Labels = None) -> Network:
    """Return the network in which all receive from all; with self loops (default) W = 11'/M.

    Parameters
    ----------
    M : int
        Number of clients, at most 5000.
    self_loops : bool
        Let each client listen to itself as well.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        Doubly stochastic.

    Examples
    --------
    >>> complete(10)
    Network(10 clients, 90 edges, SE(W)=0, rho=0)
    """
    M = whole_number(M, "M", 1 if self_loops else 2, MOST_CLIENTS)
    if M > LARGEST_COMPLETE:
        raise ValueError(
            f"M is {M}; a complete network has M^2 edges and is limited to M = {LARGEST_COMPLETE}. "
            "Use fixed_degree or erdos_renyi, which mix almost as fast"
        )
    ones = np.ones((M, M))
    if not self_loops:
        np.fill_diagonal(ones, 0.0)
    return Network.from_adjacency(ones, labels)


def central_client(M: int, labels: Labels = None) -> Network:
    """Return the star: client 0 and the others receive from each other; ``SE(W)^2 = (M - 2)^2/(M - 1)``.

    Parameters
    ----------
    M : int
        Number of clients, the central one included.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        Of period 2; the central client has half of the influence.

    Examples
    --------
    >>> central_client(11).influence.round(3).unique().tolist()
    [0.5, 0.05]
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    others = np.arange(1, M)
    return network_of(M, both_ways(np.zeros(M - 1, dtype=np.int64), others), labels)
