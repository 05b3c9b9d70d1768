"""Random networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree

from adfl_stats._arguments import in_interval, several, whole_number
from adfl_stats.network.draws import (
    Edges,
    Seed,
    both_ways,
    distinct,
    generator,
    plain_seed,
    redrawn,
    refuse_vast,
    successes,
    triangle,
)
from adfl_stats.network.from_edges import MOST_CLIENTS, Labels, network_of, network_of_graph, warned_if_split
from adfl_stats.network.inputs import networkx_module
from adfl_stats.network.network import Network

__all__ = ["erdos_renyi", "fixed_degree", "random_geometric", "scale_free", "small_world", "stochastic_block"]


def fixed_degree(M: int, D: int, seed: Seed = None, labels: Labels = None) -> Network:
    """Return a network in which each client receives from `D` others drawn without replacement.

    The expectation of ``SE(W)^2`` is ``(1/D)(1 - D/(M - 1))``. A client that no other client draws has influence
    zero. Several closed groups give a NetworkWarning.

    Parameters
    ----------
    M : int
        Number of clients.
    D : int
        In-degree, at most M - 1.
    seed : int, Generator or None
        Source of randomness; None draws anew on each call.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        Directed, with in-degree `D` throughout.

    Examples
    --------
    >>> fixed_degree(100, 5, seed=1).in_degree.unique().tolist()
    [5]
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    D = whole_number(D, "D", 1)
    if D > M - 1:
        raise ValueError(f"D is {D}; with M = {M} clients it can be at most M - 1 = {M - 1}")
    refuse_vast(float(M) * D, f"M is {M} and D is {D}")
    rng = generator(seed)
    drawn = distinct(rng, M, D)
    # Numbers 0, ..., M - 2 stand for the others: step over the client itself.
    sender = drawn + (drawn >= np.arange(M)[:, None])
    net = network_of(M, (np.repeat(np.arange(M), D), sender.ravel()), labels)
    return warned_if_split(net) if len(net.closed_groups) > 1 else net


def erdos_renyi(
    M: int,
    q: float,
    seed: Seed = None,
    directed: bool = False,
    self_loops: bool = False,
    labels: Labels = None,
) -> Network:
    """Return an Erdos-Renyi network: each pair is joined with probability `q`, given that nobody is isolated.

    Parameters
    ----------
    M : int
        Number of clients.
    q : float
        Probability of an edge.
    seed : int, Generator or None
        Source of randomness.
    directed : bool
        Draw the two directions of each pair separately. By default an edge goes both ways.
    self_loops : bool
        Let each client listen to itself as well; the other edges stay the same.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        With a NetworkWarning where it is not strongly connected.

    Examples
    --------
    >>> net = erdos_renyi(100, 0.1, seed=1)
    >>> net.is_strongly_connected, int(net.in_degree.min()) > 0
    (True, True)
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    q = in_interval(q, "q", 0.0, 1.0)
    refuse_vast(q * M * (M - 1), f"M is {M} and q is {q:g}")
    rng = generator(seed)

    def draw() -> Edges:
        if not directed:
            return both_ways(*triangle(successes(rng, M * (M - 1) // 2, q)))
        receiver, sender = np.divmod(successes(rng, M * (M - 1), q), M - 1)
        return receiver, sender + (sender >= receiver)

    enough = 1.0 - (0.5 / M) ** (1.0 / (M - 1))
    edges = redrawn(
        M,
        draw,
        expected=M * (1.0 - q) ** (M - 1),
        trouble=f"q is {q:g}, an expected degree of {q * (M - 1):.3g} for M = {M} clients",
        advice=f"raise q, to {enough:.2g} or more",
    )
    return warned_if_split(network_of(M, edges, labels, self_loops))


def stochastic_block(
    sizes: Sequence[int], p_in: float, p_out: float, seed: Seed = None, labels: Labels = None
) -> Network:
    """Return a stochastic block network: pairs join with `p_in` inside a block and `p_out` across blocks.

    The clients of the first block come first. Edges go both ways; no client is isolated.

    Parameters
    ----------
    sizes : sequence of int
        Clients in each block.
    p_in, p_out : float
        Probability of an edge between clients of the same block, and of different blocks.
    seed : int, Generator or None
        Source of randomness; None draws anew on each call.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        With a NetworkWarning where it is not strongly connected.

    Examples
    --------
    >>> stochastic_block([30, 20], p_in=0.5, p_out=0.05, seed=1).n_clients
    50
    """
    counts = several(sizes, "sizes", "the numbers of clients of the blocks")
    blocks = np.array([whole_number(size, "each of sizes", 1, MOST_CLIENTS) for size in counts], dtype=np.int64)
    M = whole_number(int(blocks.sum()), "the sum of sizes", 2, MOST_CLIENTS)
    p_in = in_interval(p_in, "p_in", 0.0, 1.0)
    p_out = in_interval(p_out, "p_out", 0.0, 1.0)
    within = p_in * float((blocks.astype(np.float64) ** 2).sum())
    refuse_vast(within + p_out * M * (M - 1), f"sizes sum to {M}, p_in is {p_in:g} and p_out is {p_out:g}")
    rng = generator(seed)
    block = np.repeat(np.arange(len(blocks)), blocks)
    first = np.cumsum(blocks) - blocks

    def draw() -> Edges:
        # Across: all pairs with p_out, less those inside a block. Draws are independent, so this is exact.
        low, high = triangle(successes(rng, M * (M - 1) // 2, p_out))
        across = block[low] != block[high]
        parts = [(low[across], high[across])]
        for start, size in zip(first.tolist(), blocks.tolist(), strict=True):
            low, high = triangle(successes(rng, size * (size - 1) // 2, p_in))
            parts.append((low + start, high + start))
        return both_ways(np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts]))

    degree = float(blocks @ ((blocks - 1) * p_in + (M - blocks) * p_out)) / M
    edges = redrawn(
        M,
        draw,
        expected=float(blocks @ ((1.0 - p_in) ** (blocks - 1) * (1.0 - p_out) ** (M - blocks))),
        trouble=f"p_in is {p_in:g} and p_out {p_out:g}, an expected degree of {degree:.3g}",
        advice="raise p_in or p_out",
    )
    return warned_if_split(network_of(M, edges, labels))


def random_geometric(M: int, radius: float, seed: Seed = None, labels: Labels = None) -> Network:
    """Return clients placed at random in the unit square, joined where not farther apart than `radius`.

    Parameters
    ----------
    M : int
        Number of clients.
    radius : float
        Largest distance over which clients are joined.
    seed : int, Generator or None
        Source of randomness; None draws anew on each call.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        With a NetworkWarning where it is not strongly connected.

    Examples
    --------
    >>> random_geometric(100, 0.3, seed=1).is_strongly_connected
    True
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    radius = in_interval(radius, "radius", 0.0, math.sqrt(2.0), open_low=True)
    refuse_vast(min(1.0, math.pi * radius**2 / 4.0) * M * (M - 1), f"M is {M} and radius is {radius:g}")
    rng = generator(seed)

    def draw() -> Edges:
        pairs = cKDTree(rng.random((M, 2))).query_pairs(radius, output_type="ndarray").astype(np.int64)
        return both_ways(pairs[:, 0], pairs[:, 1])

    # A disc around a client may reach over the border, so that even more are isolated than this.
    area = min(1.0, math.pi * radius**2)
    enough = math.sqrt(math.log(2.0 * M) / (math.pi * M))
    edges = redrawn(
        M,
        draw,
        expected=M * (1.0 - area) ** (M - 1),
        trouble=f"radius is {radius:g}, an expected degree of {area * (M - 1):.3g} or less for M = {M}",
        advice=f"raise radius, to {enough:.2g} or more",
    )
    return warned_if_split(network_of(M, edges, labels))


