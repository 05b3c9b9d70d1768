"""The iteration near its limit as a linear operator on stacked vectors (M P,), with its consensus modes.

The operator itself, A = (I - step F Q H)(W kron I), is that of ``engine/linearised.py`` with one run.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array
from adfl_stats.engine.krylov import gmres
from adfl_stats.engine.limit import limits
from adfl_stats.engine.linearised import Iteration, network_solver
from adfl_stats.engine.problem import ClientSteps, Problem

__all__ = ["Linearised"]


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
    """

    def __init__(
        self, problem: Problem, steps: ClientSteps, point: Array, step: float, metric: Array | None = None
    ) -> None:
        self.problem, self.steps, self.point, self.metric = problem, steps, point, metric
        self._runs = Iteration(problem, [steps], step, metric)
        self.mean_curvature = self._runs.linearise(point).mean[0]

    @property
    def step(self) -> float:
        """The learning rate alpha."""
        return self._runs.step

    def at(self, step: float) -> Linearised:
        """Return the same iteration at another step."""
        other = copy(self)
        other._runs = self._runs.at(step)
        return other

    @property
    def size(self) -> int:
        """M P."""
        return self.problem.M * self.problem.P

    def apply(self, x: NDArray) -> NDArray:
        """Return A x for a stacked vector (M P,), real or complex."""
        if np.iscomplexobj(x):
            return self._images(np.stack([x.real, x.imag])).T @ np.array([1.0, 1.0j])
        return self._images(x[None])[0]

    def _images(self, vectors: Array) -> Array:
        """Return A times each row of `vectors` (R, M P), as rows."""
        M, R = self.problem.M, len(vectors)
        return self._runs.apply(vectors.reshape(R, M, -1).transpose(1, 0, 2)).transpose(1, 0, 2).reshape(R, -1)

    def move(self, theta: Array) -> Array:
        """Return how a round of the iteration itself, not of its linear form, moves theta (M, P)."""
        return self._runs.move(theta[:, None])[:, 0]

    def advance(self, theta: Array, rounds: int) -> Array:
        """Return theta (M, P) after some rounds of the iteration itself."""
        return self._runs.advance(theta[:, None], rounds)[:, 0]

    def dense(self) -> Array:
        """Return A as a matrix; for small problems only."""
        return self._images(np.eye(self.size)).T

    # ---- the consensus and what is left of it ----------------------------------------------------

    def consensus(self, x: NDArray) -> NDArray:
        """Return sum_m pi_m x_m (P,): the part of x that the network agrees on in the long run."""
        return self.problem.consensus(x.reshape(self.problem.M, -1))

    def common(self, u: NDArray) -> NDArray:
        """Return the stacked vector in which every client has u (P,)."""
        return np.tile(u, self.problem.M)

    def disagreement(self, x: NDArray) -> NDArray:
        """Return x without its consensus."""
        return x - self.common(self.consensus(x))

    # ---- the limit -------------------------------------------------------------------------------

    def solve(self, b: Array, rtol: float = 1e-10) -> tuple[Array, float]:
        """Solve (I - A) x = b; return x and the relative residual."""
        x = self._runs.solve(b.reshape(self.problem.M, 1, -1), rtol).ravel()
        size = float(np.linalg.norm(b))
        return x, float(np.linalg.norm(b - x + self.apply(x))) / size if size else 0.0

    def own_step(self) -> Array:
        """Return the step -alpha f_m Q g_m of each client at the common point (M, P)."""
        return self.move(self._everywhere())

    def displacement(self, rtol: float = 1e-10) -> tuple[Array, float]:
        """Return how far the linear fixed point is from the common point (M, P), and the residual."""
        x, residual = self.solve(self.own_step().ravel(), rtol)
        return x.reshape(self.problem.M, -1), residual

    def limit(self) -> tuple[Array, bool]:
        """Return the fixed point of the iteration itself (M, P), and whether it was reached."""
        limit = limits(self.problem, self._everywhere()[:, None], [self.steps], self.step, self.metric)
        return limit.theta[:, 0], limit.reached

    def _everywhere(self) -> Array:
        return np.tile(self.point, (self.problem.M, 1))

    # ---- consensus modes -------------------------------------------------------------------------

    def follow(self, u: NDArray, eigenvalue: complex, rtol: float = 1e-8) -> NDArray:
        """Return the disagreement z that a consensus mode u (P,) with eigenvalue about `eigenvalue` comes with.

        It makes (1 kron u) + z an eigenvector: eigenvalue z = D A ((1 kron u) + z), D taking the disagreement.
        """
        network = network_solver(self.problem, 1.0 - 1e-6)

        def system(z: NDArray) -> NDArray:
            z = self.disagreement(z)
            return eigenvalue * z - self.disagreement(self.apply(z))

        def preconditioner(r: NDArray) -> NDArray:
            rest = self.disagreement(r)
            return rest if network is None else self.disagreement(network(rest.reshape(self.problem.M, -1)).ravel())

        return gmres(system, self.disagreement(self.apply(self.common(u))), preconditioner, rtol)
