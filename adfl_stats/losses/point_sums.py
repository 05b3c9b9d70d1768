"""One pass over the data at a common point: gradients, curvature, sandwich pieces, fit.

All sums that inference needs, in batches of clients and blocks of rows, so that results do not need the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adfl_stats._algebra import joined, summed_products
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch, batches, places, row_blocks, row_clients, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import (
    ClientSums,
    client_sums_of,
    curvature_sums,
    linear_predictor,
    meat,
    own_predictor,
    predictors_at,
    rao_roots,
    rao_statistics,
    scaled,
)
from adfl_stats.losses.families import Family
from adfl_stats.losses.goodness import GoodnessSums, goodness
from adfl_stats.losses.penalties import Penalty

__all__ = [
    "Gather",
    "PointSums",
    "Total",
    "WeightedSums",
    "all_here",
    "client_gradients",
    "curvature_and_meat",
    "majority_misfits",
    "mean_squares",
    "ours_only",
    "plain_scores",
    "rounding_variance",
    "sums_at",
]


Gather: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
Total: TypeAlias = Callable[[Callable[[slice], Array]], Array]

# Residuals this small relative to the responses are rounding errors. Ours: about 4,500 units in the last place.
ROUNDING = 1e-12


def all_here(part: Callable[[slice], Array]) -> Array:
    """Return the sum over all clients where there are none elsewhere."""
    return part(slice(None))


@dataclass(frozen=True)
class WeightedSums:
    """The clients at a common point theta, combined with their total weights v_m.

    Attributes
    ----------
    gradients : ndarray (M, P)
        Each client's mean gradient.
    hessian, information : ndarray (P, P)
        M^-1 sum_m v_m times the clients' observed and expected curvature.
    meat, model_meat : ndarray (P, P)
        Variance of the weighted mean gradient: from the rows' scores, and from the information (for
        dispersion one).
    scale : float
        Dispersion: Pearson's, with N - P in the divisor, over the weighted clients.
    """

    gradients: Array
    hessian: Array
    information: Array
    meat: Array
    model_meat: Array
    scale: float


@dataclass(frozen=True)
class PointSums:
    """The result of one pass over the data at a common point.

    Attributes
    ----------
    clients : ClientSums
        Of all M clients.
    halves : ndarray (M, P)
        The score of every other row of each client, the first one among them.
    weighted_sums : WeightedSums
        The clients, combined.
    llf, deviance : float
        Over the rows of the trusted clients.
    """

    clients: ClientSums
    halves: Array
    weighted_sums: WeightedSums
    llf: float
    deviance: float

    def penalised(self, penalty: Penalty | None, theta: Array, weight: float) -> PointSums:
        """Return the gradients and curvatures of the penalised losses at theta (P,), with the mean of the weights v_m.

        The clients' information, and variances by the model, are those of the rows.
        """
        if penalty is None:
            return self
        clients, combined = self.clients.penalised(penalty, theta), self.weighted_sums
        added = weight * np.diag(penalty.curvature(theta))
        weighted_sums = replace(
            combined,
            gradients=clients.gradient,
            hessian=combined.hessian + added,
            information=combined.information + added,
        )
        return replace(self, clients=clients, weighted_sums=weighted_sums)


def sums_at(
    data: ClientData,
    family: Family,
    theta: Array,
    weights: Array,
    trusted: Mask | None = None,
    visit: Callable[[list[Batch], ClientSums], None] | None = None,
    total: Total = all_here,
    parts: Sequence[slice] = (slice(None),),
    slope: Array | None = None,
) -> PointSums:
    """Evaluate all clients at theta (P,) in one pass.

    Parameters
    ----------
    data, family, theta
        The clients and the point.
    weights : ndarray (M,)
        Total weights v_m.
    trusted : ndarray (M,) of bool, optional
        The clients whose likelihood counts; all if not given.
    visit : callable, optional
        Is given the rows of some whole clients and their sums, for what else the same pass can find.
    total : callable
        Adds the sums over clients elsewhere: of a function that returns the sum over one of `parts`, the sum over all
        clients.
    parts : sequence of slice
        The parts of the clients that `total` asks for; `data` has cuts where they begin.
    slope : ndarray (P,), optional
        The gradient of a penalty at theta. Every row carries it, so that the scores in the meat have mean zero at the
        penalised estimate.
    """
    share = weights / float(total(lambda at: np.asarray(float(len(weights[at])))))
    trusted = np.ones(len(weights), dtype=bool) if trusted is None else trusted
    rows = [_RowSums(data, family, share / data.totals, trusted, at, slope) for at in parts]
    by_piece, halves, place = [], np.zeros((len(weights), len(theta))), places(parts, len(weights))

    def look(piece: Batch, eta: Array, residual: Array) -> None:
        halves[piece.clients] += _half_scores(data, piece, residual)
        rows[place(piece.clients)].add(piece, eta, residual)

    for pieces in whole_clients(data, len(theta)):
        by_piece.append(client_sums_of(data, family, theta[None], pieces, look))
        if visit is not None:
            visit(pieces, by_piece[-1])
    clients, by_row = _joined(by_piece), dict(zip(map(str, parts), rows, strict=True))
    shares = np.stack([share, share**2 / data.totals], axis=1)
    information, model_meat = total(lambda at: summed_products(shares[at], clients.information[at]))
    observed = clients.information is not clients.hessian
    scale = _scale(family, clients.dispersion, data, weights, len(theta), total)
    return PointSums(
        clients,
        halves,
        WeightedSums(
            gradients=clients.gradient,
            hessian=total(lambda at: summed_products(share[at], clients.hessian[at])) if observed else information,
            information=information,
            meat=total(lambda at: by_row[str(at)].meat),
            model_meat=model_meat,
            scale=scale,
        ),
        *goodness(family, total(lambda at: by_row[str(at)].goodness.sums(scale))),
    )


class _RowSums:
    """Sums over rows of a part of the clients that need no second look: meat and likelihood."""

    def __init__(
        self, data: ClientData, family: Family, per_row: Array, trusted: Mask, part: slice, slope: Array | None
    ) -> None:
        P = data.X.shape[1] * family.outputs
        self.data, self.per_row, self.slope, self.meat = data, per_row, slope, np.zeros((P, P))
        self.goodness = GoodnessSums(data, family, trusted, part)

    def add(self, piece: Batch, eta: Array, residual: Array) -> None:
        """Take in a piece of the part's rows, with its weighted residuals."""
        rows, X = piece.rows, self.data.X[piece.rows]
        share = piece.spread(self.per_row[piece.clients])[:, None]
        added = None if self.slope is None else share * self.data.weights_of(rows)[:, None] * self.slope
        self.meat += meat(X, residual * share, added)
        self.goodness.add(piece, eta)


