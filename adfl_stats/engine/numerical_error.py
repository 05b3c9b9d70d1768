"""The numerical error of an estimate, in units of its standard errors.

The numerical error has two parts: how far the mean over clients is from the solution of the weighted
estimating equation (one Newton step away), and how far the clients are from their mean. Both are the
worst over the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from adfl_stats._algebra import inverse, root_of_inverse
from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL, Transport, mean_over
from adfl_stats.losses.glm import GLM

__all__ = [
    "NumericalError",
    "StandardErrors",
    "consensus_error",
    "curvature_and_meat",
    "floored",
    "numerical_error",
    "sandwich",
    "standard_errors_at",
    "standard_errors_from",
]


@dataclass(frozen=True)
class NumericalError:
    """Optimisation and consensus error, in standard errors.

    Attributes
    ----------
    optimisation : float
        How far the mean over clients is from the solution of the weighted estimating equation; NaN for methods that
        solve none.
    consensus : float
        The root mean square distance of the clients from their mean.

    Examples
    --------
    >>> from adfl_stats.engine.numerical_error import NumericalError
    >>> NumericalError(optimisation=0.01, consensus=0.03).total
    0.04
    >>> NumericalError(optimisation=float("nan"), consensus=0.03).total
    0.03
    """

    optimisation: float
    consensus: float

    @property
    def total(self) -> float:
        """Their sum, which the stopping rule uses."""
        return self.consensus + (0.0 if np.isnan(self.optimisation) else self.optimisation)


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors by the sandwich, the unit of numerical errors, and the inverse of the weighted curvature."""

    inverse: Array
    se: Array


def sandwich(hessian: Array, meat: Array) -> tuple[Array, Array]:
    """Return the inverse Hessian and the sandwich covariance H^-1 B H^-1.

    By its root H^-1 = FF': of F'BF rounding errors take fewer digits.
    """
    root = root_of_inverse(hessian)
    return inverse(hessian), root @ (root.T @ meat @ root) @ root.T


def standard_errors_at(problem: Problem, theta: Array, total_weights: Array) -> StandardErrors:
    """Measure curvature and standard errors at the mean of theta (M, P), with total weights v_m."""
    return standard_errors_from(problem, *curvature_and_meat(problem, problem.mean(theta), total_weights))


def curvature_and_meat(problem: Problem, theta: Array, total_weights: Array) -> Array:
    """Return the clients' curvature at theta (P,) with total weights v_m, over their number, and the meat (2, P, P)."""
    return summed_curvature_and_meat(problem.glm, theta, total_weights, problem.n_clients, problem.transport)


def summed_curvature_and_meat(
    glm: GLM, theta: Array, total_weights: Array, clients: int, transport: Transport
) -> Array:
    """Return the same for the losses of our clients among `clients` of all."""

    def part(at: slice) -> Array:
        some = glm.of(at)
        # An objective divides by the number of its own clients.
        return np.stack(some.curvature_and_meat(theta, total_weights[at] * (some.M / clients)))

    return transport.total(part)


def standard_errors_from(problem: Problem, hessian: Array, meat: Array) -> StandardErrors:
    """Return the inverse curvature and the standard errors by the sandwich H^-1 B H^-1.

    Raises ValueError where the clients that carry weight do not identify all coefficients at the estimate.
    """
    size = problem.coefficient_sizes
    scaled = hessian / np.outer(size, size)
    values = linalg.eigvalsh(scaled)
    if values[0] > 1e-13 * values[-1]:
        # The inverse of nearly singular information may overflow where it is squared.
        with np.errstate(over="ignore", invalid="ignore"):
            bread, covariance = sandwich(hessian, meat)
        if np.isfinite(covariance).all():
            return StandardErrors(bread, np.sqrt(_variances(bread, meat, covariance)))
    lost = np.abs(linalg.eigh(scaled)[1][:, 0]) > 0.1
    raise ValueError(
        f"the clients that carry weight do not identify {listing(np.asarray(problem.names)[lost])} at this estimate: "
        "the weighted information is rank-deficient. Leave it out, or give weight to clients that identify it. Fitted "
        "means may be at the end of their range: where covariates separate the responses perfectly there is no "
        "estimate; after a step that is too large, give a smaller step or none"
    )


def numerical_error(
    problem: Problem, theta: Array, total_weights: Array, unit: StandardErrors, gradients: Array | None = None
) -> NumericalError:
    """Measure theta (M, P) against the estimating equation sum_m v_m grad L_m = 0.

    `gradients` (M, P) are those at the mean of theta, where they are known.
    """
    centre = problem.mean(theta)
    known = problem.common_gradients(centre[None])[:, 0] if gradients is None else gradients
    slope = problem.members.sum_products(total_weights, known)
    newton = unit.inverse @ slope / problem.n_clients
    optimisation = float(np.max(np.abs(newton) / floored(unit.se, centre)))
    return NumericalError(optimisation, consensus_error(theta, unit.se, problem.transport))


def consensus_error(theta: Array, se: Array, transport: Transport = LOCAL) -> float:
    """Return the root mean square distance of the clients from their mean, for the worst coefficient."""
    centre = mean_over(transport, theta)
    spread = np.sqrt(mean_over(transport, (theta - centre) ** 2))
    return float(np.max(spread / floored(se, centre)))


def floored(se: Array, centre: Array) -> Array:
    """Return standard errors as a unit: above rounding where data without noise have standard errors of zero."""
    return np.maximum(se, 1e-10 * (1.0 + np.abs(centre)))


def _variances(bread: Array, meat: Array, covariance: Array) -> Array:
    """Return the diagonal of the sandwich; where rounding errors make it negative, from the roots of the meat."""
    variances = np.diag(covariance)
    if (variances >= 0.0).all():
        return variances
    values, vectors = linalg.eigh(meat)
    return np.asarray(np.square(bread @ (vectors * np.sqrt(np.maximum(values, 0.0)))).sum(axis=1))
