"""The iteration near its limit, as a linear operator on the stacked estimates.

With F = diag(factors), H = blockdiag(H_m) the clients' curvature at a common point and Q the coordinates
of the run (the identity for the paper's recursion), weighted DFL, equation (4.1), is to first order

    theta -> A theta + const,   A = (I - step F Q H)(W kron I).

Its fixed point lies (I - A)^-1 (-step F Q g) away from the common point at which the clients have the
gradients g; for the Gaussian family that is exact. Nothing here has M P columns: products with A go
through the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as iterative

from adfl_stats import _kernels
from adfl_stats.data import BLOCK_ROWS
from adfl_stats.evaluation import client_moments, curvature_and_meat, linear_predictor
from adfl_stats.problem import ClientSteps, Problem

__all__ = ["Linearised", "weighted_solution"]

Array = NDArray[np.float64]

# A sparse factorisation of the network is taken where its envelope has at most this many entries.
MOST_ENTRIES = 2e6
GMRES_ROOM = 80


class Linearised:
    """The linearised iteration at one step; `at` gives it at another step without a pass over the data.

    Parameters
    ----------
    problem : Problem
        Data, network and family.
    steps : ClientSteps
        The clients' trust and steps.
    point : ndarray (P,)
        Where the curvature is taken.
    step : float
        The learning rate alpha.
    metric : ndarray (p, p), optional
        The coordinates of the run, as `Problem.coordinates` returns them.

    Attributes
    ----------
    mean_curvature : ndarray (P, P)
        M^-1 sum_m v_m Q H_m, with the total weights v_m.
    smallest : ndarray (M,)
        The smallest curvature of each client's share of the loss (n_m / mean n) L_m, seen in the run's
        coordinates: the lambda_min of Condition 3, here at a common point.
    """

    def __init__(
        self, problem: Problem, steps: ClientSteps, point: Array, step: float, metric: Array | None = None
    ) -> None:
        self.problem, self.steps, self.point, self.step = problem, steps, point, step
        M, P = problem.M, problem.P
        full = None if metric is None else np.kron(np.eye(problem.family.outputs), metric)
        root = None if full is None else linalg.cholesky(full, lower=True)
        # A client's matrix costs P^2 a product, its rows n_m p: take the smaller; many classes need the matrix.
        by_matrix = problem.family.outputs > 1 or problem.p <= problem.data.n_rows / M
        stacked = np.zeros((M, P, -(-P // 4) * 4)) if by_matrix else None
        curvature = None if problem.family.outputs > 1 else _row_curvature(problem, point)
        self.mean_curvature, self.smallest = np.zeros((P, P)), np.empty(M)
        for m, matrix in enumerate(_client_curvature(problem, point, curvature)):
            seen = matrix if root is None else root.T @ matrix @ root
            values = np.linalg.eigvalsh(seen)
            # What rounding may have made counts as zero.
            lost = values[0] <= np.finfo(np.float64).eps * P * values[-1]
            self.smallest[m] = 0.0 if lost else problem.sizes[m] * values[0]
            self.mean_curvature += steps.totals[m] / M * matrix
            if stacked is not None:
                stacked[m, :, :P] = matrix if full is None else full @ matrix
        if full is not None:
            self.mean_curvature = full @ self.mean_curvature
        data = problem.data
        self._products: _kernels.Loss
        if stacked is not None:
            self._products = _kernels.GramLoss(stacked, np.zeros((M, P)))
        else:
            # Half the squared error without a response: its gradient is the product with the curvature.
            nothing = np.zeros(data.n_rows)
            self._products = _kernels.RowLoss(
                data.X, nothing, data.offsets, data.totals, 0, row_weights=curvature, metric=metric
            )
        self._loss = problem.loss(metric)
        self.pi = problem.influence / M

    def at(self, step: float) -> Linearised:
        """Return the same iteration at another step."""
        other = object.__new__(Linearised)
        other.__dict__ = {**self.__dict__, "step": step}
        return other

    @property
    def size(self) -> int:
        """M P."""
        return self.problem.M * self.problem.P

    def apply(self, x: NDArray) -> NDArray:
        """Return A x for a stacked vector (M P,), real or complex."""
        if np.iscomplexobj(x):
            return self._round(np.stack([x.real, x.imag]), self._products).T @ np.array([1.0, 1.0j])
        return self._round(x[None], self._products)[0]

    def move(self, theta: Array) -> Array:
        """Return how a round of the iteration itself, not of its linear form, moves theta (M, P)."""
        return self.advance(theta, 1) - theta

    def advance(self, theta: Array, rounds: int) -> Array:
        """Return theta (M, P) after some rounds of the iteration itself."""
        return self._round(theta.reshape(1, -1), self._loss, rounds).reshape(theta.shape)

    def _round(self, runs: Array, loss: _kernels.Loss, rounds: int = 1) -> Array:
        """Do `rounds` rounds for each row of `runs` (R, M P)."""
        M, R = self.problem.M, len(runs)
        # A copy always: the kernel works in place.
        state = np.array(runs.reshape(R, M, -1).transpose(1, 0, 2), dtype=np.float64, order="C")
        steps = np.tile((self.step * self.steps.factors)[:, None], (1, R))
        moved, limits = np.empty((rounds, R)), np.full(R, np.inf)
        _kernels.rounds(self.problem.mixing, loss, state, steps, rounds, moved, limits, self.problem.threads)
        return state.transpose(1, 0, 2).reshape(R, -1)

    def dense(self) -> Array:
        """Return A as a matrix; for small problems only."""
        return self._round(np.eye(self.size), self._products).T

    # ---- the consensus and what is left of it ----------------------------------------------------

    def consensus(self, x: NDArray) -> NDArray:
        """Return sum_m pi_m x_m (P,): the part of x that the network agrees on in the long run."""
        out: NDArray = self.pi @ x.reshape(self.problem.M, -1)
        return out

    def common(self, u: NDArray) -> NDArray:
        """Return the stacked vector in which every client has u (P,)."""
        return np.tile(u, self.problem.M)

    def disagreement(self, x: NDArray) -> NDArray:
        """Return x without its consensus."""
        return x - self.common(self.consensus(x))

    # ---- the limit -------------------------------------------------------------------------------

    def solve(self, b: Array, rtol: float = 1e-10) -> tuple[Array, float]:
        """Solve (I - A) x = b; return x and the relative residual.

        GMRES with a preconditioner for the consensus: A is nearly I there, which is what makes plain
        rounds slow. Slowly mixing networks of small envelope add one for the disagreement.
        """
        inverse = linalg.inv(self.step * self.mean_curvature)
        typical = self.step * float(np.trace(self.mean_curvature)) / self.problem.P
        network = self._network_solver(1.0 - min(typical, 0.5))

        def preconditioner(r: Array) -> Array:
            agreed = self.consensus(r)
            rest = r - self.common(agreed)
            if network is not None:
                rest = self.disagreement(network(rest))
            return rest + self.common(inverse @ agreed)

        return _gmres(lambda x: x - self.apply(x), b, preconditioner, rtol)

    def own_step(self) -> Array:
        """Return the step -alpha f_m Q g_m of each client at the common point (M, P)."""
        return self.move(self._everywhere())

    def displacement(self, rtol: float = 1e-10) -> tuple[Array, float]:
        """Return how far the linear fixed point is from the common point (M, P), and the residual."""
        x, residual = self.solve(self.own_step().ravel(), rtol)
        return x.reshape(self.problem.M, -1), residual

    def limit(self, rtol: float = 1e-12, most: int = 30) -> tuple[Array, bool]:
        """Return the fixed point of the iteration itself (M, P), and whether it was reached.

        Newton's method with the derivative at the common point, which the clients stay close to.
        """
        theta = self._everywhere()
        before = np.inf
        for _ in range(most):
            moved = self.move(theta)
            size = float(np.abs(moved).max())
            if size <= rtol * self.step * (1.0 + float(np.abs(theta).max())):
                return theta, True
            # Rounding sets a floor, below which a further correction makes nothing better.
            if not np.isfinite(size) or size > 0.5 * before:
                return theta, bool(size < 1e-8 * self.step * (1.0 + float(np.abs(theta).max())))
            before = size
            theta = theta + self.solve(moved.ravel(), 1e-10)[0].reshape(theta.shape)
        return theta, False

    def _everywhere(self) -> Array:
        return np.tile(self.point, (self.problem.M, 1))

    # ---- the network alone -----------------------------------------------------------------------

    def _network_solver(self, c: float) -> Callable[[NDArray], NDArray] | None:
        """Return x -> (I - c W)^-1 x for stacked vectors; None where that costs more than it brings."""
        W = self.problem.network.W
        M = self.problem.M
        if M > 1000:
            order = csgraph.reverse_cuthill_mckee(sparse.csr_array(W + W.T), symmetric_mode=True)
            place = np.argsort(order)
            rows = np.repeat(np.arange(M), np.diff(W.indptr))
            if float(np.abs(place[rows] - place[W.indices]).max()) * M > MOST_ENTRIES:
                return None
        factors = iterative.splu(sparse.csc_array(sparse.eye_array(M) - c * W))

        def apply(x: NDArray) -> NDArray:
            rows = x.reshape(M, -1)
            if np.iscomplexobj(rows):
                return (factors.solve(rows.real.copy()) + 1j * factors.solve(rows.imag.copy())).ravel()
            return np.asarray(factors.solve(np.ascontiguousarray(rows))).ravel()

        return apply

    # ---- consensus modes -------------------------------------------------------------------------

    def follow(self, u: NDArray, shift: complex, rtol: float = 1e-8) -> NDArray:
        """Return the disagreement z that a consensus mode u (P,) with eigenvalue about `shift` drags along.

        It makes (1 kron u) + z an eigenvector: shift z = D A ((1 kron u) + z), D taking the disagreement.
        """
        network = self._network_solver(1.0 - 1e-6)

        def system(z: NDArray) -> NDArray:
            z = self.disagreement(z)
            return shift * z - self.disagreement(self.apply(z))

        def preconditioner(r: NDArray) -> NDArray:
            rest = self.disagreement(r)
            return rest if network is None else self.disagreement(network(rest))

        return _gmres(system, self.disagreement(self.apply(self.common(u))), preconditioner, rtol)[0]


def weighted_solution(problem: Problem, totals: Array, start: Array, most: int = 100) -> Array:
    """Solve sum_m v_m grad L_m(theta) = 0 by Newton's method with step halving, from `start` (P,)."""

    def slope(theta: Array) -> Array:
        out: Array = totals @ problem.gradients(np.tile(theta, (problem.M, 1))) / problem.M
        return out

    theta, gradient = start, slope(start)
    for _ in range(most):
        hessian, _ = curvature_and_meat(problem.data, problem.family, theta, totals)
        newton = linalg.solve(hessian, gradient, assume_a="pos")
        share = 1.0
        while share > 1e-6:
            trial = theta - share * newton
            new = slope(trial)
            # The losses are convex: along a good step the slope in its direction falls.
            if np.isfinite(new).all() and abs(newton @ new) < abs(newton @ gradient):
                break
            share /= 2.0
        else:
            return theta
        theta, gradient = trial, new
        if float(np.abs(share * newton).max()) <= 1e-13 * (1.0 + float(np.abs(theta).max())):
            break
    return theta


