"""Weighted DFL, equation (4.1), as a map of the stacked estimates, and its linear form; several runs at once.

With F = diag(factors), Q the coordinates of the run (the identity for the paper's recursion) and H = blockdiag(H_m)
the clients' curvature, a round is to first order

    theta -> A theta + const,   A = (I - step F Q H)(W kron I).

Its fixed point lies (I - A)^-1 (-step F Q g) away from a common point at which the clients have the gradients g;
for the Gaussian family that is exact. A is nearly the identity on the consensus, which makes plain rounds slow;
preconditioned GMRES needs a few dozen passes over the data whatever the step. Nothing here has M P
columns: products with A go through the kernel, and runs that differ in weights share every pass. Where clients are in
several places, each has its own rows of all vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as iterative

from adfl_stats import _kernels
from adfl_stats._algebra import summed_products
from adfl_stats._types import Array
from adfl_stats.data.batches import batches
from adfl_stats.engine.krylov import gmres
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Exchange, kernel_rounds
from adfl_stats.losses.client_sums import own_predictor

__all__ = ["Curvature", "Iteration", "curvature_at", "limit_preconditioner", "network_solver"]


# Up to this many clients the network is inverted as a dense matrix, a few milliseconds. (All constants here are ours.)
DENSE = 300
# Up to this many clients a sparse factorisation is tried whatever its fill, which is at most M^2 entries.
SPARSE = 1000
# Beyond, it is taken where the envelope has at most this many entries (16 MB).
MOST_ENTRIES = 2e6
# The disagreement's part of the preconditioner is (I - c W)^-1 with c of at least this much: at steps near the limit of
# stability a smaller c would leave the network out.
LEAST_MEMORY = 0.5


@dataclass(frozen=True)
class Curvature:
    """The clients' curvature, in the coordinates of a run.

    Attributes
    ----------
    products : Loss
        Its gradient at x is Q H_m x.
    mean : ndarray (R, P, P)
        M^-1 sum_m v_m Q H_m for each run, with the total weights v_m.
    traces : ndarray (M,)
        The traces of Q H_m.
    """

    products: _kernels.Loss
    mean: Array
    traces: Array


class Iteration:
    """R runs of weighted DFL that share data and network; `linearise` comes before what asks for A.

    Parameters
    ----------
    problem : Problem
        Data, network and family.
    steps : sequence of R ClientSteps
        The runs' weights and steps.
    step : float
        The learning rate alpha.
    metric : ndarray (p, p), optional
        The coordinates of the runs, as `Problem.coordinates` returns them.

    Attributes
    ----------
    passes : int
        Passes over the data so far, each for all runs together.
    """

    def __init__(
        self, problem: Problem, steps: Sequence[ClientSteps], step: float, metric: Array | None = None
    ) -> None:
        self.problem, self.step, self.metric, self.passes = problem, step, metric, 0
        self.factors = np.stack([one.factors for one in steps], axis=1)
        self.total_weights = np.stack([one.total_weights for one in steps], axis=1)
        self.loss, self._exchange = problem.glm.loss(metric), Exchange(problem)
        self.curvature: Curvature | None = None
        self._preconditioner: Callable[[Array], Array] | None = None

    def at(self, step: float) -> Iteration:
        """Return the same runs at another step, with the same curvature."""
        other = copy(self)
        other.step, other.passes, other._preconditioner = step, 0, None
        return other

    def linearise(self, points: Array, *, expected: bool = False) -> Curvature:
        """Take the clients' curvature, observed or expected, at a common point (P,), or each at its own (M, P)."""
        self._preconditioner = None
        self.curvature = curvature_at(self.problem, points, self.metric, self.total_weights, expected=expected)
        return self.curvature

    @property
    def linear(self) -> Curvature:
        """The curvature in use."""
        if self.curvature is None:
            raise RuntimeError("linearise the iteration at a point first")
        return self.curvature

    def advance(self, theta: Array, rounds: int = 1) -> Array:
        """Return theta (M, R, P) after some rounds."""
        return self._rounds(theta, self.loss, rounds)

    def move(self, theta: Array) -> Array:
        """Return what one round changes."""
        return self.advance(theta) - theta

    def apply(self, x: Array) -> Array:
        """Return A x for x (M, R, P); a single run serves any number of columns R."""
        return self._rounds(x, self.linear.products)

    def solve(self, b: Array, rtol: float) -> Array:
        """Solve (I - A) x = b for b (M, R, P), all runs at once."""
        if self._preconditioner is None:
            self._preconditioner = limit_preconditioner(self.problem, self.step * self.linear.mean)
        return gmres(lambda x: x - self.apply(x), b, self._preconditioner, rtol, self.problem.members)

    def combined(self, theta: Array) -> Array:
        """Return what the clients combine of theta (M, P): the points at which they take their gradients."""
        return self._exchange.combine(theta)

    def _rounds(self, theta: Array, loss: _kernels.Loss, rounds: int = 1) -> Array:
        state = np.array(theta, dtype=np.float64, order="C")
        R = state.shape[1]
        steps = np.ascontiguousarray(np.broadcast_to(self.step * self.factors, (len(state), R)))
        moved, bounds = np.empty((rounds, R)), np.full(R, np.inf)
        kernel_rounds(self._exchange, loss, state, steps, moved, bounds, self.problem.threads)
        self.passes += rounds
        return state


