"""The kernel on all instruction sets, far out, and on memory of others."""

import dataclasses
import itertools

import numpy as np
import pytest
from kernel_cases import (
    COLUMNS,
    EXTRAS,
    FAMILIES,
    LANES,
    LONG,
    RULES,
    SIZES,
    STEADY,
    Case,
    assert_close,
    assert_rounds_close,
    combine,
    gradient,
    gram,
    make,
    rounds,
)
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from adfl_stats import _kernels
from adfl_stats.engine import reference


@pytest.fixture(params=LANES)
def lanes(request):
    """Run a test under each instruction set that this processor has."""
    try:
        _kernels.instruction_set(request.param)
    except ValueError:
        pytest.skip(f"no instruction set with {request.param} lanes here")
    yield request.param
    _kernels.instruction_set(0)


# ------------------------------------------------------------------ instruction sets


@pytest.mark.parametrize("name", [*FAMILIES, "gram"])
def test_instruction_sets_agree(lanes, name):
    assert _kernels.instruction_set().startswith(str(lanes))
    for p, runs in zip((*COLUMNS, LONG), (1, 2, 3, 4, 5, 8, 1, 1), strict=True):
        case = gram(p, runs) if name == "gram" else make(FAMILIES[name], p, runs, SIZES["ragged"], EXTRAS[-1])
        _kernels.instruction_set(0)
        rules = tuple(RULES.values()) if name == "gram" else STEADY
        slope, widest = gradient(_kernels, case), [rounds(_kernels, case, rule) for rule in rules]
        _kernels.instruction_set(lanes)
        assert_close(gradient(_kernels, case), slope, 1e-13)
        for rule, expected in zip(rules, widest, strict=True):
            assert_rounds_close(rounds(_kernels, case, rule), expected, 1e-13)


@pytest.mark.parametrize("number", [1, 3, 16])
def test_unknown_instruction_sets_are_refused(number):
    before = _kernels.instruction_set()
    with pytest.raises(ValueError, match=f"lanes={number}: this processor or build has no such instruction set"):
        _kernels.instruction_set(number)
    assert _kernels.instruction_set() == before


def residuals(family, eta, y):
    """The kernel's residuals at given predictors: clients of one row each, with X = 1."""
    n, q = len(y), family.outputs
    loss = _kernels.RowLoss(
        np.ones((n, 1)), y, np.arange(n + 1, dtype=np.int64), np.ones(n), family.code, family.par, q
    )
    out = np.empty((n, 1, q))
    _kernels.gradient(loss, np.ascontiguousarray(eta, dtype=float).reshape(n, 1, q), out)
    return out[:, 0, 0] if q == 1 else out[:, 0]


# ------------------------------------------------------------------ accuracy far out


def test_exponentials_are_exact_to_a_few_units_in_the_last_place(lanes):
    eta = np.concatenate([np.linspace(-700.0, 700.0, 200_001), np.linspace(-1.0, 1.0, 20_001), [0.0, -0.0, 1e-300]])
    assert_allclose(residuals(FAMILIES["poisson"], eta, np.zeros(len(eta))), np.exp(eta), rtol=4e-15)


@pytest.mark.parametrize("name", ["binomial", "negativebinomial", "multinomial-1", "multinomial-3"])
def test_residuals_with_finite_limits_reach_them(lanes, name):
    family = FAMILIES[name]
    grid = np.array([-1e4, -800.0, -709.0, -40.0, 0.0, 40.0, 709.0, 800.0, 1e4])
    eta = np.array(list(itertools.product(grid, repeat=family.outputs)))
    for y in (0.0, 1.0, 50.0) if name == "negativebinomial" else np.arange(family.outputs + 1.0):
        found = residuals(family, eta, np.full(len(eta), y))
        if name == "negativebinomial":
            # (mu - y) / (1 + a mu) = 1/a - (1/a + y) / (1 + a mu)
            inverse = special.expit(-(eta[:, 0] + np.log(family.par)))
            expected = 1.0 / family.par - (1.0 / family.par + y) * inverse
        else:
            probability = special.softmax(np.column_stack([np.zeros(len(eta)), eta]), axis=1)[:, 1:]
            expected = (probability - (y == np.arange(1, family.outputs + 1))).reshape(found.shape)
        assert_allclose(found, expected, rtol=1e-13, atol=1e-13 * max(1.0, y))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_predictor_gives_a_missing_residual(lanes, name):
    family = FAMILIES[name]
    eta = np.full((5, family.outputs), np.nan)
    assert np.isnan(residuals(family, eta, np.ones(5))).all()


