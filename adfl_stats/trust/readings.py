"""Candidate mixture models of the clients' parameters ("readings") for nonlinear links, fitted by EM.

A reading has a distribution of random effects, with or without abnormal clients.

theta_m = theta + u_m as in `mixture`, with the rows' own likelihood in the place of that of the scores (see
`laplace`). The components are

    normal    u_m ~ (0, T),
    minority  about another parameter, with (c - 1) J_m^-1 added to T, c its own; or as normal clients about the
              parameter that the client would have if its responses were flipped, shuffled or mirrored,
    gross     u_m ~ (0, k T + (k - 1) J_m^-1) for k on a grid.

T is diagonal with the basis of `spread.pivots`, or zero. It may have the tails of t, and (c - 1) J_m^-1 is added where
rows of a client depend on one another. Likelihoods of components are exact but for Laplace's approximation, so that
readings at different parameters can be compared.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.engine.transport import Members, once
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.families import Family
from adfl_stats.trust.candidates import price
from adfl_stats.trust.laplace import ClientLikelihoods
from adfl_stats.trust.spread import HEAVY_DF

__all__ = ["Clients", "Law", "Reading", "altered", "law_of"]


# Initial variances of effects, in squared standard errors of a typical client. Ours: EM decreases variances in fewer
# iterations than it increases them.
FIRST_VARIANCE = 1.0
# Points by which the scale of effects with heavy tails is integrated. Ours: t with 5 degrees of freedom to 2 %.
TAIL_POINTS = 7
# Least mean of mirrored counts and durations, as a share of the client's own. Ours: these are positive, and a smaller
# one would rule out the mirror for any positive response.
LEAST_MEAN = 0.05


@dataclass(frozen=True, eq=False)
class Law:
    """The distribution of normal clients' parameters: T = B diag(variances) B', c, and whether tails are heavy.

    `variances` (A,) belong to the columns (P, A) of B, which are in units of typical standard errors; they are equal
    where there is a `common` one.
    """

    variances: Array
    columns: Array
    common: bool = False
    inflation: float = 1.0
    inflated: bool = False
    heavy: bool = False

    @property
    def n_variances(self) -> int:
        """How many variances were estimated."""
        return (min(1, len(self.variances)) if self.common else len(self.variances)) + self.inflated

    def factors(self, roots: Array) -> Array:
        """Return F_m (M, P, K) with F_m F_m' = T + (c - 1) J_m^-1, from roots (M, P, P) of J_m^-1."""
        common = np.broadcast_to(self.columns * np.sqrt(self.variances), (len(roots), *self.columns.shape))
        return np.concatenate([common, np.sqrt(self.inflation - 1.0) * roots], axis=2) if self.inflated else common

    @property
    def scales(self) -> Array:
        """The scales of effects, equally probable."""
        if not self.heavy:
            return np.ones(1)
        middles = (np.arange(TAIL_POINTS) + 0.5) / TAIL_POINTS
        values = (HEAVY_DF - 2.0) / stats.chi2.ppf(middles, HEAVY_DF)
        return np.asarray(values / values.mean())

    def scaled(self, factors: Array) -> list[Array]:
        """Return factors F_m times the roots of the scales."""
        return [np.sqrt(k) * factors for k in self.scales] if self.heavy else [factors]


@dataclass(frozen=True, eq=False)
class Clients:
    """The clients to which readings are fitted.

    Attributes
    ----------
    likelihoods : ClientLikelihoods
        Of the rows.
    members : Members
        The clients; those of the rows are ours.
    counted : ndarray (M,) of bool
        Those that enter the fit; the others overflow, or have no rows that count.
    information : ndarray (M, P, P)
        J_m at the pooled estimate, per unit of noise.
    units : ndarray (P,)
        A typical client's standard errors.
    """

    likelihoods: ClientLikelihoods
    members: Members
    counted: Mask
    information: Array
    units: Array

    @once
    def roots(self) -> Array:
        """Roots (M, P, P) of the J_m^+."""
        return roots_of_inverses(self.information)[0]

    @once
    def n_clients(self) -> int:
        """How many clients are counted."""
        return self.members.count(self.counted)

    def some(self, chosen: Mask, share: float) -> Clients:
        """Return the clients `chosen` (M,), with about a share of the rows of each if that is below one."""
        lik = self.likelihoods
        return Clients(
            replace(lik, data=_thinned(lik.data, chosen, share), dispersions=lik.dispersions[chosen]),
            self.members.of(chosen),
            self.counted[chosen],
            self.information[chosen] * min(share, 1.0),
            self.units,
        )

    def sum(self, values: Array) -> Array:
        """Return the sum of values (M, ...) over the clients that are counted."""
        some = self.counted.reshape(-1, *(1,) * (values.ndim - 1))
        return self.members.sum(np.where(some, values, 0.0))

    def step(self, weights: Array, slopes: Array, information: Array) -> Array:
        """Return the step (P,) that solves the weighted sum of estimating equations, by a Newton step."""
        total = self.sum(weights[:, None, None] * information) * np.outer(self.units, self.units)
        along = self.sum(weights[:, None] * slopes) * self.units
        total[np.diag_indices(len(total))] += 1e-8 * (np.trace(total) / len(total) + 1e-4)
        return np.asarray(np.linalg.solve(total, along) * self.units)


