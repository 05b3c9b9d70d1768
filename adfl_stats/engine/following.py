"""Rounds on a network that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adfl_stats._types import Array
from adfl_stats.network.schedule import NetworkSchedule, Phase

if TYPE_CHECKING:
    from adfl_stats.engine.round import Exchange, Rounds

__all__ = ["Following"]


class Following:
    """Rounds that follow a schedule: each part of a run is on the network of its rounds.

    Clients that take no step keep their estimates; in their networks no client receives from them.

    Parameters
    ----------
    schedule : NetworkSchedule
        Asked for the network of each round when it is reached.
    exchange : Exchange
        Of `rounds`; takes over each network.
    factors : ndarray (M,)
        Those that `rounds` reads, by reference: zero for clients that take no step.
    rounds : callable
        The rounds on whatever network the exchange has.
    first : int
        Rounds done before.
    """

    def __init__(
        self, schedule: NetworkSchedule, exchange: Exchange, factors: Array, rounds: Rounds, first: int
    ) -> None:
        self._schedule, self._exchange, self._rounds = schedule, exchange, rounds
        self._factors, self._all = factors, factors.copy()
        self._round = first

    def __call__(self, theta: Array, step: float, rounds: int, moved: Array, limit: float) -> int:
        """Do rounds in place; return how many were done, the one with too long a move included."""
        done = 0
        while done < rounds:
            phase = self._schedule.at(self._round)
            part = min(phase.rounds, rounds - done)
            n = self._on(phase, theta, step, moved[done : done + part], limit)
            done, self._round = done + n, self._round + n
            if not (np.isfinite(moved[done - 1]) and moved[done - 1] <= limit):
                break
        return done

    def _on(self, phase: Phase, theta: Array, step: float, moved: Array, limit: float) -> int:
        """Do the rounds of one phase in place; return how many were done."""
        self._exchange.follow(phase.network)
        if phase.active is None:
            self._factors[:] = self._all
            return self._rounds(theta, step, len(moved), moved, limit)
        active = self._exchange.members.ours(phase.active)
        kept = theta[~active].copy()
        self._factors[:] = np.where(active, self._all, 0.0)
        done = self._rounds(theta, step, len(moved), moved, limit)
        theta[~active] = kept
        return done
