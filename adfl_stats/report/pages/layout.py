"""Places of clients in the plane: a circle, or distances in the plane near those on the network (stress majorisation).

Gansner, Koren and North (2004), Graph drawing by stress majorization: places x minimise
sum_{i<j} d_ij^-2 (|x_i - x_j| - d_ij)^2 for the distances d_ij on the network without directions.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse
from scipy.sparse.csgraph import shortest_path

from adfl_stats._types import Array
from adfl_stats.network.network import Network

__all__ = ["layout"]

# Ours: the stress hardly falls after that, and a thousand clients take about two seconds.
ITERATIONS = 40


def layout(net: Network) -> tuple[Array, bool]:
    """Return places (M, 2) in the unit square, and whether they are a circle in the order of the clients."""
    M = net.n_clients
    distances = None if M < 4 or net.circulant_moduli is not None else _distances(net)
    # Where all clients are neighbours, or nearly, distances say nothing.
    if distances is None or distances.mean() < 1.2:
        angle = 2.0 * np.pi * np.arange(M) / M
        circle = np.column_stack([np.sin(angle), -np.cos(angle)])
        return (circle / 2.0 + 0.5 if M > 1 else np.full((1, 2), 0.5)), True
    places = _stress(distances)
    places -= places.min(axis=0)
    spread = places.max(axis=0)
    places += (spread.max() - spread) / 2.0
    return places / spread.max(), False


def _distances(net: Network) -> Array:
    """Return the numbers of edges between clients, whatever their direction; parts are put next to one another."""
    ones = sparse.csr_array((np.ones(len(net.indices)), net.indices, net.indptr), shape=(net.n_clients,) * 2)
    hops = shortest_path(ones, directed=False, unweighted=True)
    apart = np.isinf(hops)
    if apart.any():
        hops[apart] = hops[~apart].max() + 2.0
    return hops


def _stress(distances: Array) -> Array:
    """Return places whose distances are near those given."""
    M = len(distances)
    square = np.square(distances)
    centred = square - square.mean(axis=0) - square.mean(axis=1)[:, None] + square.mean()
    values, vectors = (part[..., -2:] for part in np.linalg.eigh(-0.5 * centred))
    # The sign of an eigenvector is arbitrary: the largest entry is positive.
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), [0, 1]])
    places = signs * vectors * np.sqrt(np.maximum(values, 1e-9))
    # Clients with the same neighbours begin at the same place, where no force could part them.
    turn = np.pi * (3.0 - np.sqrt(5.0)) * np.arange(M)
    places += 0.05 * distances.mean() * np.column_stack([np.cos(turn), np.sin(turn)])
    weights = 1.0 / np.where(square > 0.0, square, np.inf)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    # The Laplacian is singular in the direction of a common shift only.
    factor = linalg.cho_factor(laplacian + 1.0 / M)
    pull = weights * distances
    for _ in range(ITERATIONS):
        dots = places @ places.T
        norms = np.diag(dots)
        apart = np.sqrt(np.maximum(norms[:, None] + norms - 2.0 * dots, 1e-12))
        ratio = pull / apart
        places = linalg.cho_solve(factor, places * ratio.sum(axis=1)[:, None] - ratio @ places)
    return places
