"""aDFL: weighted DFL with weights from the clients' discrepancies or from a model of clients.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from adfl_stats._arguments import in_interval, listing, one_of, whole_number
from adfl_stats._types import Array, ClientSet, InitialEstimates
from adfl_stats._warn import warn
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.ledger import phase
from adfl_stats.engine.limit import settle
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Scheme
from adfl_stats.errors import ConvergenceWarning, SelectionWarning
from adfl_stats.losses.design_checks import too_few_to_judge
from adfl_stats.losses.point_sums import majority_misfits, plain_scores
from adfl_stats.methods._base import Combining, Method, Outcome, initial_estimates
from adfl_stats.methods.bridge import Bridge
from adfl_stats.methods.descents import check_descent, said_of, scheme_of
from adfl_stats.methods.keeping import kept_weights, protected
from adfl_stats.methods.trimmed_scores import TrimmedScores
from adfl_stats.methods.tuning import GRID, LambdaPath, can_tune, lambda_path
from adfl_stats.trust import ClientModel, fit_client_model
from adfl_stats.trust.weights import (
    MEASURES,
    adaptive_weights,
    discrepancies,
    discrepancy_unit,
    disputed,
    smallest_majority,
)

__all__ = ["ADFL"]


# lambda in units of one over the median discrepancy where the clients have too few rows for cross-validation. Ours: a
# value of `tuning.GRID`; a client with three times the median discrepancy then has exp(-8) of the median one's weight.
UNTUNED = 4.0
# Two estimates of the normal clients' parameter are the same if they differ by less than so many standard errors. Ours:
# a score statistic at the one is then within sampling error of that at the other.
SAME = 0.5
# Two misfits are comparable if one is below so many times the other plus what leaving out a few normal clients gains.
# Ours: 2.7 at most in simulations of clean data with 3 to 50 coefficients, overdispersed counts included.
CLOSE, CLEAR = 1.1, 3.0
# Shares above which a warning is issued: of clients without weight (ours: within 1.2 binomial standard deviations of
# one half at 100 clients), of rows, and of the information about a coefficient (ours: a tenth and a half).
NEARLY_HALF, MOST_ROWS, MOST_LOST = 0.44, 0.1, 0.5
# Less of it is worth a warning too where few rows hold it: a quarter, and three times the share of the rows. Ours:
# these rows then have more information about the coefficient than others.
MUCH_LOST, DISPROPORTION = 0.25, 3.0
# A difference between two models of clients, in twice the log-likelihood, that is not decisive (ours: about the 95 %
# point of chi-square with 1 degree of freedom, 3.84); a p-value of Cochran's Q that is (ours: one false warning in
# 10,000 fits).
UNDECIDED, CLEARLY = 4.0, 1e-4
# Name of the start at the pooled estimate.
POOLED = "pooled estimate"


@dataclass(frozen=True, eq=False)
class ADFL(Method):
    """Adaptive DFL: weighted DFL, equation (4.1), with small weights omega_m for clients with a large discrepancy.

    By default omega_m is the probability that client m follows the majority, under a model of clients that may differ
    from one another (see `adfl_stats.trust`); the paper leaves the choice of lambda and of the start to its
    Appendix D, which is not public, and this is ours. With a number for `lam` it is the paper's method, Algorithm 1
    (one stage) or 2 (several): each stage measures every client's discrepancy s_m at its current estimate, gives it
    the weight omega_m = exp(-lam s_m), equation (4.4) with pi(x) = exp(-x), divides the weights by the largest (end
    of section 4.2; done in logs, so that a large lam cannot underflow) and runs weighted DFL. The next stage starts
    from the estimates of the last, as the text of section 4.2 says; Algorithm 2 as printed leaves that assignment out.

    Parameters
    ----------
    lam : float, sequence of float, "cv" or None
        lambda_n; several are compared by cross-validation inside the clients (see `tuning`), and "cv" compares
        a grid of multiples of one over the median discrepancy. None has no stages: the weights come from the model of
        clients.
    stages : int
        Number of stages S.
    init : array, Series, DataFrame, results, method or None
        Initial estimates: one row for all clients or one each, another fit, or a method to run first.
        None takes least trimmed scores (see `TrimmedScores`), or BRIDGE-M where the losses have gradients only.
    measure : {"norm", "score", "loss"} or None
        The discrepancy s_m: the norm of the client's gradient, as in the paper; or by how much the square root of
        Rao's score statistic n_m g' I_m^+ g / phi exceeds that of its chi-square 95 % point, and zero
        below, which allows for the clients' sizes and covariates and leaves ordinary clients their full
        weight. Losses of your own with minibatches have the norm in units of its sampling error instead, compared
        with its 95 % point (see `trust.minibatch_scores`). Rao's statistic has one dispersion for all clients; flags,
        p-values and `screen` use the score test of the model of clients, with its calibrated null distribution, so that
        the two may differ about a client.
        "loss" is the client's mean loss, for `Losses` (ours): of networks for images the norm does not distinguish
        clients with few classes from those with wrong labels.
        None takes "norm" with a single number for `lam`, else "score".
    equalise : bool or None
        Whether a last stage takes its weights from the model of clients. None does so unless `lam` is a single
        number.
    refresh : int or None
        Recompute the weights after every so many rounds, for corruption that begins during the run;
        needs `lam`, and `rounds` in the fit, and replaces `stages` and the last stage.
    balance : bool
        Divide each client's step by its influence on the network; see `DFL`.
    protect : labels, indices or boolean mask, optional
        Clients that keep their full weight whatever their data are. They are tested as the others are.
    rule : Bridge, ClippedGossip, GeometricMedian, IOS, NNA or None
        How a client combines what it hears, in the place of the weighted mean: against neighbours that send false
        estimates (`attacks`), while the weights are for data that do not fit. With a rule there are no standard
        errors, and no theory of the paper.
    clip : float or None
        The greatest length of a client's gradient, in the user's coordinates; longer ones are shortened to it. The
        paper assumes bounded gradients (section 6). In the limit clients then count as in Huber's M-estimation, the
        weight of a client with gradient g being omega_m min(1, clip / ||g||); there are no standard errors where a
        gradient is shortened at the estimate. Gradients of rows are clipped by ``losses.PrivateGLM(clip=, noise=0.0)``.
    local_steps : int
        Gradient steps between two exchanges, 1 in the paper. With k steps of size alpha the limit moves by about
        alpha (k - 1) / 2 H^-1 sum_m v_m f_m H_m g_m on a complete network, which is zero where clients are alike;
        ``model.local_updates(res)`` has it for given data and network, with the rounds that are saved.

    Notes
    -----
    In a model with a penalty, clients are tested without it: score statistics and the model of clients are those of
    their rows alone, at estimates without the penalty, which then counts in the last fit with the weights found. The
    gradient norm is that of the client's penalised loss, in all stages.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit(ad.ADFL())
    >>> sorted(res.client_weights.index[res.client_weights < 0.5]) == sorted(sim.abnormal_labels)
    True
    """

    sets_aside: ClassVar[bool] = True
    lam: float | str | Sequence[float] | None = None
    stages: int = 3
    init: InitialEstimates | None = None
    measure: str | None = None
    equalise: bool | None = None
    refresh: int | None = None
    balance: bool = False
    protect: ClientSet | None = None
    rule: Combining | None = None
    clip: float | None = None
    local_steps: int = 1

    def __post_init__(self) -> None:
        check_descent(self.clip, self.local_steps)
        if self.rule is not None and not isinstance(self.rule, Combining):
            raise TypeError(
                f"rule is {self.rule!r}; give a method that combines by a rule, such as ad.Bridge('median') or "
                "ad.ClippedGossip(), or None for the weighted mean"
            )
        if isinstance(self.lam, str):
            if self.lam != "cv":
                raise ValueError(f"lam is {self.lam!r}; give a number, several to choose from, 'cv' or None")
        elif self.lam is not None:
            # A list whose entries have different lengths has no ndim.
            many = isinstance(self.lam, Iterable) and getattr(self.lam, "ndim", 1) > 0
            values = list(self.lam) if many else [self.lam]  # type: ignore[arg-type]
            if not values:
                raise ValueError("lam is empty; give a number, several to choose from, 'cv' or None")
            for value in values:
                in_interval(value, "lam", 0.0, np.inf)
        whole_number(self.stages, "stages", 1)
        if self.measure is not None:
            one_of(self.measure, "measure", MEASURES)
        if self.refresh is not None:
            whole_number(self.refresh, "refresh", 1)
            if self.lam is None:
                raise ValueError(
                    f"refresh={self.refresh} recomputes the weights exp(-lam s_m); give lam, a number or 'cv'"
                )
        if self.equalise is False and self.lam is None:
            raise ValueError("equalise=False with lam=None defines no weights; give lam, a number or 'cv'")

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "aDFL" if self.rule is None else f"aDFL, {self.rule.name}"

    @property
    def has_limit(self) -> bool:
        """Whether its rounds are those of equation (4.1)."""
        return self.rule is None and self.clip is None and self.local_steps == 1

    @property
    def models_clients(self) -> bool:
        """Whether the last weights come from the model of clients."""
        return self.refresh is None and (not self._fixed if self.equalise is None else self.equalise)

    @property
    def needs(self) -> str:
        """Gradients are enough for the paper's method, their norm, with a given lambda; others need what they use."""
        if not self._fixed or self.models_clients:
            return "curvature"
        return {"norm": "gradients", "loss": "losses", "score": "scores"}[self._measure]

    @property
    def _measure(self) -> str:
        return self.measure or ("norm" if self._fixed else "score")

    @property
    def _fixed(self) -> bool:
        return self.lam is not None and not isinstance(self.lam, str) and np.ndim(self.lam) == 0

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the stages."""
        scheme = scheme_of(problem, self.clip, self.local_steps, self.rule)
        with phase(problem.transport, "start"):
            theta, details, runs = self._start(problem, plan)
        begin = problem.mean(theta)
        initial, clients, discrepancy = theta, None, None
        if self.lam is not None:
            theta, initial, steps, runs, more, discrepancy = self._stages(problem, plan, scheme, theta, runs)
            details |= more
        if self.models_clients:
            named = str(details.get("start", ""))
            starts = [(named, problem.mean(theta)), *([] if self.lam is None else [(named, begin)])]
            with phase(problem.transport, "flags"):
                clients, apart, taken = _client_model(problem.unpenalised, starts, plan.heterogeneity)
            details |= {"start": taken} | ({"disputed": apart} if apart else {})
            weights, kept = kept_weights(problem, clients, protected(self.protect, problem))
            details |= _warn_of_selection(problem, clients, weights, plan.heterogeneity) | kept
            shares = clients.information_shares if problem.weighting == "random-effects" else None
            steps = problem.steps(weights, balance=self.balance, shares=shares)
            if self.lam is None:
                theta = np.tile(_penalised(problem, clients.theta, steps.total_weights), (problem.M, 1))
            # With stages, `initial` is that of the last stage with weights from lambda, the subject of Condition 7.
            run = settle(problem, theta, steps, plan.after(runs), scheme=scheme, label="aDFL")
            theta, discrepancy = run.theta, None
            runs = [*runs, run]
        details |= {"equalise": clients is not None, "balance": self.balance, **said_of(problem, theta, steps, scheme)}
        smooth = self.rule is None and not details.get("clipped")
        return Outcome(theta, steps, runs, details, smooth, initial, clients, discrepancy)

    def _start(self, problem: Problem, plan: Plan) -> tuple[Array, dict[str, Any], list[Run]]:
        """Return initial estimates (M, P), their entries in `details`, and the runs that they took."""
        if self.init is not None:
            return initial_estimates(self.init, problem, plan)
        if not problem.has_curvature:
            return initial_estimates(Bridge("median"), problem, plan)
        start = TrimmedScores()
        sets = start.concentrate(problem.unpenalised, np.zeros((0, problem.P)))
        theta = sets.theta[int(np.argmin(sets.misfit))]
        return np.tile(theta, (problem.M, 1)), {"start": start.name}, []

    def _stages(
        self, problem: Problem, plan: Plan, scheme: Scheme, theta: Array, runs: list[Run]
    ) -> tuple[Array, Array, Any, list[Run], dict[str, Any], Array]:
        """Run the stages whose weights lambda gives, Algorithm 2; the discrepancies returned are those of the last."""
        measure = self._measure
        # A score statistic has its null at the estimate without a penalty; the norm is that of the client's whole loss.
        judged = problem.unpenalised if measure == "score" else problem
        discrepancy = discrepancies(judged, theta, measure)
        with phase(problem.transport, "tuning"):
            choice, path = self._choose(judged, problem.mean(theta), discrepancy, measure)
        plans, first = self._plans(plan), len(runs)
        keep = protected(self.protect, problem)
        for k, stage in enumerate(plans):
            if k > 0:
                discrepancy = discrepancies(judged, theta, measure)
            lam = (
                choice / discrepancy_unit(problem.transport.gather(discrepancy), measure)
                if isinstance(self.lam, str)
                else choice
            )
            weights = np.where(keep, 1.0, adaptive_weights(discrepancy, lam, problem.members))
            steps = problem.steps(weights, balance=self.balance)
            final = k + 1 == len(plans) and not self.models_clients
            stage = (stage if final else stage.loosened()).after(runs)
            run = settle(problem if final else judged, theta, steps, stage, scheme=scheme, label=f"aDFL stage {k + 1}")
            initial, theta = theta, run.theta
            runs = [*runs, run]
        details = {"lam": float(lam), "measure": measure, "stages": len(plans)}
        if path is not None:
            details["lambda_path"] = path.to_frame().to_dict("list")
        if self.refresh is not None:
            runs = [*runs[:first], _joined(runs[first:])]
        return theta, initial, steps, runs, details, discrepancy

    def _choose(
        self, problem: Problem, start: Array, discrepancy: Array, measure: str
    ) -> tuple[float, LambdaPath | None]:
        """Return lambda, or for "cv" its multiple of one over the median discrepancy, and how it was chosen."""
        if self._fixed:
            return float(self.lam), None  # type: ignore[arg-type]
        unit = discrepancy_unit(problem.transport.gather(discrepancy), measure)
        multiples = np.array(GRID) if isinstance(self.lam, str) else unit * np.sort(np.asarray(self.lam, float))
        if not can_tune(problem):
            return (UNTUNED if isinstance(self.lam, str) else float(np.median(multiples)) / unit), None
        lams = multiples / unit
        weights = np.stack([adaptive_weights(discrepancy, lam, problem.members) for lam in lams], axis=1)
        path = lambda_path(problem, weights, lams, start, balance=self.balance)
        return float((multiples if isinstance(self.lam, str) else lams)[path.best]), path

    def _plans(self, plan: Plan) -> list[Plan]:
        """Return the plans of the stages."""
        if self.refresh is None:
            return [plan] * self.stages
        if plan.rounds is None:
            raise ValueError(f"refresh={self.refresh} needs a number of rounds; pass rounds= to fit")
        whole, rest = divmod(plan.rounds, self.refresh)
        return [replace(plan, rounds=self.refresh)] * whole + ([replace(plan, rounds=rest)] if rest else [])


def _client_model(
    problem: Problem, starts: list[tuple[str, Array]], heterogeneity: str
) -> tuple[ClientModel, int, str]:
    """Fit the model of clients from a robust start, and from the pooled estimate where it leads elsewhere.

    Scores are those of one scoring step, so that the model depends on the start where the information does. Of two
    models the one with the smaller misfit of its majority is taken. Also returned: the number of clients on which two
    models with comparable misfits disagree, and the name of the start that led to the model that is taken.
    """
    taken, first = starts[0]
    best, every = fit_client_model(problem, first, heterogeneity), problem.transport.gather
    if problem.glm.quadratic or best.compared:
        # Readings were compared by the likelihood of the rows, whatever the start.
        return best, 0, taken
    pooled = weighted_solution(problem, problem.relative_sizes * problem.objective.counted, best.theta)
    rivals = [(name, start) for name, start in (*starts[1:], (POOLED, pooled)) if not _near(best, start)]
    apart, among = 0, [taken]
    for name, start in rivals:
        other = fit_client_model(problem, start, heterogeneity)
        if _near(best, other.theta):
            continue
        thetas = np.stack([best.theta, other.theta])
        scores = [plain_scores(problem.glm.data, problem.glm.family, one[None], every)[0] for one in thetas]
        chosen = smallest_majority(np.stack(scores, axis=1), problem.members)
        mine, its = majority_misfits(problem.glm.data, problem.glm.family, thetas, chosen, every)
        differ = disputed(every(best.weights < 0.5), every(other.weights < 0.5))
        apart = max(apart, differ if its < CLOSE * mine + CLEAR else 0)
        among += [name]
        best, taken = (other, name) if its < mine else (best, taken)
    if apart:
        warn(
            f"two models of the clients, begun from {' and '.join(dict.fromkeys(among))}, fit about equally well and "
            f"disagree about {apart} of {problem.n_clients} of them: the majority is not identified clearly. That from "
            f"{taken} is reported. See ad.compare_starts(model) and res.summary()",
            ConvergenceWarning,
        )
    return best, apart, taken


def _penalised(problem: Problem, theta: Array, total_weights: Array) -> Array:
    """Return where the last run begins: at the unpenalised estimate theta (P,), or at the penalised one.

    Where covariates separate the responses, theta is at infinity, from where no Newton step leads back.
    """
    if problem.glm.penalty is None:
        return theta
    return weighted_solution(problem, total_weights, problem.mean(problem.objective.start()))


def _warn_of_selection(problem: Problem, clients: ClientModel, weights: Array, heterogeneity: str) -> dict[str, str]:
    """Warn of consequences of the clients' weights; return the warnings for the summary."""
    aside, members, totals = weights < 0.5, problem.members, problem.glm.data.totals
    count = f"{members.count(aside)} of {problem.n_clients} clients"
    kept = members.sum_products(totals, weights)
    share = float(1.0 - kept / members.sum(totals))
    said = {}
    if 1.0 - float(members.mean(weights)) > NEARLY_HALF:
        said["majority"] = (
            f"{count} do not fit the others, nearly half: which group is the majority depends on few clients. Compare "
            "both groups; see res.clients()"
        )
    if share > MOST_ROWS:
        said["selection"] = (
            f"{share:.0%} of the rows were set aside, with {count} that do not fit the majority (weight below 0.5). "
            "The estimate is that of the others; see res.clients() and res.heterogeneity()"
        )
    few = too_few_to_judge(problem.glm.family, members.gather(problem.glm.data.sizes), problem.P)
    if few and members.count(aside):
        said["few rows"] = (
            f"the model has {few}, nor are weights: {count} were set aside, and normal ones may be among them. Take "
            "fewer columns or classes, larger clients, or ad.DFL(), which gives all clients equal weight"
        )
    if clients.lead < UNDECIDED:
        said["undecided"] = (
            f"whether some clients are a coherent minority or the heterogeneity of all clients is not decided: the two "
            f"models differ by {clients.lead:.1f} in twice the log-likelihood, and {count} were set aside. Compare "
            "heterogeneity='none' and 'estimate'"
        )
    held = clients.information_lost(aside)
    lost = (held > MOST_LOST) | (held > max(MUCH_LOST, DISPROPORTION * share))
    if lost.any():
        much = (
            "most" if (held[lost] > MOST_LOST).all() else f"{held[lost].min():.0%}{' or more' * bool(lost.sum() > 1)}"
        )
        names = listing(np.asarray(problem.names)[lost])
        said["coefficients"] = (
            f"the clients that were set aside hold {much} of the information about {names}; its estimate depends on "
            "the others. ADFL(protect=[...]) keeps clients that you name"
        )
    if not clients.settled:
        said["passes"] = (
            f"the weights of the clients did not settle: in the last pass over the data the estimate still moved by "
            f"{clients.move:.2g} of its standard errors. Compare heterogeneity='none' and 'estimate'"
        )
    if heterogeneity == "none" and clients.cochran[2] < CLEARLY:
        said["spread"] = (
            f"heterogeneity is 'none', but the clients with weight are heterogeneous (Cochran's Q has p = "
            f"{clients.cochran[2]:.2g}): standard errors and p-values are too small. Use heterogeneity='auto'"
        )
    for text in said.values():
        warn(text, SelectionWarning)
    return said


def _near(clients: ClientModel, theta: Array) -> bool:
    """Return whether theta is within a small part of a standard error of the model's estimate."""
    error = clients.units / np.sqrt(max(float(clients.summaries.members.sum(clients.weights)), 1.0))
    return bool((np.abs(theta - clients.theta) < SAME * error).all())


def _joined(runs: list[Run]) -> Run:
    """Return the runs as one, whose weights changed on the way."""
    whole = Run(runs[-1].theta, runs[-1].step, began=runs[0].began, metric=runs[-1].metric)
    for run in runs:
        whole.trace += [line | {"round": line["round"] + whole.rounds} for line in run.trace]
        whole.watched += run.watched
        whole.rounds += run.rounds
    return whole
