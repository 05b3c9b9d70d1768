"""The interface of methods: `Method` and its `Outcome`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from adfl_stats._arguments import float64_array, listing
from adfl_stats._types import Array, InitialEstimates
from adfl_stats.engine.iteration import iterate
from adfl_stats.engine.ledger import inside
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Scheme
from adfl_stats.engine.rules import Rule
from adfl_stats.network.schedule import one_network
from adfl_stats.trust import ClientModel

__all__ = [
    "Combining",
    "Method",
    "Outcome",
    "check_needs",
    "check_neighbours",
    "check_undirected",
    "checked_outcome",
    "initial_estimates",
    "one_way_pair",
    "run_scheme",
]


@dataclass(frozen=True)
class Outcome:
    """The result of a method.

    Attributes
    ----------
    theta : ndarray (M, P)
        Each client's estimate.
    steps : ClientSteps
        Weights and steps of the last stage.
    runs : list of Run
        The stages in order, those of the start included.
    details : dict
        What the summary prints: lambda, measure, stages, start.
    smooth : bool
        Whether the estimate solves a weighted estimating equation, up to its step; medians do not.
    initial : ndarray (M, P) or None
        The estimates that the last stage began with, the subject of Condition 7; None where there are none.
    clients : ClientModel or None
        The model that the weights come from; None where they do not.
    discrepancies : ndarray (M,) or None
        s_m of equation (4.4), where lambda gives the weights exp(-lambda s_m).

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.plan import Plan
    >>> from adfl_stats.engine.problem import Problem
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1))
    >>> problem = Problem(losses, ad.networks.complete(4))
    >>> outcome = ad.DFL().estimate(problem, Plan(step=0.1, rounds=200))
    >>> outcome.theta.round(3).shape, outcome.steps.weights.tolist(), len(outcome.runs)
    ((4, 1), [1.0, 1.0, 1.0, 1.0], 1)
    """

    theta: Array
    steps: ClientSteps
    runs: list[Run]
    details: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True
    initial: Array | None = None
    clients: ClientModel | None = None
    discrepancies: Array | None = None


class Method(ABC):
    """An estimator over a network: the base of all methods, and of your own.

    A method defines `name` and `estimate`, and declares what it needs; the defaults are those of a rule of
    aggregation followed by a gradient step.

    Attributes
    ----------
    name : str
        Shown in summaries.
    needs : {"gradients", "losses", "scores", "curvature"}
        What it needs of the clients' losses: gradients, which every objective has; or also values; or scores, for which
        minibatches are enough; or curvatures and scores, which generalised linear models have.
    has_limit : bool
        Whether its rounds are those of weighted DFL, equation (4.1), whose limit ``solver="limit"`` solves for.
    sets_aside : bool
        Whether it gives clients whose numbers overflow the weight 0. Other methods refuse such data.
    models_clients : bool
        Whether its weights come from the model of clients.
    init : array, Series, DataFrame, results, method or None
        Initial estimates.
    balance : bool
        Whether it divides each client's step by its influence on the network.

    Examples
    --------
    A method that combines by medians, from parts of the package:

    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.round import Scheme
    >>> from adfl_stats.engine.rules import Rule
    >>> from adfl_stats.methods import run_scheme
    >>> class Medians(ad.Method):
    ...     name = "medians"
    ...
    ...     def estimate(self, problem, plan):
    ...         return run_scheme(self, Scheme(Rule("median"), schedule="phases"), problem, plan)
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> bool((model.fit(Medians()).params == model.fit(ad.Bridge("median")).params).all())
    True
    """

    sets_aside: ClassVar[bool] = False
    init: InitialEstimates | None = None
    balance: bool = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Shown in summaries."""

    @property
    def needs(self) -> str:
        """What it needs of the losses."""
        return "gradients"

    @property
    def has_limit(self) -> bool:
        """Whether ``solver="limit"`` can solve for the limit of its rounds."""
        return False

    @property
    def models_clients(self) -> bool:
        """Whether its weights come from the model of clients."""
        return False

    @abstractmethod
    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Estimate every client's parameters.

        Parameters
        ----------
        problem : Problem
            Objective, network and threads.
        plan : Plan
            Steps, rounds, solver and tolerance of the fit.

        Returns
        -------
        Outcome
            Estimates, weights and runs.
        """

    def known_weights(self, labels: pd.Index) -> Array | None:
        """Return the clients' weights omega_m where they are known before a fit.

        Parameters
        ----------
        labels : pandas.Index
            The clients.

        Returns
        -------
        ndarray (M,) or None
            None where the data decide.
        """
        return None

    def starting_from(self, init: InitialEstimates | None) -> Method:
        """Return the method with other initial estimates; TypeError for methods without `init`.

        Parameters
        ----------
        init : array, Series, DataFrame, results, method or None
            Initial estimates; see `ADFL`.

        Returns
        -------
        Method
            A copy.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> ad.DFL().starting_from(np.zeros(3)).init.tolist()
        [0.0, 0.0, 0.0]
        """
        if not (is_dataclass(self) and any(part.name == "init" for part in fields(self))):
            raise TypeError(f"method is {self!r}; a method with `init` is wanted, such as ad.ADFL()")
        return replace(self, init=init)


class Combining(Method):
    """A method that combines what a client hears by a rule of the kernel, in the place of the weighted mean.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.rules import Rule
    >>> from adfl_stats.methods._base import Combining
    >>> class Medians(Combining):
    ...     name = "medians"
    ...
    ...     def combination(self, problem):
    ...         return Rule("median")
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(10))
    >>> model.fit(Medians(), step=0.1, rounds=50).method.name
    'medians'
    """

    @abstractmethod
    def combination(self, problem: Problem) -> Rule:
        """Return the rule, after a check that the network allows it.

        Parameters
        ----------
        problem : Problem
            Objective and network.

        Returns
        -------
        Rule
            The kernel's rule of combination.
        """

    @property
    def settings(self) -> dict[str, Any]:
        """The rule's name and options, for summaries."""
        return {}

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion with the rule in the place of the mean."""
        scheme = Scheme(self.combination(problem), schedule="phases")
        return run_scheme(self, scheme, problem, plan, **self.settings)


# What an objective with gradients only does not have.
MISSING = {
    "losses": "the values of the losses",
    "scores": "the curvatures and scores of the losses, or minibatches of a known size (Losses(batch=...))",
    "curvature": "the curvatures and scores of the losses",
}


def check_needs(method: Method, problem: Problem, plan: Plan) -> None:
    """Raise ValueError where the objective does not have what the method or the solver needs."""
    objective = type(problem.objective).__name__
    has = {
        "gradients": True,
        "losses": problem.has_losses,
        "scores": problem.has_curvature or getattr(problem.objective, "batch", None) is not None,
        "curvature": problem.has_curvature,
    }
    if not has[method.needs]:
        # Minibatches take the place of scores where lambda is given, and of nothing else.
        judged = "'score'" if has["scores"] and method.needs == "curvature" else "'norm'"
        raise ValueError(
            f"{method.name} needs {MISSING[method.needs]}, and the objective, a {objective}, has gradients only. Use a "
            f"method that needs no more, such as ad.DFL(), ad.Bridge() or ad.ADFL(lam=1.0, measure={judged})"
        )
    if plan.solver == "limit" and not problem.has_curvature:
        raise ValueError(
            f"solver='limit' needs {MISSING['curvature']}, and the objective, a {objective}, has gradients only; run "
            f"{method.name} with solver='rounds', step= and rounds="
        )


def checked_outcome(method: Method, problem: Problem, outcome: Any) -> Outcome:
    """Return what a method found, after a look at its parts: a user may have written it."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{type(method).__name__}.estimate returned {outcome!r}; an Outcome is wanted")
    wanted = (problem.M, problem.P)
    if np.shape(outcome.theta) != wanted:
        raise ValueError(
            f"{type(method).__name__}.estimate returned theta of shape {np.shape(outcome.theta)}; every client's "
            f"estimate, {wanted}, is wanted"
        )
    if not outcome.runs:
        raise ValueError(
            f"{type(method).__name__}.estimate returned no runs; give the Outcome those of `iterate`, or for a method "
            "without rounds [Run(theta, step=1.0)]"
        )
    return outcome


