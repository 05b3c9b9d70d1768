"""Fits over the ranks of MPI: strong scaling, what one rank costs, many clients, and a model of many ranks.

``python benchmarks/mpi.py`` starts itself with mpiexec on one and two ranks (``--ranks``); ``--large`` adds 10^5
clients by the limit and 10^6 clients in rounds, with the peak memory of each rank. Rounds without MPI and over the
ranks are timed in turns of some milliseconds, and medians of their ratios are printed: other programs on the
machine then disturb both alike. The last table is a model, not a measurement: work by the measured round, messages by
the measured latency and bandwidth between two ranks of this machine.
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
from pathlib import Path
from typing import Any

import numpy as np

import adfl_stats as ad
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.ranks import Ranks
from adfl_stats.engine.round import Scheme, rounds_of
from adfl_stats.engine.transport import LOCAL, Transport
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM

DEGREE = 5
# Seconds of a block of rounds, and how often the two kinds take turns.
BLOCK, TURNS = 0.03, 31
# Family, clients, rows a client, columns; the logistic ones have n p of 10,000, 5,000 and 5,000.
SIZES = {
    "logistic, M = 64, n = 500, p = 20": ("binomial", 64, 500, 20),
    "logistic, M = 200, n = 100, p = 50": ("binomial", 200, 100, 50),
    "logistic, M = 1000, n = 500, p = 10": ("binomial", 1000, 500, 10),
    "Gaussian, M = 1000, n = 100, p = 50": ("gaussian", 1000, 100, 50),
}
MODELLED = "logistic, M = 1000, n = 500, p = 10"


def data_of(family: str, M: int, n: int, p: int, first: int = 0) -> ad.ClientData:
    """Return the rows of M clients; `first` is the number of the first."""
    rng = np.random.default_rng([1, first])
    X = rng.normal(size=(M * n, p))
    eta = X @ np.full(p, 0.5 / np.sqrt(p))
    y = eta + rng.normal(size=M * n) if family == "gaussian" else (rng.random(M * n) < 1 / (1 + np.exp(-eta))) * 1.0
    return ad.ClientData.from_arrays(X, y, np.repeat(np.arange(first, first + M), n))


def rounds_in(glm: GLM, network: ad.Network, place: Transport) -> Callable[[int], None]:
    """Return rounds of DFL for the clients of one place, as a fit runs them."""
    problem = Problem(glm, network, "sample", 1, place)
    rounds = rounds_of(Scheme(), problem, problem.steps(np.ones(problem.M)), None, None)
    theta = np.zeros((problem.M, problem.P))

    def some(count: int) -> None:
        rounds(theta, 0.05, count, np.empty(count), np.inf)

    return some


def in_turns(comm: Any, alone: Callable[[int], None] | None, spread: Callable[[int], None]) -> list[list[float]]:
    """Return seconds a round of rank 0 alone, and of all ranks, in turns."""
    count = 8
    while comm.allreduce(timed(spread, count)) / comm.Get_size() < BLOCK:
        count *= 2
    times = []
    for _ in range(TURNS):
        resting(comm)
        here = warm(alone, count) if alone is not None else 0.0
        resting(comm)
        there = warm(spread, count)
        times.append([here, comm.allreduce(there) / comm.Get_size()])
    return times


def resting(comm: Any) -> None:
    """Wait for all ranks, and leave the processor to others meanwhile."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def warm(rounds: Callable[[int], None], count: int) -> float:
    """Return seconds a round, after some that bring the rows back to the processor's cache."""
    rounds(4)
    return timed(rounds, count) / count


def timed(work: Callable[..., Any], *given: Any) -> float:
    start = time.perf_counter()
    work(*given)
    return time.perf_counter() - start


def latency(comm: Any, numbers: int, repeats: int = 200) -> float:
    """Seconds of a message of so many numbers from rank 0 to rank 1 and back, halved; the median of several turns."""
    buffer, times = np.zeros(numbers), []
    for _ in range(TURNS):
        resting(comm)
        start = time.perf_counter()
        for _ in range(repeats):
            if comm.Get_rank() == 0:
                comm.Send(buffer, 1)
                comm.Recv(buffer, 1)
            elif comm.Get_rank() == 1:
                comm.Recv(buffer, 0)
                comm.Send(buffer, 0)
        times.append((time.perf_counter() - start) / (2 * repeats))
    return float(np.median(times))


