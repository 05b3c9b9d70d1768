"""Warnings of a model: its network, clients whose numbers overflow, and a fit short of its tolerance."""

from __future__ import annotations

import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._warn import warn
from adfl_stats.engine.numerical_error import NumericalError
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import OVERFLOW_ADVICE
from adfl_stats.errors import ConditionWarning, ConvergenceWarning, NetworkWarning
from adfl_stats.network.measures import LEAST_INFLUENCE
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule

__all__ = ["warn_of_error", "warn_of_network", "warn_of_overflow"]


def warn_of_network(network: Network | NetworkSchedule) -> list[str]:
    """Warn of several closed groups, and of clients with zero or very small influence; return what fits repeat."""
    groups, unheard = len(network.closed_groups), network.unheard
    if groups > 1:
        warn(
            f"the network has {groups} closed groups, which receive nothing from one another; their estimates will "
            "not agree. Add an edge between them, or fit them separately",
            NetworkWarning,
        )
    if len(unheard):
        warn(
            f"{len(unheard)} client(s) have influence zero, as no client of a closed group hears them: "
            f"{listing(unheard)}. Their data do not count at any step; let a client of such a group listen to them",
            NetworkWarning,
        )
    shares = network.n_clients * network.influence.to_numpy()
    hardly = network.labels[(shares > 0.0) & (shares < LEAST_INFLUENCE)]
    if not len(hardly):
        return []
    said = (
        f"{len(hardly)} client(s) have little influence, M pi_m below {LEAST_INFLUENCE:g}: "
        f"{listing(hardly)}. Their data count for little, even with balanced steps; let more clients listen to "
        "them, or reweight the network with net.balanced() or net.metropolis()"
    )
    warn(said, NetworkWarning)
    return [said]


def warn_of_overflow(aside: pd.Index) -> list[str]:
    """Name the clients that are set aside; return what the summary repeats."""
    if not len(aside):
        return []
    said = (
        f"{len(aside)} client(s) were set aside with weight 0, because their numbers overflow where the others "
        f"agree: {listing(aside)}. {OVERFLOW_ADVICE}"
    )
    warn(said, ConditionWarning)
    return [said]


def warn_of_error(error: NumericalError, plan: Plan, last: Run) -> None:
    """Warn that the numerical error is above the tolerance, with its likely cause."""
    advice = "raise max_rounds, or mix faster (more neighbours)"
    if plan.step is not None and (last.solver == "limit" or last.rounds < plan.max_rounds):
        advice = "the step leaves a bias; pass a smaller one or step='auto'"
    elif last.solver == "limit":
        advice = "no shorter step helps; look for groups in the network, and for a response that covariates separate"
    when = "in the limit" if last.solver == "limit" else f"after {last.rounds} rounds"
    warn(
        f"the numerical error is {error.total:.3g} standard errors {when}, above tolerance="
        f"{plan.tolerance:g} (optimisation {error.optimisation:.3g}, consensus {error.consensus:.3g}): {advice}",
        ConvergenceWarning,
    )
