"""How the check of a network grows with it, as ratios in one run.

    python benchmarks/network.py [--repeats 3] [--million] [--markdown] [--output FILE]

Erdos-Renyi networks of mean degree 20. What is measured is ``check_network`` as a whole, against dense algebra for
the same numbers; these must agree before a time counts. Times are of the processor, in one thread, and the least of
some repeats, so that other work on the machine counts as little as can be. ``--million`` checks a network of 10^6
clients besides, in a process of its own, and states time and peak memory.
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


def dense_report(net: ad.Network) -> dict[str, list[float]]:
    """Return rho, SE(W) and second modulus of the network and its repairs, and the influence, by dense algebra."""
    W, M = net.W.toarray(), net.n_clients
    made = {
        "as is": W,
        "metropolis()": net.metropolis().W.toarray(),
        "balanced()": net.balanced().W.toarray(),
        "lazy(0.5)": (W + np.eye(M)) / 2,
        "gossip(2)": W @ W,
    }
    found = {}
    for name, matrix in made.items():
        se = float(np.sqrt(np.mean((matrix.sum(axis=0) - 1.0) ** 2)))
        centred = matrix - matrix.mean(axis=0)
        norm = float(np.linalg.norm(centred, 2) ** 2)
        # The eigenvalues of (I - J)W are those of W with one 1 replaced by 0.
        found[name] = [norm + se, se, float(np.abs(np.linalg.eigvals(centred)).max())]
    share = np.linalg.solve(np.vstack([(W.T - np.eye(M))[:-1], np.ones(M)]), np.eye(M)[-1])
    found["influence"] = [float(1.0 / np.sum(share**2))]
    return found


def against_dense(repeats: int, M: int = 3000) -> float:
    """Return how many times as long dense algebra takes for what the report on M clients holds."""
    net = erdos_renyi(M)
    report = ad.check_network(net)
    began = time.process_time()
    dense = dense_report(net)
    slow = time.process_time() - began
    np.testing.assert_allclose(report["effective clients"].value, dense.pop("influence")[0], rtol=1e-8)
    for name, values in dense.items():
        shown = report.tables["Repairs"].loc[name, ["rho", "SE(W)", "second eigenvalue modulus"]].to_numpy(float)
        np.testing.assert_allclose(shown, values, rtol=1e-7, atol=1e-11, err_msg=name)
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
