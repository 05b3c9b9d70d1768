"""Checks of the data before a fit, from one pass over them.

Clients whose own loss has no unique minimum; clients that hold the same rows; clients whose numbers
are far larger than the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from adfl_stats._arguments import listing
from adfl_stats._types import Array, Mask
from adfl_stats._warn import warn
from adfl_stats.data.batches import Batch, batches, row_blocks, row_clients, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.data.copies import RowHashes, copied_clients, overlapping_clients
from adfl_stats.data.whole import Whole
from adfl_stats.errors import ConditionWarning
from adfl_stats.losses.client_sums import linear_predictor
from adfl_stats.losses.families import Family

__all__ = [
    "Extremes",
    "Survey",
    "separated_clients",
    "survey",
    "too_few_to_judge",
    "warn_of_clients",
    "warn_of_copies",
]


# The most multiply-adds, and entries of X of a client, in the search for separated clients. Ours: of the order of
# seconds; large clients are rarely separated.
SEARCH_BUDGET = 5e9
SEARCH_ENTRIES = 1_000_000
# Numbers whose squares overflow, and numbers that overflow relative to the others'. Ours: half and a fifth of the
# exponents of float64.
VAST, FAR_LARGER = 1e150, 1e60


def too_few_to_judge(family: Family, sizes: Array, coefficients: int) -> str:
    """Return why clients of these sizes cannot be judged by their scores, or nothing where they can.

    In a multinomial model with fewer rows than coefficients a client has a few rows of a class, and scores are far from
    normal: with 50 clients of 40 rows and 54 coefficients, drawn from the fitted model, 12 would be flagged, and with
    real images 11 (`benchmarks/images.py --rows 40`).
    """
    typical = float(np.median(sizes))
    if family.name != "multinomial" or typical >= coefficients:
        return ""
    return (
        f"{coefficients} coefficients, (classes - 1) times columns, and half of the clients have at most {typical:.0f} "
        "rows: score tests of clients with fewer rows than coefficients are not valid in a multinomial model"
    )


@dataclass(frozen=True, eq=False)
class Extremes:
    """The largest absolute values of each client.

    Attributes
    ----------
    X, y, linear_offset : ndarray (M,)
        Of the covariates, responses and offsets.
    ratio : ndarray (M,)
        Of the covariates over the median client's largest in the same column, for the column where that is largest.
    usual_y, largest_y : float
        The median and the largest of `y`, of all clients.
    """

    X: Array
    y: Array
    linear_offset: Array
    ratio: Array
    usual_y: float
    largest_y: float

    @classmethod
    def of(cls, X: Array, y: Array, linear_offset: Array, whole: Whole) -> Extremes:
        """Sum up the largest covariates (M, p), responses and offsets (M,) of clients of ours."""
        columns, responses = whole.gather(X).T, whole.gather(y)
        # A column that most clients have zeros in is compared over the others.
        typical = [np.median(column[column > 0.0]) if column.any() else 1.0 for column in columns]
        usual, largest = float(np.median(responses)), float(responses.max())
        return cls(X.max(axis=1), y, linear_offset, (X / typical).max(axis=1), usual, largest)

    def beyond(self, times: float) -> Mask:
        """Return the clients with covariates so many times larger than the median client's, in any column."""
        return np.asarray(self.ratio > times)

    def refuse_tiny(self) -> None:
        """Raise ValueError where all responses are so small that their squares are zero, and with them variances."""
        if 0.0 < self.largest_y < 1.0 / VAST:
            raise ValueError(
                f"the largest response is {self.largest_y:.3g}; squares of such numbers are zero, and so would be all "
                "variances. Bring y to larger units"
            )

    @property
    def vast(self) -> Mask:
        """The clients whose numbers overflow in any computation with the others'."""
        far = self.beyond(FAR_LARGER) | (self.y > FAR_LARGER * max(self.usual_y, 1.0))
        return np.asarray(far | (np.maximum(np.maximum(self.X, self.y), self.linear_offset) > VAST))


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of one pass over the data.

    Attributes
    ----------
    gram : ndarray (p, p)
        X'X over all clients but those with vast numbers.
    extremes : Extremes
        How large the clients' numbers are.
    hashes : RowHashes
        What copies are found by.
    """

    gram: Array
    extremes: Extremes
    hashes: RowHashes


def survey(data: ClientData, whole: Whole | None = None) -> Survey:
    """Pass over the data once; twice where some clients' numbers overflow.

    Where the data are those of some clients of a whole, X'X and the hashes are of all, the extremes of ours.
    """
    M, p, whole = data.n_clients, data.X.shape[1], whole or Whole.here(data)
    gram, hashes = np.zeros((p, p)), RowHashes.none_yet(data, whole.n_rows)
    X, y, linear_offset = np.zeros((M, p)), np.zeros(M), np.zeros(M)
    with np.errstate(over="ignore", invalid="ignore"):
        for batch in batches(data, 1):
            rows, at = batch.rows, batch.clients
            block = data.X[rows]
            gram += block.T @ block
            X[at] = np.maximum(X[at], np.maximum.reduceat(np.abs(block), batch.first_rows))
            y[at] = np.maximum(y[at], np.maximum.reduceat(np.abs(data.y[rows]), batch.first_rows))
            if data.linear_offset is not None:
                linear_offset[at] = np.maximum(
                    linear_offset[at], np.maximum.reduceat(np.abs(data.linear_offset[rows]), batch.first_rows)
                )
            hashes.add(data, batch)
    extremes = Extremes.of(X, y, linear_offset, whole)
    vast = extremes.vast
    everywhere = whole.gather(vast)
    if everywhere.any() and not everywhere.all():
        gram[:] = 0.0
        for rows in row_blocks(data):
            block = data.X[rows][~vast[row_clients(data, rows)]]
            gram += block.T @ block
    with np.errstate(over="ignore", invalid="ignore"):
        return Survey(whole.added(gram), extremes, hashes.of_all(whole))


def warn_of_clients(data: ClientData, family: Family, extremes: Extremes, whole: Whole) -> None:
    """Warn of clients whose own loss has no unique minimum, so that their rows cannot show Condition 3."""
    short = data.sizes < data.X.shape[1]
    named = whole.named(short)
    if len(named):
        _warn(
            f"fewer rows than the {data.X.shape[1]} columns of X",
            named,
            "their data count, but their own loss is flat in some directions",
        )
    if family.name == "binomial":
        # Numbers far larger than the others' would overflow in the search.
        apart = whole.named(separated_clients(data, ~short & ~extremes.beyond(1e5) & ~extremes.vast))
        if len(apart):
            _warn(
                "a response that their covariates separate perfectly",
                apart,
                "their own estimate is infinite; the network's need not be",
            )


def _warn(what: str, clients: Sequence[Any], meaning: str) -> None:
    warn(
        f"{len(clients)} client(s) have {what}: {listing(clients)}. Their rows cannot show Condition 3 (local strong "
        f"convexity, of expectations): {meaning}",
        ConditionWarning,
    )


def warn_of_copies(whole: Whole, hashes: RowHashes) -> list[str]:
    """Warn of clients that hold the same rows, or half of them, and return the messages.

    Clients are compared by 64 bits a row, in any order of the rows. A collision has a
    probability below M^2 / 2^64; rows that are equal by chance, as those of few categories are, are accounted for. Of
    more than two million rows a share is compared for partial copies; whole copies are found among any number.
    """
    said = []
    groups = copied_clients(whole, hashes)
    if groups:
        said.append(
            f"{sum(map(len, groups))} clients hold the same rows as others, in {len(groups)} group(s): "
            f"{'; '.join(listing(whole.labels[group]) for group in groups[:3])}{'; ...' if len(groups) > 3 else ''}. "
            "Copies count as new data, and intervals are too short; keep one client of each group"
        )
    pairs = overlapping_clients(whole, hashes, groups)
    if pairs:
        shown = "; ".join(
            f"{share:.0%} of {listing([whole.labels[m]])} in {listing([whole.labels[k]])}" for m, k, share in pairs[:3]
        )
        said.append(
            f"{len(pairs)} pair(s) of clients share half of their rows or more: {shown}"
            f"{'; ...' if len(pairs) > 3 else ''}. Shared rows count twice, and intervals are too short; leave them to "
            "one client"
        )
    for message in said:
        warn(message, ConditionWarning)
    return said


def warn_of_domain(data: ClientData, family: Family, theta: Array, trusted: Mask, whole: Whole) -> list[str]:
    """Warn of trusted clients' rows whose linear predictor at theta the link does not allow; return the message.

    `trusted` (M,) is of the clients of the data.
    """
    if not family.positive_predictor:
        return []
    counts = np.zeros(data.n_clients)
    for batch in batches(data, 1):
        beyond = linear_predictor(data, family, theta, batch.rows) < family.par
        counts[batch.clients] += batch.sums(beyond.astype(np.float64))
    counts[~trusted] = 0.0
    counts = whole.gather(counts)
    if not counts.any():
        return []
    said = (
        f"at the estimate {counts.sum():.0f} row(s) have a linear predictor that family {family.name!r} with the link "
        f"{family.link!r} does not allow (it must be positive); clients {listing(whole.labels[counts > 0])}. Their "
        "loss is continued by its tangent, and standard errors are not valid. Use the link 'log', or check these rows"
    )
    warn(said, ConditionWarning)
    return [said]


def separated_clients(data: ClientData, among: Mask) -> Mask:
    """Return the clients (M,) whose 0/1 response a linear predictor separates.

    A client is named only with a certificate: a predictor, found by a few Newton steps on its own
    data, whose sign is that of the response in every row. The smallest clients are searched first, within
    a budget; large ones are rarely separated.
    """
    p = data.X.shape[1]
    order = np.argsort(data.sizes, kind="stable")
    within = np.empty(data.n_clients, dtype=bool)
    within[order] = np.cumsum(12.0 * data.sizes[order] * p * p) <= SEARCH_BUDGET
    # A large client is rarely separated, and the search would copy its rows.
    searched = among & within & (data.sizes * p <= SEARCH_ENTRIES)
    separated = np.zeros(data.n_clients, dtype=bool)
    for pieces in whole_clients(data, p):
        clients, rows = pieces[0].clients, slice(pieces[0].rows.start, pieces[-1].rows.stop)
        which = searched[clients]
        if which.any():
            batch = Batch(clients, rows, data.sizes[clients][which])
            mine = np.repeat(which, data.sizes[clients])
            separated[clients][which] = _separated(batch, data.X[rows][mine], data.y[rows][mine])
    return separated


def _separated(batch: Batch, X: Array, y: Array) -> Mask:
    """Return which clients of a batch are separated, by ten Newton steps of each on its own rows X and y.

    A certificate is looked for, not a solution: where there is one the estimate is infinite.
    """
    eye, sign = np.eye(X.shape[1]), 2.0 * y - 1.0
    separated = np.zeros(len(batch.sizes), dtype=bool)
    theta, eta = np.zeros((len(batch.sizes), X.shape[1])), np.zeros(len(y))
    # A small ridge keeps the system regular where the means are 0 and 1 to rounding.
    ridge = 1e-8 * batch.sums(np.einsum("ij,ij->i", X, X)) / X.shape[1] + 1e-300
    for _ in range(10):
        mean = special.expit(np.clip(eta, -30.0, 30.0))
        curvature = batch.cross(X * (mean * (1.0 - mean))[:, None], X) + ridge[:, None, None] * eye
        theta += np.linalg.solve(curvature, batch.sums(X * (y - mean)[:, None])[:, :, None])[:, :, 0]
        eta = np.einsum("ij,ij->i", X, batch.spread(theta))
        separated |= np.minimum.reduceat(sign * eta, batch.first_rows) > 0.0
    return separated & np.logical_and.reduceat(np.isin(y, (0.0, 1.0)), batch.first_rows)
