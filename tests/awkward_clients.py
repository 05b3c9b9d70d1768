"""Clients with few rows, a column of zeros or a column twice, which several test modules evaluate row by row."""

import numpy as np

SIZES = np.array([9, 2, 30, 9, 3, 40, 13, 9, 1, 25])


def drawn(name, seed=11):
    """Clients 1, 4 and 8 have fewer rows than columns, client 3 a column of zeros, client 7 one column twice."""
    rng = np.random.default_rng(seed)
    client, N = np.repeat(np.arange(len(SIZES)), SIZES), SIZES.sum()
    X = rng.normal(size=(N, 4)) * [1.0, 10.0, 0.1, 1.0]
    X[client == 3, 1] = 0.0
    X[client == 7, 3] = X[client == 7, 0]
    y = {
        "gaussian": rng.normal(size=N),
        "binomial": rng.integers(0, 2, N) * 1.0,
        "poisson": rng.poisson(2.0, N) * 1.0,
        "gamma": rng.gamma(2.0, size=N),
        "multinomial": rng.integers(0, 3, N) * 1.0,
    }[name]
    return X, y, client, rng
