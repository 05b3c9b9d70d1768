"""Rank is judged on X itself: a large mean is no dependence, near dependence is a warning with its number."""

import numpy as np
import pytest
import statsmodels.api as sm

import adfl_stats as ad

M, N = 10, 1000
rng = np.random.default_rng(0)


def model(*columns, y=None):
    X = np.column_stack([np.ones(N), *columns])
    data = ad.ClientData.from_arrays(X, rng.normal(size=N) if y is None else y, np.repeat(np.arange(M), N // M))
    return ad.DecentralizedGLM(data, ad.networks.complete(M))


def test_a_large_mean_is_no_dependence():
    # Of its own: normal equations keep few digits here, and others' draws depend on which tests ran before.
    rng = np.random.default_rng(0)
    z = rng.normal(size=N)
    x, y = 3e5 + z, 1.0 + 0.5 * z + rng.normal(size=N)
    with pytest.warns(ad.ConditionWarning, match=r"'x[12]' of X is nearly .* number of the scaled columns is 6.1e\+05"):
        far = model(x, y=y)
    fit, near = far.fit(ad.DFL()), model(z, y=y).fit(ad.DFL())
    ols = sm.OLS(y, sm.add_constant(x - 3e5)).fit()
    clients = {"groups": np.repeat(np.arange(M), N // M)}
    # Also of the mean level, which has far more digits than the constant.
    np.testing.assert_allclose(fit.predict(np.column_stack([np.ones(N), x])), ols.fittedvalues, atol=1e-5)
    np.testing.assert_allclose(fit.params.iloc[1], ols.params[1], rtol=1e-4)
    for kind, theirs in (("HC0", "HC0"), ("HC1", "HC1"), ("HC2", "HC2"), ("HC3", "HC3"), ("CR1", "cluster")):
        errors = ols.get_robustcov_results(theirs, **(clients if kind == "CR1" else {})).bse
        np.testing.assert_allclose(np.sqrt(fit.cov_params(kind).iloc[1, 1]), errors[1], rtol=1e-3)
    for kind in ("HC2", "CR2"):
        for part in (lambda res, kind=kind: np.sqrt(res.cov_params(kind).iloc[1, 1]),
                     lambda res, kind=kind: res.degrees_of_freedom(kind).iloc[1]):  # fmt: skip
            np.testing.assert_allclose(part(fit), part(near), rtol=1e-3)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_units_of_a_column_do_not_matter_to_inference(unit):
    x, y = rng.normal(size=(2, N))
    mine, theirs = model(unit * x, y=y).fit(ad.DFL()), model(x, y=y).fit(ad.DFL())
    for kind in ("HC0", "HC2", "CR2", "CR3"):
        np.testing.assert_allclose(mine.degrees_of_freedom(kind), theirs.degrees_of_freedom(kind), rtol=1e-6)
        np.testing.assert_allclose(
            mine.conf_int(cov_type=kind).iloc[1] * unit, theirs.conf_int(cov_type=kind).iloc[1], rtol=1e-6
        )


@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_a_moderate_mean_is_not_mentioned(mean):
    model(mean + rng.normal(size=N))


def test_without_a_constant_nothing_is_centred():
    """b = a + 1 is independent of a unless the constant is a column."""
    a = 10.0 + rng.normal(size=N)
    X = np.column_stack([a, a + 5.0])
    data = ad.ClientData.from_arrays(X, rng.normal(size=N), np.repeat(np.arange(M), N // M))
    ad.DecentralizedGLM(data, ad.networks.complete(M))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            lambda a, b: (a, b, a + b),
            r"dependent over all 1000 rows: 'x[234]' is a linear combination of 'x[234]', 'x[234]'\.",
        ),
        (lambda a, b: (a, 1e9 * a), "linearly dependent"),
        (
            lambda a, b: (a, 7.0 + 0.0 * a),
            r"'x[13]' is a linear combination of 'x[13]'\. Leave out one of each such set",
        ),
        (lambda a, b: (3e9 + a,), r"nearly a linear combination .* is 5.9e\+09, and beyond 2e\+06 standard errors"),
        (lambda a, b: (a, a + 1e-8 * b), "nearly a linear combination of the others"),
        (lambda a, b: (0.0 * a,), "columns 'x2' of X are zero in every row"),
        (lambda a, b: (1e-200 * a,), "columns 'x2' of X are so small that their squares are zero: the largest is 3"),
    ],
)
def test_what_is_said_is_true(columns, words):
    a, b = np.random.default_rng(2).normal(size=(2, N))
    with pytest.raises(ValueError, match=words):
        model(*columns(a, b))


def test_responses_whose_squares_vanish_are_refused():
    with pytest.raises(ValueError, match=r"the largest response is .*e-200; squares of such numbers are zero"):
        model(rng.normal(size=N), y=1e-200 * rng.normal(size=N))
    model(rng.normal(size=N), y=1e-100 * rng.normal(size=N)).fit(ad.DFL())
