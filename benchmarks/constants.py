"""Whether the constants that decide who loses weight matter: each at half and at twice its value, with the default fit.

    python benchmarks/constants.py [--only MODULE.NAME ...] [--seed 1] [--markdown] [--jobs 1]

Constants of the model of clients, and of what is done with its weights, are set to half and to twice their value one at
a time (to other values where a factor makes no sense, as for shares near one), in the module that defines them and in
all that import them. The same small data sets, with fixed seeds, are then fitted again.

data       data sets whose fit calls a function that reads the constant; others are not fitted, as nothing changes
set aside  change of the number of ordinary clients that are set aside, over all data sets together: that have a weight
           below one half or, where the method is DFL, a flag of ``screen``
found      the same of abnormal clients
off        change of the distance from the oracle, which pools the rows of the ordinary clients, in its standard errors:
           the root mean square over the coefficients, averaged over the data sets
moved      the largest change of a coefficient, in the oracle's standard errors, and where that is
said       data sets in which other warnings are issued, or the first look at a fit by DFL sees another model

A constant matters where clients are set aside that were not, or the other way round, or where an estimate moves by more
than `MOVED` standard errors. "better" and "worse" say what another value does, by the number of clients that are judged
wrongly, and where that is the same by the distance from the oracle. One data set is one draw: "better" is no reason to
change a constant, but one to look at other seeds, and at the hundred data sets for each setting of `real_clients.py`.

Any number of jobs gives the same numbers. All constants take about half an hour on one core. Exit status: 0.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import ast
import contextlib
import importlib
import inspect
import pkgutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from real_clients import network, sums_of_client

import adfl_stats as ad
from adfl_stats._threads import one_blas_thread
from adfl_stats.engine.pooled import pooled_estimate
from adfl_stats.simulate.field_designs import FieldCell, draw

PACKAGE = "adfl_stats"
# Its parts that fits use.
LOADED = ("engine", "inference", "losses", "methods", "trust")
WEIGHT = 0.5
# A change of the estimate, in standard errors, that matters. That of `trust.client_model.SMALL_MOVE`.
MOVED = 0.1
# A change of the mean distance from the oracle that is called better or worse.
NEARER = 0.01


@dataclass(frozen=True)
class Constant:
    """A constant: its module below the package, its name, and the values that it is set to, if not half and twice."""

    module: str
    name: str
    values: tuple[Any, Any] | None = None

    @property
    def words(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        """Its own value."""
        return getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.name)

    @property
    def others(self) -> tuple[Any, Any]:
        """A lower and a higher value."""
        return self.values or (scaled(self.value, 0.5), scaled(self.value, 2.0))


def scaled(value: Any, factor: float) -> Any:
    """Return a constant times a factor; whole numbers stay whole, and positive."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    if isinstance(value, int):
        return max(1, round(factor * value))
    return value * factor


def _halved(module: str, *names: str) -> list[Constant]:
    return [Constant(module, name) for name in names]