def peak() -> float:
    """Peak memory of this rank, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def on_rank(large: str | None) -> dict[str, Any]:
    """What one rank measures."""
    from mpi4py.MPI import COMM_WORLD, MAX

    ranks = ad.MPI()
    found: dict[str, Any] = {}
    if large is not None:
        _, M, n, p, options = LARGE[large]
        low, high = (np.arange(2) + ranks.rank) * M // ranks.size
        rows = ad.RankData.of(data_of("gaussian", int(high - low), n, p, int(low)), ranks)
        before = peak()
        model = ad.DecentralizedGLM(rows, ad.networks.directed_circle(M, DEGREE))
        seconds = timed(lambda: model.fit(**options))
        return {large: [COMM_WORLD.allreduce(seconds, MAX), COMM_WORLD.allgather(before), COMM_WORLD.allgather(peak())]}
    for name, (family, M, n, p) in SIZES.items():
        whole, network = GLM(data_of(family, M, n, p), Family(family)), ad.networks.directed_circle(M, DEGREE)
        place = Ranks(COMM_WORLD, np.arange(ranks.size + 1) * M // ranks.size)
        alone = rounds_in(whole, network, LOCAL) if ranks.rank == 0 else None
        spread = rounds_in(whole if place.here else whole.share(place.own), network, place)
        found[name] = in_turns(COMM_WORLD, alone, spread)
    if ranks.size > 1:
        found["latency"], found["bandwidth"] = latency(COMM_WORLD, 1), 8e6 / latency(COMM_WORLD, 10**6, 5)
    return found


ROUNDS: dict[str, Any] = {"method": ad.DFL(), "step": 0.1, "rounds": 100}
LARGE: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "fit": ("10^5 clients of 30 rows, p = 10, default fit by the limit", 10**5, 30, 10, {}),
    "rounds": ("10^6 clients of 5 rows, p = 3, 100 rounds of DFL", 10**6, 5, 3, ROUNDS),
    "half": ("5 10^5 clients of 5 rows, p = 3, 100 rounds of DFL", 5 * 10**5, 5, 3, ROUNDS),
}


def modelled(round_time: float, latency: float, bandwidth: float) -> list[str]:
    """Lines of a model: as many clients a rank as were measured on one, two neighbouring ranks, moves agreed on."""
    M, p = SIZES[MODELLED][1], SIZES[MODELLED][3]
    lines = []
    for ranks in (64, 256, 1024, 4096):
        halo = 2 * (latency + 8 * DEGREE * p / bandwidth)
        # A gather of one number from each rank, once in 64 rounds.
        agreed = (np.log2(ranks) * latency + 8 * ranks / bandwidth) / 64
        total = round_time + halo + agreed
        lines.append(f"{ranks:>6} ranks, {ranks * M:>9,} clients: {1e6 * total:8.0f} us, {round_time / total:6.1%}")
    return lines


def launched(ranks: int, *given: str) -> dict[str, Any]:
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    # A processor for each rank: the operating system may leave two of them on one.
    command = [mpiexec, "-bind-to", "core", "-n", str(ranks), sys.executable, __file__, "--rank", *given]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return result


def ratio(times: list[list[float]]) -> tuple[float, float, float, float]:
    """Return the median time alone, and the quartiles of time alone over time on the ranks."""
    pairs = np.array(times)
    low, middle, high = np.quantile(pairs[:, 0] / pairs[:, 1], [0.25, 0.5, 0.75])
    return float(np.median(pairs[:, 0])), low, middle, high


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--large", nargs="?", const="all", choices=("all", *LARGE))
    options.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    if given.rank:
        found = on_rank(given.large)
        if ad.MPI().rank == 0:
            print(json.dumps(found))
        return
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    if given.large:
        for name in LARGE if given.large == "all" else [given.large]:
            seconds, before, after = launched(given.ranks, "--large", name)[name]
            each = ", ".join(f"{b:.2f} + {a - b:.2f}" for b, a in zip(before, after, strict=True))
            print(f"{LARGE[name][0]}, on {given.ranks} ranks: {seconds:.1f} s; peak GiB by rank, data + fit: {each}")
        return
    one, several = launched(1), launched(given.ranks)
    for name in SIZES:
        here, _, same, _ = ratio(one[name])
        _, low, spread, high = ratio(several[name])
        print(f"{name}: {1e6 * here:.0f} us a round; one rank {1 / same:.3f} of it (wanted 1.05); {given.ranks} ranks "
              f"{spread:.2f} times as fast (quartiles {low:.2f}, {high:.2f}; wanted 1.7 on 2)")  # fmt: skip
    print(f"latency {1e6 * several['latency']:.1f} us, bandwidth {several['bandwidth'] / 2**30:.1f} GiB/s")
    print(f"A model, not a measurement: {MODELLED} on each rank, time of a round and share of it that is work")
    print("\n".join(modelled(ratio(one[MODELLED])[0], several["latency"], several["bandwidth"])))


if __name__ == "__main__":
    main()
