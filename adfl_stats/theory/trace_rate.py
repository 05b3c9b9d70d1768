"""The contraction factor observed in the trace of a fit, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from adfl_stats.inference.record import FitRecord

__all__ = ["Observed", "observed_factor"]

# Ours: least rounds of a phase of constant step; in fewer, fast modes still dominate its slope.
LEAST_SPAN = 10


@dataclass(frozen=True)
class Observed:
    """A factor seen in the trace.

    Attributes
    ----------
    value : float
        The factor; NaN where the trace shows none.
    step : float
        The step of the phase it belongs to; NaN where there is none.
    note : str
        The rounds it was seen in, or why there is none.
    last : int
        The last of these rounds; 0 where there is none.
    """

    value: float
    step: float
    note: str
    last: int = 0


def observed_factor(fit: FitRecord) -> Observed:
    """Fit a geometric sequence to the moves of the longest phase of constant step in the last run.

    Only the last run has the final weights. Where `fit` cuts the step, its last phase often has one line of
    trace; an earlier phase, at a larger step, has more. Moves near rounding do not count.
    """
    if fit.solver == "limit":
        return _none("no rounds were run: the limit was solved for directly")
    trace = fit.trace[fit.trace["run"] == fit.trace["run"].max()]
    rounding = 1e3 * np.finfo(np.float64).eps * (1.0 + float(np.abs(fit.theta).max()))
    usable = trace[trace["moved"] > rounding]
    if usable.empty:
        return _none("all moves in the trace are rounding errors: the start was the limit")
    phases = [phase for _, phase in usable.groupby((usable["step"] != usable["step"].shift()).cumsum())]
    long = [phase for phase in phases if len(phase) > 1 and _span(phase) >= LEAST_SPAN]
    if not long:
        return _none(f"no step has two lines of trace {LEAST_SPAN} or more rounds apart")
    falling = [phase for phase in long if phase["moved"].iloc[-1] < phase["moved"].iloc[0]]
    if not falling:
        return _none("the clients' moves do not shrink at any constant step")
    return _slope(max(falling, key=_span))


def _slope(phase: pd.DataFrame) -> Observed:
    """Take the median slope over pairs (Theil and Sen) in the latter half: early moves carry faster modes."""
    late = phase.iloc[min(len(phase) // 2, max(len(phase) - 3, 0)) :]
    slope = stats.theilslopes(np.log(late["moved"].to_numpy()), late["round"].to_numpy())[0]
    first, last = int(late["round"].iloc[0]), int(late["round"].iloc[-1])
    note = f"from the trace of rounds {first} to {last}"
    return Observed(float(np.exp(slope)), float(late["step"].iloc[0]), note, last)


def _span(phase: pd.DataFrame) -> int:
    return int(phase["round"].iloc[-1] - phase["round"].iloc[0])


def _none(why: str) -> Observed:
    return Observed(math.nan, math.nan, why)
