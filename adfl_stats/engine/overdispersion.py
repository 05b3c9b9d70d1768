"""The negative binomial's alpha, where it is not given: by maximum likelihood over clients that fit together.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import of_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.overflow import too_many_overflow
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL, Transport
from adfl_stats.losses.family import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.point_sums import plain_scores
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["Overdispersion", "estimated_alpha"]

# alpha between these. Ours: below, the variance is the Poisson's to the sixth digit for ordinary counts; above, half
# of all counts are zero at any mean.
LEAST_ALPHA, MOST_ALPHA = 1e-6, 1e3
# Passes at most, relative change of alpha that ends them, passes over the best half. Ours: alpha has a standard error
# of some per cent, and three concentration steps as in `methods.trimmed_scores`.
PASSES, SMALL_CHANGE, HALVES = 25, 1e-6, 3
# Level of the test that leaves out a client, over the number of clients (Bonferroni). Ours: where all fit together, in
# about one data set in twenty a client is left out.
ALPHA = 0.05


@dataclass(frozen=True)
class Overdispersion:
    """alpha, and how many clients it is from.

    Attributes
    ----------
    alpha : float
        The variance is mu + alpha mu^2.
    clients, of : int
        Clients whose rows took part, and all.
    """

    alpha: float
    clients: int
    of: int

    def in_words(self) -> str:
        """Return the note for the summary."""
        least = ", the least: these counts are not overdispersed, and the Poisson fits as well"
        return (
            f"The negative binomial's alpha = {self.alpha:.4g} was estimated before the fit, by maximum likelihood "
            f"over {self.clients} of {self.of} clients that fit together{least if self.alpha <= LEAST_ALPHA else ''}. "
            "Standard errors take it as known"
        )


def estimated_alpha(
    data: ClientData,
    family: Family,
    network: Network | NetworkSchedule,
    vast: Mask,
    threads: int,
    transport: Transport = LOCAL,
) -> Overdispersion:
    """Estimate alpha before a fit, as Huber's scale is.

    Coefficients and alpha are fitted together by maximum likelihood to all clients. Where some are significantly off,
    they are fitted to the half with the smallest score statistics, and then to all that are not significantly off from
    that. Where all fit together this is the maximum likelihood estimate of the pooled rows.

    Parameters
    ----------
    data : ClientData
        Counts.
    family : Family
        The negative binomial, with any alpha.
    network : Network or NetworkSchedule
        That of the model.
    vast : ndarray (M,) of bool
        Clients of the data whose numbers overflow, which take no part.
    threads : int
        Of the kernel.
    transport : Transport
        To clients elsewhere.
    """
    M, all_vast = network.n_clients, transport.gather(vast)
    if 2 * all_vast.sum() >= M:
        raise too_many_overflow(network.labels[all_vast].tolist(), M)
    # Weight zero times a number that overflows is none.
    data = data.setting_aside(vast) if vast.any() else data

    def fitted_to(kept: Mask, before: _Fit | None) -> _Fit:
        glm = GLM(data, replace(family, par=1.0))
        problem = Problem(glm, network, "sample", threads, transport)
        return _joint_fit(problem, problem.members.ours(kept), before)

    def misfits(fit: _Fit) -> tuple[Array, Mask]:
        at = replace(family, par=fit.alpha)
        scores, ranks = map(transport.gather, plain_scores(data, at, fit.theta[None], transport.gather))
        ranks = np.maximum(ranks, 1)
        # Skew counts, and clients that differ, have larger scores than chi-square: by so much at the median.
        usual = float(np.median((scores / stats.chi2.median(ranks))[~all_vast]))
        return scores, (scores <= max(usual, 1.0) * stats.chi2.isf(ALPHA / M, ranks)) & ~all_vast

    kept = ~all_vast
    fit = fitted_to(kept, None)
    scores, fine = misfits(fit)
    if not (fine == kept).all():
        for _ in range(HALVES):
            kept = (scores <= np.median(scores[~all_vast])) & ~all_vast
            fit = fitted_to(kept, fit)
            scores, fine = misfits(fit)
        for _ in range(PASSES):
            if (fine == kept).all() or 2 * fine.sum() < M:
                break
            kept = fine
            fit = fitted_to(kept, fit)
            _, fine = misfits(fit)
    return Overdispersion(fit.alpha, int(kept.sum()), M)


class _Fit(NamedTuple):
    theta: Array
    alpha: float


def _joint_fit(problem: Problem, kept: Mask, before: _Fit | None) -> _Fit:
    """Return the maximum likelihood estimate of coefficients and alpha from the rows of some clients."""
    data, family, transport = problem.glm.data, problem.glm.family, problem.transport
    theta, alpha = (problem.mean(problem.objective.start()), 1.0) if before is None else before
    for _ in range(PASSES):
        at = Problem(GLM(data, replace(family, par=alpha)), problem.topology, "sample", problem.threads, transport)
        theta = weighted_solution(at, at.relative_sizes * kept, theta)
        likeliest = _likeliest_alpha(data, theta, kept, transport)
        near, alpha = abs(likeliest - alpha) <= SMALL_CHANGE * likeliest, likeliest
        if near:
            break
    return _Fit(theta, alpha)


def _likeliest_alpha(data: ClientData, theta: Array, kept: Mask, transport: Transport) -> float:
    """Return the alpha of largest likelihood at coefficients theta (P,), over the rows of some clients."""
    pieces = {at.start: _counts_at(data, theta, kept, at) for at in transport.batches()}

    def loss(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        size = 1.0 / alpha

        def part(at: slice) -> Array:
            y, weight, mu = pieces[at.start]
            terms = special.gammaln(y + size) - special.gammaln(size) + y * log_alpha
            return np.asarray(weight @ (terms - (y + size) * np.log1p(alpha * mu)))

        return -float(transport.total(part))

    ends = (np.log(LEAST_ALPHA), np.log(MOST_ALPHA))
    best = optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-10})
    near = np.exp(best.x)
    return float(LEAST_ALPHA if near < 2.0 * LEAST_ALPHA else near)


def _counts_at(data: ClientData, theta: Array, kept: Mask, at: slice) -> tuple[Array, Array, Array]:
    """Return counts, weights and means at theta (P,) of the rows of some clients, of those in a slice."""
    own = of_clients(data, slice(*at.indices(data.n_clients)[:2]))
    rows = np.repeat(kept[at], own.sizes)
    eta = own.X[rows] @ theta + (0.0 if own.linear_offset is None else own.linear_offset[rows])
    with np.errstate(over="ignore"):
        mu = np.clip(np.exp(eta), np.finfo(float).tiny, 1e300)
    return own.y[rows], own.weights_of(np.flatnonzero(rows)), mu
