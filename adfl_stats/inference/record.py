"""The record of a fit: arrays, numbers and text, without the data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adfl_stats._algebra import inverse, row_squares
from adfl_stats._properties import once
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.formula import ParsedFormula
from adfl_stats.engine.ledger import Counted, Ledger, uncounted
from adfl_stats.engine.numerical_error import NumericalError, sandwich
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.inference.at_estimate import AtEstimate
from adfl_stats.inference.by_row import ByRow
from adfl_stats.inference.client_contrasts import FEW_CLIENTS, identified
from adfl_stats.inference.client_diagnostics import ClientDiagnostics
from adfl_stats.inference.client_record import ClientEffects, ClientRecord
from adfl_stats.inference.clustered import Clustered
from adfl_stats.losses.entry_names import kept_names
from adfl_stats.losses.families import Family
from adfl_stats.losses.penalties import Ridge
from adfl_stats.losses.point_sums import WeightedSums
from adfl_stats.losses.regularity import Regularity
from adfl_stats.methods import Method, Outcome
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.trust.weights import trusted_by

if TYPE_CHECKING:
    from formulaic import ModelSpec

__all__ = ["FitRecord", "Recipe", "RunRecord", "Start", "fit_record", "run_parts"]


# Rows of trusted clients, and residuals per coefficient (a row of the multinomial family has one a class), below which
# standard errors allow for leverage (HC2 with t). The first is of Long & Ervin (2000), who find HC0 too small up to 250
# rows; the second is ours: with fewer, nominal 95 % intervals by HC0 and z lose more than .005 of their coverage with
# normal covariates, see benchmarks/interval_coverage.py. Its inverse is the mean leverage.
FEW_ROWS, FEW_PER_COEFFICIENT = 250, 50
# With fewer clients than this, a variance from their differences is too imprecise; it is used only if they clearly
# differ. Ours: t with 4 degrees of freedom has intervals 1.4 times as long as the normal distribution.
LEAST_FOR_CLUSTERED = 6


@dataclass(frozen=True, eq=False)
class Start:
    """Where a stage began, in as few numbers as Condition 7 and Theorem 2 need.

    Attributes
    ----------
    centre : ndarray (P,)
        The mean over the clients of their initial estimates, from which their weights come (Condition 7); NaN where a
        method has none.
    spread : float
        The mean of their squared distances from it.
    reach, stacked : float
        Of the estimates that the last run began with: the largest distance of one of them from the final estimate,
        delta_0 of Theorem 2, and the norm of all these distances, ||theta*(0) - I* theta||.
    """

    centre: Array
    spread: float
    reach: float
    stacked: float

    @classmethod
    def of(cls, initial: Array | None, began: Array | None, params: Array, members: Members = EVERYBODY) -> Start:
        """Sum up initial estimates and those before the last run (M, P) of all clients beside the final one (P,)."""
        centre, spread, reach, stacked = np.full(len(params), np.nan), np.nan, np.nan, np.nan
        if initial is not None:
            centre = members.mean(initial)
            spread = float(members.mean(row_squares(initial, centre)))
        if began is not None:
            away = np.sqrt(row_squares(began, params))
            reach, stacked = float(members.transport.largest(away)), float(np.sqrt(members.sum(np.square(away))))
        return cls(centre, spread, reach, stacked)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a fit was made, to make it again on other clients.

    Attributes
    ----------
    method : Method
        The method.
    heterogeneity : str
        Whether clients may differ, as given to `fit`.
    """

    method: Method
    heterogeneity: str


