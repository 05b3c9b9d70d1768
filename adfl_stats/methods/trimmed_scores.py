"""Least trimmed scores: initial estimates that are robust to a coherent minority of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np

from adfl_stats._algebra import roots_of_inverses
from adfl_stats._arguments import whole_number
from adfl_stats._types import Array, InitialEstimates, Mask
from adfl_stats.engine.equations import Equations, stacked_solutions, weighted_solution
from adfl_stats.engine.limit import settle
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import rao_roots, rao_statistics
from adfl_stats.losses.point_sums import majority_misfits
from adfl_stats.methods._base import Method, Outcome, initial_estimates
from adfl_stats.trust.weights import smallest_majority

__all__ = ["TrimmedScores"]


# Concentration steps of all starts, and of the best few that go on: FAST-LTS has 2 and takes the 10 best of 500 to
# convergence (Rousseeuw & Van Driessen 2006); ours are fewer, because there are fewer starts.
FIRST_STEPS, LAST_STEPS, BEST = 3, 20, 3
# Rows per parameter that a random set has at least. Ours: with fewer, maximum likelihood is far off or infinite
# (Peduzzi et al. 1996 ask for ten events per variable).
ROWS = 10
# Relative tolerance of solutions between concentration steps. Ours: the next set depends on it only near
# ties.
ROUGH = 1e-4
# Estimates beyond FAR (times the root mean square of their columns) are looked at: their majority is called separated
# where a direction has kept less than FLAT of its curvature. Newton's steps that follow a separated direction add about
# one each to the linear predictor, and end by ROUGH or by underflow, far beyond. (Ours.)
FAR, FLAT = 20.0, 1e-6


@dataclass(frozen=True, eq=False)
class TrimmedScores(Method):
    """Least trimmed scores over clients: FAST-LTS of Rousseeuw & Van Driessen (2006), for clients instead of rows.

    From several small random sets of clients: solve the estimating equation of the set, take the floor(M / 2) + 1
    clients with the smallest score statistics there as the next set, and repeat. The set is chosen whose clients would
    gain least in deviance from the other sets' estimates: a homogeneous minority must be completed by clients that
    another estimate fits much better. (The sum of the statistics has less power against that, and the deviance itself
    favours clients with predictable responses.) Rules of aggregation need a majority of normal clients in every
    neighbourhood; this needs one in the whole network. (Ours; the paper's own start is in its Appendix D, which is not
    public. In a network each step needs agreement on one order statistic, for example by gossip.)

    Parameters
    ----------
    starts : int
        Number of random sets. With two clients each and 40 % abnormal ones, twelve sets fail to have one without
        abnormal clients with probability .64^12 = .005.
    handful : int
        Clients in each; more where these have fewer than ten rows per parameter. Small sets are more often free of
        abnormal clients.
    rival : array, Series, DataFrame, results, method or None
        One more start, compared with the random ones.
    seed : int
        Seed of the random sets.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.4, corruption="MP", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> res = model.fit(ad.TrimmedScores())
    >>> int((res.client_weights > 0).sum()), bool(res.client_weights[sim.abnormal].any())
    (11, False)
    """

    has_limit = True
    sets_aside: ClassVar[bool] = True
    starts: int = 12
    handful: int = 2
    rival: InitialEstimates | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole_number(self.starts, "starts", 1)
        whole_number(self.handful, "handful", 1)
        whole_number(self.seed, "seed", 0, None)

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "trimmed scores"

    @property
    def needs(self) -> str:
        """Score statistics need curvatures."""
        return "curvature"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Concentrate, and run weighted DFL with the chosen clients."""
        runs: list[Run] = []
        rivals = np.zeros((0, problem.P))
        if self.rival is not None:
            given, _, runs = initial_estimates(self.rival, problem, plan)
            rivals = problem.mean(given)[None]
        sets = self.concentrate(problem.unpenalised, rivals)
        best = int(np.argmin(sets.misfit))
        steps = problem.steps(sets.chosen[:, best].astype(np.float64))
        centre = np.tile(sets.theta[best], (problem.M, 1))
        run = settle(problem, centre, steps, plan.after(runs), label=self.name)
        details = {"start": "random sets of clients", "misfit": float(sets.misfit[best])}
        return Outcome(run.theta, steps, [*runs, run], details, initial=centre)

    def concentrate(self, problem: Problem, rivals: Array) -> Concentrated:
        """Concentrate from the random sets and from other estimates, without rounds of the network.

        Parameters
        ----------
        problem : Problem
            Objective and network.
        rivals : ndarray (R, P)
            Other starts.

        Returns
        -------
        Concentrated
            Estimates, the sets that they come from, and their misfits.
        """
        begin = problem.mean(problem.objective.start())
        sets = _random_sets(problem, self.starts, self.handful, self.seed)
        theta = stacked_solutions(
            problem, problem.relative_sizes[:, None] * sets, np.tile(begin, (self.starts, 1)), ROUGH
        ).theta
        return _without_separated(problem, _concentrate(problem, np.vstack([theta, rivals])), begin)


@dataclass(frozen=True)
class Concentrated:
    """Candidates for the estimate, one for each start.

    Attributes
    ----------
    theta : ndarray (R, P)
        The estimates.
    chosen : ndarray (M, R) of bool
        The majorities that they come from.
    misfit : ndarray (R,)
        How badly these fit together (`losses.point_sums.majority_misfits`); the smallest is the best.
    """

    theta: Array
    chosen: Mask
    misfit: Array


