"""Eigenvalues of large sparse operators, each with the reason where it could not be resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg as dense
from scipy import sparse
from scipy.sparse import linalg
from threadpoolctl import threadpool_limits

from adfl_stats._types import Apply, Array, Mask
from adfl_stats.network import structure
from adfl_stats.network.products import Products

if TYPE_CHECKING:
    from adfl_stats.network.measures import NetworkMeasures

__all__ = ["ExtremeEigenvalue", "arnoldi", "circulant_moduli", "growth", "lanczos", "second_modulus"]

# Clients up to which all eigenvalues of the dense matrix are computed. Ours: a tenth of a second.
DENSE = 500
# Below this an eigenvalue of a stochastic matrix is rounding error. Ours: 45 units in the last place of 1.
NOTHING = 1e-14
# Clients up to which eigenvalues are resolved to `TOLERANCES[0]`, and the relative accuracies there, beyond, and beyond
# where networks are only ranked. Ours: seconds at 10^5 clients; verdicts print four digits (benchmarks/network.py).
EXACT_UP_TO, TOLERANCES = 20_000, (1e-8, 1e-6, 1e-4)
# Multiply-adds that the products of an iteration may take together, and the fewest and most products. Ours: some
# seconds to a minute.
WORK, LEAST_PRODUCTS, MOST_PRODUCTS = 2e10, 200, 2000


@dataclass(frozen=True)
class ExtremeEigenvalue:
    """An extreme eigenvalue, norm or modulus, and why it could not be resolved.

    Attributes
    ----------
    value : float
        The number; a lower bound where it could not be resolved.
    trouble : str
        Why it could not be resolved; "" where it was.
    right : float or None
        For moduli of real eigenvalues the largest eigenvalue itself, where that is known as well.
    """

    value: float
    trouble: str = ""
    right: float | None = None


def start_vector(n: int) -> Array:
    """Return the same unit vector on each call, so that a network has the same numbers on each call."""
    start = np.random.default_rng(0).standard_normal(n)
    return np.asarray(start / np.linalg.norm(start))


def inner(a: Array, b: Array) -> float:
    """Return a'b without BLAS, whose threads would change the last bits and wait for each other."""
    return float(np.einsum("i,i->", a, b))


def budget(nnz: int, most: int = MOST_PRODUCTS) -> int:
    """Return how many products with a matrix of `nnz` entries to spend at most: some seconds to a minute."""
    return int(np.clip(WORK / max(nnz, 1), LEAST_PRODUCTS, most))


# ---------------------------------------------------------------------- symmetric


def tolerance(n: int, rough: bool) -> float:
    """Return the relative accuracy wanted of an eigenvalue; `rough` is enough to rank large networks."""
    exact, large, ranked = TOLERANCES
    if n <= EXACT_UP_TO:
        return exact
    return ranked if rough else large


