"""Clients that lie to their neighbours: the mean squared error of honest clients beside the oracle's.

A linear model (M = 50, n = 100, p = 10) on a directed circle in which everybody hears 20 others. A share of the clients
attacks the messages, by each of `ad.attacks`; with ``--data`` a tenth of the clients has responses of the wrong sign as
well. Each entry is the mean over data sets of the honest clients' mean squared error, over that of DFL with weight for
the honest and normal clients only and without an attack: 1 is the oracle. "-" is a run that diverged. All run 300
rounds at one step; trimmed means know the largest number of attackers that anybody hears, up to 9 of 20.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import warnings

import numpy as np

import adfl_stats as ad

M, N, P = 50, 100, 10
HOW = {"step": 0.05, "rounds": 300}
SHARES = (0.1, 0.2, 0.3)
KINDS = {
    "none": None,
    "sign flip": lambda bad: ad.attacks.SignFlip(bad),
    "Gaussian": lambda bad: ad.attacks.Gaussian(bad),
    "ALIE": lambda bad: ad.attacks.ALIE(bad),
    "IPM": lambda bad: ad.attacks.IPM(bad),
    "dissensus": lambda bad: ad.attacks.Dissensus(bad),
}


def methods(b):
    """Return the methods; aDFL has the paper's weights, begun from BRIDGE-M, whose messages are attacked as well."""
    trimmed, start = ad.Bridge("trimmed", b=b), ad.Bridge("median")
    gossip = ad.ClippedGossip("declared", delta=0.3)
    adaptive = {"lam": 4.0, "stages": 2, "init": start}
    return {
        "DFL": ad.DFL(),
        "aDFL": ad.ADFL(**adaptive),
        "BRIDGE-M": start,
        "BRIDGE-T": trimmed,
        "ClippedGossip": gossip,
        "geometric": ad.GeometricMedian(),
        "aDFL, BRIDGE-T": ad.ADFL(**adaptive, rule=trimmed),
        "aDFL, clipped": ad.ADFL(**adaptive, rule=gossip),
        "aDFL, geometric": ad.ADFL(**adaptive, rule=ad.GeometricMedian()),
    }


def one(seed, share, make, corrupted):
    """Return the mean squared error of each method over the oracle's, on one data set."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(M)
    liars, off = order[: round(share * M)], order[round(share * M) :][: round(0.1 * M) if corrupted else 0]
    sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=seed, M=M, n=N, p=P)
    y = np.where(np.isin(sim.client, off), -sim.y, sim.y)
    network = ad.networks.directed_circle(M, 20)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, y, sim.client), network)
    honest = ~np.isin(np.arange(M), liars)
    normal = honest & ~np.isin(np.arange(M), off)

    def error(method, attack=None):
        try:
            found = model.fit(method, **HOW, attack=attack).client_params.to_numpy()
        except ad.DivergenceError:
            return np.nan
        return float(np.mean(np.sum((found[honest] - sim.theta0) ** 2, axis=1)))

    b = int(min(max(network.W[:, liars].astype(bool).sum(axis=1)), 9)) if len(liars) else 0
    attack = None if make is None else make(liars)
    oracle = error(ad.DFL(weights=normal.astype(float)))
    return {name: error(method, attack) / oracle for name, method in methods(b).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=20)
    parser.add_argument("--data", action="store_true", help="a tenth of the clients has responses of the wrong sign")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ad.AdflWarning)
    print("| attack | share | " + " | ".join(methods(1)) + " |")
    print("|---|---|" + "---|" * len(methods(1)))
    largest = 0.0
    for kind, make in KINDS.items():
        for share in SHARES if make is not None else (0.0,):
            found = [one(seed, share, make, options.data) for seed in range(options.replicates)]
            cells = [np.mean([line[name] for line in found]) for name in found[0]]
            shown = " | ".join("-" if np.isnan(cell) else f"{cell:.3g}" for cell in cells)
            print(f"| {kind} | {share:g} | {shown} |", flush=True)
            spread = [np.std([line[name] for line in found], ddof=1) for name in found[0]]
            largest = max(largest, np.nanmax(np.array(spread) / np.array(cells)) / np.sqrt(len(found)))
    print(f"The largest standard error of an entry is {largest:.0%} of it ({options.replicates} data sets a line).")


if __name__ == "__main__":
    main()
