"""Losses of any kind, given by a function for the gradient of a client: with NumPy, JAX or PyTorch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from adfl_stats._arguments import float64_array, listing, one_of, takes, whole_number
from adfl_stats._types import Array, Mask
from adfl_stats.losses.entry_names import EntryNames, kept_names

__all__ = ["PRECISIONS", "Losses", "Metrics", "together"]

T = TypeVar("T")

PRECISIONS = ("float64", "float32")
# Up to so many parameters Hessians are put together from products. Ours: two products a parameter take seconds.
MOST_DENSE = 200
# Seconds of the clients' work, one after the other, from which threads are started for it. Ours: starting two and
# handing them their work takes one to two milliseconds.
WORTH_THREADS = 0.004
LOSS_IS_TAKEN = "metrics has the name 'loss', which is that of the clients' own losses; choose another"

Gradient = Callable[[int, Array, "np.random.Generator | None"], Array]
Metrics = Mapping[str, Callable[[Any], Any]] | Callable[[Any], Mapping[str, Any]]


# What the functions of `Losses` are called with.
ARGUMENTS = {
    "gradient": ("the client's number m", "its parameters theta", "a generator of random numbers or None"),
    "batched": ("the parameters of all clients", "a list of generators of random numbers or None"),
    "loss": ("the client's number m", "its parameters theta"),
    "curvature": ("the client's number m", "its parameters theta"),
    "product": ("the client's number m", "its parameters theta", "a vector"),
}


class Losses:
    """Losses L_m of the clients, by their gradients: the objective of a `DecentralizedModel`.

    Parameters
    ----------
    gradient : callable
        Of the client's number m, parameters theta (P,) and a generator of random numbers for its minibatch; returns the
        gradient (P,). The generator is None where the gradient of all rows is asked for, which judges a client.
        The k-th call of a fit for client m has the generator ``default_rng([seed, m, k])``. With ``batched=True`` it is
        a function of all clients' parameters (M, P) and a list of M generators, or None; it returns (M, P).
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
    product : callable, optional
        Of m, theta and a vector (P,): the Hessian's product with it. Up to 200 parameters it gives all standard errors,
        beyond that those of ``DecentralizedModel.contrasts``.
    metrics : mapping of callables, or callable, optional
        Of theta: numbers to follow during the rounds, such as the accuracy on test images. One function that returns a
        mapping follows several, for example accuracy and loss by one pass over the test images.
    batch : int, optional
        Rows of a minibatch, drawn without replacement, where `gradient` draws some: ``ADFL(measure="score")`` derives
        the sampling error of a client's gradient from minibatches.
    unravel : callable, optional
        Of theta (P,): the parameters in the form that the user knows, such as a pytree; kept as ``losses.unravel``, for
        ``losses.unravel(res.record.params)``.
    batched : bool
        Whether `gradient` takes all clients at once.
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
        sizes: ArrayLike,
        start: ArrayLike,
        *,
        labels: Sequence[Hashable] | None = None,
        names: Sequence[str] | None = None,
        loss: Callable[[int, Array], float] | None = None,
        curvature: Callable[[int, Array], Array] | None = None,
        product: Callable[[int, Array, Array], Array] | None = None,
        metrics: Metrics | None = None,
        batch: int | None = None,
        unravel: Callable[[Array], Any] | None = None,
        batched: bool = False,
        seed: int = 0,
        precision: str = "float64",
    ) -> None:
        self.dtype = np.dtype(one_of(precision, "precision", PRECISIONS))
        self.totals = float64_array(sizes, "sizes")
        if self.totals.ndim != 1 or not len(self.totals) or not (self.totals > 0.0).all():
            raise ValueError("sizes must be one positive number for each client, its rows, of at least one client")
        self.M = len(self.totals)
        self._start = float64_array(start, "start")
        if self._start.ndim not in (1, 2) or (self._start.ndim == 2 and len(self._start) != self.M):
            raise ValueError(f"start has shape {self._start.shape}; (P,) for all {self.M} clients or (M, P) is wanted")
        self.P = self._start.shape[-1]
        self.labels = pd.RangeIndex(self.M) if labels is None else pd.Index(labels)
        self.names = EntryNames([("p", (self.P,), "")]) if names is None else kept_names(names)
        several = metrics if isinstance(metrics, Mapping) else {"metrics": metrics}
        functions = {"gradient": gradient, "loss": loss, "curvature": curvature, "product": product, "unravel": unravel}
        functions |= several
        for name, wanted in functions.items():
            if wanted is not None and not callable(wanted):
                raise TypeError(f"{name} is {wanted!r}; a function is wanted")
        given = dict(ARGUMENTS, gradient=ARGUMENTS["batched" if batched is True else "gradient"])
        for name, words in given.items():
            function = functions.get(name)
            if function is not None and not takes(function, *words):
                raise TypeError(
                    f"{name} takes {inspect.signature(function)}; a function of {', '.join(words)} is wanted, in "
                    "this order"
                )
        if "loss" in several:
            raise ValueError(LOSS_IS_TAKEN)
        self.counted: Mask = np.ones(self.M, dtype=bool)
        self.seed = whole_number(seed, "seed", 0)
        self.loss, self.unravel = loss, unravel
        self._followed = together(metrics)
        self.batch = None if batch is None else whole_number(batch, "batch", 1)
        if not isinstance(batched, bool):
            raise TypeError(f"batched is {batched!r}; True or False is wanted")
        self._gradient, self._batched, self._curvature, self._product = gradient, batched, curvature, product
        self._calls = 0

    def start(self) -> Array:
        """Return the initial estimates.

        Returns
        -------
        ndarray (M, P)
            One row a client.
        """
        return np.broadcast_to(self._start, (self.M, self.P)).astype(self.dtype)

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

    def of_minibatches(self, theta: Array, count: int, summary: Callable[[Array], T], threads: int = 1) -> list[T]:
        """Return the `summary` of each client's gradients of some minibatches, which no round uses.

        Parameters
        ----------
        theta : ndarray (M, P)
            One row a client.
        count : int
            How many minibatches.
        summary : callable
            Of the gradients (count, P) of a client; those of all clients at once may be too many to keep.
        threads : int
            Clients at a time.

        Returns
        -------
        list
            The summaries.
        """

        def generator(m: int, k: int) -> np.random.Generator:
            return np.random.default_rng([self.seed, m, 0, k])

        if self._batched:
            every = [self._together(theta, [generator(m, k) for m in range(self.M)]) for k in range(count)]
            return [summary(gradients) for gradients in np.stack(every, axis=1)]

        def one(m: int) -> T:
            return summary(np.stack([self._alone(m, theta[m], generator(m, k)) for k in range(count)]))

        return _by_client(one, self.M, threads)

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
        return self._evaluated(theta[:, None], threads, lambda m: None)[:, 0]

    @property
    def curvature(self) -> Callable[[Array], Array] | None:
        """The clients' Hessians (M, P, P) at theta (P,); None where they are not given, or P is large."""
        if (one := self._curvature) is not None:
            return lambda theta: np.stack([np.asarray(one(m, theta), dtype=np.float64) for m in range(self.M)])
        if self.hessian_products is None or self.P > MOST_DENSE:
            return None
        products = self.hessian_products
        return lambda theta: np.stack([products(theta, unit) for unit in np.eye(self.P)], axis=2)

    @property
    def hessian_products(self) -> Callable[[Array, Array], Array] | None:
        """Products (M, P) of the clients' Hessians at theta (P,) with a vector (P,); None where they are not given."""
        if (one := self._product) is None:
            return None
        return lambda theta, vector: np.stack(
            [self._of_shape(one(m, theta, vector), "product", m).astype(np.float64) for m in range(self.M)]
        )

    def watch(self, theta: Array, threads: int = 1) -> dict[str, Array]:
        """Return what is followed during the rounds, by client.

        Parameters
        ----------
        theta : ndarray (M, P)
            One row a client.
        threads : int
            Clients at a time.

        Returns
        -------
        dict of ndarray (M,)
            The loss, if there is one, and each metric.
        """

        def one(m: int) -> dict[str, float]:
            followed = self._followed(theta[m])
            if not isinstance(followed, Mapping):
                raise TypeError(f"metrics returned {followed!r}; a mapping of names to numbers is wanted")
            if "loss" in followed:
                raise ValueError(LOSS_IS_TAKEN)
            own = {} if self.loss is None else {"loss": float(self.loss(m, theta[m]))}
            return own | {name: float(value) for name, value in followed.items()}

        lines = _by_client(one, self.M, threads)
        return {name: np.array([line[name] for line in lines]) for name in lines[0]}

    def _evaluated(self, theta: Array, threads: int, generator: Callable[[int], Any]) -> Array:
        """Return the gradients (M, R, P), with the minibatches of the clients' generators, or of all rows."""
        gradients = np.empty(theta.shape, dtype=self.dtype)
        if self._batched:
            for r in range(theta.shape[1]):
                gradients[:, r] = self._together(theta[:, r], [generator(m) for m in range(self.M)])
            return gradients

        def one(m: int) -> None:
            for r, at in enumerate(theta[m]):
                gradients[m, r] = self._alone(m, at, generator(m))

        _by_client(one, self.M, threads)
        return gradients

    def _alone(self, m: int, theta: Array, rng: np.random.Generator | None) -> Array:
        return self._of_shape(self._gradient(m, theta, rng), "gradient", m)

    def _together(self, theta: Array, rngs: list[Any]) -> Array:
        """Return the gradients (M, P) of a function for all clients at once."""
        every: Any = self._gradient
        gradients = np.asarray(every(theta, None if rngs[0] is None else rngs), dtype=self.dtype)
        if gradients.shape != (self.M, self.P):
            raise ValueError(
                f"gradient returned shape {gradients.shape} for all clients; {self.M, self.P} is wanted with "
                "batched=True"
            )
        return gradients

    def _of_shape(self, returned: Any, name: str, m: int) -> Array:
        """Return what a function found for client m, after a look at its shape."""
        values = np.asarray(returned, dtype=self.dtype)
        if values.shape != (self.P,):
            raise ValueError(
                f"{name} returned shape {values.shape} for client {listing([self.labels[m]])}; ({self.P},) is wanted, "
                "one number for each parameter"
            )
        return values


def together(metrics: Metrics | None) -> Callable[[Any], Mapping[str, Any]]:
    """Return one function that returns every metric by name."""
    if metrics is None:
        return lambda at: {}
    if callable(metrics):
        return metrics
    return lambda at: {name: one(at) for name, one in metrics.items()}


def _by_client(one: Callable[[int], T], M: int, threads: int) -> list[T]:
    """Return what a function finds for each client, some at a time; their number never changes a result."""
    began = time.perf_counter()
    first = one(0)
    if threads == 1 or (M - 1) * (time.perf_counter() - began) < WORTH_THREADS:
        return [first, *map(one, range(1, M))]
    with ThreadPoolExecutor(threads) as team:
        return [first, *team.map(one, range(1, M))]
