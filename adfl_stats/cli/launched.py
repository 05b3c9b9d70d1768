"""What launchers of MPI say of the processes that they start, before a library of MPI is at hand."""

from __future__ import annotations

import os

__all__ = ["is_first", "processes"]

# MPICH and its relatives, and Open MPI.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")


def processes() -> int:
    """Return how many processes a launcher of MPI started with this one; 1 where there was none."""
    return max(int(os.environ.get(name, 1)) for name in SIZES)


def is_first() -> bool:
    """Return whether this is the first of them."""
    return max(int(os.environ.get(name, 0)) for name in RANKS) == 0