def run_scheme(
    method: Method, scheme: Scheme, problem: Problem, plan: Plan, *, smooth: bool = False, **details: Any
) -> Outcome:
    """Run a scheme with weight 1 for every client, from the method's `init`.

    Parameters
    ----------
    method : Method
        Its name and initial estimates are taken.
    scheme : Scheme
        The rounds.
    problem : Problem
        Objective and network, as `estimate` has them.
    plan : Plan
        Step, rounds and stopping, as `estimate` has them.
    smooth : bool
        Whether the estimate solves the weighted estimating equation up to its step, so that its standard errors are
        those of that equation.
    **details
        What the summary prints of the method.

    Returns
    -------
    Outcome
        The estimates, and how the runs went.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.plan import Plan
    >>> from adfl_stats.engine.problem import Problem
    >>> from adfl_stats.engine.round import Scheme
    >>> from adfl_stats.methods import run_scheme
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1))
    >>> problem = Problem(losses, ad.networks.complete(4))
    >>> outcome = run_scheme(ad.DFL(), Scheme(), problem, Plan(step=0.1, rounds=200), smooth=True)
    >>> problem.mean(outcome.theta).round(3).tolist()
    [1.5]
    """
    theta, start, runs = initial_estimates(method.init, problem, plan)
    steps = problem.steps(np.ones(problem.M))
    run = iterate(problem, theta, steps, plan.after(runs), scheme=scheme, label=method.name)
    return Outcome(run.theta, steps, [*runs, run], {**start, **details}, smooth=smooth, initial=theta)


