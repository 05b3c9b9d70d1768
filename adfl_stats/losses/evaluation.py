"""One pass over the data at a common point: gradients, curvature, sandwich pieces, fit.

Everything inference needs is gathered here, in batches of clients and blocks of rows, so that results
can live without the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch, batches, row_blocks, row_clients, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.losses.client_sums import (
    ClientMoments,
    linear_predictor,
    linear_predictors,
    meat,
    moments,
    own_predictor,
    rao_statistics,
    scaled,
    weighted_curvature,
)
from adfl_stats.losses.families import Family
from adfl_stats.losses.goodness import GoodnessSums
from adfl_stats.losses.penalties import Ridge

__all__ = [
    "Evaluation",
    "PointSums",
    "client_gradients",
    "curvature_and_meat",
    "evaluate",
    "majority_misfits",
    "plain_scores",
    "rounding_variance",
]


# Residuals this small beside the responses are rounding errors.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Evaluation:
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
    """What one pass over the data finds at a common point.

    Attributes
    ----------
    clients : ClientMoments
        Of all M clients.
    halves : ndarray (M, P)
        The score of every other row of each client, the first one among them.
    evaluation : Evaluation
        The clients, combined.
    llf, deviance : float
        Over the rows of the trusted clients.
    """

    clients: ClientMoments
    halves: Array
    evaluation: Evaluation
    llf: float
    deviance: float

    def penalised(self, penalty: Ridge | None, theta: Array, weights: Array) -> PointSums:
        """Return the gradients and curvatures of the penalised losses at theta (P,) with total weights v_m.

        Variances, and the clients' information, are those of the rows.
        """
        if penalty is None:
            return self
        clients, found = self.clients.penalised(penalty, theta), self.evaluation
        added = weights.mean() * np.diag(penalty.curvature(theta))
        evaluation = replace(
            found, gradients=clients.gradient, hessian=found.hessian + added, information=found.information + added
        )
        return replace(self, clients=clients, evaluation=evaluation)


def evaluate(
    data: ClientData,
    family: Family,
    theta: Array,
    weights: Array,
    trusted: Mask | None = None,
    visit: Callable[[list[Batch], ClientMoments], None] | None = None,
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
    """
    M, share = data.n_clients, weights / data.n_clients
    rows = _RowSums(data, family, share / data.totals, np.ones(M, dtype=bool) if trusted is None else trusted)
    parts = []
    for pieces in whole_clients(data, len(theta)):
        parts.append(moments(data, family, theta[None], pieces, rows.add))
        if visit is not None:
            visit(pieces, parts[-1])
    clients = _joined(parts)
    information, model_meat = np.tensordot(np.stack([share, share**2 / data.totals]), clients.information, 1)
    observed = clients.information is not clients.hessian
    scale = _scale(family, clients.dispersion, data, weights, len(theta))
    return PointSums(
        clients,
        rows.halves,
        Evaluation(
            gradients=clients.gradient,
            hessian=np.tensordot(share, clients.hessian, 1) if observed else information,
            information=information,
            meat=rows.meat,
            model_meat=model_meat,
            scale=scale,
        ),
        *rows.goodness.at(scale),
    )


class _RowSums:
    """Sums over rows that need no second look: the meat, the scores of half the rows, the likelihood."""

    def __init__(self, data: ClientData, family: Family, per_row: Array, trusted: Mask) -> None:
        P = data.X.shape[1] * family.outputs
        self.data, self.per_row = data, per_row
        self.meat, self.halves = np.zeros((P, P)), np.zeros((data.n_clients, P))
        self.goodness = GoodnessSums(data, family, trusted)

    def add(self, piece: Batch, eta: Array, residual: Array) -> None:
        """Take in a piece, with its weighted residuals."""
        at, rows, X = piece.clients, piece.rows, self.data.X[piece.rows]
        self.meat += meat(X, residual * piece.spread(self.per_row[at])[:, None])
        first = (np.arange(rows.start, rows.stop) - piece.spread(self.data.offsets[:-1][at])) % 2 == 0
        self.halves[at] += piece.cross(residual * first[:, None], X).reshape(len(piece.sizes), -1)
        self.goodness.add(piece, eta)


def _joined(parts: list[ClientMoments]) -> ClientMoments:
    """Return the sums of all clients; one array serves both curvatures where they are one."""
    stacks = {
        part.name: np.concatenate([getattr(one, part.name) for one in parts])
        for part in fields(ClientMoments)
        if part.name != "information"
    }
    if parts[0].information is parts[0].hessian:
        return ClientMoments(**stacks, information=stacks["hessian"])
    return ClientMoments(**stacks, information=np.concatenate([one.information for one in parts]))


def client_gradients(data: ClientData, family: Family, theta: Array) -> Array:
    """Return every client's mean gradient at a common theta, (M, P)."""
    found = np.zeros((data.n_clients, len(theta)))
    for batch in batches(data, len(theta)):
        rows = batch.rows
        residual = family.residual(linear_predictor(data, family, theta, rows), data.y[rows])
        scores = batch.cross(scaled(residual, data.weights_of(rows)).reshape(len(residual), -1), data.X[rows])
        found[batch.clients] += scores.reshape(len(scores), -1)
    return found / data.totals[:, None]


