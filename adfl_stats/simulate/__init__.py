"""Data with a known truth: designs, corruptions, and studies of many fits."""

from adfl_stats.simulate.composed import (
    Composed,
    Copies,
    Dynamic,
    HeavyTails,
    PartialRows,
    Shift,
    SwappedColumns,
    UnitError,
)
from adfl_stats.simulate.corruptions import CORRUPTIONS, ClientDraw, Corruption
from adfl_stats.simulate.designs import Simulation, glm_design, hospitals, paper_linear

__all__ = [
    "CORRUPTIONS",
    "ClientDraw",
    "Composed",
    "Copies",
    "Corruption",
    "Dynamic",
    "HeavyTails",
    "PartialRows",
    "Shift",
    "Simulation",
    "SwappedColumns",
    "UnitError",
    "glm_design",
    "hospitals",
    "paper_linear",
]
