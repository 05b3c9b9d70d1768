"""Networks to simulate on and to compare with, and networks that change with the round.

Every generator returns a `Network`; `schedule` and `dropout` return a `NetworkSchedule`, and `near_order`
an order of the clients of one.

Rows are normalised, ``w_mk = a_mk / d_m``. Random generators take a `seed` (a whole number, a NumPy
Generator, or None for a new draw each time), and the same seed gives the same network. Where chance could
leave a client that receives from nobody, whole graphs are redrawn until there is none, so that the result
is the random graph conditioned on that event. There are no self loops unless asked for.
"""

from __future__ import annotations

from adfl_stats.network.dropout import dropout
from adfl_stats.network.nearness import near_order
from adfl_stats.network.random_graphs import (
    erdos_renyi,
    fixed_degree,
    random_geometric,
    scale_free,
    small_world,
    stochastic_block,
)
from adfl_stats.network.regular_graphs import central_client, complete, directed_circle
from adfl_stats.network.schedule import NetworkSchedule, Phase
from adfl_stats.network.turns import schedule

__all__ = [
    "NetworkSchedule",
    "Phase",
    "central_client",
    "complete",
    "directed_circle",
    "dropout",
    "erdos_renyi",
    "fixed_degree",
    "near_order",
    "random_geometric",
    "scale_free",
    "schedule",
    "small_world",
    "stochastic_block",
]
