"""The losses of a generalised linear model, client by client: data and family in the kernel's form."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd

from adfl_stats import _kernels
from adfl_stats._algebra import stacked_cholesky, summed_products, unit_diagonal
from adfl_stats._properties import once
from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import MATRIX_ENTRIES, Batch, batches, of_clients
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.losses.client_sums import column_squares, curvature_sums, predictors_at
from adfl_stats.losses.families import Family
from adfl_stats.losses.initial_values import constant_columns, constant_predictor, log_means
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.point_sums import (
    Gather,
    Total,
    all_here,
    curvature_and_meat,
    curvature_matrices,
    mean_squares,
    ours_only,
)
from adfl_stats.losses.robust_scale import robust_regression

__all__ = ["GLM"]

T = TypeVar("T")
# Distance of a unit column from the span of others below which gradients are taken from the rows. Ours: at 2e-5 (a mean
# of 5e4 standard deviations) gradients by X'X leave a fitted mean some hundredths of its standard error off.
LEAST_DISTANCE = 3e-5


class GLM:
    """The objective of a generalised linear model: a client's loss is the mean over its rows, plus the penalty.

    Gradients and curvatures here are those of the penalised loss; scores of clients (`losses.point_sums`, `trust`) are
    those of the rows alone.

    Parameters
    ----------
    data, family
        Already checked against one another.
    penalty : Ridge, optional
        With one number for each coefficient (see `Ridge.on`).
    total, gather : callable
        Those of a transport, where some clients are elsewhere: sums over all clients, and rows of all. Starts and the
        constant column are of all clients; what has a row a client is of ours.

    Attributes
    ----------
    M, p, P : int
        Clients, columns, and coefficients (columns times the family's outputs).
    """

    has_curvature: ClassVar[bool] = True

    def __init__(
        self,
        data: ClientData,
        family: Family,
        penalty: Ridge | None = None,
        *,
        total: Total = all_here,
        gather: Gather = ours_only,
    ) -> None:
        self.data, self.family, self.penalty = data, family, penalty
        self._total, self._gather = total, gather
        self.M, self.p = data.n_clients, data.X.shape[1]
        self.P = self.p * family.outputs
        # Values of our rows, whatever the penalty, and those that it is part of.
        self._of_rows: dict[Hashable, Any] = {}
        self._of_losses: dict[Hashable, Any] = {}

    def _keep_of_rows(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return a value of our rows, computed once for these losses, with or without their penalty."""
        return _kept(self._of_rows, name, compute)

    def _keep(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return a value of our rows, computed once for these losses and for the same ones with another transport."""
        return _kept(self._of_losses, name, compute)

    def placed(self, total: Total, gather: Gather, parts: Sequence[slice]) -> GLM:
        """Return these losses with sums over all clients by a transport, whose batches of ours are `parts`.

        Passes over the rows begin a new batch where the transport does, so that it does not matter which other
        clients are ours.
        """
        starts = np.array([at.start or 0 for at in parts[1:]], dtype=np.int64)
        cuts = self.data.cuts if self.data.cuts is not None else starts[:0]
        same = np.array_equal(cuts, starts)
        data = self.data if same else assembled(self.data, cuts=starts)
        placed = GLM(data, self.family, self.penalty, total=total, gather=gather)
        if same:
            placed._of_rows, placed._of_losses = self._of_rows, self._of_losses
        return placed

    def of(self, clients: slice) -> GLM:
        """Return the losses of some consecutive clients: sums over them are the same to the bit in any place."""
        (low, high, _), by_gram = clients.indices(self.M), self._by_gram
        if (low, high) == (0, self.M):
            return self
        part = self._keep(
            ("losses", low, high), lambda: GLM(of_clients(self.data, slice(low, high)), self.family, self.penalty)
        )
        # How curvature is computed is decided for all clients: alone, some of them may lack a level of a factor.
        part._by_gram = by_gram
        return part

    def share(self, clients: slice) -> GLM:
        """Return the losses of some consecutive clients of all, for a place that works on these alone."""
        return self._knowing(GLM(of_clients(self.data, clients), self.family, self.penalty))

    def beginning_at(self, robust_estimate: Array) -> GLM:
        """Return these losses with a start of Huber's loss that was found from the rows of all places."""
        self._of_rows["robust estimate"] = np.nan_to_num(robust_estimate)
        return self

    def _knowing(self, other: GLM) -> GLM:
        """Return other losses of the same family, with what is known here of the rows of all clients."""
        if self.family.robust:
            other._of_rows["robust estimate"] = self._robust_estimate
        return other

    @property
    def labels(self) -> pd.Index:
        """The clients."""
        return self.data.labels

    @property
    def totals(self) -> Array:
        """Each client's sum of row weights."""
        return self.data.totals

    @property
    def counted(self) -> Mask:
        """The clients that are not set aside."""
        return self.data.counted

    @property
    def ridge(self) -> Array | None:
        """The penalty's curvature (P,); None without one."""
        return None if self.penalty is None else self.penalty.curvature(np.zeros(self.P))

    @property
    def unpenalised(self) -> GLM:
        """The same losses without the penalty."""
        if self.penalty is None:
            return self
        free = GLM(self.data, self.family, total=self._total, gather=self._gather)
        free._of_rows = self._of_rows
        return free

    @property
    def quadratic(self) -> bool:
        """Whether the curvature is the same everywhere."""
        return self.family.quadratic

    @property
    def names(self) -> list[str]:
        """Names of the P coefficients."""
        return self.family.coefficient_names(self.data.names, self.data.classes)

    def loss(self, metric: Array | None = None) -> _kernels.Loss:
        """Return the kernel's losses, with `metric` (p, p) applied to every gradient if given."""
        return self._keep("loss", self._kernel_loss) if metric is None else self._kernel_loss(metric)

    def _kernel_loss(self, metric: Array | None = None) -> _kernels.Loss:
        data, family = self.data, self.family
        if (gram := self.gram(metric)) is not None:
            return _kernels.GramLoss(*gram, symmetric=metric is None)
        return _kernels.RowLoss(
            data.X,
            data.y,
            data.offsets,
            data.totals,
            family.code,
            family.par,
            family.outputs,
            data.linear_offset,
            data.row_weights,
            metric,
            self.ridge,
        )

    def gram(self, metric: Array | None = None) -> tuple[Array, Array] | None:
        """Return each client's curvature (M, p, padded p) and X'y / n where the loss is quadratic and they pay.

        A Gram matrix costs p^2 a round and a client, the rows n_m p: None where the rows are cheaper, and where it has
        lost digits that the rows have.
        """
        return _in_metric(*self._keep("gram", self._gram), metric) if self._by_gram else None

    def curvature(self, theta: Array, *, expected: bool = False) -> Iterator[tuple[slice, Array]]:
        """Yield some clients and their curvature, observed or expected, (C, P, P).

        It is taken at a common theta (P,), or at each client's own of theta (M, P).
        """
        if (gram := self.gram()) is not None:
            most = max(1, MATRIX_ENTRIES // self.P**2)
            for low in range(0, self.M, most):
                clients = slice(low, min(low + most, self.M))
                yield clients, gram[0][clients, :, : self.P]
        else:
            for clients, matrices in curvature_matrices(self.data, self.family, theta, expected=expected):
                yield clients, _on_diagonal(matrices, self.ridge)

    def weighted_curvatures(self, theta: Array, shares: Array) -> Array:
        """Return sum_m shares_mr H_m(theta) at theta (P,) for R sets of shares (M, R), as (R, P, P).

        H_m is the curvature by which equations are solved, see `newton_curvature`. A client whose curvature overflows
        adds nothing: it has no share, or its gradient tells.
        """
        if shares.shape[1] == 1 and self.gram() is None:
            return self._pooled_curvature(theta, shares[:, 0])[None]
        out = np.zeros((shares.shape[1], self.P, self.P))
        for clients, matrices in self.newton_curvature(theta):
            some = shares[clients].any(axis=1)
            own = matrices if some.all() else matrices[some]
            finite = np.where(np.isfinite(own), own, 0.0)
            out += summed_products(shares[clients][some], finite)
        return out

    def _pooled_curvature(self, theta: Array, shares: Array) -> Array:
        """Return sum_m shares_m H_m(theta) in one pass over the rows of the clients that have a share."""
        data, out = self.data, np.zeros((self.P, self.P))
        for batch in batches(data, 1):
            share = batch.spread(shares[batch.clients] / data.totals[batch.clients])
            if not share.any():
                continue
            # A slice of all rows is no copy.
            rows = batch.rows if share.all() else batch.rows.start + np.flatnonzero(share)
            eta, weight = predictors_at(data, self.family, theta[None], rows)[0], share[share != 0.0]
            pool = Batch(slice(0, 1), slice(0, len(weight)), np.array([len(weight)]))
            curvature = self.family.newton_curvature(eta, data.y[rows])
            summed = curvature_sums(pool, data.X[rows], curvature, weight * data.weights_of(rows))[0]
            out += np.where(np.isfinite(summed), summed, 0.0)
        return out if self.ridge is None else out + shares.sum() * np.diag(self.ridge)

    def newton_curvature(self, theta: Array) -> Iterator[tuple[slice, Array]]:
        """Yield some clients and the curvature by which equations are solved: Fisher's where losses are not convex.

        At theta (P,), or at each client's own of theta (M, P).
        """
        return self.curvature(theta, expected=not self.family.convex)

    def bounded_curvature(self, theta: Array) -> Iterator[tuple[slice, Array]]:
        """Yield some clients and a bound on their curvature along a run from theta (P,), (C, p, p)."""
        most = None if self.ridge is None else self.ridge.reshape(-1, self.p).max(axis=0)
        for clients, matrices in curvature_matrices(self.data, self.family, theta, bound=True):
            yield clients, _on_diagonal(matrices, most)

    def curvature_and_meat(self, theta: Array, weights: Array) -> tuple[Array, Array]:
        """Return the clients' curvature at theta with total weights v_m, over M, and the variance of their gradient."""
        slope = None if self.penalty is None else self.penalty.gradient(theta)
        hessian, meat = curvature_and_meat(self.data, self.family, theta, weights, slope)
        return hessian if self.ridge is None else hessian + weights.mean() * np.diag(self.ridge), meat

    def gradients(self, theta: Array, threads: int = 1) -> Array:
        """Return each client's gradient at each of its R parameter vectors: (M, R, P) for theta (M, R, P)."""
        state = np.ascontiguousarray(theta)
        out = np.empty_like(state)
        _kernels.gradient(self.loss(), state, out, threads)
        return out

    @property
    def starts_at_mean(self) -> bool:
        """Whether `start` depends on the responses' means."""
        return self.family.link == "log" or self.family.positive_predictor

    def start(self) -> Array:
        """Return the default initial estimates (M, P).

        Zero; for a log link with a constant column the client's own log mean, so that large counts need few
        steps; for a link that needs a positive linear predictor the typical client's mean, in all rows if
        the columns allow. For Huber's loss it is the robust regression behind its scale: far from the minimum the
        slope is bounded, and steps from zero would be many.
        """
        if self.family.robust:
            return np.tile(self._robust_estimate, (self.M, 1))
        if self.family.positive_predictor:
            return np.tile(self._constant_predictor, (self.M, 1))
        theta = np.zeros((self.M, self.P))
        constant = self.constant_column
        if self.family.link == "log" and constant is not None:
            column, value = constant
            theta[:, column] = log_means(self.data, self.family, self._gather) / value
        return theta

    def largest_curvatures(self, theta: Array, root: Array | None = None) -> Array:
        """Return each client's largest curvature along a run from theta, in coordinates `root` if given."""
        largest = np.empty(self.M)
        for clients, matrices in self.bounded_curvature(theta):
            seen = matrices if root is None else root.T @ matrices @ root
            largest[clients] = np.linalg.eigvalsh(seen)[:, -1]
        return largest

    @once
    def _by_gram(self) -> bool:
        """Whether curvature is that of Gram matrices."""
        return self.quadratic and self.p <= self.mean_rows and not self._digits_are_lost

    @property
    def _digits_are_lost(self) -> bool:
        """Whether columns are so near to dependence that gradients by X'X would be off by much of a standard error."""
        counted, totals = self.counted, self.totals
        S = self._keep("gram", self._gram)[0][:, :, : self.p]
        with np.errstate(over="ignore", invalid="ignore"):
            pooled = self._total(lambda at: summed_products(totals[at][counted[at]], S[at][counted[at]]))
        if not np.isfinite(pooled).all():
            return False
        _, clear = stacked_cholesky(unit_diagonal(pooled[None])[0], LEAST_DISTANCE)
        return not clear[0]

    @once
    def mean_rows(self) -> float:
        """The mean of all clients' numbers of rows."""
        sizes = self.data.sizes
        rows, clients = self._total(lambda at: np.array([sizes[at].sum(), len(sizes[at])], dtype=np.float64))
        return float(rows / clients)

    @once
    def coefficient_sizes(self) -> Array:
        """Root mean square of the column behind each coefficient (P,), its natural unit."""

        def part(at: slice) -> Array:
            return self._keep_of_rows(("squares", at.start, at.stop), lambda: column_squares(self.data, at))

        squares = self._total(part)
        return np.tile(np.sqrt(squares[1:] / squares[0]), self.family.outputs)

    @property
    def mean_squares(self) -> Array:
        """Each client's mean square of the (weighted) responses (M,)."""
        return self._keep_of_rows("mean squares", lambda: mean_squares(self.data))

    def _gram(self) -> tuple[Array, Array]:
        """Return each client's X'X / n + diag(c) (rows padded to a multiple of 4) and X'(y - offset) / n."""
        data, p = self.data, self.p
        S, b = np.zeros((self.M, p, -(-p // 4) * 4)), np.zeros((self.M, p))
        for batch in batches(data, p):
            X, rows = data.X[batch.rows], batch.rows
            target = data.y[rows] if data.linear_offset is None else data.y[rows] - data.linear_offset[rows]
            weighted = X if data.row_weights is None else X * data.row_weights[rows, None]
            S[batch.clients, :, :p] += batch.cross(weighted, X)
            b[batch.clients] += batch.cross(weighted, target[:, None])[:, :, 0]
        S /= data.totals[:, None, None]
        b /= data.totals[:, None]
        return _on_diagonal(S, self.ridge), b

    @once
    def _constant_predictor(self) -> Array:
        return constant_predictor(self.data, self.family, self.constant_column, self._total, self._gather)

    @property
    def _robust_estimate(self) -> Array:
        # Where even that overflows, the rounds raise an error.
        return self._keep_of_rows("robust estimate", lambda: np.nan_to_num(robust_regression(self.data).theta))

    @once
    def constant_column(self) -> tuple[int, float] | None:
        """The first column of X that has one value in all rows, and that value; None where there is none."""
        columns = self._keep_of_rows("constant columns", lambda: constant_columns(self.data, self.counted))
        return self._constant_of(*columns)

    def constant_column_of(self, clients: Mask) -> tuple[int, float] | None:
        """Return the same for the rows of some clients (M,) alone, and of those chosen elsewhere."""
        return self._constant_of(*constant_columns(self.data, self.counted & clients))

    def _constant_of(self, first: Array, same: Mask) -> tuple[int, float] | None:
        """Return the first constant column of all places, from what `constant_columns` has of ours."""
        # Of columns that are not constant no number is sent.
        firsts = self._gather(np.where(same, first, np.nan))
        constant = (firsts == firsts[0]).all(axis=0)
        if not constant.any():
            return None
        column = int(np.flatnonzero(constant)[0])
        return column, float(firsts[0, column])

    @property
    def constant_coefficients(self) -> list[int]:
        """The places of the constant column's coefficients, one for each output; none without such a column."""
        constant = self.constant_column
        return [] if constant is None else [constant[0] + self.p * j for j in range(self.family.outputs)]


def _kept(values: dict[Hashable, Any], name: Hashable, compute: Callable[[], T]) -> T:
    """Return a value by its name, computed where it is not there yet."""
    if name not in values:
        values[name] = compute()
    value: T = values[name]
    return value


def _on_diagonal(matrices: Array, values: Array | None) -> Array:
    """Add values (P,) to the diagonals of (C, P, ...), in place."""
    if values is not None:
        place = np.arange(len(values))
        matrices[:, place, place] += values
    return matrices


def _in_metric(S: Array, b: Array, metric: Array | None) -> tuple[Array, Array]:
    if metric is None:
        return S, b
    # One product a client, whose bits do not depend on how many there are.
    return np.matmul(metric, S), np.matmul(metric, b[:, :, None])[:, :, 0]
