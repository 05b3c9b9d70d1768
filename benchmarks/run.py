"""Speed and memory of the kernel, as ratios against NumPy in one interleaved run.

    python benchmarks/run.py [--output FILE] [--repeats 7] [--memory]

Threads are pinned to one. Results must agree before a time counts. Every ratio is the median over
the repeats of the time of the rival over ours in the same repeat, which a noisy machine disturbs
least. ``--memory`` measures the peak of a logistic fit on 10^6 rows besides (needs about 1 GiB).
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rivals import numpy_gram, numpy_logistic

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.families import Family
from adfl_stats.problem import Problem

M, N_ROWS, P, D, STEP, ROUNDS = 100, 100, 50, 5, 0.05, 200


def problem(family: str, sizes: np.ndarray) -> Problem:
    """Return a problem with given client sizes on the directed circle."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(int(sizes.sum()), P))
    eta = X @ rng.normal(size=P) / 10
    y = eta + rng.normal(size=len(X)) if family == "gaussian" else (rng.random(len(X)) < 1 / (1 + np.exp(-eta))) * 1.0
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), sizes))
    return Problem(data, ad.networks.directed_circle(M, D), Family(family), "client")


def unequal_sizes(total: int) -> np.ndarray:
    """Return M sizes from 10 up, the largest some fifty times the smallest, with a given sum."""
    shares = np.random.default_rng(2).pareto(1.5, M) + 0.1
    sizes = np.maximum(10, (shares / shares.sum() * total).astype(int))
    sizes[np.argmax(sizes)] += total - sizes.sum()
    return sizes


def ours(task: Problem, runs: int = 1) -> Callable[[], np.ndarray]:
    """Return a call that does ROUNDS rounds of several runs in the kernel."""
    loss, steps = task.loss(), np.full((M, runs), STEP)

    def call() -> np.ndarray:
        theta = np.zeros((M, runs, P))
        _kernels.rounds(task.mixing, loss, theta, steps, ROUNDS, np.empty((ROUNDS, runs)), np.full(runs, np.inf), 1)
        return theta[:, 0]

    return call


def interleaved(calls: dict[str, Callable[[], np.ndarray]], repeats: int) -> dict[str, np.ndarray]:
    """Return seconds per repeat and call, the calls taking turns."""
    seconds = {name: np.empty(repeats) for name in calls}
    for call in calls.values():
        call()
    for k in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name][k] = time.perf_counter() - began
    return seconds


def ratio_table(repeats: int) -> list[dict[str, object]]:
    """Measure everything and return the rows of the table."""
    equal = np.full(M, N_ROWS)
    unequal = unequal_sizes(M * N_ROWS)
    gaussian, logistic, ragged = problem("gaussian", equal), problem("binomial", equal), problem("binomial", unequal)
    calls = {
        "gaussian": ours(gaussian),
        "gaussian, NumPy Gram": numpy_gram(gaussian, STEP, ROUNDS),
        "gaussian, 8 runs": ours(gaussian, 8),
        "logistic": ours(logistic),
        "logistic, NumPy batched": numpy_logistic(logistic, STEP, ROUNDS),
        "logistic, 8 runs": ours(logistic, 8),
        "logistic, unequal": ours(ragged),
    }
    for mine, rival in (("gaussian", "gaussian, NumPy Gram"), ("logistic", "logistic, NumPy batched")):
        np.testing.assert_allclose(calls[mine](), calls[rival](), rtol=1e-8, atol=1e-10)
    t = interleaved(calls, repeats)
    rows = [
        ("Gaussian rounds: NumPy Gram / ours", t["gaussian, NumPy Gram"] / t["gaussian"], ">= 1.3"),
        ("logistic rounds: NumPy batched / ours", t["logistic, NumPy batched"] / t["logistic"], ">= 1.6"),
        ("unequal / equal clients, same N", t["logistic, unequal"] / t["logistic"], "<= 1.15"),
        ("Gaussian, 8 runs / 1 run", t["gaussian, 8 runs"] / t["gaussian"], "<= 4"),
        ("logistic, 8 runs / 1 run", t["logistic, 8 runs"] / t["logistic"], "<= 4"),
    ]
    return [{"work": name, "ratio": float(np.median(value)), "wanted": wanted} for name, value, wanted in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the table as JSON")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of a large fit")
    options = parser.parse_args()
    rows = ratio_table(options.repeats)
    if options.memory:
        script = Path(__file__).with_name("memory.py")
        found = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
        rows.append(
            {"work": "peak of a logistic fit / its data, 10^6 x 50", "ratio": float(found.stdout), "wanted": "<= 1.15"}
        )
    print(f"M = n = {N_ROWS}, p = {P}, circle D = {D}, one thread, {_kernels.instruction_set()} at a time")
    for row in rows:
        print(f"{row['work']:<46} {row['ratio']:6.2f}   wanted {row['wanted']}")
    if options.output:
        machine = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
        options.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
