"""The plan of a run, and its state and trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adfl_stats._algebra import squares_about
from adfl_stats._types import Array
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.journal import Journal
from adfl_stats.engine.ledger import observed
from adfl_stats.engine.transport import LOCAL, Transport, count_of, mean_over

__all__ = ["MAX_ROUNDS", "MOST_ROUNDS", "Plan", "Run"]

# Most rounds per stage of a run without `rounds`. Ours: six times the most that a setting of benchmarks/schedules.py
# takes; a run that needs more ends with a warning.
MAX_ROUNDS = 20_000
# The most that a user may ask for: at a microsecond a round, the least that one takes, a quarter of an hour.
MOST_ROUNDS = 10**9


@dataclass(frozen=True)
class Plan:
    """How to run: see the notes of `engine.iteration`.

    Attributes
    ----------
    step : float or None
        The learning rate alpha; None chooses it from the largest curvature.
    rounds : int or None
        Rounds per stage; None runs until the numerical error is below `tolerance`.
    tolerance : float
        Largest numerical error, in standard errors. .05 (ours) adds at most .0025 of the variance to the mean squared
        error.
    max_rounds : int
        The largest number of rounds of a run without `rounds`.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        Whether normal clients may differ, for weights and inference.
    progress : bool
        Whether to show a bar.
    solver : {"auto", "rounds", "limit"}
        "limit" solves for the limit of the rounds directly, "auto" does so where a method has one.
    final : bool
        Whether the estimate is the user's, not initial estimates of another method.
    attack : Attack or None
        Clients that send false messages, and which.
    first_round : int
        Rounds done before this run, where a schedule of networks continues.
    journal : Journal or None
        Where runs are kept, so that a fit that was ended goes on.
    lines : int
        Lines of the trace of a run with `rounds`, about.
    schedule : {"constant", "plateau"}
        Whether a run with `rounds` keeps its step, or cuts it where stochastic rounds have become stationary.

    Examples
    --------
    >>> from adfl_stats.engine.plan import Plan, Run
    >>> plan = Plan(rounds=200, step=0.1)
    >>> plan.loosened().tolerance, plan.after([Run(theta=None, step=0.1, rounds=50)]).first_round
    (0.5, 50)
    """

    step: float | None = None
    rounds: int | None = None
    tolerance: float = 0.05
    max_rounds: int = MAX_ROUNDS
    heterogeneity: str = "auto"
    progress: bool = False
    solver: str = "rounds"
    final: bool = True
    attack: Attack | None = None
    first_round: int = 0
    lines: int = 100
    schedule: str = "constant"
    journal: Journal | None = field(default=None, repr=False, compare=False)

    def after(self, runs: Sequence[Run]) -> Plan:
        """Return the plan of a run that follows others."""
        return replace(self, first_round=self.first_round + sum(run.rounds for run in runs))

    def loosened(self) -> Plan:
        """Return the plan of an intermediate stage, whose estimates are initial ones of the next (.5: ours)."""
        return replace(self, tolerance=max(self.tolerance, 0.5), final=False)


@dataclass
class Run:
    """The state after some rounds, and its trace.

    Attributes
    ----------
    theta : ndarray (M, P)
        The clients' estimates.
    step : float
        The learning rate of the last rounds.
    rounds : int
        The rounds that were run; passes over the data where `solver` is "limit".
    solver : {"rounds", "limit"}
        Whether rounds were run, or their limit was solved for.
    needed : float
        About how many rounds lead to a limit that was solved for; NaN elsewhere.
    trace : list of dict
        A line for each check of convergence: round, step, longest move of a client, spread of the clients.
    watched : list of dict
        What the objective follows, by client (M,), for each line of the trace.
    began : ndarray (M, P) or None
        The estimates before the first round.
    metric : ndarray (p, p) or None
        The coordinates of the steps; None for the user's own.
    """

    theta: Array
    step: float
    rounds: int = 0
    solver: str = "rounds"
    needed: float = np.nan
    trace: list[dict[str, float]] = field(default_factory=list)
    watched: list[dict[str, Array]] = field(default_factory=list)
    began: Array | None = None
    metric: Array | None = None

    def record(self, moved: float, transport: Transport = LOCAL) -> None:
        """Add a line to the trace."""
        with observed(transport):
            centre = mean_over(transport, self.theta)
            squares = transport.total(lambda at: squares_about(self.theta[at], centre))
            consensus = float(np.sqrt((squares / count_of(transport, self.theta)).sum()))
        self.trace.append({"round": self.rounds, "step": self.step, "moved": float(moved), "consensus": consensus})