CONSTANTS: tuple[Constant, ...] = (
    *_halved("trust.candidates", "GROSS_PRICE", "SEARCH_PRICE", "MECHANISM_PRICE", "PREFERENCE", "FEW"),
    *_halved("trust.candidates", "UNCERTAIN", "UNCERTAIN_EACH", "UNCERTAIN_FROM", "MECHANISM_UNCERTAIN"),
    *_halved("trust.chance", "SLIGHT_GAIN", "CHECKED_LEAD", "RESAMPLES", "DEVIATIONS", "FIRST", "SURE", "BEHIND"),
    *_halved("trust.class_agreement", "LEAST_ROWS", "ALIKE", "PARTED"),
    Constant("trust.class_agreement", "LEAST_ROOT", (1e-15, 1e-9)),
    Constant("trust.class_agreement", "MOST_NODES", (1, 20_000)),
    *_halved("trust.client_model", "SMALL_MOVE"),
    *_halved("trust.comparison", "STRONG", "SMALL_VARIANCE", "NEAR_BEST", "MOST_GROSS"),
    # Beyond the sizes of the data sets here, but for one of the two values.
    Constant("trust.comparison", "MOST_VARIANCES", (1, 20)),
    Constant("trust.comparison", "MOST_ROWS", (1_000, 400_000)),
    *_halved("trust.fitting", "MOST_PASSES", "FREE_PASSES", "REVISITED", "REVISITED_OTHERS", "OVERWHELMING"),
    *_halved("trust.fitting", "LEAST_DEVIANCE", "DECISIVE", "CLOSE"),
    *_halved("trust.laplace", "MOST_STEPS", "SMALL_STEP", "SHORTER", "FACTOR"),
    Constant("trust.laplace", "RIDGE", (1e-15, 1e-11)),
    *_halved("trust.mixture", "SCALES", "SMALL_GAIN", "SHORT", "LONG", "MOST_WIDTH", "MOST_MECHANISM_WIDTH", "PRIOR"),
    # Twice nearly one half would be no minority.
    Constant("trust.mixture", "START_SHARES", ((0.05, 0.125, 0.21), (0.2, 0.35, 0.48))),
    *_halved("trust.mixture", "MECHANISM_SHARE", "GROSS_ALONE", "GROSS_BESIDE", "DIRECTIONS", "OUTLYING"),
    *_halved("trust.null", "LEAST_FOR_LEVELS", "USUAL_RANGES", "SHRINKAGE_FACTOR", "MOST_RATIO", "MOST_NOISE", "RARE"),
    Constant("trust.null", "NORMAL", (1e5, 1e9)),
    *_halved("trust.reading_fits", "MOST_STEPS", "SMALL_GAIN", "FIRST_STEPS", "FURTHER_STEPS", "MOST_GROWTH"),
    # One is no longer step.
    Constant("trust.reading_fits", "LONGER", (1.0, 6.0)),
    *_halved("trust.reading_fits", "MINORITY_SHARE", "GROSS_SHARE", "GROSS_SCALE", "WEAK"),
    Constant("trust.reading_fits", "LOWEST", (-1e6, -1e12)),
    *_halved("trust.readings", "FIRST_VARIANCE", "TAIL_POINTS", "LEAST_MEAN"),
    *_halved("trust.resampling", "BLOCK"),
    Constant("trust.resampling", "MOST_ROWS", (1_000, 4_000_000)),
    Constant("trust.resampling", "POOL", (1_000, 400_000)),
    Constant("trust.selection", "MANY_CLIENTS", (30, 2_000)),
    Constant("trust.selection", "MANY_COEFFICIENTS", (1, 200)),
    *_halved("trust.selection", "LEAST_FOR_MINORITY", "LEAST_FOR_SPREAD", "LEAST_FOR_GROSS", "LEAST_FOR_MECHANISM"),
    *_halved("trust.selection", "DOUBT", "SPREAD_DEVIATIONS", "ACTIVE", "TEST_MARGIN"),
    # Below one the limit itself would show a spread.
    Constant("trust.selection", "EDGE_MARGIN", (1.0, 2.2)),
    *_halved("trust.selection", "MOST_DIRECTIONS"),
    Constant("trust.selection", "LEAST_MAJORITY", (0.4, 0.5)),
    *_halved("trust.spread", "MOST_STEPS", "SMALL_GAIN", "LEAST_STEPS", "LEAST_START", "LEAST_GROWTH", "MOST_GROWTH"),
    *_halved("trust.spread", "LEAST_DIRECTION"),
    # Effects with four degrees of freedom or fewer have no kurtosis.
    Constant("trust.spread", "HEAVY_DF", (4.5, 10.0)),
    *_halved("trust.summaries", "MORE_STEPS", "LONGEST_STEP", "USUAL_TRACE"),
    Constant("trust.summaries", "MOST_LEVERAGE", (0.8, 0.95)),
    *_halved("trust.weights", "TRUST", "DISAGREEMENT"),
    Constant("trust.weights", "QUANTILE", (0.9, 0.975)),
    *_halved("methods.adaptive", "UNTUNED", "SAME", "CLEAR", "MOST_ROWS", "MUCH_LOST", "DISPROPORTION", "UNDECIDED"),
    Constant("methods.adaptive", "CLOSE", (1.0, 1.2)),
    Constant("methods.adaptive", "NEARLY_HALF", (0.4, 0.48)),
    Constant("methods.adaptive", "MOST_LOST", (0.25, 0.75)),
    *_halved("methods.adaptive", "CLEARLY"),
    *_halved("methods.keeping", "LEAST_WEIGHT", "PART"),
    Constant("methods.keeping", "RANK", (1e-12, 1e-8)),
    *_halved("methods.tuning", "GRID", "FOLDS", "LEAST_ROWS"),
    Constant("methods.tuning", "ROUGH", (1e-8, 1e-4)),
    *_halved("inference.client_record", "LEAST_FOR_NULL", "LEAST_GAIN", "TAILS", "NOISY", "FAMILY_LEVEL"),
    *_halved("inference.glance", "ALPHA"),
    Constant("engine.overdispersion", "LEAST_ALPHA", (1e-8, 1e-4)),
    Constant("engine.overdispersion", "MOST_ALPHA", (1e2, 1e4)),
    *_halved("engine.overdispersion", "PASSES", "HALVES", "ALPHA"),
    Constant("engine.overdispersion", "SMALL_CHANGE", (1e-8, 1e-4)),
    *_halved("engine.overflow", "LARGER_LOG", "LARGER", "LARGER_OFFSET"),
    Constant("engine.overflow", "SWAMPING", (1e8, 1e12)),
)


