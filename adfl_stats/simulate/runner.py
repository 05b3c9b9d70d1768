"""Settings times replicates, run in parallel by joblib and kept as they end."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from adfl_stats._progress import progress_bar
from adfl_stats._threads import one_blas_thread
from adfl_stats.simulate.contenders import Make
from adfl_stats.simulate.folder import Folder
from adfl_stats.simulate.settings import Row, Setting

__all__ = ["Done", "run_settings"]

Done = dict[tuple[str, int], list[Row]]


def run_settings(
    settings: Sequence[Setting],
    methods: Mapping[str, Make],
    *,
    replicates: int,
    seed: int,
    options: Mapping[str, Any],
    inference: bool,
    jobs: int | None,
    done: Done,
    folder: Folder | None,
    progress: bool,
) -> None:
    """Add the rows of every setting and replicate that `done` lacks to it, and to the folder, as each ends."""
    tasks = [(setting, k) for setting in settings for k in range(replicates)]
    left = [(setting, k) for setting, k in tasks if (setting.key, k) not in done]
    already = len(tasks) - len(left)
    bar = progress_bar(len(tasks), "data sets", "set", initial=already, mininterval=0.0) if progress else None
    try:
        with warnings.catch_warnings():
            # Of joblib, when Ctrl-C ends the study: that it was ended.
            warnings.filterwarnings("ignore", ".*tasks which were still being processed")
            for setting, k, rows in _finished(left, methods, options, seed, inference, jobs):
                done[setting, k] = rows
                if folder is not None:
                    folder.save(setting, k, rows)
                if bar is not None:
                    bar.update()
    finally:
        if bar is not None:
            bar.close()


def _finished(
    tasks: Sequence[tuple[Setting, int]],
    methods: Mapping[str, Make],
    options: Mapping[str, Any],
    seed: int,
    inference: bool,
    jobs: int | None,
) -> Iterable[tuple[str, int, list[Row]]]:
    """Yield key, replicate and rows of each task when it ends."""
    try:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError:
        raise ImportError("studies need joblib; install it with: pip install 'adfl-stats[study]'") from None
    calls = (delayed(_rows)(setting, k, methods, options, seed, inference) for setting, k in tasks)
    # One BLAS thread here too: threads as workers share this process, and each restores what it found.
    with one_blas_thread():
        if jobs not in (None, 1) and threading.current_thread() is threading.main_thread():
            _start_workers(lambda: Parallel(n_jobs=jobs)(delayed(abs)(k) for k in range(2)))
        try:
            yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        except TerminatedWorkerError as error:
            raise RuntimeError(
                "a worker process died, perhaps because memory ran out. What was finished is kept: run the study "
                "again, with fewer jobs if memory is short"
            ) from error


def _start_workers(first_call: Callable[[], Any]) -> None:
    """Let joblib start its processes with Ctrl-C ignored, which they inherit: it ends the study in this process."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        first_call()
    finally:
        # None: a handler that is not Python's, which cannot be given back.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def _rows(
    setting: Setting, k: int, methods: Mapping[str, Make], options: Mapping[str, Any], seed: int, inference: bool
) -> tuple[str, int, list[Row]]:
    return setting.key, k, setting.rows(k, methods, options, seed, inference)
