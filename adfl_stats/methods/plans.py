"""The plan of a fit from the arguments of `fit`, checked against one another."""

from __future__ import annotations

import numpy as np

from adfl_stats._arguments import in_interval, one_of, whole_number
from adfl_stats.engine.attacks import Attack
from adfl_stats.engine.plan import MAX_ROUNDS, MOST_ROUNDS, Plan
from adfl_stats.methods._base import Method
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network
from adfl_stats.trust import HETEROGENEITY, LEAST_FOR_SPREAD

__all__ = ["check_attack", "check_method", "plan_of"]


def plan_of(
    method: Method,
    network: Network | NetworkSchedule,
    weighting: str,
    *,
    step: float | str,
    rounds: int | None,
    solver: str,
    tolerance: float,
    max_rounds: int | None,
    progress: bool,
    heterogeneity: str,
    attack: Attack | None,
) -> Plan:
    """Return the plan; the arguments are those of `DecentralizedGLM.fit`."""
    one_of(solver, "solver", ("auto", "rounds", "limit"))
    one_of(heterogeneity, "heterogeneity", HETEROGENEITY)
    if heterogeneity in ("estimate", "intercept") and network.n_clients < LEAST_FOR_SPREAD:
        raise ValueError(
            f"heterogeneity={heterogeneity!r} needs at least {LEAST_FOR_SPREAD} clients, there are "
            f"{network.n_clients}; use 'none' or 'auto'"
        )
    if weighting == "random-effects" and not method.models_clients:
        raise ValueError(
            f"weighting='random-effects' takes its weights from the model of clients, which {method.name} does not "
            "have; use ad.ADFL(), or weighting='sample' or 'client'"
        )
    if solver == "limit" and rounds is not None:
        raise ValueError(f"rounds={rounds} was given with solver='limit', which runs none; give one of the two")
    check_attack(attack)
    if attack is not None and solver == "limit":
        raise ValueError(
            "attack was given with solver='limit'; attacks change the messages of rounds, use solver='rounds'"
        )
    if solver == "limit":
        one_network(network, "solver='limit', which solves for the limit of the rounds,")
    changes = isinstance(network, NetworkSchedule)
    in_rounds = changes or any(value is not None for value in (rounds, max_rounds, attack))
    automatic = isinstance(step, str) and step == "auto"
    return Plan(
        step=None if automatic else in_interval(step, "step", 0.0, np.inf, open_low=True),
        rounds=None if rounds is None else whole_number(rounds, "rounds", 1, MOST_ROUNDS),
        tolerance=in_interval(tolerance, "tolerance", 0.0, np.inf, open_low=True),
        max_rounds=MAX_ROUNDS if max_rounds is None else whole_number(max_rounds, "max_rounds", 1, MOST_ROUNDS),
        progress=progress,
        solver="rounds" if solver == "auto" and in_rounds else solver,
        heterogeneity=heterogeneity,
        attack=attack,
    )


def check_method(method: object) -> None:
    """Raise TypeError unless the argument is a method."""
    if not isinstance(method, Method):
        raise TypeError(
            f"method is {method!r}; pass a method object such as ad.DFL(), ad.ADFL() or ad.Bridge('median')"
        )


def check_attack(attack: object) -> None:
    """Raise TypeError unless the argument is an attack, or None."""
    if attack is not None and (isinstance(attack, type) or not isinstance(attack, Attack)):
        raise TypeError(f"attack is {attack!r}; pass an attack such as ad.attacks.SignFlip(clients=['a', 'b'])")
