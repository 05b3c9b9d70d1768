"""Fits of the linear model that several tests of the theory look at."""

import adfl_stats as ad

STEP, ROUNDS, LAM = 0.05, 40, 3.0


def linear_fit(sim, net, method=None, **words):
    """Fit the linear model to a simulation on a network."""
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, net).fit(method, **words)
