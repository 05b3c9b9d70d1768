"""Theorems 1 to 3, Proposition 1 and Corollary 1 of the paper, with the constants of a fit.

All are statements of order, so none of their lines can hold or fail: they are indicative, or unknown
where a condition fails, a divisor vanishes, or the fit is not of the kind the theorem is about.
"""

from __future__ import annotations

import math
from dataclasses import replace

from adfl_stats._text import factor_text, number
from adfl_stats.theory import bounds
from adfl_stats.theory.checks import FAILS, INDICATIVE, UNKNOWN, Check
from adfl_stats.theory.conditions import told
from adfl_stats.theory.constants import Constants

__all__ = ["corollary1", "proposition1", "theorem1", "theorem2", "theorem3"]

# delta of the combined bound below Proposition 1, which holds with probability 1 - delta. Ours: as confidence limits.
MISSED = 0.05


def theorem1(c: Constants) -> list[Check]:
    """Return the mean squared error of the whole-sample estimator, split, and its rate (section 3.2)."""
    most = bounds.variance_bound(c.L_max, c.lambda_min, c.varrho, c.N)
    low, high = bounds.bias_range(c.varrho, c.flat.mean, c.L_max)
    squared, se = c.pooled_bias**2, math.sqrt(c.pooled_variance)
    pulled = f"{number(c.pooled_bias / se)} of its standard errors" if se > 0 else number(c.pooled_bias)
    return [
        _epsilon("varrho < epsilon", "Theorem 1", c.varrho, told("", c, abnormal=True)),
        _order(
            "V",
            "Theorem 1",
            c.pooled_variance,
            f"<~ {number(most)}",
            "Variance of the whole-sample estimator, in which all clients count by their rows: trace of its sandwich "
            "covariance, with scores about the mean of their client.",
        ),
        _order(
            "||flat_A|| B",
            "Theorem 1",
            squared,
            f">~ {number(low)}",
            told(
                f"Squared bias of the whole-sample estimator, which the abnormal clients shift by {pulled}: "
                "varrho flat_A through the mean Hessian of all clients, to first order. The paper's order is "
                f"varrho^2 ||flat_A||^2 = {number(high)}, in units of gradients, with ||flat_A|| = "
                f"{number(c.flat.mean)}.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        _order(
            "MSE",
            "Theorem 1",
            c.pooled_variance + squared,
            "-",
            told(
                f"V + ||flat_A|| B, of which bias is {_share(squared, c.pooled_variance + squared)}.",
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
            told(
                f"The whole-sample estimator has the root-N rate only if N varrho^2 tends to 0; it is "
                f"{number(c.N * c.varrho**2)}.",
                c,
                abnormal=True,
            ),
        ),
    ]


def proposition1(c: Constants) -> list[Check]:
    """Return rate and floor of standard DFL with this step and network (section 3.3), and what it assumes."""
    rate = bounds.dfl_rate(c.step_least, c.varrho, c.lambda_min) if c.lambda_min > 0.0 else math.nan
    floor = bounds.dfl_floor(c.step_most, c.se, c.rho, c.varrho, c.lambda_min)
    combined = bounds.combined_bound(c.step_most, c.se, c.rho, c.varrho, c.flat.mean, c.n, c.M, MISSED)
    size = c.step_most + c.se
    had = "the limit of this fit was solved for" if c.solved else f"the last run of this fit had {c.rounds}"
    lines = [
        _epsilon("step + SE(W) < epsilon", "Proposition 1", size, "Theorem 2 assumes it as well."),
        _epsilon(
            "delta_0 < epsilon",
            "Proposition 1",
            c.start_reach + c.pooled_shift,
            "Largest distance from the whole-sample estimator at the start of the last run, at most.",
        ),
        _order(
            "rate",
            "Proposition 1",
            rate,
            "< 1",
            told(
                f"1 - step (1 - varrho) lambda_min / 8 = {factor_text(rate)} for standard DFL with this step: per "
                f"tenfold gain {_rounds(rate)}; {had}. It leads down to the floor, not to the limit.{_units(c)}",
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
                "Where the distance of standard DFL from the whole-sample estimator ends, up to a constant, beside "
                f"the standard error of the estimate. The clients of this fit are {number(c.consensus)} apart.",
                c,
                abnormal=True,
            ),
        ),
        _order(
            "step + SE(W)",
            "Proposition 1",
            size,
            f"o({number(1.0 / c.N)})",
            f"{number(size * c.N)} times 1/N. For standard DFL to differ from the whole-sample estimator by less than "
            "statistical error; res.numerical_error has what this fit reached."
            + (" Steps balanced by influence make up for SE(W) to first order." if c.balanced else ""),
        ),
        _order(
            "distance from theta_0",
            "Proposition 1, Theorem 1",
            combined,
            "-",
            told(
                f"The bound on the limit of standard DFL below Proposition 1, with probability {1.0 - MISSED:g} "
                f"(delta = {MISSED:g} is ours) and constants 1.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
    ]
    return _applied(lines, c)


def theorem2(c: Constants) -> list[Check]:
    """Return Err1, Err2, Err3, their sum, equation (4.3) and the requirements for the oracle property (section 4.1)."""
    step = c.step_most * c.largest
    first = bounds.err1(c.contracted, c.start_reach) if c.lambda_min > 0.0 or c.solved else math.inf
    second = bounds.err2(step, c.se, c.rho, c.lambda_min, c.L_max, c.omega_good, c.n, c.varrho, c.flat.rms)
    third = bounds.err3(
        c.lambda_min, c.L_max, c.omega_good, c.omega_bad, c.delta, c.N, c.varrho, c.flat.rms, c.oracle_distance
    )
    needs = bounds.oracle_requirements(step, c.se, c.n, c.N, c.varrho, c.omega_good, c.omega_bad, c.delta)
    limit = bounds.limit_bound(step, c.se, c.n, c.N, c.varrho, c.omega_good, c.omega_bad, c.delta)
    root = 1.0 / math.sqrt(c.N)
    lines = [
        _epsilon(
            "||theta*(0) - I* theta_A|| <= epsilon",
            "Theorem 2",
            c.start_stacked,
            "Norm over all clients at the start of the last run; the estimate stands in for the oracle.",
        ),
        _order(
            "Err1",
            "Theorem 2",
            first,
            f"<< {number(root)}",
            told(
                "Optimisation: the limit was solved for, so that t is infinite and nothing is left of the start."
                if c.solved
                else f"Optimisation: the bound leaves {number(c.contracted)} of the distance {number(c.start_reach)} "
                f"at the start of the last run after its {c.rounds} rounds. The estimate stands in for the oracle.",
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
                f"{number(c.oracle_distance)}.{_factors(c)}",
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
                f"error. The clients are {number(c.consensus)} apart.",
                c,
                abnormal=True,
                flat=True,
            ),
        ),
        _order(
            "limit",
            "Theorem 2 (4.3)",
            limit,
            f"<< {number(root)}",
            told("The asymptotic bound on the distance of the limit from the oracle, with C = 1.", c, abnormal=True),
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
            f"The chance that the bounds do not hold is of the order of this (Proposition 1), plus 1/(log n)^4 = "
            f"{number(math.log(c.n) ** -4 if c.n > 1 else math.inf)} (Theorem 2), or plus 1/log N = "
            f"{number(1.0 / math.log(c.N))} (Theorem 3).",
        ),
    ]
    return _applied(lines, c)


def _needs(c: Constants, needs: tuple[tuple[float, float], ...]) -> list[str]:
    """Return the three requirements in words."""
    ratios = [value / bound if bound > 0 else math.inf for value, bound in needs]
    if c.step_most * c.largest > c.se:
        larger = "the step is the larger part"
    elif c.balanced:
        larger = "SE(W) is the larger part; that steps are balanced by influence does not count in the theorem"
    else:
        larger = "SE(W) is the larger part"
    trusted = (
        f"omega_A / omega_G, {number(ratios[1])} of 1/(varrho N^1/2): abnormal clients must have next to no weight."
        if c.varrho > 0
        else "omega_A / omega_G: no client is abnormal, so that nothing is required."
    )
    return [
        f"(step + SE(W))(n^-1/2 + varrho^1/2) / omega_G, {number(ratios[0])} of 1/N^1/2: {larger}.",
        trusted,
        "Delta_2 / omega_G: the weights must be close to 0 and 1 on most clients.",
    ]


def theorem3(c: Constants) -> list[Check]:
    """Return the window of lambda, the bounds on the weights and equation (4.5) (section 4.2)."""
    low, high = bounds.lambda_window(c.n, c.M, c.N)
    limits = bounds.weight_bounds(c.lam, c.pooled_error, c.n, c.N, c.varrho)
    final = bounds.adaptive_bound(c.lam, c.pooled_error, c.N)
    root = 1.0 / math.sqrt(c.N)
    lines = [
        _order(
            "lambda",
            "Theorem 3",
            c.lam,
            f"{number(low)} to {number(high)}",
            f"log N to n^1/2 M^-1/8, constants 1; Corollary 1 assumes it as well.{_empty(low, high)}",
        ),
        _order(
            "omega_A",
            "Theorem 3 (1)",
            c.weight_bad,
            f"<~ {number(limits[0])}",
            told("Root mean square weight of the abnormal clients.", c, abnormal=True),
        ),
        _order(
            "Delta_2^2",
            "Theorem 3 (2)",
            c.weight_delta**2,
            f"<~ {number(limits[1])}",
            told("Mean squared distance of the weights from the oracle's.", c, abnormal=True, theta0=True),
        ),
        _order(
            "1 / omega_G",
            "Theorem 3 (3)",
            1.0 / c.weight_good if c.weight_good > 0 else math.inf,
            f"<~ {number(limits[2])}",
            told("One over the sum of the normal clients' weights divided by M.", c, abnormal=True, theta0=True),
        ),
        _order(
            "bound",
            "Theorem 3 (4.5)",
            final,
            f"<< {number(root)}",
            told(
                "Distance from the oracle, up to constants and o(N^-1/2): lambda ||theta-hat - theta_0|| = "
                f"{number(c.lam * c.pooled_error)}, which must tend to 0.",
                c,
                abnormal=True,
                theta0=True,
            ),
        ),
    ]
    if c.not_weights:
        return [_aside(line, _unlike(c, "Theorem 3")) for line in lines]
    if c.start != "DFL":
        why = (
            f"Theorem 3 is about initial estimates by standard DFL and one stage, as of ad.ADFL(lam=..., stages=1, "
            f"init=ad.DFL()); those of this fit are from {c.start or 'elsewhere'}: see Corollary 1."
        )
        lines[1:] = [_aside(line, why) for line in lines[1:]]
    return _applied(lines, c)


def corollary1(c: Constants) -> list[Check]:
    """Return the final bound with the initial estimates that the last stage began with (section 4.2)."""
    value = bounds.adaptive_bound(c.lam, c.start_distance, c.N)
    note = "Distance from the oracle, up to constants and o(N^-1/2), from the start of the last stage."
    line = _order(
        "bound from the start",
        "Corollary 1",
        value,
        f"<< {number(1.0 / math.sqrt(c.N))}",
        told(note, c, theta0=True),
    )
    return [_aside(line, _unlike(c, "Corollary 1"))] if c.not_weights else _applied([line], c)


_NO_MEANS = "The theorem is about weighted means and gradient steps; the rounds of this fit are others."
_NO_BOUND = "The paper assumes Condition 5 here, which fails."


def _applied(lines: list[Check], c: Constants) -> list[Check]:
    """Return the lines of a theorem, without values where it is not about this fit or this network."""
    if not c.smooth:
        return [_aside(line, _NO_MEANS) for line in lines]
    if c.condition_5.status == FAILS:
        return [line if line.status == UNKNOWN and line.value is None else _aside(line, _NO_BOUND) for line in lines]
    if c.condition_5.trouble:
        return [_at_least(line) if line.name in _OF_RHO else line for line in lines]
    return lines


# The lines that divide by 1 - rho.
_OF_RHO = ("floor", "distance from theta_0", "Err2", "Err1 + Err2 + Err3")


def _at_least(line: Check) -> Check:
    return replace(line, status=UNKNOWN, note=f"At least this, as rho is at least its value. {line.note}")


def _unlike(c: Constants, place: str) -> str:
    return (
        f"{c.not_weights}: {place} is about the weights exp(-lambda ||grad L_m||) of equation (4.4), those of "
        "ad.ADFL(lam=number)."
    )


def _epsilon(name: str, place: str, value: float, note: str) -> Check:
    """Return what a theorem assumes to be below a constant that the paper does not give."""
    words = "For some small epsilon that depends on (L_max, lambda_min, rho); the paper gives no value."
    wanted = "<= epsilon" if "<=" in name else "< epsilon"
    return Check(name, place, value if math.isfinite(value) else None, wanted, UNKNOWN, f"{words} {note}".strip())


def _order(name: str, place: str, value: float, bound: str, note: str) -> Check:
    """Return a statement of order: indicative, or unknown where there is no finite value."""
    if math.isfinite(value):
        return Check(name, place, value, bound, INDICATIVE, note)
    if math.isnan(value):
        return Check(name, place, None, bound, UNKNOWN, f"Not known here. {note}")
    why = "No finite bound: lambda_min or the normal clients' weight is not above zero, L_max not finite, or rho >= 1. "
    return Check(name, place, value, bound, UNKNOWN, why + note)


def _small_beside(bound: float) -> str:
    return f"o({number(bound)})" if math.isfinite(bound) else "any"


def _aside(line: Check, why: str) -> Check:
    """Return a line of a theorem that is not about this fit."""
    return replace(line, value=None, bound="-", status=UNKNOWN, note=why)


def _share(part: float, whole: float) -> str:
    return f"{100.0 * part / whole:.3g} %" if whole > 0 else "none"


def _rounds(rate: float) -> str:
    return f"{math.log(10.0) / -math.log(max(rate, 1e-300)):.3g} rounds" if rate < 1.0 else "no bound"


def _units(c: Constants) -> str:
    if not c.preconditioned:
        return ""
    return (
        " The steps of this fit were taken in other coordinates; in the paper's they are "
        f"{number(c.step_least)} to {number(c.step_most)} by direction, of which the smallest is used here, and the "
        "largest where a bound grows with the step."
    )


def _factors(c: Constants) -> str:
    """Say what omega_m is where it is not the client's weight."""
    if c.equal_sizes and not c.balanced:
        return ""
    parts = ("" if c.equal_sizes else " n_m / n-bar") + (" / (M pi_m)" if c.balanced else "")
    over = "" if c.largest == 1.0 else f", over the largest, {number(c.largest)}, which multiplies the step instead"
    return f" omega_m is what multiplies the step: the weight{parts}{over}."


def _empty(low: float, high: float) -> str:
    return "" if low <= high else " Empty here, as at the paper's own n = M = 100; that is expected."
