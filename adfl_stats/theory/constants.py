"""The constants of the paper's theory, estimated from a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import Array, ClientSet, Mask, NumbersByName
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.inference.record import FitRecord
from adfl_stats.losses.evaluation import client_gradients
from adfl_stats.network.schedule import one_network
from adfl_stats.theory.bounds import contraction
from adfl_stats.theory.condition_5 import Condition5, condition_5
from adfl_stats.theory.truth import true_parameter

__all__ = ["Constants"]


# Quantile of the score test that Condition 6 is judged by. Ours: the usual level of a test.
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Constants:
    """Plug-in values of the constants in sections 3 and 4 of the paper.

    Parameters
    ----------
    M, P : int
        Clients and coefficients.
    N, n : float
        Rows of all clients, and their mean over clients (the paper has clients of equal size).
    abnormal : ndarray (M,) of bool
        The set A: the user's, or the down-weighted clients.
    abnormal_given, theta0_given, exact : bool
        Whether A and theta_0 are the user's; whether flat_m is exact (from data) at theta_0.
    equal_sizes, balanced, smooth, preconditioned : bool
        Whether all clients have n rows; whether steps make up for an unbalanced network; whether the fit
        was one of equation (4.1), which the theorems are about; whether it ran in coordinates in
        which the pooled curvature is about one.
    varrho : float
        |A| / M.
    condition_5 : Condition5
        rho = ||W'(I - 11'/M)W|| + SE(W), its two terms, and whether it is below 1.
    lambda_min, pooled_min : float
        Smallest eigenvalue of any client's Hessian (Condition 3), and of the weighted mean Hessian.
    degenerate : tuple
        Labels of the clients whose Hessian is singular.
    score_moment, curvature_moment, L_max : float
        The largest over clients of the eighth moments of Condition 4 (roots taken); C_max is the larger
        of the first two.
    flat_mean, flat_rms, flat_least : float
        Over A, of flat_m = E_m grad l(theta_0): norm of the mean, root mean square norm, smallest norm
        (NaN if A is empty).
    flat_noise : float
        Standard error of the gradient of the client with the smallest norm.
    hidden : tuple
        Labels of the clients in A whose score test (that of `adfl_stats.screen`) has a p-value of at least .05.
    suspects : int
        Number of clients outside A whose p-value is below that.
    omega_good, omega_bad, delta : float
        omega-bar^G, omega-bar^A_2 and Delta-bar_2 of section 4.1.
    step_least, step_most : float
        alpha. Both are the step, but for a preconditioned run: there it differs between directions, and
        these are its range in the paper's coordinates.
    contracted : float
        The factor in Err1, over the phases of the last run.
    rounds : int
        Rounds of the last run.
    lam : float
        lambda_n per unit of gradient norm; NaN if the method has none.
    lam_given : float
        lambda as the method counts it; with ``measure="score"`` its unit is the root score statistic.
    equalised : bool
        Whether the last weights are probabilities from the model of clients.
    variance : float
        Trace of the sandwich covariance of this fit, for V in Theorem 1.
    pooled_bias : float
        varrho ||Omega^-1 flat_A||, by the clients' rows: the bias that the abnormal ones give the whole-sample
        estimator.
    oracle_distance : float
        ||theta_A - theta_0||: the estimate in the place of the oracle theta_A, or the root of `variance`.
    start_distance, start_spread, start_reach : float
        Of the initial estimates of the last stage: distance of their mean from theta_0; mean squared
        distance from their mean (Condition 7); largest distance from the estimate (delta_0 of Theorem 2).
    consensus : float
        M^-1/2 ||theta* - I* theta-bar||: the clients' root mean square distance from their mean.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
    >>> constants = ad.theory.Constants.of(model.fit().record)
    >>> constants.M, constants.P, constants.varrho
    (10, 2, 0.0)
    """

    M: int
    P: int
    N: float
    n: float
    abnormal: Mask
    abnormal_given: bool
    theta0_given: bool
    exact: bool
    equal_sizes: bool
    balanced: bool
    smooth: bool
    preconditioned: bool
    varrho: float
    condition_5: Condition5
    lambda_min: float
    pooled_min: float
    degenerate: tuple[Any, ...]
    score_moment: float
    curvature_moment: float
    L_max: float
    flat_mean: float
    flat_rms: float
    flat_least: float
    flat_noise: float
    hidden: tuple[Any, ...]
    suspects: int
    omega_good: float
    omega_bad: float
    delta: float
    step_least: float
    step_most: float
    contracted: float
    rounds: int
    lam: float
    lam_given: float
    equalised: bool
    variance: float
    pooled_bias: float
    oracle_distance: float
    start_distance: float
    start_spread: float
    start_reach: float
    consensus: float

    @property
    def C_max(self) -> float:  # noqa: N802 - the name in the paper
        """C_max of Condition 4."""
        return max(self.score_moment, self.curvature_moment)

    @property
    def rho(self) -> float:
        """The constant of Condition 5."""
        return self.condition_5.rho

    @property
    def mixing(self) -> float:
        """||W'(I - 11'/M)W||, the first term of rho."""
        return self.condition_5.mixing

    @property
    def se(self) -> float:
        """SE(W), the second term of rho."""
        return self.condition_5.se

    @property
    def pooled_error(self) -> float:
        """||theta-hat - theta_0|| of the whole-sample estimator, root of variance plus squared bias."""
        return math.hypot(math.sqrt(self.variance), self.pooled_bias)

    @classmethod
    def of(
        cls,
        fit: FitRecord,
        data: ClientData | None = None,
        abnormal: ClientSet | None = None,
        theta0: NumbersByName | None = None,
    ) -> Constants:
        """Estimate the constants.

        Parameters
        ----------
        fit : FitRecord
            What `Results` hold.
        data : ClientData, optional
            With it flat_m at a given `theta0` is exact; else it is linearised at the estimate.
        abnormal : labels, indices or boolean mask, optional
            The set A, as in `Results.check`.
        theta0 : array (P,), or Series or dict by name, optional
            The true parameter, as in `Results.check`.

        Returns
        -------
        Constants
            The plug-in values.
        """
        network = one_network(fit.network, "the check of a fit against the paper's theory")
        found, params, M = fit.evaluation, fit.theta.mean(axis=0), len(fit.labels)
        mask = ~fit.trusted if abnormal is None else abnormal_mask(abnormal, fit.labels)
        truth = None if theta0 is None else true_parameter(theta0, fit.names)
        pooled = found.hessian / fit.total_weights.mean()
        variance = float(np.trace(sandwich(found.hessian, found.meat)[1]))
        curvatures = np.linalg.eigvalsh(pooled)
        least, most = _step_range(fit, curvatures)
        omega, oracle = fit.weights, (~mask).astype(np.float64)
        omega_good, lambda_min = float(np.sum(omega[~mask]) / M), _lambda_min(fit)
        n = float(fit.sizes.mean())
        lam = fit.details.get("lam")
        lam_given = math.nan if lam is None else float(lam)
        return cls(
            M=M,
            P=len(params),
            N=float(fit.sizes.sum()),
            n=n,
            abnormal=mask,
            abnormal_given=abnormal is not None,
            theta0_given=truth is not None,
            exact=truth is not None and data is not None,
            equal_sizes=bool(fit.sizes.min() == fit.sizes.max()),
            balanced=bool(fit.details.get("balance")) and not network.is_doubly_stochastic,
            smooth=fit.weighted,
            preconditioned=fit.preconditioned,
            varrho=float(mask.mean()),
            condition_5=condition_5(network),
            lambda_min=lambda_min,
            pooled_min=float(curvatures[0]),
            degenerate=tuple(fit.labels[_degenerate(fit)]),
            score_moment=float(fit.regularity.score_moment.max()),
            curvature_moment=float(fit.regularity.curvature_moment.max()),
            L_max=float(fit.regularity.lipschitz_moment.max()),
            **_abnormal_gradients(fit, data, mask, truth, pooled),
            omega_good=omega_good,
            omega_bad=float(np.sqrt(np.mean(omega[mask] ** 2))) if mask.any() else 0.0,
            delta=float(np.sqrt(np.mean((omega - oracle) ** 2))),
            step_least=least,
            step_most=most,
            # In the limit nothing is left of the start.
            contracted=0.0
            if fit.solver == "limit"
            else contraction(*_phases(fit, least / fit.step), omega_good, lambda_min),
            rounds=fit.rounds,
            lam=lam_given * _suspicion_unit(fit, n, float(curvatures.mean())),
            lam_given=lam_given,
            equalised=bool(fit.details.get("equalise")),
            variance=variance,
            oracle_distance=math.sqrt(variance) if truth is None else float(np.linalg.norm(params - truth)),
            start_distance=_start_distance(fit, params, truth, variance),
            start_spread=fit.start.spread,
            start_reach=fit.start.reach,
            consensus=float(np.sqrt(np.mean(np.sum((fit.theta - params) ** 2, axis=1)))),
        )


def _degenerate(fit: FitRecord) -> Mask:
    """Return the rank-deficient clients; the units of the columns do not matter."""
    return fit.regularity.ranks < len(fit.names)


def _lambda_min(fit: FitRecord) -> float:
    """Return the smallest curvature of any client; what rounding may have made counts as zero."""
    found = fit.regularity
    lost = found.least_curvature <= np.finfo(np.float64).eps * len(fit.names) * found.most_curvature
    # A client whose numbers overflow takes no step; its curvature does not count.
    known = ~fit.set_aside
    return 0.0 if (_degenerate(fit) | lost)[known].any() else float(found.least_curvature[known].min())


def _step_range(fit: FitRecord, curvatures: Array) -> tuple[float, float]:
    """Return the smallest and largest step over directions, in the paper's coordinates."""
    if not fit.preconditioned:
        return fit.step, fit.step
    return fit.step / float(curvatures[-1]), fit.step / float(curvatures[0])


