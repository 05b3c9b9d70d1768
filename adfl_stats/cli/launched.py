"""Rank and number of processes from the environment variables of MPI launchers, before mpi4py is imported."""

from __future__ import annotations

import os

__all__ = ["processes"]

# MPICH and its relatives, Open MPI, and steps of Slurm's srun.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def processes() -> int:
    """Return how many processes a launcher of MPI started with this one; 1 where there was none."""
    return max(int(os.environ.get(name) or 1) for name in SIZES)
