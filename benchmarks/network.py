"""How the check of a network grows with it, as ratios in one run.

    python benchmarks/network.py [--repeats 3] [--million] [--markdown] [--output FILE]

Erdos-Renyi networks of mean degree 20. What is measured is ``check_network`` as a whole, repairs included, against
dense algebra for the network as it is; numbers must agree before a time counts. Times are of the processor, in one
thread, and the least of some repeats, so that other work on the machine counts as little as can be. ``--million``
checks a network of 10^6 clients besides, in a process of its own, and states time and peak memory.
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

DEGREE = 20


def erdos_renyi(M: int, seed: int = 1) -> ad.Network:
    return ad.networks.erdos_renyi(M, DEGREE / M, seed=seed)


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def fresh(net: ad.Network) -> ad.Network:
    """Return the same network with nothing computed yet."""
    return ad.Network(net.indptr, net.indices, net.weights, net.labels)


def dense_numbers(net: ad.Network) -> dict[str, float]:
    """Return by dense algebra what the report says of the network as it is; its repairs are left out."""
    W, M = net.W.toarray(), net.n_clients
    se = float(np.sqrt(np.mean((W.sum(axis=0) - 1.0) ** 2)))
    centred = W - W.mean(axis=0)
    share = np.linalg.solve(np.vstack([(W.T - np.eye(M))[:-1], np.ones(M)]), np.eye(M)[-1])
    return {
        "rho": float(np.linalg.norm(centred, 2) ** 2) + se,
        # The eigenvalues of (I - J)W are those of W with one 1 replaced by 0.
        "second eigenvalue modulus": float(np.abs(np.linalg.eigvals(centred)).max()),
        "effective clients": float(1.0 / np.sum(share**2)),
    }


def against_dense(repeats: int, M: int = 3000) -> float:
    """Return how many times as long as the whole report dense algebra takes for a part of it."""
    net = erdos_renyi(M)
    report = ad.check_network(net)
    began = time.process_time()
    dense = dense_numbers(net)
    slow = time.process_time() - began
    for name, value in dense.items():
        np.testing.assert_allclose(report[name].value, value, rtol=1e-8, err_msg=name)
    return slow / min(seconds(lambda: ad.check_network(fresh(net))) for _ in range(repeats))


def ratio_table(repeats: int, networks: int = 3) -> list[Row]:
    """Measure everything, the calls taking turns, and return the rows of the table."""
    # How many steps an iteration takes is a matter of the few clients with fewest neighbours, and varies by two.
    sizes = (10_000, 100_000)
    nets = {M: [erdos_renyi(M, seed) for seed in range(networks)] for M in sizes}
    best = {M: [float("inf")] * networks for M in sizes}
    for _ in range(repeats):
        for k in range(networks):
            for M in sizes:
                best[M][k] = min(best[M][k], seconds(lambda net=nets[M][k]: ad.check_network(fresh(net))))
    low, high = (sum(best[M]) / networks for M in sizes)
    return [
        row("check_network, M = 3000: dense / sparse", against_dense(repeats), ">= 20"),
        row(f"check_network: M = 10^5 / 10^4, {networks} networks", high / low, "<= 15"),
        row("check_network, M = 10^5: seconds", high),
    ]


def million() -> None:
    """Print time and memory of the check of 10^6 clients as JSON; run in a process of its own."""
    net = erdos_renyi(1_000_000)
    took = seconds(lambda: ad.check_network(net))
    print(json.dumps({"seconds": took, "peak": memory("VmHWM") / 1e9, "edges": net.n_edges}))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
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
