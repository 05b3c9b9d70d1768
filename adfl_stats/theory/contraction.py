"""The exact contraction factor: the spectral radius of the linearised iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from adfl_stats.network.eigenvalues import arnoldi, growth
from adfl_stats.theory.linearised import Linearised

__all__ = ["Factor", "spectral_radius"]

# Ours: up to this many unknowns all eigenvalues are computed, in about two seconds.
DENSE = 1000
# Ours: residuals, in units of one minus the factor, above which a value is called an estimate.
RESOLVED = 1e-4


@dataclass(frozen=True)
class Factor:
    """A factor by which an error shrinks in a round, and why it may not be exact ("" if it is)."""

    value: float
    trouble: str = ""


def spectral_radius(iteration: Linearised, dense_up_to: int = DENSE) -> Factor:
    """Return the largest modulus of the eigenvalues of A = (I - step F Q H)(W kron I).

    Small problems have all eigenvalues computed. For large ones the usual iterations alone are not to be
    trusted: with a small step the P slowest modes, which the clients have in common, are clustered just below 1,
    and in preconditioned coordinates they nearly coincide. These modes are therefore followed one by one
    from what they are at step zero; Arnoldi's iteration then looks for a slower one elsewhere, such as the
    alternating mode of a periodic network or a region of little weight on a network that mixes slowly.
    """
    if iteration.size <= dense_up_to:
        return Factor(float(np.abs(np.linalg.eigvals(iteration.dense())).max()))
    value, residual = consensus_factor(iteration)
    resolved = residual < RESOLVED * max(1.0 - value, 1e-12)
    other = _arnoldi(iteration)
    if other is not None:
        # A converged eigenvalue goes before common modes that were not resolved.
        return Factor(max(value, other) if resolved else other)
    seen = growth(iteration.apply, np.random.default_rng(1).standard_normal(iteration.size), rounds=300)
    if resolved:
        modes = f"the value is at least that of the clients' common modes, and a random start shrinks by {seen:.6g}"
        return Factor(max(value, seen), f"Arnoldi's iteration did not converge: {modes}")
    # The random start still has components along faster modes, so that the factor is underestimated.
    modes = f"nor were the clients' common modes resolved (residual {residual:.1g})"
    return Factor(seen, f"Arnoldi's iteration did not converge, {modes}: the value is that of a random start")


def consensus_factor(iteration: Linearised, most: int = 6) -> tuple[float, float]:
    """Return the largest modulus among the P modes that the clients have in common, and its residual.

    The invariant subspace {(1 kron u) + z(u)} is found by turns: given the P x P matrix B that acts on u,
    each of its eigenvectors comes with a disagreement z; given these, B is the consensus of A on them.
    At first B = I - step sum_m pi_m f_m Q H_m.
    """
    P = iteration.problem.P
    B: NDArray = np.eye(P) - iteration.step * iteration.mean_curvature
    best, residual = np.inf, np.inf
    drift = 0.0
    for _ in range(most):
        values, U = np.linalg.eig(B)
        order = np.argsort(-np.abs(values))
        images = U * values
        for j in order:
            # Modes that are safely faster than the slowest may stay as they are.
            if abs(values[j]) < abs(values[order[0]]) - 10.0 * drift and j != order[0]:
                continue
            u, eigenvalue = (U[:, j], complex(values[j])) if values[j].imag else (U[:, j].real, float(values[j].real))
            x = iteration.common(u) + iteration.follow(u, eigenvalue)
            image = iteration.apply(x)
            images = images.astype(np.result_type(images, image))
            images[:, j] = iteration.consensus(image)
            drift = max(drift, float(np.linalg.norm(images[:, j] - values[j] * U[:, j])))
            if j == order[0]:
                residual = float(np.linalg.norm(image - eigenvalue * x) / np.linalg.norm(x))
        B = linalg.solve(U.T, images.T).T
        B = B.real if np.abs(np.imag(B)).max() < 1e-12 else B
        new = float(np.abs(np.linalg.eigvals(B)).max())
        if abs(new - best) <= 1e-13:
            return new, residual
        best = new
    return best, residual


def _arnoldi(iteration: Linearised, restarts: int = 40) -> float | None:
    """Return the largest modulus that Arnoldi's iteration finds, or None where it does not converge."""
    start = np.random.default_rng(0).standard_normal(iteration.size)
    pair = arnoldi(iteration.apply, start, tol=1e-9, room=min(60, iteration.size), restarts=restarts)
    return None if pair is None else float(np.abs(pair[0]).max())
