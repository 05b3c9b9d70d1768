"""The constants of the paper's theory, estimated from a fit."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from adfl_stats._client_sets import abnormal_mask
from adfl_stats._types import Array, ClientSet, Mask, NumbersByName
from adfl_stats.data.client_data import ClientData
from adfl_stats.inference.record import FitRecord
from adfl_stats.network.measures import LEAST_INFLUENCE
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import one_network
from adfl_stats.theory.bounds import contraction
from adfl_stats.theory.condition_5 import Condition5, condition_5
from adfl_stats.theory.flat import Flat, flat
from adfl_stats.theory.truth import true_parameter
from adfl_stats.theory.whole_sample import whole_sample

__all__ = ["Constants", "step_range"]


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
    equal_sizes, balanced, smooth, preconditioned, solved : bool
        Whether all clients have n rows; whether steps make up for an unbalanced network; whether the fit
        was one of equation (4.1), which the theorems are about; whether it ran in other coordinates than
        the paper's; whether its limit was solved for, so that t is infinite.
    varrho : float
        The share of abnormal clients, ``|A| / M``.
    condition_5 : Condition5
        rho = ||W'(I - 11'/M)W|| + SE(W), its two terms, and whether it is below 1.
    lambda_min, pooled_min : float
        Smallest eigenvalue of any client's Hessian (Condition 3), and of the weighted mean Hessian.
    degenerate : tuple
        Labels of the clients whose Hessian is singular.
    family : str
        Family and link.
    convex, strictly_convex, bounded : bool
        Whether the loss of a row is convex for all parameters, and strictly so in its linear predictor; whether its
        second and third derivatives have bounds over all parameters (Condition 4).
    score_moment, curvature_moment, L_max : float
        The largest over clients of the eighth moments of Condition 4 (roots taken); C_max is the larger
        of the first two.
    flat : Flat
        flat_m = E_m grad l(theta_0) over A (Condition 6).
    weight_good, weight_bad, weight_delta : float
        omega-bar^G, omega-bar^A_2 and Delta-bar_2 of section 4.1 with the weights omega_m of the fit.
    omega_good, omega_bad, delta : float
        The same with the factors of the run's steps, omega_m n_m / (n-bar M pi_m) or what of it applies, divided by
        `largest`: with these the run is one of equation (4.1) whose step is `largest` times alpha.
    largest : float
        The largest of these factors, at least 1: Theorem 2 wants omega_m in [0, 1].
    step_least, step_most : float
        alpha. Both are the step, but for a run in other coordinates Q: there a client moves by -alpha f_m Q grad L_m,
        and these are alpha times the smallest and the largest eigenvalue of Q.
    contracted : float
        The factor in Err1, over the phases of the last run.
    rounds : int
        Rounds of the last run, or passes over the data where the limit was solved for.
    lam : float
        lambda_n; NaN if the fit has none.
    not_weights : str
        Why the fit's weights are not those of equation (4.4), which Theorem 3 and Corollary 1 are about; "" if they
        are.
    start : str
        How the initial estimates were found, "DFL" for standard DFL in one stage.
    variance : float
        Trace of the sandwich covariance of this fit.
    pooled_variance, pooled_bias, pooled_error : float
        Of the whole-sample estimator: V of Theorem 1; varrho ||Omega^-1 flat_A||, by the clients' rows, with the mean
        Hessian Omega of all clients; and ||theta-hat - theta_0||.
    pooled_shift : float
        Distance of the whole-sample estimator from the estimate.
    oracle_distance : float
        ||theta_A - theta_0||: the estimate in the place of the oracle theta_A, or the root of `variance`.
    start_distance, start_spread : float
        Of the initial estimates that the weights come from (Condition 7): distance of their mean from theta_0; mean
        squared distance from their mean.
    start_reach, start_stacked : float
        Of the estimates that the last run began with: the largest distance from the estimate, delta_0 of
        Theorem 2 with the estimate in the place of the oracle, and the norm of all these distances.
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
    solved: bool
    varrho: float
    condition_5: Condition5
    lambda_min: float
    pooled_min: float
    degenerate: tuple[Hashable, ...]
    family: str
    convex: bool
    strictly_convex: bool
    bounded: bool
    score_moment: float
    curvature_moment: float
    L_max: float
    flat: Flat
    weight_good: float
    weight_bad: float
    weight_delta: float
    omega_good: float
    omega_bad: float
    delta: float
    largest: float
    step_least: float
    step_most: float
    contracted: float
    rounds: int
    lam: float
    not_weights: str
    start: str
    variance: float
    pooled_variance: float
    pooled_bias: float
    pooled_error: float
    pooled_shift: float
    oracle_distance: float
    start_distance: float
    start_spread: float
    start_reach: float
    start_stacked: float
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
            With it the whole-sample estimator is exact, and so is flat_m at a given `theta0`; else both are
            linear about the estimate.
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
        if data is not None and fit.set_aside.any() and data.set_aside is None:
            data = data.setting_aside(fit.set_aside)
        params, M = fit.params, len(fit.labels)
        mask = ~fit.trusted if abnormal is None else abnormal_mask(abnormal, fit.labels)
        truth = None if theta0 is None else true_parameter(theta0, fit.names)
        variance, pooled = float(np.trace(fit.sandwich)), whole_sample(fit, data, truth)
        biased = flat(fit, data, mask, truth, pooled.hessian)
        least, most = step_range(fit)
        factors = run_factors(fit, network)
        largest = max(1.0, float(factors.max()))
        good, bad, delta = _distances(factors / largest, mask)
        weight_good, weight_bad, weight_delta = _distances(fit.weights, mask)
        lambda_min, lam = _lambda_min(fit), fit.details.get("lam")
        shift = float(np.linalg.norm(pooled.params - params))
        return cls(
            M=M,
            P=len(params),
            N=float(fit.sizes.sum()),
            n=float(fit.sizes.mean()),
            abnormal=mask,
            abnormal_given=abnormal is not None,
            theta0_given=truth is not None,
            exact=truth is not None and data is not None,
            equal_sizes=bool(fit.sizes.min() == fit.sizes.max()),
            balanced=bool(fit.details.get("balance")) and not network.is_doubly_stochastic,
            smooth=fit.weighted,
            preconditioned=fit.preconditioned,
            solved=fit.solver == "limit",
            varrho=float(mask.mean()),
            condition_5=condition_5(network),
            lambda_min=lambda_min,
            pooled_min=float(np.linalg.eigvalsh(fit.weighted_sums.hessian / fit.total_weights.mean())[0]),
            degenerate=tuple(fit.labels[_degenerate(fit)]),
            family=f"{fit.family.name} ({fit.family.link})",
            convex=fit.family.convex,
            strictly_convex=fit.family.convex and not fit.family.robust,
            bounded=fit.family.bounded_derivatives,
            score_moment=float(fit.regularity.score_moment.max()),
            curvature_moment=float(fit.regularity.curvature_moment.max()),
            L_max=float(fit.regularity.lipschitz_moment.max()),
            flat=biased,
            weight_good=weight_good,
            weight_bad=weight_bad,
            weight_delta=weight_delta,
            omega_good=good,
            omega_bad=bad,
            delta=delta,
            largest=largest,
            step_least=least,
            step_most=most,
            # In the limit nothing is left of the start.
            contracted=0.0
            if fit.solver == "limit"
            else contraction(*_phases(fit, largest * least / fit.step), good, lambda_min),
            rounds=fit.rounds,
            lam=math.nan if lam is None else float(lam),
            not_weights=_not_weights(fit, network),
            start=str(fit.details.get("start", "")) if fit.details.get("stages", 1) == 1 else "an earlier stage",
            variance=variance,
            pooled_variance=pooled.variance,
            pooled_bias=float(np.linalg.norm(np.linalg.solve(pooled.hessian, biased.pooled))),
            pooled_error=math.hypot(shift, math.sqrt(variance))
            if truth is None
            else float(np.linalg.norm(pooled.params - truth)),
            pooled_shift=shift,
            oracle_distance=math.sqrt(variance) if truth is None else float(np.linalg.norm(params - truth)),
            start_distance=_start_distance(fit, params, truth, variance),
            start_spread=fit.start.spread,
            start_reach=fit.start.reach,
            start_stacked=fit.start.stacked,
            consensus=float(np.sqrt(np.mean(np.sum((fit.theta - params) ** 2, axis=1)))),
        )


def run_factors(fit: FitRecord, network: Network) -> Array:
    """Return what each client multiplies the step by (M,): omega_m (n_m / n-bar), over M pi_m if steps are balanced."""
    M = len(fit.labels)
    influence = M * network.influence.to_numpy()
    relative_sizes = np.ones(M) if fit.weighting == "client" else M * fit.regularity.shares
    unheard = fit.weights * relative_sizes / (LEAST_INFLUENCE if fit.details.get("balance") else 1.0)
    # What clients without influence do is not seen in the total weights.
    return np.divide(fit.total_weights, influence, out=unheard, where=influence > 0.0)


def _distances(omega: Array, abnormal: Mask) -> tuple[float, float, float]:
    """Return omega-bar^G, omega-bar^A_2 and Delta-bar_2 of section 4.1."""
    bad = float(np.sqrt(np.mean(omega[abnormal] ** 2))) if abnormal.any() else 0.0
    return float(omega[~abnormal].sum() / len(omega)), bad, float(np.sqrt(np.mean((omega - ~abnormal) ** 2)))


def _not_weights(fit: FitRecord, network: Network) -> str:
    """Return why the weights of a fit are not exp(-lambda ||grad L_m(theta_init)||)."""
    details = fit.details
    if "lam" not in details:
        return "This fit has no lambda: its weights are given, or probabilities from the model of clients"
    if details["lam"] == 0.0:
        return "lambda is 0: all clients count alike, as in standard DFL"
    if details.get("equalise"):
        return "A last stage replaced the weights of lambda by probabilities from the model of clients"
    if details.get("measure") != "norm":
        return "The weights of this fit come from score statistics beyond their 95 % point, not from gradient norms"
    if details.get("balance") and not network.is_doubly_stochastic:
        return "Steps are balanced by influence, which equation (4.1) with these weights is not"
    return ""


def _degenerate(fit: FitRecord) -> Mask:
    """Return the rank-deficient clients; the units of the columns do not matter."""
    return fit.regularity.ranks < len(fit.names)


def _lambda_min(fit: FitRecord) -> float:
    """Return the smallest curvature of any client; what rounding may have made counts as zero."""
    regularity = fit.regularity
    lost = regularity.least_curvature <= np.finfo(np.float64).eps * len(fit.names) * regularity.most_curvature
    # A client whose numbers overflow takes no step; its curvature does not count.
    known = ~fit.set_aside
    return 0.0 if (_degenerate(fit) | lost)[known].any() else float(regularity.least_curvature[known].min())


def step_range(fit: FitRecord) -> tuple[float, float]:
    """Return the smallest and largest step over directions, in the paper's coordinates."""
    if fit.metric is None:
        return fit.step, fit.step
    values = np.linalg.eigvalsh(fit.metric)
    return fit.step * float(values[0]), fit.step * float(values[-1])


def _phases(fit: FitRecord, scale: float) -> tuple[list[float], list[float]]:
    """Return steps and rounds of the phases of the last run, from its trace."""
    last = fit.trace[fit.trace["run"] == fit.trace["run"].max()]
    return (last["step"] * scale).tolist(), np.diff(last["round"], prepend=0).tolist()


def _start_distance(fit: FitRecord, params: Array, truth: Array | None, variance: float) -> float:
    """Return the distance of the mean initial estimate from theta_0.

    The estimate is close to the start it came from; where it stands in for theta_0, its own error counts too.
    """
    if truth is not None:
        return float(np.linalg.norm(fit.start.centre - truth))
    return math.hypot(float(np.linalg.norm(fit.start.centre - params)), math.sqrt(variance))
