"""How the check of a network grows with it, as ratios in one run.

    python benchmarks/network.py [--repeats 5] [--million] [--markdown] [--output FILE]

Erdos-Renyi networks of mean degree 20; threads are pinned to one. Sparse and dense results must agree before
a time counts. ``--million`` checks a network of 10^6 clients besides, in a process of its own, and states
time and peak memory (some minutes, about 3 GB).
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from report import Row, memory, options_of, publish, row

import adfl_stats as ad
from adfl_stats import _spectrum

DEGREE = 20


def erdos_renyi(M: int, seed: int = 1) -> ad.Network:
    return ad.networks.erdos_renyi(M, DEGREE / M, seed=seed)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fresh(net: ad.Network) -> ad.Network:
    """Return the same network with nothing computed yet."""
    return ad.Network(net.indptr, net.indices, net.weights, net.labels)


def ratio_table(repeats: int) -> list[Row]:
    """Measure everything, the calls taking turns, and return the rows of the table."""
    middle, low, high = erdos_renyi(3000), erdos_renyi(10_000), erdos_renyi(100_000)
    # How many steps the iteration takes is a matter of the few clients with fewest neighbours, and varies by two.
    lows, highs = ([erdos_renyi(M, seed) for seed in range(1, 6)] for M in (10_000, 100_000))
    np.testing.assert_allclose(middle.mixing, _spectrum.mixing_dense(middle.W), rtol=1e-8)
    against, growth, whole = [], [], []
    for _ in range(repeats):
        dense = seconds(lambda: _spectrum.mixing_dense(middle.W))
        against.append(dense / seconds(lambda: fresh(middle).mixing))
        growth.append(
            seconds(lambda: [fresh(net).mixing for net in highs]) / seconds(lambda: [fresh(net).mixing for net in lows])
        )
    for _ in range(min(repeats, 3)):
        report = [seconds(lambda net=net: ad.check_network(fresh(net))) for net in (low, high)]
        whole.append((report[1], report[1] / report[0]))
    return [
        row("mixing, M = 3000: dense / sparse", np.median(against), ">= 20"),
        row("mixing: M = 10^5 / 10^4, five networks", np.median(growth), "<= 15"),
        row("check_network: M = 10^5 / 10^4", np.median([ratio for _, ratio in whole])),
        row("check_network, M = 10^5: seconds", np.median([second for second, _ in whole])),
    ]


def million() -> None:
    """Print time and memory of the check of 10^6 clients as JSON; run in a process of its own."""
    net = erdos_renyi(1_000_000)
    took = seconds(lambda: ad.check_network(net))
    print(json.dumps({"seconds": took, "peak": memory("VmHWM") / 1e9, "edges": net.n_edges}))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--million", action="store_true", help="check a network of 10^6 clients as well")
    parser.add_argument("--only-million", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_million:
        return million()
    rows = ratio_table(options.repeats)
    if options.million:
        call = [sys.executable, __file__, "--only-million"]
        found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        rows.append(row("check_network, M = 10^6: seconds", found["seconds"]))
        rows.append(row("check_network, M = 10^6: peak in GB", found["peak"]))
        rows.append(row("... in bytes per edge", found["peak"] * 1e9 / found["edges"]))
    publish(f"Erdos-Renyi networks of mean degree {DEGREE}, one thread", rows, options)


if __name__ == "__main__":
    main()
