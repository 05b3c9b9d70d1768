"""The compiled kernel against its NumPy twin, and against itself: threads, rounds, instruction sets."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

from adfl_stats import _kernels
from adfl_stats.engine import reference
from adfl_stats.losses.families import Family

FAMILIES = {
    "gaussian": Family("gaussian"),
    "binomial": Family("binomial"),
    "poisson": Family("poisson"),
    "gamma": Family("gamma"),
    "negativebinomial": Family("negativebinomial", par=0.7),
    "multinomial-3": Family("multinomial", outputs=3),
    "multinomial-1": Family("multinomial", outputs=1),
    # Of the residuals of standard normal responses, about every second is beyond this.
    "huber": Family("huber", par=0.7, tuning=1.345),
    "probit": Family("binomial", link="probit"),
    "cloglog": Family("binomial", link="cloglog"),
    "loglog": Family("binomial", link="loglog"),
    # About every second linear predictor is below their limit.
    "poisson-identity": Family("poisson", par=0.4, link="identity"),
    "poisson-sqrt": Family("poisson", par=0.4, link="sqrt"),
    "gaussian-log": Family("gaussian", link="log"),
    "gamma-inverse": Family("gamma", par=0.4, link="inverse"),
    "gamma-identity": Family("gamma", par=0.4, link="identity"),
    "inversegaussian-log": Family("inversegaussian", link="log"),
    "inversegaussian-squared": Family("inversegaussian", par=0.4, link="inverse squared"),
    "tweedie": Family("tweedie", par=1.6),
}
USUAL = [name for name, family in FAMILIES.items() if family.code <= FAMILIES["huber"].code]
# Codes and parameters; pools too small for theirs are combined as far as they go.
RULES = {
    "mean": (0,),
    "median": (1,),
    "trimmed": (2, 1),
    "trimmed-0": (2, 0),
    "krum": (3, 1),
    "bulyan": (4, 1),
    "clip": (5, 0, 0.4),
    "clip-all": (5, 0, np.inf),
    "clip-second": (6,),
    "clip-declared": (7, 0, 0.3),
    "clip-known": (8,),
    "geometric": (9, 12, 1e-6),
    "ios": (10, 2),
    "nna": (11, 2),
}
# Rules do not see families; and some leave clients alone whose Poisson runs then blow up.
STEADY = (RULES["mean"], RULES["median"])
# Averages and roots are rounded by kernel and twin in their own order; order statistics are not rounded.
STEEP = [FAMILIES["inversegaussian-log"], FAMILIES["tweedie"]]
EXACT = {"median", "krum"}
COLUMNS = (1, 2, 3, 5, 8, 13, 50)
# More than thirteen vectors of eight: a single column is then cut into tiles by every instruction set.
LONG = 110
RUNS = (1, 2, 3, 4, 5, 8)
# The ragged clients have one row, an odd number of rows, and more than two blocks of rows at every p above.
SIZES = {"equal": (16,) * 7, "ragged": (1, 2, 7, 600, 16, 61, 33)}
OPTIONS = ("linear_offset", "row_weights", "metric", "ridge")
EXTRAS = [frozenset(c) for k in range(5) for c in itertools.combinations(OPTIONS, k)]
LANES = (2, 4, 8)
# Multiply-adds above which the kernel uses more than one thread.
THREAD_WORK = 4e5


@dataclass(frozen=True)
class Case:
    """Arguments of the kernel, or of its twin, for one problem."""

    loss: tuple
    combiner: tuple
    theta: np.ndarray
    steps: np.ndarray

    def build(self, module, rule=RULES["mean"]):
        kind = module.GramLoss if len(self.loss) <= 3 else module.RowLoss
        *pool, bad = self.combiner
        return module.Combiner(*pool, *rule, bad=bad), kind(*self.loss)


def pools(rng, degrees, senders):
    """CSR arrays in which row m hears degrees[m] of the senders, with positive weights that sum to one."""
    indices = [np.sort(rng.choice(senders, size=d, replace=False)) for d in degrees]
    weights = [w / w.sum() for w in (rng.uniform(0.5, 1.5, size=d) for d in degrees)]
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    # Every third entry is known to be bad, which one rule asks for.
    bad = (np.arange(indptr[-1]) % 3 == 1).astype(np.uint8)
    return indptr, np.concatenate(indices).astype(np.int64), np.concatenate(weights), bad


def response(rng, family, n):
    if family.additive:
        return rng.normal(size=n)
    if family.name in ("gamma", "inversegaussian", "tweedie"):
        return rng.gamma(2.0, size=n)
    high = {"binomial": 2, "multinomial": family.outputs + 1}.get(family.name, 6)
    return rng.integers(high, size=n).astype(float)


def make(family, p, runs, sizes, extras=frozenset(), seed=0):
    rng = np.random.default_rng(seed)
    M, N, P = len(sizes), sum(sizes), p * family.outputs
    X, y = rng.normal(size=(N, p)), response(rng, family, N)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    linear_offset = rng.normal(scale=0.3, size=N) if "linear_offset" in extras else None
    row_weights = rng.uniform(0.5, 2.0, size=N) if "row_weights" in extras else None
    root = rng.normal(size=(p, p)) / np.sqrt(p)
    # Not symmetric, so that a transposed product would show.
    metric = np.eye(p) + 0.3 * root if "metric" in extras else None
    ridge = rng.uniform(0.0, 0.5, size=P) if "ridge" in extras else None
    totals = np.diff(offsets).astype(float) if row_weights is None else np.add.reduceat(row_weights, offsets[:-1])
    return Case(
        loss=(
            X,
            y,
            offsets,
            totals,
            family.code,
            family.par,
            family.outputs,
            linear_offset,
            row_weights,
            metric,
            ridge,
        ),
        # Pools of every size from 1 to M: odd and even ones.
        combiner=pools(rng, rng.permutation(M) + 1, M),
        theta=rng.normal(scale=0.5 / np.sqrt(p), size=(M, runs, P)),
        # These losses grow exponentially where the mean is too small: longer steps diverge.
        steps=rng.uniform(0.01, 0.1, size=(M, runs)) * (0.1 if family in STEEP else 1.0),
    )


def gram(p, runs, M=7, seed=0, symmetric=True):
    case = make(FAMILIES["gaussian"], p, runs, (2 * p + 3,) * M, seed=seed)
    X, y = case.loss[0].reshape(M, -1, p), case.loss[1].reshape(M, -1)
    S = np.zeros((M, p, -(-p // 8) * 8))
    S[:, :, :p] = np.einsum("mni,mnj->mij", X, X) / X.shape[1]
    if not symmetric:
        S[:, :, :p] = (np.eye(p) + np.random.default_rng(seed).normal(scale=0.3 / np.sqrt(p), size=(p, p))) @ S[
            :, :, :p
        ]
    return dataclasses.replace(case, loss=(S, np.einsum("mni,mn->mi", X, y) / X.shape[1], symmetric))


def gradient(module, case, **options):
    out = np.full_like(case.theta, np.nan)
    module.gradient(case.build(module)[1], case.theta, out, **options)
    return out


def combine(module, case, rule):
    combiner, _ = case.build(module, rule)
    out = np.full((combiner.n_clients, *case.theta.shape[1:]), np.nan)
    module.combine(combiner, case.theta, out)
    return out


def rounds(module, case, rule=RULES["mean"], n=6, limits=np.inf, **options):
    """Return theta, moved and the count after up to n rounds from a copy of the case's theta."""
    theta, runs = case.theta.copy(), case.theta.shape[1]
    moved = np.full((n, runs), -1.0)
    bounds = np.broadcast_to(np.asarray(limits, dtype=float), (runs,)).copy()
    done = module.rounds(*case.build(module, rule), theta, case.steps, n, moved, bounds, **options)
    return theta, moved, done


