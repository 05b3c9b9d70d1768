"""Print the peak memory of a logistic fit on 10^6 x 50 numbers over that of its data (X and y).

The peak is that of the process above its level before the data were made, so that the interpreter
and its libraries do not count, and everything the fit allocates does.
"""

from __future__ import annotations

import numpy as np
from report import memory

import adfl_stats as ad

N, P, M = 1_000_000, 50, 100


def warm_up() -> None:
    """Load and run everything once on little data, so that libraries count as there before."""
    sim = ad.simulate.glm_design("binomial", M=10, n=50, p=3, seed=1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3), "binomial").fit()


def main() -> None:
    warm_up()
    before = memory("VmRSS")
    rng = np.random.default_rng(1)
    X = np.empty((N, P))
    y = np.empty(N)
    for low in range(0, N, 10_000):  # in pieces: making the data must not set the peak
        block = slice(low, low + 10_000)
        X[block] = rng.standard_normal((10_000, P))
        y[block] = rng.random(10_000) < 1 / (1 + np.exp(-X[block, 0]))
    client = np.repeat(np.arange(M, dtype=np.int16), N // M)
    data = ad.ClientData.from_arrays(X, y, client)
    del client
    ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 5), "binomial").fit(ad.DFL(), step=0.5, rounds=20)
    print((memory("VmHWM") - before) / (X.nbytes + y.nbytes))


if __name__ == "__main__":
    main()
