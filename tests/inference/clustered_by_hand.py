"""Inference by client, written out with dense matrices."""

import numpy as np
from scipy import special

import adfl_stats as ad

SIZES = np.array([9, 25, 6, 40, 13, 2, 30, 11, 7])
M, N, P = len(SIZES), SIZES.sum(), 3
CLIENT = np.repeat(np.arange(M), SIZES)


KINDS = ("CR1", "CR2", "CR3")


def fit(X, y, client=CLIENT, weights=None, *, weighting="sample", family="gaussian", **carried):
    data = ad.ClientData.from_arrays(X, y, client, **carried)
    network = ad.networks.complete(data.n_clients, labels=data.labels)
    model = ad.DecentralizedGLM(data, network, family, weighting=weighting)
    # The definitions here have independent rows as the working model.
    return model.fit(ad.DFL(weights), rounds=4000, heterogeneity="none")


def logistic_rows():
    rng = np.random.default_rng(8)
    sizes = np.array([30, 45, 60, 33, 80, 41])
    client = np.repeat(np.arange(6), sizes)
    X = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), 2))])
    y = (rng.random(len(client)) < special.expit(X @ [0.2, 0.5, -0.5])) * 1.0
    return X, y, client, sizes
