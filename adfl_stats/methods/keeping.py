"""Clients that keep their weight: those a user protects, and those that alone identify coefficients.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from adfl_stats._arguments import listing
from adfl_stats._client_sets import client_mask
from adfl_stats._types import Array, ClientSet, Mask
from adfl_stats._warn import warn
from adfl_stats.engine.problem import Problem
from adfl_stats.errors import SelectionWarning
from adfl_stats.trust import ClientModel

__all__ = ["kept_weights", "protected"]

# The least share of the information in a direction that is left to it. Ours: clients with this weight move the other
# coefficients by a thousandth of what they would with full weight.
LEAST_WEIGHT = 1e-3
# Eigenvalue, at unit diagonal, below which the others do not identify a direction. Ours: that of a column that the rest
# explain but for a share of 1e-10, above what rounding leaves.
RANK = 1e-10
# A coefficient, or a client, takes part in a direction from this share on. Ours: for names, and far above rounding.
PART = 0.1


def protected(protect: ClientSet | None, problem: Problem) -> Mask:
    """Return which clients keep their full weight."""
    if protect is None:
        return np.zeros(problem.M, dtype=np.bool_)
    return np.asarray(problem.members.ours(client_mask(protect, problem.all_labels, "protect")))


def kept_weights(problem: Problem, clients: ClientModel, keep: Mask) -> tuple[Array, dict[str, str]]:
    """Return the clients' weights, with those that are kept, and notes on them for the summary.

    A coefficient such as a client's own constant is identified by that client alone. Where the client loses its weight,
    the weighted information is rank-deficient and there is no estimate. Such clients keep the weight 0.001: the
    coefficient is then theirs, and they hardly move the others.
    """
    weights, said = np.where(keep, 1.0, clients.weights), {}
    lost = keep & (clients.weights < PART)
    if problem.members.count(lost):
        said["protected"] = (
            f"{listing(problem.named(lost))} would have lost weight, and keep it because protect names them"
        )
    needed, names = _identifying(problem, clients, weights)
    if problem.members.count(needed):
        weights = np.where(needed, LEAST_WEIGHT, weights)
        said["identified"] = (
            f"only clients that do not fit the majority identify {listing(names)}: {listing(problem.named(needed))}. "
            f"They keep a weight of {LEAST_WEIGHT:g} so that these coefficients have an estimate; it is theirs alone, "
            "and the majority does not check it. ADFL(protect=[...]) gives them their full weight"
        )
        warn(said["identified"], SelectionWarning)
    return weights, said


def _identifying(problem: Problem, clients: ClientModel, weights: Array) -> tuple[Mask, list[str]]:
    """Return clients of (almost) no weight that alone identify directions of coefficients, and the coefficients."""
    needed = np.zeros(problem.M, dtype=np.bool_)
    informative, J = clients.summaries.ranks > 0, clients.scores.information
    members, low = clients.scores.members, weights[informative] < LEAST_WEIGHT
    if not members.count(low):
        return needed, []
    known, whole = members.sum(np.where(low[:, None, None], 0.0, J)), members.sum(J)
    # Scale to unit information from the other clients, so that clients without weight do not affect their rank.
    mine, of_all = np.diag(known), np.diag(whole)
    rounding = np.finfo(float).eps ** 2
    size = np.sqrt(np.where(mine > rounding * of_all, mine, np.where(of_all > 0.0, of_all, 1.0)))
    known, whole = known / np.outer(size, size), whole / np.outer(size, size)
    values, directions = linalg.eigh(known)
    gone = directions[:, values < RANK]
    # Directions about which no client has information are refused elsewhere.
    values, inside = linalg.eigh(gone.T @ whole @ gone)
    gone = gone @ inside[:, values > RANK / LEAST_WEIGHT]
    if not gone.shape[1]:
        return needed, []
    along = gone / size[:, None]
    informed = np.einsum("mdj,jd->md", along.T @ J, along)
    shares = informed / np.einsum("id,ij,jd->d", gone, whole, gone)
    needed[np.flatnonzero(informative)[low & (shares > PART * LEAST_WEIGHT).any(axis=1)]] = True
    parts = np.abs(gone).max(axis=1) / np.abs(gone).max()
    return needed, [str(name) for name in np.asarray(problem.names)[parts > PART]]
