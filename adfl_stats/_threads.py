"""Threads: how many the kernel takes, and one for BLAS inside a fit."""

from __future__ import annotations

import multiprocessing
import os
import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from adfl_stats._arguments import whole_number

__all__ = ["default_threads", "one_blas_thread", "team_of"]


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread.

    Products are small here, and threads would cost more than they save; their number would also
    change the last bits of the result.
    """
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Return the handle of NumPy's and SciPy's BLAS, which are loaded by now; a search takes 10 ms."""
    return ThreadpoolController()


def default_threads() -> int:
    """Return the processors at hand, or one where this process or thread is itself a worker."""
    inside = multiprocessing.parent_process() is not None
    if inside or threading.current_thread() is not threading.main_thread():
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


def team_of(threads: Any) -> int:
    """Return how many threads the kernel takes where the user asks for `threads`, or for the default (None).

    Beyond eight and the processors of the machine more are of no use, and libgomp ends the process where the system
    does not give it as many as it asks for.
    """
    if threads is None:
        return default_threads()
    return min(whole_number(threads, "threads", 1), max(8, os.cpu_count() or 1))