@contextlib.contextmanager
def replaced(constant: Constant, value: Any) -> Iterator[None]:
    """Set a constant to another value in the module that defines it and in all that import it."""
    places = [(importlib.import_module(module), name) for module, name in holders(constant)]
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), old in zip(places, before, strict=True):
            setattr(module, name, old)


def holders(constant: Constant) -> list[tuple[str, str]]:
    """Return modules that have the constant, each with the name that it has there: its own and all that import it."""
    found = [(f"{PACKAGE}.{constant.module}", constant.name)]
    # A constant may be imported from where it was imported to.
    for place in found:
        found += [one for one in _imports().get(place, []) if one not in found]
    return found


@cache
def _imports() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return who imports what by name: from (module, name) to the places that hold it, over the modules in memory.

    Those that a fit may use are loaded first: one that is imported while a constant is replaced would keep its other
    value. By their source, as equal numbers under equal names in two modules need not be one constant.
    """
    for part in LOADED:
        for one in pkgutil.iter_modules(importlib.import_module(f"{PACKAGE}.{part}").__path__):
            # Some need packages that are optional.
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{PACKAGE}.{part}.{one.name}")
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for holder, module in sorted(sys.modules.items()):
        if holder.split(".")[0] != PACKAGE or not str(getattr(module, "__file__", "")).endswith(".py"):
            continue
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ImportFrom) and not node.level:
                for name in node.names:
                    place = (holder, name.asname or name.name)
                    found.setdefault((str(node.module), name.name), []).append(place)
    return found


@dataclass(frozen=True, eq=False)
class Case:
    """Data, a fit of them, and the truth.

    `fit` returns which clients are set aside (M,), the estimate (P,) or None, and words that may change with it.
    """

    name: str
    abnormal: np.ndarray
    fit: Callable[[], tuple[np.ndarray, np.ndarray | None, str]]
    oracle: np.ndarray | None = None
    errors: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one fit of a case came to; `failed` has the words of an error."""

    aside: np.ndarray
    params: np.ndarray | None
    said: str
    failed: str = ""


def outcome_of(case: Case) -> Outcome:
    """Fit a case."""
    try:
        with one_blas_thread(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            aside, params, words = case.fit()
    except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError, ad.DivergenceError) as error:
        return Outcome(np.zeros(len(case.abnormal), dtype=bool), None, "", f"{type(error).__name__}: {error}")
    # Words that have no numbers in them.
    kinds = {"".join(c for c in str(one.message) if not c.isdigit())[:60] for one in caught}
    return Outcome(aside, params, " | ".join([words, *sorted(kinds)]))


def read_by(case: Case) -> frozenset[tuple[str, str]]:
    """Return the global names, with their modules, in functions of the package that a fit calls."""
    seen = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen[frame.f_code] = frame.f_globals.get("__name__", "")

    sys.setprofile(note)
    try:
        outcome_of(case)
    finally:
        sys.setprofile(None)
    return frozenset((str(m), name) for code, m in seen.items() if str(m).startswith(PACKAGE) for name in code.co_names)


