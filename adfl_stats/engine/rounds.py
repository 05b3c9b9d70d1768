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
from scipy import linalg

from adfl_stats._progress import progress_bar
from adfl_stats._types import Array
from adfl_stats._warn import warn
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.numerical_error import NumericalError, StandardErrors, numerical_error, standard_errors_at
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.plateau import CUT, Plateau
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Rounds, Scheme, rounds_of
from adfl_stats.engine.transport import LOCAL, Transport
from adfl_stats.errors import ConvergenceWarning, DivergenceError

__all__ = ["PLAIN", "iterate", "safe_step"]


# A move this many times the first one is divergence. Ours: in runs that converge the first move is the largest
# (benchmarks/schedules.py), and those that diverge grow by a factor in every round.
BLOW_UP = 1e4
# Rounds of a run in phases without `rounds`. Ours: a hundred at each of three steps; rules that choose among neighbours
# have no error to stop by.
PHASED_ROUNDS = 300
# A move this small relative to the estimates counts as none. Ours: far below any standard error.
STILL = 1e-10
# Constant and cut: an error above the first share of the one before it no longer falls, one below the second share of
# the other part does not matter, the step is cut to where the error would be the third share of the tolerance, by
# factors between these. Ours: by benchmarks/schedules.py others take .9 to 1.4 times as many rounds.
FALLS, MINOR, AIM, CUTS = 0.8, 0.3, 0.5, (0.1, 0.5)
PLAIN = Scheme()


class _Loop:
    """A scheme's rounds, checked for divergence; the state is that of a `Run`."""

    def __init__(
        self, problem: Problem, run: Run, steps: ClientSteps, scheme: Scheme, rounds: Rounds, bar: Any
    ) -> None:
        self.problem, self.run, self.steps, self.scheme = problem, run, steps, scheme
        self.rounds, self.bar = rounds, bar
        self.limit = np.inf
        # Whether the end of `advance` is a line of the trace.
        self.watch = True

    def advance(self, rounds: int) -> bool:
        """Do `rounds` rounds; return False, with a state of no use, where the iteration diverges."""
        run = self.run
        done = 0
        while done < rounds:
            # Later moves are compared with that of the first round.
            chunk = 1 if np.isinf(self.limit) else rounds - done
            moved = np.empty(chunk)
            n = self.rounds(run.theta, run.step, chunk, moved, self.limit)
            run.rounds += n
            done += n
            last = moved[n - 1]
            if not (np.isfinite(last) and last <= self.limit):
                return False
            # With a schedule there may be no active client in the first round.
            if np.isinf(self.limit) and (last > 0.0 or self.problem.schedule is None):
                self.limit = BLOW_UP * last + 1e-6 * (1.0 + self.problem.largest(np.abs(run.theta)))
            if self.bar is not None:
                self.bar.update(n)
        if not self.watch:
            return True
        run.record(last, self.problem.transport)
        if (watch := getattr(self.problem.objective, "watch", None)) is not None:
            run.watched.append(watch(run.theta, self.problem.threads))
        return True


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
        step = plan.step or scheme.caution * _plain_step(problem, steps, theta)
        # Where a round has no memory but the estimates, a run goes on from those that were kept.
        memory = scheme.update is not None or plan.attack is not None or plan.schedule != "constant"
        journal = None if memory or plan.rounds is None else plan.journal
        run = Run(theta, step, began=start)
        limit = None if journal is None else journal.resume(run)
        rounds = rounds_of(scheme, problem, steps, plan.attack, None, plan.first_round + run.rounds)
        loop = _Loop(problem, run, steps, scheme, rounds, bar)
        loop.limit = np.inf if limit is None else limit
        if plan.rounds is not None:
            cuts = plan.schedule == "plateau"
            fine = (_with_cuts if cuts else partial(_exactly, journal=journal))(loop, plan.rounds, plan.lines)
        elif scheme.schedule == "phases":
            fine = _exactly(loop, PHASED_ROUNDS, plan.lines)
        elif not problem.has_curvature:
            fine = _until_still(loop, plan)
        else:
            fine = {"cut": _until_small, "hold": _hold, "still": _until_still}[scheme.schedule](loop, plan)
        if not fine:
            raise _divergence(loop)
        return loop.run
    finally:
        if bar is not None:
            bar.close()


def safe_step(factors: Array, curvatures: Array, transport: Transport = LOCAL) -> float:
    """Return one over the largest curvature of any client's weighted loss, half the stability limit."""
    return 1.0 / float(transport.largest(factors * curvatures))


def _plain_step(problem: Problem, steps: ClientSteps, theta: Array) -> float:
    """Return a safe step in the user's own coordinates, for a run from theta (M, P)."""
    return safe_step(steps.factors, problem.glm.largest_curvatures(problem.mean(theta)), problem.transport)


