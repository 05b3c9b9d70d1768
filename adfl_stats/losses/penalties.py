"""Penalties: what is added to every client's loss, so that the network minimises the sum of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from adfl_stats._arguments import float64_array, in_interval, listing, shape_of
from adfl_stats._types import Array, NumbersByName

__all__ = ["Lasso", "Penalty", "Ridge"]


class Penalty(Protocol):
    """A convex function r(theta) that each client adds to its mean loss L_m.

    With total weights v_m the network then solves sum_m v_m (grad L_m(theta) + grad r(theta)) = 0: whatever the
    weights, the penalty counts beside a mean of the clients' mean losses. Gradient and curvature serve equations,
    limits and standard errors (`Ridge`); rounds of `SLBRN` take a penalty by its prox, which need not be smooth
    (`Lasso`).
    """

    def value(self, theta: Array) -> Array:
        """Return r at theta (..., P)."""

    def gradient(self, theta: Array) -> Array:
        """Return grad r at theta (..., P)."""

    def curvature(self, theta: Array) -> Array:
        """Return the diagonal of the second derivative at theta (..., P)."""

    def prox(self, theta: Array, step: float) -> Array:
        """Return the x that minimises r(x) + ||x - theta||^2 / (2 step)."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """The ridge penalty sum_j c_j theta_j^2 / 2 (Hoerl & Kennard 1970), beside the mean loss of a row.

    The pooled fit minimises (1 / N) sum_i loss_i(theta) + sum_j c_j theta_j^2 / 2, where the loss of a row is minus its
    log-likelihood at dispersion one: half the squared residual in the Gaussian model. This is ``alpha`` of
    statsmodels' ``fit_regularized(L1_wt=0)``; N c is the penalty beside the sum of squares. Columns are taken as they
    are, so that their units matter: standardise them, or give each its own c.

    Parameters
    ----------
    c : float, array, Series or dict
        At least zero. One number for all coefficients but those of a constant column, which is left free; an array
        with one number for each coefficient, in the order of the model, or numbers by the coefficients' names, where
        those that are not named are free.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> net = ad.networks.directed_circle(20, 5)
    >>> plain = ad.DecentralizedGLM(data, net).fit(ad.DFL())
    >>> ridge = ad.DecentralizedGLM(data, net, penalty=ad.Ridge(0.5)).fit(ad.DFL())
    >>> bool((ridge.params**2).sum() < (plain.params**2).sum())
    True
    """

    c: NumbersByName

    def __post_init__(self) -> None:
        if not isinstance(self.c, Mapping) and shape_of(self.c, "c") == ():
            in_interval(self.c, "c", 0.0, np.inf)
            return
        values = float64_array(list(self.c.values()) if isinstance(self.c, Mapping) else self.c, "c")
        if values.ndim != 1:
            raise ValueError(f"c has shape {values.shape}; one number for each coefficient is wanted")
        if not (np.isfinite(values).all() and (values >= 0.0).all()):
            bad = values[~(np.isfinite(values) & (values >= 0.0))]
            raise ValueError(f"c holds {listing(bad)}; penalties are finite and at least zero")

    @property
    def strengths(self) -> Array:
        """The numbers `c` as an array: one, or one for each coefficient after `on`."""
        return np.asarray(self.c, dtype=np.float64)

    def on(self, names: Sequence[str], constants: Sequence[int]) -> Ridge:
        """Return the penalty with one number for each coefficient.

        Parameters
        ----------
        names : sequence of str
            The coefficients.
        constants : sequence of int
            The places of the constants, which one number for all leaves free.

        Returns
        -------
        Ridge
            Whose `c` is an array (P,).
        """
        if isinstance(self.c, (Mapping, pd.Series)):
            given = pd.Series(self.c, dtype=np.float64)
            unknown = [name for name in given.index if name not in names]
            if unknown or not given.index.is_unique:
                raise ValueError(
                    f"penalty names {listing(unknown or given.index[given.index.duplicated()])}"
                    f"{'' if unknown else ' twice'}; the coefficients are {listing(names, 20)}"
                )
            return Ridge(given.reindex(list(names), fill_value=0.0).to_numpy())
        values = np.array(np.broadcast_to(self.c, len(names)) if np.ndim(self.c) == 0 else self.c, dtype=np.float64)
        if values.shape != (len(names),):
            raise ValueError(
                f"penalty has {len(values)} numbers; one, or one for each of the {len(names)} coefficients "
                f"{listing(names)} is wanted"
            )
        if np.ndim(self.c) == 0:
            values[list(constants)] = 0.0
        return Ridge(values)

    def value(self, theta: Array) -> Array:
        """Return sum_j c_j theta_j^2 / 2.

        Parameters
        ----------
        theta : ndarray (..., P)
            Coefficients.

        Returns
        -------
        ndarray (...)
            The values.
        """
        return np.asarray(0.5 * (self.strengths * np.square(theta)).sum(axis=-1))

    def gradient(self, theta: Array) -> Array:
        """Return c theta.

        Parameters
        ----------
        theta : ndarray (..., P)
            Coefficients.

        Returns
        -------
        ndarray (..., P)
            The gradients.
        """
        return np.asarray(self.strengths * theta)

    def curvature(self, theta: Array) -> Array:
        """Return the diagonal of the second derivative: c, the same everywhere.

        Parameters
        ----------
        theta : ndarray (..., P)
            Coefficients.

        Returns
        -------
        ndarray (..., P)
            The diagonals.
        """
        return np.broadcast_to(self.strengths, np.shape(theta))

    def prox(self, theta: Array, step: float) -> Array:
        """Return the proximal operator, theta / (1 + step c).

        Parameters
        ----------
        theta : ndarray (..., P)
            Coefficients.
        step : float
            Step size.

        Returns
        -------
        ndarray (..., P)
            The minimisers.
        """
        return np.asarray(theta / (1.0 + step * self.strengths))


@dataclass(frozen=True)
class Lasso:
    """The penalty c sum_j |theta_j| (Tibshirani 1996), of every coefficient."""

    c: float

    def value(self, theta: Array) -> Array:
        """Return c sum_j |theta_j|."""
        return np.asarray(self.c * np.abs(theta).sum(axis=-1))

    def gradient(self, theta: Array) -> Array:
        """Return the subgradient c sign(theta), zero at zero."""
        return np.asarray(self.c * np.sign(theta))

    def curvature(self, theta: Array) -> Array:
        """Return zeros: the penalty is linear on either side of zero."""
        return np.zeros(np.shape(theta))

    def prox(self, theta: Array, step: float) -> Array:
        """Return the soft threshold."""
        return np.asarray(np.sign(theta) * np.maximum(np.abs(theta) - step * self.c, 0.0))
