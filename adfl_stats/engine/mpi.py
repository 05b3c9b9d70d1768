"""Fits over the ranks of MPI: who works, whether all ranks were given the same, and how a failure ends them all."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from adfl_stats._threads import default_threads
from adfl_stats._types import Ints
from adfl_stats.engine.ranks import Ranks, shares
from adfl_stats.engine.versions import versions_here

if TYPE_CHECKING:
    from mpi4py.MPI import Comm, Intracomm

__all__ = ["MPI"]

T = TypeVar("T")

# The name of the fact that says what is done.
CALL = "the call"
# Seconds within which all ranks report an error, where it is one of all of them: a bad argument, for example. Ours:
# ranks reach the same line within milliseconds.
PATIENCE = 2.0


class MPI:
    """Clients spread over the ranks of MPI (mpi4py), for `DecentralizedGLM.fit`.

    Every rank runs the same program. A rank works on the rows of its own clients, consecutive ones in the order of the
    data; estimates, and what a method takes from all clients, are the same on all ranks, to the last bit those of a
    fit without MPI. A rank that has no batch of clients waits for the others' results. Where a rank fails alone, its
    message is shown and all ranks end.

    Start with ``mpiexec -n 4 python -m mpi4py fit.py``: mpi4py's run module ends all ranks where one meets an error
    outside of a fit, for which the others would wait with plain ``python`` (or see `together`). The extra ``mpi``
    brings mpi4py and MPICH. With `RankData` each rank reads the rows of its own clients alone.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        The ranks; ``MPI.COMM_WORLD`` if not given.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.MPI(comm="world")
    Traceback (most recent call last):
        ...
    TypeError: comm is a str; pass a communicator of mpi4py such as MPI.COMM_WORLD, or nothing
    """

    def __init__(self, comm: Intracomm | None = None) -> None:
        # Communicators of our own: messages of the calling program are not mixed with ours.
        self._comm, self._votes, self._teams, self._ranks_here = _duplicates(_mpi4py(comm))

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return int(self._comm.Get_rank())

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self._comm.Get_size())

    @property
    def ranks_here(self) -> int:
        """The number of ranks that share this machine's processors."""
        return self._ranks_here

    @property
    def threads_each(self) -> int:
        """How many threads a rank has: the processors of a machine are shared among its ranks."""
        return max(1, default_threads() // self.ranks_here)

    def has_ranks_of(self, other: MPI) -> bool:
        """Return whether this and another transport have the same ranks.

        Parameters
        ----------
        other : MPI
            Another transport.

        Returns
        -------
        bool
            Whether they are the same, in the same order.
        """
        from mpi4py.MPI import CONGRUENT, IDENT

        return type(self._comm).Compare(self._comm, other._comm) in (IDENT, CONGRUENT)

    def run(self, bounds: Ints, facts: Mapping[str, Any], work: Callable[[Ranks], T]) -> T:
        """Return what `work` returns on each rank that has clients; ranks without clients return that of rank 0.

        Parameters
        ----------
        bounds : ndarray (B + 1,) of int
            The batches of clients, see `batch_bounds`.
        facts : mapping
            What all ranks must agree on, by name.
        work : callable
            Of a `Transport`.

        Returns
        -------
        object
            What `work` returned.
        """
        first = shares(len(bounds) - 1, self.size)
        with self.together():
            team = self.team(first)
            place = Ranks(team, bounds) if first[self.rank] < first[self.rank + 1] else None
            return self.work_at(place, 0, facts, work)

    def team(self, first: Ints) -> Comm:
        """Return a communicator of the ranks that have clients; another one for those that have none.

        Parameters
        ----------
        first : ndarray (size + 1,) of int
            The batches of clients at which the shares of ranks begin, and their number.

        Returns
        -------
        mpi4py.MPI.Comm
            The same one at every call with the same ranks; all ranks call this together.
        """
        working = tuple((first[:-1] < first[1:]).tolist())
        if working not in self._teams:
            self._teams[working] = self._comm.Split(int(not working[self.rank]), self.rank)
        return self._teams[working]

    def work_at(self, place: Ranks | None, root: int, facts: Mapping[str, Any], work: Callable[[Ranks], T]) -> T:
        """Return what `work` returns on each rank that has a place; ranks without return that of the rank `root`.

        Parameters
        ----------
        place : Transport or None
            That of this rank's clients; None where it has none.
        root : int
            A rank that has clients.
        facts : mapping
            What all ranks must agree on, by name.
        work : callable
            Of a `Transport`.

        Returns
        -------
        object
            What `work` returned.
        """
        with self.together(), self._quiet(root):
            self.agree(facts)
            waiting = np.flatnonzero(self._comm.allgather(place is None))
            if place is None:
                self._wait_for(root)
                done = None
            else:
                with self._telling(waiting if self.rank == root else waiting[:0]):
                    done = work(place)
            if len(waiting):
                first = self._comm.bcast(done if self.rank == root else None, root)
                done = first if place is None else done
            return done  # type: ignore[return-value]

    @contextmanager
    def _telling(self, waiting: Ints) -> Iterator[None]:
        """Tell the ranks that wait for this one how its work ended: an error is one of theirs too."""
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            for rank in waiting:
                self._comm.send(_sendable(failure), int(rank))

    def _wait_for(self, root: int) -> None:
        """Wait until the rank `root` has done its work, and leave the processor to others; raise the error it met."""
        while not self._comm.iprobe(root):
            time.sleep(0.005)
        failure = self._comm.recv(source=root)
        if failure is not None:
            raise failure

    def exchanged(self, value: T) -> list[T]:
        """Return what every rank brings, in their order; all ranks call this together.

        Parameters
        ----------
        value : object
            What this rank brings; it is pickled.

        Returns
        -------
        list
            One entry a rank.
        """
        return list(self._comm.allgather(value))

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Raise ValueError, which names the ranks, where they were given different things; all call this together.

        Parameters
        ----------
        facts : mapping
            What all ranks must agree on, by name, of which "the call" is compared first; versions and instruction sets
            before that.
        """
        versions = versions_here()
        everybody = self._comm.allgather(versions | dict(facts))
        for name in dict.fromkeys([*versions, CALL, *(name for given in everybody for name in given)]):
            first, *others = [given.get(name) for given in everybody]
            differ = [rank for rank, other in enumerate(others, 1) if other != first]
            if differ:
                raise ValueError(
                    _disagreement(name, everybody[0], everybody[differ[0]], differ[0])
                    + (f", and {len(differ) - 1} more differ" if differ[1:] else "")
                    + ". Every rank must run the same program on the same clients"
                )

    @contextmanager
    def _quiet(self, root: int) -> Iterator[None]:
        """Leave warnings to one rank, in whose results they stand: all ranks would give the same."""
        with warnings.catch_warnings():
            if self.rank != root:
                warnings.simplefilter("ignore")
            yield

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let an error that all ranks meet pass; end all of them where only some do, as the others would wait.

        All ranks meet it where they come here within two seconds of one another.

        Fits are made inside of this context. Around what a program does besides, such as reading files, it does the
        same for that.

        Yields
        ------
        None
        """
        try:
            yield
        except BaseException:
            if self.size > 1 and not self._all_failed():
                print(f"rank {self.rank} of {self.size} failed, and ends all ranks:", file=sys.stderr)
                print(traceback.format_exc(), file=sys.stderr, flush=True)
                self._comm.Abort(1)
            raise

    def _all_failed(self) -> bool:
        """Return whether all ranks come here within some seconds."""
        vote, until = self._votes.Ibarrier(), time.monotonic() + PATIENCE
        while not vote.Test():
            if time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True


def _disagreement(name: str, first: Mapping[str, Any], other: Mapping[str, Any], rank: int) -> str:
    """Return in words what rank 0 and another one were given, of which the fact `name` differs.

    Calls of different kinds give different facts: what one of them lacks is no value that differs.
    """
    if name in first and name in other:
        return f"the ranks disagree about {name}: rank 0 has {first[name]}, rank {rank} has {other[name]}"
    here, there = (
        one.get(CALL) or f"one with {', '.join(part for part in one if part not in versions_here())}"
        for one in (first, other)
    )
    return f"the ranks make different calls: rank 0 {here}, rank {rank} {there}"


Duplicates = tuple["Intracomm", "Intracomm", "dict[tuple[bool, ...], Comm]", int]


def _duplicates(comm: Intracomm) -> Duplicates:
    """Return two duplicates of a communicator, its teams by who has clients, and how many ranks this machine has.

    They are the same ones at every call: an MPI library has some thousands, and freeing one takes all ranks at once.
    """
    known: Any = comm.Get_attr(_key())
    if known is None:
        known = comm.Dup(), comm.Dup(), {}, _ranks_here(comm)
        comm.Set_attr(_key(), known)
    return cast("Duplicates", known)


def _ranks_here(comm: Intracomm) -> int:
    """Return how many ranks are on this machine; all ranks call this together."""
    from mpi4py.MPI import COMM_TYPE_SHARED

    node = comm.Split_type(COMM_TYPE_SHARED)
    try:
        return int(node.Get_size())
    finally:
        node.Free()


@cache
def _key() -> int:
    """Return the key by which a communicator keeps our duplicates; those that are made of it begin without."""
    from mpi4py.MPI import Comm

    return int(Comm.Create_keyval())


def _sendable(error: BaseException | None) -> BaseException | None:
    """Return an error as other ranks can read it: a class of the calling program may be known to one of them only."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _mpi4py(comm: Intracomm | None) -> Intracomm:
    """Return the communicator; raise ImportError, which names the extra, without mpi4py."""
    try:
        from mpi4py.MPI import COMM_WORLD, Intracomm
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"ad.MPI() needs mpi4py and an MPI library ({error}); install them with: pip install 'adfl-stats[mpi]'"
        ) from None
    if comm is None:
        return COMM_WORLD
    if not isinstance(comm, Intracomm):
        raise TypeError(
            f"comm is a {type(comm).__name__}; pass a communicator of mpi4py such as MPI.COMM_WORLD, or nothing"
        )
    return comm
