"""Differential privacy: gradients of clipped rows with Gaussian noise, and what they cost (section 6 of the paper).

The gradient of a client's row is shortened to the length `clip`; to the mean over its n rows, which changes by at most
clip / n where a row is left out (its contribution set to zero, n being public), Gaussian noise of standard deviation
noise x clip / n is added. All that a client sends follows from such gradients, and so does its weight, so that a row is
protected against neighbours and against everybody who sees the messages. Releases compose by Renyi differential privacy
(Mironov 2017), counted by the package dp-accounting. Noise is that of the seed and of the number of the release: who
sees two fits with one seed takes their difference, in which it cancels.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from scipy import optimize

from adfl_stats import _kernels
from adfl_stats._arguments import in_interval, whole_number
from adfl_stats._types import Array, FamilyLike
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.response import with_family

__all__ = ["PrivateGLM", "noise_for", "spent_epsilon"]


class PrivateGLM:
    """A generalised linear model of whose rows only noisy gradients are seen: an objective of `DecentralizedModel`.

    Methods that need more than gradients are refused: curvatures, scores and losses of the rows would be seen as well.
    Rounds begin at zero, which does not depend on the data. The guarantee is for a row whose gradient counts or is
    zero, the clients' numbers of rows being public; for a row that is exchanged for another the effect is up to twice
    as large, and epsilon that of half the noise.

    The guarantee is that of one fit. Messages of two fits with the same seed tell exact gradients, as the noise cancels
    in their differences: give every fit that anybody sees a seed of its own. All of them together cost
    ``spent_epsilon(noise, releases)`` with the releases of all.

    Without noise it is a model with rows clipped and no guarantee: bounded gradients row by row, where ``DFL(clip=)``
    bounds those of clients.

    Parameters
    ----------
    data : ClientData
        The rows, without weights.
    family : str or Family
        A family with one output and no constant that is estimated from the rows.
    clip : float
        The greatest length of a row's gradient. Residuals that it shortens bias estimates of skewed families.
    noise : float
        The standard deviation of the noise in units of the largest effect of a row; 0 for none (and no guarantee).
    delta : float
        The probability with which the guarantee may fail, below one over the number of rows of a client.
    seed : int
        Of the noise. For a guarantee in practice it must be secret, and that of no other fit.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=500, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> noise = ad.losses.noise_for(epsilon=2.0, releases=60)
    >>> private = ad.losses.PrivateGLM(data, clip=3.0, noise=noise)
    >>> res = ad.DecentralizedModel(private, ad.networks.complete(20)).fit(ad.DFL(), step=0.2, rounds=60)
    >>> round(res.method.details["epsilon"], 6), bool(abs(res.params - sim.theta0).max() < 4 * res.bse.max())
    (2.0, True)
    """

    def __init__(
        self,
        data: ClientData,
        family: FamilyLike = "gaussian",
        *,
        clip: float,
        noise: float,
        delta: float = 1e-5,
        seed: int = 0,
    ) -> None:
        held, resolved = with_family(data, family)
        unfit = {"multinomial": "has more than one output", "huber": "has a scale that is estimated from the rows"}
        if resolved.name in unfit or (resolved.name == "negativebinomial" and not resolved.par):
            why = unfit.get(resolved.name, "has an alpha that is estimated from the rows; give alpha")
            raise ValueError(f"family {resolved.name!r} {why}; PrivateGLM takes families without")
        if held.row_weights is not None:
            raise ValueError(
                "data has weights of rows, with which a row's effect is not bounded by clip; leave them out"
            )
        self._glm = GLM(held, resolved)
        self.M, self.P = self._glm.M, self._glm.P
        self.labels, self.names = self._glm.labels, self._glm.names
        self.totals, self.counted = self._glm.totals, self._glm.counted
        self.clip = in_interval(clip, "clip", 0.0, np.inf, open_low=True)
        self.noise = in_interval(noise, "noise", 0.0, np.inf)
        self.delta = in_interval(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)
        self.seed, self._releases = whole_number(seed, "seed", 0), 0

    @property
    def noise_sd(self) -> Array:
        """The standard deviation (M,) of the noise in each coordinate of a client's gradient."""
        return self.noise * self.clip / self.totals

    def start(self) -> Array:
        """Return zeros.

        Returns
        -------
        ndarray (M, P)
            One row a client.
        """
        return np.zeros((self.M, self.P))

    def fresh(self) -> PrivateGLM:
        """Return a copy with nothing released.

        Returns
        -------
        PrivateGLM
            For one fit.
        """
        other = copy(self)
        other._releases = 0
        return other

    def gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return noisy gradients, and count them.

        Parameters
        ----------
        theta : ndarray (M, R, P)
            R parameter vectors for each client.
        threads : int
            Of the kernel.

        Returns
        -------
        ndarray (M, R, P)
            Means of clipped rows, with noise.
        """
        self._releases += theta.shape[1]
        values = self._clipped(theta, threads)
        if self.noise == 0.0:
            return values
        rng = np.random.default_rng([self.seed, self._releases])
        return values + self.noise_sd[:, None, None] * rng.standard_normal(values.shape)

    def exact_gradients(self, theta: Array) -> Array:
        """Return the clients' gradients without noise, for standard errors, which are not protected.

        Parameters
        ----------
        theta : ndarray (P,)
            One vector for all clients.

        Returns
        -------
        ndarray (M, P)
            Means of clipped rows.
        """
        return self._clipped(np.tile(theta, (self.M, 1, 1)), 1)[:, 0]

    def curvature(self, theta: Array) -> Array:
        """Return the derivatives of the gradients without noise: rows that are shortened have none.

        Parameters
        ----------
        theta : ndarray (P,)
            Where.

        Returns
        -------
        ndarray (M, P, P)
            One matrix a client.
        """
        data, family, values = self._glm.data, self._glm.family, np.empty((self.M, self.P, self.P))
        for m in range(self.M):
            rows = slice(data.offsets[m], data.offsets[m + 1])
            X, y, eta = data.X[rows], data.y[rows], linear_predictor(data, family, theta, rows)
            free = np.abs(family.residual(eta, y)) <= self._row_bounds[rows]
            values[m] = (X.T * (family.curvature(eta, y) * free)) @ X / self.totals[m]
        return values

    def spent(self) -> dict[str, Any]:
        """Return what the releases so far cost.

        Returns
        -------
        dict
            epsilon, delta, releases, noise and clip of rows.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=50, p=2)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> ad.losses.PrivateGLM(data, clip=3.0, noise=20.0).spent()["releases"]
        0
        """
        epsilon = spent_epsilon(self.noise, self._releases, self.delta)
        parts = {"delta": self.delta, "releases": self._releases, "noise": self.noise, "row_clip": self.clip}
        return {"epsilon": epsilon, **parts}

    @cached_property
    def _row_bounds(self) -> Array:
        """The greatest residual of each row: its gradient is the residual times x."""
        lengths = np.linalg.norm(self._glm.data.X, axis=1)
        return np.where(lengths > 0.0, self.clip / np.where(lengths > 0.0, lengths, 1.0), np.finfo(float).max)

    @cached_property
    def _loss(self) -> _kernels.Loss:
        data, family = self._glm.data, self._glm.family
        shape = data.X, data.y, data.offsets, data.totals, family.code, family.par, family.outputs
        return _kernels.RowLoss(*shape, data.linear_offset, row_bounds=self._row_bounds)

    def _clipped(self, theta: Array, threads: int) -> Array:
        state = np.ascontiguousarray(theta, dtype=np.float64)
        out = np.empty_like(state)
        _kernels.gradient(self._loss, state, out, threads)
        return out


def spent_epsilon(noise: float, releases: int, delta: float = 1e-5) -> float:
    """Return epsilon of so many releases with Gaussian noise, by Renyi differential privacy.

    Parameters
    ----------
    noise : float
        The noise's standard deviation over the largest effect of a row.
    releases : int
        How many.
    delta : float
        The probability with which the guarantee may fail.

    Returns
    -------
    float
        Infinite without noise.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> round(ad.losses.spent_epsilon(noise=20.0, releases=100), 3)
    2.166
    """
    noise = in_interval(noise, "noise", 0.0, np.inf)
    releases = whole_number(releases, "releases", 0)
    delta = in_interval(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)
    if releases == 0:
        return 0.0
    if noise == 0.0:
        return float("inf")
    try:
        from dp_accounting import dp_event, rdp
    except ImportError:
        raise ImportError(
            "counting privacy needs dp-accounting; install it with: pip install 'adfl-stats[privacy]'"
        ) from None
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise), releases))
    return float(accountant.get_epsilon(delta))


def noise_for(epsilon: float, releases: int, delta: float = 1e-5) -> float:
    """Return the least noise with which so many releases cost at most `epsilon`.

    Parameters
    ----------
    epsilon : float
        The wanted guarantee.
    releases : int
        Gradients that a client releases: the rounds, and one for each stage of ``ADFL(lam=...)``.
    delta : float
        The probability with which the guarantee may fail.

    Returns
    -------
    float
        In units of the largest effect of a row.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> round(ad.losses.noise_for(epsilon=1.0, releases=100), 1)
    40.5
    """
    epsilon = in_interval(epsilon, "epsilon", 0.0, np.inf, open_low=True)
    releases = whole_number(releases, "releases", 1)
    in_interval(delta, "delta", 0.0, 1.0, open_low=True, open_high=True)

    def excess(log_noise: float) -> float:
        spent = max(spent_epsilon(float(np.exp(log_noise)), releases, delta), np.finfo(float).tiny)
        return float(np.log(spent / epsilon))

    centre = 0.5 * np.log(releases)
    return float(np.exp(optimize.brentq(excess, centre - 7.0, centre + 12.0, xtol=1e-9)))
