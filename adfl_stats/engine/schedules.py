"""Schedules of a run: how long it goes on at a step, and when it ends."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from adfl_stats._types import Array
from adfl_stats._warn import warn
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.loop import Loop, safe_here
from adfl_stats.engine.numerical_error import NumericalError, StandardErrors, numerical_error, standard_errors_at
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.plateau import CUT, Plateau
from adfl_stats.errors import ConvergenceWarning

__all__ = ["PHASED_ROUNDS", "constant_and_cut", "exactly", "hold", "phases", "until_small", "until_still", "with_cuts"]


# Rounds of a run in phases without `rounds`. Ours: a hundred at each of three steps; rules that choose among neighbours
# have no error to stop by.
PHASED_ROUNDS = 300
# A move this small relative to the estimates counts as none. Ours: far below any standard error.
STILL = 1e-10
# Constant and cut: an error above the first share of the one before it no longer falls, one below the second share of
# the other part does not matter, the step is cut to where the error would be the third share of the tolerance, by
# factors between these. Ours: by benchmarks/schedules.py others take .9 to 1.4 times as many rounds.
FALLS, MINOR, AIM, CUTS = 0.8, 0.3, 0.5, (0.1, 0.5)


def exactly(loop: Loop, rounds: int, lines: int, journal: Journal | None = None) -> bool:
    """Do `rounds` rounds, with about so many lines of trace."""
    chunk = max(1, rounds // lines)
    while loop.run.rounds < rounds:
        if not loop.advance(min(chunk, rounds - loop.run.rounds)):
            return False
        if journal is not None:
            journal.keep(loop.run, loop.limit)
    _warn_if_restless(loop)
    return True


def with_cuts(loop: Loop, rounds: int, lines: int) -> bool:
    """Do `rounds` rounds, with a shorter step after each plateau."""
    chunk, plateau, watch = max(1, rounds // lines), Plateau(), loop.watch
    while loop.run.rounds < rounds:
        loop.watch = loop.run.rounds % chunk == chunk - 1 or loop.run.rounds == rounds - 1
        if not loop.advance(1):
            return False
        plateau.add(loop.problem.mean(loop.run.theta))
        if loop.watch and plateau.reached(loop.run.step):
            loop.run.step *= CUT
    loop.watch = watch
    return True


def _warn_if_restless(loop: Loop) -> None:
    """Warn of a run that oscillates: with bounded gradients a step that is too large does not diverge."""
    run = loop.run
    moved = [line["moved"] for line in run.trace]
    if run.rounds < 20 or moved[-1] < 0.5 * moved[len(moved) // 2] or not loop.problem.has_curvature:
        return
    safe = safe_here(loop)
    if run.step > 2.0 * safe:
        warn(
            f"after {run.rounds} rounds at step={run.step:.4g} the clients still move as far as half-way through; the "
            f"step is beyond the limit of stability {2.0 * safe:.4g}. Steps up to {safe:.4g} are safe here",
            ConvergenceWarning,
        )


def until_small(loop: Loop, plan: Plan) -> bool:
    """Run at one step until the numerical error is small, or no longer falls."""
    run, total_weights = loop.run, loop.steps.total_weights
    previous, chunk = np.inf, 50
    while run.rounds < plan.max_rounds:
        if not loop.advance(min(chunk, plan.max_rounds - run.rounds)):
            return False
        unit = standard_errors_at(loop.problem, run.theta, total_weights)
        error = numerical_error(loop.problem, run.theta, total_weights, unit).total
        if error <= plan.tolerance or error > 0.9 * previous:
            break
        # At least one time constant of the slowest mode: in a shorter chunk slow progress looks like none.
        slowest = 1.0 / float(linalg.eigvalsh(unit.inverse)[-1])
        before, chunk = chunk, int(np.clip(np.ceil(1.0 / (run.step * slowest)), 50, plan.max_rounds))
        previous = error if chunk <= 2 * before else np.inf
    return True


def hold(loop: Loop, plan: Plan) -> bool:
    """Run at one step until the numerical error is small, for methods that converge exactly."""
    run, total_weights, chunk = loop.run, loop.steps.total_weights, 20
    while run.rounds < plan.max_rounds:
        if not loop.advance(min(chunk, plan.max_rounds - run.rounds)):
            return False
        unit = standard_errors_at(loop.problem, run.theta, total_weights)
        if numerical_error(loop.problem, run.theta, total_weights, unit).total <= plan.tolerance:
            break
        chunk += chunk // 2
    return True


def until_still(loop: Loop, plan: Plan) -> bool:
    """Run at one step until the estimates no longer change."""
    run = loop.run
    while run.rounds < plan.max_rounds:
        if not loop.advance(min(50, plan.max_rounds - run.rounds)):
            return False
        if run.trace[-1]["moved"] <= STILL * (1.0 + loop.problem.largest(np.abs(run.theta))):
            break
    return True


def phases(loop: Loop, plan: Plan) -> bool:
    """Three phases, at the step, a fourth and a sixteenth of it (ours)."""
    for _ in range(3):
        if not loop.advance(PHASED_ROUNDS // 3):
            return False
        loop.run.step /= 4.0
    return True


def constant_and_cut(loop: Loop, plan: Plan, metric: Array | None) -> bool:
    """Hold the step while the error falls, then cut it; stop when the error is small."""
    problem, run, total_weights = loop.problem, loop.run, loop.steps.total_weights
    rate = float(problem.mean(total_weights))
    previous = NumericalError(np.inf, np.inf)
    unit: StandardErrors | None = None
    while run.rounds < plan.max_rounds:
        # One time constant of the mean's slowest mode: in a shorter chunk slow progress looks like none.
        chunk = int(np.clip(np.ceil(1.0 / (run.step * rate)), 10, plan.max_rounds))
        if not loop.advance(min(chunk, plan.max_rounds - run.rounds)):
            return False
        if unit is None:
            unit = standard_errors_at(problem, run.theta, total_weights)
            rate = _slowest_rate(metric, unit.inverse)
        error = numerical_error(problem, run.theta, total_weights, unit)
        if error.total <= plan.tolerance:
            unit = standard_errors_at(problem, run.theta, total_weights)
            error = numerical_error(problem, run.theta, total_weights, unit)
            if error.total <= plan.tolerance:
                return True
        settled = error.consensus > FALLS * previous.consensus
        at_rest = error.optimisation < MINOR * error.consensus or error.optimisation > FALLS * previous.optimisation
        if settled and at_rest:
            run.step *= float(np.clip(AIM * plan.tolerance / error.total, *CUTS))
            unit = None
            previous = NumericalError(np.inf, np.inf)
        else:
            previous = error
    return True


def _slowest_rate(metric: Array | None, inverse: Array) -> float:
    """Return the smallest curvature of the mean's loss seen in `metric`, if any, from its inverse Hessian.

    It is below the bound behind the metric, far below for rare events or many classes.
    """
    if metric is None:
        return 1.0 / float(linalg.eigvalsh(inverse)[-1])
    full = np.kron(np.eye(len(inverse) // len(metric)), metric)
    # The whole spectrum: the solver for a part of it fails where all eigenvalues are equal.
    return 1.0 / float(linalg.eigh(inverse, full, eigvals_only=True)[-1])
