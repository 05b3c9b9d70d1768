"""The one small shape of every method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from adfl_stats._validation import float64_array, listing
from adfl_stats.engine import Plan, Run
from adfl_stats.problem import ClientSteps, Problem

__all__ = ["Method", "Outcome", "initial_estimates"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a method found.

    Attributes
    ----------
    theta : ndarray (M, P)
        Each client's estimate.
    steps : ClientSteps
        Trust and steps of the last stage.
    runs : list of Run
        The stages in order, the start's own among them.
    details : dict
        Words and numbers for the summary: lambda, measure, stages, start.
    smooth : bool
        Whether the estimate solves a weighted estimating equation, up to its step; medians do not.
    initial : ndarray (M, P) or None
        The estimates that the last stage began with, of which Condition 7 speaks; None where there are
        none.
    """

    theta: Array
    steps: ClientSteps
    runs: list[Run]
    details: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True
    initial: Array | None = None


@runtime_checkable
class Method(Protocol):
    """A way to estimate; all of them see the same problem and the same plan."""

    @property
    def name(self) -> str:
        """Shown in summaries."""

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Estimate every client's parameters."""


def initial_estimates(init: Any, problem: Problem, plan: Plan) -> tuple[Array, str, list[Run]]:
    """Turn `init` into estimates (M, P), their name and the runs they cost.

    Parameters
    ----------
    init : None, array, Series, DataFrame, Results or Method
        None is the problem's own start; (P,) serves all clients, (M, P) has a row for each (a frame is
        matched by its labels); results give their `client_params`; a method is run under the plan.
    """
    if init is None:
        theta = problem.start()
        return theta, "local means" if theta.any() else "zero", []
    if isinstance(init, Method) and not isinstance(init, type):
        outcome = init.estimate(problem, plan.loosened())
        return outcome.theta, init.name, outcome.runs
    name = "given"
    if hasattr(init, "client_params"):
        init, name = init.client_params, f"results of {init.method.name}"
    if isinstance(init, pd.DataFrame):
        labels = problem.data.labels
        if set(init.index) != set(labels):
            raise ValueError("init has other clients than the data; its index must hold every client's label once")
        init = _by_name(init.loc[labels], init.columns, problem)
    elif isinstance(init, pd.Series):
        init = _by_name(init, init.index, problem)
    values = float64_array(init, "init")
    if values.shape not in ((problem.P,), (problem.M, problem.P)):
        raise ValueError(
            f"init has shape {values.shape}; ({problem.P},) for all clients or ({problem.M}, {problem.P}) is wanted"
        )
    if not np.isfinite(values).all():
        raise ValueError("init has NaN or infinite values; every client needs a finite start")
    return np.broadcast_to(values, (problem.M, problem.P)).copy(), name, []


def _by_name(init: Any, found: pd.Index, problem: Problem) -> Any:
    """Return the coefficients in the model's order where they carry its names; refuse other names."""
    wanted = problem.coefficient_names
    if isinstance(found, pd.RangeIndex):
        return init
    if set(found) != set(wanted):
        raise ValueError(
            f"init has the coefficients {listing(found)}; the model's are {listing(wanted)}. Give these, or an array"
        )
    return init[wanted]
