"""Linear algebra of a row-stochastic matrix: how fast it mixes and whom it listens to in the long run."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from adfl_stats.errors import NetworkWarning

__all__ = ["communication_classes", "long_run_weights", "mixing_dense", "mixing_lanczos", "mixing_norm"]

DENSE_MIXING = 500
DENSE_CLASS = 1000
RESIDUAL = 1e-10
Vector = NDArray[np.float64]


def mixing_norm(W: sparse.csr_array) -> float:
    """Return ``||W'(I - J)W||_2``, the first term of Condition 5, with J = 11'/M."""
    return mixing_dense(W) if W.shape[0] <= DENSE_MIXING else mixing_lanczos(W)


def mixing_dense(W: sparse.csr_array) -> float:
    """Return ``||W'(I - J)W||_2`` as the squared largest singular value of the dense (I - J)W."""
    centred = W.toarray()
    centred -= centred.mean(axis=0)
    return float(np.linalg.norm(centred, 2) ** 2)


def mixing_lanczos(W: sparse.csr_array, tol: float = 1e-9, restarts: int = 60) -> float:
    """Return ``||W'(I - J)W||_2`` by Lanczos iteration, without forming the product.

    The start is fixed, so that the same network has the same value on each call. Where the top of the
    spectrum is too crowded to be resolved in `restarts` restarts (large circles), the best value found
    is returned with a NetworkWarning; a Rayleigh quotient, it can only be too small.
    """
    M = W.shape[0]
    W_t = W.T.tocsr()

    def apply(v: Vector) -> Vector:
        u = W @ v.ravel()
        out: Vector = W_t @ (u - u.mean())
        return out

    # A constant start would be useless: (I - J)W maps it to zero.
    start = np.random.default_rng(0).standard_normal(M)
    start /= np.linalg.norm(start)
    if np.linalg.norm(apply(start)) < 1e-14:
        return 0.0
    operator = linalg.LinearOperator((M, M), matvec=apply, dtype=np.float64)
    room = min(M - 1, 60)
    # A failed search returns no vector at all, so that each level starts from what the one before has found.
    for level in (1e-3, 1e-5, 1e-7, tol):
        try:
            _, found = linalg.eigsh(operator, k=1, which="LA", v0=start, tol=level, ncv=room, maxiter=restarts)
        except linalg.ArpackNoConvergence:
            return _rayleigh(apply, start, warn=True)
        start = found[:, 0]
    return _rayleigh(apply, start, warn=False)


def _rayleigh(apply: Callable[[Vector], Vector], v: Vector, warn: bool) -> float:
    """Return v'Av for a unit vector v, with a warning that states the residual if asked."""
    image = apply(v)
    value = float(v @ image)
    if warn:
        residual = float(np.linalg.norm(image - value * v))
        warnings.warn(
            f"the mixing of this network could not be resolved fully: {value:.9g} is a lower bound, "
            f"with residual {residual:.2g}. It is a sign of very slow mixing; consider more neighbours",
            NetworkWarning,
            stacklevel=5,
        )
    return value


