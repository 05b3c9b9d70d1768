"""Clients whose gradients are written out."""

import numpy as np
from scipy import linalg, special

import adfl_stats as ad

SIZES = (30, 55, 24, 80, 41, 33, 60, 28, 37, 52, 45, 26)
M = len(SIZES)
NETWORKS = {
    "circle": ad.networks.directed_circle(M, 3),
    "erdos-renyi": ad.networks.erdos_renyi(M, 0.4, seed=5),
}
OMEGA = np.linspace(0.1, 1.0, M)


class Rows:
    """Rows of some clients, and the paper's recursion on them in plain NumPy."""

    mean = {"gaussian": lambda eta: eta, "binomial": special.expit, "poisson": np.exp}  # noqa: RUF012

    def __init__(self, family="gaussian", sizes=SIZES, p=3, seed=0, weighting="sample"):
        sim = ad.simulate.glm_design(family, M=len(sizes), n=list(sizes), p=p - 1, intercept=True, seed=seed)
        self.X, self.y, self.client, self.family, self.weighting = sim.X, sim.y, sim.client, family, weighting
        cuts = np.cumsum(sizes)[:-1]
        self.clients = list(zip(np.split(sim.X, cuts), np.split(sim.y, cuts), strict=True))
        self.factors = np.array(sizes) / np.mean(sizes) if weighting == "sample" else np.ones(len(sizes))

    def model(self, network):
        data = ad.ClientData.from_arrays(self.X, self.y, self.client)
        return ad.DecentralizedGLM(data, network, self.family, weighting=self.weighting)

    def gradients(self, theta):
        mean = self.mean[self.family]
        return np.array([X.T @ (mean(X @ t) - y) / len(y) for (X, y), t in zip(self.clients, theta, strict=True)])

    def recursion(self, W, theta, step, rounds, omega=1.0):
        steps = (step * omega * self.factors)[:, None]
        for _ in range(rounds):
            at = W @ theta
            theta = at - steps * self.gradients(at)
        return theta

    def limit(self, W, step, omega):
        """The fixed point {I - (I - a S)(W kron I)}^-1 a b of the linear recursion."""
        a = np.repeat(step * omega * self.factors, self.X.shape[1])
        S = linalg.block_diag(*[X.T @ X / len(y) for X, y in self.clients])
        b = np.concatenate([X.T @ y / len(y) for X, y in self.clients])
        eye = np.eye(len(a))
        system = eye - (eye - a[:, None] * S) @ np.kron(W, np.eye(self.X.shape[1]))
        return np.linalg.solve(system, a * b).reshape(len(self.clients), -1)