def check_neighbours(problem: Problem, name: str, least: int, reason: str) -> None:
    """Raise ValueError naming the clients that hear fewer than `least` others."""
    networks = (problem.network,) if problem.schedule is None else problem.schedule.networks
    if networks is None:
        raise ValueError(
            f"{name} needs at least {least} neighbours for every client ({reason}) in every round, which "
            f"{problem.schedule!r} does not guarantee; use ad.Bridge('median'), ad.DFL() or ad.ADFL()"
        )
    for W in (network.W for network in networks):
        few = np.diff(W.indptr) - (W.diagonal() > 0) < least
        if few.any():
            raise ValueError(
                f"{name} needs at least {least} neighbours for every client ({reason}); {int(few.sum())} hear fewer: "
                f"{listing(problem.all_labels[few])}. Add edges to them, or assume fewer abnormal neighbours"
            )


def one_way_pair(problem: Problem) -> tuple[Any, Any] | None:
    """Return two clients of which one hears the other and is not heard by it, or None on undirected networks."""
    pattern = (one_network(problem.topology, "a method for undirected networks").W > 0).astype(np.int8)
    rows, columns = (pattern - pattern.T).nonzero()
    return (problem.all_labels[rows[0]], problem.all_labels[columns[0]]) if len(rows) else None


def check_undirected(problem: Problem, name: str, *, weights: bool) -> None:
    """Raise ValueError unless neighbours hear each other, and (`weights`) with equal weights."""
    pair = one_way_pair(problem)
    if pair is not None:
        raise ValueError(
            f"{name} needs an undirected network; here one of {listing(pair)} hears the other and is not heard by it. "
            "Add the missing edges, or use a method for directed networks, such as ad.DFL()"
        )
    W = problem.network.W
    if weights and abs(W - W.T).max() > 1e-12:
        raise ValueError(
            f"{name} needs symmetric weights, so that rows and columns of W sum to one; here they differ by up to "
            f"{abs(W - W.T).max():.3g}. Use net.metropolis()"
        )


def initial_estimates(
    init: InitialEstimates | None, problem: Problem, plan: Plan
) -> tuple[Array, dict[str, Any], list[Run]]:
    """Return the estimates (M, P) of `init`, their entries in `details`, and the runs that they took.

    Parameters
    ----------
    init : None, array, Series, DataFrame, Results or Method
        None is the problem's own start; (P,) serves all clients, (M, P) has a row for each (a frame is
        matched by its labels); results give their `client_params`; a method is run under the plan.
    """
    if init is None:
        with inside(problem.transport, "start"):
            theta = problem.objective.start()
        usual = "local means" if problem.has_curvature else "the objective's own"
        return theta, {"start": usual if theta.any() else "zero"}, []
    if isinstance(init, Method):
        plan = plan.loosened()
        check_needs(init, problem, plan)
        outcome = checked_outcome(init, problem, init.estimate(problem, plan))
        return outcome.theta, {"start": init.name}, outcome.runs
    given: Any = init
    name = "given"
    if hasattr(given, "client_params"):
        given, name = given.client_params, f"results of {given.method.name}"
    if isinstance(given, pd.DataFrame):
        labels = problem.all_labels
        if set(given.index) != set(labels):
            raise ValueError("init has other clients than the data; its index must hold every client's label once")
        given = _by_name(given.loc[labels], given.columns, problem)
    elif isinstance(given, pd.Series):
        given = _by_name(given, given.index, problem)
    values = float64_array(given, "init")
    M, P = problem.n_clients, problem.P
    if values.shape not in ((P,), (M, P)):
        raise ValueError(f"init has shape {values.shape}; ({P},) for all clients or ({M}, {P}) is wanted")
    if not np.isfinite(values).all():
        raise ValueError("init has NaN or infinite values; every client needs a finite start")
    return problem.members.ours(np.broadcast_to(values, (M, P))).copy(), {"start": name}, []


def _by_name(init: Any, names: pd.Index, problem: Problem) -> Any:
    """Return the coefficients in the model's order where they carry its names; refuse other names."""
    wanted = problem.names
    if isinstance(names, pd.RangeIndex):
        return init
    if set(names) != set(wanted):
        raise ValueError(
            f"init has the coefficients {listing(names)}; the model's are {listing(wanted)}. Give these, or an array"
        )
    return init[list(wanted)]
