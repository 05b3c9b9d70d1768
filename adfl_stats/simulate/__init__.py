"""Data with a known truth: designs, corruptions, and studies of many fits."""

from adfl_stats.simulate.corruptions import CORRUPTIONS, ClientDraw
from adfl_stats.simulate.designs import Simulation, glm_design, hospitals, paper_linear

__all__ = ["CORRUPTIONS", "ClientDraw", "Simulation", "glm_design", "hospitals", "paper_linear"]
