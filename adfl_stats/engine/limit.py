"""The limit theta(infinity) of the iteration, solved for directly; several runs at once.

With F = diag(factors), Q the coordinates of the run (the identity for the paper's recursion) and g the
clients' gradients, weighted DFL, equation (4.1), rests where a round moves nothing. Newton's method asks
in every step for the solution of

    (I - A) x = move,   A = (I - step F Q H)(W kron I),

with H = blockdiag(H_m) the clients' curvature at a common point. A is nearly the identity where the
clients agree, which makes plain rounds slow; GMRES is told so by a preconditioner and needs a few dozen
passes over the data whatever the step. Nothing here has M P columns, and runs that differ in weights and
start share every pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as iterative

from adfl_stats import _kernels
from adfl_stats._types import Array
from adfl_stats.data.batches import row_blocks
from adfl_stats.engine.numerical_error import numerical_error, yardstick
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.rounds import Plan, Run, iterate, safe_step
from adfl_stats.engine.rounds_needed import rounds_to_limit
from adfl_stats.errors import ConvergenceWarning
from adfl_stats.losses.client_sums import linear_predictor

__all__ = [
    "Limits",
    "after_rounds",
    "curvature_products",
    "gmres",
    "limit_preconditioner",
    "limits",
    "network_solver",
    "settle",
]


# Up to this many clients the network is inverted as a dense matrix.
DENSE = 300
# A sparse factorisation of the network is taken where its envelope has at most this many entries.
MOST_ENTRIES = 2e6
GMRES_ROOM = 80
# Newton's steps, how far each linear system is solved, and when a step no longer matters.
MOST_STEPS = 40
INNER = 1e-6
SMALL = 1e-11
# With a derivative this poor (residual left after a Newton step) the next one takes it anew.
STALE = 0.05


@dataclass(frozen=True)
class Limits:
    """Where some runs come to rest.

    Attributes
    ----------
    theta : ndarray (M, R, P)
        The fixed points.
    reached : bool
        Whether all of them were found to rounding, and rounds would come to rest there.
    passes : int
        Passes over the data, each for all runs together.
    moved : list of float
        The longest move of a round, by the runs' steps, before each of Newton's steps and at the end.
    """

    theta: Array
    reached: bool
    passes: int
    moved: list[float]


def settle(problem: Problem, start: Array, steps: ClientSteps, plan: Plan, *, label: str = "") -> Run:
    """Carry weighted DFL, equation (4.1), from `start` (M, P) to where the plan wants it, by its solver."""
    if plan.solver == "rounds":
        return iterate(problem, start, steps, plan, label=label)
    metric = None
    if plan.step is None:
        metric, curvatures = problem.coordinates(start.mean(axis=0), steps.weights)
        step = safe_step(steps.factors, curvatures)
    else:
        step = plan.step
    run = Run(np.array(start, dtype=np.float64), step)
    # The error falls with the step, so a second or third step is the last.
    for _ in range(8):
        with np.errstate(over="ignore", invalid="ignore"):
            found = limits(problem, run.theta[:, None], [steps], step, metric)
        if not found.reached:
            if plan.solver == "limit":
                warnings.warn(
                    f"no limit was found at step={step:.4g} ({found.passes} passes over the data); rounds are run "
                    "instead. The step may be beyond the limit of stability, or the network fall into groups",
                    ConvergenceWarning,
                    stacklevel=5,
                )
            return iterate(problem, start, steps, replace(plan, solver="rounds"), label=label)
        run.theta, run.step, run.solver = np.ascontiguousarray(found.theta[:, 0]), step, "limit"
        run.rounds += found.passes
        run.record(found.moved[-1])
        unit = yardstick(problem, run.theta, steps.totals)
        error = numerical_error(problem, run.theta, steps.totals, unit).total
        if metric is None or error <= plan.tolerance:
            break
        step *= float(np.clip(0.7 * plan.tolerance / error, 1e-3, 0.5))
    if plan.final:
        run.needed = rounds_to_limit(problem, run.theta, run.step, metric, unit, plan.tolerance)
    return run


def limits(
    problem: Problem,
    start: Array,
    steps: Sequence[ClientSteps],
    step: float,
    metric: Array | None = None,
) -> Limits:
    """Return the fixed points of several runs at one step.

    Parameters
    ----------
    problem : Problem
        Data, network and family, which the runs share.
    start : ndarray (M, R, P)
        Where Newton's method begins; only the clients' means count.
    steps : sequence of R ClientSteps
        The runs' trust and steps.
    step : float
        The learning rate alpha.
    metric : ndarray (p, p), optional
        The coordinates of the runs, as `Problem.coordinates` returns them.
    """
    task = _Runs(problem, steps, step, metric)
    unit = problem.glm.coefficient_sizes
    theta = np.repeat(start.mean(axis=0)[None], problem.M, axis=0)
    move = task.move(theta)
    moved = [float(np.abs(move).max())]
    refresh = True
    for _ in range(MOST_STEPS):
        if refresh:
            task.linearise(theta.mean(axis=(0, 1)))
        change = task.solve(move)
        share, before = 1.0, np.abs(move).max(axis=(0, 2))
        while True:
            trial = theta + share * change
            next_move = task.move(trial)
            after = np.abs(next_move).max(axis=(0, 2))
            if np.isfinite(after).all() and (after <= (1.0 - 0.25 * share) * before + task.rounding(trial)).all():
                break
            share /= 2.0
            if share < 1e-4:
                return Limits(theta, False, task.passes, moved)
        theta, move = trial, next_move
        moved.append(float(after.max()))
        size = share * float(np.abs(change * unit).max())
        if size <= SMALL * (1.0 + float(np.abs(theta * unit).max())) or (after <= task.rounding(theta)).all():
            return Limits(theta, task.stable(), task.passes, moved)
        refresh = not problem.glm.quadratic and bool((after > STALE * before).any())
    return Limits(theta, False, task.passes, moved)


class _Runs:
    """R runs that share data and network: their rounds, and the linear system of a Newton step."""

    def __init__(self, problem: Problem, steps: Sequence[ClientSteps], step: float, metric: Array | None) -> None:
        self.problem, self.step, self.metric = problem, step, metric
        self.factors = np.stack([one.factors for one in steps], axis=1)
        self.totals = np.stack([one.totals for one in steps], axis=1)
        self.loss = problem.glm.loss(metric)
        self.passes = 0

    def linearise(self, point: Array) -> None:
        """Take the clients' curvature at a common point (P,)."""
        self.products, mean, self.traces = curvature_products(self.problem, point, self.metric, self.totals)
        self.preconditioner = limit_preconditioner(self.problem, self.step * mean)
        self.shape = (self.problem.M, *mean.shape[:2])

    def round(self, theta: Array, loss: _kernels.Loss) -> Array:
        self.passes += 1
        return after_rounds(self.problem, loss, theta, self.step * self.factors)

    def move(self, theta: Array) -> Array:
        """Return what one round of the iteration itself changes."""
        return self.round(theta, self.loss) - theta

    def rounding(self, theta: Array) -> float:
        """Return the size of a move that is only rounding."""
        return 8.0 * float(np.finfo(np.float64).eps) * (1.0 + float(np.abs(theta).max()))

    def stable(self) -> bool:
        """Return whether rounds come back to the fixed point from nearby.

        They do where no client's step exceeds 2 over its curvature, for which its trace is a bound; else
        some rounds of the linear form tell.
        """
        if self.step * float(np.max(self.factors.max(axis=1) * self.traces)) <= 2.0:
            return True
        x = np.random.default_rng(0).normal(size=self.shape)
        sizes = []
        for _ in range(3):
            for _ in range(20):
                x = self.round(x, self.products)
            sizes.append(float(np.abs(x).max()))
        return sizes[2] <= sizes[1]

    def solve(self, move: Array) -> Array:
        """Solve (I - A) x = move for all runs at once."""

        def system(x: Array) -> Array:
            x = x.reshape(self.shape)
            out: Array = (x - self.round(x, self.products)).ravel()
            return out

        def precondition(r: Array) -> Array:
            return self.preconditioner(r.reshape(self.shape)).ravel()

        return gmres(system, move.ravel(), precondition, INNER).reshape(self.shape)


