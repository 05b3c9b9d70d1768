"""The paper's bounds as plain functions of its constants, those it leaves open set to one.

Notation: ``varrho`` is the abnormal share, ``se`` is SE(W), ``flat_mean`` is ||M_A^-1 sum_A flat_m|| and
``flat_rms`` its root mean square counterpart, ``omega_good`` is M^-1 sum over normal clients of omega_m,
``omega_bad`` the root mean square of omega_m over abnormal ones, ``delta`` is Delta-bar_2. A bound with
a vanishing divisor (rho >= 1, no curvature, no trust) is infinite: the theory then gives no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "adaptive_bound",
    "bias_range",
    "combined_bound",
    "contraction",
    "dfl_floor",
    "dfl_rate",
    "err1",
    "err2",
    "err3",
    "lambda_window",
    "limit_bound",
    "oracle_requirements",
    "variance_bound",
    "weight_bounds",
]


def variance_bound(L_max: float, lambda_min: float, varrho: float, N: float) -> float:
    """Return L_max^2 / [{(1 - varrho) lambda_min}^2 N], the bound on V in Theorem 1.

    Examples
    --------
    >>> variance_bound(L_max=2.0, lambda_min=0.5, varrho=0.5, N=100)
    0.64
    """
    return _over(L_max**2, ((1.0 - varrho) * lambda_min) ** 2 * N)


def bias_range(varrho: float, flat_mean: float, L_max: float) -> tuple[float, float]:
    """Return the leading terms of the two bounds on ||flat_A|| B in Theorem 1.

    Both are varrho^2 ||flat_A||^2, the lower one over L_max^2.
    """
    high = (varrho * flat_mean) ** 2
    return _over(high, L_max**2), high


def dfl_rate(step: float, varrho: float, lambda_min: float) -> float:
    """Return 1 - alpha (1 - varrho) lambda_min / 8, the factor per round in Proposition 1."""
    return 1.0 - step * (1.0 - varrho) * lambda_min / 8.0


def dfl_floor(step: float, se: float, rho: float, varrho: float, lambda_min: float) -> float:
    """Return (alpha + SE(W)) / {(1 - rho)(1 - varrho) lambda_min}, where Proposition 1 ends.

    Examples
    --------
    >>> dfl_floor(step=0.01, se=0.0, rho=0.5, varrho=0.0, lambda_min=1.0)
    0.02
    """
    return _over(step + se, max(1.0 - rho, 0.0) * (1.0 - varrho) * lambda_min)


def combined_bound(
    step: float, se: float, rho: float, varrho: float, flat_mean: float, n: float, M: int, level: float
) -> float:
    """Return the bound on M^-1/2 ||theta*(infinity) - I* theta_0|| below Proposition 1, by it and Theorem 1.

    (alpha + SE(W)) / {(1 - rho)(1 - varrho)} + level^-1/2 {1 / ((1 - varrho) (n M)^1/2) + varrho ||flat_A||
    + (varrho ||flat_A||)^1/2 / N^1/2 + 1 / (n M)}, which holds with probability 1 - level, the paper's delta.

    Examples
    --------
    >>> round(combined_bound(step=0.1, se=0.0, rho=0.5, varrho=0.0, flat_mean=0.0, n=100, M=100, level=0.25), 4)
    0.2202
    """
    bias, rows = varrho * flat_mean, n * M
    statistical = 1.0 / ((1.0 - varrho) * math.sqrt(rows)) + bias + math.sqrt(bias / rows) + 1.0 / rows
    return _over(step + se, max(1.0 - rho, 0.0) * (1.0 - varrho)) + statistical / math.sqrt(level)


def contraction(steps: Sequence[float], rounds: Sequence[float], omega_good: float, lambda_min: float) -> float:
    """Return the product over phases of (1 - alpha omega_good lambda_min / 8)^rounds, as in Err1.

    Parameters
    ----------
    steps, rounds : sequences of float
        The step alpha of each phase of a run and how many rounds it had; the paper has one phase.
    """
    factors = [max(1.0 - step * omega_good * lambda_min / 8.0, 0.0) for step in steps]
    return math.prod(factor**count for factor, count in zip(factors, rounds, strict=True))


def err1(contracted: float, reach: float) -> float:
    """Return Err1 of Theorem 2: the optimisation error left of the start's distance delta_0."""
    return contracted * reach