def limit_preconditioner(problem: Problem, mean: Array) -> Callable[[Array], Array]:
    """Return an approximate inverse of I - A for states (M, R, P).

    Parameters
    ----------
    mean : ndarray (R, P, P)
        The runs' mean curvature, times the step. On the consensus I - A is about this; on the disagreement it is about
        I - c W, which is inverted where the network allows.
    """
    try:
        inverse = np.linalg.inv(mean)
    except np.linalg.LinAlgError:
        # Rank-deficient: a coefficient that no client with weight identifies.
        inverse = np.linalg.pinv(mean)
    typical, members = float(np.trace(mean.mean(axis=0))) / problem.P, problem.members
    network = network_solver(problem, 1.0 - min(typical, 1.0 - LEAST_MEMORY))

    def apply(r: Array) -> Array:
        agreed = problem.consensus(r)
        rest = r - agreed
        if network is not None:
            columns = members.by_columns(rest.reshape(len(rest), -1), problem.n_clients)
            rest = np.concatenate([members.ours(network(every)) for every in columns], axis=1).reshape(r.shape)
            rest = rest - problem.consensus(rest)
        out: Array = rest + np.einsum("rij,rj->ri", inverse, agreed)
        return out

    return apply


def curvature_at(
    problem: Problem, points: Array, metric: Array | None, total_weights: Array, *, expected: bool = False
) -> Curvature:
    """Return the clients' curvature at a common point (P,), or each at its own of points (M, P).

    Parameters
    ----------
    metric : ndarray (p, p) or None
        The coordinates Q.
    total_weights : ndarray (M, R)
        The runs' total weights v_m.
    expected : bool
        Whether to take Fisher's information in the place of the curvature, as where losses are not convex.
    """
    M, P, family = problem.M, problem.P, problem.glm.family
    shares, nothing = total_weights / problem.n_clients, np.zeros((M, P))
    if (gram := problem.glm.gram(metric)) is not None:
        S = gram[0][:, :, :P]
        mean = problem.members.sum_products(shares, S)
        return Curvature(_kernels.GramLoss(gram[0], nothing, metric is None), mean, np.einsum("mii->m", S))
    # A client's matrix costs P^2 a product, its rows n_m p: take the smaller; many classes need the matrix.
    by_matrix = family.outputs > 1 or problem.glm.p <= problem.glm.mean_rows
    stacked, traces = np.zeros((M, P, -(-P // 4) * 4)) if by_matrix else None, np.zeros(M)

    def part(at: slice) -> Array:
        summed, own = np.zeros((total_weights.shape[1], P, P)), points if points.ndim == 1 else points[at]
        for clients, matrices in problem.glm.of(at).curvature(own, expected=expected):
            seen = matrices if metric is None else _in_metric(metric, matrices)
            summed += summed_products(shares[at][clients], seen)
            # Slices are views: what is written there is written to all of ours.
            traces[at][clients] = np.einsum("mii->m", seen)
            if stacked is not None:
                stacked[at][clients, :, :P] = seen
        return summed

    mean = problem.transport.total(part)
    if stacked is not None:
        return Curvature(_kernels.GramLoss(stacked, nothing, metric is None), mean, traces)
    return Curvature(_row_products(problem, points, metric, expected=expected), mean, traces)


def _in_metric(metric: Array, matrices: Array) -> Array:
    """Return Q H for each of the matrices (C, P, P), Q having the metric (p, p) for each output."""
    C, P, p = len(matrices), matrices.shape[1], len(metric)
    return np.matmul(metric, matrices.reshape(C, P // p, p, P)).reshape(C, P, P)


def _row_products(problem: Problem, points: Array, metric: Array | None, *, expected: bool) -> _kernels.Loss:
    """Return products with the curvature by the rows: half the squared error without a response, rows weighted."""
    data, family, thetas = problem.glm.data, problem.glm.family, np.atleast_2d(points)
    curvature = np.empty(data.n_rows)
    for batch in batches(data, 1):
        there = thetas if len(thetas) == 1 else thetas[batch.clients]
        eta, rows = own_predictor(data, family, there, batch), batch.rows
        own = family.information(eta) if expected else family.curvature(eta, data.y[rows])
        curvature[rows] = own * data.weights_of(rows)
    return _kernels.RowLoss(
        data.X,
        np.zeros(data.n_rows),
        data.offsets,
        data.totals,
        0,
        row_weights=curvature,
        metric=metric,
        ridge=problem.glm.ridge,
    )


def network_solver(problem: Problem, c: float) -> Callable[[NDArray], NDArray] | None:
    """Return x -> (I - c W)^-1 x for x (n_clients, k) of all clients; None where it costs more than it saves."""
    W, M = problem.network.W, problem.n_clients
    if M <= DENSE:
        try:
            inverse = np.linalg.inv(np.eye(M) - c * W.toarray())
        except np.linalg.LinAlgError:
            raise _undetermined() from None
        return lambda x: inverse @ x
    if M > SPARSE:
        order = csgraph.reverse_cuthill_mckee(sparse.csr_array(W + W.T), symmetric_mode=True)
        place = np.argsort(order)
        rows = np.repeat(np.arange(M), np.diff(W.indptr))
        if float(np.abs(place[rows] - place[W.indices]).max()) * M > MOST_ENTRIES:
            return None
    try:
        factors = iterative.splu(sparse.csc_array(sparse.eye_array(M) - c * W))
    except RuntimeError:
        # SuperLU's word for a singular matrix.
        raise _undetermined() from None

    def apply(x: NDArray) -> NDArray:
        if np.iscomplexobj(x):
            return np.asarray(factors.solve(x.real.copy()) + 1j * factors.solve(x.imag.copy()))
        return np.asarray(factors.solve(np.ascontiguousarray(x)))

    return apply


def _undetermined() -> ValueError:
    return ValueError(
        "the network's limit is not determined: no client with weight has influence on the others. Give weight to a "
        "client that they hear, or pass rounds= and step= to run so many rounds"
    )