def after_rounds(problem: Problem, loss: _kernels.Loss, theta: Array, steps: Array, rounds: int = 1) -> Array:
    """Return theta (M, R, P) after some rounds with steps (M, R); theta itself stays as it is."""
    state = np.array(theta, dtype=np.float64, order="C")
    R = state.shape[1]
    moved, bounds = np.empty((rounds, R)), np.full(R, np.inf)
    _kernels.rounds(problem.mixing, loss, state, np.ascontiguousarray(steps), rounds, moved, bounds, problem.threads)
    return state


def limit_preconditioner(problem: Problem, mean: Array) -> Callable[[Array], Array]:
    """Return an approximate inverse of I - A for states (M, R, P).

    Parameters
    ----------
    mean : ndarray (R, P, P)
        The runs' mean curvature, times the step. On the consensus I - A is about this; on the disagreement it is about
        I - c W, which is inverted where the network allows.
    """
    pi = problem.influence / problem.M
    try:
        inverse = np.linalg.inv(mean)
    except np.linalg.LinAlgError:
        # A coefficient that no trusted client's rows identify.
        inverse = np.linalg.pinv(mean)
    typical = float(np.trace(mean.mean(axis=0))) / problem.P
    network = network_solver(problem, 1.0 - min(typical, 0.5))

    def apply(r: Array) -> Array:
        agreed = np.tensordot(pi, r, axes=1)
        rest = r - agreed
        if network is not None:
            rest = network(rest.reshape(len(rest), -1)).reshape(r.shape)
            rest = rest - np.tensordot(pi, rest, axes=1)
        out: Array = rest + np.einsum("rij,rj->ri", inverse, agreed)
        return out

    return apply


