"""What an unbalanced network costs, and what balanced steps win back.

    python benchmarks/balance.py [--replicates 60] [--step 0.002] [--output FILE]

The clean linear design of the paper (M = n = 100, p = 50, nobody abnormal) on networks that count some clients more
than others. Efficiency is the mean squared error of the pooled least-squares estimate over that of the clients' own
estimates, averaged over the clients; 1 is as good as pooling. DFL runs at a small constant step from the pooled
estimate, until what is left of its start does not matter. The last column is aDFL with its own weights and schedule.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

import adfl_stats as ad

M, N_ROWS, P = 100, 100, 50
METHODS = {
    "plain": lambda start: ad.DFL(init=start),
    "balanced": lambda start: ad.DFL(init=start, balance=True),
    "aDFL, balanced": None,
}


def circle_with_hub(clients: int = M, neighbours: int = 2) -> ad.Network:
    """Return a directed circle and one client that everybody hears, and that hears everybody."""
    A = (ad.networks.directed_circle(clients, neighbours).W.toarray() > 0).astype(float)
    A[:, 0] = A[0, :] = 1.0
    A[0, 0] = 0.0
    return ad.Network.from_adjacency(A)


NETWORKS = {
    "Erdos-Renyi, q = .1": ad.networks.erdos_renyi(M, 0.1, seed=1),
    "directed Erdos-Renyi, q = .1": ad.networks.erdos_renyi(M, 0.1, seed=1, directed=True),
    "circle with a hub": circle_with_hub(),
}


def squared_errors(
    net: ad.Network, replicates: int, step: float, n: int = N_ROWS, p: int = P, names: Iterable[str] = tuple(METHODS)
) -> pd.DataFrame:
    """Return each replicate's squared error: of the pooled estimate, and the clients' mean for each method."""
    found = []
    for seed in range(replicates):
        sim = ad.simulate.paper_linear(abnormal=0.0, corruption=None, seed=seed, M=net.n_clients, n=n, p=p)
        model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net)
        pooled = np.linalg.lstsq(sim.X, sim.y)[0]
        row = {"pooled": float(np.sum((pooled - sim.theta0) ** 2))}
        for name in names:
            make = METHODS[name]
            res = model.fit() if make is None else model.fit(make(pooled), step=step, rounds=int(6 / step))
            row[name] = float(((res.client_params - sim.theta0) ** 2).sum(axis=1).mean())
        found.append(row)
    return pd.DataFrame(found)


def efficiency(errors: pd.DataFrame, name: str) -> tuple[float, float]:
    """Return the efficiency of a method and its Monte-Carlo standard error (by the delta method)."""
    pooled, ours = errors["pooled"], errors[name]
    ratio = pooled.mean() / ours.mean()
    spread = (pooled / pooled.mean() - ours / ours.mean()).std() / np.sqrt(len(errors))
    return float(ratio), float(ratio * spread)


def table(replicates: int, step: float) -> pd.DataFrame:
    """Return one row a network: its numbers, the prediction for plain DFL, efficiencies and their largest error."""
    rows = {}
    for label, net in NETWORKS.items():
        errors = squared_errors(net, replicates, step)
        found = {name: efficiency(errors, name) for name in METHODS}
        rows[label] = {"SE(W)": net.se, "rho": net.rho, "predicted for plain": net.effective_clients / M}
        rows[label] |= {name: value for name, (value, _) in found.items()}
        rows[label]["Monte-Carlo error"] = max(error for _, error in found.values())
    return pd.DataFrame(rows).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=60)
    parser.add_argument("--step", type=float, default=0.002)
    parser.add_argument("--output", type=Path, help="write the table as CSV")
    options = parser.parse_args()
    found = table(options.replicates, options.step)
    print(f"Efficiency against the pooled estimate, {options.replicates} replicates, step {options.step:g}\n")
    print(found.to_string(float_format=lambda value: f"{value:.3f}"))
    if options.output:
        found.to_csv(options.output)


if __name__ == "__main__":
    main()
