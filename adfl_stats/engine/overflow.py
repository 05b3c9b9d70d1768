"""Clients whose numbers overflow at an estimate of the others: found once, before the fit.

A covariate in another unit overflows the exponential of a log link, a response of 1e200 its own square. Such a client
has no finite gradient, and makes every sum over clients infinite or NaN. The same holds for finite numbers that are so
large that the others' are lost in rounding.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import client_sums_of
from adfl_stats.losses.design_checks import Extremes
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.point_sums import curvature_matrices

__all__ = ["overflowing_clients"]


# Covariates this many times the median client's are examined further: for exponential losses, and others. (All
# constants here are ours: far beyond ordinary data, so that the examination costs these nothing.)
LARGER_LOG, LARGER = 10.0, 1e3
# So are offsets this far beyond the others', where losses grow exponentially: exp(30) = 1e13.
LARGER_OFFSET = 30.0
# Curvature this many times the median client's leaves fewer than 6 of 16 digits of the others' in a sum.
SWAMPING = 1e10


def overflowing_clients(problem: Problem, extremes: Extremes) -> Mask:
    """Return the clients (M,) whose numbers overflow, or dominate the others', at an estimate of the others.

    Only clients whose covariates or offsets are far larger than the others' are examined, so that other data cost
    nothing. The estimate is pooled over the rest.
    """
    vast, members = extremes.vast, problem.members
    doubtful = vast | extremes.beyond(LARGER_LOG if problem.glm.family.exponential else LARGER)
    if problem.glm.family.exponential:
        doubtful |= extremes.linear_offset > LARGER_OFFSET + np.median(members.gather(extremes.linear_offset))
    if not members.count(doubtful):
        return doubtful
    if members.count(~vast) and members.count(doubtful & ~vast):
        data = problem.glm.data.setting_aside(vast) if vast.any() else problem.glm.data
        vast = vast | (doubtful & _swamping(data, problem, doubtful))
    count = members.count(vast)
    if 2 * count >= problem.n_clients:
        raise too_many_overflow(members.gather(problem.labels[vast].to_numpy()).tolist(), problem.n_clients)
    return vast


def too_many_overflow(labels: Sequence[Any], clients: int) -> ValueError:
    """Return the error where the numbers of the clients `labels` overflow, which are half of all or more."""
    return ValueError(
        f"the numbers of {len(labels)} of {clients} clients overflow: {listing(labels)}. "
        "More than half of the clients must have numbers that can be computed with; change the units of the columns"
    )


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _swamping(data: ClientData, problem: Problem, doubtful: Mask) -> Mask:
    """Return the clients with numbers that are not finite, or far larger than the others', at an estimate."""
    members, transport = problem.members, problem.transport
    glm = GLM(data, problem.glm.family, total=transport.total, gather=transport.gather)
    usable = Problem(glm, problem.topology, threads=problem.threads, transport=transport)
    theta = np.zeros(problem.P)
    if problem.glm.starts_at_mean and members.count(~doubtful):
        theta = np.median(members.gather(usable.objective.start()[~doubtful]), axis=0)
        theta = weighted_solution(usable, np.where(doubtful, 0.0, usable.relative_sizes), theta)
    finite, magnitudes = _numbers(data, problem.glm.family, theta)
    columns = members.gather(magnitudes).T
    typical = [np.median(column[column > 0.0]) if (column > 0.0).any() else 1.0 for column in columns]
    return ~finite | ~(magnitudes / typical <= SWAMPING).all(axis=1)


def _numbers(data: ClientData, family: Family, theta: Array) -> tuple[Mask, Array]:
    """Return which clients have finite numbers at theta, and the diagonals of the bounds on their curvature (M, p)."""
    finite, magnitudes = np.ones(data.n_clients, dtype=bool), np.zeros((data.n_clients, data.X.shape[1]))
    for pieces in whole_clients(data, len(theta)):
        sums, at = client_sums_of(data, family, theta[None], pieces), pieces[0].clients
        for part in (sums.gradient, sums.hessian, sums.information, sums.dispersion):
            finite[at] &= np.isfinite(part).reshape(len(part), -1).all(axis=1)
    for clients, matrices in curvature_matrices(data, family, theta, bound=True):
        magnitudes[clients] = np.diagonal(matrices, axis1=1, axis2=2)
    return finite, magnitudes
