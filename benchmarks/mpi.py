"""Fits over the ranks of MPI: strong scaling, what one rank costs, many clients, and a model of many ranks.

``python benchmarks/mpi.py`` starts itself with mpiexec on one and two ranks (``--ranks``); ``--large`` adds 10^5
clients by the limit and 10^6 clients in rounds, with the peak memory of each rank. Times are wall-clock times of the
slowest rank: a rank that shares its processor with other programs waits for it in every round, so measure on a quiet
machine. The last table is a model, not a measurement: work by the measured round, messages by the measured latency and
bandwidth between two ranks of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import adfl_stats as ad

ROUNDS = 50
DEGREE = 5
SIZES = {"M = 64, n = 500, p = 20": (64, 500, 20), "M = 200, n = 100, p = 50": (200, 100, 50)}


def model_of(family: str, M: int, n: int, p: int) -> ad.DecentralizedGLM:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(M * n, p))
    eta = X @ np.full(p, 0.5 / np.sqrt(p))
    y = eta + rng.normal(size=M * n) if family == "gaussian" else (rng.random(M * n) < 1 / (1 + np.exp(-eta))) * 1.0
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n))
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(M, DEGREE), family)


def per_round(model: ad.DecentralizedGLM, transport: ad.MPI | None) -> float:
    """Seconds a round: of a long run less a short one, so that inference and checks do not count; best of three."""

    def seconds(rounds: int) -> float:
        start = time.perf_counter()
        model.fit(ad.DFL(), step=0.05, rounds=rounds, threads=1, transport=transport)
        return time.perf_counter() - start

    return min(seconds(5 * ROUNDS) - seconds(ROUNDS) for _ in range(3)) / (4 * ROUNDS)


def latency(comm: Any, numbers: int, repeats: int = 200) -> float:
    """Seconds of a message of so many numbers from rank 0 to rank 1 and back, halved."""
    buffer, start = np.zeros(numbers), time.perf_counter()
    for _ in range(repeats):
        if comm.Get_rank() == 0:
            comm.Send(buffer, 1)
            comm.Recv(buffer, 1)
        elif comm.Get_rank() == 1:
            comm.Recv(buffer, 0)
            comm.Send(buffer, 0)
    return (time.perf_counter() - start) / (2 * repeats)


def peak() -> float:
    """Peak memory of this rank, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def on_rank(large: bool) -> dict[str, Any]:
    """What one rank measures."""
    from mpi4py.MPI import COMM_WORLD, MAX

    ranks = ad.MPI()
    found: dict[str, Any] = {}
    for name, size in SIZES.items():
        model = model_of("binomial", *size)
        here = per_round(model, None) if ranks.size == 1 else np.nan
        found[name] = [here, COMM_WORLD.allreduce(per_round(model, ranks), MAX)]
    if ranks.size > 1:
        found["latency"], found["bandwidth"] = latency(COMM_WORLD, 1), 8e6 / latency(COMM_WORLD, 10**6, 20)
    if large:
        rounds: dict[str, Any] = {"method": ad.DFL(), "step": 0.1, "rounds": 100}
        for name, size, options in (
            ("10^5 clients, default fit", (10**5, 30, 10), {}),
            ("10^6 clients, 100 rounds", (10**6, 5, 3), rounds),
        ):
            model = model_of("gaussian", *size)
            seconds = timed(partial(model.fit, transport=ranks, **options))
            found[name] = [COMM_WORLD.allreduce(seconds, MAX), COMM_WORLD.allreduce(peak(), MAX)]
            del model
    return found


def modelled(round_time: float, size: tuple[int, int, int], latency: float, bandwidth: float) -> list[str]:
    """Lines of a model: a share of the work, one exchange with two neighbouring ranks, one maximum in log2 steps."""
    M, _, p = size
    lines = []
    for ranks in (64, 256, 1024, 4096):
        # As many clients a rank as were measured on one.
        halo = 2 * (latency + 8 * DEGREE * p / bandwidth)
        total = round_time + halo + np.log2(ranks) * latency
        lines.append(f"{ranks:>6} ranks, {ranks * M:>9,} clients: {1e6 * total:8.0f} us, {round_time / total:6.1%}")
    return lines


def launched(ranks: int, large: bool) -> dict[str, Any]:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    command = [mpiexec, "-n", str(ranks), sys.executable, __file__, "--rank", *(["--large"] if large else [])]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--large", action="store_true")
    options.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    if given.rank:
        found = on_rank(given.large)
        if ad.MPI().rank == 0:
            print(json.dumps(found))
        return
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    one, several = launched(1, large=False), launched(given.ranks, given.large)
    for name in SIZES:
        here, there = one[name]
        spread = several[name][1]
        print(f"{name}: {1e6 * here:.0f} us a round without MPI, {there / here:.3f} of it on one rank (wanted 1.05), "
              f"{here / spread:.2f} times as fast on {given.ranks} (wanted 1.7 on 2)")  # fmt: skip
    print(f"latency {1e6 * several['latency']:.1f} us, bandwidth {several['bandwidth'] / 2**30:.1f} GiB/s")
    for name in several:
        if "clients" in name:
            print(f"{name} on {given.ranks} ranks: {several[name][0]:.1f} s, peak {several[name][1]:.2f} GiB a rank")
    first = next(iter(SIZES))
    print(f"A model, not a measurement: {first} a rank, time of a round and share of it that is work")
    print("\n".join(modelled(one[first][0], SIZES[first], several["latency"], several["bandwidth"])))


if __name__ == "__main__":
    main()