def _half_scores(data: ClientData, piece: Batch, residual: Array) -> Array:
    """Return the sums over every other row of the clients of a piece, the first one of each among them, (C, P)."""
    rows = piece.rows
    first = (np.arange(rows.start, rows.stop) - piece.spread(data.offsets[:-1][piece.clients])) % 2 == 0
    return piece.cross(residual * first[:, None], data.X[rows]).reshape(len(piece.sizes), -1)


def _joined(parts: list[ClientSums]) -> ClientSums:
    """Return the sums of all clients; one array serves both curvatures where they are one."""
    stacks = {
        part.name: joined([getattr(one, part.name) for one in parts])
        for part in fields(ClientSums)
        if part.name != "information"
    }
    if parts[0].information is parts[0].hessian:
        return ClientSums(**stacks, information=stacks["hessian"])
    return ClientSums(**stacks, information=joined([one.information for one in parts]))


def client_gradients(data: ClientData, family: Family, theta: Array) -> Array:
    """Return every client's mean gradient at a common theta, (M, P)."""
    gradients = np.zeros((data.n_clients, len(theta)))
    for batch in batches(data, len(theta)):
        rows = batch.rows
        residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
        scores = batch.cross(scaled(residual, data.weights_of(rows)).reshape(len(residual), -1), data.X[rows])
        gradients[batch.clients] += scores.reshape(len(scores), -1)
    return gradients / data.totals[:, None]


def curvature_and_meat(
    data: ClientData, family: Family, theta: Array, weights: Array, slope: Array | None = None
) -> tuple[Array, Array]:
    """Return only the weighted curvature and meat of an `WeightedSums`, in one pass that ignores clients.

    `slope` (P,) is the gradient of a penalty, as in `sums_at`.
    """
    P = len(theta)
    hessian, row_meat = np.zeros((P, P)), np.zeros((P, P))
    shares = weights / (data.n_clients * data.totals)
    for rows in row_blocks(data):
        X, y = data.X[rows], data.y[rows]
        weight = shares[row_clients(data, rows)] * data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        added = None if slope is None else weight[:, None] * slope
        row_meat += meat(X, scaled(family.residual(eta, y), weight), added)
        whole = Batch(slice(0, 1), rows, np.array([len(y)]))
        hessian += curvature_sums(whole, X, family.curvature(eta, y), weight)[0]
    return hessian, row_meat


def ours_only(values: Array) -> Array:
    """Return the rows of all clients where there are none elsewhere."""
    return values


@np.errstate(over="ignore", invalid="ignore")
def plain_scores(data: ClientData, family: Family, thetas: Array, gather: Gather = ours_only) -> tuple[Array, Ints]:
    """Return Rao's statistic of each client at its own row of `thetas` (M, P), or the only one, and its rank.

    One dispersion serves all clients, and the point is given: it orders clients where a start is chosen, and is the
    discrepancy "score" of `ADFL`. Tests, flags and tables use the statistic of the model of clients, which has a null.
    `gather` adds the rows of clients elsewhere.
    """
    raw, ranks, dispersions = (
        np.zeros(data.n_clients),
        np.zeros(data.n_clients, dtype=np.int64),
        np.zeros(data.n_clients),
    )
    for pieces in whole_clients(data, thetas.shape[1]):
        at = pieces[0].clients
        sums = client_sums_of(data, family, thetas if len(thetas) == 1 else thetas[at], pieces)
        roots, ranks[at] = rao_roots(sums.information, data.totals[at])
        raw[at] = rao_statistics(sums.gradient[:, None], roots)[:, 0]
        dispersions[at] = sums.dispersion
    raw[~data.counted], ranks[~data.counted] = np.inf, thetas.shape[1]
    return raw / _typical_dispersion(data, family, dispersions, gather), ranks


