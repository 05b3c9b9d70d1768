"""The model for user-defined losses, given by their gradients, on a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from adfl_stats._arguments import in_interval, listing, one_of, whole_number
from adfl_stats._threads import one_blas_thread, team_of
from adfl_stats._types import Array
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.ledger import Counted, phase
from adfl_stats.engine.plan import MAX_ROUNDS, MOST_ROUNDS, Plan, Run
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.inference.contrast_errors import contrast_table
from adfl_stats.inference.objective_results import ObjectiveRecord, ObjectiveResults, at_params
from adfl_stats.inference.record import run_parts
from adfl_stats.losses.objective import Objective, checked_objective
from adfl_stats.methods import DFL, Method, check_needs, checked_outcome
from adfl_stats.methods.plans import check_attack, check_method
from adfl_stats.network.matching import as_network
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["DecentralizedModel"]

WEIGHTINGS = ("sample", "client")


class DecentralizedModel:
    """Losses of any kind whose data stay with the clients of a network.

    Parameters
    ----------
    objective : Objective
        An object with ``M, P, labels, names, totals, counted, start()`` and ``gradients(theta, threads)``, which
        returns each client's gradient at each of its R parameter vectors, (M, R, P) for theta (M, R, P). With a method
        ``curvature(theta)``, which returns the clients' Hessians (M, P, P) at theta (P,), results have standard errors.
    network : Network or NetworkSchedule
        Who listens to whom, always or in turn; its labels must be those of the objective, in any order.
    weighting : {"sample", "client"}
        Whether clients count by their totals, or once each.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> import adfl_stats as ad
    >>> class Means:
    ...     M, P, labels, names = 4, 1, pd.RangeIndex(4), ["mean"]
    ...     totals, counted = np.ones(4), np.ones(4, dtype=bool)
    ...     y = np.array([1.0, 2.0, 3.0, 6.0])
    ...     def start(self):
    ...         return np.zeros((4, 1))
    ...     def gradients(self, theta, threads=1):
    ...         return theta - self.y[:, None, None]
    >>> res = ad.DecentralizedModel(Means(), ad.networks.complete(4)).fit(step=0.1, rounds=200)
    >>> round(float(res.params["mean"]), 6), res.without_errors
    (3.0, 'not available, the objective gives gradients only')
    """

    def __init__(self, objective: Objective, network: Network | NetworkSchedule, *, weighting: str = "sample") -> None:
        network = as_network(network, "network")
        self.objective = checked_objective(objective)
        self.weighting = one_of(weighting, "weighting", WEIGHTINGS)
        labels = self.objective.labels
        apart = network.labels.symmetric_difference(labels)
        if len(apart):
            raise ValueError(f"objective and network must have the same clients; in one of them only: {listing(apart)}")
        self.network = network if network.labels.equals(labels) else network.reindex(labels)

    def fit(
        self,
        method: Method | None = None,
        *,
        step: float,
        rounds: int | None = None,
        max_rounds: int = MAX_ROUNDS,
        progress: bool = False,
        threads: int | None = None,
        attack: Attack | None = None,
        lines: int = 100,
        schedule: str = "constant",
    ) -> ObjectiveResults:
        """Estimate the parameters on every client.

        Parameters
        ----------
        method : Method, optional
            One that needs gradients only: `DFL` (if not given), ``ADFL(lam=..., measure="norm")``, `Bridge`, ...
        step : float
            The learning rate alpha; without curvature nothing chooses it.
        rounds : int, optional
            Rounds per stage. Without it the run goes on until the clients' moves are negligible.
        max_rounds : int
            Rounds per stage after which a run without `rounds` gives up, with a warning.
        progress : bool
            Show a progress bar (tqdm).
        threads : int, optional
            Handed to ``objective.gradients``.
        attack : Attack, optional
            Clients that send false messages, from `attacks`.
        lines : int
            About how many lines the trace of a run with `rounds` has; losses and metrics are taken for each.
        schedule : {"constant", "plateau"}
            Whether the step stays, or is cut to a tenth where rounds with minibatches have become stationary: the
            constant-and-cut schedule of Lang, Zhang & Xiao (2019), which the paper uses for images. Needs `rounds`;
            ``res.trace`` has the steps.

        Returns
        -------
        ObjectiveResults
            Estimates; standard errors by client where the objective has curvatures.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(5), np.zeros(1), labels=list("abcde"))
        >>> model = ad.DecentralizedModel(losses, ad.networks.complete(5, labels=list("abcde")))
        >>> model.fit(step=0.1, rounds=150, threads=1).params.round(6).to_dict()
        {'p0': 2.0}
        """
        method = DFL() if method is None else method
        check_method(method)
        check_attack(attack)
        plan = Plan(
            step=in_interval(step, "step", 0.0, np.inf, open_low=True),
            rounds=None if rounds is None else whole_number(rounds, "rounds", 1, MOST_ROUNDS),
            max_rounds=whole_number(max_rounds, "max_rounds", 1, MOST_ROUNDS),
            progress=progress,
            attack=attack,
            lines=whole_number(lines, "lines", 1),
            schedule=one_of(schedule, "schedule", ("constant", "plateau")),
        )
        if plan.schedule == "plateau" and plan.rounds is None:
            raise ValueError("schedule='plateau' needs a number of rounds; pass rounds=")
        problem = self._problem(team_of(threads))
        check_needs(method, problem, plan)
        with one_blas_thread():
            with phase(problem.transport, "rounds"):
                outcome = checked_outcome(method, problem, method.estimate(problem, plan))
            parts: dict[str, Any] = run_parts(problem, method, outcome, plan, [])
            if (spent := getattr(problem.objective, "spent", None)) is not None:
                parts["details"] |= spent()
            params, last = problem.mean(outcome.theta), outcome.runs[-1]
            parts |= at_params(problem, params, outcome.steps, last, weighted=parts["weighted"])
            parts["history"] = _history(outcome.runs)
            parts["details"] |= _said_of(problem)
        return ObjectiveResults(ObjectiveRecord(**parts))

    def contrasts(self, res: ObjectiveResults, contrasts: ArrayLike, alpha: float = 0.05) -> pd.DataFrame:
        """Return estimates c' theta with standard errors by client, however many parameters there are.

        The variance is M / (M - 1) sum_m (v_m g_m' u / M)^2 with H u = c, solved by conjugate gradients from Hessian
        products; it is that of ``res.cov_params()`` where that is available. The noise of minibatches is not in it.

        Parameters
        ----------
        res : ObjectiveResults
            A fit of this model by `DFL`, `Oracle` or `ADFL`.
        contrasts : array (P,) or (R, P)
            The vectors c.
        alpha : float
            Confidence limits are at level 1 - alpha.

        Returns
        -------
        DataFrame
            estimate, se, lower and upper limit for each row.

        Examples
        --------
        >>> import numpy as np
        >>> import adfl_stats as ad
        >>> losses = ad.Losses(
        ...     lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1), product=lambda m, theta, vector: vector
        ... )
        >>> model = ad.DecentralizedModel(losses, ad.networks.complete(4))
        >>> table = model.contrasts(model.fit(step=0.1, rounds=300), [1.0])
        >>> table["estimate"].round(6).tolist(), bool(np.isclose(table["se"][0], np.std(range(4), ddof=1) / 2))
        ([1.5], True)
        """
        products = getattr(self.objective, "hessian_products", None)
        if products is None:
            raise ValueError(
                "contrasts need Hessian products, which the objective does not have; give Losses(product=...), or "
                "hessian=True to from_jax or from_torch"
            )
        alpha = in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True)
        return contrast_table(res, products, contrasts, alpha)

    def _problem(self, threads: int) -> Problem:
        # Minibatches of a fit begin with the first, whatever was fitted before.
        fresh = getattr(self.objective, "fresh", None)
        objective = self.objective if fresh is None else fresh()
        counted = Counted(LOCAL)
        with phase(counted, "start"):
            return Problem(objective, self.network, self.weighting, threads, counted)


def _said_of(problem: Problem) -> dict[str, Any]:
    """Return notes on the objective for the summary: minibatches, and Hessians that are too large."""
    objective, said = problem.objective, dict[str, Any]()
    if getattr(objective, "batch", None) is not None:
        said["batch"] = objective.batch  # type: ignore[attr-defined]
    products = getattr(objective, "hessian_products", None)
    if products is not None and getattr(objective, "curvature", None) is None:
        said["no_hessian"] = f"not available for {problem.P} parameters at once; see model.contrasts"
    return said


def _history(runs: Sequence[Run]) -> dict[str, Array]:
    """Return what was followed, for each line of the trace of all runs: (lines, M)."""
    lines = [line for run in runs for line in run.watched]
    return {name: np.stack([line[name] for line in lines]) for name in (lines[0] if lines else {})}
