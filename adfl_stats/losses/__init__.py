"""Families and links, penalties, and losses of any kind."""

from adfl_stats.losses.automatic import from_jax, from_torch
from adfl_stats.losses.private import PrivateGLM, noise_for, spent_epsilon

__all__ = ["PrivateGLM", "from_jax", "from_torch", "noise_for", "spent_epsilon"]
