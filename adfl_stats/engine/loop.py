"""A run: rounds in chunks, its trace, steps that are safe, and divergence."""

from __future__ import annotations

from typing import Any

import numpy as np

from adfl_stats._types import Array
from adfl_stats.engine.ledger import observed
from adfl_stats.engine.plan import Run
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.engine.round import Rounds, Scheme
from adfl_stats.engine.transport import LOCAL, Transport
from adfl_stats.errors import DivergenceError

__all__ = ["Loop", "divergence", "plain_step", "safe_here", "safe_step"]


# A move this many times the first one is divergence. Ours: in runs that converge the first move is the largest
# (benchmarks/schedules.py), and those that diverge grow by a factor in every round.
BLOW_UP = 1e4


class Loop:
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
                with observed(self.problem.transport):
                    self.limit = BLOW_UP * last + 1e-6 * (1.0 + self.problem.largest(np.abs(run.theta)))
            if self.bar is not None:
                self.bar.update(n)
        if not self.watch:
            return True
        run.record(last, self.problem.transport)
        if (watch := getattr(self.problem.objective, "watch", None)) is not None:
            run.watched.append(watch(run.theta, self.problem.threads))
        return True


def safe_step(factors: Array, largest_curvature: Array, transport: Transport = LOCAL) -> float:
    """Return one over the largest curvature of any client's weighted loss, half the stability limit."""
    return 1.0 / float(transport.largest(factors * largest_curvature))


def plain_step(problem: Problem, steps: ClientSteps, theta: Array) -> float:
    """Return a safe step in the user's own coordinates, for a run from theta (M, P)."""
    return safe_step(steps.factors, problem.glm.largest_curvatures(problem.mean(theta)), problem.transport)


def safe_here(loop: Loop) -> float:
    """Return a safe step in the user's own coordinates, for a run from the objective's start."""
    return loop.scheme.caution * plain_step(loop.problem, loop.steps, loop.problem.objective.start())


def divergence(loop: Loop) -> DivergenceError:
    """Return the error of a run that diverged, with a step that would not."""
    run, caution = loop.run, loop.scheme.caution
    what = f"the iteration diverged in round {run.rounds} at step={run.step:.4g}"
    if not loop.problem.has_curvature:
        return DivergenceError(f"{what}; pass a smaller step")
    share, safe = "" if caution == 1.0 else f"{caution:.3g} times ", safe_here(loop)
    if run.step <= safe:
        # Some curvatures are unbounded (Poisson, for example), and larger at other starts or later in the run.
        return DivergenceError(
            f"{what}, although steps up to {safe:.4g} are safe from the default start. Leave out init, begin closer, "
            "or bound the gradients, as in ad.DFL(clip=1.0)"
        )
    return DivergenceError(
        f"{what}; steps up to {safe:.4g} are safe here ({share}one over the largest curvature of any client). Pass a "
        "smaller step, or step='auto'"
    )
