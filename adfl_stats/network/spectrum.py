"""Linear algebra of a row-stochastic matrix: the norm of Condition 5 and the stationary distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from adfl_stats._types import Array, Mask
from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import eigenvalues, structure
from adfl_stats.network.eigenvalues import ExtremeEigenvalue
from adfl_stats.network.products import Products

if TYPE_CHECKING:
    from adfl_stats.network.measures import NetworkMeasures

__all__ = ["long_run_weights", "mixing_dense", "mixing_lanczos", "mixing_norm"]

# Clients up to which the norm is that of a dense matrix, and influence comes from elimination. Ours: below a second.
DENSE_MIXING, DENSE_CLASS = 500, 1000
# Distance sum_m |(pi'W - pi')_m| at which the stationary distribution is resolved; a linear system's residual. Ours:
# far below what a step or a verdict depends on.
RESIDUAL = 1e-10
# Squares of singular values below this are rounding errors: the square of `eigenvalues.NOTHING`.
NOTHING = 1e-28


def mixing_norm(
    net: NetworkMeasures, power: int = 1, rough: bool = False, products: Products | None = None
) -> ExtremeEigenvalue:
    """Return ``||W'(I - J)W||_2``, the first term of Condition 5, with J = 11'/M, or that of a power of W.

    Parameters
    ----------
    net : Network
        Where W is doubly stochastic, the norm is 1, exactly, if its rows do not overlap.
    power : int
        Which power of W takes the place of W, 1 or 2; it is not formed where W is large.
    rough : bool
        Whether accuracy to rank networks is enough where W is large.
    products : Products, optional
        The products with W, where they have been prepared.
    """
    if power == 1 and net.is_doubly_stochastic and not net.rows_overlap:
        return ExtremeEigenvalue(1.0)
    if (moduli := net.circulant_moduli) is not None:
        # Circulant matrices are normal: singular values are moduli of eigenvalues.
        return _cleaned(ExtremeEigenvalue(float(np.max(moduli[1:], initial=0.0) ** (2 * power))))
    if net.n_clients <= DENSE_MIXING:
        return _cleaned(ExtremeEigenvalue(mixing_dense(net.csr, power)))
    return _cleaned(mixing_lanczos(net.csr, power, rough=rough, products=products))


def _cleaned(estimate: ExtremeEigenvalue) -> ExtremeEigenvalue:
    """Return 0 for a norm that is rounding error, as on the complete network."""
    return estimate if estimate.value > NOTHING else replace(estimate, value=0.0)


def mixing_dense(W: sparse.csr_array, power: int = 1) -> float:
    """Return ``||W'(I - J)W||_2`` as the squared largest singular value of the dense (I - J)W."""
    centred = np.linalg.matrix_power(W.toarray(), power)
    centred -= centred.mean(axis=0)
    return float(np.linalg.norm(centred, 2) ** 2)


def mixing_lanczos(
    W: sparse.csr_array,
    power: int = 1,
    steps: int | None = None,
    rough: bool = False,
    products: Products | None = None,
) -> ExtremeEigenvalue:
    """Return ``||W'(I - J)W||_2`` by Lanczos iteration, without forming the product.

    Where the largest eigenvalues are too close to be resolved, the best Ritz value is returned with the reason;
    a Rayleigh quotient, it can only be too small.
    """
    by = Products.of(W) if products is None else products
    by = by.twice() if power == 2 else by

    def apply(v: Array) -> Array:
        image = by.forward(v)
        image -= image.mean()
        return by.backward(image)

    n = W.shape[0]
    return eigenvalues.lanczos(apply, n, steps or eigenvalues.budget(W.nnz), tol=eigenvalues.tolerance(n, rough))


def long_run_weights(W: sparse.csr_array, component: NDArray[np.int32], closed: Mask) -> Array:
    """Return ``pi' = M^-1 1' lim T^-1 sum_{t<T} W^t``, the weight of each client in the long run.

    Within a closed component pi is proportional to the stationary distribution of W there; the component
    as a whole has the share of the clients absorbed by it. All other clients have weight zero.
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


def _shares(W: sparse.csr_array, component: NDArray[np.int32], closed: Mask) -> Array:
    """Return for each component the share of clients absorbed by it.

    With Q the part of W among the transient clients and R their part towards closed components, these are
    absorbed with probabilities (I - Q)^-1 R. One solve for ``x' = 1'(I - Q)^-1`` serves all components.
    """
    if closed.sum() == 1:
        return closed.astype(np.float64)
    M = W.shape[0]
    inside = closed[component]
    mass = inside.astype(np.float64)
    transient = np.flatnonzero(~inside)
    if transient.size:
        rows = W[transient]
        visits = _expected_visits(rows[:, transient])
        reached = rows.T @ visits
        mass[inside] += reached[inside]
    share = np.bincount(component, weights=mass, minlength=len(closed)) / M
    share[~closed] = 0.0
    total: Array = share / share.sum()
    return total


def _expected_visits(Q: sparse.csr_array) -> Array:
    """Solve ``(I - Q)' x = 1`` for the substochastic Q of transient clients."""
    n = Q.shape[0]
    system = sparse.csc_array(sparse.eye_array(n) - Q.T)
    ones = np.ones(n)
    if n > DENSE_CLASS:
        # A direct solve fills up on random graphs, where the iteration is quick; on chains it is the reverse.
        x, info = linalg.gmres(system, ones, rtol=1e-13, restart=50, maxiter=20)
        if info == 0 and np.abs(system @ x - ones).max() < RESIDUAL:
            return np.asarray(x)
    return np.atleast_1d(linalg.spsolve(system, ones))


def _stationary(W: sparse.csr_array) -> Array:
    """Return the stationary distribution of an irreducible row-stochastic matrix."""
    if (pi := structure.reversible_weights(W)) is not None:
        return pi
    if W.shape[0] <= DENSE_CLASS:
        return _stationary_dense(W.toarray())
    return _stationary_sparse(W)


def _stationary_dense(P: Array) -> Array:
    """Eliminate client after client (Grassmann, Taksar and Heyman).

    There are no subtractions, so that each entry has full relative accuracy, as balanced steps need.
    """
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ P[:k, k]
    return pi / pi.sum()


def _stationary_sparse(W: sparse.csr_array, most: int = 20_000) -> Array:
    """Return the leading left eigenvector by Arnoldi, polished by power iteration on (I + W)/2.

    The lazy matrix has the same stationary distribution and no period.
    """
    n = W.shape[0]
    backward = Products.of(W).backward
    pi = np.full(n, 1.0 / n)
    if (pair := eigenvalues.arnoldi(backward, pi, which="LR", tol=1e-13, restarts=500)) is not None:
        pi = np.abs(pair[1][:, 0].real)
        pi /= pi.sum()
    for step in range(most):
        image = backward(pi)
        if step >= 5 and np.abs(image - pi).sum() < RESIDUAL:
            return pi
        pi = 0.5 * (pi + image)
        pi /= pi.sum()
    warn(
        f"the influence of the clients is accurate to {np.abs(backward(pi) - pi).sum():.2g} only, "
        "as this network mixes very slowly; consider more neighbours",
        NetworkWarning,
    )
    return pi