def assert_close(actual, expected, tolerance=1e-12):
    """Compare relative to the scale of the arrays: single entries may cancel to nearly nothing."""
    assert np.isfinite(expected).all()
    assert_allclose(actual, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def assert_rounds_close(actual, expected, tolerance=1e-12):
    assert_close(actual[0], expected[0], tolerance)
    assert_close(actual[1], expected[1], tolerance)
    assert actual[2] == expected[2]


@pytest.fixture(params=LANES)
def lanes(request):
    """Run a test under each instruction set that this processor has."""
    try:
        _kernels.instruction_set(request.param)
    except ValueError:
        pytest.skip(f"no instruction set with {request.param} lanes here")
    yield request.param
    _kernels.instruction_set(0)


# ------------------------------------------------------------------ twin

# Every family with every pair of p and runs would be over 700 cases. Tiles depend on (p, runs x outputs), so all
# pairs of p and runs are here with the usual links in turn; and all families with all extras, p and runs in turn.
SHAPES = [
    (name, p, runs, sizes, EXTRAS[k % len(EXTRAS)])
    for k, ((p, runs), name, sizes) in enumerate(
        zip(itertools.product(COLUMNS, RUNS), itertools.cycle(USUAL), itertools.cycle(SIZES), strict=False)
    )
]
KINDS = [
    (name, COLUMNS[k % len(COLUMNS)], RUNS[k % len(RUNS)], sizes, extras)
    for k, (name, sizes, extras) in enumerate(itertools.product(FAMILIES, SIZES, EXTRAS))
]
WIDE = [(name, LONG, 1, sizes, frozenset()) for name, sizes in itertools.product(("gaussian", "binomial"), SIZES)]


def case_of(name, p, runs, sizes, extras):
    return make(FAMILIES[name], p, runs, SIZES[sizes], extras, seed=p + 100 * runs)


@pytest.mark.parametrize("arguments", SHAPES + KINDS + WIDE, ids=lambda a: "-".join(map(str, (*a[:4], *sorted(a[4])))))
def test_gradient_and_rounds_equal_the_twin(arguments):
    case = case_of(*arguments)
    assert_close(gradient(_kernels, case), gradient(reference, case))
    for rule in STEADY:
        assert_rounds_close(rounds(_kernels, case, rule), rounds(reference, case, rule))


@pytest.mark.parametrize("p", [*COLUMNS, LONG])
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_gram_losses_equal_the_twin_and_the_rows(p, runs, symmetric):
    case = gram(p, runs, symmetric=symmetric)
    assert_close(gradient(_kernels, case), gradient(reference, case))
    if symmetric:
        rows = make(FAMILIES["gaussian"], p, runs, (2 * p + 3,) * 7)
        assert_close(gradient(_kernels, case), gradient(_kernels, rows))
    for rule in RULES.values():
        assert_rounds_close(rounds(_kernels, case, rule), rounds(reference, case, rule))


@pytest.mark.parametrize("build", [gram, lambda p, runs: make(FAMILIES["poisson"], p, runs, SIZES["equal"])])
def test_what_memory_held_before_is_irrelevant(build):
    case = build(3, 2)
    expected = rounds(reference, case)
    for size in range(32, 4096, 64):
        # Freed blocks full of NaN are what the kernel's own allocation is likely to be given next.
        spoilt = [np.full(size, np.nan) for _ in range(20)]
        del spoilt
        assert_rounds_close(rounds(_kernels, case), expected)


@pytest.mark.parametrize(("runs", "size"), [(1, 1), (1, 7), (1, 8), (2, 8), (3, 13), (5, 17), (8, 50)])
@pytest.mark.parametrize("rule", RULES)
def test_combine_equals_the_twin_for_pools_of_every_size(rule, runs, size):
    rng = np.random.default_rng(size)
    M = 40
    # Rounded, so that the pools have ties.
    theta = rng.normal(size=(M, runs, size)).round(1)
    case = Case((np.zeros((M, 1, 8)), np.zeros((M, 1))), pools(rng, np.arange(1, M + 1), M), theta, np.zeros(0))
    found, expected = combine(_kernels, case, RULES[rule]), combine(reference, case, RULES[rule])
    if rule in EXACT:
        assert_array_equal(found, expected)
    else:
        assert_close(found, expected)


@pytest.mark.parametrize("rule", RULES)
def test_a_block_of_clients_combines_with_a_halo_of_neighbours(rule):
    whole = make(FAMILIES["gaussian"], 3, 2, SIZES["equal"])
    everyone = combine(_kernels, whole, RULES[rule])
    indptr, indices, weights, bad = whole.combiner
    low, high = 2, 5
    span = slice(indptr[low], indptr[high])
    # The block's own rows first, then those it hears from outside.
    own = np.arange(low, high)
    needed = np.concatenate([own, np.setdiff1d(indices[span], own)])
    place = np.full(len(whole.theta), -1)
    place[needed] = np.arange(len(needed))
    block = dataclasses.replace(
        whole,
        combiner=(indptr[low : high + 1] - indptr[low], place[indices[span]], weights[span].copy(), bad[span].copy()),
        theta=whole.theta[needed].copy(),
    )
    assert len(block.theta) > high - low
    assert_array_equal(combine(_kernels, block, RULES[rule]), everyone[low:high])


# ------------------------------------------------------------------ exact


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["binomial", "multinomial-3", "gram"])
def test_threads_do_not_change_a_bit(name, rule):
    sizes = (400, 1, 90, 33, 250, 7, 64, 128, 500, 12, 300, 215)
    case = gram(64, 4, M=60) if name == "gram" else make(FAMILIES[name], 30, 4, sizes)
    assert case.build(_kernels)[1].flops * case.theta.shape[1] > THREAD_WORK
    alone, slope = rounds(_kernels, case, RULES[rule], threads=1), gradient(_kernels, case, threads=1)
    for threads in (2, 3, 7):
        together = rounds(_kernels, case, RULES[rule], threads=threads)
        assert_array_equal(together[0], alone[0])
        assert_array_equal(together[1], alone[1])
        assert_array_equal(gradient(_kernels, case, threads=threads), slope)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [*FAMILIES, "gram"])
