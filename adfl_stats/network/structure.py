"""Properties of W that depend on its support only: groups, periods, and whether Condition 5 can hold at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from adfl_stats._types import Array, Indices, Ints, Mask

__all__ = ["closed_class_periods", "communication_classes", "reversible_weights", "rows_overlap"]


def communication_classes(W: sparse.csr_array) -> tuple[NDArray[np.int32], Mask]:
    """Return the strongly connected component of each client, and which components are closed.

    In a closed component the members receive from one another only.
    """
    count, component = csgraph.connected_components(W, directed=True, connection="strong")
    receiver = np.repeat(component, np.diff(W.indptr))
    closed = np.ones(count, dtype=bool)
    closed[receiver[receiver != component[W.indices]]] = False
    return component, closed


def closed_class_periods(W: sparse.csr_array, component: NDArray[np.int32], closed: Mask) -> Ints:
    """Return the period of each closed component: the greatest common divisor of its cycles' lengths.

    With any tree that spans the component and ``depth`` in it, the divisor is that of
    ``depth[m] + 1 - depth[k]`` over all edges from m to k: an edge closes cycles of that length, up to others.
    """
    M = W.shape[0]
    members = np.flatnonzero(closed[component])
    inner = W[members][:, members]
    group = np.unique(component[members], return_inverse=True)[1]
    n_groups = int(closed.sum())
    # One search serves all groups: a root of its own points to one member of each.
    first = np.full(n_groups, M)
    np.minimum.at(first, group, np.arange(len(members)))
    depth = _summed_to_root(_tree(inner, first)[0], np.ones(len(members)))
    row = np.repeat(np.arange(len(members)), np.diff(inner.indptr))
    length = np.abs(depth[row] + 1 - depth[inner.indices]).astype(np.int64)
    if n_groups == 1:
        return np.array([np.gcd.reduce(np.unique(length))])
    order = np.argsort(group[row], kind="stable")
    begin = np.searchsorted(group[row][order], np.arange(n_groups))
    return np.asarray(np.gcd.reduceat(length[order], begin), dtype=np.int64)


def rows_overlap(W: sparse.csr_array) -> bool:
    """Return whether the clients cannot be partitioned so that no client listens to two parts.

    For a doubly stochastic W this decides Condition 5: ``W'W`` is then symmetric and doubly stochastic, and
    ``||W'(I - 11'/M)W||``, its second eigenvalue, is below 1 if and only if its graph is connected, that is
    if the graph that joins two clients with a common receiver is connected. The paper's remark that the
    condition "is automatically satisfied if W is an irreducible doubly stochastic matrix" is too general: on the
    circle of in-degree 1 no client listens to two others, and on the ring of even length each client listens to
    two even or to two odd ones. Both are irreducible and have rho = 1.
    """
    M = W.shape[0]
    # Receivers and senders as the two sides of an undirected graph.
    row = np.repeat(np.arange(M), np.diff(W.indptr))
    sides = sparse.csr_array((np.ones(W.nnz, dtype=np.int8), (row, W.indices + M)), shape=(2 * M, 2 * M))
    count, _ = csgraph.connected_components(sides, directed=False)
    return bool(count == 1)


def reversible_weights(W: sparse.csr_array) -> Array | None:
    """Return pi with ``pi_m w_mk = pi_k w_km`` for an irreducible W, or None where there is none.

    Detailed balance fixes pi along any tree that spans the network; it remains to look at the other edges.
    """
    if W.shape[0] == 1:
        return np.ones(1)
    reverse = sparse.csr_array(W.T)
    reverse.sort_indices()
    if not (np.array_equal(W.indptr, reverse.indptr) and np.array_equal(W.indices, reverse.indices)):
        return None
    parent, reached = _tree(W, np.array([0]))
    if len(reached) < W.shape[0]:
        return None
    logs = _summed_to_root(parent, _log_ratios(W, parent))
    logs -= logs.max()
    if logs.min() < -600.0:  # exp() would underflow
        return None
    pi: Array = np.exp(logs)
    pi /= pi.sum()
    row = np.repeat(np.arange(W.shape[0]), np.diff(W.indptr))
    there, back = pi[row] * W.data, pi[W.indices] * reverse.data
    # Relative to each flow: small ones decide the balance between groups with weak links.
    return pi if bool((np.abs(there - back) <= 1e-11 * (there + back)).all()) else None


def _log_ratios(W: sparse.csr_array, parent: Indices) -> Array:
    """Return ``log(pi_child / pi_parent) = log(w_parent,child / w_child,parent)`` for each node but the root."""
    child = np.flatnonzero(parent >= 0)
    down, up = W[parent[child], child], W[child, parent[child]]
    ratio = np.zeros(W.shape[0])
    ratio[child] = np.log(np.asarray(down).ravel() / np.asarray(up).ravel())
    return ratio


def _tree(W: sparse.csr_array, roots: Indices) -> tuple[Indices, Indices]:
    """Return the parent of each node in a forest grown from `roots` (-1 for a root), and the nodes reached."""
    n = W.shape[0]
    if len(roots) == 1:
        order, parent = csgraph.breadth_first_order(W, int(roots[0]), directed=True)
        return np.where(parent < 0, -1, parent), order
    arrays = (np.append(W.data, np.ones(len(roots))), np.append(W.indices, roots))
    grown = sparse.csr_array((*arrays, np.append(W.indptr, W.nnz + len(roots))), shape=(n + 1, n + 1))
    order, parent = csgraph.breadth_first_order(grown, n, directed=True)
    parent = parent[:n]
    return np.where((parent < 0) | (parent == n), -1, parent), order[1:]


def _summed_to_root(parent: Indices, step: Array) -> Array:
    """Return for each node the sum of `step` over the nodes from it up to, but without, its root.

    Every pass doubles how far up the sums reach, so that a path of 10^6 nodes takes 20 passes.
    """
    jump = np.where(parent < 0, np.arange(len(parent)), parent)
    total = np.where(parent < 0, 0.0, step)
    while True:
        further = jump[jump]
        total = total + total[jump]
        if np.array_equal(further, jump):
            return total
        jump = further