@dataclass(frozen=True, eq=False, kw_only=True)
class RunRecord:
    """What a run of any method on any objective leaves behind.

    Attributes
    ----------
    method : str
        Its name.
    weighted : bool
        Whether a round was a weighted mean of honest messages and a gradient step, equation (4.1).
    details : dict
        What the method chose: lambda, measure, stages, start.
    network : Network or NetworkSchedule
        In the order of the clients.
    theta : ndarray (M, P)
        The clients' estimates.
    weights, total_weights : ndarray (M,)
        omega_m and v_m.
    set_aside : ndarray (M,) of bool
        Clients whose numbers overflow, and which have no weight.
    tolerance : float
        The largest numerical error that was asked for, in standard errors.
    trace_columns : dict
        Trace of the runs, one entry per check of convergence.
    start : Start
        The initial estimates, summed up.
    smooth : bool
        Whether the estimate solves the weighted estimating equation, up to its step.
    solver : {"rounds", "limit"}
        Whether the last run ran its rounds, or solved for their limit.
    step : float
        The learning rate of the last rounds.
    rounds, total_rounds : int
        Rounds of the last run and of all; passes over the data where their limit was solved for.
    labels : pandas.Index (M,)
        The clients.
    names : sequence of str (P,)
        The coefficients.
    client_name : str
        What clients are called in tables.
    weighting : {"sample", "client", "random-effects"}
        How clients count, as given to the model.
    rounds_needed : float
        About how many rounds lead to a limit that was solved for; NaN elsewhere.
    members : Members
        The clients; those of the rows are ours. A file does not keep it: all clients of a loaded record are ours.
    ledger : Ledger
        What left a client.
    discrepancies : ndarray (M,) or None
        s_m of equation (4.4), where lambda gives the weights.
    """

    method: str
    weighted: bool
    details: dict[str, Any]
    network: Network | NetworkSchedule
    theta: Array
    weights: Array
    total_weights: Array
    set_aside: Mask
    tolerance: float
    trace_columns: dict[str, NDArray[Any]]
    start: Start
    smooth: bool
    solver: str
    step: float
    rounds: int
    total_rounds: int
    labels: pd.Index
    names: Sequence[str]
    client_name: str = "client"
    weighting: str = "sample"
    rounds_needed: float = np.nan
    members: Members = EVERYBODY
    ledger: Ledger = field(default_factory=Ledger)
    discrepancies: Array | None = None

    @once
    def params(self) -> Array:
        """The estimate (P,): the mean of theta over all clients."""
        return self.members.mean(self.theta)

    @property
    def all_labels(self) -> pd.Index:
        """The names of all clients, where `labels` are those of ours."""
        if self.members.numbers is None:
            return self.labels
        return pd.Index(self.members.gather(self.labels.to_numpy()))

    @property
    def influence(self) -> Array:
        """M pi_m of our clients (M,)."""
        return np.asarray(self.network.n_clients * self.members.ours(self.network.influence.to_numpy()))

    @property
    def discrepancy_column(self) -> dict[str, Array]:
        """The column of tables with the discrepancies; none where the weights do not come from them."""
        if self.discrepancies is None:
            return {}
        return {"discrepancy": np.where(self.set_aside, np.inf, self.discrepancies)}

    @property
    def trusted(self) -> Mask:
        """The clients that are not down-weighted."""
        return trusted_by(self.weights, self.members)

    @once
    def trace(self) -> pd.DataFrame:
        """One line per check of convergence."""
        return pd.DataFrame(self.trace_columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class FitRecord(RunRecord):
    """The state of a `Results`: beside the attributes of `RunRecord` those of a generalised linear model.

    Attributes
    ----------
    family : Family
        With its constants.
    metric : ndarray (p, p) or None
        The coordinates of the steps; None for the user's own.
    n_dropped : int
        Rows that were left out for missing values.
    sizes : ndarray (M,) of int64
        The clients' numbers of rows.
    columns : list of str
        The columns of the design matrix.
    classes : tuple or None
        The classes of a response of labels, in the order of their codes.
    y_name : str
        The response.
    at_estimate : AtEstimate
        Inference at the estimate, of which each part is computed when it is first used.
    spec : ModelSpec or None
        The formula's specification, which turns new rows into columns.
    formula : ParsedFormula or None
        The formula, where there was one.
    lost_formula : str
        Why a file did not keep the specification.
    chosen_cov_type : str or None
        The covariance that was asked for; None leaves the choice to `cov_type`.
    penalty : Ridge or None
        With one number for each coefficient.
    recipe : Recipe or None
        How to make the fit again.
    """

    family: Family
    metric: Array | None
    n_dropped: int
    sizes: Ints
    columns: list[str]
    classes: tuple[Hashable, ...] | None
    y_name: str
    at_estimate: AtEstimate
    spec: ModelSpec | None = None
    formula: ParsedFormula | None = None
    lost_formula: str = ""
    chosen_cov_type: str | None = None
    penalty: Ridge | None = None
    recipe: Recipe | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A pickle has all of inference, which is counted in the ledger before that is written.
        self.at_estimate.parts()
        return self.__dict__

    @property
    def preconditioned(self) -> bool:
        """Whether steps were taken in other coordinates than the user's: theta_m moves by -alpha f_m Q grad L_m."""
        return self.metric is not None

    @property
    def effective_parameters(self) -> float:
        """P, or with a penalty of curvature C the effective number tr (I + C)^-1 I (Hastie & Tibshirani 1990)."""
        if self.penalty is None:
            return float(len(self.names))
        penalised = self.weighted_sums.information
        rows = penalised - float(self.members.mean(self.total_weights)) * np.diag(self.penalty.curvature(self.params))
        return float(np.trace(inverse(penalised) @ rows))

    @property
    def cov_type(self) -> str:
        """The covariance of tests and intervals: as chosen; by client where clients differ, or may well (see `glance`).

        Otherwise by row, with leverages where rows are few.
        """
        if self.chosen_cov_type is not None:
            return self.chosen_cov_type
        if self.smooth and ((self.glance.differ and self.clustered.clients > 1) or self._may_differ):
            return "CR2"
        rows = self.glance.members.sum_counts(self.sizes[self.trusted])
        few = rows < FEW_ROWS or rows * self.family.outputs < FEW_PER_COEFFICIENT * len(self.names)
        return "HC2" if self.smooth and few else "sandwich"

    @property
    def _may_differ(self) -> bool:
        """Whether clients are few and vary more than their rows explain: Cochran's Q is above its degrees of freedom.

        A test has little power then, and intervals that take clients as alike unless it rejects cover too rarely.
        """
        P, few = len(self.names), self.members.count(self.trusted) < FEW_CLIENTS
        if not few or (self.recipe is not None and self.recipe.heterogeneity == "none"):
            return False
        statistic, df, _ = self.glance.cochran
        if not statistic > df or self.clustered.clients < max(LEAST_FOR_CLUSTERED, P + 1):
            return False
        return bool(identified(self.clustered.working, self.clustered.expected, np.eye(P)).all())

    @once
    def sandwich(self) -> Array:
        """The covariance H^-1 B H^-1 of a solution of the weighted equation, whether the method solves it or not."""
        return sandwich(self.weighted_sums.hessian, self.weighted_sums.meat)[1]

    @property
    def weighted_sums(self) -> WeightedSums:
        """Gradients, curvature and meat at the estimate."""
        return self.at_estimate.weighted_sums

    @property
    def error(self) -> NumericalError:
        """The numerical error."""
        return self.at_estimate.error

    @property
    def glance(self) -> ClientRecord:
        """The clients as the summary shows them: as in `clients`, unless preliminary tests find no heterogeneity."""
        return self.at_estimate.glance

    @property
    def clients(self) -> ClientRecord:
        """The model of clients at the estimate."""
        return self.at_estimate.clients

    @property
    def effects(self) -> ClientEffects:
        """The clients' deviations."""
        return self.at_estimate.effects

    @property
    def clustered(self) -> Clustered:
        """The sums for inference by client."""
        return self.at_estimate.clustered

    @property
    def by_row(self) -> ByRow:
        """What inference by row needs beside the sandwich."""
        return self.at_estimate.by_row

    @property
    def diagnostics(self) -> ClientDiagnostics:
        """Split-sample statistics, and shifts of the estimate without each client."""
        return self.at_estimate.diagnostics

    @property
    def regularity(self) -> Regularity:
        """Curvatures and moments of Conditions 3 and 4."""
        return self.at_estimate.regularity


def run_parts(problem: Problem, method: Method, outcome: Outcome, plan: Plan, said: list[str]) -> dict[str, Any]:
    """Return the fields of a `RunRecord`."""
    last, weights = outcome.runs[-1], outcome.steps.weights
    return {
        "method": method.name,
        "weighted": method.has_limit and plan.attack is None,
        "details": outcome.details
        | ({} if plan.attack is None else {"attack": type(plan.attack).__name__})
        | ({"warnings": said} if said else {}),
        "network": problem.topology,
        "theta": outcome.theta,
        "weights": weights,
        "total_weights": outcome.steps.total_weights,
        "set_aside": ~np.asarray(problem.objective.counted) & (weights == 0.0),
        "tolerance": plan.tolerance,
        "trace_columns": _trace_columns(outcome.runs),
        "start": Start.of(outcome.initial, last.began, problem.mean(outcome.theta), problem.members),
        "members": replace(problem.members, transport=uncounted(problem.transport)),
        "ledger": problem.transport.ledger if isinstance(problem.transport, Counted) else Ledger(),
        "smooth": outcome.smooth,
        "solver": last.solver,
        "step": last.step,
        "rounds": last.rounds,
        "rounds_needed": last.needed,
        "total_rounds": sum(run.rounds for run in outcome.runs),
        "labels": problem.labels,
        "names": kept_names(problem.names),
        "weighting": problem.weighting,
        "discrepancies": outcome.discrepancies,
    }


def fit_record(
    model: Any, problem: Problem, method: Method, outcome: Outcome, plan: Plan, said: list[str]
) -> FitRecord:
    """Put together what results of a GLM hold; inference is computed when it is first used."""
    glm = problem.glm
    return FitRecord(
        **run_parts(problem, method, outcome, plan, said),
        family=glm.family,
        n_dropped=glm.data.n_dropped,
        metric=outcome.runs[-1].metric,
        sizes=glm.data.sizes,
        columns=list(glm.data.names),
        classes=glm.data.classes,
        y_name=glm.data.y_name,
        client_name=glm.data.client_name,
        at_estimate=AtEstimate(model, problem, outcome, plan.heterogeneity),
        spec=glm.data.spec,
        formula=glm.data.formula,
        penalty=glm.penalty,
        recipe=Recipe(method, plan.heterogeneity),
    )


def _trace_columns(runs: list[Run]) -> dict[str, NDArray[Any]]:
    """Return the traces of the runs, one after the other."""
    lines = [{"run": k, **line} for k, run in enumerate(runs) for line in run.trace]
    return {name: np.array([line[name] for line in lines]) for name in ("run", "round", "step", "moved", "consensus")}