@np.errstate(over="ignore", invalid="ignore")
def majority_misfits(
    data: ClientData, family: Family, thetas: Array, chosen: Mask, gather: Gather = ours_only
) -> Array:
    """Return the misfit of each of thetas (R, P) on the clients chosen for it (M, R), relative to the others of thetas.

    It is the sum over their rows of the deviance in excess of that at the client's best theta, in units of a typical
    row's deviance. Deviances themselves would favour clients with predictable responses. `gather` adds the rows of
    clients elsewhere.
    """
    deviances = np.zeros(chosen.shape)
    for batch in batches(data, 1):
        y, weight = data.y[batch.rows], data.weights_of(batch.rows)
        for r, eta in enumerate(predictors_at(data, family, thetas, batch.rows)):
            deviances[batch.clients, r] += batch.sums(weight * family.deviance(eta, y))
    deviances = np.where(np.isfinite(deviances), deviances, np.inf)
    least = deviances.min(axis=1, keepdims=True)
    beyond = np.subtract(deviances, least, out=np.full_like(deviances, np.inf), where=np.isfinite(deviances))
    typical = float(np.median(gather(least[:, 0] / data.totals)))
    return np.asarray(gather(np.where(chosen, beyond, 0.0)).sum(axis=0) / max(typical, np.finfo(float).tiny))


def _typical_dispersion(data: ClientData, family: Family, dispersions: Array, gather: Gather) -> float:
    """Return the common dispersion of score statistics: the median over clients.

    With a client's own dispersion its residuals would inflate the scale of its own statistic (masking).
    """
    if family.estimates_scale:
        # Data without noise: residuals that are rounding errors must not set the scale.
        rounding = rounding_variance(gather(mean_squares(data)[data.counted])) if family.additive else ROUNDING**2
        least = max(rounding, np.finfo(float).tiny)
    else:
        # Where the model's dispersion is one, overdispersion (counts, weights of any scale) is allowed for.
        least = 1.0
    return max(float(np.median(gather(dispersions[data.counted]))), least)


def curvature_matrices(
    data: ClientData, family: Family, theta: Array, *, bound: bool = False, expected: bool = False
) -> Iterator[tuple[slice, Array]]:
    """Yield some clients and their mean curvature X'BX / total at theta (P,), or at their rows of theta (M, P).

    With `expected`, B is the information. With `bound`, B bounds the curvature along a run from theta. The matrices are
    (C, P, P), with `bound` (C, p, p).
    """
    thetas = np.atleast_2d(theta)
    for pieces in whole_clients(data, data.X.shape[1] if bound else thetas.shape[1]):
        total, own = np.zeros(()), thetas if len(thetas) == 1 else thetas[pieces[0].clients]
        for piece in pieces:
            rows = piece.rows
            eta, y = own_predictor(data, family, own, piece), data.y[rows]
            if expected:
                curvature = family.information(eta)
            else:
                curvature = family.curvature_bound(eta, y) if bound else family.curvature(eta, y)
            total = total + curvature_sums(piece, data.X[rows], curvature, data.weights_of(rows))
        clients = pieces[0].clients
        yield clients, total / data.totals[clients, None, None]


def rounding_variance(squares: Array) -> float:
    """Return the residual variance below which responses are fitted but for rounding errors, in their own units.

    `squares` (M,) are the `mean_squares` of all clients that count.
    """
    return ROUNDING**2 * float(np.median(squares))


def mean_squares(data: ClientData) -> Array:
    """Return each client's mean square of the (weighted) responses (M,)."""
    squares = np.zeros(data.n_clients)
    for batch in batches(data, 1):
        squares[batch.clients] += batch.sums(data.weights_of(batch.rows) * np.square(data.y[batch.rows]))
    return squares / data.sizes


def _scale(family: Family, dispersions: Array, data: ClientData, weights: Array, P: int, total: Total) -> float:
    """Return the dispersion over the clients, each with its share of trust."""
    if not family.estimates_scale:
        return 1.0
    # Trust is v_m relative to the client's size: pooled clean data have it equal everywhere, and the
    # effective number of rows (Kish's) is then N.
    trust = weights / data.totals
    share = trust * data.sizes
    whole = total(lambda at: np.asarray(share[at].sum()))
    rows = float(whole**2 / total(lambda at: summed_products(trust[at], share[at])))
    pooled = total(lambda at: summed_products(share[at], dispersions[at]))
    return float(pooled / whole * rows / max(rows - P, 1.0))
