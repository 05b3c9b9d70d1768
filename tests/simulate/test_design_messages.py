"""What designs refuse."""

import numpy as np
import pytest

from adfl_stats.simulate.designs import glm_design, hospitals

# ---------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"family": "gamma"},
            ValueError,
            r"family is 'gamma'; choose one of 'gaussian', 'binomial', 'poisson'",
        ),
        (
            {"covariates": "ar"},
            ValueError,
            r"covariates is 'ar'; choose one of 'homogeneous', 'heterogeneous'",
        ),
        ({"M": 0}, ValueError, r"M is 0; it must be at least 1"),
        ({"p": 2.0}, TypeError, r"p must be a whole number, got 2.0"),
        ({"noise": -1}, ValueError, r"noise is -1; it must lie in \[0, inf\)"),
        ({"family": "binomial", "noise": 2}, ValueError, r"noise is 2, but the binomial family has no noise"),
        ({"seed": None}, TypeError, r"seed must be a whole number, got None"),
        ({"seed": -1}, ValueError, r"seed is -1; it must be at least 0"),
        ({"n": 0}, ValueError, r"n is 0; it must be at least 1"),
        ({"n": (5, 3)}, ValueError, r"n is \(5, 3\); the first of \(low, high\) must not exceed the second"),
        ({"n": (0, 3)}, ValueError, r"n\[0\] is 0; it must be at least 1"),
        ({"n": [5, 3]}, ValueError, r"n has shape \(2,\) .* a tuple \(low, high\), or 10 whole numbers"),
        ({"n": [1.5] * 10}, ValueError, r"type float64; give one size"),
        ({"n": [0] * 10}, ValueError, r"or 10 whole numbers of at least 1"),
        ({"theta0": [1.0]}, ValueError, r"theta0 has shape \(1,\); it must be 10 finite number\(s\)$"),
        ({"theta0": [1.0] * 10, "intercept": True}, ValueError, r"must be 11 finite .*, the intercept first"),
        ({"theta0": [np.nan] * 10}, ValueError, r"theta0 has shape \(10,\); it must be 10 finite"),
        ({"theta0": ["a"] * 10}, TypeError, r"theta0 must hold numbers; it could not be converted"),
        ({"family": "poisson", "theta0": [99.0] * 10}, ValueError, r"log means of up to .* stay below 30"),
        ({"abnormal": 0.5, "corruption": "BF"}, ValueError, r"abnormal is 0.5; it must lie in \[0, 0.5\)"),
        ({"abnormal": "x", "corruption": "BF"}, TypeError, r"abnormal must be a number, got 'x'"),
        (
            {"abnormal": [0.1], "corruption": "BF"},
            TypeError,
            r"type float64; give a share, client indices or",
        ),
        ({"abnormal": [True], "corruption": "BF"}, TypeError, r"or a mask of 10 clients"),
        ({"abnormal": [3, 10, -1], "corruption": "BF"}, ValueError, r"indices outside 0..9: 10, -1"),
        ({"abnormal": [3, 3], "corruption": "BF"}, ValueError, r"abnormal names some client twice"),
        ({"abnormal": 0.2}, ValueError, r"asks for 2 abnormal client\(s\), but corruption is None; choose"),
        ({"corruption": "bf"}, ValueError, r"corruption is 'bf'; choose one of 'BF', 'OOD', 'MP', 'LF'"),
        ({"corruption": []}, ValueError, r"corruption is \[\]; choose one of"),
        ({"family": "poisson", "abnormal": 0.2, "corruption": "BF"}, ValueError, r"negative; use 'permute'"),
        (
            {"abnormal": 0.2, "corruption": "LF"},
            ValueError,
            r"'LF' flips binary labels, but family is 'gaussian'",
        ),
        (
            {"family": "poisson", "abnormal": 0.2, "corruption": "noise"},
            ValueError,
            r"'noise' makes real",
        ),
        (
            {"theta0": np.eye(10)[0], "abnormal": 0.2, "corruption": "MP"},
            ValueError,
            r"'MP' keeps the first 1 slope\(s\) of theta0 and the others are zero already, so nothing",
        ),
        (
            {"abnormal": 0.2, "corruption": lambda X, y, rng: (X, y[1:])},
            ValueError,
            r"returned shapes \(4, 10\) and \(3,\); it must keep \(4, 10\) and \(4,\)",
        ),
    ],
)
def test_messages(options, error, message):
    with pytest.raises(error, match=message):
        glm_design(**{"M": 10, "n": 4, "p": 10, "seed": 0} | options)


def test_messages_of_hospitals():
    with pytest.raises(ValueError, match=r"abnormal is 5 of 10 hospitals; it must be fewer than half"):
        hospitals(1, M=10, abnormal=5)
    with pytest.raises(TypeError, match=r"abnormal must be a whole number, got 0.2"):
        hospitals(1, abnormal=0.2)