def _glm_case(
    name: str,
    family: str,
    X: np.ndarray,
    y: np.ndarray,
    client: np.ndarray,
    abnormal: np.ndarray,
    method: ad.Method | None = None,
) -> Case:
    data = ad.ClientData.from_arrays(X, y, client)

    def fit() -> tuple[np.ndarray, np.ndarray, str]:
        model = ad.DecentralizedGLM(data, network(len(abnormal)), family)
        res = model.fit(threads=1) if method is None else model.fit(method, threads=1)
        if isinstance(method, ad.DFL):
            aside = ad.screen(res).to_frame()["flagged"].to_numpy()
            words = f"{res.record.glance.spread_kind}, {int(res.record.clients.noisy.sum())} noisy"
        else:
            aside, words = res.client_weights.to_numpy() < WEIGHT, ""
        return aside, res.params.to_numpy(), words

    oracle, errors = np.full(X.shape[1], np.nan), np.full(X.shape[1], np.nan)
    ordinary = ~abnormal[client]
    # A constant of an abnormal client has no oracle.
    use = X[ordinary].any(axis=0)
    oracle[use], errors[use] = _oracle(family, X[ordinary][:, use], y[ordinary], client[ordinary])
    # The estimate of plain DFL takes no part in the comparison: no constant changes it.
    return Case(name, abnormal, fit) if isinstance(method, ad.DFL) else Case(name, abnormal, fit, oracle, errors)


