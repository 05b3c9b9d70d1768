"""Families and links, penalties, and losses of any kind."""

from adfl_stats.losses.automatic import from_jax, from_torch

__all__ = ["from_jax", "from_torch"]
