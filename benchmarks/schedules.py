"""What chose the constants of schedules: rounds that default schedules take, with these constants and with others.

    python benchmarks/schedules.py [--seeds 2] [--output FILE]

DFL in rounds (solver="rounds") on clean data of three families and networks from dense to sparse, M = 40 clients of 50
rows, 8 columns. Ratios are of the number of rounds, geometric means over the settings, to that with the package's
constants; "missed" counts runs that end above their tolerance. The largest move of a round over the first one is what
the bound on divergence is above.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import warnings
from collections.abc import Iterator

import numpy as np
from report import Row, options_of, publish, row

import adfl_stats as ad
from adfl_stats.engine import schedules

M, N_ROWS, P = 40, 50, 8
NETWORKS = {
    "circle-2": lambda: ad.networks.directed_circle(M, 2),
    "circle-5": lambda: ad.networks.directed_circle(M, 5),
    "circle-15": lambda: ad.networks.directed_circle(M, 15),
    "erdos-renyi": lambda: ad.networks.erdos_renyi(M, 0.15, seed=1).metropolis(),
}
FAMILIES = ("gaussian", "binomial", "poisson")
# One constant changed at a time.
OTHERS = {
    "FALLS": (0.5, 0.65, 0.9),
    "MINOR": (0.1, 0.2, 0.5),
    "AIM": (0.25, 0.75, 0.95),
    "CUTS": ((0.02, 0.5), (0.1, 0.25), (0.25, 0.5), (0.1, 0.8)),
}


def models(seeds: int) -> Iterator[ad.DecentralizedGLM]:
    """Yield the settings."""
    for family in FAMILIES:
        for seed in range(seeds):
            sim = ad.simulate.glm_design(family, M=M, n=N_ROWS, p=P, intercept=True, seed=seed)
            data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
            for network in NETWORKS.values():
                yield ad.DecentralizedGLM(data, network(), family)


def runs(chosen: list[ad.DecentralizedGLM]) -> tuple[np.ndarray, int, float]:
    """Return the rounds of each run, how many ended above their tolerance, and the largest move over the first."""
    taken, missed, largest = [], 0, 0.0
    for model in chosen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            res = model.fit(ad.DFL(), solver="rounds", heterogeneity="none")
        taken.append(res.rounds)
        missed += res.record.error.total > 0.05
        # Rounds one by one from the same start, in the user's coordinates.
        first = model.fit(ad.DFL(), rounds=100, heterogeneity="none")
        moved = first.trace["moved"].to_numpy()
        largest = max(largest, float(moved.max() / moved[0]))
    return np.array(taken, dtype=float), missed, largest


def main() -> None:
    """Run the settings with each set of constants."""
    parser = options_of(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=2, help="data sets for each family")
    options = parser.parse_args()
    chosen = list(models(options.seeds))
    taken, missed, largest = runs(chosen)
    rows: list[Row] = [
        row("rounds: median", float(np.median(taken))),
        row("rounds: largest", taken.max()),
        row("runs above their tolerance", missed),
        row("largest move of a round / the first", largest),
    ]
    for name, values in OTHERS.items():
        for value in values:
            before = getattr(schedules, name)
            setattr(schedules, name, value)
            try:
                other, missed, _ = runs(chosen)
            finally:
                setattr(schedules, name, before)
            ratio = float(np.exp(np.mean(np.log(other / taken))))
            rows.append(row(f"{name} = {value} ({missed} missed): rounds", ratio))
    publish("Constants of schedules", rows, options)


if __name__ == "__main__":
    main()