def err2(
    step: float,
    se: float,
    rho: float,
    lambda_min: float,
    L_max: float,
    omega_good: float,
    n: float,
    varrho: float,
    flat_rms: float,
) -> float:
    """Return Err2 of Theorem 2: what the step and the imbalance of the network leave.

    (alpha L_max + SE(W)) / {(1 - rho) lambda_min omega_good} {(log n / n)^1/2 L_max + varrho^1/2 flat_rms}.
    """
    spread = math.sqrt(math.log(n) / n) * L_max + math.sqrt(varrho) * flat_rms
    return _over((step * L_max + se) * spread, max(1.0 - rho, 0.0) * lambda_min * omega_good)


def err3(
    lambda_min: float,
    L_max: float,
    omega_good: float,
    omega_bad: float,
    delta: float,
    N: float,
    varrho: float,
    flat_rms: float,
    oracle_distance: float,
) -> float:
    """Return Err3 of Theorem 2: what weights other than the oracle's 0 and 1 cost.

    [varrho flat_rms omega_bad + delta {(log N / N)^1/2 + L_max ||theta_A - theta_0||}] / (omega_good lambda_min).
    """
    kept = varrho * flat_rms * omega_bad
    lost = delta * (math.sqrt(math.log(N) / N) + L_max * oracle_distance)
    return _over(kept + lost, omega_good * lambda_min)


def limit_bound(
    step: float, se: float, n: float, N: float, varrho: float, omega_good: float, omega_bad: float, delta: float
) -> float:
    """Return equation (4.3) of Theorem 2 with C = 1, the bound on the distance of the limit from the oracle.

    [{alpha + SE(W)}(n^-1/2 + varrho^1/2) + varrho omega_bad + delta / N^1/2] / omega_good.
    """
    numerical = (step + se) * (1.0 / math.sqrt(n) + math.sqrt(varrho))
    return _over(numerical + varrho * omega_bad + delta / math.sqrt(N), omega_good)


def oracle_requirements(
    step: float, se: float, n: float, N: float, varrho: float, omega_good: float, omega_bad: float, delta: float
) -> tuple[tuple[float, float], ...]:
    """Return value and bound of the requirements (1), (2) and (3) below Theorem 2.

    (1) {alpha + SE(W)}{n^-1/2 + varrho^1/2} / omega_good against N^-1/2, (2) omega_bad / omega_good
    against 1 / (varrho N^1/2), (3) delta / omega_good against 1; each should be of smaller order.
    """
    first = _over((step + se) * (1.0 / math.sqrt(n) + math.sqrt(varrho)), omega_good)
    return (
        (first, 1.0 / math.sqrt(N)),
        (_over(omega_bad, omega_good), _over(1.0, varrho * math.sqrt(N))),
        (_over(delta, omega_good), 1.0),
    )


def lambda_window(n: float, M: int, N: float) -> tuple[float, float]:
    """Return log N and n^1/2 M^-1/8, between which lambda_n should lie in order (Theorem 3).

    Examples
    --------
    >>> low, high = lambda_window(n=100, M=100, N=10_000)
    >>> round(low, 2), round(high, 2)
    (9.21, 5.62)
    """
    return math.log(N), math.sqrt(n) * M**-0.125


def weight_bounds(lam: float, distance: float, n: float, N: float, varrho: float) -> tuple[float, float, float]:
    """Return the bounds of Theorem 3 on omega_bad, delta^2 and 1 / omega_good.

    N^-1/2, varrho N^-1/2 + lambda (n^-1/2 + d) and exp(lambda d), where d is the distance of the initial
    estimate from theta_0.
    """
    root = math.sqrt(N)
    return 1.0 / root, varrho / root + lam * (1.0 / math.sqrt(n) + distance), _exp(lam * distance)


def adaptive_bound(lam: float, distance: float, N: float) -> float:
    """Return exp(lambda d) lambda d / N^1/2, the bound of Theorem 3 and Corollary 1 without its o(N^-1/2).

    Parameters
    ----------
    lam, N : float
        lambda_n and the number of rows.
    distance : float
        d, the distance from theta_0 of the whole-sample estimator (Theorem 3) or of the mean initial
        estimate (Corollary 1).
    """
    return _exp(lam * distance) * lam * distance / math.sqrt(N)


def _over(top: float, bottom: float) -> float:
    """Divide; 0 / 0 is taken as 0."""
    if bottom > 0.0:
        return top / bottom
    return 0.0 if top == 0.0 else math.nan if math.isnan(top) else math.inf


def _exp(power: float) -> float:
    return math.exp(min(power, 700.0)) if not math.isnan(power) else math.nan
