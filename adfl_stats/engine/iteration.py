"""Rounds in chunks: schedules, traces, stopping and divergence.

Three ways to run, from the arguments of ``fit``:

- `rounds` given: exactly that many rounds of the paper's recursion at one step;
- a step but no `rounds`: the same recursion until its numerical error is small, or has stopped
  falling;
- neither: constant-and-cut in coordinates in which the pooled bound on the curvature is the identity. In a network the
  clients agree on these coordinates by gossip before the run; they change the path, not the limit
  as the step tends to zero. The paper's schedule is not public: this one is ours.

Losses with gradients only have no curvature to choose a step from and no standard errors to stop by: the
step must be given, and a run without `rounds` ends when the estimates no longer change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from adfl_stats._progress import progress_bar
from adfl_stats._types import Array
from adfl_stats.engine import schedules
from adfl_stats.engine.loop import Loop, divergence, plain_step, safe_step
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Scheme, rounds_of

__all__ = ["PLAIN", "iterate"]

PLAIN = Scheme()


def iterate(
    problem: Problem, start: Array, steps: ClientSteps, plan: Plan, *, scheme: Scheme = PLAIN, label: str = ""
) -> Run:
    """Run a scheme, by default weighted DFL, equation (4.1), from `start` (M, P).

    Parameters
    ----------
    problem : Problem
        Data, network and family.
    start : ndarray (M, P)
        One row a client.
    steps : ClientSteps
        The clients' weights and steps, from `Problem.steps`.
    plan : Plan
        Step, rounds and stopping.
    scheme : Scheme
        What a round does, and the schedule of a run without `rounds`.
    label : str
        Shown by the progress bar.
    """
    if plan.journal is not None:
        work = partial(_iterate, problem, start, steps, plan, scheme, label)
        return plan.journal.run(partial(Run, start, np.nan), start, work)
    return _iterate(problem, start, steps, plan, scheme, label)


def _iterate(problem: Problem, start: Array, steps: ClientSteps, plan: Plan, scheme: Scheme, label: str) -> Run:
    if plan.solver == "limit" and plan.final:
        raise ValueError(
            f"solver='limit': {label} has no smooth limit that could be solved for; use solver='rounds', or make it "
            "the init of a method that has one"
        )
    if plan.step is None and not problem.has_curvature:
        raise _no_step(problem, label)
    # Networks with many parameters may keep their state in single precision.
    theta = np.array(start, dtype=getattr(problem.objective, "dtype", np.float64), order="C")
    bar = _bar(plan, label)
    try:
        if plan.rounds is None and plan.step is None:
            return _cautiously(problem, theta, steps, scheme, plan, bar)
        step = plan.step or scheme.caution * plain_step(problem, steps, theta)
        # Where a round has no memory but the estimates, a run goes on from those that were kept.
        memory = scheme.update is not None or plan.attack is not None or plan.schedule != "constant"
        journal = None if memory or plan.rounds is None else plan.journal
        run = Run(theta, step, began=start)
        limit = None if journal is None else journal.resume(run)
        rounds = rounds_of(scheme, problem, steps, plan.attack, None, plan.first_round + run.rounds)
        loop = Loop(problem, run, steps, scheme, rounds, bar)
        loop.limit = np.inf if limit is None else limit
        if plan.rounds is not None:
            cuts = plan.schedule == "plateau"
            fine = (schedules.with_cuts if cuts else partial(schedules.exactly, journal=journal))(
                loop, plan.rounds, plan.lines
            )
        elif scheme.schedule == "phases":
            fine = schedules.exactly(loop, schedules.PHASED_ROUNDS, plan.lines)
        elif not problem.has_curvature:
            fine = schedules.until_still(loop, plan)
        else:
            fine = {"cut": schedules.until_small, "hold": schedules.hold, "still": schedules.until_still}[
                scheme.schedule
            ](loop, plan)
        if not fine:
            raise divergence(loop)
        return loop.run
    finally:
        if bar is not None:
            bar.close()


def _cautiously(problem: Problem, start: Array, steps: ClientSteps, scheme: Scheme, plan: Plan, bar: Any) -> Run:
    """Run a scheme's schedule in the pooled coordinates, and again with a smaller step where it diverges.

    The bound behind the first step is only local for the Poisson and the gamma.
    """
    metric: Array | None = None
    if np.isinf(scheme.descent.clip):
        metric, largest_curvature = problem.coordinates(problem.mean(start), steps.weights)
        step = scheme.caution * safe_step(steps.factors, largest_curvature, problem.transport)
    else:
        # The length to clip at is in the user's coordinates.
        step = scheme.caution * plain_step(problem, steps, start)
    known: dict[str, Callable[[Loop, Plan], bool]] = {
        "cut": partial(schedules.constant_and_cut, metric=metric),
        "phases": schedules.phases,
        "hold": schedules.hold,
        "still": schedules.until_still,
    }
    for _ in range(8):
        rounds = rounds_of(scheme, problem, steps, plan.attack, metric, plan.first_round)
        loop = Loop(problem, Run(start.copy(), step, began=start, metric=metric), steps, scheme, rounds, bar)
        if known[scheme.schedule](loop, plan):
            return loop.run
        step /= 4.0
    raise divergence(loop)


def _no_step(problem: Problem, label: str) -> ValueError:
    """Return the error of step="auto" for losses with gradients only.

    Curvatures estimated from differences of gradients are those at the start; a loss that is flat there, and not where
    it leads, would get a step that is not safe.
    """
    return ValueError(
        f"step is 'auto', one over the largest curvature of any client, and the objective of {label or 'this run'} (a "
        f"{type(problem.objective).__name__}) has gradients only; pass a number, step=, for example one over a bound "
        "on the second derivatives of the losses"
    )


def _bar(plan: Plan, label: str) -> Any:
    if not plan.progress:
        return None
    return progress_bar(plan.rounds, label or "rounds", "round")
