"""Losses of any kind, given by a function for the gradient of a client: with NumPy, JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import float64_array, listing, one_of, whole_number
from adfl_stats._types import Array, Mask

__all__ = ["PRECISIONS", "Losses"]

PRECISIONS = ("float64", "float32")

Gradient = Callable[[int, Array, "np.random.Generator | None"], Array]


class Losses:
    """Losses L_m of the clients, by their gradients: the objective of a `DecentralizedModel`.

    Parameters
    ----------
    gradient : callable
        Of the client's number m, parameters theta (P,) and a generator of random numbers for its minibatch; returns the
        gradient (P,). The generator is None where the gradient of all rows is asked for, which judges a client.
        The k-th call of a fit for client m has the generator ``default_rng([seed, m, k])``.
    sizes : array (M,)
        The clients' numbers of rows.
    start : array (P,) or (M, P)
        Where rounds begin: parameters from scratch, or those to be tuned.
    labels : sequence, optional
        The clients; 0, 1, ... if not given.
    names : sequence of str, optional
        The parameters; p0, p1, ... if not given.
    loss : callable, optional
        Of m and theta: the loss of all rows, for traces, for ``ADFL(measure="loss")`` and for `UBAR`.
    curvature : callable, optional
        Of m and theta: the Hessian (P, P), for standard errors.
    metrics : mapping of callables, optional
        Of theta: numbers to follow during the rounds, such as the accuracy on test images.
    seed : int
        Of the minibatches.
    precision : {"float64", "float32"}
        Of the clients' estimates (M, P) during the rounds. In single precision robust rules still combine in double.

    Examples
    --------
    Medians by clients, with a smoothed absolute value:

    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> y = np.random.default_rng(1).standard_cauchy(size=(6, 200))
    >>> def gradient(m, theta, rng):
    ...     rows = y[m] if rng is None else rng.choice(y[m], 100)
    ...     off = theta - rows
    ...     return np.array([np.mean(off / np.sqrt(0.01 + off**2))])
    >>> losses = ad.Losses(gradient, np.full(6, 200), np.zeros(1))
    >>> res = ad.DecentralizedModel(losses, ad.networks.complete(6)).fit(step=0.05, rounds=400)
    >>> bool(abs(res.params["p0"] - np.median(y)) < 0.1)
    True
    """

    def __init__(
        self,
        gradient: Gradient,
        sizes: Any,
        start: Any,
        *,
        labels: Sequence[Any] | None = None,
        names: Sequence[str] | None = None,
        loss: Callable[[int, Array], float] | None = None,
        curvature: Callable[[int, Array], Array] | None = None,
        metrics: Mapping[str, Callable[[Array], float]] | None = None,
        seed: int = 0,
        precision: str = "float64",
    ) -> None:
        self.dtype = np.dtype(one_of(precision, "precision", PRECISIONS))
        self.totals = float64_array(sizes, "sizes")
        if self.totals.ndim != 1 or not (self.totals > 0.0).all():
            raise ValueError("sizes must be one positive number for each client: its rows")
        self.M = len(self.totals)
        self._start = float64_array(start, "start")
        if self._start.ndim not in (1, 2) or (self._start.ndim == 2 and len(self._start) != self.M):
            raise ValueError(f"start has shape {self._start.shape}; (P,) for all {self.M} clients or (M, P) is wanted")
        self.P = self._start.shape[-1]
        self.labels = pd.RangeIndex(self.M) if labels is None else pd.Index(labels)
        self.names = [f"p{k}" for k in range(self.P)] if names is None else list(names)
        for name, wanted in {"gradient": gradient, "loss": loss, "curvature": curvature, **(metrics or {})}.items():
            if wanted is not None and not callable(wanted):
                raise TypeError(f"{name} is {wanted!r}; a function is wanted")
        if "loss" in (metrics or {}):
            raise ValueError("metrics has the name 'loss', which is that of the clients' own losses; choose another")
        self.counted: Mask = np.ones(self.M, dtype=bool)
        self.seed = whole_number(seed, "seed", 0)
        self.loss, self.metrics = loss, dict(metrics or {})
        self._gradient, self._curvature, self._calls = gradient, curvature, 0

    def start(self) -> Array:
        """Return the initial estimates.

        Returns
        -------
        ndarray (M, P)
            One row a client.
        """
        return np.broadcast_to(self._start, (self.M, self.P)).copy()

    def fresh(self) -> Losses:
        """Return a copy whose minibatches begin anew, so that every fit has the same.

        Returns
        -------
        Losses
            With no call counted.
        """
        other = copy(self)
        other._calls = 0
        return other

    def gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return each client's gradient, of a new minibatch, at each of its parameter vectors.

        Parameters
        ----------
        theta : ndarray (M, R, P)
            R vectors for each client.
        threads : int
            Clients at a time; their number never changes a result.

        Returns
        -------
        ndarray (M, R, P)
            The gradients.
        """
        self._calls += 1
        return self._evaluated(theta, threads, lambda m: np.random.default_rng([self.seed, m, self._calls]))

    def whole_gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return each client's gradient of all its rows at its row of theta.

        Parameters
        ----------
        theta : ndarray (M, P)
            One row a client.
        threads : int
            Clients at a time.

        Returns
        -------
        ndarray (M, P)
            The gradients.
        """
        return self._evaluated(theta[:, None], threads, lambda m: None)[:, 0].astype(np.float64)

    @property
    def curvature(self) -> Callable[[Array], Array] | None:
        """The clients' Hessians (M, P, P) at theta (P,); None where they are not given."""
        if (one := self._curvature) is None:
            return None
        return lambda theta: np.stack([np.asarray(one(m, theta), dtype=np.float64) for m in range(self.M)])

    def watch(self, theta: Array) -> dict[str, Array]:
        """Return what is followed during the rounds, by client.

        Parameters
        ----------
        theta : ndarray (M, P)
            One row a client.

        Returns
        -------
        dict of ndarray (M,)
            The loss, if there is one, and each metric.
        """
        found = {} if self.loss is None else {"loss": np.array([self.loss(m, own) for m, own in enumerate(theta)])}
        found |= {name: np.array([one(own) for own in theta]) for name, one in self.metrics.items()}
        return {name: values.astype(np.float64) for name, values in found.items()}

    def _evaluated(self, theta: Array, threads: int, generator: Callable[[int], Any]) -> Array:
        def one(m: int) -> Array:
            found = [np.asarray(self._gradient(m, at, generator(m)), dtype=self.dtype) for at in theta[m]]
            if any(gradient.shape != (self.P,) for gradient in found):
                raise ValueError(
                    f"gradient returned shape {found[0].shape} for client {listing([self.labels[m]])}; ({self.P},) is "
                    "wanted, one number for each parameter"
                )
            return np.stack(found)

        if threads > 1:
            with ThreadPoolExecutor(threads) as team:
                return np.stack(list(team.map(one, range(self.M))))
        return np.stack([one(m) for m in range(self.M)])