def _phases(fit: FitRecord, scale: float) -> tuple[list[float], list[float]]:
    """Return steps and rounds of the phases of the last run, from its trace."""
    last = fit.trace[fit.trace["run"] == fit.trace["run"].max()]
    return (last["step"] * scale).tolist(), np.diff(last["round"], prepend=0).tolist()


def _suspicion_unit(fit: FitRecord, n: float, curvature: float) -> float:
    """Return what a unit of gradient norm is worth in the unit that lambda multiplies.

    A root score statistic (n g' H^-1 g / phi)^1/2 is about (n / (phi h))^1/2 ||g||, h the mean curvature.
    """
    if fit.details.get("measure") != "score":
        return 1.0
    # Data without noise have no dispersion.
    return math.sqrt(n / max(fit.evaluation.scale * curvature, 1e-100))


def _abnormal_gradients(
    fit: FitRecord, data: ClientData | None, mask: Mask, truth: Array | None, pooled: Array
) -> dict[str, Any]:
    """Return what is said of flat_m = E_m grad l(theta_0) over the abnormal clients."""
    gradients = fit.evaluation.gradients
    # A client whose numbers overflow has none.
    mask = mask & ~fit.set_aside
    if truth is not None:
        gradients = (
            gradients + (truth - fit.theta.mean(axis=0)) @ pooled
            if data is None
            else client_gradients(data, fit.family, truth)
        )
    beyond = fit.clients.p_values < 1.0 - LEVEL
    words: dict[str, Any] = {
        "hidden": tuple(fit.labels[mask & ~beyond]),
        "suspects": int((beyond & ~mask).sum()),
    }
    if not mask.any():
        none = {"flat_mean": 0.0, "flat_rms": 0.0, "flat_least": math.nan, "flat_noise": math.nan, "pooled_bias": 0.0}
        return words | none
    flat = gradients[mask]
    norms, mean = np.linalg.norm(flat, axis=1), flat.mean(axis=0)
    weakest = int(np.argmin(norms))
    return words | {
        "flat_mean": float(np.linalg.norm(mean)),
        "flat_rms": float(np.sqrt(np.mean(norms**2))),
        "flat_least": float(norms[weakest]),
        "flat_noise": float(fit.regularity.gradient_noise[mask][weakest]),
        # The whole-sample estimator counts clients by their rows; with equal sizes this is varrho times the mean.
        "pooled_bias": float(np.linalg.norm(np.linalg.solve(pooled, fit.sizes[mask] @ flat / fit.sizes.sum()))),
    }


def _start_distance(fit: FitRecord, params: Array, truth: Array | None, variance: float) -> float:
    """Return the distance of the mean initial estimate from theta_0.

    The estimate is close to the start it came from; where it stands in for theta_0, its own error counts too.
    """
    if truth is not None:
        return float(np.linalg.norm(fit.start.centre - truth))
    return math.hypot(float(np.linalg.norm(fit.start.centre - params)), math.sqrt(variance))