def test_rounds_can_be_cut_anywhere(name, rule):
    case = gram(5, 3) if name == "gram" else make(FAMILIES[name], 5, 3, SIZES["ragged"], EXTRAS[-1])
    theta, moved, _ = rounds(_kernels, case, RULES[rule], n=7)
    for t in range(7):
        after, move, _ = rounds(_kernels, case, RULES[rule], n=1)
        assert_array_equal(move[0], moved[t])
        case = dataclasses.replace(case, theta=after)
    assert_array_equal(case.theta, theta)


def test_no_rounds_leave_theta_alone():
    case = make(FAMILIES["poisson"], 3, 2, SIZES["equal"])
    theta, moved, done = rounds(_kernels, case, n=0)
    assert (done, moved.shape) == (0, (0, 2))
    assert_array_equal(theta, case.theta)


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


# ------------------------------------------------------------------ accuracy far out


def residuals(family, eta, y):
    """The kernel's residuals at given predictors: clients of one row each, with X = 1."""
    n, q = len(y), family.outputs
    loss = _kernels.RowLoss(
        np.ones((n, 1)), y, np.arange(n + 1, dtype=np.int64), np.ones(n), family.code, family.par, q
    )
    out = np.empty((n, 1, q))
    _kernels.gradient(loss, np.ascontiguousarray(eta, dtype=float).reshape(n, 1, q), out)
    return out[:, 0, 0] if q == 1 else out[:, 0]


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


# ------------------------------------------------------------------ stopping


def runaway(step):
    """A Gaussian case with two runs: the first with a given step for all clients, the second safe."""
    case = make(FAMILIES["gaussian"], 3, 2, SIZES["equal"])
    steps = np.column_stack([np.full(len(case.theta), step), np.full(len(case.theta), 0.1)])
    return dataclasses.replace(case, steps=steps)


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


# ------------------------------------------------------------------ memory of others


def frozen(value):
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
    return value


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
