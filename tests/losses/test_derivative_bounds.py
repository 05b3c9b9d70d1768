"""Bounds on the second and third derivative of losses, Condition 4, against differences over a grid of predictors."""

import numpy as np
import pytest
from scipy import special, stats

from adfl_stats.losses.families import Family

ETA = np.linspace(-9.0, 9.0, 721)
# The loss of an observation, written out, for families whose derivatives are bounded.
LOSSES = {
    "gaussian": (Family("gaussian"), lambda e, y: (e - y) ** 2 / 2, (-1.0, 2.5)),
    "logit": (Family("binomial"), lambda e, y: np.logaddexp(0.0, e) - y * e, (0.0, 0.3, 1.0)),
    "probit": (
        Family("binomial", link="probit"),
        lambda e, y: -y * stats.norm.logcdf(e) - (1 - y) * stats.norm.logsf(e),
        (0.0, 0.3, 1.0),
    ),
    "negative binomial": (
        Family("negativebinomial", 0.7),
        lambda e, y: (y + 1 / 0.7) * np.log1p(0.7 * np.exp(e)) - y * e,
        (0.0, 1.0, 6.0),
    ),
}


def derivatives(loss, eta):
    """Return the second and third derivative by central differences with Richardson's extrapolation."""

    def differences(h):
        far, near, low, lower = (loss(eta + k * h) for k in (2, 1, -1, -2))
        return np.array([near - 2 * loss(eta) + low, (far - 2 * near + 2 * low - lower) / (2 * h)]) / h**2

    return (4 * differences(0.01) - differences(0.02)) / 3


@pytest.mark.parametrize("name", LOSSES)
def test_global_bounds_are_reached_and_not_exceeded(name):
    family, loss, responses = LOSSES[name]
    assert family.bounded_derivatives
    seen = np.zeros(2)
    for y in responses:
        second, third = family.derivative_bounds(ETA, np.full(len(ETA), y))
        found = derivatives(lambda e, y=y: loss(e, y), ETA)
        for k, (value, bound) in enumerate(zip(found, (second, third), strict=True)):
            assert (np.abs(value) <= bound * (1 + 1e-4) + 1e-5).all()
            seen[k] = max(seen[k], np.max(np.abs(value) / np.maximum(bound, 1e-300)) if bound.any() else 1.0)
    # The probit's second derivative tends to its bound 1 in the tail; the others attain theirs.
    assert (seen > (0.97, 0.999)).all()


def test_multinomial_bounds_hold_along_random_lines_and_are_nearly_reached():
    rng = np.random.default_rng(3)
    family, most = Family("multinomial", outputs=2), np.zeros(2)
    second, third = (float(bound[0]) for bound in family.derivative_bounds(np.zeros((1, 2)), np.zeros(1)))
    for _ in range(300):
        eta, u = 3 * rng.normal(size=2), rng.normal(size=2)
        u /= np.linalg.norm(u)
        p, values = special.softmax(np.r_[0.0, eta]), np.r_[0.0, u]
        apart = values - p @ values
        most = np.maximum(most, [p @ apart**2, abs(p @ apart**3)])
    # The extreme: two classes of opposite signs.
    p, values = np.array([0.0, *(1 + np.array([-1, 1]) / np.sqrt(3)) / 2]), np.array([0.0, 1.0, -1.0]) / np.sqrt(2)
    extreme = abs(p @ (values - p @ values) ** 3)
    assert most[0] <= second
    assert most[1] <= third
    assert extreme == pytest.approx(third)


@pytest.mark.parametrize(
    ("family", "loss"),
    [
        (Family("poisson"), lambda e, y: np.exp(e) - y * e),
        (Family("gamma"), lambda e, y: e + y * np.exp(-e)),
        (Family("gamma", link="inverse"), lambda e, y: -np.log(e) + y * e),
        (Family("poisson", link="sqrt"), lambda e, y: e**2 - 2 * y * np.log(e)),
        (Family("tweedie", 1.5), lambda e, y: 2 * np.exp(e / 2) + 2 * y * np.exp(-e / 2)),
        (Family("inversegaussian", link="inverse squared"), lambda e, y: y * e / 2 - np.sqrt(e)),
        (Family("gaussian", link="log"), lambda e, y: (np.exp(e) - y) ** 2 / 2),
        (Family("binomial", link="cloglog"), lambda e, y: -y * np.log(-np.expm1(-np.exp(e))) + (1 - y) * np.exp(e)),
    ],
    ids=lambda x: f"{x.name} {x.link}" if isinstance(x, Family) else "",
)
def test_local_third_derivatives(family, loss):
    eta, y = np.linspace(0.3, 2.0, 18), np.tile([0.2, 0.9, 0.6], 6)
    assert not family.bounded_derivatives
    wanted = np.abs(derivatives(lambda e: loss(e, y), eta)[1])
    np.testing.assert_allclose(family.derivative_bounds(eta, y)[1], wanted, rtol=2e-4, atol=1e-5)


def test_hubers_second_derivative_jumps():
    family = Family("huber", 1.0, tuning=1.345)
    assert np.isinf(family.derivative_bounds(np.zeros(3), np.zeros(3))[1]).all()
