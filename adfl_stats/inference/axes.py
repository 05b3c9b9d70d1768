"""Coordinates for the algebra of covariances: the information is the identity, and contrasts have variance one.

In the coordinates of the coefficients a covariate with a large mean would seem to leave each client without full rank,
for rounding errors, and extreme units would overflow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._algebra import root_of_inverse
from adfl_stats._properties import once
from adfl_stats._types import Array

__all__ = ["Axes"]


# Share of the largest value that a quadratic form may have which is rounding. Ours: a few units in the last place.
ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Axes:
    """Coordinates in which the information H is the identity, and coefficients in units of their standard errors.

    Attributes
    ----------
    root, flipped : ndarray (P, P)
        R with R'HR = I, and its inverse.
    unit : float
        The scale of the variances.
    working : ndarray (P, P)
        The estimate's variance under the working model in these coordinates, over `unit`.
    errors : ndarray (P,)
        The coefficients' standard errors under the working model, over the root of `unit`.
    """

    root: Array
    flipped: Array
    unit: float
    working: Array
    errors: Array

    @classmethod
    def of(cls, information: Array, total: Array) -> Axes:
        """Return those of H and the variance of the summed scores (P, P)."""
        root = root_of_inverse(information)
        working = root.T @ total @ root
        # Data without noise have variances of zero.
        unit = float(np.trace(working)) / len(root) or 1.0
        errors = np.sqrt(np.einsum("ij,jk,ik->i", root, working / unit, root))
        return cls(root, root.T @ information, unit, working / unit, np.where(errors > 0.0, errors, 1.0))

    @once
    def contrasts(self) -> Array:
        """The coefficients (P, P), one a column, of variance `unit`."""
        return self.root.T / self.errors

    @once
    def modelled(self) -> Array:
        """The covariance of `contrasts` under the working model, over `unit`."""
        return self.contrasts.T @ self.working @ self.contrasts

    def turned(self, matrices: Array) -> Array:
        """Return R'AR for nonnegative definite curvatures (..., P, P) of the coefficients.

        Where a client has no information along an axis, what rounding leaves there is set to zero.
        """
        turned = self.root.T @ matrices @ self.root
        largest = np.square(np.sqrt(np.diagonal(matrices, axis1=-2, axis2=-1)) @ np.abs(self.root))
        known = np.diagonal(turned, axis1=-2, axis2=-1) > ROUNDING * largest
        return np.asarray(np.where(known[..., :, None] & known[..., None, :], turned, 0.0))

    def variance(self, matrix: Array) -> Array:
        """Return the covariance (..., P, P) of the coefficients from that of `contrasts`, over `unit`."""
        return matrix * np.outer(self.unit * self.errors, self.errors)

    def back(self, own: Array, left: Array, right: Array) -> tuple[Array, Array, Array]:
        """Return own, left and right of `Clustered` from those of `contrasts`."""
        left, right = self.flipped.T @ left * self.errors, self.root @ right * (self.unit * self.errors)
        return self.variance(own), left, right
