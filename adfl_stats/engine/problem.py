"""Data, network and family in the form the kernel iterates on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg

from adfl_stats import _kernels
from adfl_stats._algebra import inverse
from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.data.batches import MATRIX_ENTRIES, batches, row_blocks, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import column_sizes
from adfl_stats.losses.evaluation import curvature_matrices
from adfl_stats.losses.families import Family
from adfl_stats.losses.robust_scale import robust_regression
from adfl_stats.network.network import LEAST_INFLUENCE, Network

__all__ = ["ClientSteps", "Problem", "overflow_error"]


# Clients without trust may make up this much of the pooled curvature in a direction.
FOREIGN = 0.9
# A pool of unit diagonal with a smaller eigenvalue has no inverse to speak of.
SINGULAR = 1e-14
OVERFLOW_ADVICE = (
    "Their covariates, responses or offsets are far larger than the others'; bring them to the same units, or leave "
    "these clients out"
)


def overflow_error(labels: Sequence[Any]) -> ValueError:
    """Return the error of a method that trusts everybody."""
    return ValueError(
        f"the numbers of {len(labels)} client(s) overflow where the others agree: {listing(labels)}. {OVERFLOW_ADVICE}"
        "; ad.ADFL() sets them aside"
    )


@dataclass(frozen=True)
class ClientSteps:
    """Trust, steps and what becomes of them in the network.

    Attributes
    ----------
    weights : ndarray (M,)
        omega_m, the trust in each client.
    factors : ndarray (M,)
        What each client multiplies the step alpha by: omega_m (n_m / mean n), over M pi_m if balanced.
    totals : ndarray (M,)
        v_m, the factors times the influence M pi_m: as the step tends to zero the network solves
        sum_m v_m grad L_m(theta) = 0.
    """

    weights: Array
    factors: Array
    totals: Array


class Problem:
    """What a method works on: M clients, P parameters, their losses and who hears whom.

    Parameters
    ----------
    data, network, family
        Already checked against one another; the network's order of clients is that of the data.
    weighting : {"sample", "client", "random-effects"}
        Whether a client's step is proportional to its number of rows, so that the limit of DFL is the
        pooled estimate, or every client counts once, as printed in the paper (equal sizes: the same).
    threads : int
        Threads of the kernel; they never change a bit of the result.
    """

    def __init__(
        self, data: ClientData, network: Network, family: Family, weighting: str = "sample", threads: int = 1
    ) -> None:
        self.data, self.network, self.family, self.threads = data, network, family, threads
        self.M, self.p = data.n_clients, data.X.shape[1]
        self.P = self.p * family.outputs
        self.weighting = weighting
        self.sizes = np.ones(self.M) if weighting == "client" else data.totals / data.totals.mean()
        self._plain: _kernels.Loss | None = None
        self._coordinates: tuple[Array, Array] | None = None

    @property
    def quadratic(self) -> bool:
        """Whether the curvature is the same everywhere."""
        return self.family.name == "gaussian"

    @property
    def coefficient_names(self) -> list[str]:
        """Names of the P coefficients."""
        return self.family.coefficient_names(self.data.names, self.data.classes)

    @cached_property
    def mixing(self) -> _kernels.Mixing:
        """The weighted mean of what a client hears, the combine step of equation (3.1)."""
        W = self.network.W
        return _kernels.Mixing(
            np.ascontiguousarray(W.indptr, dtype=np.int64),
            np.ascontiguousarray(W.indices, dtype=np.int64),
            np.ascontiguousarray(W.data, dtype=np.float64),
        )

    @cached_property
    def influence(self) -> Array:
        """M pi_m: how much of a client's step ends up in the network's consensus, 1 on balanced W."""
        return self.M * self.network.influence.to_numpy()

    def steps(self, weights: Array, *, balance: bool = False, shares: Array | None = None) -> ClientSteps:
        """Return what a step of one means for each client with trust omega_m.

        Parameters
        ----------
        weights : ndarray (M,)
            omega_m; clients that are set aside have none.
        balance : bool
            Divide each client's step by its influence M pi_m, so that the network solves the plain
            sum of equations also where SE(W) is not zero. No step grows more than fifty times: a
            client that is hardly heard would otherwise force tiny steps on all.
        shares : ndarray (M,), optional
            How much of its size each client counts with, where that is no matter of trust.
        """
        weights = np.where(self.data.counted, weights, 0.0)
        factors = weights * self.sizes * (1.0 if shares is None else shares)
        if balance:
            factors = factors / np.maximum(self.influence, LEAST_INFLUENCE)
        return ClientSteps(weights, factors, factors * self.influence)

    def loss(self, metric: Array | None = None) -> _kernels.Loss:
        """Return the kernel's losses, with `metric` (p, p) applied to every gradient if given."""
        if metric is None and self._plain is not None:
            return self._plain
        data, family = self.data, self.family
        if (gram := self.gram(metric)) is not None:
            found: _kernels.Loss = _kernels.GramLoss(*gram, symmetric=metric is None)
        else:
            found = _kernels.RowLoss(
                data.X,
                data.y,
                data.offsets,
                data.totals,
                family.code,
                family.par,
                family.outputs,
                data.shift,
                data.row_weights,
                metric,
            )
        if metric is None:
            self._plain = found
        return found

    def gram(self, metric: Array | None = None) -> tuple[Array, Array] | None:
        """Return each client's curvature (M, p, padded p) and X'y / n where the loss is quadratic and they pay.

        A Gram matrix costs p^2 a round and a client, the rows n_m p: None where the rows are cheaper.
        """
        if not self.quadratic or self.p > self.data.n_rows / self.M:
            return None
        return _in_metric(*self._gram, metric)

    def curvature(self, theta: Array, *, expected: bool = False) -> Iterator[tuple[slice, Array]]:
        """Yield some clients and their mean curvature at theta (P,), observed or expected, (C, P, P)."""
        if (gram := self.gram()) is not None:
            most = max(1, MATRIX_ENTRIES // self.P**2)
            for low in range(0, self.M, most):
                clients = slice(low, min(low + most, self.M))
                yield clients, gram[0][clients, :, : self.P]
        else:
            yield from curvature_matrices(self.data, self.family, theta, expected=expected)

    def gradients(self, theta: Array) -> Array:
        """Return each client's gradient at its own row of theta (M, P)."""
        return self._gradients(theta[:, None])[:, 0]

    def common_gradients(self, thetas: Array) -> Array:
        """Return each client's gradient at every row of thetas (R, P), as (M, R, P)."""
        return self._gradients(np.broadcast_to(thetas, (self.M, *thetas.shape)))

    def _gradients(self, theta: Array) -> Array:
        state = np.ascontiguousarray(theta)
        out = np.empty_like(state)
        _kernels.gradient(self.loss(), state, out, self.threads)
        return out

    def start(self) -> Array:
        """Return where a method begins that is not told otherwise: zero, or for a log link with a
        constant column the client's own log mean, so that counts in the thousands need no long way.
        For Huber's loss it is the robust regression behind its scale: far from the minimum the slope
        is bounded, and steps from zero would be many.
        """  # noqa: D205
        if self.family.name == "huber":
            return np.tile(self._robust_estimate, (self.M, 1))
        theta = np.zeros((self.M, self.P))
        constant = self.constant_column
        if self.family.link == "log" and constant is not None:
            column, value = constant
            theta[:, column] = self._log_means() / value
        return theta

    def coordinates(self, theta: Array, weights: Array | None = None) -> tuple[Array, Array]:
        """Return a common preconditioner at theta (P,) and the clients' largest curvatures seen in it.

        The preconditioner (p, p) is the inverse of the pooled bound on the curvature. Families whose
        bound does not depend on theta have both computed once.

        Parameters
        ----------
        theta : ndarray (P,)
            Where a run begins.
        weights : ndarray (M,), optional
            omega_m. Clients without trust are left out of the pool where they make up most of it in some direction:
            coordinates of theirs would slow the others down.
        """
        if self._coordinates is None or not self.family.has_global_bound:
            self._coordinates = self._pooled_coordinates(theta, np.ones(self.M))
        if weights is None:
            return self._coordinates
        # In these coordinates the pool is the identity, and this bounds what the clients without trust add to it.
        trust = weights / weights.max()
        if float(self.sizes @ ((1.0 - trust) * self._coordinates[1])) <= FOREIGN * self.M:
            return self._coordinates
        try:
            return self._pooled_coordinates(theta, trust)
        except linalg.LinAlgError:
            # The trusted clients do not identify all coefficients. They are named where standard errors are computed.
            return self._coordinates

    def _pooled_coordinates(self, theta: Array, weights: Array) -> tuple[Array, Array]:
        """Return the coordinates in which the bound on the curvature, pooled with weights, is the identity."""
        pooled, finite = np.zeros((self.p, self.p)), np.ones(self.M, dtype=bool)
        with np.errstate(over="ignore", invalid="ignore"):
            for clients, matrices in curvature_matrices(self.data, self.family, theta, bound=True):
                pooled += np.tensordot(weights[clients] * self.sizes[clients] / self.M, matrices, 1)
                finite[clients] = np.isfinite(matrices).all(axis=(1, 2))
        if not finite.all():
            raise overflow_error(self.data.labels[~finite])
        size = np.sqrt(np.diag(pooled))
        # All clients together identify all coefficients, or there would be no model.
        if (weights < 1.0).any() and not (size.all() and linalg.eigvalsh(pooled / np.outer(size, size))[0] > SINGULAR):
            raise linalg.LinAlgError("the pooled curvature is singular")
        metric = inverse(pooled)
        return metric, self.curvatures(theta, linalg.cholesky(metric, lower=True))

    def curvatures(self, theta: Array, root: Array | None = None) -> Array:
        """Return each client's largest curvature along a run from theta, in coordinates `root` if given."""
        found = np.empty(self.M)
        for clients, matrices in curvature_matrices(self.data, self.family, theta, bound=True):
            seen = matrices if root is None else root.T @ matrices @ root
            found[clients] = np.linalg.eigvalsh(seen)[:, -1]
        return found

    @cached_property
    def coefficient_sizes(self) -> Array:
        """Root mean square of the column behind each coefficient (P,), its natural unit."""
        return column_sizes(self.data, self.family)

    @cached_property
    def _gram(self) -> tuple[Array, Array]:
        """Each client's X'X / n (rows padded to a multiple of 4) and X'(y - shift) / n."""
        data, p = self.data, self.p
        S, b = np.zeros((self.M, p, -(-p // 4) * 4)), np.zeros((self.M, p))
        for batch in batches(data, p):
            X, rows = data.X[batch.rows], batch.rows
            target = data.y[rows] if data.shift is None else data.y[rows] - data.shift[rows]
            weighted = X if data.row_weights is None else X * data.row_weights[rows, None]
            S[batch.clients, :, :p] += batch.cross(weighted, X)
            b[batch.clients] += batch.cross(weighted, target[:, None])[:, :, 0]
        S /= data.totals[:, None, None]
        b /= data.totals[:, None]
        return S, b

    @cached_property
    def _robust_estimate(self) -> Array:
        # Where even that overflows, the rounds will say so.
        return np.nan_to_num(robust_regression(self.data).theta)

    @cached_property
    def constant_column(self) -> tuple[int, float] | None:
        """The first column of X that has one value in all rows, and that value; None where there is none."""
        data = self.data
        first = data.X[data.offsets[np.argmax(data.counted)]]
        same = first != 0
        for rows in row_blocks(data):
            unlike = data.X[rows] != first
            if data.set_aside is not None:
                unlike &= data.counted[row_clients(data, rows), None]
            same &= ~unlike.any(axis=0)
            if not same.any():
                return None
        column = int(np.flatnonzero(same)[0])
        return column, float(first[column])

    def _log_means(self) -> Array:
        data = self.data
        events, exposure = np.zeros(self.M), np.zeros(self.M)
        for batch in batches(data, 1):
            weight = data.weights_of(batch.rows)
            events[batch.clients] += batch.sums(weight * data.y[batch.rows])
            rate = weight if data.shift is None else weight * np.exp(data.shift[batch.rows])
            exposure[batch.clients] += batch.sums(rate)
        # Half an event keeps the logarithm of an eventless client finite.
        return np.log(np.maximum(events, 0.5) / exposure)


def _in_metric(S: Array, b: Array, metric: Array | None) -> tuple[Array, Array]:
    if metric is None:
        return S, b
    return np.ascontiguousarray(np.einsum("ij,mjk->mik", metric, S, optimize=True)), b @ metric.T