def communication_classes(W: sparse.csr_array) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the strongly connected component of each client, and which components are closed.

    In a closed component the members receive from one another only.
    """
    count, component = sparse.csgraph.connected_components(W, directed=True, connection="strong")
    receiver = np.repeat(component, np.diff(W.indptr))
    closed = np.ones(count, dtype=bool)
    closed[receiver[receiver != component[W.indices]]] = False
    return component, closed


def long_run_weights(W: sparse.csr_array, component: NDArray[np.int32], closed: NDArray[np.bool_]) -> Vector:
    """Return ``pi' = M^-1 1' lim T^-1 sum_{t<T} W^t``, the weight of each client in the long run.

    Within a closed component pi is proportional to the stationary distribution of W there; the component
    as a whole has the share of the clients that end up following it. All other clients have weight zero.
    """
    M = W.shape[0]
    share = _shares(W, component, closed)
    order = np.argsort(component, kind="stable")
    bounds = np.searchsorted(component[order], np.arange(len(closed) + 1))
    local = np.empty(M, dtype=W.indices.dtype)
    local[order] = np.arange(M) - bounds[component[order]]
    pi = np.zeros(M)
    for c in np.flatnonzero(closed):
        members = order[bounds[c] : bounds[c + 1]]
        if len(members) == 1:
            pi[members] = share[c]
            continue
        rows = W[members]
        shape = (len(members), len(members))
        inner = sparse.csr_array((rows.data, local[rows.indices], rows.indptr), shape=shape)
        pi[members] = share[c] * _stationary(inner)
    return pi


def _shares(W: sparse.csr_array, component: NDArray[np.int32], closed: NDArray[np.bool_]) -> Vector:
    """Return for each component the share of clients that end up following it.

    With Q the part of W among the followers and R their part towards closed components, the followers are
    absorbed with probabilities (I - Q)^-1 R. One solve for ``x' = 1'(I - Q)^-1`` serves all components.
    """
    M = W.shape[0]
    inside = closed[component]
    mass = inside.astype(np.float64)
    followers = np.flatnonzero(~inside)
    if followers.size:
        rows = W[followers]
        visits = _expected_visits(rows[:, followers])
        reached = rows.T @ visits
        mass[inside] += reached[inside]
    share = np.bincount(component, weights=mass, minlength=len(closed)) / M
    share[~closed] = 0.0
    total: Vector = share / share.sum()
    return total


def _expected_visits(Q: sparse.csr_array) -> Vector:
    """Solve ``(I - Q)' x = 1`` for a substochastic Q from which every client leaves."""
    n = Q.shape[0]
    system = sparse.csc_array(sparse.eye_array(n) - Q.T)
    ones = np.ones(n)
    if n > DENSE_CLASS:
        # A direct solve fills up on random graphs, where the iteration is quick; on chains it is the reverse.
        x, info = linalg.gmres(system, ones, rtol=1e-13, restart=50, maxiter=20)
        if info == 0 and np.abs(system @ x - ones).max() < 1e-10:
            return np.asarray(x)
    return np.atleast_1d(linalg.spsolve(system, ones))


def _stationary(W: sparse.csr_array) -> Vector:
    """Return the stationary distribution of an irreducible row-stochastic matrix."""
    degree = np.diff(W.indptr).astype(np.float64)
    if _in_detailed_balance(W, degree):
        return degree / degree.sum()
    if W.shape[0] <= DENSE_CLASS:
        return _stationary_dense(W.toarray())
    return _stationary_sparse(W)


def _in_detailed_balance(W: sparse.csr_array, pi: Vector) -> bool:
    """Return whether ``pi_m w_mk = pi_k w_km``, which proves pi stationary.

    The degrees pass on any undirected graph with equal weights.
    """
    flow = sparse.csr_array((W.data * np.repeat(pi, np.diff(W.indptr)), W.indices, W.indptr), shape=W.shape)
    # Relative to each flow: tiny ones may decide between groups that hardly hear each other.
    excess = abs(flow - flow.T) - 1e-12 * (flow + flow.T)
    return bool(excess.max() <= 0.0)


def _stationary_dense(P: Vector) -> Vector:
    """Eliminate client after client (Grassmann, Taksar and Heyman).

    Nothing is ever subtracted, so that each entry has full relative accuracy: steps are divided by it.
    """
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ P[:k, k]
    return pi / pi.sum()


def _stationary_sparse(W: sparse.csr_array, most: int = 20_000) -> Vector:
    """Return the leading left eigenvector by Arnoldi, polished by power iteration on (I + W)/2.

    The lazy matrix has the same stationary distribution and no period.
    """
    n = W.shape[0]
    W_t = W.T.tocsr()
    pi = np.full(n, 1.0 / n)
    try:
        _, vectors = linalg.eigs(W_t, k=1, which="LR", v0=pi, tol=1e-13, maxiter=500)
        pi = np.abs(vectors[:, 0].real)
        pi /= pi.sum()
    except linalg.ArpackNoConvergence:
        pass
    for step in range(most):
        image = W_t @ pi
        if step >= 5 and np.abs(image - pi).sum() < RESIDUAL:
            return pi
        pi = 0.5 * (pi + image)
        pi /= pi.sum()
    warnings.warn(
        f"the influence of the clients is accurate to {np.abs(W_t @ pi - pi).sum():.2g} only, "
        "as this network mixes very slowly; consider more neighbours",
        NetworkWarning,
        stacklevel=5,
    )
    return pi