def small_world(M: int, k: int, beta: float, seed: Seed = None, labels: Labels = None) -> Network:
    """Return a Watts-Strogatz network: a ring with `k` neighbours each, then rewired.

    Each edge is moved to a random client with probability `beta`. Needs networkx. Edges go both ways.

    Parameters
    ----------
    M : int
        Number of clients.
    k : int
        Neighbours on the ring, half on each side; even.
    beta : float
        Probability that an edge is moved.
    seed : int, Generator or None
        Source of randomness; None draws anew on each call.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        With a NetworkWarning where it is not strongly connected.

    Examples
    --------
    >>> small_world(100, 4, beta=0.1, seed=1).n_edges
    400
    """
    M = whole_number(M, "M", 3, MOST_CLIENTS)
    k = whole_number(k, "k", 2)
    beta = in_interval(beta, "beta", 0.0, 1.0)
    if k % 2 or k > M - 1:
        raise ValueError(f"k is {k}; it must be even, half on each side, and below M = {M}")
    refuse_vast(float(M) * k, f"M is {M} and k is {k}")
    graph = networkx_module().watts_strogatz_graph(M, k, beta, seed=plain_seed(seed))
    return warned_if_split(network_of_graph(graph, labels))


def scale_free(M: int, m: int, seed: Seed = None, labels: Labels = None) -> Network:
    """Return a Barabasi-Albert network: each new client joins `m` old ones, the well-connected more often.

    Needs networkx. Edges go both ways; the network is connected.

    Parameters
    ----------
    M : int
        Number of clients.
    m : int
        Old clients that each new one joins, at most M - 1.
    seed : int, Generator or None
        Source of randomness; None draws anew on each call.
    labels : iterable, optional
        Names of the clients; 0, 1, ... if not given.

    Returns
    -------
    Network
        Strongly connected.

    Examples
    --------
    >>> scale_free(100, 3, seed=1).n_edges
    582
    """
    M = whole_number(M, "M", 2, MOST_CLIENTS)
    m = whole_number(m, "m", 1)
    if m > M - 1:
        raise ValueError(f"m is {m}; with M = {M} clients it can be at most M - 1 = {M - 1}")
    refuse_vast(2.0 * M * m, f"M is {M} and m is {m}")
    return network_of_graph(networkx_module().barabasi_albert_graph(M, m, seed=plain_seed(seed)), labels)
