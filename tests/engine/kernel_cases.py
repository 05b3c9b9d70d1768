"""Cases for the kernel and its twin."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.testing import assert_allclose

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


COLUMNS = (1, 2, 3, 5, 8, 13, 50)
# More than thirteen vectors of eight: a single column is then cut into tiles by every instruction set.
LONG = 110


# The ragged clients have one row, an odd number of rows, and more than two blocks of rows at every p above.
SIZES = {"equal": (16,) * 7, "ragged": (1, 2, 7, 600, 16, 61, 33)}
OPTIONS = ("linear_offset", "row_weights", "metric", "ridge")
EXTRAS = [frozenset(c) for k in range(5) for c in itertools.combinations(OPTIONS, k)]
LANES = (2, 4, 8)


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
