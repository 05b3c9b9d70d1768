"""The paper's constants in dense NumPy, from raw rows, a dense W and what a fit returns; nothing of the package."""

import math
from dataclasses import dataclass

import numpy as np

CUMULANT = 1 / (6 * math.sqrt(3))
# Mean, curvature, and bounds on the second and third derivative of a row's loss.
FAMILIES = {
    "gaussian": (lambda e: e, np.ones_like, 1.0, 0.0),
    "binomial": (lambda e: 1 / (1 + np.exp(-e)), lambda e: 0.25 / np.cosh(e / 2) ** 2, 0.25, CUMULANT),
}


@dataclass
class Raw:
    """Rows by client, family, dense W and the truth."""

    rows: list
    family: str
    W: np.ndarray
    bad: np.ndarray
    theta0: np.ndarray

    @classmethod
    def of(cls, sim, network):
        rows = [(sim.X[sim.client == k], sim.y[sim.client == k]) for k in sim.labels]
        return cls(rows, sim.family, network.W.toarray(), np.asarray(sim.abnormal, bool), np.asarray(sim.theta0))

    @property
    def M(self):
        return len(self.rows)

    @property
    def sizes(self):
        return np.array([len(y) for _, y in self.rows], dtype=float)

    def scores(self, theta):
        mean = FAMILIES[self.family][0]
        return [X * (mean(X @ theta) - y)[:, None] for X, y in self.rows]

    def gradients(self, theta):
        return np.array([s.mean(axis=0) for s in self.scores(theta)])

    def hessians(self, theta):
        curve = FAMILIES[self.family][1]
        return np.array([(X.T * curve(X @ theta)) @ X / len(y) for X, y in self.rows])

    # ---- the network -----------------------------------------------------------------------------

    @property
    def se(self):
        return math.sqrt(np.mean((self.W.sum(axis=0) - 1) ** 2))

    @property
    def mixing(self):
        centre = np.eye(self.M) - 1 / self.M
        return np.linalg.norm(self.W.T @ centre @ self.W, 2)

    @property
    def rho(self):
        return self.mixing + self.se

    @property
    def influence(self):
        """M pi, from the null space of W' - I with the sum of its entries."""
        system = np.vstack([self.W.T - np.eye(self.M), np.ones(self.M)])
        return self.M * np.linalg.lstsq(system, np.r_[np.zeros(self.M), 1.0], rcond=None)[0]

    # ---- estimators ------------------------------------------------------------------------------

    def solution(self, shares, start=None):
        """Solve sum_m shares_m grad L_m = 0 by Newton's method."""
        theta = np.zeros(len(self.theta0)) if start is None else start
        for _ in range(60):
            step = np.linalg.solve(np.tensordot(shares, self.hessians(theta), 1), shares @ self.gradients(theta))
            theta = theta - step
        return theta

    @property
    def pooled(self):
        """The whole-sample estimator."""
        return self.solution(self.sizes / self.sizes.sum())

    def pooled_hessian(self, theta):
        return np.tensordot(self.sizes / self.sizes.sum(), self.hessians(theta), 1)

    @property
    def pooled_variance(self):
        """tr Omega^-1 Sigma Omega^-1 / N at the whole-sample estimator; the clients are fixed."""
        theta, N = self.pooled, self.sizes.sum()
        meat = sum((s - s.mean(axis=0)).T @ (s - s.mean(axis=0)) for s in self.scores(theta)) / N**2
        bread = np.linalg.inv(self.pooled_hessian(theta))
        return np.trace(bread @ meat @ bread)

    @property
    def pooled_bias(self):
        """varrho ||Omega^-1 flat_A||, by rows."""
        share = np.where(self.bad, self.sizes, 0.0) / self.sizes.sum()
        flat = share @ self.gradients(self.theta0)
        return np.linalg.norm(np.linalg.solve(self.pooled_hessian(self.theta0), flat))

    # ---- the conditions --------------------------------------------------------------------------

    @property
    def varrho(self):
        return self.bad.mean()

    def lambda_min(self, theta):
        return min(np.linalg.eigvalsh(h)[0] for h in self.hessians(theta))

    @property
    def L_max(self):
        _, _, second, third = FAMILIES[self.family]

        def moment(X):
            size = np.linalg.norm(X, axis=1)
            return np.mean(np.maximum(second * size**2, third * size**3) ** 8) ** 0.125

        return max(moment(X) for X, _ in self.rows)

    @property
    def flat(self):
        return self.gradients(self.theta0)[self.bad]

    @property
    def flat_mean(self):
        return np.linalg.norm(self.flat.mean(axis=0))

    @property
    def flat_rms(self):
        return math.sqrt((self.flat**2).sum(axis=1).mean())

    # ---- the weights -----------------------------------------------------------------------------

    def factors(self, omega, balance=False):
        """What the clients multiply the step by: omega_m n_m / (n-bar M pi_m)."""
        return omega * self.sizes / self.sizes.mean() / (self.influence if balance else 1.0)

    def of_weights(self, omega):
        """omega-bar^G, omega-bar^A_2 and Delta-bar_2 of section 4.1."""
        good, bad = omega[~self.bad].sum() / self.M, np.sqrt(np.mean(omega[self.bad] ** 2)) if self.bad.any() else 0.0
        return good, bad, np.sqrt(np.mean((omega - ~self.bad) ** 2))

    def variance(self, omega, theta, balance=False):
        """Trace of the sandwich covariance of the weighted estimate."""
        v = self.factors(omega, balance) * self.influence / self.M
        bread = np.linalg.inv(np.tensordot(v, self.hessians(theta), 1))
        meat = sum((v[m] / len(s)) ** 2 * s.T @ s for m, s in enumerate(self.scores(theta)))
        return np.trace(bread @ meat @ bread)