def _oracle(family: str, X: np.ndarray, y: np.ndarray, client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pooled estimate of some rows and its standard errors, with one parameter and noise level for all."""
    data = ad.ClientData.from_arrays(X, y, np.unique(client, return_inverse=True)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        glm = ad.DecentralizedGLM(data, network(data.n_clients), family).family
        found = pooled_estimate(data, glm, np.ones(data.n_clients, dtype=bool), np.zeros(X.shape[1]))
    if found is None:
        raise ValueError("the ordinary clients have no pooled estimate")
    information = sum(
        n * sums_of_client(data, glm, found.params, m).information for m, n in enumerate(data.totals.tolist())
    )
    noise = float(np.mean(np.square(y - X @ found.params))) if glm.linear else 1.0
    return found.params, np.sqrt(noise * np.diag(np.linalg.inv(information)))


def _simulated(cell: FieldCell, seed: int, method: ad.Method | None = None, family: str = "") -> Case:
    sim = draw(cell, seed)
    return _glm_case(cell.name, family or cell.family, sim.X, sim.y, sim.client, sim.abnormal, method)


def _gross(seed: int) -> Case:
    """Clients that differ, and some that are far away, each in its own direction."""
    sim, rng = draw(FieldCell("gross", M=30, n=40, p=2, tau=0.5), seed), np.random.default_rng(seed)
    abnormal, y = np.arange(30) < 5, sim.y.copy()
    directions = rng.normal(size=(30, 3)) * 1.2
    moved = abnormal[sim.client]
    y[moved] += np.einsum("ij,ij->i", sim.X, directions[sim.client])[moved]
    return _glm_case("gross clients", "gaussian", sim.X, y, sim.client, abnormal)


def _own_constants(seed: int) -> Case:
    """A constant for each client, slopes that differ, and clients whose slopes have the other sign."""
    M, n, rng = 24, 40, np.random.default_rng(seed)
    client, abnormal = np.repeat(np.arange(M), n), np.arange(M) < 3
    x = rng.normal(size=(M * n, 2)) + rng.normal(size=(M, 2))[client]
    slopes = np.array([1.0, 0.5]) + 0.1 * rng.normal(size=(M, 2))
    slopes[abnormal] *= -1.0
    y = rng.normal(size=M)[client] + np.einsum("ij,ij->i", x, slopes[client]) + rng.normal(size=M * n)
    X = np.column_stack([client[:, None] == np.arange(M), x]).astype(float)
    return _glm_case("constant for each client", "gaussian", X, y, client, abnormal)


def _vast(seed: int) -> Case:
    """Counts; one client has its covariates in thousandths of a unit, one of them in a tenth."""
    sim = draw(FieldCell("vast", "poisson", M=30, n=40, p=2), seed)
    X, abnormal = sim.X.copy(), np.arange(30) < 2
    X[sim.client == 0, 1:] *= 1e3
    X[sim.client == 1, 1:] *= 15.0
    return _glm_case("covariates in another unit", "poisson", X, sim.y, sim.client, abnormal)


def _labels(seed: int) -> Case:
    """Clients with two of six classes each; some have wrong labels."""
    M, n, q, K, rng = 14, 40, 6, 6, np.random.default_rng(seed)
    abnormal, means = np.arange(M) < 3, 1.3 * rng.normal(size=(K, q))
    classes = [rng.choice(rng.choice(K, 3, replace=False), n) for _ in range(M)]
    features = [means[labels] + rng.normal(size=(n, q)) for labels in classes]
    for m in np.flatnonzero(abnormal):
        classes[m] = (classes[m] + 1) % K

    def fit() -> tuple[np.ndarray, None, str]:
        return ad.class_agreement(features, classes).weights < WEIGHT, None, ""

    return Case("wrong labels, few classes", abnormal, fit)


def _heavy_effects(family: str, seed: int) -> Case:
    """Clients whose constants and slopes differ by t with three degrees of freedom; nobody is abnormal."""
    M, n, rng = 24, 50, np.random.default_rng(seed)
    client = np.repeat(np.arange(M), n)
    X = np.column_stack([np.ones(M * n), rng.normal(size=M * n)])
    effects = (0.2 if family == "gaussian" else 0.4) * rng.standard_t(3.0, size=(M, 2))
    eta = np.einsum("ij,ij->i", X, np.array([0.0, 1.0]) + effects[client])
    y = eta + rng.normal(size=M * n) if family == "gaussian" else (rng.random(M * n) < 1 / (1 + np.exp(-eta))) + 0.0
    return _glm_case(f"{family}, effects with heavy tails", family, X, y, client, np.zeros(M, dtype=bool))


@cache
def cases(seed: int) -> tuple[Case, ...]:
    """Return the data sets: small, so that a fit takes a second or less."""
    alike: dict[str, Any] = {"M": 40, "n": 40, "p": 3}
    flip: dict[str, Any] = {"corruption": "flip", "share": 0.2}
    shift: dict[str, Any] = {"corruption": "shift", "share": 0.2}
    permute: dict[str, Any] = {"M": 24, "p": 2, "corruption": "permute", "share": 0.2}
    link: dict[str, Any] = {"M": 30, "n": 50, "p": 2, "tau": 1.0}
    odd: dict[str, Any] = {"M": 30, "n": 100, "p": 4, "intercept": False, "slope": 1.0, "share": 0.3}
    cells = (
        FieldCell("gaussian, alike, flipped", **alike, **flip),
        FieldCell("gaussian, differ", **alike, tau=1.0),
        FieldCell("gaussian, constants differ, flipped", **alike, tau=2.0, spread="intercept", **flip),
        FieldCell("gaussian, rows depend", M=40, n=40, p=2, noise="ar"),
        FieldCell("gaussian, skewed noise, small clients", M=40, n=15, p=2, noise="lognormal"),
        FieldCell("gaussian, noise by client, flipped", M=40, n=(10, 80), p=2, noise="client", **flip),
        FieldCell("gaussian, alike, shift of 4", **alike, **shift, shift=4.0),
        FieldCell("gaussian, differ, shift of 7", **alike, tau=1.0, **shift, shift=7.0),
        FieldCell("gaussian, 300 clients, shift of 4", M=300, n=20, p=1, **shift, shift=4.0),
        FieldCell("gaussian, 10 clients differ, flipped", M=10, n=60, p=2, tau=1.0, **flip),
        FieldCell("binomial, differ", "binomial", **link),
        FieldCell("binomial, differ, flipped", "binomial", **link, **flip),
        FieldCell("binomial, another parameter", "binomial", corruption="minority", **odd),
        FieldCell("binomial, out of distribution", "binomial", corruption="OOD", **odd),
        FieldCell("poisson, differ", "poisson", **link),
        FieldCell("poisson, differ, shuffled", "poisson", n=40, slope=0.6, tau=1.0, **permute),
        FieldCell("poisson, alike, shuffled", "poisson", n=60, slope=0.5, **permute),
    )
    overdispersed = FieldCell("negative binomial, shuffled", "poisson", n=60, slope=0.8, counts="nb", **permute)
    dfl, tuned = ad.DFL(), ad.ADFL(lam="cv", equalise=False)
    return (
        *(_simulated(cell, seed) for cell in cells),
        _simulated(FieldCell("gaussian, differ, flipped", **alike, tau=1.5, **flip), seed + 1),
        _heavy_effects("gaussian", seed),
        _gross(seed),
        _own_constants(seed),
        _heavy_effects("binomial", seed),
        _simulated(overdispersed, seed, family="negativebinomial"),
        _vast(seed),
        _simulated(FieldCell("DFL and screen, differ, flipped", **alike, tau=0.5, **flip), seed, dfl),
        _simulated(FieldCell("DFL and screen, noise by client", **alike, noise="client"), seed, dfl),
        _simulated(FieldCell("lambda by cross-validation, flipped", M=30, n=15, p=2, **flip), seed, tuned),
        _simulated(FieldCell("lambda untuned, flipped", M=30, n=8, p=1, **flip), seed, tuned),
        _labels(seed),
    )


@dataclass(frozen=True)
class Judged:
    """What one other value of a constant does."""

    constant: str
    value: str
    data: int
    ordinary: int
    found: int
    off: float
    moved: float
    where: str
    said: int
    failed: str
    verdict: str


def judge(constant: Constant, side: int, seed: int, reference: list[Outcome], which: list[int]) -> Judged:
    """Fit the data sets `which` with the lower (0) or the higher (1) other value."""
    data, outcomes, value = cases(seed), list(reference), constant.others[side]
    with replaced(constant, value):
        for k in which:
            outcomes[k] = outcome_of(data[k])
    ordinary, found, off = totals(data, outcomes)
    ordinary0, found0, off0 = totals(data, reference)
    moves = [_move(*three) for three in zip(data, outcomes, reference, strict=True)]
    place = int(np.argmax(moves))
    same = all((one.aside == other.aside).all() for one, other in zip(outcomes, reference, strict=True))
    failed = [f"{data[k].name}: {outcomes[k].failed}" for k in which if outcomes[k].failed != reference[k].failed]
    more = (ordinary - found) - (ordinary0 - found0)
    if failed:
        verdict = "fails"
    elif same and moves[place] <= MOVED:
        verdict = "same"
    elif more or abs(off - off0) > NEARER:
        verdict = "worse" if (more or off - off0) > 0 else "better"
    else:
        verdict = "as good"
    return Judged(
        constant.words,
        _short(value),
        len(which),
        ordinary - ordinary0,
        found - found0,
        off - off0,
        moves[place],
        data[place].name,
        sum(one.said != other.said for one, other in zip(outcomes, reference, strict=True)),
        "; ".join(failed),
        verdict,
    )


def totals(data: tuple[Case, ...], outcomes: list[Outcome]) -> tuple[int, int, float]:
    """Return the ordinary clients that are set aside, the abnormal ones that are, and the mean distance."""
    pairs = list(zip(data, outcomes, strict=True))
    far = [_distance(one.params, case.oracle, case.errors) for case, one in pairs]
    ordinary = sum(int(one.aside[~case.abnormal].sum()) for case, one in pairs)
    return ordinary, sum(int(one.aside[case.abnormal].sum()) for case, one in pairs), float(np.nanmean(far))


def _distance(params: np.ndarray | None, oracle: np.ndarray | None, errors: np.ndarray | None) -> float:
    if params is None or oracle is None or errors is None:
        return np.nan
    return float(np.sqrt(np.nanmean(np.square((params - oracle) / errors))))


def _move(case: Case, one: Outcome, other: Outcome) -> float:
    errors = case.errors
    if one is other or one.params is None or other.params is None or errors is None:
        return 0.0
    return float(np.nanmax(np.abs(one.params - other.params) / errors))


def _short(value: Any) -> str:
    if isinstance(value, tuple | np.ndarray):
        return f"{value[0]:.3g} to {value[-1]:.3g}"
    return f"{value:.6g}"


def _words(one: Judged) -> str:
    """Return a cell of the table: what is not as with the constant's own value."""
    if one.verdict == "fails":
        return f"{one.value}: fails ({one.failed})"
    parts = [f"{one.ordinary:+d} set aside"] * bool(one.ordinary) + [f"{one.found:+d} found"] * bool(one.found)
    if one.moved >= 0.01:
        where = f" ({one.where})" if one.verdict != "same" else ""
        parts += [f"off {one.off:+.2f}"] * (abs(one.off) >= 0.005) + [f"moved {one.moved:.2f}{where}"]
    parts += [f"{one.said} said"] * bool(one.said)
    # As many clients may be other ones.
    return f"{one.value}: {', '.join(parts) or ('same' if one.verdict == 'same' else 'other clients')}"


def table(judged: list[tuple[Constant, Judged, Judged]]) -> pd.DataFrame:
    """Return one row per constant that changes anything."""
    return pd.DataFrame(
        {
            "constant": constant.words,
            "value": _short(constant.value),
            "data": low.data,
            "lower": _words(low),
            "higher": _words(high),
            "lower, higher": f"{low.verdict}, {high.verdict}",
        }
        for constant, low, high in judged
        if kind_of(low, high) not in ("read by no fit", "do not matter")
    )


def markdown(frame: pd.DataFrame) -> str:
    """Return the table for a page; constants in code."""
    rows = [frame.columns.tolist(), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    rows[2:] = [[f"`{row[0]}`", *row[1:]] for row in rows[2:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def chosen(patterns: list[str] | None) -> list[Constant]:
    """Return the constants whose names match one of the patterns."""
    found = [one for one in CONSTANTS if any(fnmatchcase(one.words, pattern) for pattern in patterns or ["*"])]
    if not found:
        sys.exit(f"no constant is {' or '.join(patterns or [])}; names are such as {CONSTANTS[0].words}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the table of constants that change anything, and behind it which do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MODULE.NAME", help="some, or patterns such as 'trust.null.*'")
    parser.add_argument("--seed", type=int, default=1, help="of the data sets (default 1)")
    parser.add_argument("--markdown", action="store_true", help="the table as in docs/constants.md")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes (default 1)")
    options = parser.parse_args(arguments)
    constants, data, began = chosen(options.only), cases(options.seed), time.perf_counter()
    # Also loads what fits import when they are called.
    reads = [read_by(case) for case in data]
    reference = [outcome_of(case) for case in data]
    for case, one in zip(data, reference, strict=True):
        if one.failed:
            print(f"{case.name} fails: {one.failed}", file=sys.stderr)
    which = {one: [k for k, seen in enumerate(reads) if not seen.isdisjoint(holders(one))] for one in constants}
    tasks = [(one, side) for one in constants for side in (0, 1)]
    found = Parallel(n_jobs=options.jobs, return_as="generator")(
        delayed(judge)(one, side, options.seed, reference, which[one]) for one, side in tasks
    )
    if sys.stderr.isatty():
        from tqdm.auto import tqdm

        found = tqdm(found, total=len(tasks), desc="values", unit="value", leave=False)
    every = list(found)
    judged = list(zip(constants, every[::2], every[1::2], strict=True))
    ordinary, abnormal, off = totals(data, reference)
    everybody = [sum(int((case.abnormal == kind).sum()) for case in data) for kind in (False, True)]
    frame = table(judged)
    print(
        f"{len(reference)} data sets; {ordinary} of {everybody[0]} ordinary clients set aside, {abnormal} of "
        f"{everybody[1]} abnormal ones found, {off:.3f} standard errors off\n"
    )
    print(markdown(frame) if options.markdown else frame.to_string(index=False))
    print("\n" + summary(judged))
    print(f"\n{time.perf_counter() - began:.0f} s.")
    return 0


def kind_of(low: Judged, high: Judged) -> str:
    """Return whether a constant matters, from what its other values do."""
    verdicts = {low.verdict, high.verdict}
    if not low.data:
        return "read by no fit"
    if verdicts == {"same"}:
        return "change only what is said" if low.said or high.said else "do not matter"
    if "better" in verdicts:
        return "matter, and another value is better"
    return "matter, and another value is worse" if verdicts & {"worse", "fails"} else "matter, and others are as good"


def summary(judged: list[tuple[Constant, Judged, Judged]]) -> str:
    """Return which constants matter, which do not, and for which another value is better."""
    groups: dict[str, list[str]] = {}
    for constant, low, high in judged:
        groups.setdefault(kind_of(low, high), []).append(constant.words)
    return "\n\n".join(f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in groups.items())


if __name__ == "__main__":
    # By the module's own name, as other processes cannot have what `__main__` keeps.
    import constants

    sys.exit(constants.main())