@dataclass(frozen=True, eq=False)
class Reading:
    """One reading, fitted.

    Attributes
    ----------
    minority : str
        "" where there is none, "coherent", or the name of a corruption of known form.
    gross : bool
        Whether there are gross clients.
    law : Law
        Of the effects.
    theta, shift : ndarray (P,)
        The normal clients' parameter, given effects of zero; the minority's less that.
    minority_inflation : float
        c of a coherent minority, whose clients need not vary as normal ones do.
    shares : ndarray (3,)
        Of the components.
    gross_shares : ndarray (S,)
        Of the scales of gross clients.
    log_likelihood : float
        Of all rows.
    posteriors : ndarray (M, 3)
        Probabilities of being normal, of the minority, gross.
    clients : int
        How many are counted.
    """

    minority: str
    gross: bool
    law: Law
    theta: Array
    shift: Array
    minority_inflation: float
    shares: Array
    gross_shares: Array
    log_likelihood: float
    posteriors: Array
    clients: int

    @property
    def minority_law(self) -> Law:
        """The law of the minority's effects."""
        if self.minority != "coherent":
            return self.law
        return replace(self.law, inflation=self.minority_inflation, inflated=True)

    @property
    def price(self) -> float:
        """The price of the reading."""
        variances = self.law.n_variances
        return price(len(self.theta), self.clients, variances=variances, minority=self.minority, gross=self.gross)

    @property
    def criterion(self) -> float:
        """Twice the negative log-likelihood plus the price."""
        return float(self.price - 2.0 * self.log_likelihood)

    @property
    def simple(self) -> bool:
        """Whether there are no abnormal clients."""
        return not self.minority and not self.gross


def altered(data: ClientData, family: Family, theta: Array, mechanism: str) -> ClientData:
    """Return the data with the responses that a corruption of known form has on average, see `mechanisms`."""
    mean = family.mean(linear_predictor(data, family, theta, slice(None)))
    if mechanism == "flipped":
        return assembled(data, y=(1.0 if family.name == "binomial" else 0.0) - mean)
    first_rows, weight = data.offsets[:-1], data.weights_of(slice(None))
    own = np.add.reduceat(weight * mean, first_rows) / np.add.reduceat(np.broadcast_to(weight, mean.shape), first_rows)
    level = np.repeat(own, data.sizes)
    if mechanism == "shuffled":
        return assembled(data, y=level)
    mirrored = 2.0 * level - mean
    # Means of counts and durations are positive.
    return assembled(data, y=mirrored if family.linear else np.maximum(mirrored, LEAST_MEAN * level))


def _thinned(data: ClientData, chosen: Mask, share: float) -> ClientData:
    """Return some clients, with about a share of the rows of each, evenly spaced, and at least one."""
    step = max(1.0, 1.0 / share)
    parts = [
        data.offsets[m] + np.arange(0.0, data.sizes[m], step).astype(np.int64) for m in np.flatnonzero(chosen).tolist()
    ]
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return assembled(
        data,
        X=data.X[rows],
        y=data.y[rows],
        offsets=np.cumsum([0, *(len(part) for part in parts)]),
        labels=data.labels[chosen],
        linear_offset=None if data.linear_offset is None else data.linear_offset[rows],
        row_weights=None if data.row_weights is None else data.row_weights[rows],
        set_aside=None if data.set_aside is None else data.set_aside[chosen],
        cuts=None if data.cuts is None else np.cumsum(chosen)[data.cuts - 1],
    )


def law_of(columns: Array, active: Ints, *, common: bool = False, inflated: bool = False, heavy: bool = False) -> Law:
    """Return a law to begin with, with variances of the active columns of `columns` (P, P)."""
    inflation = 1.0 + FIRST_VARIANCE if inflated else 1.0
    return Law(np.full(len(active), FIRST_VARIANCE), columns[:, active], common, inflation, inflated, heavy)
