"""The kernel against its twin: any sizes, families, rules, options and instruction sets; repeated calls to the bit."""

import sys
from pathlib import Path

import numpy as np

from adfl_stats import _kernels
from adfl_stats.engine import reference

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from kernel_cases import EXTRAS, FAMILIES, LANES, RULES, STEADY, STEEP, gram, make

FAMILY_NAMES, RULE_NAMES = sorted(FAMILIES), sorted(RULES)


def case(seed):
    rng = np.random.default_rng([1, seed])
    p, runs = int(rng.integers(1, 20)), int(rng.choice([1, 1, 2, 3, 5, 8]))
    family = FAMILIES[rng.choice(FAMILY_NAMES)]
    if rng.random() < 0.2:
        problem = gram(p, runs, int(rng.integers(1, 9)), seed, symmetric=rng.random() < 0.7)
    else:
        sizes = tuple(int(n) for n in rng.integers(1, rng.choice([4, 40, 700]), rng.integers(1, 9)))
        problem = make(family, p, runs, sizes, EXTRAS[rng.integers(len(EXTRAS))], seed)
    rule = RULES[rng.choice(RULE_NAMES)]
    lanes = int(rng.choice(available()))
    before = _kernels.instruction_set()
    try:
        _kernels.instruction_set(lanes)
        compare(problem, rule, family, rng)
    finally:
        _kernels.instruction_set(8 if "512" in before else 4 if "avx2" in before.lower() else 0)


def available():
    found = []
    for lanes in LANES:
        try:
            _kernels.instruction_set(lanes)
            found.append(lanes)
        except ValueError:
            continue
    _kernels.instruction_set(0)
    return found


def compare(problem, rule, family, rng):
    n_rounds = 3 if rule in STEADY and family not in STEEP else 1
    results = {}
    for name, module in (("kernel", _kernels), ("again", _kernels), ("twin", reference)):
        combiner, loss = problem.build(module, rule)
        theta = problem.theta.copy()
        heard, slope = np.empty_like(theta), np.empty_like(theta)
        module.combine(combiner, theta, heard)
        module.gradient(loss, theta, slope, 2)
        moved = np.empty((n_rounds, theta.shape[1]))
        done = module.rounds(combiner, loss, theta, problem.steps, n_rounds, moved, np.full(theta.shape[1], np.inf), 2)
        # A run whose moves are not finite ends, and leaves the later ones as they were.
        results[name] = {"combine": heard, "gradient": slope, "rounds": theta, "moved": moved[:done]}
    for part, wanted in results["twin"].items():
        np.testing.assert_array_equal(results["again"][part], results["kernel"][part], err_msg=part)
        if not np.isfinite(wanted).all():
            # Where numbers overflow, the order of operations decides which are infinite and which are NaN.
            assert not np.isfinite(results["kernel"][part]).all(), part
            continue
        scale = np.abs(wanted).max(initial=1e-300)
        np.testing.assert_allclose(results["kernel"][part], wanted, rtol=1e-9, atol=1e-11 * scale, err_msg=part)