def _row_curvature(problem: Problem, point: Array) -> Array:
    """Return each row's curvature times its observation weight (N,)."""
    data, family = problem.data, problem.family
    out = np.empty(data.n_rows)
    for low in range(0, data.n_rows, BLOCK_ROWS):
        rows = slice(low, min(low + BLOCK_ROWS, data.n_rows))
        out[rows] = family.curvature(linear_predictor(data, family, point, rows), data.y[rows])
    return out if data.row_weights is None else out * data.row_weights


def _client_curvature(problem: Problem, point: Array, curvature: Array | None) -> Iterator[Array]:
    """Yield the clients' curvature matrices H_m (P, P)."""
    data = problem.data
    for m in range(problem.M):
        if curvature is None:
            yield client_moments(data, problem.family, point, m).hessian
            continue
        total = np.zeros((problem.p, problem.p))
        for rows in data.blocks(m):
            X = data.X[rows]
            total += (X * curvature[rows, None]).T @ X
        yield total / data.totals[m]


def _gmres(
    system: Callable[[NDArray], NDArray], b: NDArray, preconditioner: Callable[[NDArray], NDArray], rtol: float
) -> tuple[NDArray, float]:
    """Return a solution and its true relative residual."""
    size = float(np.linalg.norm(b))
    if size == 0.0:
        return np.zeros_like(b), 0.0
    n, kind = len(b), b.dtype
    operator = iterative.LinearOperator((n, n), matvec=system, dtype=kind)
    before = iterative.LinearOperator((n, n), matvec=preconditioner, dtype=kind)
    x, _ = iterative.gmres(operator, b, rtol=rtol, atol=0.0, restart=min(GMRES_ROOM, n), maxiter=25, M=before)
    return x, float(np.linalg.norm(b - system(x))) / size