def runaway(step):
    """A Gaussian case with two runs: the first with a given step for all clients, the second safe."""
    case = make(FAMILIES["gaussian"], 3, 2, SIZES["equal"])
    steps = np.column_stack([np.full(len(case.theta), step), np.full(len(case.theta), 0.1)])
    return dataclasses.replace(case, steps=steps)


# ------------------------------------------------------------------ stopping


@pytest.mark.parametrize("module", [_kernels, reference])
@pytest.mark.parametrize("rule", RULES)
def test_a_move_beyond_its_limit_ends_the_loop(module, rule):
    case = runaway(step=10.0)
    _, free, done = rounds(module, case, RULES[rule], n=12)
    assert done == 12
    limit = 0.5 * (free[6, 0] + free[:6, 0].max())
    assert free[6, 0] > limit > free[:6, 0].max()
    theta, moved, done = rounds(module, case, RULES[rule], n=12, limits=[limit, np.inf])
    assert done == 7
    assert_array_equal(moved[:7], free[:7])
    assert_array_equal(moved[7:], -1.0)
    assert_array_equal(theta, rounds(module, case, RULES[rule], n=7)[0])
    # The limit of the other run is not this one's.
    assert rounds(module, case, RULES[rule], n=12, limits=[np.inf, free[:, 1].max()])[2] == 12


@pytest.mark.parametrize("module", [_kernels, reference])
@pytest.mark.parametrize(("value", "expected"), [(np.nan, np.nan), (1e200, np.inf)])
def test_a_move_that_is_not_finite_ends_the_loop_without_a_limit(module, value, expected):
    case = runaway(step=0.1)
    case.theta[3, 0, 1] = value
    with np.errstate(over="ignore", invalid="ignore"):
        _, moved, done = rounds(module, case, n=5)
    assert done == 1
    assert_array_equal(moved[0, 0], expected)
    assert np.isfinite(moved[0, 1])


def test_moved_is_the_longest_move_of_a_client():
    case = make(FAMILIES["binomial"], 5, 3, SIZES["ragged"])
    theta, moved, _ = rounds(_kernels, case, n=1)
    assert_allclose(moved[0], np.linalg.norm(theta - case.theta, axis=2).max(axis=0), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 8, 17])
def test_huber_cuts_what_is_infinite_and_keeps_what_is_not_a_number(lanes, size):
    values = np.resize([np.inf, -np.inf, np.nan, 0.3, -5.0], size)
    case = make(FAMILIES["huber"], 1, 1, (1,) * size)
    X, y, *rest = case.loss
    case = dataclasses.replace(case, loss=(np.ones_like(X), np.zeros_like(y), *rest), theta=values[:, None, None])
    assert_array_equal(gradient(_kernels, case)[:, 0, 0], np.clip(values, -0.7, 0.7))


def frozen(value):
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


# ------------------------------------------------------------------ memory of others


@pytest.mark.parametrize("build", [gram, lambda p, runs: make(FAMILIES["gamma"], p, runs, SIZES["equal"], EXTRAS[-1])])
def test_read_only_arrays_are_welcome(build):
    case = build(5, 2)
    locked = Case(
        tuple(map(frozen, case.loss)), tuple(map(frozen, case.combiner)), frozen(case.theta), frozen(case.steps)
    )
    assert_array_equal(gradient(_kernels, locked), gradient(_kernels, case))
    for rule in RULES.values():
        assert_array_equal(combine(_kernels, locked, rule), combine(_kernels, case, rule))
        assert_array_equal(rounds(_kernels, locked, rule)[0], rounds(_kernels, case, rule)[0])


def test_memory_maps_are_welcome(tmp_path):
    case = make(FAMILIES["poisson"], 5, 2, SIZES["ragged"])
    mapped = []
    for k, value in enumerate(case.loss[:2]):
        value.tofile(tmp_path / f"{k}.bin")
        mapped.append(np.memmap(tmp_path / f"{k}.bin", dtype=np.float64, mode="r", shape=value.shape))
    outside = dataclasses.replace(case, loss=(*mapped, *case.loss[2:]))
    assert_array_equal(gradient(_kernels, outside), gradient(_kernels, case))
    assert_array_equal(rounds(_kernels, outside)[0], rounds(_kernels, case)[0])
