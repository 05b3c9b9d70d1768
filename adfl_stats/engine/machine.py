"""The ranks that share a machine, and arrays of all clients that they have in common."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Ints

__all__ = ["Machine", "machine_of"]


class Machine:
    """The ranks of a communicator that are on this machine; all ranks build it together.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All ranks.
    here : mpi4py.MPI.Comm
        Those of this machine.
    """

    def __init__(self, comm: Any, here: Any) -> None:
        self._here = here
        # One rank of each machine, and which of these is on the machine of a rank.
        self._firsts = comm.Split(int(here.Get_rank() > 0), comm.Get_rank())
        self._machines = comm.allgather(here.bcast(self._firsts.Get_rank()))
        self._comm, self._several = comm, max(self._machines) > 0

    def joined(self, ours: NDArray[Any], counts: Ints) -> NDArray[Any] | None:
        """Return the rows of all ranks, once for each machine, not to be written to; all ranks call this together.

        None where a machine has no room for a file of them, or its ranks do not see one another's files.
        """
        ends = np.cumsum(counts)
        out = self._in_common((int(ends[-1]), *ours.shape[1:]), ours.dtype)
        if not all(self._comm.allgather(out is not None)):
            return None
        assert out is not None
        rank = self._comm.Get_rank()
        out[ends[rank] - counts[rank] : ends[rank]] = ours
        self._here.Barrier()
        if self._several:
            if self._here.Get_rank() == 0:
                for machine, end, count in zip(self._machines, ends, counts, strict=True):
                    self._firsts.Bcast(out[end - count : end], machine)
            self._here.Barrier()
        out.flags.writeable = False
        return out

    def _in_common(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Return an array in the memory of a file that has no name any more; None where there can be none."""
        path = self._here.bcast(_file_of(int(np.prod(shape)) * dtype.itemsize) if self._here.Get_rank() == 0 else None)
        try:
            out = None if path is None else np.asarray(np.memmap(path, dtype, "r+", shape=shape))
        except OSError:
            out = None
        self._here.Barrier()
        if path is not None and self._here.Get_rank() == 0:
            os.unlink(path)
        return out


def machine_of(comm: Any) -> Machine:
    """Return the machine of this rank: the same one at every call, which all ranks of the communicator make."""
    known: Machine | None = comm.Get_attr(_key())
    if known is None:
        known = Machine(comm, _same_machine(comm))
        comm.Set_attr(_key(), known)
    return known


def _same_machine(comm: Any) -> Any:
    """Return a communicator of the ranks on this machine."""
    from mpi4py.MPI import COMM_TYPE_SHARED

    return comm.Split_type(COMM_TYPE_SHARED)


@cache
def _key() -> int:
    """Return the key by which a communicator keeps its machine."""
    from mpi4py.MPI import Comm

    return int(Comm.Create_keyval())


def _file_of(size: int) -> str | None:
    """Return the path of a new file with room for so many bytes; None where there is none, or no way to ask for it."""
    if not hasattr(os, "posix_fallocate"):
        return None
    try:
        handle, path = tempfile.mkstemp(prefix="adfl_stats-")
    except OSError:
        return None
    try:
        # A map of a file without room ends the process when it is written to.
        os.posix_fallocate(handle, 0, size)
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path