def curvature_products(
    problem: Problem, point: Array, metric: Array | None, totals: Array
) -> tuple[_kernels.Loss, Array, Array]:
    """Return losses whose gradients are products with the clients' curvature, with its means and traces.

    Parameters
    ----------
    point : ndarray (P,)
        Where the curvature is taken.
    totals : ndarray (M, R)
        The runs' total weights v_m.

    Returns
    -------
    products : Loss
        Its gradient at x is Q H_m x.
    mean : ndarray (R, P, P)
        M^-1 sum_m v_m Q H_m for each run.
    traces : ndarray (M,)
        The traces of Q H_m.
    """
    M, P, data, outputs = problem.M, problem.P, problem.glm.data, problem.glm.family.outputs
    if (gram := problem.glm.gram(metric)) is not None:
        S = gram[0]
        mean = np.einsum("mr,mij->rij", totals / M, S[:, :, :P], optimize=True)
        return _kernels.GramLoss(S, np.zeros((M, P)), metric is None), mean, np.einsum("mii->m", S[:, :, :P])
    full = None if metric is None else np.kron(np.eye(outputs), metric)
    # A client's matrix costs P^2 a product, its rows n_m p: take the smaller; many classes need the matrix.
    by_matrix = outputs > 1 or problem.glm.p <= data.n_rows / M
    stacked = np.zeros((M, P, -(-P // 4) * 4)) if by_matrix else None
    mean, traces = np.zeros((totals.shape[1], P, P)), np.empty(M)
    for clients, matrices in problem.glm.newton_curvature(point):
        seen = matrices if full is None else full @ matrices
        mean += np.einsum("mr,mij->rij", totals[clients] / M, seen, optimize=True)
        traces[clients] = np.einsum("mii->m", seen)
        if stacked is not None:
            stacked[clients, :, :P] = seen
    if stacked is not None:
        return _kernels.GramLoss(stacked, np.zeros((M, P)), metric is None), mean, traces
    # Half the squared error without a response: its gradient is the product with the curvature.
    nothing, curvature = np.zeros(data.n_rows), np.empty(data.n_rows)
    for rows in row_blocks(data):
        eta = linear_predictor(data, problem.glm.family, point, rows)
        curvature[rows] = problem.glm.family.newton_curvature(eta, data.y[rows]) * data.weights_of(rows)
    products = _kernels.RowLoss(data.X, nothing, data.offsets, data.totals, 0, row_weights=curvature, metric=metric)
    return products, mean, traces


def network_solver(problem: Problem, c: float) -> Callable[[NDArray], NDArray] | None:
    """Return x -> (I - c W)^-1 x for x (M, k); None where that costs more than it brings."""
    W, M = problem.network.W, problem.M
    if M <= DENSE:
        inverse = np.linalg.inv(np.eye(M) - c * W.toarray())
        return lambda x: inverse @ x
    if M > 1000:
        order = csgraph.reverse_cuthill_mckee(sparse.csr_array(W + W.T), symmetric_mode=True)
        place = np.argsort(order)
        rows = np.repeat(np.arange(M), np.diff(W.indptr))
        if float(np.abs(place[rows] - place[W.indices]).max()) * M > MOST_ENTRIES:
            return None
    factors = iterative.splu(sparse.csc_array(sparse.eye_array(M) - c * W))

    def apply(x: NDArray) -> NDArray:
        if np.iscomplexobj(x):
            return np.asarray(factors.solve(x.real.copy()) + 1j * factors.solve(x.imag.copy()))
        return np.asarray(factors.solve(np.ascontiguousarray(x)))

    return apply


def gmres(
    system: Callable[[NDArray], NDArray], b: NDArray, preconditioner: Callable[[NDArray], NDArray], rtol: float
) -> NDArray:
    """Solve a linear system, or come as near as restarts allow."""
    if not b.any():
        return np.zeros_like(b)
    n, kind = len(b), b.dtype
    operator = iterative.LinearOperator((n, n), matvec=system, dtype=kind)
    before = iterative.LinearOperator((n, n), matvec=preconditioner, dtype=kind)
    x: NDArray = iterative.gmres(operator, b, rtol=rtol, atol=0.0, restart=min(GMRES_ROOM, n), maxiter=25, M=before)[0]
    return x
