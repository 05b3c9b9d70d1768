"""Theorems 1 to 3, Proposition 1 and Corollary 1 of the paper, with the constants of a fit.

All are statements of order, so none of their lines can hold or fail: they are indicative, or unknown
where a divisor vanishes or the fit is not of the kind the theorem is about.
"""

from __future__ import annotations

import math
from dataclasses import replace

from adfl_stats.theory import bounds
from adfl_stats.theory.checks import INDICATIVE, UNKNOWN, Check, number
from adfl_stats.theory.conditions import told
from adfl_stats.theory.constants import Constants

__all__ = ["corollary1", "proposition1", "theorem1", "theorem2", "theorem3"]


def theorem1(c: Constants) -> list[Check]:
    """Return the mean squared error of the whole-sample estimator, split, and its rate (section 3.2)."""
    most = bounds.variance_bound(c.L_max, c.lambda_min, c.varrho, c.N)
    low, high = bounds.bias_range(c.varrho, c.flat_mean, c.L_max)
    share, squared = c.N * c.varrho**2, c.pooled_bias**2
    standing = "below 1: the rate is kept" if share < 1.0 else "above 1: the root-N rate is lost"
    se = math.sqrt(c.variance)
    pulled = f"{number(c.pooled_bias / se)} standard errors" if se > 0 else number(c.pooled_bias)
    return [
        _order(
            "V",
            "Theorem 1",
            c.variance,
            f"<~ {number(most)}",
            told("Variance of the pooled estimator: trace of this fit's sandwich covariance.", c, abnormal=True),
        ),
        _order(
            "||flat_A|| B",
            "Theorem 1",
            squared,
            f">~ {number(low)}",
            told(
                f"Squared bias of the pooled estimator (plain DFL), which the abnormal clients shift by {pulled}: "
                f"varrho flat_A through the pooled curvature. The paper's order is varrho^2 ||flat_A||^2 = "
                f"{number(high)}, in units of gradients, with ||flat_A|| = {number(c.flat_mean)}.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        _order(
            "MSE",
            "Theorem 1",
            c.variance + squared,
            "-",
            told(
                f"V + ||flat_A|| B, of which bias is {_share(squared, c.variance + squared)}.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        _order(
            "varrho^2",
            "Theorem 1",
            c.varrho**2,
            f"o({number(1.0 / c.N)})",
            told(f"N varrho^2 = {number(share)}, {standing} if these clients count fully.", c, abnormal=True),
        ),
    ]


def proposition1(c: Constants) -> list[Check]:
    """Return rate and floor of standard DFL with this step and network (section 3.3)."""
    rate = bounds.dfl_rate(c.step_least, c.varrho, c.lambda_min)
    floor = bounds.dfl_floor(c.step_most, c.se, c.rho, c.varrho, c.lambda_min)
    speed = "no bound" if rate >= 1.0 else f"{math.log(10.0) / -math.log(max(rate, 1e-300)):.3g} rounds"
    size = c.step_most + c.se
    lines = [
        _order(
            "rate",
            "Proposition 1",
            rate,
            "< 1",
            told(
                f"One minus it is {number(1.0 - rate)}. Per tenfold gain: {speed}; the last run had {c.rounds}."
                f"{_units(c)}",
                c,
                abnormal=True,
            ),
        ),
        _order(
            "floor",
            "Proposition 1",
            floor,
            f"<< {number(math.sqrt(c.variance))}",
            told(
                "Where the distance to the pooled estimator ends, beside the standard error of the estimate. "
                f"The clients are {number(c.consensus)} apart.",
                c,
                abnormal=True,
            ),
        ),
        _order(
            "step + SE(W)",
            "Proposition 1",
            size,
            f"o({number(1.0 / c.N)})",
            f"{number(size * c.N)} times 1/N. What is sufficient for any network; res.numerical_error has what this "
            "run reached." + (" Steps balanced by influence make up for SE(W) to first order." if c.balanced else ""),
        ),
    ]
    return lines if c.smooth else [_aside(line, _NO_MEANS) for line in lines]


def theorem2(c: Constants) -> list[Check]:
    """Return Err1, Err2, Err3, their sum and the requirements for the oracle property (section 4.1)."""
    first = bounds.err1(c.contracted, c.start_reach)
    second = bounds.err2(c.step_most, c.se, c.rho, c.lambda_min, c.L_max, c.omega_good, c.n, c.varrho, c.flat_rms)
    third = bounds.err3(
        c.lambda_min, c.L_max, c.omega_good, c.omega_bad, c.delta, c.N, c.varrho, c.flat_rms, c.oracle_distance
    )
    needs = bounds.oracle_requirements(c.step_most, c.se, c.n, c.N, c.varrho, c.omega_good, c.omega_bad, c.delta)
    root = 1.0 / math.sqrt(c.N)
    lines = [
        _order(
            "Err1",
            "Theorem 2",
            first,
            f"<< {number(root)}",
            told(
                f"Optimisation: the bound leaves {number(c.contracted)} of the start's distance "
                f"{number(c.start_reach)} after {c.rounds} rounds. The estimate stands in for the oracle.",
                c,
                abnormal=True,
            ),
        ),
        _order(
            "Err2",
            "Theorem 2",
            second,
            f"<< {number(root)}",
            told("What the step and the imbalance of the network leave.", c, abnormal=True, flat=True),
        ),
        _order(
            "Err3",
            "Theorem 2",
            third,
            f"<< {number(root)}",
            told(
                f"What weights other than 0 and 1 cost: omega_G = {number(c.omega_good)}, omega_A = "
                f"{number(c.omega_bad)}, Delta_2 = {number(c.delta)}; ||theta_A - theta_0|| is about "
                f"{number(c.oracle_distance)}.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        _order(
            "Err1 + Err2 + Err3",
            "Theorem 2",
            first + second + third,
            f"<< {number(root)}",
            told(
                "Bound on the distance from the oracle, up to a constant; 1/N^1/2 is the size of the statistical "
                f"error. It is loose: the clients are {number(c.consensus)} apart.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        *(
            _order(f"oracle ({k})", "Theorem 2", value, _small_beside(bound), told(text, c, abnormal=True))
            for k, ((value, bound), text) in enumerate(zip(needs, _needs(c, needs), strict=True), start=1)
        ),
        _order(
            "M / n^4",
            "Theorem 2",
            c.M / c.n**4,
            "o(1)",
            f"The chance that the bounds do not hold is of the order of this plus 1/(log n)^4 = "
            f"{number(math.log(c.n) ** -4 if c.n > 1 else math.inf)}; for Theorem 3 plus 1/log N = "
            f"{number(1.0 / math.log(c.N))}.",
        ),
    ]
    return lines if c.smooth else [_aside(line, _NO_MEANS) for line in lines]


def _needs(c: Constants, needs: tuple[tuple[float, float], ...]) -> list[str]:
    """Return the three requirements in words."""
    ratios = [value / bound if bound > 0 else math.inf for value, bound in needs]
    cure = "a smaller step lowers it" if c.step_most > c.se else "SE(W) dominates; balance weights or steps"
    trusted = (
        f"omega_A / omega_G, {number(ratios[1])} of 1/(varrho N^1/2): abnormal clients must have next to no weight."
        if c.varrho > 0
        else "omega_A / omega_G: no client is abnormal, so that nothing is asked."
    )
    return [
        f"(step + SE(W))(n^-1/2 + varrho^1/2) / omega_G, {number(ratios[0])} of 1/N^1/2: {cure}.",
        trusted,
        "Delta_2 / omega_G: the weights must be close to 0 and 1 on most clients.",
    ]


def theorem3(c: Constants) -> list[Check]:
    """Return the window of lambda, the bounds on the weights and the final bound (section 4.2)."""
    low, high = bounds.lambda_window(c.n, c.M, c.N)
    limits = bounds.weight_bounds(c.lam, c.pooled_error, c.n, c.N, c.varrho)
    final = bounds.adaptive_bound(c.lam, c.pooled_error, c.N)
    root = 1.0 / math.sqrt(c.N)
    window = f"log N to n^1/2 M^-1/8, constants 1.{_empty(low, high)}{_lambda_unit(c)}"
    lines = [
        _order("lambda", "Theorem 3", c.lam, f"{number(low)} to {number(high)}", window),
        _order(
            "omega_A",
            "Theorem 3 (1)",
            c.omega_bad,
            f"<~ {number(limits[0])}",
            told("Root mean square weight of the abnormal clients.", c, abnormal=True),
        ),
        _order(
            "Delta_2^2",
            "Theorem 3 (2)",
            c.delta**2,
            f"<~ {number(limits[1])}",
            told("Mean squared distance of the weights from the oracle's.", c, abnormal=True, theta0=True),
        ),
        _order(
            "1 / omega_G",
            "Theorem 3 (3)",
            1.0 / c.omega_good if c.omega_good > 0 else math.inf,
            f"<~ {number(limits[2])}",
            told("How much slower the normal clients make the run.", c, abnormal=True, theta0=True),
        ),
        _order(
            "bound",
            "Theorem 3",
            final,
            f"<< {number(root)}",
            told(
                "Distance from the oracle if plain DFL were the start, whose error is about "
                f"{number(c.pooled_error)}: lambda times it, {number(c.lam * c.pooled_error)}, should be well below 1.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
    ]
    if c.equalised:
        lines[:4] = [replace(line, note=f"{line.note} {_EQUALISED}") for line in lines[:4]]
    return [_about_lambda(line, c) for line in lines]


def corollary1(c: Constants) -> list[Check]:
    """Return the final bound with the initial estimates that the last stage began with (section 4.2)."""
    value = bounds.adaptive_bound(c.lam, c.start_distance, c.N)
    note = "Distance from the oracle, up to constants, from the start that the last stage by lambda had."
    line = _order(
        "bound from the start",
        "Corollary 1",
        value,
        f"<< {number(1.0 / math.sqrt(c.N))}",
        told(note, c, theta0=True),
    )
    return [_about_lambda(line, c)]


def _about_lambda(line: Check, c: Constants) -> Check:
    """Mark a line as unknown where there is no lambda, or lambda is zero."""
    if math.isnan(c.lam):
        return _aside(line, _NO_LAMBDA)
    return line if c.lam > 0.0 else _aside(line, _PLAIN)


_NO_MEANS = "The theorem is about weighted means and gradient steps; the rounds of this fit are others."
_EQUALISED = "A last stage replaced the weights of lambda by probabilities; these are used here."
_PLAIN = "lambda is 0: all clients count alike, as in plain DFL, and the theorem does not apply."
_NO_LAMBDA = "This fit has no lambda: its weights are given, or probabilities from the model of clients."


def _order(name: str, place: str, value: float, bound: str, note: str) -> Check:
    """Return a statement of order: indicative, or unknown where there is no finite value."""
    if math.isfinite(value):
        return Check(name, place, value, bound, INDICATIVE, note)
    why = "No finite bound: lambda_min or the normal clients' weight is zero, or rho >= 1. " if value > 0 else ""
    return Check(name, place, value, bound, UNKNOWN, why + note)


def _small_beside(bound: float) -> str:
    return f"o({number(bound)})" if math.isfinite(bound) else "any"


def _aside(line: Check, why: str) -> Check:
    """Return a line of a theorem that is not about this fit."""
    return replace(line, value=None, status=UNKNOWN, note=why)


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g} %" if whole > 0 else "none"


def _units(c: Constants) -> str:
    if not c.preconditioned:
        return ""
    return (
        f" The run used coordinates of pooled curvature 1; in the paper's, its step is {number(c.step_least)} to "
        f"{number(c.step_most)} by direction."
    )


def _empty(low: float, high: float) -> str:
    return "" if low <= high else " Empty here, as at the paper's own n = M = 100; that is expected."


def _lambda_unit(c: Constants) -> str:
    if c.lam == c.lam_given:
        return ""
    return (
        f" lambda = {number(c.lam_given)} counts root score statistics beyond their 95 % point; the value is per unit "
        "of gradient norm. The upper end protects normal clients, which lose no weight up to that point here."
    )