def _without_separated(problem: Problem, concentrated: Concentrated, begin: Array) -> Concentrated:
    """Leave out estimates at infinity: covariates separate the responses of their majority (Albert & Anderson 1984).

    Their misfit is the smallest. Where all are of this kind, the estimate of all clients takes the first place.
    """
    size = problem.transport.largest(problem.glm.coefficient_sizes[None])
    while np.isfinite(concentrated.misfit).any():
        best = int(np.argmin(concentrated.misfit))
        far = not np.abs(concentrated.theta[best] * size).max() < FAR
        if not (far and _is_flat(problem, concentrated.theta[best], begin, concentrated.chosen[:, best])):
            return concentrated
        concentrated.misfit[best] = np.inf
    counted = np.asarray(problem.objective.counted)
    concentrated.theta[0] = weighted_solution(problem, problem.relative_sizes * counted, begin)
    concentrated.chosen[:, 0], concentrated.misfit[0] = counted, 0.0
    return concentrated


def _is_flat(problem: Problem, theta: Array, begin: Array, chosen: Mask) -> bool:
    """Return whether some clients' loss has in some direction lost its curvature from `begin` to theta (P,)."""
    total_weights = np.tile(problem.relative_sizes * chosen, (2, 1)).T
    equations = Equations(problem.glm, total_weights, problem.threads, problem.transport)
    there, here = equations.hessians_at(np.stack([theta, begin]), np.ones(2, dtype=bool))
    root = roots_of_inverses(here[None])[0][0]
    return bool(not np.linalg.eigvalsh(root.T @ there @ root)[0] > FLAT)


def _random_sets(problem: Problem, count: int, size: int, seed: int) -> Mask:
    """Return random sets of clients (M, count), each with at least `ROWS` rows per parameter."""
    every = problem.members.gather
    # Drawn by the clients' names, so that neither their order nor their place matters.
    codes = every(np.array([[crc32(f"{seed} {k} {label}".encode()) for k in range(count)] for label in problem.labels]))
    counted, sizes = every(problem.objective.counted), every(problem.glm.data.sizes)
    sets = np.zeros(codes.shape, dtype=bool)
    for k in range(count):
        order = np.argsort(codes[:, k], kind="stable")
        order = order[counted[order]]
        enough = int(np.searchsorted(np.cumsum(sizes[order]), ROWS * problem.P)) + 1
        sets[order[: max(size, enough)], k] = True
    return problem.members.ours(sets)


def _concentrate(problem: Problem, theta: Array) -> Concentrated:
    """Concentrate from all of theta (R, P), then further from the best few and from the last row."""
    scores = _Scores(problem, np.median(theta, axis=0))
    first = _steps(problem, scores, theta, FIRST_STEPS)
    go_on = np.unique([*np.argsort(first.misfit)[:BEST], len(theta) - 1])
    # These estimates come from majorities, so that the information at them is better than at those of small sets.
    scores = scores if problem.glm.quadratic else _Scores(problem, np.median(first.theta[go_on], axis=0))
    last = _steps(problem, scores, first.theta[go_on], LAST_STEPS)
    # The others stopped early and are not compared.
    misfit = np.full(len(theta), np.inf)
    first.theta[go_on], first.chosen[:, go_on], misfit[go_on] = last.theta, last.chosen, last.misfit
    return Concentrated(first.theta, first.chosen, misfit)


def _steps(problem: Problem, scores: _Scores, theta: Array, most: int) -> Concentrated:
    """Do up to `most` concentration steps from theta (R, P)."""
    chosen, solutions = np.zeros((problem.M, len(theta)), dtype=bool), None
    for _ in range(most):
        before, chosen = chosen, smallest_majority(scores.at(theta), problem.members)
        if not problem.members.count((chosen != before).any(axis=1)):
            break
        solutions = stacked_solutions(problem, problem.relative_sizes[:, None] * chosen, theta, ROUGH, solutions)
        theta = solutions.theta
    misfits = majority_misfits(problem.glm.data, problem.glm.family, theta, chosen, problem.transport.gather)
    return Concentrated(theta, chosen, misfits)


class _Scores:
    """The clients' score statistics, per unit of dispersion, at several estimates at once.

    They are those of `plain_scores` but for two things. The information is taken at one point for all estimates: it
    varies less than the scores, and a decomposition for each estimate would cost more than all else. And it is the
    observed one, which the objective has at hand, where the loss is convex. No null is needed: the statistics only
    order clients, and the majority is chosen by rank.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, problem: Problem, point: Array) -> None:
        self.problem = problem
        self.roots = np.empty((problem.M, problem.P, problem.P))
        # With Huber's loss the observed curvature of an outlying client is zero, and so would be its statistic.
        family = problem.glm.family
        for clients, matrices in problem.glm.curvature(point, expected=family.robust or not family.convex):
            self.roots[clients], _ = rao_roots(matrices, problem.glm.data.totals[clients])

    @np.errstate(over="ignore", invalid="ignore")
    def at(self, theta: Array) -> Array:
        """Return n_m g' H_m^+ g for every client and estimate (M, R)."""
        statistics = rao_statistics(self.problem.common_gradients(theta), self.roots)
        statistics[~self.problem.objective.counted] = np.inf
        return statistics