def lanczos(apply: Apply, n: int, steps: int, ends: str = "high", tol: float = 1e-8) -> ExtremeEigenvalue:
    """Return the largest eigenvalue (`ends` = "high") or modulus ("both") of a symmetric operator.

    The three-term recurrence keeps three vectors and no more. Without reorthogonalisation eigenvalues may
    be found several times, which does no harm to the outermost (Paige 1971), and their residual
    ``beta_k |s_k|`` stays valid. An unresolved value is a Rayleigh quotient: it can only be too small.
    """
    v, before = start_vector(n), np.zeros(n)
    alphas: list[float] = []
    betas: list[float] = []
    look = 8
    ritz = _Ritz(0.0, 0.0, False, None)
    for step in range(1, steps + 1):
        image = apply(v)
        if betas:
            image = image - betas[-1] * before
        alphas.append(inner(v, image))
        image = image - alphas[-1] * v
        beta = math.sqrt(inner(image, image))
        size = max(map(abs, alphas)) if step <= 2 else max(abs(ritz.value), abs(alphas[-1]), beta)
        exhausted = beta <= 1e-15 * max(size, NOTHING)
        if exhausted or step >= look or step == steps:
            last, ritz = ritz, _ritz(np.array(alphas), np.array(betas), beta, ends, tol)
            if ritz.settled or exhausted or (ends == "high" and _stands(last, ritz, step, tol)):
                return ExtremeEigenvalue(ritz.value, right=ritz.right)
            # The Ritz values of the tridiagonal matrix cost as much as some steps.
            look = step + max(8, step // 8)
        betas.append(beta)
        before, v = v, image / beta
    trouble = f"the Lanczos iteration did not converge in {steps} steps, with residual {ritz.residual:.2g}"
    return ExtremeEigenvalue(ritz.value, trouble)


class _Ritz(NamedTuple):
    value: float
    residual: float
    settled: bool
    right: float | None


def _stands(last: _Ritz, now: _Ritz, step: int, tol: float) -> bool:
    """Return whether a value that need not be exact has stopped rising, though its vector is not resolved.

    At the edge of the spectrum of a random network eigenvalues are close, and vectors converge slowly.
    Ritz values there approach the edge at least like 1/step^2: between two looks, an eighth of the steps apart,
    they make up for a fifth of what is missing. After 40 steps an isolated eigenvalue has been found.
    Measured at 4 10^4 and 10^5 clients, what is missing then is below `tol`.
    """
    return tol > 1e-8 and step >= 40 and abs(now.value - last.value) <= 0.5 * tol * now.value


def _ritz(alphas: Array, betas: Array, beta: float, ends: str, tol: float) -> _Ritz:
    """Return the outermost Ritz value, its residual, and whether it is resolved.

    A Ritz value with residual r and the distance g to the next one is off by about ``r^2 / g``, and by r at most.
    """
    k = len(alphas)
    near = min(1, k - 1)
    ranges = [((k - 1 - near, k - 1), -1)] + ([((0, near), 0)] if ends == "both" else [])
    values, residuals, errors = [], [], []
    right = 0.0
    for span, outermost in ranges:
        outer, vectors = dense.eigh_tridiagonal(alphas, betas, select="i", select_range=span)
        residual = beta * abs(float(vectors[-1, outermost]))
        gap = float(outer[-1] - outer[0])
        values.append(abs(float(outer[outermost])) if ends == "both" else float(outer[outermost]))
        right = float(outer[outermost]) if outermost else right
        residuals.append(residual)
        errors.append(min(residual, residual**2 / gap if gap > 0 else residual))
    top = int(np.argmax(values))
    enough = max(tol * values[top], NOTHING)
    # The Ritz value at the other end must be resolved too, or too small to matter.
    settled = all(r <= enough or v + r < values[top] for v, r in zip(values, errors, strict=True))
    return _Ritz(values[top], residuals[top], settled and k > 1, right if errors[0] <= max(enough, 1e-5) else None)


# ---------------------------------------------------------------------- not symmetric


def arnoldi(
    apply: Apply,
    start: Array,
    *,
    k: int = 1,
    which: str = "LM",
    tol: float = 1e-10,
    room: int | None = None,
    restarts: int | None = None,
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return `k` eigenvalues of an operator and their vectors, or None where Arnoldi's iteration does not converge.

    The iteration is ARPACK's (Lehoucq, Sorensen and Yang 1998), here with one thread of BLAS: its own products are
    short, and its bits should not depend on the machine.

    Parameters
    ----------
    apply : callable
        The product with a vector (n,).
    start : ndarray (n,)
        Where the iteration begins.
    k : int
        How many eigenvalues.
    which : {"LM", "LR"}
        Those of largest modulus or of largest real part.
    tol : float
        Relative accuracy.
    room : int, optional
        Vectors that are kept; by default max(2k + 1, 20).
    restarts : int, optional
        After how many the iteration gives up; by default 10 n.
    """
    n = len(start)
    operator = linalg.LinearOperator((n, n), matvec=lambda v: apply(v.ravel()), dtype=np.float64)
    try:
        with threadpool_limits(1, user_api="blas"):
            values, vectors = linalg.eigs(operator, k=k, which=which, v0=start, tol=tol, ncv=room, maxiter=restarts)
    except linalg.ArpackNoConvergence:
        return None
    return values, vectors


def growth(apply: Apply, v: Array, rounds: int = 40) -> float:
    """Return the mean factor by which a vector changes in a product, over the second half of 2 `rounds` products."""
    logs = []
    for _ in range(2 * rounds):
        v = apply(v)
        size = float(np.linalg.norm(v))
        if size < 1e-300:
            return 0.0
        logs.append(math.log(size))
        v = v / size
    return math.exp(sum(logs[rounds:]) / rounds)


# ---------------------------------------------------------------------- circulant


def circulant_moduli(W: sparse.csr_array) -> Array | None:
    """Return the moduli of all eigenvalues if each row of W is the one above it moved by one place, else None.

    The eigenvalues are the Fourier transform of the first row. Circles are the networks on which iterations
    converge slowest: at M = 10^5 their eigenvalues lie 10^-9 apart.
    """
    M = W.shape[0]
    degree = int(W.indptr[1])
    if W.nnz != M * degree or not np.array_equal(np.diff(W.indptr), np.full(M, degree)):
        return None
    ahead = (W.indices.reshape(M, degree) - np.arange(M)[:, None]) % M
    order = np.argsort(ahead, axis=1)
    ahead = np.take_along_axis(ahead, order, axis=1)
    if not (ahead == ahead[0]).all():
        return None
    weights = np.take_along_axis(W.data.reshape(M, degree), order, axis=1)
    if np.abs(weights - weights[0]).max() > 1e-13:
        return None
    row = np.zeros(M)
    row[ahead[0]] = weights[0]
    return np.abs(np.fft.fft(row))


# ---------------------------------------------------------------------- the second eigenvalue of W


def second_modulus(net: NetworkMeasures, dense_up_to: int = DENSE, rough: bool = False) -> ExtremeEigenvalue:
    """Return the largest modulus of the eigenvalues of W other than one eigenvalue 1; zero for one client.

    It is 1, exactly, if there are several closed groups or the only one is periodic. Otherwise W is block
    triangular in its strongly connected components, whose eigenvalues together are those of W; taking the
    blocks one by one avoids the rounding errors of nilpotent parts, such as chains of transient clients. A `rough`
    value is enough to rank large networks.
    """
    component, closed = net.communicating_classes
    if net.n_clients == 1:
        return ExtremeEigenvalue(0.0)
    if closed.sum() > 1 or net.period > 1:
        return ExtremeEigenvalue(1.0)
    if (moduli := net.circulant_moduli) is not None:
        return _cleaned(ExtremeEigenvalue(float(moduli[1:].max())))
    best = ExtremeEigenvalue(0.0)
    trouble = ""
    for block, is_closed in _blocks(net.csr, component, closed):
        # The eigenvalue of largest modulus is at most the largest row sum.
        if not is_closed and block.sum(axis=1).max() <= best.value:
            continue
        if is_closed:
            pi = net.reversible_weights if len(closed) == 1 else structure.reversible_weights(block)
            extreme = _closed_block(block, pi, dense_up_to, rough)
        else:
            extreme = _open_block(block, dense_up_to)
        trouble = trouble or extreme.trouble
        best = max(best, extreme, key=lambda estimate: estimate.value)
    return _cleaned(replace(best, trouble=trouble, right=best.right if len(closed) == 1 else None))


def _cleaned(estimate: ExtremeEigenvalue) -> ExtremeEigenvalue:
    return replace(estimate, value=0.0 if estimate.value < NOTHING else min(estimate.value, 1.0))


def _blocks(W: sparse.csr_array, component: NDArray[np.int32], closed: Mask) -> list[tuple[sparse.csr_array, bool]]:
    """Return the diagonal blocks of W; of transient clients that are blocks by themselves, the largest entry only."""
    if len(closed) == 1:
        return [(W, True)]
    size = np.bincount(component)
    alone = np.flatnonzero((size[component] == 1) & ~closed[component])
    blocks: list[tuple[sparse.csr_array, bool]] = []
    if alone.size:
        largest = np.max(W.diagonal()[alone])
        blocks.append((sparse.csr_array(np.full((1, 1), largest)), False))
    order = np.argsort(component, kind="stable")
    bounds = np.searchsorted(component[order], np.arange(len(size) + 1))
    for c in np.flatnonzero((size > 1) | closed):
        members = order[bounds[c] : bounds[c + 1]]
        blocks.append((sparse.csr_array(W[members][:, members]), bool(closed[c])))
    return blocks


def _open_block(B: sparse.csr_array, dense_up_to: int) -> ExtremeEigenvalue:
    """Return the spectral radius of an irreducible block with row sums of at most 1."""
    n = B.shape[0]
    if n <= max(dense_up_to, 3):
        return ExtremeEigenvalue(float(np.abs(np.linalg.eigvals(B.toarray())).max()))
    # By Perron and Frobenius the eigenvalue of largest modulus is real, and the only one on its right.
    if (pair := arnoldi(B.__matmul__, start_vector(n), which="LR")) is not None:
        return ExtremeEigenvalue(float(pair[0][0].real))
    most = float(B.sum(axis=1).max())
    return ExtremeEigenvalue(
        most, f"the Arnoldi iteration did not converge; the value is a bound from above, {most:.4g}"
    )


def _closed_block(B: sparse.csr_array, pi: Array | None, dense_up_to: int, rough: bool) -> ExtremeEigenvalue:
    """Return the second largest modulus of an irreducible, aperiodic stochastic block."""
    n = B.shape[0]
    if n == 1:
        return ExtremeEigenvalue(0.0)
    if pi is not None:
        return _reversible(B, pi, dense_up_to, rough)
    if n <= max(dense_up_to, 7):
        moduli = np.sort(np.abs(np.linalg.eigvals(B.toarray() - B.mean(axis=0))))
        return ExtremeEigenvalue(float(moduli[-1]))
    return _arnoldi(B, rough)


def _reversible(B: sparse.csr_array, pi: Array, dense_up_to: int, rough: bool) -> ExtremeEigenvalue:
    """Use that ``pi^(1/2) B pi^(-1/2)`` is symmetric, with first eigenvector ``pi^(1/2)``."""
    root = np.sqrt(pi)
    if B.shape[0] <= dense_up_to:
        full = root[:, None] * B.toarray() / root
        values = np.linalg.eigvalsh((full + full.T) / 2 - np.outer(root, root))
        return ExtremeEigenvalue(float(np.abs(values).max()), right=float(values[-1]))
    by = Products.of(B)

    def apply(v: Array) -> Array:
        out: Array = root * (by.forward(v / root) - inner(root, v))
        return out

    return lanczos(apply, B.shape[0], budget(B.nnz), "both", tolerance(B.shape[0], rough))


def _arnoldi(B: sparse.csr_array, rough: bool, room: int = 40) -> ExtremeEigenvalue:
    """Iterate on ``(I - 11'/n)B``, whose eigenvalues are those of B with one eigenvalue 1 replaced by 0."""
    n = B.shape[0]
    by = Products.of(B)

    def apply(v: Array) -> Array:
        image = by.forward(v)
        return image - image.mean()

    start = start_vector(n)
    if np.linalg.norm(apply(apply(start))) < NOTHING:
        return ExtremeEigenvalue(0.0)
    rate = "the value is the rate at which a random vector shrinks"
    if rough and n > EXACT_UP_TO:
        return ExtremeEigenvalue(growth(apply, start), rate)
    products, room = budget(10 * B.nnz), min(room, n)
    tol = 1e-10 if n <= EXACT_UP_TO else 1e-6
    pair = arnoldi(apply, start, k=4, tol=tol, room=room, restarts=max(products // room, 5))
    if pair is not None:
        return ExtremeEigenvalue(float(np.abs(pair[0]).max()))
    return ExtremeEigenvalue(
        growth(apply, start), f"the Arnoldi iteration did not converge in {products} products with W; {rate}"
    )
