"""The price of privacy: efficiency of private estimates beside the same rounds without noise and clipping.

A linear model (M = 50 clients, p = 5 covariates, noise of variance 1), 40 rounds of DFL at step .2 on a directed circle
in which everybody hears 10 others; rows are clipped at 4. Each entry is measured, the mean squared error of the plain
rounds over that of the private ones; in brackets predicted, the share of the sampling variance in the squared standard
errors of one fit.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse

import numpy as np

import adfl_stats as ad

M, P, CLIP, DELTA = 50, 5, 4.0, 1e-5
HOW = {"step": 0.2, "rounds": 40}
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SIZES = (50, 200, 1000)


def fitted(data, noise, seed):
    private = ad.losses.PrivateGLM(data, clip=CLIP, noise=noise, delta=DELTA, seed=seed)
    return ad.DecentralizedModel(private, ad.networks.directed_circle(M, 10)).fit(ad.DFL(), **HOW)


def errors(n, replicates):
    """Return squared errors without privacy and for each epsilon, and the predicted efficiencies."""
    plain, private, predicted = [], {epsilon: [] for epsilon in EPSILONS}, {}
    levels = {epsilon: ad.losses.noise_for(epsilon, HOW["rounds"], DELTA) for epsilon in EPSILONS}
    for seed in range(replicates):
        sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=seed, M=M, n=n, p=P)
        data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        network = ad.networks.directed_circle(M, 10)
        plain.append(((ad.DecentralizedGLM(data, network).fit(ad.DFL(), **HOW).params - sim.theta0) ** 2).sum())
        for epsilon, noise in levels.items():
            res = fitted(data, noise, seed)
            private[epsilon].append(((res.params - sim.theta0) ** 2).sum())
            total = np.trace(res.cov_params())
            predicted[epsilon] = 1.0 - np.trace(res.record.noise) / total
    return np.array(plain), private, predicted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=40)
    options = parser.parse_args()
    print("| rows of a client | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS) + " |")
    print("|---|" + "---|" * len(EPSILONS))
    for n in SIZES:
        plain, private, predicted = errors(n, options.replicates)
        cells = [f"{plain.mean() / np.mean(private[e]):.2f} ({predicted[e]:.2f})" for e in EPSILONS]
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