def curvature_and_meat(data: ClientData, family: Family, theta: Array, weights: Array) -> tuple[Array, Array]:
    """Return only the weighted curvature and meat of an `Evaluation`, in one pass that ignores clients."""
    P = len(theta)
    hessian, row_meat = np.zeros((P, P)), np.zeros((P, P))
    shares = weights / (data.n_clients * data.totals)
    for rows in row_blocks(data):
        X, y = data.X[rows], data.y[rows]
        weight = shares[row_clients(data, rows)] * data.weights_of(rows)
        eta = linear_predictor(data, family, theta, rows)
        row_meat += meat(X, scaled(family.residual(eta, y), weight))
        whole = Batch(slice(0, 1), rows, np.array([len(y)]))
        hessian += weighted_curvature(whole, X, family.curvature(eta, y), weight)[0]
    return hessian, row_meat


@np.errstate(over="ignore", invalid="ignore")
def plain_scores(data: ClientData, family: Family, thetas: Array) -> tuple[Array, Ints]:
    """Return Rao's statistic of each client at its own row of `thetas` (M, P), or the only one, and its rank.

    One dispersion serves all clients, and the point is given: it orders clients where a start is chosen, and is the
    suspicion "score" of `ADFL`. Tests, flags and tables use the statistic of the model of clients, which has a null.
    """
    raw, ranks, dispersions = (
        np.zeros(data.n_clients),
        np.zeros(data.n_clients, dtype=np.int64),
        np.zeros(data.n_clients),
    )
    for pieces in whole_clients(data, thetas.shape[1]):
        at = pieces[0].clients
        found = moments(data, family, thetas if len(thetas) == 1 else thetas[at], pieces)
        raw[at], ranks[at] = rao_statistics(found, data.totals[at])
        dispersions[at] = found.dispersion
    raw[~data.counted], ranks[~data.counted] = np.inf, thetas.shape[1]
    return raw / _typical_dispersion(data, family, dispersions), ranks


@np.errstate(over="ignore", invalid="ignore")
def majority_misfits(data: ClientData, family: Family, thetas: Array, chosen: Mask) -> Array:
    """Return how badly each of thetas (R, P) suits the clients chosen for it (M, R), beside the others of thetas.

    It is the sum over their rows of the deviance beyond that at the theta which suits the client best, in units of a
    typical row's deviance. Deviances themselves would favour clients that are easy to predict.
    """
    deviances = np.zeros(chosen.shape)
    for batch in batches(data, 1):
        y, weight = data.y[batch.rows], data.weights_of(batch.rows)
        for r, eta in enumerate(linear_predictors(data, family, thetas, batch.rows)):
            deviances[batch.clients, r] += batch.sums(weight * family.deviance(eta, y))
    deviances = np.where(np.isfinite(deviances), deviances, np.inf)
    least = deviances.min(axis=1, keepdims=True)
    beyond = np.subtract(deviances, least, out=np.full_like(deviances, np.inf), where=np.isfinite(deviances))
    typical = float(np.median(least[:, 0] / data.totals))
    return np.asarray(np.where(chosen, beyond, 0.0).sum(axis=0) / max(typical, np.finfo(float).tiny))


def _typical_dispersion(data: ClientData, family: Family, dispersions: Array) -> float:
    """Return the dispersion all clients are measured by: the median of theirs.

    A client's own residuals do not set its own scale, which would mask a bad client.
    """
    if family.estimates_scale:
        # Data without noise: what rounding leaves of their residuals must not be weighed against itself.
        least = max(rounding_variance(data) if family.additive else ROUNDING**2, np.finfo(float).tiny)
    else:
        # Where the dispersion should be one, more of it (overdispersed counts, weights of any scale) is allowed for.
        least = 1.0
    return max(float(np.median(dispersions[data.counted])), least)


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
                found = family.information(eta)
            else:
                found = family.curvature_bound(eta, y) if bound else family.curvature(eta, y)
            total = total + weighted_curvature(piece, data.X[rows], found, data.weights_of(rows))
        clients = pieces[0].clients
        yield clients, total / data.totals[clients, None, None]


def rounding_variance(data: ClientData) -> float:
    """Return the residual variance below which responses are fitted but for rounding errors, in their own units."""
    return ROUNDING**2 * float(np.median(_mean_squares(data)[data.counted]))


def _mean_squares(data: ClientData) -> Array:
    """Return each client's mean square of the (weighted) responses (M,)."""
    found = np.zeros(data.n_clients)
    for batch in batches(data, 1):
        found[batch.clients] += batch.sums(data.weights_of(batch.rows) * np.square(data.y[batch.rows]))
    return found / data.sizes


def _scale(family: Family, dispersions: Array, data: ClientData, weights: Array, P: int) -> float:
    """Return the dispersion over the clients, each with its share of trust."""
    if not family.estimates_scale:
        return 1.0
    # Trust is v_m relative to the client's size: pooled clean data have it equal everywhere, and the
    # effective number of rows (Kish's) is then N.
    trust = weights / data.totals
    share = trust * data.sizes
    rows = float(share.sum() ** 2 / (trust @ share))
    return float(share @ dispersions / share.sum() * rows / max(rows - P, 1.0))