def _exactly(loop: _Loop, rounds: int, lines: int, journal: Journal | None = None) -> bool:
    """Do `rounds` rounds, with about so many lines of trace."""
    chunk = max(1, rounds // lines)
    while loop.run.rounds < rounds:
        if not loop.advance(min(chunk, rounds - loop.run.rounds)):
            return False
        if journal is not None:
            journal.keep(loop.run, loop.limit)
    _warn_if_restless(loop)
    return True


def _with_cuts(loop: _Loop, rounds: int, lines: int) -> bool:
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


def _warn_if_restless(loop: _Loop) -> None:
    """Warn of a run that oscillates: with bounded gradients a step that is too large does not diverge."""
    run = loop.run
    moved = [line["moved"] for line in run.trace]
    if run.rounds < 20 or moved[-1] < 0.5 * moved[len(moved) // 2] or not loop.problem.has_curvature:
        return
    safe = _safe_here(loop)
    if run.step > 2.0 * safe:
        warn(
            f"after {run.rounds} rounds at step={run.step:.4g} the clients still move as far as half-way through; the "
            f"step is beyond the limit of stability {2.0 * safe:.4g}. Steps up to {safe:.4g} are safe here",
            ConvergenceWarning,
        )


def _until_small(loop: _Loop, plan: Plan) -> bool:
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


def _hold(loop: _Loop, plan: Plan) -> bool:
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


def _until_still(loop: _Loop, plan: Plan) -> bool:
    """Run at one step until the estimates no longer change."""
    run = loop.run
    while run.rounds < plan.max_rounds:
        if not loop.advance(min(50, plan.max_rounds - run.rounds)):
            return False
        if run.trace[-1]["moved"] <= STILL * (1.0 + loop.problem.largest(np.abs(run.theta))):
            break
    return True


def _cautiously(problem: Problem, start: Array, steps: ClientSteps, scheme: Scheme, plan: Plan, bar: Any) -> Run:
    """Run a scheme's schedule in the pooled coordinates, and again with a smaller step where it diverges.

    The bound behind the first step is only local for the Poisson and the gamma.
    """
    metric: Array | None = None
    if np.isinf(scheme.descent.clip):
        metric, curvatures = problem.coordinates(problem.mean(start), steps.weights)
        step = scheme.caution * safe_step(steps.factors, curvatures, problem.transport)
    else:
        # The length to clip at is in the user's coordinates.
        step = scheme.caution * _plain_step(problem, steps, start)
    schedules: dict[str, Callable[[_Loop, Plan], bool]] = {
        "cut": partial(_constant_and_cut, metric=metric),
        "phases": _phases,
        "hold": _hold,
        "still": _until_still,
    }
    for _ in range(8):
        rounds = rounds_of(scheme, problem, steps, plan.attack, metric, plan.first_round)
        loop = _Loop(problem, Run(start.copy(), step, began=start, metric=metric), steps, scheme, rounds, bar)
        if schedules[scheme.schedule](loop, plan):
            return loop.run
        step /= 4.0
    raise _divergence(loop)


def _phases(loop: _Loop, plan: Plan) -> bool:
    """Three phases, at the step, a fourth and a sixteenth of it (ours)."""
    for _ in range(3):
        if not loop.advance(PHASED_ROUNDS // 3):
            return False
        loop.run.step /= 4.0
    return True


def _constant_and_cut(loop: _Loop, plan: Plan, metric: Array | None) -> bool:
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


def _safe_here(loop: _Loop) -> float:
    """Return a safe step in the user's own coordinates, for a run from the objective's start."""
    return loop.scheme.caution * _plain_step(loop.problem, loop.steps, loop.problem.objective.start())


def _divergence(loop: _Loop) -> DivergenceError:
    run, caution = loop.run, loop.scheme.caution
    what = f"the iteration diverged in round {run.rounds} at step={run.step:.4g}"
    if not loop.problem.has_curvature:
        return DivergenceError(f"{what}; pass a smaller step")
    share, safe = "" if caution == 1.0 else f"{caution:.3g} times ", _safe_here(loop)
    if run.step <= safe:
        # Curvatures of counts, for example, have no bound: they are larger where the run began or was led.
        return DivergenceError(
            f"{what}, although steps up to {safe:.4g} are safe from the default start. Leave out init, begin closer, "
            "or bound the gradients, as in ad.DFL(clip=1.0)"
        )
    return DivergenceError(
        f"{what}; steps up to {safe:.4g} are safe here ({share}one over the largest curvature of any client). Pass a "
        "smaller step, or step='auto'"
    )


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
