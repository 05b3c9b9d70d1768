"""The iteration as one dense matrix."""

import numpy as np
import statsmodels.api as sm
from scipy import linalg, special

import adfl_stats as ad

M, P = 12, 3
SIZES = [30, 55, 24, 80, 41, 33, 60, 28, 37, 52, 45, 26]
OMEGA = np.linspace(0.2, 1.0, M)
NETWORKS = {
    "circle": ad.networks.directed_circle(M, 3),
    "erdos-renyi": ad.networks.erdos_renyi(M, 0.4, seed=5),
    "hub (periodic)": ad.networks.central_client(M),
    "fixed degree": ad.networks.fixed_degree(M, 4, seed=2),
}
FAMILIES = ("gaussian", "binomial", "poisson")
CURVATURE = {
    "gaussian": np.ones_like,
    "binomial": lambda eta: special.expit(eta) * special.expit(-eta),
    "poisson": np.exp,
}
SM = {"gaussian": sm.families.Gaussian(), "binomial": sm.families.Binomial(), "poisson": sm.families.Poisson()}
STEP = 0.2


def simulated(family="gaussian", sizes=SIZES, p=P, seed=0, **settings):
    return ad.simulate.glm_design(family, M=len(sizes), n=list(sizes), p=p, seed=seed, **settings)


def model_of(sim, network, **settings):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, network, sim.family, **settings)


class Dense:
    """The linearised iteration in dense NumPy, with statsmodels' solution of the weighted equation."""

    def __init__(self, sim, network, step, omega=None, balance=False, metric=None):
        sizes = sim.sizes / sim.sizes.mean()
        pi = network.influence.to_numpy() * len(sizes)
        factors = (np.ones(len(sizes)) if omega is None else omega) * sizes
        self.factors = factors / pi if balance else factors
        weights = (self.factors * pi / sim.sizes)[sim.client]
        self.solution = sm.GLM(sim.y, sim.X, SM[sim.family], var_weights=weights).fit(tol=1e-14).params
        eta = sim.X @ self.solution
        curvature = CURVATURE[sim.family](eta)
        residual = SM[sim.family].link.inverse(eta) - sim.y
        rows = [sim.client == m for m in range(len(sizes))]
        Q = np.eye(sim.X.shape[1]) if metric is None else metric
        self.H = [Q @ (sim.X[k].T * curvature[k]) @ sim.X[k] / k.sum() for k in rows]
        self.g = np.concatenate([Q @ sim.X[k].T @ residual[k] / k.sum() for k in rows])
        steps = np.repeat(step * self.factors, len(Q))
        inside = np.eye(len(steps)) - steps[:, None] * linalg.block_diag(*self.H)
        self.A = inside @ np.kron(network.W.toarray(), np.eye(len(Q)))
        self.limit = (
            np.linalg.solve(np.eye(len(steps)) - self.A, -steps * self.g).reshape(len(sizes), -1) + self.solution
        )

    @property
    def radius(self):
        return np.abs(np.linalg.eigvals(self.A)).max()
